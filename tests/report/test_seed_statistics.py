from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.report import load, seed_statistics, standings, verdict
from fedskew.report.blocks import TableCell
from fedskew.report.html import page, panels
from fedskew.report.plots import curves, partition
from tests.report import fakes

NAN = float("nan")


def task(folder: Path, **accuracies: list[float]) -> standings.TaskStandings:
    """Methods with one accuracy for each seed from 0 on."""
    for method, shares in accuracies.items():
        for seed, share in enumerate(shares):
            fakes.write(folder / f"{method}-{seed}", [share], method=method, seed=seed)
    return only(folder)


def only(folder: Path) -> standings.TaskStandings:
    (found,) = standings.tasks(load.read([folder]))
    return found


def cells(row: Sequence[TableCell | str]) -> list[str]:
    return [each if isinstance(each, str) else each.text for each in row]


# ---- differences ----------------------------------------------------------------------------------------------------


def test_an_interval_from_three_pairs() -> None:
    # differences 1, 2, 3: mean 2, deviation 1, error 1 / sqrt(3); Student's 97.5 % quantile with 2 degrees is 4.302653
    found = seed_statistics.difference({0: 2.0, 1: 3.0, 2: 4.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert found is not None and found.interval is not None
    assert (found.mean, found.pairs) == (2.0, 3)
    assert found.interval == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-6)
    assert not found.clear


def test_below_three_pairs_there_is_no_interval() -> None:
    found = seed_statistics.difference({0: 2.0, 1: 3.0, 7: 1.0}, {0: 1.0, 1: 1.0, 8: 1.0})
    assert found == seed_statistics.Difference(1.5, 2, None)
    assert not found.clear


def test_only_seeds_with_two_finite_scores_are_pairs() -> None:
    assert seed_statistics.difference({0: NAN, 1: None, 2: 1.0}, {0: 1.0, 1: 1.0, 2: None}) is None
    assert seed_statistics.difference({}, {0: 1.0}) is None


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1), min_size=3), st.floats(-1, 1))
def test_a_constant_difference_is_certain(ours: dict[int, float], apart: float) -> None:
    found = seed_statistics.difference(ours, {seed: share - apart for seed, share in ours.items()})
    assert found is not None and found.interval is not None
    assert found.interval == pytest.approx((apart, apart), abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8))
def test_turned_around_a_difference_changes_its_sign_only(pairs: list[tuple[float, float]]) -> None:
    ours, reference = (dict(enumerate(side)) for side in zip(*pairs, strict=True))
    one, other = seed_statistics.difference(ours, reference), seed_statistics.difference(reference, ours)
    assert one and other and one.interval and other.interval
    assert one.mean == pytest.approx(-other.mean, abs=1e-12)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]), abs=1e-12)
    assert one.interval[0] <= one.mean <= one.interval[1]


# ---- who wins -------------------------------------------------------------------------------------------------------


def test_best_is_the_highest_finite_and_last_the_last_whatever_it_is() -> None:
    run = fakes.run([0.25, 0.75, 0.5, NAN])
    assert seed_statistics.score(run, "best") == 0.75
    last, nothing = seed_statistics.score(run, "last"), seed_statistics.score(fakes.run([None, NAN]), "best")
    assert last is not None and math.isnan(last)
    assert nothing is not None and math.isnan(nothing)
    assert seed_statistics.score(fakes.run([0.5], counted=False), "best") is None


def test_the_winner_by_best_need_not_be_the_winner_by_last(tmp_path: Path) -> None:
    fakes.write(tmp_path / "early", [0.9, 0.1], method="early")
    fakes.write(tmp_path / "late", [0.1, 0.8], method="late")
    (found,) = standings.tasks(load.read([tmp_path]))
    (best,), (last,) = found.leaders("best"), found.leaders("last")
    assert (best.name, last.name) == ("early", "late")
    assert verdict.says(found, "best").startswith(
        "By best accuracy, early has the highest mean, 90.00 %; next is late, 10.00 points below"
    )
    assert verdict.says(found, "last").startswith(
        "By last accuracy, late has the highest mean, 80.00 %; next is early, 70.00 points below"
    )
    assert found.standings[1].behind["best"] == seed_statistics.Difference(pytest.approx(-0.1), 1, None)


@pytest.mark.parametrize(("seeds", "both"), [(1, "the seed that both have"), (2, "the 2 seeds that both have")])
def test_few_seeds_allow_no_test(tmp_path: Path, seeds: int, both: str) -> None:
    said = verdict.says(task(tmp_path, one=[0.5] * seeds, two=[0.75] * seeds), "best")
    assert said.endswith(f"25.00 points below on {both}. No test is possible below three common seeds.")


def test_three_seeds_tell_chance_from_more(tmp_path: Path) -> None:
    # 25 points at each seed: certain. 24, 25, 26 points: 25 +- 4.302653 * 1 / sqrt(3) = 22.52 to 27.48
    sure = task(tmp_path / "sure", one=[0.50, 0.50, 0.50], two=[0.74, 0.75, 0.76])
    assert verdict.says(sure, "best").startswith(
        "By best accuracy, two wins with 75.00 %; next is one, 25.00 points below"
    )
    assert cells(verdict.standings(sure).rows[0])[3] == "wins"
    assert verdict.says(sure, "best").endswith("The 95 % interval of the lead, +22.52 to +27.48, excludes zero.")
    # 1, -1, 3 points: mean 1, deviation 2: 1 +- 4.302653 * 2 / sqrt(3) = -3.97 to 5.97
    unsure = task(tmp_path / "unsure", one=[0.50, 0.50, 0.50], two=[0.51, 0.49, 0.53])
    assert verdict.says(unsure, "best").startswith("By best accuracy, two has the highest mean, 51.00 %; next is one")
    assert cells(verdict.standings(unsure).rows[0])[3] == "highest mean"
    assert verdict.says(unsure, "best").endswith(
        "The 95 % interval of the lead, −3.97 to +5.97, includes zero, so this may be chance."
    )


def test_no_method_wins_against_one_that_is_above_it_on_every_common_seed(tmp_path: Path) -> None:
    # seeds 3 and 4, which only one has, lift its mean to (0.5 + 0.51 + 0.52 + 0.9 + 0.9) / 5 = 0.666 above 0.61
    found = task(tmp_path, one=[0.50, 0.51, 0.52, 0.9, 0.9], two=[0.60, 0.61, 0.62])
    assert verdict.says(found, "best") == (
        "By best accuracy, one has the highest mean, 66.60 %, but two is 10.00 points above it on the 3 seeds that "
        "both "
        "have. The 95 % interval of the lead, +10.00 to +10.00, excludes zero."
    )
    assert [cells(row)[3] for row in verdict.standings(found).rows] == ["highest mean", "+10.00"]


def test_without_a_common_seed_no_method_wins(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        fakes.write(tmp_path / f"one{seed}", [0.5], method="one", seed=seed)
        fakes.write(tmp_path / f"two{seed}", [0.6], method="two", seed=seed + 3)
    (found,) = standings.tasks(load.read([tmp_path]))
    assert verdict.says(found, "best") == (
        "By best accuracy, two has the highest mean, 60.00 %; next is one with 50.00 %; they share no seed on the "
        "same partition."
    )
    assert cells(verdict.standings(found).rows[0])[3] == "highest mean"


def test_equal_methods_are_called_equal(tmp_path: Path) -> None:
    found = task(tmp_path, one=[0.5, 0.25], two=[0.25, 0.5], three=[0.25, 0.25])
    assert verdict.says(found, "best") == "By best accuracy, one and two are equal with 37.50 %."
    assert [cells(row)[3] for row in verdict.standings(found).rows] == ["equal", "equal", "−12.50"]


def test_a_method_without_scores_neither_wins_nor_stands_in_the_way(tmp_path: Path) -> None:
    found = task(tmp_path, broken=[NAN, NAN], sound=[0.5, 0.5])
    (winner,) = found.leaders("last")
    assert winner.name == "sound"
    assert [each.name for each in found.standings] == ["sound", "broken"]


def test_a_method_that_failed_on_a_seed_does_not_win_with_the_others(tmp_path: Path) -> None:
    found = task(tmp_path, broken=[0.9, NAN, NAN], sound=[0.5, 0.5, 0.5])
    assert verdict.says(found, "best") == (
        "The best accuracy of sound is 50.00 %; there is nothing to compare it with. "
        "broken has none: it is not a number for 2 of 3 seeds."
    )
    assert [cells(row)[:3] for row in verdict.standings(found).rows] == [
        ["sound", "3", "50.00 ± 0.00"],
        ["broken", "1 of 3", "NaN"],
    ]
    alone = task(tmp_path / "alone", broken=[NAN])
    assert verdict.says(alone, "last").startswith("No method has a last accuracy. broken has none")


def test_seeds_are_paired_on_the_same_split_only(tmp_path: Path) -> None:
    for seed in range(3):
        fakes.write(tmp_path / f"one-{seed}", [0.5], "one", seed)
        fakes.write(tmp_path / f"two-{seed}", [0.6], "two", seed, fields={"shards": "another"} if seed == 2 else {})
    (found,) = standings.tasks(load.read([tmp_path]))
    gap = found.standings[1].behind["best"]
    assert gap is not None and gap.pairs == 2
    assert len(found.notes) == 1 and "seed 2 has 2 different partitions of the data" in found.notes[0]


def test_splits_of_one_seed_are_one_seed_in_a_test(tmp_path: Path) -> None:
    for split in range(3):
        for method, share in (("one", 0.5), ("two", 0.6 + split / 100)):
            fakes.write(tmp_path / f"{method}-{split}", [share], method, fields={"shards": f"split {split}"})
    (found,) = standings.tasks(load.read([tmp_path]))
    # 0.10, 0.11 and 0.12 apart: 0.11 on the one seed
    assert found.standings[1].behind["best"] == seed_statistics.Difference(pytest.approx(-0.11), 1, None)
    assert "No test is possible below three common seeds" in verdict.says(found, "best")


def test_one_score_of_two_seeds_has_no_deviation(tmp_path: Path) -> None:
    fakes.write(tmp_path / "scored", [0.5])
    fakes.write(tmp_path / "not yet", [None], seed=1)
    fakes.write(tmp_path / "other", [None], "fedprox")
    (found,) = standings.tasks(load.read([tmp_path]))
    best = {cells(row)[0]: cells(row)[1:4] for row in verdict.standings(found).rows}
    assert best["fedavg"] == ["1 of 2", "50.00", "–"], "nor does it win against nobody"


def test_where_classes_are_scored_unequally_balanced_accuracy_has_its_own_winner(tmp_path: Path) -> None:
    fakes.write(tmp_path / "plain", [0.7, 0.69], method="plain", balanced_accuracy=0.2)
    fakes.write(tmp_path / "fair", [0.55, 0.5], method="fair", balanced_accuracy=0.425)
    (found,) = standings.tasks(load.read([tmp_path]))
    assert found.measures == ["best", "last", "best balanced", "last balanced"]
    assert verdict.says(found, "best").startswith("By best accuracy, plain has the highest mean, 70.00 %")
    assert verdict.says(found, "best balanced").startswith(
        "By best balanced accuracy, fair has the highest mean, 42.50 %; next is plain, 22.50 points below"
    )
    assert "every class counts alike" in verdict.standings(found).note
    for table in (verdict.standings(found), panels.costs(found)):
        assert {"best balanced %", "last balanced %"} <= set(table.heading)


def test_where_balanced_accuracy_says_the_same_it_is_left_out(tmp_path: Path) -> None:
    fakes.write(tmp_path / "run", [0.5], balanced_accuracy=0.495)
    (found,) = standings.tasks(load.read([tmp_path]))
    assert found.measures == ["best", "last"]


# ---- rounds to a target ---------------------------------------------------------------------------------------------


def test_rounds_are_counted_to_the_target_that_was_asked_for(tmp_path: Path) -> None:
    for method, target in (("one", None), ("two", 0.3), ("three", 0.3)):
        fakes.write(tmp_path / method, [0.1, 0.3, 0.5], method, config={"evaluate": {"target": target}})
    table = verdict.standings(only(tmp_path))
    assert table.heading[-1] == "rounds to 30.0 %" and [cells(row)[-1] for row in table.rows] == ["2"] * 3
    assert table.note == "Rounds are counted to 30.0 %, the target that was asked for."


@pytest.mark.parametrize("targets", [(None, None), (0.3, 0.4)])
def test_without_one_target_they_are_counted_to_what_the_first_method_ends_with(
    tmp_path: Path, targets: tuple[float | None, float | None]
) -> None:
    for name, target in zip(("a", "b"), targets, strict=True):
        shares: list[float | None] = [0.1, 0.2] if name == "a" else [0.2, 0.5]
        fakes.write(tmp_path / name, shares, name, config={"evaluate": {"target": target}})
    table = verdict.standings(only(tmp_path))
    # b is the better one and stands first, a was given first
    assert [(cells(row)[0], cells(row)[-1]) for row in table.rows] == [("b", "1"), ("a", "2")]
    assert table.note == "Rounds are counted to 20.0 %, what a ends with."


def test_all_formats_have_the_same_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load.read([fakes.write(tmp_path / "run", [0.1, 0.5], config={"evaluate": {"target": 0.3}})])
    for text in (page.html(loaded), page.markdown(loaded)):
        assert "rounds to 30.0 %" in text and "the target that was asked for" in text
    drawn: list[curves.Compared] = []
    monkeypatch.setattr(page.curves, "comparisons", lambda tasks: drawn.extend(tasks) or partition.dots(fakes.COUNTS))
    page.png(loaded)
    assert (drawn[0].target, drawn[0].rows[0]["rounds_to_target"]) == (0.3, [2])


# ---- what can be compared -------------------------------------------------------------------------------------------


def test_other_data_is_another_task(tmp_path: Path) -> None:
    fakes.write(tmp_path / "a", [0.5], alpha=0.1)
    fakes.write(tmp_path / "b", [0.9], alpha=0.5)
    found = standings.tasks(load.read([tmp_path]))
    assert [each.title for each in found] == [
        "toy <b>, dirichlet alpha 0.1, 2 clients",
        "toy <b>, dirichlet alpha 0.5, 2 clients",
    ]
    assert all("nothing to compare" in verdict.says(each, "best") for each in found)


def test_other_files_under_the_same_name_are_another_task(tmp_path: Path) -> None:
    fakes.write(tmp_path / "a", [0.5])
    fakes.write(tmp_path / "b", [0.9], fields={"checksums": {"x": "sha256:11"}})
    one, other = standings.tasks(load.read([tmp_path]))
    # sha256 of {"x": "sha256:00"} and {"x": "sha256:11"}, to eight digits
    assert [one.title, other.title] == [
        f"toy <b>, dirichlet alpha 0.5, 2 clients, data {digest}" for digest in ("3229731e", "fda3d8af")
    ]


def test_other_label_files_under_the_same_name_are_another_task(tmp_path: Path) -> None:
    for name in ("a", "b"):
        listed = {"files": {"noise.labels": name * 64}}
        fakes.write(tmp_path / name, [0.5], fields=listed, config={"noise": {"labels": "labels.csv"}})
    one, other = standings.tasks(load.read([tmp_path]))
    assert one.title.endswith(", file of noise.labels aaaaaaaa") and other.title.endswith("noise.labels bbbbbbbb")


def test_a_record_from_before_a_setting_is_on_the_same_task(tmp_path: Path) -> None:
    old = fakes.header("fedavg", 0)["config"]
    del old["partition"]["upper"], old["noise"]
    fakes.write(tmp_path / "old", [0.5], fields={"config": old})
    fakes.write(tmp_path / "new", [0.6], method="fedprox")
    (found,) = standings.tasks(load.read([tmp_path]))
    assert [each.name for each in found.standings] == ["fedprox", "fedavg"]


def test_held_back_samples_are_not_the_test_set(tmp_path: Path) -> None:
    fakes.write(tmp_path / "tested", [0.5])
    fakes.write(tmp_path / "tuned", [0.9], config={"evaluate": {"validation": 0.2, "test": False}})
    tested, tuned = standings.tasks(load.read([tmp_path]))
    assert tested.title == "toy <b>, dirichlet alpha 0.5, 2 clients"
    assert tuned.title == "toy <b>, dirichlet alpha 0.5, 2 clients, scored on a share of 0.2 held back"
    assert verdict.says(tuned, "best").startswith("The best accuracy on held-back samples of fedavg is 90.00 %")
    assert panels.setting(tested)["data"].endswith("15 training and 6 test samples, 3 classes")
    assert panels.setting(tuned)["data"].endswith("15 training samples, 6 of them held back, 3 classes")


# ---- curves ---------------------------------------------------------------------------------------------------------


def test_rows_tell_what_is_missing_from_what_is_not_a_number() -> None:
    run = fakes.run([0.5, None, NAN])
    accuracy = [metric for metric in seed_statistics.METRICS if metric.key == "accuracy"]
    assert seed_statistics.rows(run, accuracy) == [[1, 0.5], [2, None], [3, "nan"]]
    assert seed_statistics.not_finite(run) == {"accuracy of the global model": 1}


def test_metrics_without_any_number_are_not_offered(tmp_path: Path) -> None:
    loaded = load.read([fakes.write(tmp_path / "run", [0.5], client_vacant=None)])
    assert [metric.key for metric in seed_statistics.drawn(loaded)] == ["accuracy", "seconds", "up", "down"]


def test_the_quantiles_of_few_seeds_are_those_of_scipy() -> None:
    from scipy.stats import t

    for freedom in range(2, 14):
        assert seed_statistics._quantile(freedom) == float(t.ppf(0.5 + seed_statistics.LEVEL / 2, freedom))
