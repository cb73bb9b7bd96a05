from __future__ import annotations

import csv
import math
import os
import re
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedskew import api, label_review
from fedskew.core.errors import UserError
from fedskew.core.types import Shard, Spec, Tree
from fedskew.data import corrections, shards
from fedskew.data.noise.files import human_labels
from fedskew.data.sources import Source, from_arrays
from fedskew.experiment import run as experiment
from fedskew.label_review import error_probabilities, precision_at, rank
from fedskew.record import run_dir
from fedskew.runtime.context import RunContext
from tests.commands import complaint, succeed

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "label-review.md"
NOISY = 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits at four clients, two of which have more than a third of their labels wrong."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = api.configure(
        method="fedla", noise="pairflip:0.5", partition="iid", clients=4, rounds=8, local_epochs=2, engine="inline"
    )
    experiment.run(config, folder)
    return folder


@pytest.fixture(scope="module")
def rebuilt(finished: Path) -> tuple[RunContext, Spec, Tree]:
    site, _, spec = label_review.open_run(finished)
    return site, spec, label_review.load_weights(site, spec, finished / run_dir.WEIGHTS)


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- how probably a label is wrong ----------------------------------------------------------------------------------


def test_error_probabilities_by_hand() -> None:
    """Two classes; five samples, the third of which looks wrong and the fifth of which is unclear.

    Mean confidence: (0.9 + 0.9 + 0.2) / 3 = 2/3 for class 0, (0.8 + 0.6) / 2 = 0.7 for class 1. So samples 1 and 2 are
    believed to be 0, samples 3 and 4 to be 1, and of sample 5 (0.4 < 2/3, 0.6 < 0.7) nothing is believed.
    Joint [true, observed]: [[2, 0], [1, 1]]; share of errors (1 + 0.5) / (4 + 1) = 0.3.
    With 2 more samples a row: T = [[2 + 1.4, 0.6], [1 + 0.6, 1 + 1.4]] / 4 = [[0.85, 0.15], [0.4, 0.6]].
    """
    first = torch.tensor([0.9, 0.9, 0.2, 0.2, 0.4], dtype=torch.float64)
    found = error_probabilities(torch.stack([first, 1 - first], 1), torch.tensor([0, 0, 0, 1, 1]))
    expected = [
        0.1 * 0.4 / (0.9 * 0.85 + 0.1 * 0.4),  # 0.04 / 0.805
        0.1 * 0.4 / (0.9 * 0.85 + 0.1 * 0.4),
        0.8 * 0.4 / (0.2 * 0.85 + 0.8 * 0.4),  # 0.32 / 0.49
        0.2 * 0.15 / (0.8 * 0.6 + 0.2 * 0.15),  # 0.03 / 0.51
        0.4 * 0.15 / (0.6 * 0.6 + 0.4 * 0.15),  # 0.06 / 0.42
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_rare_class_of_which_the_model_is_unsure_is_not_suspicious() -> None:
    """The model takes every sample of class 2 for class 0; the only wrong label is one 1 that is labeled 0."""
    common = [[0.95, 0.03, 0.02]] * 40 + [[0.03, 0.95, 0.02]] * 40
    rare = [[0.5, 0.5 - p, p] for p in (0.38, 0.39, 0.40, 0.41, 0.42)]
    p = torch.tensor([*common, *rare, [0.01, 0.98, 0.01]], dtype=torch.float64)
    y = torch.tensor([0] * 40 + [1] * 40 + [2] * 5 + [0])
    by_confidence = p.gather(1, y[:, None])[:, 0].argsort()
    assert set(by_confidence[1:6].tolist()) == set(range(80, 85))  # what this is to be better than
    found = error_probabilities(p, y)
    assert found.argmax() == 85
    assert found[85] > 0.5
    assert found[80:85].max() < 0.01
    assert float(found.sum()) == pytest.approx(1, abs=0.5)  # where the sum of 1 - p is 8


def test_a_model_that_excludes_every_other_label_leaves_no_doubt() -> None:
    y = torch.tensor([0, 1, 2, 2])
    p = torch.eye(3, dtype=torch.float64)[y]
    assert error_probabilities(p, y).tolist() == [0, 0, 0, 0]
    assert error_probabilities(p, torch.tensor([1, 1, 2, 2])).tolist() == [1, 0, 0, 0]


def test_there_is_nothing_to_confuse_with_one_class_or_one_opinion() -> None:
    assert (
        error_probabilities(torch.ones(3, 1, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)).tolist()
        == [0.0] * 3
    )
    same = torch.full((7, 10), 0.1, dtype=torch.float64)  # the mean of equal numbers may be above each of them
    found = error_probabilities(same, torch.zeros(7, dtype=torch.int64))
    assert found.isfinite().all()
    assert (found == found[0]).all()


@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 10**6))
def test_error_probabilities_are_probabilities_that_do_not_depend_on_the_order(n: int, classes: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    p = (4 * torch.randn(n, classes, generator=rng, dtype=torch.float64)).softmax(1)
    y = torch.randint(classes, (n,), generator=rng)
    before = p.clone(), y.clone()
    found = error_probabilities(p, y)
    assert ((found >= 0) & (found <= 1)).all()
    assert torch.equal(p, before[0])
    assert torch.equal(y, before[1])
    shuffled = torch.randperm(n, generator=rng)
    assert torch.allclose(error_probabilities(p[shuffled], y[shuffled]), found[shuffled])


# ---- the ranking ----------------------------------------------------------------------------------------------------


def test_a_list_has_every_sample_once_with_what_the_model_says(rebuilt: tuple[RunContext, Spec, Tree]) -> None:
    site, spec, weights = rebuilt
    before = {name: t.clone() for name, t in weights.items()}
    found = rank(site, spec, weights, NOISY)
    shard = site.shards.shard(NOISY, site.x)
    assert [each.rank for each in found] == list(range(1, len(shard) + 1))
    assert sorted(each.row for each in found) == sorted(shard.index.tolist())
    label_of = dict(zip(shard.index.tolist(), shard.y.tolist(), strict=True))
    for each in found:
        assert each.label == label_of[each.row]
        assert each.loss == pytest.approx(-math.log(each.probability))
        assert each.margin == pytest.approx(each.confidence - each.probability)
        assert (each.margin == 0) == (each.suggested == each.label)
    errors = [each.error for each in found]
    assert errors == sorted(errors, reverse=True)
    for at in (0, 1, len(found) - 50, len(found) - 7, len(found) - 1):
        assert found[at].expected_errors_next_50 == pytest.approx(sum(errors[at : at + 50]))
    assert all(torch.equal(before[name], t) for name, t in weights.items())
    other = {each.row: each.error for each in rank(replace(site, score_batch=37), spec, weights, NOISY)}
    assert [other[each.row] for each in found] == pytest.approx(errors, rel=1e-4)


def test_wrong_labels_come_first_and_are_counted_well(rebuilt: tuple[RunContext, Spec, Tree]) -> None:
    site, spec, weights = rebuilt
    assert site.ledger is not None
    assert np.flatnonzero(site.ledger.noisy).tolist() == [2, 3]
    for client in range(4):
        found = rank(site, spec, weights, client)
        expected, rate = sum(each.error for each in found), site.ledger.realized[client]
        if client in (2, 3):
            assert 0.3 < rate < 0.5
            assert label_review.measure_precision(site, client, found) >= 0.9
            assert expected == pytest.approx(rate * len(found), rel=0.3)
        else:
            assert label_review.measure_precision(site, client, found) == 0
            assert expected < 0.03 * len(found)


def test_an_empty_client_has_an_empty_list(rebuilt: tuple[RunContext, Spec, Tree]) -> None:
    site, spec, weights = rebuilt
    nobody = shards.make(torch.zeros(9), [np.arange(0), np.arange(9)], classes=10)
    assert rank(replace(site, shards=nobody, ledger=None), spec, weights, 0) == []


def test_weights_that_diverged_are_refused(rebuilt: tuple[RunContext, Spec, Tree]) -> None:
    site, spec, weights = rebuilt
    with pytest.raises(UserError, match="for client 1 that are not finite"):
        rank(site, spec, {name: t * math.nan for name, t in weights.items()}, 1)


def test_precision_at_by_hand() -> None:
    flipped = [True, False, False, True]
    assert precision_at([3, 1, 0, 2], flipped, 1) == 1
    assert precision_at([3, 1, 0, 2], flipped, 2) == 1 / 2
    assert precision_at([3, 1, 0, 2], np.array(flipped), 3) == 2 / 3
    assert precision_at([3, 1, 0, 2], flipped, 50) == 2 / 4
    assert math.isnan(precision_at([], flipped, 50))


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_list_and_says_when_to_stop(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "suspects.csv"
    text = succeed("review", finished, "--client", NOISY, "--out", out, "--top", 60, "--check")
    rows = table(out)
    assert len(rows) == 60
    assert list(rows[0]) == [
        *(
            "rank",
            "split",
            "row",
            "label",
            "label_name",
            "suggested",
            "suggested_name",
            "loss",
            "probability",
            "margin",
        ),
        *("confidence", "error", "expected_errors_next_50", "corrected"),
    ]
    assert rows[0]["label_name"] == rows[0]["label"] != rows[0]["suggested"]  # the digits' names are their numbers
    assert rows[0]["corrected"] == ""
    precision = re.search(r"precision@50 +(\S+), where (\S+) of all", text)
    assert precision is not None
    assert float(precision[1]) >= 0.9 > 2 * float(precision[2])
    first, after = re.findall(r"(?:first 50|50 after these) +(\S+) expected wrong", text)
    assert float(first) == pytest.approx(float(rows[0]["expected_errors_next_50"]), abs=0.06)
    assert float(after) < float(rows[-1]["expected_errors_next_50"]) + 0.06


_connections: list[str] = []


def _notice(event: str, _: Any) -> None:
    if event.startswith("socket."):
        _connections.append(event)


def test_nothing_is_sent_and_the_run_folder_stays_as_it_is(finished: Path, tmp_path: Path) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}

    before = content()
    sys.addaudithook(_notice)
    _connections.clear()
    out = tmp_path / "suspects.csv"
    succeed("review", finished, "--client", 0, "--out", out)
    succeed("review", finished, "--client", 0, "--apply", out, "--out", tmp_path / "labels.csv")
    assert _connections == []
    assert content() == before


def test_files_are_for_their_owner_whatever_was_there_before(finished: Path, tmp_path: Path) -> None:
    out, link = tmp_path / "suspects.csv", tmp_path / "link.csv"
    out.write_text("old")
    out.chmod(0o644)
    link.symlink_to(out)
    old = os.umask(0)
    try:
        succeed("review", finished, "--client", 0, "--out", link)
        succeed("review", finished, "--client", 0, "--apply", out, "--out", tmp_path / "labels.csv")
    finally:
        os.umask(old)
    assert link.is_symlink()
    assert len(table(out)) == 361
    assert mode(out) == mode(tmp_path / "labels.csv") == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.csv", "link.csv", "suspects.csv"]


@pytest.mark.parametrize("through", ["straight", "dots", "linked folder", "linked file", "linked run"])
def test_nothing_is_written_under_the_run_folder(through: str, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(finished)
    (tmp_path / "file.csv").symlink_to(finished / "list.csv")
    run, out = {
        "straight": (finished, finished / "checkpoint" / "list.csv"),
        "dots": (finished, tmp_path / ".." / finished.relative_to(tmp_path.parent) / "list.csv"),
        "linked folder": (finished, tmp_path / "folder" / "list.csv"),
        "linked file": (finished, tmp_path / "file.csv"),
        "linked run": (tmp_path / "folder", finished / "list.csv"),
    }[through]
    for more in ([], ["--apply", tmp_path / "checked.csv"]):
        assert "is inside the run folder" in complaint("review", run, "--client", 0, "--out", out, *more)
    assert not list(finished.rglob("*.csv"))


def test_mistakes_end_in_one_sentence(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    asked = ("--client", 0, "--out", out)
    assert "client 4 does not exist. Choose one of 0..3." in complaint("review", finished, "--client", 4, "--out", out)
    assert "client -1 does not exist" in complaint("review", finished, "--client", -1, "--out", out)
    assert "is not a run folder" in complaint("review", tmp_path, "--client", 0, "--out", tmp_path.parent / "o.csv")
    (tmp_path / "file").touch()
    assert "cannot write" in complaint("review", finished, "--client", 0, "--out", tmp_path / "file" / "o.csv")
    assert "cannot write" in complaint("review", finished, "--client", 0, "--out", tmp_path)
    assert "--apply lists no labels" in complaint("review", finished, *asked, "--apply", out, "--top", 3)
    assert "none' cannot be read: No such" in complaint("review", finished, *asked, "--weights", tmp_path / "none")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished, unfinished)
    (unfinished / run_dir.WEIGHTS).unlink()
    assert "a run writes them when it ends" in complaint("review", unfinished, *asked)
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"1234567890")
    assert "damaged or no file of weights" in complaint("review", finished, *asked, "--weights", torn)
    weights = load_file(finished / run_dir.WEIGHTS)
    for name, said in (
        ("trunk.1.bias", "do not fit the network: 'trunk.1.bias' is [1"),
        ("head.bias", "have no head for"),
    ):
        save_file(weights | {name: weights[name][:1].clone()}, torn)
        assert said in complaint("review", finished, *asked, "--weights", torn)
    save_file(weights | {"extra": torch.zeros(2)}, torn)
    assert "'extra' is [2] in the file, not missing" in complaint("review", finished, *asked, "--weights", torn)
    text = (finished / run_dir.CONFIG).read_text()
    (unfinished / run_dir.CONFIG).write_text(re.sub(r"(?m)^seed = 0$", "seed = 1", text))
    assert "has seed = 1, but the run started with 0" in complaint("review", unfinished, *asked)
    assert not out.exists()


def test_without_noise_there_is_nothing_to_check_against(tmp_path: Path) -> None:
    config = api.configure(clients=2, rounds=1, local_epochs=1, engine="inline")
    experiment.run(config, tmp_path / "run")
    out = tmp_path / "out.csv"
    assert "noise.kind is 'none'" in complaint("review", tmp_path / "run", "--client", 0, "--out", out, "--check")
    assert not out.exists()
    succeed("review", tmp_path / "run", "--client", 0, "--out", out)


# ---- corrections ----------------------------------------------------------------------------------------------------

ANIMALS = ("cat", "dog", "bird")
SHARD = Shard(3, torch.zeros(9, 1), torch.tensor([7, 2, 5]), torch.tensor([0, 1, 1]), 3)
TRUE = torch.arange(9) % 3


def data(labels: tuple[str, ...] = ANIMALS) -> Source:
    """Nine samples that are known by number only."""
    return from_arrays(SHARD.x, TRUE, SHARD.x, TRUE, labels=labels)


def corrected_labels(shard: Shard, path: Path, source: Source) -> torch.Tensor:
    """The training labels of a client without test samples, corrected by a file."""
    rows = shard.index.tolist()
    found = corrections.read(path, source, {"train": set(rows), "test": set()})["train"]
    return torch.tensor([found.get(row, label) for row, label in zip(rows, shard.y.tolist(), strict=True)])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("row,label\n2,cat\n", [0, 0, 1]),
        ("row,label\n2,0\n7,2\n", [2, 0, 1]),
        ('\ufefflabel,why,row\r\nbird,"blurred, small",5\r\n', [0, 1, 2]),
        ("row,label\n5, dog \n5,1\n", [0, 1, 1]),  # twice the same, by name and by number
        ("row,label,corrected\n7,cat,\n2,dog,bird\n5,dog,\n", [0, 2, 1]),
        ("row,corrected\n7\n2,cat\n", [0, 0, 1]),  # a short line has nothing to correct
        ("row,label\n", [0, 1, 1]),
    ],
)
def test_corrections_are_read(content: str, expected: list[int], tmp_path: Path) -> None:
    path = tmp_path / "checked.csv"
    path.write_bytes(content.encode())
    assert corrected_labels(SHARD, path, data()).tolist() == expected
    assert SHARD.y.tolist() == [0, 1, 1]


def test_a_name_that_looks_like_a_number_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "checked.csv"
    path.write_text("row,label\n7,1\n2,3\n")
    assert corrected_labels(SHARD, path, data(("1", "2", "3"))).tolist() == [0, 2, 1]
    path.write_text("row,label\n7,0\n")  # by number that would be class '1', where 1 is class '1', too
    with pytest.raises(UserError, match=r"label '0' is unknown\. [^.]*\.$"):
        corrected_labels(SHARD, path, data(("1", "2", "3")))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("row,label\n7,cat\n3,cat\n", "line 3: row '3' is no sample of this client"),
        ("row,label\n-7,cat\n", "line 2: row '-7' is no sample"),
        ("row,label\n7.0,cat\n", "line 2: row '7.0' is no sample"),
        ("row,label\n7,catt\n", "line 2: label 'catt' is unknown. Did you mean 'cat'"),
        ("row,label\n7,3\n", r"line 2: label '3' is unknown\. .*0..2"),
        ("row,label\n7,\n", "line 2: label '' is unknown"),
        ("row,label\n7,cat\n2,dog\n7,dog\n", "line 4: row '7' is 'dog', but an earlier line says 'cat'"),
        ("row,name\n7,cat\n", "has the columns row, name. Give it the column row, and label or corrected"),
        ("sample,label\n7,cat\n", "Give it the column row"),
        ("", "has the columns none. Give it the column"),
        ("row,label\n7,\xff\n", "line 2 is not in UTF-8. Save the file"),
    ],
)
def test_wrong_corrections_are_refused(content: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "checked.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=sentence):
        corrected_labels(SHARD, path, data())


def test_a_missing_file_of_corrections_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"checked\.csv' does not exist"):
        corrected_labels(SHARD, tmp_path / "checked.csv", data())


def test_corrections_go_from_the_list_to_the_next_run(
    finished: Path, rebuilt: tuple[RunContext, Spec, Tree], tmp_path: Path
) -> None:
    site, _, _ = rebuilt
    assert site.ledger is not None
    out, checked, labels = (tmp_path / name for name in ("suspects.csv", "checked.csv", "labels.csv"))
    succeed("review", finished, "--client", NOISY, "--out", out, "--top", 50)
    truth = dict(zip(site.shards.index.tolist(), site.ledger.true.tolist(), strict=True))
    rows = table(out)
    for each in rows:
        if truth[int(each["row"])] != int(each["label"]):
            each["corrected"] = str(truth[int(each["row"])])
    wrong = sum(each["corrected"] != "" for each in rows)
    with open(checked, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    text = succeed("review", finished, "--client", NOISY, "--apply", checked, "--out", labels)
    shard = site.shards.shard(NOISY, site.x)
    assert re.search(rf"changed +{wrong} of {len(shard)} labels of client {NOISY}\n", text)
    said = {int(each["row"]): int(each["label"]) for each in table(labels)}
    assert list(said) == shard.index.tolist()
    now = np.bincount(list(said.values()), minlength=10)
    for name, (before, after) in enumerate(zip(shard.counts.tolist(), now.tolist(), strict=True)):
        assert re.search(rf"(?m)^ *{name} +{before} +{after} *$", text)
    config = api.configure(
        noise="human",
        partition="iid",
        clients=4,
        settings=[f"noise.labels={labels}", "noise.who=explicit", "noise.rates=[0.0, 0.0, 1.0, 0.0]"],
    )
    again, _, _ = experiment.prepare(config)
    assert again.ledger is not None
    assert again.shards.shard(NOISY, site.x).y.tolist() == list(said.values())
    assert again.ledger.realized[NOISY] == pytest.approx(site.ledger.realized[NOISY] - wrong / len(shard))
    assert again.ledger.realized.nonzero()[0].tolist() == [NOISY]


def test_the_files_of_all_sites_together_keep_the_noise_of_all(
    finished: Path, rebuilt: tuple[RunContext, Spec, Tree], tmp_path: Path
) -> None:
    site, _, _ = rebuilt
    nothing, together = tmp_path / "nothing.csv", tmp_path / "together.csv"
    nothing.write_text("row,label\n")
    lines = ["row,label"]
    for client in range(4):
        labels = tmp_path / f"labels-{client}.csv"
        asked = ("review", finished, "--client", client, "--apply", nothing, "--out", labels)
        assert re.search("changed +0 of", succeed(*asked))
        lines += labels.read_text().splitlines()[1:]
    together.write_text("\n".join(lines))
    settings = [f"noise.labels={together}", "noise.who=explicit", "noise.rates=[1.0, 1.0, 1.0, 1.0]"]
    again, _, _ = experiment.prepare(api.configure(noise="human", partition="iid", clients=4, settings=settings))
    assert again.shards.digest == site.shards.digest


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("row,label\n1,0\n4,0\n", r"row 4 is outside 0\.\.3"),
        ("row,label\n1,0\n-1,0\n", "row -1 is outside"),
        ("row,label\n1,0\n1,2\n", "row 1 has several labels"),
        ("row,label\n1,3\n", r"label 3 is outside 0\.\.2"),
        ("row,label,clean_label\n3,1,2\n1,0,2\n", "is in another order than the data"),
        ("row,label\n", "a heading and no row"),
    ],
)
def test_rows_of_a_file_of_labels_must_be_samples(content: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=sentence):
        human_labels(path, "label", np.array([0, 1, 2, 2]), 3)


def test_a_file_of_labels_may_name_some_of_the_samples(tmp_path: Path) -> None:
    path, true = tmp_path / "labels.csv", np.array([0, 1, 2, 2])
    path.write_text("row,label,clean_label\n3,1,2\n1,0,1\n")
    assert human_labels(path, "label", true, 3).tolist() == [0, 0, 2, 1]
    path.write_text("row\n2\n1\n0\n0\n")  # a single column is the labels, whatever it is called
    assert human_labels(path, None, true, 3).tolist() == [2, 1, 0, 0]
    assert true.tolist() == [0, 1, 2, 2]


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for language, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.S):
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), {})
            continue
        for line in block.splitlines():
            program, *arguments = line.split()
            assert program == "fedskew"
            printed += succeed(*arguments, *(["--engine", "inline"] if arguments[0] == "run" else []))
    assert "precision@50" in printed
    changed = re.search(r"changed +(\d+) of 360 labels of client 2", printed)
    assert changed is not None
    assert int(changed[1]) > 20
    columns = set(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", PAGE.read_text()))))
    assert columns == set(table(tmp_path / "suspects.csv")[0])
