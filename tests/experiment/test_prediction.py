from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fedskew
from fedskew.core.errors import UserError
from fedskew.data.sources import load
from tests.commands import complaint, succeed
from tests.commands import fedskew as fedskew_command

QUICK = {"rounds": 2, "local_epochs": 2, "engine": "inline", "partition": "iid", "clients": 2, "progress": False}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path_factory.mktemp("cache")))


def table(path: Path, heading: str, rows: list[tuple[object, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([heading.split(","), *rows])
    return path


class TestTables:
    ROWS = tuple(
        ("ill" if at % 2 else "well", 50 + 10 * (at % 2) + at % 7, "?" if at % 5 == 4 else "ABC"[at % 3])
        for at in range(60)
    )

    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        split = [(*row, "test" if at % 3 == 2 else "train") for at, row in enumerate(self.ROWS)]
        data = table(tmp_path / "my.csv", "label,age,grade,split", split)
        fedskew.run(data=data, out=tmp_path / "run", settings=["data.options.scale=true"], **QUICK)
        return tmp_path / "run"

    def test_predictions_of_the_test_rows_are_what_the_record_counted(self, run: Path, tmp_path: Path) -> None:
        tested = [row for at, row in enumerate(self.ROWS) if at % 3 == 2]
        unlabeled = table(tmp_path / "new.csv", "grade,age", [(grade, age) for _, age, grade in tested])
        found = fedskew.predict(run, unlabeled)
        assert found.classes == ("ill", "well")
        assert found.samples[0].endswith("new.csv, line 2")
        assert np.allclose(found.probabilities.sum(1), 1)
        confusion = [[0, 0], [0, 0]]
        for (label, _, _), guess in zip(tested, found.labels, strict=True):
            confusion[found.classes.index(label)][found.classes.index(guess)] += 1
        end = fedskew.load(run).end
        assert end is not None
        assert confusion == end["confusion"]

    def test_the_command_writes_a_csv(self, run: Path, tmp_path: Path) -> None:
        new = table(tmp_path / "new.csv", "age,grade,extra", [(55, "A", 1), (61, "never seen", 2), ("", "", 3)])
        rows = list(csv.DictReader(io.StringIO(succeed("predict", run, new))))
        assert [list(row) for row in rows[:1]] == [["sample", "predicted", "p(ill)", "p(well)"]]
        for row in rows:
            shares = {name: float(row[f"p({name})"]) for name in ("ill", "well")}
            assert row["predicted"] == max(shares, key=shares.__getitem__)
        assert "3: " in succeed("predict", run, new, "--out", tmp_path / "out.csv")
        assert (tmp_path / "out.csv").read_text() == succeed("predict", run, new)

    def test_only_the_columns_of_the_training_have_to_be_right(self, run: Path, tmp_path: Path) -> None:
        plain = table(tmp_path / "plain.csv", "age,grade", [(55, "A"), (61, "C")])
        heading = "grade,day,label,patient,patient_id,,age"
        more = table(tmp_path / "more.csv", heading, [("A", "1.1.24", "", "", 1, 0, 55), ("C", "?", "", "", 2, 1, 61)])
        found = [fedskew.predict(run, each) for each in (plain, more)]
        assert np.array_equal(found[0].probabilities, found[1].probabilities)

    def test_words_that_are_new_are_named(self, run: Path, tmp_path: Path) -> None:
        new = table(tmp_path / "new.csv", "age,grade", [(55, "A"), (55, "D"), (55, "?")])
        result = fedskew_command("predict", run, new)
        assert result.stderr.endswith(
            "new.csv', column 'grade': 1 of 3 cells have a word that is in no training row, such as 'D', and count as "
            "none of the known ones.\n"
        )
        assert result.stdout.count("\n") == 4

    def test_numbers_may_be_written_otherwise_than_in_training(self, run: Path, tmp_path: Path) -> None:
        plain = table(tmp_path / "plain.csv", "age,grade", [(1500.5, "A"), ("", "A"), (1234, "A")])
        other = table(tmp_path / "other.csv", "age,grade", [("1500,5", "A"), ("-99", "A"), ("1.234", "A")])
        assert "has a comma, and '1.234'" in complaint("predict", run, other)
        shown = succeed("predict", run, other, "--decimal", "comma", "--missing", "-99")
        assert shown.replace("other.csv", "plain.csv") == succeed("predict", run, plain)
        assert np.array_equal(
            fedskew.predict(run, other, decimal="comma", missing="-99").probabilities,
            fedskew.predict(run, plain).probabilities,
        )

    def test_the_best_weights_are_used_if_there_are_some(self, run: Path, tmp_path: Path) -> None:
        new = table(tmp_path / "new.csv", "age,grade", [(55, "A")])
        last = fedskew.predict(run, new).probabilities
        other = tmp_path / "other"
        fedskew.run(data=tmp_path / "my.csv", out=other, settings=["data.options.scale=true"], seed=5, **QUICK)
        shutil.copy(other / "weights.safetensors", run / "best.safetensors")
        assert not np.array_equal(fedskew.predict(run, new).probabilities, last)
        assert np.array_equal(fedskew.predict(run, new).probabilities, fedskew.predict(other, new).probabilities)

    def test_other_data_are_refused(self, run: Path, tmp_path: Path) -> None:
        def said(heading: str, row: tuple[object, ...]) -> str:
            return complaint("predict", run, table(tmp_path / "new.csv", heading, [row]))

        assert "have no column 'grade'; they have age. Add it." in said("age", (1,))
        assert "column 'age' has words, such as 'old', and it had numbers in training" in said(
            "age,grade", ("old", "A")
        )
        assert "have no column 'age'; they have text" in said("text", ("some words",))
        Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
        assert "is an image, but the run was trained on a table" in complaint("predict", run, tmp_path / "a.png")
        assert "does not exist" in complaint("predict", run, tmp_path / "none.csv")
        assert "is a file of the run or of the data" in complaint(
            "predict", run, tmp_path / "my.csv", "-o", run / "config.toml"
        )
        (run / "preprocessing.json").write_text("{}")
        assert "preprocessing.json' is damaged" in said("age,grade", (1, "A"))


def test_text(tmp_path: Path) -> None:
    rows = [("ham" if at % 2 else "spam", f"the {'fish' if at % 2 else 'offer'} {at}") for at in range(40)]
    quick = QUICK | {"lr": 1.0, "rounds": 10}
    fedskew.run(data=table(tmp_path / "my.csv", "label,text", rows), out=tmp_path / "run", **quick)
    new = table(tmp_path / "new.csv", "text", [("an offer today",), ("of fish",)])
    assert fedskew.predict(tmp_path / "run", [new, new]).labels == ["spam", "ham"] * 2


def test_images(tmp_path: Path) -> None:
    for at in range(12):
        path = tmp_path / "photos" / ("dark" if at % 2 else "light") / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * (at % 2) * 10, at, at)).save(path)
    fedskew.run(data=tmp_path / "photos", out=tmp_path / "run", **QUICK)
    one = tmp_path / "photos" / "dark" / "1.png"
    found, whole = fedskew.predict(tmp_path / "run", one), fedskew.predict(tmp_path / "run", tmp_path / "photos")
    assert whole.samples[0] == str(one)
    assert np.allclose(whole.probabilities[:1], found.probabilities, atol=1e-6)
    source = load("own", tmp_path / "photos")
    arrays = fedskew.predict(tmp_path / "run", source.test.x)
    assert len(arrays) == len(source.test)
    rows = [whole.samples.index(str(tmp_path / "photos" / path)) for path in source.paths]
    trained = fedskew.predict(tmp_path / "run", source.train.x)
    assert np.allclose(trained.probabilities, whole.probabilities[rows], atol=1e-6)


def test_arrays_and_a_network_of_ones_own(tmp_path: Path) -> None:
    x, y = torch.randn(40, 6), torch.arange(40) % 2
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    result = fedskew.run(data=(x[:30], y[:30], x[30:], y[30:]), model=module, out=tmp_path / "run", **QUICK)
    with pytest.raises(UserError, match=r"was a Python object, Sequential\. Give the same object"):
        fedskew.predict(tmp_path / "run", x)
    found = fedskew.predict(tmp_path / "run", x[30:], model=module)
    right = [int(label) == int(y[30 + at]) for at, label in enumerate(found.labels)]
    assert np.mean(right) == result.last
    np.savez(tmp_path / "new.npz", x=x[30:].numpy())
    assert np.array_equal(
        fedskew.predict(tmp_path / "run", tmp_path / "new.npz", model=module).probabilities, found.probabilities
    )
    with pytest.raises(UserError, match=r"data has samples float32 \[5\], and the run was trained on float32 \[6\]"):
        fedskew.predict(tmp_path / "run", x[:, :5], model=module)


def test_heart_disease_from_a_plain_table(tmp_path: Path, shared_data: Path) -> None:
    fedskew.run(
        dataset="heart-disease", data_dir=shared_data, rounds=1, engine="inline", progress=False, out=tmp_path / "run"
    )
    heading = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal"
    new = table(tmp_path / "new.csv", heading, [(63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6), (60, *["?"] * 12)])
    found = fedskew.predict(tmp_path / "run", new)
    assert found.classes[0] == "healthy"
    assert np.isfinite(found.probabilities).all()


@pytest.mark.parametrize("y", [[1, 2, 1, 2], [0, 2, 0, 2]])
def test_labels_with_gaps_are_refused_in_python(y: list[int]) -> None:
    x = torch.randn(4, 3)
    with pytest.raises(UserError, match=rf"label {1 if 0 in y else 0} has no training sample, and labels go up to 2"):
        fedskew.run(data=(x, y, x, y), **QUICK)


def test_a_limit_is_part_of_the_task(tmp_path: Path) -> None:
    result = fedskew.run(limit=100, out=tmp_path / "run", **QUICK)
    assert result.header.data.train == 100
    assert result.header.config["data"]["limit"] == 100
    assert "limited to 100 of 1,442 training samples" in " ".join(result.header.data.notes)


def test_only_images_are_augmented() -> None:
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    with pytest.raises(UserError, match=r"augment is 'standard', which is for images, .* shape \[3\]"):
        fedskew.run(data=(x, y, x, y), augment="standard", **QUICK)
