"""From corrections to a better model: the corrected table, the second run, and what it gained."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedskew
from fedskew import api, label_review
from fedskew.core.errors import UserError
from fedskew.data import corrections
from fedskew.experiment import run as experiment
from fedskew.record import predictions, run_dir
from fedskew.report import before_after, load, standings
from fedskew.report.html import before_after_page
from tests.commands import complaint, succeed

SITES = ("north", "south", "west")
#: the labels of patients 0, 3, 6, ... of the north are swapped
WRONG_EVERY = 3
QUICK = ("--rounds", "4", "--local-epochs", "2", "--lr", "0.1", "--engine", "inline")


def truth(patient: int) -> str:
    return ("healthy", "ill")[patient % 2]


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A semicolon table of 240 patients at three sites, a third of the north's labels wrong, and a run on it."""
    root = tmp_path_factory.mktemp("hospital")
    rng, rows = np.random.default_rng(1), []
    for patient in range(240):
        site, label = SITES[patient % 3], truth(patient // 3)
        if site == "north" and patient // 3 % WRONG_EVERY == 0:
            label = truth(patient // 3 + 1)
        age, marker = rng.normal(0, 1), rng.normal(4 * (patient // 3 % 2) - 2, 1)
        rows.append((f"{age:.3f}", f"{marker:.3f}", label, site, "kept; as it is"))
    with (root / "table.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("age", "marker", "label", "site", "remark"), *rows])
    text = (root / "table.csv").read_text().replace(';"kept; as it is"', "").replace(";remark", "")
    (root / "table.csv").write_text(text)
    succeed(
        "run", "--data", root / "table.csv", "--partition", "natural", "--clients", "3", *QUICK, "--out", root / "run"
    )
    return root


def physician(listed: Path, checked: Path, top: int) -> int:
    """Correct the first `top` listed patients truthfully, and return how many of them were wrong."""
    with listed.open() as file:
        rows = list(csv.DictReader(file))[:top]
    for row in rows:
        right = truth((int(row["line"]) - 2) // 3)
        row["corrected"] = right if right != row["label_name"] else ""
    with checked.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return sum(row["corrected"] != "" for row in rows)


@pytest.fixture(scope="module")
def retrained(hospital: Path) -> tuple[Path, int]:
    """The run after the north's first 40 patients were reviewed, and how many of them were wrong."""
    succeed("review", hospital / "run", "--client", "north", "--out", hospital / "north.csv")
    wrong = physician(hospital / "north.csv", hospital / "checked.csv", 40)
    succeed("retrain", hospital / "run", hospital / "checked.csv")
    return hospital / "run-corrected", wrong


def test_the_corrected_table_stands_beside_the_original(hospital: Path, retrained: tuple[Path, int]) -> None:
    """27 of the north's 80 labels are wrong. The table stays the same but for corrected labels and the split."""
    before = (hospital / "table.csv").read_text()
    text = succeed("review", hospital / "run", "--client", "north", "--apply", hospital / "checked.csv")
    assert f"{retrained[1]} of 80 labels of client north" in text and "table-corrected.csv" in text
    assert retrained[1] > 20
    assert (hospital / "table.csv").read_text() == before
    old, new = (
        list(csv.DictReader((hospital / name).read_text().splitlines(), delimiter=";"))
        for name in ("table.csv", "table-corrected.csv")
    )
    assert [{**row, "label": "", "split": ""} for row in old] == [{**row, "label": "", "split": ""} for row in new]
    assert sum(a["label"] != b["label"] for a, b in zip(old, new, strict=True)) == retrained[1]
    assert [row["split"] for row in new].count("test") == 48
    again = complaint("review", hospital / "run", "--client", "north", "--apply", hospital / "checked.csv")
    assert "exists, perhaps with other corrections. Move it away" in again


def test_a_run_on_the_corrected_table_is_the_run_with_the_corrections(
    hospital: Path, retrained: tuple[Path, int], tmp_path: Path
) -> None:
    """Both train on the same samples with the same labels from the same beginning, and end in the same bits."""
    succeed(
        "review",
        hospital / "run",
        "--client",
        "north",
        "--apply",
        hospital / "checked.csv",
        "--out",
        tmp_path / "t.csv",
    )
    succeed(
        "run", "--data", tmp_path / "t.csv", "--partition", "natural", "--clients", "3", *QUICK, "--out", tmp_path / "r"
    )
    one, other = fedskew.load(tmp_path / "r"), fedskew.load(retrained[0])
    assert one.end is not None and other.end is not None
    assert one.end["weights_sha256"] == other.end["weights_sha256"]
    assert one.header.counts == other.header.counts


def test_the_page_says_what_was_gained(hospital: Path, retrained: tuple[Path, int]) -> None:
    found = before_after.compare(hospital / "run", retrained[0])
    old, new = (predictions.read(each / run_dir.PREDICTIONS) for each in (hospital / "run", retrained[0]))
    assert old is not None and new is not None
    first = found.changes[0]
    assert (first.what, first.samples) == ("all", 48)
    assert first.before == pytest.approx(np.mean(old.predicted[0] == new.labels))
    assert first.after == pytest.approx(np.mean(new.predicted[0] == new.labels))
    assert found.test_corrected == bool((old.labels != new.labels).any())
    classes = [each for each in found.changes if each.kind == "class"]
    assert found.changes[1].after == pytest.approx(np.mean([each.after for each in classes]))
    assert [each.what for each in found.changes if each.kind == "site"] == list(SITES)
    page = (retrained[0] / "before-after.html").read_text()
    assert before_after.headline(found).replace(" %", "\u00a0%") in page
    seen = page.split("<body")[1]
    assert not any(word in seen for word in ("p-value", "vote", "null", "witness", "client"))
    assert json.loads((retrained[0] / "before-after.json").read_text())["changes"][0]["after"] == first.after


def test_reports_show_both_runs_as_one_task(hospital: Path, retrained: tuple[Path, int]) -> None:
    (task,) = standings.tasks(load.read([hospital / "run", retrained[0]]))
    names = {each.name for each in task.standings}
    assert len(names) == 2 and any(name.startswith("fedavg, labels=corrected ") for name in names)


def test_typed_again_it_goes_on_and_other_corrections_are_refused(hospital: Path, retrained: tuple[Path, int]) -> None:
    weights = (retrained[0] / run_dir.WEIGHTS).read_bytes()
    succeed("retrain", hospital / "run", hospital / "checked.csv")
    assert (retrained[0] / run_dir.WEIGHTS).read_bytes() == weights
    content = (hospital / "checked.csv").read_text()
    (hospital / "checked.csv").write_text(content.splitlines()[0] + "\n")
    try:
        assert "had other corrections" in complaint("retrain", hospital / "run", hospital / "checked.csv")
    finally:
        (hospital / "checked.csv").write_text(content)
    assert "is the run to compare with" in complaint(
        "retrain", hospital / "run", hospital / "checked.csv", "--out", hospital / "run", "--force"
    )


def test_without_corrections_nothing_changes(hospital: Path, tmp_path: Path) -> None:
    """A file with a heading alone: the same weights bit for bit, and no difference anywhere."""
    (tmp_path / "nothing.csv").write_text("line,corrected\n")
    found = fedskew.retrain(hospital / "run", tmp_path / "nothing.csv", out=tmp_path / "after", progress=False)
    assert {each.difference for each in found.changes} == {0.0}
    assert {each.verdict for each in found.changes} <= {"no clear difference", "too few samples"}
    one, other = fedskew.load(hospital / "run"), fedskew.load(tmp_path / "after")
    assert one.end is not None and other.end is not None
    assert one.end["weights_sha256"] == other.end["weights_sha256"]
    assert found.labels == "no label reviewed" and not found.wrong


def test_an_unfinished_run_is_refused(hospital: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing.csv").write_text("line,corrected\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text((hospital / "run" / "config.toml").read_text())
    (tmp_path / "run" / "record.jsonl").write_text(
        (hospital / "run" / "record.jsonl").read_text().splitlines()[0] + "\n"
    )
    assert "Type: fedskew resume" in complaint("retrain", tmp_path / "run", tmp_path / "nothing.csv")


# ---- what a corrected label changes, and what it does not -----------------------------------------------------------


def test_corrections_change_labels_only(tmp_path: Path) -> None:
    """Noise, partition, held-back samples and test samples are drawn as before; the true labels stay true."""
    (tmp_path / "c.csv").write_text("split,row,corrected\ntrain,5,9\n,6,8\ntest,7,1\n")
    quick = {"clients": 3, "rounds": 1, "noise": "symmetric:0.4", "seed": 3, "validation": 0.2}
    plain, source, _ = experiment.prepare(api.configure(**quick))
    given, corrected, _ = experiment.prepare(
        api.configure(**quick, settings=[f'data.corrections=["{tmp_path / "c.csv"}"]'])
    )
    assert torch.equal(plain.shards.index, given.shards.index) and torch.equal(
        plain.shards.offsets, given.shards.offsets
    )
    assert plain.validation is not None and given.validation is not None
    assert torch.equal(plain.validation.x, given.validation.x)
    changed = given.shards.y != plain.shards.y
    assert set(given.shards.index[changed].tolist()) <= {5, 6}
    assert given.ledger is not None and plain.ledger is not None
    assert (given.ledger.true == plain.ledger.true).all() and (given.ledger.observed == given.shards.y.numpy()).all()
    assert given.test.y[7] == corrected.test.y[7] == 1
    assert (given.test.y != plain.test.y).nonzero().flatten().tolist() in ([7], [])
    assert "2 training labels reviewed" in corrected.notes[-2] and "1 test label reviewed" in corrected.notes[-2]
    assert source.checksums == corrected.checksums


def test_of_several_files_the_last_one_counts(tmp_path: Path) -> None:
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text("row,corrected\n5,9\n6,9\n")
    two.write_text("row,corrected\n5,8\n")
    source = experiment.load_source(api.configure())
    assert corrections.read_all([one, two], source)[corrections.TRAIN] == {5: 8, 6: 9}
    with pytest.raises(UserError, match="row '99999' is no sample of the run"):
        one.write_text("row,corrected\n99999,9\n")
        corrections.read(one, source)
    with pytest.raises(UserError, match="split is 'tset'"):
        one.write_text("row,split,corrected\n5,tset,9\n")
        corrections.read(one, source)


def test_a_folder_of_images_becomes_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label, light in (("cat", 40), ("dog", 200)):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(light - 30, light + 30, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / label / f"{number}.png")
    quick = ("--partition", "iid", "--clients", "2", "--rounds", "1", "--engine", "inline")
    succeed("run", "--data", tmp_path / "pets", *quick, "--out", tmp_path / "run")
    context, source, _ = label_review.open_run(tmp_path / "run")
    name = source.paths[int(context.shards.shard(1, context.x).index[0])]
    assert name.startswith(("cat/", "dog/"))
    wanted = "dog" if name.startswith("cat") else "cat"
    (tmp_path / "c.csv").write_text(f"path,corrected\n{name},{wanted}\n")
    succeed("review", tmp_path / "run", "--client", "1", "--apply", tmp_path / "c.csv")
    with (tmp_path / "pets-corrected.csv").open() as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    assert len(rows) == 24 and rows[f"pets/{name}"]["label"] == wanted
    assert {Path(path).parent.name != row["label"] for path, row in rows.items()} == {True, False}
    assert sum(row["split"] == "test" for row in rows.values()) == len(source.test)
    assert "19 for training, 5 for testing" in succeed("data", "check", tmp_path / "pets-corrected.csv")


# ---- the shared test samples ----------------------------------------------------------------------------------------


def test_shared_test_samples_have_a_list_of_their_own(tmp_path: Path) -> None:
    result = fedskew.run(clients=3, rounds=1, local_epochs=1, engine="inline", out=tmp_path / "run", progress=False)
    assert result.header.data is not None
    out = tmp_path / "test.csv"
    text = succeed("review", tmp_path / "run", "--test", "--out", out, "--page", tmp_path / "test.html")
    assert "accuracy is measured on them" in text
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == result.header.data.test and {row["split"] for row in rows} == {"test"}
    page = (tmp_path / "test.html").read_text()
    assert "<em>test</em>" in page and "Labels of the test samples to review" in page
    assert "type --test" in succeed("review", tmp_path / "run", "--client", "0", "--out", out)
    assert "Type either --client NAME or --test" in complaint("review", tmp_path / "run", "--out", out)
    assert "Type either --client NAME or --test" in complaint(
        "review", tmp_path / "run", "--out", out, "--test", "--client", "0"
    )
    assert "Type, for example, --out suspects.csv" in complaint("review", tmp_path / "run", "--client", "0")
    (tmp_path / "c.csv").write_text("row,corrected\n5,9\n")
    assert "Type, for example, --out labels.csv" in complaint(
        "review", tmp_path / "run", "--client", "0", "--apply", tmp_path / "c.csv"
    ) or "no sample of this client" in complaint(
        "review", tmp_path / "run", "--client", "0", "--apply", tmp_path / "c.csv"
    )


@pytest.mark.parametrize("test", [True, False])
def test_samples_that_are_held_back_are_listed_and_corrected_too(tmp_path: Path, test: bool) -> None:
    """A fifth of each client is held back from training; all of its samples are on its list."""
    quick = {"clients": 3, "partition": "iid", "rounds": 1, "local_epochs": 1, "engine": "inline", "validation": 0.2}
    run = tmp_path / "run"
    fedskew.run(**quick, settings=[f"evaluate.test={str(test).lower()}"], out=run, progress=False)
    held_back, _, _ = experiment.prepare(experiment.resumed_config(run))
    found = [each for each in fedskew.review(run, 0) if each.split == "train"]
    whole = experiment.prepare(api.configure(**quick | {"validation": None}))[0].shards.shard(0, held_back.x)
    assert sorted(each.row for each in found) == sorted(whole.index.tolist())
    assert len(held_back.shards.shard(0, held_back.x)) < len(found)
    row = next(row for row in whole.index.tolist() if row not in held_back.shards.index.tolist())
    (tmp_path / "c.csv").write_text(f"row,corrected\n{row},9\n")
    changed = fedskew.retrain(run, tmp_path / "c.csv", out=tmp_path / "after", progress=False)
    assert changed.labels.startswith("1 training label reviewed")


# ---- in words -------------------------------------------------------------------------------------------------------


def test_headline_and_table_follow_from_the_interval() -> None:
    """Better only if the whole interval is above zero, worse only if it is below."""
    for low, high, verdict, said in (
        (0.01, 0.05, "better", "The model is better"),
        (-0.05, -0.01, "worse", "The model is worse"),
        (-0.01, 0.05, "no clear difference", "It is unclear"),
        (0.0, 0.05, "no clear difference", "It is unclear"),
        (None, None, "too few samples", "It is unclear"),
    ):
        change = before_after.Change("all", "all", 100, 0.5, 0.52, low, high)
        found = before_after.BeforeAfter(Path("x"), [change], "", [], False, [])
        assert change.verdict == verdict and said in before_after.headline(found)
        page = before_after_page.html(found)
        assert (verdict in page) == (verdict != "no clear difference")
