from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedskew.core.errors import UserError
from fedskew.detection.cells import Cells
from fedskew.detection.explain import explain
from fedskew.detection.judge import (
    STATUSES,
    JudgeOptions,
    Judgment,
    Reference,
    _verdict,
    against,
    hysteresis,
    judge,
    no_better_than_guessing,
)

NAN = np.nan
NOISY = [2, 5, 11]


def report(noisy: list[int], clients: int = 12, classes: int = 5, times: float = 3.0, seed: int = 0) -> Cells:
    """Losses of 0.2 to 0.6 by class, 10 % apart between sites, `times` as high at noisy ones; 100 samples per cell."""
    rng = np.random.default_rng(seed)
    mean = np.linspace(0.2, 0.6, classes) * np.exp(rng.normal(0, 0.1, (clients, classes)))
    mean[noisy] *= times
    return Cells(mean, 0.1 * mean, np.full((clients, classes), 100))


def changed(cells: Cells, at: tuple[int | slice, int | slice], mean: float, count: int) -> Cells:
    arrays = [array.copy() for array in (cells.mean, cells.se, cells.count)]
    for array, value in zip(arrays, (mean, NAN if np.isnan(mean) else 0.1 * mean, count), strict=True):
        array[at] = value
    return Cells(*arrays)


def found(judgment: Judgment) -> list[int]:
    return np.flatnonzero(judgment.noisy).tolist()


# ---- the verdict ----------------------------------------------------------------------------------------------------


def test_noisy_clients_are_found() -> None:
    judgment = judge(report(NOISY))
    assert judgment.verdict == "some"
    assert found(judgment) == NOISY
    assert np.flatnonzero(judgment.voted).tolist() == NOISY
    assert [k for k, status in enumerate(judgment.status) if status == "noisy"] == NOISY
    assert judgment.gap == pytest.approx(3.0, abs=0.4)  # three times as high, softened by the offset
    assert judgment.p_value == 1 / 500
    assert not judgment.warnings


@pytest.mark.parametrize("seed", range(5))
def test_without_noise_no_client_is_noisy(seed: int) -> None:
    judgment = judge(report([], seed=seed), JudgeOptions(simulations=99))
    assert judgment.verdict == "none"
    assert not judgment.noisy.any() and judgment.voted.any()  # FedNoRo itself splits any federation
    assert set(judgment.status) == {"clean"}
    assert judgment.two_groups < 0.1


@pytest.mark.parametrize(("level", "verdict"), [(0.9, "some"), (1.0, "insufficient"), (3.0, "insufficient")])
def test_a_model_no_better_than_guessing_says_nothing(level: float, verdict: str) -> None:
    # Five classes: a blind guess costs ln 5 = 1.609. Three of twelve clients have losses twice as high, so that the
    # lowest quarter is among the others, whose losses differ by 1 %.
    mean = level * np.log(5) * np.exp(np.random.default_rng(0).normal(0, 0.01, (12, 5)))
    mean[NOISY] *= 2
    cells = Cells(mean, 0.01 * mean, np.full((12, 5), 100))
    judgment = judge(cells, JudgeOptions(simulations=99))
    assert judgment.verdict == verdict
    assert no_better_than_guessing(cells) == (verdict == "insufficient")
    assert found(judgment) == (NOISY if verdict == "some" else [])
    assert np.flatnonzero(judgment.voted).tolist() == NOISY  # which is FedNoRo's own set, whatever the verdict
    if verdict == "insufficient":
        assert set(judgment.status) == {"unknown"} and np.isnan(judgment.p_value)
        assert "no better than guessing" in judgment.warnings[-1]


@pytest.mark.parametrize("learned, verdict", [(0.7, "inconclusive"), (0.2, "some")])
def test_a_model_that_has_learned_little_separates_less(learned: float, verdict: str) -> None:
    # Twelve clients, five classes; four are 13 % higher, all alike to 1 %. To a model that has learned to save 70 % of
    # what guessing costs that is how sites are; where it has learned 20 %, it is as telling as half as high again.
    rng = np.random.default_rng(0)
    level = (1 - learned) * np.log(5) * np.where(np.arange(12) < 4, 1.13, 1.0)[:, None]
    mean = level * np.exp(rng.normal(0, 0.01, (12, 5)))
    judgment = judge(Cells(mean, 0.01 * mean, np.full((12, 5), 50)))
    assert judgment.verdict == verdict
    assert found(judgment) == ([0, 1, 2, 3] if verdict == "some" else [])


def test_three_tests_decide() -> None:
    assert _verdict(True, True, True) == "some"
    assert {_verdict(False, True, True), _verdict(True, False, True), _verdict(True, True, False)} == {"inconclusive"}
    assert {_verdict(True, False, False), _verdict(False, False, False)} == {"none"}


def test_sites_that_differ_slightly_but_surely_are_not_noisy() -> None:
    """Two clumps beyond any chance, found by every fit, but 12 % apart in loss."""
    cells = report([], clients=12)
    mean = np.tile(np.linspace(0.2, 0.6, 5), (12, 1)) * np.where(np.arange(12) < 4, 1.12, 1.0)[:, None]
    judgment = judge(Cells(mean + 1e-4 * cells.mean, np.full(mean.shape, 1e-4), cells.count))
    assert judgment.p_value == 1 / 500 and judgment.vote_share == 1
    assert judgment.verdict == "inconclusive"
    assert not judgment.noisy.any() and "noisy" not in judgment.status


def test_the_same_arguments_give_the_same_judgment() -> None:
    cells = report([1], times=1.5)
    first, again, other = (json.dumps(judge(cells, seed=seed).as_json()) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_nothing_is_written_into_the_report() -> None:
    cells = changed(report(NOISY), (0, 0), NAN, 0)
    before = [array.copy() for array in (cells.mean, cells.se, cells.count)]
    explain(cells, judge(cells))
    for array, copy in zip((cells.mean, cells.se, cells.count), before, strict=True):
        assert np.array_equal(array, copy, equal_nan=True)


# ---- degenerate reports ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 2])
def test_one_or_two_clients_are_insufficient(clients: int) -> None:
    judgment = judge(report([0], clients=clients), contradicting=np.zeros(clients))
    assert judgment.verdict == "insufficient"
    assert judgment.status == ["unknown"] * clients
    assert np.isnan(judgment.probability).all() and not judgment.noisy.any()
    assert f"{clients} clients with usable losses are too few" in judgment.warnings[-1]
    assert set(against(judgment.reference, report([0])).status) == {"unknown"}
    json.dumps(judgment.as_json(), allow_nan=False)
    assert len(explain(report([0], clients=clients), judgment)) == clients


# Losses of 0.2 to 0.6 against ln 5 = 1.609: the model has learned 0.75 to 0.76 at the better of these clients.
@pytest.mark.parametrize(
    ("contradicting", "verdict", "status"),
    [
        ([0.0, 0.0, 0.0], "none", ["clean"] * 3),  # at most 0.101 * 0.25 = 0.03
        ([0.0, 0.4, 0.0, 0.0], "likely", ["clean", "suspect", "clean", "clean"]),  # 0.345 - 0.023 - 0.163 = 0.16
        ([0.5, 0.5, 0.5, 0.5], "likely", ["suspect"] * 4),
        ([0.0, np.nan, 0.0], "inconclusive", ["clean", "unknown", "clean"]),
    ],
)
def test_few_clients_are_judged_by_their_estimated_shares(
    contradicting: list[float], verdict: str, status: list[str]
) -> None:
    reported = report([], clients=len(contradicting))
    judgment = judge(reported, contradicting=np.array(contradicting))
    assert (judgment.verdict, judgment.status) == (verdict, status)
    assert not judgment.noisy.any() and np.isnan(judgment.probability).all() and not judgment.scored_late
    json.dumps(judgment.as_json(), allow_nan=False)
    assert len(explain(reported, judgment)) == len(contradicting)


def test_few_clients_between_clean_and_suspect_are_inconclusive() -> None:
    reported = report([], clients=4)
    reported = Cells(1.7 * reported.mean, reported.se, reported.count)  # 0.34 to 1.02 of 1.609: learned about 0.6
    # 0.862 * 0.2 - 0.091 * 0.4 - 1.63 * 0.08 = 0.005 and 1.119 * 0.2 + 0.101 * 0.4 = 0.26
    judgment = judge(reported, contradicting=np.array([0.0, 0.2, 0.0, 0.0]))
    assert judgment.verdict == "inconclusive" and judgment.status == ["clean", "unknown", "clean", "clean"]


def test_few_clients_that_sent_only_losses_or_whose_model_has_learned_little_are_insufficient() -> None:
    assert judge(report([], clients=4)).warnings[-1].startswith("4 clients sent only their losses")
    early = report([], clients=4)
    early = Cells(3 * early.mean, early.se, early.count)  # 0.6 to 1.8 of 1.609: learned 0.25
    judgment = judge(early, contradicting=np.zeros(4))
    assert judgment.verdict == "insufficient" and "learned too little" in judgment.warnings[-1]


def test_six_clients_are_enough() -> None:
    assert judge(report([1, 4], clients=6, times=6)).verdict != "insufficient"


def test_an_empty_class_is_left_out_and_noted() -> None:
    judgment = judge(changed(report(NOISY), (slice(None), 3), NAN, 0))
    assert found(judgment) == NOISY
    assert judgment.warnings == ["no client has enough samples of class 3; it is left out"]
    assert np.flatnonzero(np.isnan(judgment.reference.effect)).tolist() == [3]


def test_a_constant_class_changes_nothing_of_the_verdict() -> None:
    cells = report(NOISY)
    constant = changed(cells, (slice(None), 3), 0.5, 100)
    assert found(judge(constant)) == NOISY


def test_equal_clients_are_not_noisy() -> None:
    judgment = judge(Cells(np.ones((8, 3)), np.full((8, 3), 0.1), np.full((8, 3), 50)))
    assert judgment.verdict == "none"
    assert judgment.p_value == 1 and judgment.gap == 1
    assert judgment.status == ["clean"] * 8


@pytest.mark.parametrize("loss", [np.inf, NAN])
def test_a_client_with_a_loss_that_is_not_finite_is_left_out(loss: float) -> None:
    cells = changed(report(NOISY), (4, 2), loss, 100)
    judgment = judge(cells)
    assert judgment.status[4] == "unknown" and np.isnan(judgment.probability[4])
    assert judgment.warnings == ["client 4 has a loss that is not finite and is not judged"]
    others = np.delete(np.arange(12), 4)
    without = judge(Cells(cells.mean[others], cells.se[others], cells.count[others]))
    assert np.array_equal(judgment.probability[others], without.probability)
    assert found(judgment) == NOISY


def test_a_client_that_did_not_answer_is_unknown() -> None:
    judgment = judge(changed(report(NOISY), (7, slice(None)), NAN, 0))
    assert judgment.status[7] == "unknown"
    assert judgment.warnings == ["client 7 reported nothing and is not judged"]
    assert found(judgment) == NOISY


def test_silence_is_insufficient() -> None:
    silent = Cells(np.full((8, 3), NAN), np.full((8, 3), NAN), np.zeros((8, 3), dtype=np.int64))
    judgment = judge(silent)
    assert judgment.verdict == "insufficient" and len(judgment.warnings) == 8 + 3 + 1
    assert [client["classes"] for client in explain(silent, judgment)] == [[]] * 8


def test_thin_cells_count_as_missing() -> None:
    cells = report(NOISY)
    wild, missing = changed(cells, (0, 0), 50.0, 4), changed(cells, (0, 0), NAN, 0)
    assert judge(wild).as_json() == judge(missing).as_json()
    assert judge(wild, JudgeOptions(min_count=4)).probability[0] > judge(missing).probability[0]


def test_excluded_classes_do_not_count() -> None:
    cells = report(NOISY)
    spoilt = changed(cells, (0, 1), 99.0, 100)
    options = JudgeOptions(exclude=(1,))
    assert judge(spoilt, options).as_json() == judge(cells, options).as_json()
    assert not judge(cells, options).warnings


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"covariance": "tied"}, "covariance is 'tied'"),
        ({"seeds": 0}, "seeds is 0"),
        ({"simulations": 0}, "simulations is 0"),
        ({"level": 1.5}, "level is 1.5"),
        ({"suspect": 0.9}, "suspect is 0.9 and noisy is 0.8"),
        ({"exclude": (5,)}, "class 5 cannot be excluded. Choose one of 0 to 4"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        judge(report([]), JudgeOptions(**options))  # type: ignore[arg-type]


# ---- probabilities --------------------------------------------------------------------------------------------------


def test_statuses_follow_the_two_thresholds() -> None:
    reference = judge(report(NOISY)).reference
    assert [reference.status(p) for p in (0.0, 0.19, 0.2, 0.79, 0.8, NAN)] == [
        "clean", "clean", "suspect", "suspect", "noisy", "unknown",
    ]  # fmt: skip
    assert replace(reference, verdict="inconclusive").status(1.0) == "suspect"


def test_a_client_that_is_poorly_measured_is_less_surely_noisy() -> None:
    cells = report(NOISY)
    se = cells.se.copy()
    se[2] *= 20
    unsure = judge(Cells(cells.mean, se, cells.count)).probability
    assert unsure[2] < judge(cells).probability[2] - 0.01


def test_the_judgment_travels_as_json() -> None:
    judgment = judge(changed(report(NOISY), (7, slice(None)), NAN, 0))
    written = json.loads(json.dumps(judgment.as_json(), allow_nan=False))
    assert written["verdict"] == "some" and written["probability"][7] is None
    assert written["sets"][0] == [NOISY, round(9 * judgment.vote_share)]
    read = Reference.from_json(written["reference"])
    assert read.as_json() == written["reference"]
    assert read.groups == judgment.reference.groups


# ---- newcomers and changes of mind ----------------------------------------------------------------------------------


def test_a_newcomer_is_judged_like_the_others() -> None:
    cells = report(NOISY)
    judgment = judge(cells)
    again = against(judgment.reference, cells)
    assert again.probability == pytest.approx(judgment.probability, abs=1e-3)
    assert again.status == judgment.status and again.noisy.tolist() == judgment.noisy.tolist()
    half = against(judgment.reference, changed(cells, (2, slice(3)), NAN, 0))
    assert half.status[2] == "noisy" and half.status[:2] == judgment.status[:2]
    nothing = against(judgment.reference, changed(cells, (2, slice(None)), NAN, 0))
    assert nothing.status[2] == "unknown" and not nothing.noisy[2]
    assert nothing.warnings == ["client 2 reported nothing and is not judged"]


def test_thin_cells_never_decide_on_a_newcomer() -> None:
    cells = report(NOISY)
    thin = Cells(cells.mean, cells.se, np.where(np.arange(len(cells.mean)) == 2, 2, cells.count.T).T)
    assert against(judge(cells).reference, thin).status[2] == judge(thin).status[2] == "unknown"


def test_a_newcomer_is_flagged_by_its_posterior_as_the_others_are() -> None:
    cells = report(NOISY)
    reference = judge(cells).reference
    unsure = replace(reference, groups=replace(reference.groups, two=0.4))
    found = against(unsure, cells)
    assert found.noisy.tolist() == judge(cells).noisy.tolist() and (found.probability <= 0.4).all()


def test_no_newcomer_is_noisy_if_no_client_is() -> None:
    cells = report([])
    found = against(judge(cells).reference, changed(cells, (2, slice(None)), 9.0, 50))
    assert "noisy" not in found.status and not found.noisy.any()


def statuses(*names: str) -> np.ndarray:
    return np.array([STATUSES.index(name) for name in names])  # type: ignore[arg-type]


def test_a_status_changes_after_h_equal_verdicts_in_a_row() -> None:
    listed = ["noisy", "suspect", "noisy", "unknown", "noisy", "clean", "clean"]
    expected = ["clean", "clean", "clean", "clean", "noisy", "noisy", "clean"]
    status, streaks = statuses("clean"), np.zeros((1, 2), dtype=np.int64)
    for new, after in zip(listed, expected, strict=True):
        status, streaks = hysteresis(status, streaks, statuses(new), 2)
        assert STATUSES[status[0]] == after


def test_unknown_clients_change_at_once_and_h_1_follows_every_verdict() -> None:
    none = np.zeros((3, 2), dtype=np.int64)
    old, new = statuses("unknown", "clean", "noisy"), statuses("noisy", "suspect", "unknown")
    assert hysteresis(old, none, new, 3)[0].tolist() == statuses("noisy", "clean", "noisy").tolist()
    assert hysteresis(old, none, new, 1)[0].tolist() == statuses("noisy", "suspect", "noisy").tolist()


# ---- explanation ----------------------------------------------------------------------------------------------------


def test_explanation_by_hand() -> None:
    cells = report([])
    mean = cells.mean.copy()
    mean[:, 0] = np.arange(1.0, 13)  # median 6.5, median distance from it 3
    listed = explain(Cells(mean, cells.se, cells.count), judge(Cells(mean, cells.se, cells.count)))
    first = [client["classes"][0] for client in listed]
    assert [cell["rank"] for cell in first] == list(range(12, 0, -1))
    assert first[11]["z"] == pytest.approx((12 - 6.5) / (1.4826 * 3))
    assert first[0]["count"] == 100 and first[0]["mean"] == 1


def test_the_classes_that_drive_a_verdict_are_named() -> None:
    cells = report([0, 1, 2], times=4)
    for c in (1, 3):
        cells = changed(cells, (2, c), 0.3, 100)  # client 2 labels classes 1 and 3 well
    listed = explain(cells, judge(cells))
    assert sorted(listed[2]["drivers"]) == [0, 2, 4]
    assert sorted(listed[0]["drivers"]) == [0, 1, 2, 3, 4]
    assert listed[5]["drivers"] == []


def test_leaving_a_class_out_is_a_judgment_without_it() -> None:
    cells = changed(report([0, 1, 2], times=1.5), (4, 0), NAN, 0)
    judgment = judge(cells)
    change = [judge(cells, JudgeOptions(exclude=(c,))).probability - judgment.probability for c in range(5)]
    listed = explain(cells, judgment)
    assert [len(client["classes"]) for client in listed] == [5] * 4 + [4] + [5] * 7
    for client in listed:
        for cell in client["classes"]:
            assert cell["without"] == pytest.approx(change[cell["class"]][client["client"]], abs=1e-12)
    assert np.abs(change).max() > 0.01


def test_the_nearest_clean_client() -> None:
    cells = report(NOISY)
    mean = cells.mean.copy()
    mean[8] = mean[3] * 1.001
    mean[6, 0] = NAN
    twin = Cells(mean, cells.se, np.where(np.isnan(mean), 0, cells.count))
    nearest = [client["nearest_clean"] for client in explain(twin, judge(twin))]
    assert (nearest[3], nearest[8]) == (8, 3)
    assert not set(nearest) & set(NOISY)
