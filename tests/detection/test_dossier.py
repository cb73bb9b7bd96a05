from __future__ import annotations

import json

import numpy as np

from fedskew.detection.dossier import Dossier
from fedskew.detection.judge import Judgement, Options

CLIENTS, CLASSES = 12, 4
OPTIONS = Options(simulations=199)


def report(noisy: bool, client: int) -> dict[str, np.ndarray]:
    """Losses near 0.5, near 2 with wrong labels; a little different from client to client."""
    level = (2.0 if noisy else 0.5) * (1 + 0.02 * np.cos(client + np.arange(CLASSES)))
    return {"mean": level, "se": np.full(CLASSES, 0.05), "count": np.full(CLASSES, 50)}


def reports(noisy: set[int], clients: range = range(CLIENTS)) -> dict[int, dict[str, np.ndarray]]:
    return {client: report(client in noisy, client) for client in clients}


def settled(dossier: Dossier, found: Judgement, patience: int = 2) -> tuple[Dossier, list[int]]:
    """(dossier, who counts as noisy)."""
    known = np.array([status != "unknown" for status in found.status])
    dossier, noisy = dossier.settled(found.noisy, known, patience)
    return dossier, np.flatnonzero(noisy).tolist()


def test_a_first_detection_counts_at_once() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3})).judged(OPTIONS, 0)
    assert found.verdict == "some"
    dossier, noisy = settled(dossier, found, patience=3)
    assert noisy == [1, 2, 3]
    assert dossier.releases == 1 and dossier.reference is not None


def test_a_status_changes_after_as_many_equal_verdicts_as_patience_asks() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES)
    said = []
    for truth in ({1, 2, 3}, {1, 2}, {1, 2, 3}, {1, 2}, {1, 2}):  # client 3 mends its labels, in the end
        dossier, found = dossier.heard(reports(truth)).judged(OPTIONS, 0)
        assert set(np.flatnonzero(found.noisy).tolist()) == truth
        dossier, noisy = settled(dossier, found)
        said.append(noisy)
    assert said == [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2]]


def test_a_detection_that_can_say_nothing_releases_nobody() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3})).judged(OPTIONS, 0)
    dossier, _ = settled(dossier, found)
    guessing = {k: each | {"mean": 10 * each["mean"]} for k, each in reports({1, 2, 3}).items()}
    for _ in range(3):
        dossier, found = dossier.heard(guessing).judged(OPTIONS, 0)
        assert found.verdict == "insufficient"
        dossier, noisy = settled(dossier, found)
        assert noisy == [1, 2, 3]


def test_a_flag_counts_at_once_after_a_detection_that_could_say_nothing() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard(reports(set(), range(3))).judged(OPTIONS, 0)
    assert found.verdict == "insufficient"
    dossier, noisy = settled(dossier, found)
    dossier, found = dossier.heard(reports({1, 2, 3})).judged(OPTIONS, 0)
    assert noisy == [] and settled(dossier, found)[1] == [1, 2, 3]


def test_who_is_absent_keeps_its_report_which_grows_older_and_its_status() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3})).judged(OPTIONS, 0)
    dossier, _ = settled(dossier, found)
    for age in (1, 2):
        dossier = dossier.heard(reports(set(), range(4, CLIENTS)))
        assert dossier.age.tolist() == [age] * 4 + [0] * 8
        dossier, found = dossier.judged(OPTIONS, 0)
        assert found.verdict != "some" and found.status[:4] == ["unknown"] * 4
        dossier, noisy = settled(dossier, found)
        assert noisy == [1, 2, 3]
    assert np.isfinite(dossier.cells.mean).all()


def test_old_reports_of_clean_clients_do_not_look_noisy_beside_new_ones() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES)
    for level in (1.0, 0.6, 0.3):  # the model learns; the first three are there the first time only
        here = range(CLIENTS) if level == 1.0 else range(3, CLIENTS)
        told = {k: each | {"mean": level * each["mean"]} for k, each in reports(set(), here).items()}
        dossier, found = dossier.heard(told).judged(OPTIONS, 0)
        dossier, noisy = settled(dossier, found, patience=1)
        assert found.verdict != "some" and noisy == []


def test_who_never_answered_stays_unknown_and_a_late_joiner_is_scored_against_the_last_fit() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3}, range(CLIENTS - 2))).judged(OPTIONS, 0)
    dossier, noisy = settled(dossier, found)
    assert found.status[-2:] == ["unknown", "unknown"] and noisy == [1, 2, 3]
    reference = dossier.reference
    late = {CLIENTS - 2: report(True, 10), CLIENTS - 1: report(False, 11)}
    dossier, found = dossier.heard(late).judged(OPTIONS, 0)
    assert dossier.reference is reference  # two answers are no quorum
    assert found.status == ["unknown"] * 10 + ["noisy", "clean"]
    assert found.voted.tolist() == found.noisy.tolist()
    assert settled(dossier, found)[1] == [1, 2, 3, CLIENTS - 2]


def test_without_any_answer_nothing_is_known() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard({}).judged(OPTIONS, 0)
    assert found.verdict == "insufficient"
    assert settled(dossier, found)[1] == []


def test_json_and_back() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3}, range(9)))
    dossier, found = dossier.judged(OPTIONS, 0)
    dossier, _ = settled(dossier, found)
    again = Dossier.from_json(json.loads(json.dumps(dossier.as_json())))
    assert again.as_json() == dossier.as_json()
    late = {10: report(True, 10)}
    ours, theirs = dossier.heard(late).judged(OPTIONS, 0)[1], again.heard(late).judged(OPTIONS, 0)[1]
    assert ours.as_json() == theirs.as_json()
