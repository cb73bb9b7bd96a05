from __future__ import annotations

import json

import numpy as np

from fedskew.detection.dossier import Dossier
from fedskew.detection.judge import JudgeOptions, Judgment

CLIENTS, CLASSES = 12, 4
OPTIONS = JudgeOptions(simulations=199)


def report(noisy: bool, client: int) -> dict[str, np.ndarray]:
    """Losses near 0.5, near 2 with wrong labels; a little different from client to client."""
    level = (2.0 if noisy else 0.5) * (1 + 0.02 * np.cos(client + np.arange(CLASSES)))
    return {"mean": level, "se": np.full(CLASSES, 0.05), "count": np.full(CLASSES, 50)}


def reports(noisy: set[int], clients: range = range(CLIENTS)) -> dict[int, dict[str, np.ndarray]]:
    return {client: report(client in noisy, client) for client in clients}


def final(dossier: Dossier, found: Judgment, patience: int = 2) -> tuple[Dossier, list[int]]:
    """(dossier, who counts as noisy)."""
    known = np.array([status != "unknown" for status in found.status])
    dossier, noisy = dossier.decided(found.noisy, known, patience)
    return dossier, np.flatnonzero(noisy).tolist()


def test_a_first_detection_counts_at_once() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3})).judged(OPTIONS, 0)
    assert found.verdict == "some"
    dossier, noisy = final(dossier, found, patience=3)
    assert noisy == [1, 2, 3]
    assert dossier.releases == 1 and dossier.reference is not None


def test_a_status_changes_after_as_many_equal_verdicts_as_patience_asks() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES)
    said = []
    for truth in ({1, 2, 3}, {1, 2}, {1, 2, 3}, {1, 2}, {1, 2}):  # client 3 mends its labels, in the end
        dossier, found = dossier.with_answers(reports(truth)).judged(OPTIONS, 0)
        assert set(np.flatnonzero(found.noisy).tolist()) == truth
        dossier, noisy = final(dossier, found)
        said.append(noisy)
    assert said == [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2]]


def test_an_insufficient_detection_releases_no_client() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3})).judged(OPTIONS, 0)
    dossier, _ = final(dossier, found)
    guessing = {k: each | {"mean": 10 * each["mean"]} for k, each in reports({1, 2, 3}).items()}
    for _ in range(3):
        dossier, found = dossier.with_answers(guessing).judged(OPTIONS, 0)
        assert found.verdict == "insufficient"
        dossier, noisy = final(dossier, found)
        assert noisy == [1, 2, 3]


def test_a_flag_counts_at_once_after_a_detection_that_could_say_nothing() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).with_answers(reports(set(), range(3))).judged(OPTIONS, 0)
    assert found.verdict == "insufficient"
    dossier, noisy = final(dossier, found)
    dossier, found = dossier.with_answers(reports({1, 2, 3})).judged(OPTIONS, 0)
    assert noisy == [] and final(dossier, found)[1] == [1, 2, 3]


def test_an_absent_client_has_its_status_and_an_older_report() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3})).judged(OPTIONS, 0)
    dossier, _ = final(dossier, found)
    for age in (1, 2):
        dossier = dossier.with_answers(reports(set(), range(4, CLIENTS)))
        assert dossier.age.tolist() == [age] * 4 + [0] * 8
        dossier, found = dossier.judged(OPTIONS, 0)
        assert found.verdict != "some" and found.status[:4] == ["unknown"] * 4
        dossier, noisy = final(dossier, found)
        assert noisy == [1, 2, 3]
    assert np.isfinite(dossier.cells.mean).all()


def test_old_reports_of_clean_clients_do_not_look_noisy_beside_new_ones() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES)
    for level in (1.0, 0.6, 0.3):  # the model learns; the first three are there the first time only
        here = range(CLIENTS) if level == 1.0 else range(3, CLIENTS)
        listed = {k: each | {"mean": level * each["mean"]} for k, each in reports(set(), here).items()}
        dossier, found = dossier.with_answers(listed).judged(OPTIONS, 0)
        dossier, noisy = final(dossier, found, patience=1)
        assert found.verdict != "some" and noisy == []


def test_without_an_answer_a_client_stays_unknown_and_a_late_one_is_scored_against_the_last_fit() -> None:
    dossier, found = (
        Dossier.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3}, range(CLIENTS - 2))).judged(OPTIONS, 0)
    )
    dossier, noisy = final(dossier, found)
    assert found.status[-2:] == ["unknown", "unknown"] and noisy == [1, 2, 3]
    reference = dossier.reference
    late = {CLIENTS - 2: report(True, 10), CLIENTS - 1: report(False, 11)}
    dossier, found = dossier.with_answers(late).judged(OPTIONS, 0)
    assert dossier.reference is reference  # two answers are no quorum
    assert found.status == ["unknown"] * 10 + ["noisy", "clean"]
    assert found.voted.tolist() == found.noisy.tolist()
    assert final(dossier, found)[1] == [1, 2, 3, CLIENTS - 2]


def test_without_any_answer_nothing_is_known() -> None:
    dossier, found = Dossier.empty(CLIENTS, CLASSES).with_answers({}).judged(OPTIONS, 0)
    assert found.verdict == "insufficient"
    assert final(dossier, found)[1] == []


def test_json_and_back() -> None:
    dossier = Dossier.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3}, range(9)))
    dossier, found = dossier.judged(OPTIONS, 0)
    dossier, _ = final(dossier, found)
    again = Dossier.from_json(json.loads(json.dumps(dossier.as_json())))
    assert again.as_json() == dossier.as_json()
    late = {10: report(True, 10)}
    ours, other = dossier.with_answers(late).judged(OPTIONS, 0)[1], again.with_answers(late).judged(OPTIONS, 0)[1]
    assert ours.as_json() == other.as_json()
