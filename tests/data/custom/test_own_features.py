"""Own tables and texts: separators, decimal marks, categories, gaps, text; and that test rows decide nothing."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.data.custom import own
from fedskew.data.custom.agreement import agree, write
from fedskew.data.preprocessing.table import TableEncoder
from fedskew.data.preprocessing.text import PADDING, UNKNOWN, TextEncoder
from fedskew.data.sources import Source
from tests.commands import complaint, succeed


def load(path: Path, **options: object) -> Source:
    return sources.load("own", path, **options)


def table(path: Path, heading: str, rows: Sequence[Sequence[object]], separator: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([heading.split(","), *rows])
    return path


#: grade is missing in every third row, weight in every fourth
MIXED = [
    ("ill" if at % 2 else "well", 50 + at, "" if at % 4 == 3 else 2.5 * at, "?" if at % 3 == 2 else "AB"[at % 2])
    for at in range(24)
]


class TestOneCommand:
    def train(self, path: Path, *more: str) -> str:
        few = ("--rounds", "1", "--local-epochs", "1", "--partition", "iid", "--clients", "2", "--engine", "inline")
        return succeed("run", "--data", path, *few, "--out", path.parent / "run", *more)

    def test_a_table_with_categories_and_missing_values(self, tmp_path: Path) -> None:
        path = table(tmp_path / "my.csv", "label,age,weight,grade", MIXED)
        assert "missing numbers are replaced by the mean of the training samples" in self.train(path)
        encoder = load(path).encoder
        assert isinstance(encoder, TableEncoder)
        assert encoder.features == ["age", "weight", "weight missing", "grade=A", "grade=B", "grade missing"]

    def test_semicolons_and_decimal_commas(self, tmp_path: Path) -> None:
        written = [[str(cell).replace(".", ",") for cell in row] for row in MIXED]
        german = table(tmp_path / "my.csv", "label,age,weight,grade", written, ";")
        self.train(german, "--set", "data.options.scale=true")
        plain = load(table(tmp_path / "other.csv", "label,age,weight,grade", MIXED))
        assert torch.equal(load(german).train.x, plain.train.x)

    def test_text(self, tmp_path: Path) -> None:
        rows = [("ham" if at % 2 else "spam", f"word{at} the {'fish' if at % 2 else 'offer'}") for at in range(20)]
        path = table(tmp_path / "my.csv", "label,text", rows)
        assert "fasttext" in self.train(path) or (tmp_path / "run").exists()
        source = load(path)
        assert isinstance(source.encoder, TextEncoder)
        assert (source.train.x.shape, source.train.x.dtype) == ((16, 3), torch.int64)
        assert (
            source.vocab
            == source.encoder.vocab
            == 2 + len({word for _, text in rows for word in text.split()} & {*source.encoder.words})
        )
        # test texts have words of their own, which are unknown to the vocabulary of the training texts
        assert (source.test.x == UNKNOWN).any()
        assert load(path, length=5).train.x[:, 3:].unique().tolist() == [PADDING]


class TestNothingIsFittedOnTestData:
    def pair(
        self, tmp_path: Path, heading: str, change: Callable[[list[object]], list[object]]
    ) -> tuple[Source, Source]:
        """The same training rows with two kinds of test rows."""
        name = heading.split(",")
        rows = (
            [list(row) for row in MIXED]
            if "weight" in name
            else [[r[0], f"the {r[0]} {at}"] for at, r in enumerate(MIXED)]
        )
        split = ["test" if at % 6 > 3 else "train" for at in range(len(rows))]
        one = [[*row, part] for row, part in zip(rows, split, strict=True)]
        other = [[*(change(row) if part == "test" else row), part] for row, part in zip(rows, split, strict=True)]
        paths = [
            table(tmp_path / name / "my.csv", f"{heading},split", some) for name, some in (("a", one), ("b", other))
        ]
        first, second = (load(path, **({"scale": True} if "weight" in heading else {})) for path in paths)
        return first, second

    def test_table(self, tmp_path: Path) -> None:
        first, second = self.pair(
            tmp_path,
            "label,age,weight,grade",
            lambda row: [row[0], float(row[1]) * 1000, 1e6, "C"],  # type: ignore[arg-type]
        )
        assert not np.array_equal(first.test.x.numpy(), second.test.x.numpy())
        assert first.encoder == second.encoder
        assert torch.equal(first.train.x, second.train.x)

    def test_text(self, tmp_path: Path) -> None:
        first, second = self.pair(tmp_path, "label,text", lambda row: [row[0], "quite other and far longer words"])
        assert not torch.equal(first.test.x, second.test.x)
        assert first.encoder == second.encoder


class TestFederation:
    def sites(self, tmp_path: Path) -> dict[str, Path]:
        split = [(*row, "test" if at % 5 == 4 else "train") for at, row in enumerate(MIXED)]
        parts = {"north": split[:10], "south": split[10:]}
        return {
            name: table(tmp_path / f"client-{name}" / "my.csv", "label,age,weight,grade,split", rows)
            for name, rows in parts.items()
        }

    def test_sites_that_share_sums_make_the_features_of_one_machine(self, tmp_path: Path) -> None:
        together, files = load(tmp_path, scale=True) if self.sites(tmp_path) else None, []
        for name, path in self.sites(tmp_path).items():
            files.append(tmp_path / f"{name}.json")
            write(files[-1], own.column_statistics(path, classes="ill,well"))
        agreed = json.loads(agree(files, scale=True))
        assert together is not None and isinstance(together.encoder, TableEncoder)
        for ours, shared in zip(together.encoder.as_dict()["columns"], agreed["columns"], strict=True):
            assert {**ours, "mean": 0, "std": 0} == {
                **shared,
                "categories": tuple(shared["categories"]),
                "mean": 0,
                "std": 0,
            }
            assert (ours["mean"], ours["std"]) == pytest.approx((shared["mean"], shared["std"]), rel=1e-12)
        alone = [load(path, encoder=agree(files, scale=True)).train.x for path in self.sites(tmp_path).values()]
        assert torch.allclose(torch.cat(alone), together.train.x, rtol=1e-6, atol=1e-6)

    def test_a_site_without_a_category_has_all_features(self, tmp_path: Path) -> None:
        both = self.sites(tmp_path)["south"]
        write(tmp_path / "a.json", own.column_statistics(both, classes="ill,well"))
        encoder = agree([tmp_path / "a.json"], scale=False)
        only = table(tmp_path / "b.csv", "label,age,weight,grade", [(row[0], row[1], 1, "A") for row in MIXED])
        assert load(only, encoder=encoder).train.x.shape[1] == 6

    def test_a_site_where_a_category_is_missing_throughout_has_all_features(self, tmp_path: Path) -> None:
        write(tmp_path / "a.json", own.column_statistics(self.sites(tmp_path)["south"], classes="ill,well"))
        encoder = agree([tmp_path / "a.json"], scale=False)
        blank = table(tmp_path / "b.csv", "label,age,weight,grade", [(row[0], row[1], 1, "?") for row in MIXED])
        assert load(blank, encoder=encoder).train.x[:, 3:].unique(dim=0).tolist() == [[0, 0, 1]]

    def test_codes_stay_categories(self, tmp_path: Path) -> None:
        path = table(tmp_path / "a.csv", "label,code", [("ill" if at % 2 else "well", at % 3) for at in range(24)])
        write(tmp_path / "a.json", own.column_statistics(path, classes="ill,well", categories="code"))
        x = load(path, encoder=agree([tmp_path / "a.json"], scale=True)).train.x
        assert torch.equal(x, load(path, categories="code").train.x) and x.shape[1] == 3

    def test_a_site_alone_does_not_decide(self, tmp_path: Path) -> None:
        """Each site would make other features of it: the means, words and vocabularies are its own."""
        with pytest.raises(UserError, match="Agree on features first: fedskew data statistics"):
            load(self.sites(tmp_path)["south"], vacant=True)
        plain = table(tmp_path / "b.csv", "label,age", [(row[0], row[1]) for row in MIXED])
        assert load(plain, vacant=True).train.x.shape[1] == 1
        with pytest.raises(UserError, match="Agree on features first"):
            load(plain, vacant=True, scale=True)
        words = table(tmp_path / "c.csv", "label,text", [(row[0], "some words") for row in MIXED])
        with pytest.raises(UserError, match="sites have no common vocabulary"):
            load(words, vacant=True)

    def test_the_commands(self, tmp_path: Path) -> None:
        north = self.sites(tmp_path)["north"]
        shown = succeed("data", "statistics", north, "--classes", "ill,well", "--out", tmp_path / "north.json")
        assert "A, B" in shown and "mean 5" in shown
        stored = json.loads((tmp_path / "north.json").read_text())["columns"]
        assert set(stored["age"]) == {"cells", "missing", "mean", "squares", "categories"}
        made = succeed("data", "agree", tmp_path / "north.json", "--scale")
        assert json.loads(made)["scale"] is True
        assert "no statistics" in complaint("data", "agree", north)
        twice = [tmp_path / "north.json"] * 2
        assert "a file is named twice" in complaint("data", "agree", *twice)

    def test_sums_of_few_cells_are_pointed_out(self, tmp_path: Path) -> None:
        rows = [(("ill", "well")[n % 2], 30 + n, "" if n % 10 else n) for n in range(40)]
        path = table(tmp_path / "a.csv", "label,age,rare", rows)
        said = succeed("data", "statistics", path, "--classes", "ill,well", "--out", tmp_path / "a.json")
        assert "fewer than 5 cells of rare are known here" in said and "age are known" not in said


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("label;a\nx;1,5\ny;2.5\n", {}, r"line 2: '1,5' has a comma, and '2\.5' \(.*line 3\) a point\. Write all"),
        ("label;a\nx;1,500\ny;2,000\n", {}, "line 2: '1,500' may have a decimal comma or thousands"),
        ("label;a\nx;1.234,5\ny;0.5\n", {}, r"line 2: '1\.234,5' has a comma, and '0\.5' \(.*line 3\) a point"),
        ("label;a\nx;1,5\ny;0.5\n", {"decimal": "comma"}, r"line 3: column 'a' is '0\.5', which is no number"),
        ("label,a\nx,1\ny,-9\n", {"missing": "1,-9"}, "no column of the table has a value"),
        ("label,a\nx,2024-01-31\ny,2024-02-01\n", {}, "line 2: column 'a' is '2024-01-31', a date. Replace"),
        ("label,a\nx,31.1.24 10:15\ny,1.2.24 9:00\n", {}, "line 2: column 'a' is '31.1.24 10:15', a date"),
        ("label,text\nx,1\ny,2\n", {"missing": "x"}, "option missing is for table, and these data are text"),
        ("label,a\nx,1\ny,b\n", {}, "line 3: column 'a' is 'b', which is no number"),
        ("label,a\nx,?\ny,?\n", {}, "no column of the table has a value"),
        ("label,a\nx,1\ny,2\n", {"categories": "b"}, "option categories names 'b', which is no feature column"),
        ("label,a\nx,1\ny,2\n", {"decimal": "dot"}, "option decimal is 'dot'. Set it to comma or point"),
        ("label,a\nx,1\ny,2\n", {"size": 8}, "option size is for images, and these data are table"),
        ("label,text\nx,1\ny,2\n", {"scale": True}, "option scale is for table, and these data are text"),
        ("label,text\nx,a\ny,\n", {}, "line 3: column 'text' is empty"),
        ("label,a\nx,1\ny,2\n", {"encoder": "nonsense"}, "option encoder is 'nonsense', which is no encoder"),
        ("label,a\nx,1\ny,2\n", {"encoder": '{"columns": [], "scale": 1}'}, "is no encoder"),
    ],
)
def test_mistakes(tmp_path: Path, content: str, options: dict[str, object], message: str) -> None:
    heading, *rows = content.splitlines()
    path = tmp_path / "my.csv"
    path.write_text("\n".join([heading, *rows * 10]))
    with pytest.raises(UserError, match=message):
        load(path, **options)


def test_names_are_no_categories(tmp_path: Path) -> None:
    path = table(tmp_path / "my.csv", "label,who", [("xy"[at % 2], f"person {at}") for at in range(30)])
    with pytest.raises(UserError, match="line 2: column 'who' is 'person 0', and another word in every"):
        load(path)


@pytest.mark.parametrize(
    ("one", "other", "decimal", "values"),
    [
        ("1,500", "2,000", "comma", [1.5, 2.0]),
        ("1,500", "2,000", "point", [1500, 2000]),
        ("1,500", "0.5", "point", [0.5, 1500]),
        ("1.500", "0,5", "comma", [0.5, 1500]),
        ("1.500,5", "1,5", "", [1.5, 1500.5]),
        ("-1,234,500.5", "1.5", "", [-1234500.5, 1.5]),
    ],
)
def test_marks_of_decimals_and_thousands(
    tmp_path: Path, one: str, other: str, decimal: str, values: list[float]
) -> None:
    path = tmp_path / "my.csv"
    path.write_text("label;a\n" + f"x;{one}\ny;{other}\n" * 5)
    assert sorted(load(path, decimal=decimal).train.x.unique().tolist()) == values


@pytest.mark.parametrize("cell", ["-", "--", ".", "none", "None", "n.a.", "-99", "-99.0"])
def test_cells_that_mean_no_value(tmp_path: Path, cell: str) -> None:
    """The usual marks, and those that the option names; 1, 2, 3 have the mean 2, which fills the gaps."""
    path = tmp_path / "my.csv"
    rows = [("xy"[at % 2], (1, 2, 3, cell)[at // 2 % 4], "train" if at < 24 else "test") for at in range(32)]
    x = load(table(path, "label,a,split", rows), missing="n.a.,-99").train.x
    assert x[6:8].tolist() == [[2, 1], [2, 1]]
    assert x[:6, 1].tolist() == [0] * 6
    assert load(path, missing="n.a.,-99", categories="a").encoder.features == ["a=1", "a=2", "a=3", "a missing"]  # type: ignore[union-attr]


cell = st.one_of(
    st.sampled_from(
        ["", "?", "nan", "1", "2,5", "2.5", "1e999", "-", "a", "b", "x.png", "train", "test", "1,000", "0x1"]
    ),
    st.text(max_size=6),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.sampled_from(["label", "a", "b", "text", "site", "patient", "split", ""]), min_size=1, max_size=5),
    st.lists(st.lists(cell, min_size=1, max_size=5), max_size=12),
    st.sampled_from([",", ";", "\t", "|"]),
    st.booleans(),
)
def test_any_table_is_read_or_refused_in_one_sentence(
    tmp_path: Path, heading: list[str], rows: list[list[str]], separator: str, scale: bool
) -> None:
    path = tmp_path / "my.csv"
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file, delimiter=separator).writerows([heading, *(row[: len(heading)] for row in rows)])
    try:
        source = load(path, **({"scale": True} if scale and "text" not in heading else {}))
    except UserError as error:
        assert str(error).strip()
        return
    assert source.train.x.dtype in (torch.float32, torch.int64)
    assert torch.isfinite(source.train.x.double()).all()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "my.csv"
    path.write_bytes(b"label,a\n" + content)
    with suppress(UserError):
        load(path)
