"""Tuning: what is tried, on what it is chosen, and what is said of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from fedskew import api
from fedskew.cli import main
from fedskew.config.schema import RunConfig
from fedskew.core.errors import Diverged, UserError
from fedskew.data.sources import Source
from fedskew.record import reader
from fedskew.report import sweep as report
from fedskew.report.load import folders
from fedskew.tuning import search_space, sweep
from tests.contract import harness

BASE = RunConfig()


def names(methods: list[str], grid: list[str], random: int | None = None, base: RunConfig = BASE) -> list[list[str]]:
    return [[trial.name for trial in some] for some in search_space.trials(methods, grid, base, random).values()]


# ---- grids ----------------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_in_the_order_it_is_said() -> None:
    (found,) = names(["fedlmd"], ["fedlmd.beta=0.5,2", "tau=1,3"])
    assert found == [
        "fedlmd(beta=0.5, tau=1)",
        "fedlmd(beta=0.5, tau=3)",
        "fedlmd(beta=2, tau=1)",
        "fedlmd(beta=2, tau=3)",
    ]


def test_a_plain_name_is_for_all_that_have_it_and_a_setting_is_for_all() -> None:
    assert names(["fedlmd(beta=2)", "fedntd"], ["tau=1,3"]) == [
        ["fedlmd(beta=2, tau=1)", "fedlmd(beta=2, tau=3)"],
        ["fedntd(tau=1)", "fedntd(tau=3)"],
    ]
    assert names(["fedavg", "scaffold"], ["lr=0.1,1"]) == [
        ["fedavg, local.lr=0.1", "fedavg, local.lr=1"],
        ["scaffold, local.lr=0.1", "scaffold, local.lr=1"],
    ]


def test_settings_and_parameters_reach_the_configuration() -> None:
    (found,) = search_space.trials(
        ["fedprox+avgm"], ["prox.mu=0.5", "local.lr=0.1", "clients_per_round=none,3"], BASE
    ).values()
    assert [(t.config.method, t.config.local.lr, t.config.clients_per_round) for t in found] == [
        ("fedprox(mu=0.5)+avgm", 0.1, None),
        ("fedprox(mu=0.5)+avgm", 0.1, 3),
    ]
    assert found[1].values == {"fedprox.mu": 0.5, "local.lr": 0.1, "clients_per_round": 3}


def test_a_parameter_goes_before_a_setting_of_the_same_name() -> None:
    (found,) = search_space.trials(["fedcurv"], ["batch=7", "local.batch_size=9"], BASE).values()
    assert found[0].config.method == "fedcurv(batch=7)" and found[0].config.local.batch_size == 9


def test_one_method_can_have_a_setting_of_its_own() -> None:
    found = names(["fedavg", "fedprox"], ["fedavg.lr=0.1,1", "mu=0.5,1"])
    assert found == [["fedavg, local.lr=0.1", "fedavg, local.lr=1"], ["fedprox(mu=0.5)", "fedprox(mu=1)"]]


def test_words_are_read_as_what_they_are() -> None:
    (found,) = search_space.trials(["fedlsr"], ["flip=true,false", "lam_e=none", "variant=code"], BASE).values()
    assert [trial.values for trial in found] == [
        {"flip": flip, "lam_e": None, "variant": "code"} for flip in (True, False)
    ]


def test_a_range_of_whole_numbers_is_a_grid() -> None:
    assert names(["fedavg"], ["local.epochs=1..3"]) == [[f"fedavg, local.epochs={n}" for n in (1, 2, 3)]]


# ---- draws ----------------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_trials_and_another_others() -> None:
    asked: Any = (["fedprox", "fedsam"], ["mu=1e-4..1:log", "rho=0.01..0.5"], 5)
    assert names(*asked) == names(*asked)
    other = names(*asked, base=RunConfig(seed=1))
    assert not set(other[0]) & set(names(*asked)[0])
    assert [len(some) for some in other] == [5, 5]
    assert [some[:5] for some in names(*asked[:2], 8)] == names(*asked)  # more draws keep those that were made


def test_draws_from_a_grid_never_repeat() -> None:
    grid = ["beta=0.5,1,2", "tau=1,3"]
    (drawn,), (whole,) = names(["fedlmd"], grid, 6), names(["fedlmd"], grid)
    assert drawn != whole and sorted(drawn) == sorted(whole)


@given(st.floats(1e-6, 1e3), st.floats(1.001, 1e4), st.booleans(), st.integers(0, 1000))
def test_a_draw_lies_in_its_range_and_can_be_written_down(low: float, factor: float, log: bool, seed: int) -> None:
    drawn = search_space.SearchRange(low, low * factor, log).draw(np.random.default_rng(seed), whole=False)
    assert low <= drawn <= low * factor
    assert float(f"{drawn:.4g}") == drawn or drawn in (low, low * factor)


def test_half_of_the_draws_lie_below_the_middle_of_the_scale() -> None:
    # The middle of 1e-4..1 is 0.5 evenly and 1e-2 in the logarithm; of 400 draws 200 +- 10 are expected below it.
    for scale, middle in (("", 0.5), (":log", 1e-2)):
        (found,) = search_space.trials(["fedprox"], [f"mu=1e-4..1{scale}"], BASE, 400).values()
        assert abs(sum(trial.values["mu"] < middle for trial in found) - 200) < 40


def test_whole_numbers_are_drawn_where_whole_numbers_stood() -> None:
    (found,) = search_space.trials(["fedavg"], ["batch_size=8..512:log"], BASE, 20).values()
    batches = [trial.config.local.batch_size for trial in found]
    assert all(type(b) is int and 8 <= b <= 512 for b in batches) and len(set(batches)) == 20
    (found,) = search_space.trials(["fedprox"], ["mu=0..1"], BASE, 3).values()
    assert not any(trial.values["mu"] in (0, 1) for trial in found)
    (found,) = search_space.trials(["fedlsr"], ["lam_e=0..1"], BASE, 3).values()  # a number, or none as usual
    assert not any(trial.values["lam_e"] in (0, 1) for trial in found)
    assert names(["fedlsr"], ["t_w=2..4"]) == [[f"fedlsr(t_w={n})" for n in (2, 3, 4)]]


def test_a_narrow_range_gives_all_it_has() -> None:
    # 0.998, 0.9981, ..., 1.0: 21 numbers of four digits
    (found,) = search_space.trials(["fedavg"], ["lr_decay=0.998..1.0"], BASE, 21).values()
    assert sorted(trial.values["local.lr_decay"] for trial in found) == [round(0.998 + n / 1e4, 4) for n in range(21)]


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "grid", "random", "said"),
    [
        (["fedlmd"], [], None, "there is nothing to vary"),
        (["fedlmd"], ["beta="], None, "grid 'beta=' has no values"),
        (["fedlmd"], ["beta"], None, "grid 'beta' has no values"),
        (["fedlmd"], ["beta=,"], None, "has no values"),
        (["fedlmd"], ["beta=1,,2"], None, "an empty value"),
        (["fedlmd"], ["beta=1,2,1.0"], None, "has 1.0 twice"),
        (["fedlmd"], ["beta=1", "fedlmd.beta=2"], None, "a second time"),
        (["fedlmd"], ["betta=1"], None, "Did you mean 'beta'"),
        (["fedlmd"], ["fedlmd.mu=1"], None, "'mu' is neither a parameter of fedlmd nor a setting"),
        (["fedlmd"], ["fedprox.mu=1"], None, "for method 'fedprox', which is not tuned here. Choose one of fedlmd"),
        (["fedlmd"], ["local.lrr=1"], None, "Did you mean 'local.lr'"),
        (["fedlmd"], ["beta=-1"], None, "beta is -1"),
        (["fedlmd"], ["beta=nan"], None, "beta is 'nan'"),
        (["fedlmd"], ["lr=-1"], None, "local.lr"),
        (["fedlmd"], ["seed=0,1"], None, "would vary the data or their scoring"),
        (["fedlmd"], ["partition.alpha=0.1,10"], None, "would vary the data or their scoring"),
        (["fedlmd"], ["evaluate.validation=0.1,0.2"], None, "would vary the data or their scoring"),
        (["fedlmd+fedprox+fedla"], ["tau=1,2"], None, "Type fedlmd.tau or fedla.tau"),
        (["fedlmd", "fedlmd"], ["tau=1,2"], None, "would be tuned twice"),
        (["fedprox(mu=1)", "fedprox( mu=1)"], ["lr=0.1,1"], None, "method 'fedprox(mu=1)' would be tuned twice"),
        (["fedprox", "prox"], ["lr=0.1,1"], None, "method 'fedprox' would be tuned twice. Type it once"),
        (["fedprox(mu=1)", "fedprox(mu=2)"], ["mu=3,4"], None, "would both try fedprox(mu=3). Remove one of them"),
        (["fedlmdd"], ["tau=1,2"], None, "Did you mean 'fedlmd'"),
        (["fedprox"], ["mu=0.1..1"], None, "is a range to draw from. Type, for example, --random 10"),
        (["fedprox"], ["mu=0..1:log"], 3, "starts at 0, which has no logarithm"),
        (["fedprox"], ["mu=-1..1:log"], 3, "starts at -1, which has no logarithm"),
        (["fedprox"], ["mu=1..0.1"], 3, "from a number to a larger one"),
        (["fedprox"], [f"epochs=1..{2**63}"], 3, "an end of more than 63 bits"),
        (["fedprox"], ["epochs=-5000000000000000000..5000000000000000000"], 3, "is wider than 63 bits"),
        (["fedprox"], ["mu=-1e308..1e308"], 3, "is wider than 63 bits"),
        (["fedprox"], ["mu=a..b"], 3, "from a number to a larger one"),
        (["fedprox"], ["mu=0.1..1:lin"], 3, "Type :log, or nothing"),
        (["fedlmd"], ["beta=1,2", "tau=1,2"], 5, "--random is 5, but the grid of method 'fedlmd' has 4 trials"),
        (["fedavg", "fedprox"], ["mu=0.1..1"], 2, "the grid of method 'fedavg' has 1 trial."),
        (["fedavg"], ["lr_decay=0.998..1.0"], 30, "the grid of method 'fedavg' has 21 trials. Type a smaller number"),
        (["fedlmd"], ["beta=1,2"], 0, "--random is 0"),
        (["fedlmd"], ["beta=1..2"], 10**9, "--random is 1000000000. Give 1 to 10,000 trials"),
        (["fedlmd", "fedprox"], ["beta=1,2,3", "mu=1,2"], None, "'fedprox' would have 2 trials and 'fedlmd' 3"),
        (["fedavg", "fedprox"], ["mu=1,2"], None, "'fedavg' would have 1 trial and 'fedprox' 2"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_is_one_sentence_before_anything_is_trained(
    methods: list[str], grid: list[str], random: int | None, said: str
) -> None:
    with pytest.raises(UserError) as caught:
        search_space.trials(methods, grid, BASE, random)
    assert said in str(caught.value) and "\n" not in str(caught.value)


# ---- whole sweeps ---------------------------------------------------------------------------------------------------

GRID = ["fedprox.mu=0.01,1", "fedavg.lr=0.001,0.1"]


def tuned(out: Path, source: Source | None = None, **options: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"grid": GRID, "seeds": 2, "confirm": 1, "validation": 0.25}
    data = source or harness.digits()
    return api.sweep(
        ["fedavg", "fedprox"], config=harness.config(rounds=2, local_epochs=1), data=data, out=out, **(asked | options)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("sweep") / "whole"
    return out, tuned(out)


def test_the_best_mean_on_validation_wins_and_fresh_seeds_tell(whole: tuple[Path, dict[str, Any]]) -> None:
    out, found = whole
    assert (found["seeds"], found["fresh_seeds"]) == ([0, 1], [2])
    for row in found["methods"]:
        scores = {}
        for trial in row["trials"]:
            runs = [reader.read(path) for path in sorted((out / "trials").glob("*")) if fits(path, trial)]
            assert [run.header["config"]["seed"] for run in runs] == [0, 1]
            # two rounds, so that the mean of the last ten is the mean of both
            means = [sum(line["accuracy"] for line in run.rounds) / 2 for run in runs]
            assert means == pytest.approx(trial["scores"]) and trial["score"] == pytest.approx(sum(means) / 2)
            scores[trial["name"]] = sum(means) / 2
        assert row["chosen"] == max(scores, key=lambda name: scores[name])
        assert row["validation"] == pytest.approx(max(scores.values()))
        assert [trial["score"] for trial in row["trials"]] == sorted(scores.values(), reverse=True)
    assert found["methods"][0]["values"] == {"local.lr": 0.1}


def fits(path: Path, trial: dict[str, Any]) -> bool:
    config = reader.read(path).header["config"]
    settings = [f"local.lr={config['local']['lr']:g}"] if "local.lr" in trial["values"] else []
    return ", ".join([config["method"], *settings]) == trial["name"]


def test_trials_are_scored_on_training_data_and_the_last_runs_on_the_test_set(
    whole: tuple[Path, dict[str, Any]],
) -> None:
    out, _ = whole
    trials = [reader.read(path) for path in (out / "trials").iterdir()]
    assert len(trials) == 2 * 2 * 2
    for run in trials:
        tested = run.header["data"]["test"]
        assert run.header["config"]["evaluate"]["validation"] == 0.25
        assert sum(map(sum, run.header["counts"])) == 200 - tested and sum(run.rounds[0]["predicted"]) == tested
    confirmed = [reader.read(path) for path in (out / "confirmed").glob("*/record.jsonl")]
    assert sorted(run.header["config"]["seed"] for run in confirmed) == [2, 2]
    for run in confirmed:
        assert run.header["config"]["evaluate"]["validation"] is None
        assert sum(map(sum, run.header["counts"])) == 200 and sum(run.rounds[0]["predicted"]) == 60


def test_what_the_test_set_says_cannot_change_what_is_chosen(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    test = harness.digits().test
    wrong = replace(harness.digits(), test=replace(test, y=(test.y + 1) % 10))
    other = tuned(tmp_path / "other", wrong, seeds=1, confirm=0)
    one, other = (
        {trial["name"]: trial["scores"][0] for row in found["methods"] for trial in row["trials"]}
        for found in (whole[1], other)
    )
    assert one == other and len(one) == 4


def test_an_interrupted_sweep_goes_on_to_the_same_table_and_repeats_nothing(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    class Cut(harness.Starts):
        def on_round(self, round: int, metrics: dict[str, Any]) -> None:
            if len(self.names) == 3 and round == 1:
                raise KeyboardInterrupt

    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        tuned(out, callbacks=[Cut()])
    finished = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/record.jsonl")}
    assert len(finished) == 3 and not (out / "sweep.json").exists()
    torn = next(path for path in finished if reader.read(path).end is None)
    del finished[torn]
    found = tuned(out, resume=True)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert found == whole[1]
    for name in ("sweep.json", "sweep.md", "sweep.html"):
        assert (out / name).read_bytes() == (whole[0] / name).read_bytes()
    assert tuned(out, resume=True) == found
    with pytest.raises(UserError, match="has other options"):
        tuned(out, resume=True, validation=0.3)
    with pytest.raises(UserError, match="has other options"):
        tuned(out, resume=True, precision="bf16")
    with pytest.raises(UserError, match=r"already has a sweep. Type --resume to continue it"):
        tuned(out)
    (out / "sweep.json").unlink()
    with pytest.raises(UserError, match="already holds a run"):
        tuned(out)


def test_going_on_with_less_than_was_tried_is_refused(whole: tuple[Path, dict[str, Any]]) -> None:
    out, _ = whole
    before = (out / "sweep.json").read_bytes()
    fewer = ["fedprox.mu=1", "fedavg.lr=0.1"]
    for options, left_out in (
        # both fedavg with lr 0.001 and fedprox with mu 0.01 were tried, each on seeds 0 and 1
        ({"grid": fewer}, "fedavg-local.lr=0.001-seed0, fedavg-local.lr=0.001-seed1, fedprox-mu=0.01-seed0 and 1 more"),
        ({"grid": fewer, "resume": False, "force": True}, "fedavg-local.lr=0.001-seed0"),
        ({"seeds": 1}, "fedavg-local.lr=0.001-seed1, fedavg-local.lr=0.1-seed1, fedprox-mu=0.01-seed1 and 1 more"),
        ({"seed": -2, "confirm": 3}, "fedavg-local.lr=0.001-seed0"),  # fresh seeds would be 0, 1, 2
    ):
        with pytest.raises(UserError, match=r"Type all its values and seeds") as caught:
            tuned(out, **({"resume": True} | options))
        assert f"also tried {left_out}" in str(caught.value)
    assert (out / "sweep.json").read_bytes() == before


def test_a_larger_grid_leaves_earlier_choices_out_of_the_comparison(tmp_path: Path) -> None:
    asked: Any = {"config": harness.config(rounds=2, local_epochs=1), "data": harness.digits(), "confirm": 1}
    first = api.sweep(["fedavg"], grid=["lr=0.001"], out=tmp_path / "it", **asked)
    found = api.sweep(["fedavg"], grid=["lr=0.001,0.1"], out=tmp_path / "it", resume=True, **asked)
    assert [first["methods"][0]["values"], found["methods"][0]["values"]] == [{"local.lr": 0.001}, {"local.lr": 0.1}]
    runs = sorted(path.parent.name for path in (tmp_path / "it" / "confirmed").glob("*/record.jsonl"))
    assert runs == ["fedavg-local.lr=0.001-seed1", "fedavg-local.lr=0.1-seed1"]
    assert [path.name for path in folders([tmp_path / "it" / "confirmed"])] == runs[1:]
    assert "those of its only trial on 20 %" in report.explanation(first)
    assert "largest of several" not in report.explanation(first) and "largest of several" in report.explanation(found)


def test_a_run_that_fails_has_no_score_and_is_named_while_the_others_go_on(tmp_path: Path) -> None:
    broken = ["fedprox(mu=0.01), seed 1", "fedavg, local.lr=0.1, seed 2"]  # a trial, and a confirmation

    class Breaking(harness.Starts):
        def on_round(self, round: int, metrics: dict[str, Any]) -> None:
            if self.names[-1] in broken:
                raise Diverged("round 1 has no usable update")

    out = tmp_path / "it"
    found = tuned(out, callbacks=[Breaking()])
    by_name = {trial["name"]: trial for row in found["methods"] for trial in row["trials"]}
    assert by_name["fedprox(mu=0.01)"]["scores"][1] is None and by_name["fedprox(mu=0.01)"]["score"] is None
    assert found["methods"][1]["chosen"] == "fedprox(mu=1)" and found["methods"][1]["test"] is not None
    assert found["methods"][0]["tested"] == {"last10": [None], "last": [None]}
    places = ["trials/fedprox-mu=0.01-seed1", "confirmed/fedavg-local.lr=0.1-seed2"]
    assert found["failed"] == dict.fromkeys(places, "round 1 has no usable update")
    for name in ("sweep.md", "sweep.html"):
        assert all(f"The run {place} failed and has no score" in (out / name).read_text() for place in places)
    again = tuned(out, resume=True)
    assert not again["failed"] and again["methods"][0]["test"] is not None


def test_a_damaged_trial_ends_the_sweep_and_chooses_nothing(tmp_path: Path) -> None:
    tuned(tmp_path)
    path = sorted((tmp_path / "trials").glob(f"*/{reader.NAME}"))[0]
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"round":1', b'"round":9', 1))
    with pytest.raises(UserError, match="malformed at line 2"):
        tuned(tmp_path, resume=True)


def test_without_any_score_there_is_no_winner(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no trial of method 'fedavg' has a score: .*Type more --rounds"):
        tuned(tmp_path / "none", rounds=0)

    class Breaking(harness.Starts):
        def on_round(self, round: int, metrics: dict[str, Any]) -> None:
            raise Diverged(f"{self.names[-1]} broke")

    with pytest.raises(UserError, match=r"has a score: fedavg, local.lr=0.001, seed 0 broke"):
        tuned(tmp_path / "broken", callbacks=[Breaking()])
    for out in (tmp_path / "none", tmp_path / "broken"):
        assert not (out / "sweep.json").exists() and not (out / "confirmed").exists()


def test_the_share_may_be_a_setting_but_not_two_things(tmp_path: Path) -> None:
    def share(**options: Any) -> float:
        asked: Any = {"grid": ["lr=0.1"], "confirm": 0, "out": tmp_path / str(len(list(tmp_path.iterdir())))}
        base = harness.config(rounds=1, local_epochs=1)
        return api.sweep(["fedavg"], config=base, data=harness.digits(), **asked, **options)["validation"]

    assert share() == 0.2
    assert share(settings=["evaluate.validation=0.4"]) == 0.4
    assert share(settings=["evaluate.validation=0.4"], validation=0.4) == 0.4
    with pytest.raises(
        UserError, match=r"validation 0.3 and the setting evaluate.validation=0.4 contradict each other"
    ):
        share(settings=["evaluate.validation=0.4"], validation=0.3)


def test_unequal_work_is_shown(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    # 2 trials of 2 rounds with 3 clients asked and 1 epoch
    assert [row["epochs"] for row in whole[1]["methods"]] == [12, 12] and "equal work" not in report.markdown(whole[1])
    asked: Any = {"config": harness.config(rounds=1, local_epochs=1), "data": harness.digits(), "confirm": 0}
    grid = ["fedavg.local_epochs=1,2", "mu=0.1,1"]
    found = api.sweep(["fedavg", "fedprox"], grid=grid, out=tmp_path / "it", **asked)
    # 1 round x 3 clients x (1 + 2) epochs, and x (1 + 1)
    assert "rounds times clients asked times epochs add up to 9 for fedavg, 6 for fedprox." in report.markdown(found)


def test_the_folder_has_pages_that_need_nothing_else(whole: tuple[Path, dict[str, Any]]) -> None:
    out, found = whole
    assert json.loads((out / "sweep.json").read_text()) == found
    page, text = (out / "sweep.html").read_text(), (out / "sweep.md").read_text()
    assert page.startswith("<!doctype html>") and "http" not in page.replace("http://www.w3.org", "")
    for row in found["methods"]:
        shown = f"{100 * row['validation']:.2f}"
        assert shown in page and f"| {shown} |" in text
        assert f"{100 * row['test']:.2f}" in page and f"Trials of {row['method']}" in text
    assert "25 % of every client's own training data (seeds 0, 1)" in text and "of seeds 2, which no trial had" in text
    assert all("name no validation data" in shown and "best round on the test set" in shown for shown in (page, text))


def test_scores_that_are_missing_rank_last_and_are_dashes() -> None:
    ranked = [
        {"name": "a", "values": {"mu": 1}, "scores": [0.5, 0.7], "score": 0.6},
        {"name": "b", "values": {"mu": 2}, "scores": [0.9, None], "score": None},
    ]
    tested: dict[str, list[float]] = {"last10": [], "last": []}
    row = {"method": "a", "values": {"mu": 1}, "validation": 0.6, "tested": tested, "epochs": 2, "trials": ranked}
    # mean of 50 and 70 is 60, and both are 10 away from it
    ranking = report.ranking(row)
    assert (ranking.heading, ranking.cells) == (
        ["place", "mu", "validation %"],
        [["1", "1", "60.00 ± 10.00"], ["2", "2", "–"]],
    )
    found = {"validation": 0.2, "seeds": [0, 1], "fresh_seeds": [], "failed": {}, "methods": [row]}
    assert report.winners(found).cells == [["a", "2", "mu=1", "60.00", "–", "–"]]
    assert "the test set was not looked at here" in report.markdown(found)
    assert report.html(found).startswith("<!doctype html>")
    assert sweep._mean([0.9, None]) is None and math.isclose(sweep._mean([0.5, 0.7]) or 0, 0.6)


# ---- the command ----------------------------------------------------------------------------------------------------

QUICK = ["--engine", "inline", "--rounds", "1", "--clients", "4", "--local-epochs", "1"]


def fedskew(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_the_command_prints_the_winners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["sweep", "fedprox", "--grid", "mu=1e-3..1:log", "--random", "2", "--confirm", "1", *QUICK]
    done = fedskew(*asked)
    assert done.exit_code == 0, done.output
    assert "fedprox" in done.stdout and "sweep.html has all trials" in done.stdout
    found = json.loads(fedskew(*asked, "--resume", "--json").stdout)
    assert found == json.loads(Path("runs/sweep-digits/sweep.json").read_text())
    assert len(found["methods"][0]["trials"]) == 2
    assert len(list(Path("runs/sweep-digits/confirmed").glob("*/record.jsonl"))) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedprox"], "nothing to vary"),
        (["fedprox", "--grid", "nu=1"], "neither a parameter"),
        (["fedprox", "--grid", "mu=1,2", "--validation", "0"], "evaluate.validation"),
        (["fedprox", "--grid", "mu=1,2", "--validation", "0.9"], "evaluate.validation"),
        (["fedprox", "--grid", "mu=1,2", "--seeds", "0"], "--seeds"),
        (["fedprox", "--grid", "mu=1,2", "--confirm", "-1"], "--confirm"),
        (["fedprox", "--grid", "mu=1,2", "--random", "3"], "has 2 trials"),
        (["fedprox", "--grid", "model=mlp,foo"], "no network is called 'foo'"),
        (["fedprox", "--grid", "augment=standard,flp"], "'flp' is unknown"),
        (["fedprox", "--grid", "clients_per_round=2,5"], "above 4"),
        (
            ["fedprox", "--grid", "model.weights=none,no.pt"],
            "model.weights is 'no.pt', which is neither here nor in the data folder",
        ),
        ([], "METHOD"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = fedskew("sweep", *arguments, *QUICK)
    assert done.exit_code == 2 and done.stdout == "" and said in done.stderr
    assert done.stderr.startswith("Error: ") and len(done.stderr.splitlines()) == 1
    assert not any(tmp_path.iterdir())
