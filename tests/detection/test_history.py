from __future__ import annotations

import json

import numpy as np

from fedskew.detection.history import DetectionHistory
from fedskew.detection.judge import JudgeOptions, Judgment

CLIENTS, CLASSES = 12, 4
OPTIONS = JudgeOptions(simulations=199)


def report(noisy: bool, client: int) -> dict[str, np.ndarray]:
    """Losses near 0.5, near 2 with wrong labels; a little different from client to client."""
    level = (2.0 if noisy else 0.5) * (1 + 0.02 * np.cos(client + np.arange(CLASSES)))
    return {"mean": level, "se": np.full(CLASSES, 0.05), "count": np.full(CLASSES, 50)}


def reports(noisy: set[int], clients: range = range(CLIENTS)) -> dict[int, dict[str, np.ndarray]]:
    return {client: report(client in noisy, client) for client in clients}


def final(history: DetectionHistory, found: Judgment, patience: int = 2) -> tuple[DetectionHistory, list[int]]:
    """(history, who counts as noisy)."""
    known = np.array([status != "unknown" for status in found.status])
    history, noisy = history.decided(found.noisy, known, patience)
    return history, np.flatnonzero(noisy).tolist()


def test_a_first_detection_counts_at_once() -> None:
    history, found = DetectionHistory.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3})).judged(OPTIONS, 0)
    assert found.verdict == "some"
    history, noisy = final(history, found, patience=3)
    assert noisy == [1, 2, 3]
    assert history.releases == 1 and history.reference is not None


def test_a_status_changes_after_as_many_equal_verdicts_as_patience_asks() -> None:
    history = DetectionHistory.empty(CLIENTS, CLASSES)
    said = []
    for truth in ({1, 2, 3}, {1, 2}, {1, 2, 3}, {1, 2}, {1, 2}):  # client 3 mends its labels, in the end
        history, found = history.with_answers(reports(truth)).judged(OPTIONS, 0)
        assert set(np.flatnonzero(found.noisy).tolist()) == truth
        history, noisy = final(history, found)
        said.append(noisy)
    assert said == [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2]]


def test_an_insufficient_detection_releases_no_client() -> None:
    history, found = DetectionHistory.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3})).judged(OPTIONS, 0)
    history, _ = final(history, found)
    guessing = {k: each | {"mean": 10 * each["mean"]} for k, each in reports({1, 2, 3}).items()}
    for _ in range(3):
        history, found = history.with_answers(guessing).judged(OPTIONS, 0)
        assert found.verdict == "insufficient"
        history, noisy = final(history, found)
        assert noisy == [1, 2, 3]


def test_a_flag_counts_at_once_after_a_detection_that_could_say_nothing() -> None:
    history, found = DetectionHistory.empty(CLIENTS, CLASSES).with_answers(reports(set(), range(3))).judged(OPTIONS, 0)
    assert found.verdict == "insufficient"
    history, noisy = final(history, found)
    history, found = history.with_answers(reports({1, 2, 3})).judged(OPTIONS, 0)
    assert noisy == [] and final(history, found)[1] == [1, 2, 3]


def test_an_absent_client_has_its_status_and_an_older_report() -> None:
    history, found = DetectionHistory.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3})).judged(OPTIONS, 0)
    history, _ = final(history, found)
    for age in (1, 2):
        history = history.with_answers(reports(set(), range(4, CLIENTS)))
        assert history.age.tolist() == [age] * 4 + [0] * 8
        history, found = history.judged(OPTIONS, 0)
        assert found.verdict != "some" and found.status[:4] == ["unknown"] * 4
        history, noisy = final(history, found)
        assert noisy == [1, 2, 3]
    assert np.isfinite(history.cells.mean).all()


def test_old_reports_of_clean_clients_do_not_look_noisy_beside_new_ones() -> None:
    history = DetectionHistory.empty(CLIENTS, CLASSES)
    for level in (1.0, 0.6, 0.3):  # the model learns; the first three are there the first time only
        here = range(CLIENTS) if level == 1.0 else range(3, CLIENTS)
        listed = {k: each | {"mean": level * each["mean"]} for k, each in reports(set(), here).items()}
        history, found = history.with_answers(listed).judged(OPTIONS, 0)
        history, noisy = final(history, found, patience=1)
        assert found.verdict != "some" and noisy == []


def test_without_an_answer_a_client_stays_unknown_and_a_late_one_is_scored_against_the_last_fit() -> None:
    history, found = (
        DetectionHistory.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3}, range(CLIENTS - 2))).judged(OPTIONS, 0)
    )
    history, noisy = final(history, found)
    assert found.status[-2:] == ["unknown", "unknown"] and noisy == [1, 2, 3]
    reference = history.reference
    late = {CLIENTS - 2: report(True, 10), CLIENTS - 1: report(False, 11)}
    history, found = history.with_answers(late).judged(OPTIONS, 0)
    assert history.reference is reference  # two answers are no quorum
    assert found.status == ["unknown"] * 10 + ["noisy", "clean"]
    assert found.voted.tolist() == found.noisy.tolist()
    assert final(history, found)[1] == [1, 2, 3, CLIENTS - 2]


def test_without_any_answer_nothing_is_known() -> None:
    history, found = DetectionHistory.empty(CLIENTS, CLASSES).with_answers({}).judged(OPTIONS, 0)
    assert found.verdict == "insufficient"
    assert final(history, found)[1] == []


def test_json_and_back() -> None:
    history = DetectionHistory.empty(CLIENTS, CLASSES).with_answers(reports({1, 2, 3}, range(9)))
    history, found = history.judged(OPTIONS, 0)
    history, _ = final(history, found)
    again = DetectionHistory.from_json(json.loads(json.dumps(history.as_json())))
    assert again.as_json() == history.as_json()
    late = {10: report(True, 10)}
    ours, other = history.with_answers(late).judged(OPTIONS, 0)[1], again.with_answers(late).judged(OPTIONS, 0)[1]
    assert ours.as_json() == other.as_json()
