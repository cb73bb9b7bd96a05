"""Own tables: what their headings and labels may be, and how a sample is found again in the file it came from."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedskew.core.errors import UserError
from fedskew.data import files, sources
from fedskew.data.custom import table as custom_table
from fedskew.data.sources import Source


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path_factory.mktemp("cache")))


def load(path: Path, **options: object) -> Source:
    return sources.load("own", path, **options)


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4, 3), shade, np.uint8)).save(path)


def table(path: Path, heading: str, rows: Iterable[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([heading.split(","), *rows])
    return path


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def of_labels(path: Path, labels: Sequence[str]) -> Path:
    """A row for each label, three times over, so that some are for testing."""
    return table(path, "label,a", [(label, at) for at, label in enumerate([*labels] * 3)])


# ---------------------------------------------------------------------------------------------- where a sample is from


class TestPlaces:
    def test_a_table_of_images_without_splits(self, tmp_path: Path) -> None:
        rows = [(f"deep/{at}.png", "ab"[at % 2]) for at in range(20)]
        for at, (name, _) in enumerate(rows):
            picture(tmp_path / name, 10 * at)
        source = load(table(tmp_path / "my.csv", "path,label", rows))
        assert len(source.paths) == len(source.lines) == len(source.train) == 16
        lines = (tmp_path / "my.csv").read_text().splitlines()
        for x, path, line in zip(source.train.x, source.paths, source.lines, strict=True):
            assert np.array(Image.open(tmp_path / path))[0, 0, 0] == x[0, 0, 0]
            assert line is not None and lines[line - 1].split(",")[0] == path
        assert source.lines != tuple(range(2, 18)), "some of the first rows are for testing"

    def test_an_unreadable_image_leaves_no_gap(self, tmp_path: Path) -> None:
        rows = [(f"{at}.png", "ab"[at % 2], "train" if at < 5 else "test") for at in range(7)]
        for at in (0, 1, 3, 4, 5, 6):
            picture(tmp_path / f"{at}.png", at)
        source = load(table(tmp_path / "my.csv", "path,label,split", rows), skip_bad=True)
        assert source.paths == ("0.png", "1.png", "3.png", "4.png")
        assert source.lines == (2, 3, 5, 6)

    def test_lines_are_an_editors(self, tmp_path: Path) -> None:
        """The first row's note has a line break, and an empty line follows it: line 2 goes on in 3, and 4 is empty."""
        text = 'label,a,split,path\nx,1,train,"0\n.png"\n\ny,2,train,1.png\nx,3,test,2.png\n'
        for name in ("0\n.png", "1.png", "2.png"):
            picture(tmp_path / name, 7)
        assert load(written(tmp_path / "my.csv", text)).lines == (2, 5)

    def test_a_table_of_numbers(self, tmp_path: Path) -> None:
        rows = [("x", 1, "test"), ("x", 2, "train"), ("y", 3, "train")]
        source = load(table(tmp_path / "my.csv", "label,a,split", rows))
        assert (source.paths, source.lines) == (("my.csv", "my.csv"), (3, 4))

    def test_an_image_folder(self, tmp_path: Path) -> None:
        for at, place in enumerate(["train/dog/a.png", "train/cat/b.png", "test/dog/d.png"]):
            picture(tmp_path / "photos" / place, at)
        source = load(tmp_path / "photos")
        assert (source.paths, source.lines) == (("train/cat/b.png", "train/dog/a.png"), ())

    def test_client_folders_of_both_kinds(self, tmp_path: Path) -> None:
        for at in range(2):
            picture(tmp_path / "client-a" / "xy"[at] / "0.png", at)
            picture(tmp_path / f"client-b/{at}.png", at)
        table(tmp_path / "client-b/mine.csv", "path,label", [("0.png", "x"), ("1.png", "y")])
        picture(tmp_path / "test/x/0.png", 9)
        source = load(tmp_path)
        assert source.paths == ("client-a/x/0.png", "client-a/y/0.png", "client-b/0.png", "client-b/1.png")
        assert source.lines == (None, None, 2, 3)

    def test_other_data_carries_nothing(self, tmp_path: Path) -> None:
        x, y = np.zeros((4, 2), np.float32), np.arange(4) % 2
        np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        for source in (sources.load("digits"), load(tmp_path / "a.npz")):
            assert (source.paths, source.lines) == ((), ())

    @pytest.mark.parametrize("content", [None, b"no image"])
    def test_an_image_that_cannot_be_read_is_named_with_its_line(self, tmp_path: Path, content: bytes | None) -> None:
        rows = [(f"{at}.png", "ab"[at % 2]) for at in range(8)]
        for at in range(8):
            picture(tmp_path / f"{at}.png", at)
        (tmp_path / "5.png").unlink()
        if content is not None:
            (tmp_path / "5.png").write_bytes(content)
        with pytest.raises(UserError, match=r"^'.*my\.csv', line 7: image '.*5\.png' cannot be read"):
            load(table(tmp_path / "my.csv", "path,label", rows))


# ------------------------------------------------------------------------------------------------ headings and letters


@pytest.mark.parametrize(
    ("heading", "message"),
    [
        ("label,a,b,a", "has 2 columns 'a'. Give each column another name"),
        ("label,a,label", "has 2 columns 'label'"),
        ("Label,a", "has a column 'Label'. Rename it to 'label'"),
        ("label,a,Site", "has a column 'Site'. Rename it to 'site'"),
        ("label,a,PATIENT", "has a column 'PATIENT'. Rename it to 'patient'"),
        (
            "label,a,Patient_ID",
            "has a column 'Patient_ID', which is not read as a patient. Rename it to 'patient', or remove it",
        ),
        (
            "label,hospital,path",
            "has a column 'hospital', which is not read as a site. Rename it to 'site', or remove it",
        ),
        ("lable,a", "has no column 'label', but lable, a. Call the column of the classes 'label'"),
        ("lable;a;site", "has no column 'label', but lable, a, site. Call"),
        ("label,a,,b", "has a column without a name. Give it another name if it is a feature, or remove it"),
        ("Unnamed: 0,label,a", "has a column 'Unnamed: 0'. Give it another name"),
    ],
)
def test_headings_that_are_refused(tmp_path: Path, heading: str, message: str) -> None:
    below = "1;5,5;north\n" if ";" in heading else ",".join("1" * (1 + heading.count(","))) + "\n"
    with pytest.raises(UserError, match=message):
        load(written(tmp_path / "my.csv", f"{heading}\n{below}"))


def test_a_measurement_may_be_called_nearly_like_a_known_column(tmp_path: Path) -> None:
    rows = [("xy"[at % 2], at, 2 * at, "s") for at in range(10)]
    assert load(table(tmp_path / "my.csv", "label,Label,sites,site", rows)).train.x.shape[1] == 2


def test_latin_1_is_named_with_its_line_and_the_remedy(tmp_path: Path) -> None:
    path = written(tmp_path / "my.csv", "label,a,site\nx,1,Nord\nx,2,Süd\n", "latin-1")
    with pytest.raises(UserError, match=r"my\.csv', line 3 is not in UTF-8. Save the file as CSV in UTF-8"):
        load(path)


def test_a_cell_that_never_ends_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "my.csv", 'label,a\nx,1\nx,"' + "2" * 200_000 + "\n")
    with pytest.raises(UserError, match=r"my\.csv', line 3 is not CSV"):
        files.table(path)


def test_what_spreadsheets_add_is_left_out(tmp_path: Path) -> None:
    """A line that names the separator, empty columns and rows behind the others, and spaces before a quote."""
    rows = "".join(f'{"xy"[at % 2]};{at},5; "a; b";;\r\n' for at in range(10))
    path = written(tmp_path / "my.csv", f"\ufeffsep=;\r\nlabel;a;note;;\r\n{rows};;;;\r\n;;;;\r\n")
    source = load(path)
    assert source.train.x.shape == (8, 2)
    assert source.lines[0] == 3
    plain = "label,a,note\n" + "".join(f"{'xy'[at % 2]},{at}.5,a; b\n" for at in range(10))
    assert np.array_equal(load(written(tmp_path / "b.csv", plain)).train.x, source.train.x)


def test_an_empty_row_in_the_only_column_is_no_row_to_leave_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 3: column 'text' is empty"):
        custom_table.read(written(tmp_path / "my.csv", 'text\na\n""\nb\n'), labeled=False)


def test_long_texts_are_read_and_a_quote_that_never_ends_is_not(tmp_path: Path) -> None:
    rows = "".join(f"{'xy'[at % 2]},{'word ' * 100_000}\n" for at in range(4))
    assert len(load(written(tmp_path / "my.csv", f"label,text\n{rows}")).train) == 3
    with pytest.raises(UserError, match=r"line 4 is not CSV \(unexpected end of data\)\. Correct the line"):
        load(written(tmp_path / "my.csv", 'label,text\nx,a\ny,b\nx,"c\ny,d\n'))


class TestFoldersOfTables:
    ROWS = tuple(("xy"[at % 2], at) for at in range(10))

    def test_each_table_is_a_site(self, tmp_path: Path) -> None:
        table(tmp_path / "north.csv", "label,a", self.ROWS)
        written(tmp_path / "south.tsv", "a\tlabel\n" + "".join(f"{a}\t{label}\n" for label, a in self.ROWS))
        source = load(tmp_path)
        assert source.site_names == ("north", "south")
        assert source.sites is not None and source.sites.bincount().tolist() == [8, 8]

    def test_what_is_refused(self, tmp_path: Path) -> None:
        table(tmp_path / "north.csv", "label,a,site", [(*row, "east") for row in self.ROWS])
        with pytest.raises(UserError, match=r"the table of site 'north' has a column site with 'east'\. Remove"):
            load(tmp_path)
        (tmp_path / "images").mkdir()
        with pytest.raises(UserError, match=r"holds 'north\.csv' and a folder 'images'\. Name the table itself"):
            load(tmp_path)


def test_a_table_without_test_samples_says_why(tmp_path: Path) -> None:
    def said(heading: str, rows: Iterable[Sequence[object]]) -> str:
        with pytest.raises(UserError) as caught:
            load(table(tmp_path / "my.csv", heading, rows))
        return str(caught.value)

    assert "another label in every row" in said("label,a", [(at / 7, at) for at in range(9)])
    lonely = said("label,a,site", [("xy"[at % 2], at, at) for at in range(9)])
    assert "every class of a site has a single sample" in lonely and "remove the column site" in lonely
    split = said("label,a,split", [("xy"[at % 2], at, "train") for at in range(9)])
    assert "no test sample. Change some cells of the column split" in split


# -------------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("label", ["?", "NaN", "nan", "NA", "N/A", "<NA>", "NULL"])
def test_a_missing_label_is_no_class(tmp_path: Path, label: str) -> None:
    path = of_labels(tmp_path / "my.csv", ["0", "1", label])
    with pytest.raises(
        UserError, match=rf"^label '{re.escape(label)}' \('.*my\.csv', line 4\) stands for a missing label"
    ):
        load(path)
    assert load(path, classes=f"0,1,{label}").labels == ("0", "1", label)


def test_whole_numbers_are_read_as_such(tmp_path: Path) -> None:
    source = load(of_labels(tmp_path / "my.csv", ["3", "3.0", "10.0", "2."]))
    assert source.labels == ("2", "3", "10")
    assert load(of_labels(tmp_path / "b.csv", ["3.0", "3.5"])).labels == ("3.0", "3.5")
    with pytest.raises(UserError, match=r"label '3\.0' \('.*', line 3\) is no class. Known: 3, 4"):
        load(of_labels(tmp_path / "c.csv", ["3", "3.0"]), classes="3,4")
