from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.report import numbers, panels, runs
from tests.report import fakes

NAN = float("nan")


def task(folder: Path, **accuracies: list[float]) -> numbers.Task:
    """Methods with one accuracy for each seed from 0 on."""
    for method, shares in accuracies.items():
        for seed, share in enumerate(shares):
            fakes.write(folder / f"{method}-{seed}", [share], method=method, seed=seed)
    (found,) = numbers.tasks(runs.read([folder]))
    return found


# ---- differences ----------------------------------------------------------------------------------------------------


def test_an_interval_from_three_pairs() -> None:
    # differences 1, 2, 3: mean 2, deviation 1, error 1 / sqrt(3); Student's 97.5 % quantile with 2 degrees is 4.302653
    found = numbers.difference({0: 2.0, 1: 3.0, 2: 4.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert found is not None and found.interval is not None
    assert (found.mean, found.pairs) == (2.0, 3)
    assert found.interval == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-6)
    assert not found.clear


def test_below_three_pairs_there_is_no_interval() -> None:
    found = numbers.difference({0: 2.0, 1: 3.0, 7: 1.0}, {0: 1.0, 1: 1.0, 8: 1.0})
    assert found == numbers.Difference(1.5, 2, None)
    assert not found.clear


def test_only_seeds_with_two_finite_scores_are_pairs() -> None:
    assert numbers.difference({0: NAN, 1: None, 2: 1.0}, {0: 1.0, 1: 1.0, 2: None}) is None
    assert numbers.difference({}, {0: 1.0}) is None


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1), min_size=3), st.floats(-1, 1))
def test_a_constant_difference_is_certain(ours: dict[int, float], apart: float) -> None:
    found = numbers.difference(ours, {seed: share - apart for seed, share in ours.items()})
    assert found is not None and found.interval is not None
    assert found.interval == pytest.approx((apart, apart), abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8))
def test_turned_around_a_difference_changes_its_sign_only(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (dict(enumerate(side)) for side in zip(*pairs, strict=True))
    one, other = numbers.difference(ours, theirs), numbers.difference(theirs, ours)
    assert one and other and one.interval and other.interval
    assert one.mean == pytest.approx(-other.mean, abs=1e-12)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]), abs=1e-12)
    assert one.interval[0] <= one.mean <= one.interval[1]


# ---- who wins -------------------------------------------------------------------------------------------------------


def test_best_is_the_highest_finite_and_last_the_last_whatever_it_is() -> None:
    found = numbers.scores(fakes.run([0.25, 0.75, 0.5, NAN]))
    assert (found.best, found.best_round) == (0.75, 1)
    assert found.last is not None and math.isnan(found.last)
    assert numbers.scores(fakes.run([None, NAN])).best is None
    assert numbers.scores(fakes.run([0.5], counted=False)) == numbers.Scores(None, None, None)


def test_the_winner_by_best_need_not_be_the_winner_by_last(tmp_path: Path) -> None:
    fakes.write(tmp_path / "early", [0.9, 0.1], method="early")
    fakes.write(tmp_path / "late", [0.1, 0.8], method="late")
    (found,) = numbers.tasks(runs.read([tmp_path]))
    best, last = found.winner("best"), found.winner("last")
    assert best and last and (best.name, last.name) == ("early", "late")
    assert panels.verdict(found, "best").startswith(
        "By best accuracy early wins with 90.00 %; next is late, 10.00 points"
    )
    assert panels.verdict(found, "last").startswith(
        "By last accuracy late wins with 80.00 %; next is early, 70.00 points"
    )
    assert found.standings[1].behind["best"] == numbers.Difference(pytest.approx(-0.1), 1, None)


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_allow_no_test(tmp_path: Path, seeds: int) -> None:
    said = panels.verdict(task(tmp_path, one=[0.5] * seeds, two=[0.75] * seeds), "best")
    assert said.endswith(f"No test is possible below three common seeds; here {'is one' if seeds == 1 else 'are 2'}.")


def test_three_seeds_tell_chance_from_more(tmp_path: Path) -> None:
    # 25 points at each seed: certain. 24, 25, 26 points: 25 +- 4.302653 * 1 / sqrt(3) = 22.52 to 27.48
    sure = task(tmp_path / "sure", one=[0.50, 0.50, 0.50], two=[0.74, 0.75, 0.76])
    assert panels.verdict(sure, "best").endswith("(95 % interval of the lead +22.52 to +27.48): the winner is ahead "
                                                 "beyond chance.")  # fmt: skip
    # 1, -1, 3 points: mean 1, deviation 2: 1 +- 4.302653 * 2 / sqrt(3) = -3.97 to 5.97
    unsure = task(tmp_path / "unsure", one=[0.50, 0.50, 0.50], two=[0.51, 0.49, 0.53])
    assert panels.verdict(unsure, "best").endswith("(95 % interval of the lead −3.97 to +5.97): this may be chance.")


def test_a_method_without_scores_neither_wins_nor_stands_in_the_way(tmp_path: Path) -> None:
    found = task(tmp_path, broken=[NAN, NAN], sound=[0.5, 0.5])
    winner = found.winner("last")
    assert winner and winner.name == "sound"
    assert [each.name for each in found.standings] == ["sound", "broken"]


def test_other_data_is_another_task(tmp_path: Path) -> None:
    fakes.write(tmp_path / "a", [0.5], alpha=0.1)
    fakes.write(tmp_path / "b", [0.9], alpha=0.5)
    found = numbers.tasks(runs.read([tmp_path]))
    assert [each.title for each in found] == [
        "toy <b>, dirichlet alpha 0.1, 2 clients",
        "toy <b>, dirichlet alpha 0.5, 2 clients",
    ]
    assert all("nothing to compare" in panels.verdict(each, "best") for each in found)


# ---- who was hurt ---------------------------------------------------------------------------------------------------


def test_recall_is_the_mean_over_seeds_that_have_one(tmp_path: Path) -> None:
    fakes.write(tmp_path / "0", [0.5], recall=[0.2, NAN, NAN])
    fakes.write(tmp_path / "1", [0.5], seed=1, recall=[0.4, 0.6, NAN])
    assert numbers.class_recall(runs.read([tmp_path])) == [pytest.approx(0.3), 0.6, None]
    assert numbers.class_recall([]) is None


def test_clients_are_as_they_were_last_the_worst_first(tmp_path: Path) -> None:
    def scored(share: float) -> list[dict[str, object]]:
        return [{"client": 0, "accuracy_all": share, "recall": []}, {"client": 1, "accuracy_all": 0.3, "recall": []}]

    folder = fakes.write(tmp_path / "run", [0.5], end=False, clients=scored(0.9))
    with (folder / "record.jsonl").open("a") as file:
        file.write('{"kind":"round","round":1,"clients":[{"client":0,"accuracy_all":0.1,"accuracy_vacant":0.05}]}\n')
    (found,) = numbers.tasks(runs.read([folder]))
    first, second = numbers.clients(found)
    assert (first.client, first.accuracy, first.vacant) == (0, {"fedavg": 0.1}, {"fedavg": 0.05})
    assert (first.samples, first.classes) == (6, 2)  # it holds 5, 0 and 1 of the three classes
    assert (second.client, second.accuracy, second.vacant) == (1, {"fedavg": 0.3}, {"fedavg": None})


def test_confusions_add_up(tmp_path: Path) -> None:
    loaded = [
        runs.Loaded(tmp_path, numbers_run, "x")
        for numbers_run in (
            fakes.record.Run(end={"confusion": [[1, 2], [3, 4]]}),
            fakes.record.Run(end={"confusion": [[5, 0], [0, 1]]}),
        )
    ]
    assert numbers.confusion(loaded) == [[6, 2], [3, 5]]
    assert numbers.confusion([]) is None


# ---- curves ---------------------------------------------------------------------------------------------------------


def test_rows_tell_what_is_missing_from_what_is_not_a_number() -> None:
    run = fakes.run([0.5, None, NAN])
    accuracy = [metric for metric in numbers.METRICS if metric.key == "accuracy"]
    assert numbers.rows(run, accuracy) == [[1, 0.5], [2, None], [3, "nan"]]
    assert numbers.unsound(run) == {"accuracy of the global model": 1}


def test_metrics_without_any_number_are_not_offered(tmp_path: Path) -> None:
    loaded = runs.read([fakes.write(tmp_path / "run", [0.5], client_vacant=None)])
    assert [metric.key for metric in numbers.drawn(loaded)] == ["accuracy", "seconds", "up", "down"]
