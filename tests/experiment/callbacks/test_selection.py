"""The best model is chosen on samples held back, never on the test set; stopping and choosing survive a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew import api
from fedskew.config.schema import StopConfig
from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.experiment import run as experiment
from fedskew.experiment import verification
from fedskew.experiment.callbacks.selection import progress
from fedskew.models import weights
from fedskew.record import reader, run_dir
from fedskew.record.schema import RoundLine, ValidationScores
from tests.contract import harness

HELD = {"settings": ["partition.min_size=5", "evaluate.validation=0.25"]}


def line(number: int, value: float, *, counted: bool = True) -> RoundLine:
    found = ValidationScores(samples=9, accuracy=value, balanced_accuracy=value, macro_f1=value, loss=-value)
    return RoundLine(round=number, counted=counted, validation=found)


def after(*values: float, **stop: Any) -> tuple[int | None, int]:
    """The best round, and how many evaluated rounds were not better."""
    found = progress([line(number, value) for number, value in enumerate(values, 1)], StopConfig(**stop))
    return None if found.best is None else found.best.round, found.waited


def test_the_best_round_is_the_first_of_the_highest() -> None:
    assert after(0.2, 0.5, 0.5, 0.4) == (2, 2)
    assert after(0.2, 0.5, 0.6) == (3, 0)
    assert after() == (None, 0)


def test_of_loss_and_calibration_error_less_is_better() -> None:
    # the loss of a line is minus the value: 0.5 is best, and the lowest of the losses
    assert after(0.2, 0.5, 0.4, metric="loss") == (2, 1)


def test_patience_starts_anew_only_with_a_model_better_by_min_delta() -> None:
    # 0.55 exceeds 0.5, so it is the best; it does not exceed 0.5 + 0.1. Neither does 0.6: it is not more.
    assert after(0.5, 0.55, 0.6, min_delta=0.1) == (3, 2)
    assert after(0.5, 0.55, 0.61, min_delta=0.1) == (3, 0)


def test_a_value_that_is_no_number_is_never_best_but_waits() -> None:
    assert after(float("nan"), 0.1, float("nan")) == (2, 1)


def test_rounds_that_do_not_count_or_were_not_evaluated_change_nothing() -> None:
    lines = [line(1, 0.9, counted=False), RoundLine(round=2), line(3, 0.1)]
    found = progress(lines, StopConfig())
    assert found.best is not None and found.best.round == 3 and found.waited == 0


# ---- runs -----------------------------------------------------------------------------------------------------------


def config(*more: str, **options: Any) -> Any:
    return harness.config(**(options | {"settings": [*HELD["settings"], *more]}))


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> experiment.Result:
    """Twelve rounds with a learning rate at which the model gets worse again."""
    folder = tmp_path_factory.mktemp("chosen") / "run"
    return experiment.run(config(rounds=12, lr=0.2), folder, inputs=harness.inputs())


def test_both_are_scored_and_the_best_model_is_kept(chosen: experiment.Result) -> None:
    folder, best = chosen.folder, chosen.end.chosen
    assert folder is not None and best is not None
    values = [each.validation.balanced_accuracy for each in chosen.rounds if each.validation is not None]
    assert len(values) == 12 and best.value == max(values) and best.round == values.index(max(values)) + 1
    assert best.round < 12, "the test is only worth something if the last model is not the best"
    assert len(chosen.accuracy) == 12  # of the test set
    kept = weights.read(run_dir.model_of(folder))
    assert run_dir.model_of(folder).name == "best.safetensors"
    again = experiment.run(config(rounds=best.round, lr=0.2), inputs=harness.inputs())
    assert tree.digest(kept.tensors) == again.end["weights_sha256"]
    tested = [each for each in chosen.scores if each.on == "test" and each.model == "best"]
    assert tested[0].accuracy is not None and tested[0].accuracy.value == chosen.accuracy[best.round - 1]


def test_the_choice_does_not_see_the_test_set(chosen: experiment.Result) -> None:
    # with other test labels every test score changes, so a choice that looked at one would change, too
    other = replace(harness.digits(), test=replace(harness.digits().test, y=(harness.digits().test.y + 1) % 10))
    found = experiment.run(config("stop.patience=2", rounds=12, lr=0.2), inputs=experiment.RunInputs(source=other))
    same = experiment.run(config("stop.patience=2", rounds=12, lr=0.2), inputs=harness.inputs())
    assert found.accuracy != same.accuracy
    assert found.end.chosen == same.end.chosen and len(found.rounds) == len(same.rounds) < 12
    # and a test set that would prefer the last round does not move the choice to it
    last = chosen.weights
    assert last is not None
    context, state = harness.site_of(config(rounds=12, lr=0.2))
    logits = context.net(state.spec).frozen(last, context.view.eval(context.test.x)).logits
    friend = replace(harness.digits(), test=replace(harness.digits().test, y=logits.argmax(1)))
    befriended = experiment.run(config(rounds=12, lr=0.2), inputs=experiment.RunInputs(source=friend))
    assert befriended.last == 1.0 and befriended.end.best_round == 12
    assert befriended.end.chosen == chosen.end.chosen


def test_the_weights_without_stopping_are_those_of_training_on_the_rest(chosen: experiment.Result) -> None:
    blind = experiment.run(config("evaluate.test=false", rounds=12, lr=0.2), inputs=harness.inputs())
    assert blind.end["weights_sha256"] == chosen.end["weights_sha256"]
    assert "validation" not in blind.rounds[0] and "chosen" not in blind.end
    assert [each.validation.accuracy for each in chosen.rounds if each.validation] == blind.accuracy


def test_patience_stops_and_says_why(tmp_path: Path) -> None:
    found = experiment.run(config("stop.patience=2", rounds=12, lr=0.2), tmp_path / "run", inputs=harness.inputs())
    assert found.end.chosen is not None
    assert len(found.rounds) == found.end.chosen.round + 2 < 12
    assert found.end.stopped == "balanced_accuracy on the samples held back was not better in 2 evaluated rounds"
    again = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert len(again.rounds) == len(found.rounds) and again.end.stopped == found.end.stopped
    assert again.end.chosen == found.end.chosen and again.scores == found.scores


def test_a_run_with_a_chosen_model_is_verified_and_a_changed_one_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    experiment.run(config("stop.patience=2", rounds=12, lr=0.2), folder, inputs=harness.inputs())
    plan = verification.plan(folder, 1)
    assert verification.verify(folder, plan, inputs=harness.inputs()).difference is None
    model = weights.read(folder / "best.safetensors").tensors
    weights.save({name: t + 1 for name, t in model.items()}, folder / "best.safetensors")
    found = verification.verify(folder, plan, inputs=harness.inputs()).difference
    assert found is not None and found.startswith("best.safetensors: tensor ")


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "macro_auroc", "ece", "loss"])
def test_every_metric_can_choose_on_every_engine(metric: str) -> None:
    wanted = config(f"stop.metric={metric}", rounds=2)
    one, far = harness.finish(wanted), harness.finish(wanted, engine="wire")
    assert one.end.chosen is not None and one.end.chosen == far.end.chosen and one.scores == far.scores
    values = [each.validation[metric] for each in one.rounds if each.validation is not None]
    assert one.end.chosen.value == (min if metric in ("ece", "loss") else max)(values)


def test_f1_and_auroc_of_the_samples_held_back_are_those_of_their_predictions() -> None:
    from sklearn.metrics import f1_score, roc_auc_score

    found = experiment.run(config("stop.metric=macro_auroc", rounds=1), inputs=harness.inputs())
    context, state = harness.site_of(config(rounds=1))
    validation, last = context.validation, found.weights
    assert validation is not None and last is not None and found.rounds[0].validation is not None
    logits = context.net(state.spec).frozen(last, context.view.eval(validation.x)).logits.double()
    there = validation.y.unique().tolist()
    expected = f1_score(validation.y, logits.argmax(1), labels=there, average="macro", zero_division=0)
    assert found.rounds[0].validation.macro_f1 == pytest.approx(expected)
    areas = [roc_auc_score(validation.y == label, logits.softmax(1)[:, label]) for label in there]
    assert found.rounds[0].validation.macro_auroc == pytest.approx(sum(areas) / len(areas))


def test_stopping_needs_samples_held_back() -> None:
    with pytest.raises(UserError, match=r"stop\.patience is 3.*--validation 0\.2"):
        harness.config(settings=["stop.patience=3"])
    with pytest.raises(UserError, match=r"evaluate\.test is false.*--validation 0\.2"):
        harness.config(settings=["evaluate.test=false"])


def test_without_held_back_samples_nothing_is_chosen(tmp_path: Path) -> None:
    found = experiment.run(harness.config(rounds=1), tmp_path / "run", inputs=harness.inputs())
    assert "chosen" not in found.end and not (tmp_path / "run" / "best.safetensors").exists()
    assert run_dir.model_of(tmp_path / "run").name == "weights.safetensors"
    assert '"best"' not in (tmp_path / "run" / "checkpoint" / "manifest.json").read_text()


# ---- kill and resume ------------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
from pathlib import Path
from fedskew.experiment import run as experiment
from tests.contract import harness
from tests.experiment.callbacks.test_selection import config

folder, every, last = sys.argv[1:]

def die(line):
    if line["round"] == int(last):
        os.kill(os.getpid(), signal.SIGKILL)

wanted = config("stop.patience=3", f"checkpoint.every={every}", rounds=30, lr=0.2)
experiment.run(wanted, Path(folder), inputs=harness.inputs(), callbacks=[harness.each_round(die)])
"""


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_the_same_bits_after_a_kill(tmp_path: Path, every: int) -> None:
    whole = experiment.run(
        config("stop.patience=3", f"checkpoint.every={every}", rounds=30, lr=0.2),
        tmp_path / "whole",
        inputs=harness.inputs(),
    )
    assert whole.end.chosen is not None and whole.end.stopped is not None
    at = whole.end.chosen.round + 2  # the best model is made, and patience has begun to wait
    folder = tmp_path / "killed"
    killed = subprocess.run([sys.executable, "-c", SCRIPT, str(folder), str(every), str(at)], env=os.environ | _path())
    assert killed.returncode == -signal.SIGKILL and len(reader.read(folder).rounds) == at
    assert not (folder / "best.safetensors").exists()
    done = experiment.resume(folder, inputs=harness.inputs())
    assert done.end["weights_sha256"] == whole.end["weights_sha256"]
    assert done.end.chosen == whole.end.chosen and done.end.stopped == whole.end.stopped
    assert done.scores == whole.scores and len(done.rounds) == len(whole.rounds)
    assert (folder / "best.safetensors").read_bytes() == (tmp_path / "whole" / "best.safetensors").read_bytes()


def _path() -> dict[str, str]:
    root = Path(__file__).parents[3]
    return {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}


# ---- scores in the record -------------------------------------------------------------------------------------------


def test_scores_of_each_site_on_its_own_samples() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(120, 4), torch.arange(120) % 2
    x += 1.5 * y[:, None]
    given = sources.from_arrays(x, y, x, y, name="sites", sites=torch.arange(120) // 60, site_names=["north", "south"])
    given = replace(given, test=replace(given.test, sites=torch.arange(120) // 60, groups=torch.arange(120) // 2))
    wanted = api.configure(
        dataset="arrays", partition="natural", clients=2, rounds=2, model="mlp", engine="inline", lr=0.1
    )
    found = experiment.run(wanted, inputs=experiment.RunInputs(source=given))
    together, north, south = found.scores
    assert [each.client for each in found.scores] == [None, 0, 1] and together.samples == 120 == 2 * south.samples
    assert together.patients == 60 and north.patients == 30
    assert together.accuracy is not None and together.accuracy.value == found.last
    assert north.accuracy is not None and south.accuracy is not None
    assert (north.accuracy.value + south.accuracy.value) / 2 == pytest.approx(together.accuracy.value)
    assert north.accuracy.high - north.accuracy.low > together.accuracy.high - together.accuracy.low


def test_details_of_each_round_on_request_change_nothing_else() -> None:
    plain = experiment.run(harness.config(rounds=2), inputs=harness.inputs())
    found = experiment.run(
        harness.config(rounds=2, settings=["partition.min_size=5", "evaluate.details=true"]), inputs=harness.inputs()
    )
    assert [len(each.scores) for each in found.rounds] == [1, 1] and found.rounds[-1].scores == plain.scores
    assert found.end["weights_sha256"] == plain.end["weights_sha256"] and found.accuracy == plain.accuracy
    assert "scores" not in plain.rounds[0]
