from __future__ import annotations

import json

import numpy as np

from fedskew.detection.dossier import Dossier
from fedskew.detection.judge import Options

CLIENTS, CLASSES = 12, 4
OPTIONS = Options(simulations=199)


def report(noisy: bool, client: int) -> dict[str, np.ndarray]:
    """Losses near 0.5, near 2 with wrong labels; a little different from client to client."""
    level = (2.0 if noisy else 0.5) * (1 + 0.02 * np.cos(client + np.arange(CLASSES)))
    return {"mean": level, "se": np.full(CLASSES, 0.05), "count": np.full(CLASSES, 50)}


def reports(noisy: set[int], clients: range = range(CLIENTS)) -> dict[int, dict[str, np.ndarray]]:
    return {client: report(client in noisy, client) for client in clients}


def test_a_first_detection_counts_at_once() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3})).judged(OPTIONS, 0)
    assert found.verdict == "some"
    dossier, noisy = dossier.settled(found.noisy, patience=3)
    assert np.flatnonzero(noisy).tolist() == [1, 2, 3]
    assert dossier.releases == 1 and dossier.reference is not None


def test_a_status_changes_after_as_many_equal_verdicts_as_patience_asks() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES)
    said = []
    for truth in ({1, 2, 3}, {1, 2}, {1, 2, 3}, {1, 2}, {1, 2}):  # client 3 mends its labels, in the end
        dossier, found = dossier.heard(reports(truth)).judged(OPTIONS, 0)
        assert set(np.flatnonzero(found.noisy).tolist()) == truth
        dossier, noisy = dossier.settled(found.noisy, patience=2)
        said.append(np.flatnonzero(noisy).tolist())
    assert said == [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2]]


def test_who_is_absent_keeps_its_report_which_grows_older() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3}))
    dossier = dossier.heard(reports(set(), range(4, CLIENTS)))
    assert dossier.age.tolist() == [1] * 4 + [0] * 8
    dossier, found = dossier.judged(OPTIONS, 0)
    assert np.flatnonzero(found.noisy).tolist() == [1, 2, 3]


def test_who_never_answered_stays_unknown_and_a_late_joiner_is_scored_against_the_last_fit() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3}, range(CLIENTS - 2))).judged(OPTIONS, 0)
    dossier, noisy = dossier.settled(found.noisy, patience=2)
    assert found.status[-2:] == ["unknown", "unknown"] and not noisy[-2:].any()
    reference = dossier.reference
    late = {CLIENTS - 2: report(True, 10), CLIENTS - 1: report(False, 11)}
    dossier, found = dossier.heard(late).judged(OPTIONS, 0)
    assert dossier.reference is reference  # two answers are no quorum
    assert found.status[-2:] == ["noisy", "clean"]
    _, noisy = dossier.settled(found.noisy, patience=2)
    assert np.flatnonzero(noisy).tolist() == [1, 2, 3, CLIENTS - 2]


def test_without_any_answer_nothing_is_known() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).heard({}).judged(OPTIONS, 0)
    assert found.verdict == "insufficient"
    assert not dossier.settled(found.noisy, 2)[1].any()


def test_json_and_back() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES).heard(reports({1, 2, 3}, range(9)))
    dossier, found = dossier.judged(OPTIONS, 0)
    dossier, _ = dossier.settled(found.noisy, 2)
    again = Dossier.from_json(json.loads(json.dumps(dossier.as_json())))
    assert again.as_json() == dossier.as_json()
    late = {10: report(True, 10)}
    ours, theirs = dossier.heard(late).judged(OPTIONS, 0)[1], again.heard(late).judged(OPTIONS, 0)[1]
    assert ours.as_json() == theirs.as_json()
