"""Callbacks follow a run and may stop it; a stopped run resumes to the same bits."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedskew
from fedskew.core.progress import report
from fedskew.experiment import run as experiment
from fedskew.experiment import verification
from fedskew.experiment.callbacks import Callback, Run, StopRun, progress
from fedskew.record import reader
from fedskew.report import run_warnings
from tests.contract import harness

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "callbacks.md"


class Stop(Callback):
    """Stop after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, round: int, metrics: dict[str, Any]) -> None:
        if round == self.after:
            raise StopRun(f"round {round} was enough")


class Notes(Callback):
    """Note every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_start(self, run: Run) -> None:
        self.run = run
        self.calls.append(("start", run.name, run.planned_rounds, len(run.rounds)))

    def on_setup(self, round: int, setup: dict[str, Any]) -> None:
        self.calls.append(("setup", round, setup["part"]))

    def on_round(self, round: int, metrics: dict[str, Any]) -> None:
        assert metrics is self.run.rounds[-1] and self.run.state.round.index == round
        self.calls.append(("round", round))

    def on_message(self, text: str) -> None:
        self.calls.append(("message", text))

    def on_end(self, result: experiment.Result) -> None:
        self.calls.append(("end", len(result.rounds)))

    def on_error(self, error: BaseException) -> None:
        self.calls.append(("error", type(error).__name__))


def trained(folder: Path | None, *callbacks: Callback, method: str = "scaffold", **options: Any) -> experiment.Result:
    wanted = harness.config(method, rounds=4, **options)
    return experiment.run(wanted, folder, inputs=harness.inputs(), callbacks=callbacks)


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_runs_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = logging.getLogger("fedskew")
    monkeypatch.setattr(log, "level", log.level)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(compile(code, str(PAGE), "exec"), names)
    assert len(names["stopped"].rounds) < 20 == len(names["complete"].rounds)
    example = PAGE.read_text().split("class GoodEnough")[1].split("\n\n\n")[0]
    assert len(example.splitlines()) <= 5


def test_the_page_lists_every_method() -> None:
    listed = set(re.findall(r"^\| `(on_\w+)\(", PAGE.read_text(), re.M))
    assert listed == {name for name in vars(Callback) if name.startswith("on_")}


# ---- calls ----------------------------------------------------------------------------------------------------------


def test_callbacks_are_called_in_order(tmp_path: Path) -> None:
    notes = Notes()
    trained(tmp_path / "run", notes, method="fednoro(warmup=2)", clients_per_round=4)
    assert notes.calls[0] == ("start", "run", 4, 0)
    assert [call for call in notes.calls if call[0] == "round"] == [("round", n) for n in (1, 2, 3, 4)]
    assert [call[:2] for call in notes.calls if call[0] == "setup"] == [("setup", 3)]
    assert notes.calls[-1] == ("end", 4)


def test_an_error_reaches_the_callbacks(tmp_path: Path) -> None:
    notes = Notes()

    def fail(metrics: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trained(tmp_path / "run", harness.each_round(fail), notes)
    assert notes.calls == [("start", "run", 4, 0), ("error", "ZeroDivisionError")]
    assert reader.read(tmp_path / "run").end is None


# ---- stopping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_a_stopped_run_resumes_to_the_same_bits(engine: str, every: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"settings": ["partition.min_size=5", f"checkpoint.every={every}"], "engine": engine}
    options |= {"workers": 2} if engine == "pool" else {}
    complete = trained(tmp_path / "complete", **options)
    stopped = trained(tmp_path / "run", Stop(2), **options)
    assert len(stopped.rounds) == 2 and stopped.end["weights_sha256"] != complete.end["weights_sha256"]
    found = reader.read(tmp_path / "run")
    assert found.end is not None and found.end["stopped"] == "round 2 was enough" and found.note is None
    assert "stopped after round 2: round 2 was enough" in run_warnings.of(found)
    assert (tmp_path / "run" / "weights.safetensors").exists()
    notes = Notes()
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs(), callbacks=[notes])
    assert notes.calls[0] == ("start", "run", 4, 2 if every else 0)
    assert resumed.end["weights_sha256"] == complete.end["weights_sha256"]
    assert resumed.accuracy == complete.accuracy
    ends = [reader.read(tmp_path / name).end or {} for name in ("run", "complete")]
    assert ends[0].keys() == ends[1].keys() and "stopped" not in ends[0]


def test_a_stopped_run_is_verified(tmp_path: Path) -> None:
    trained(tmp_path / "run", Stop(2))
    found = verification.verify(tmp_path / "run", inputs=harness.inputs())
    assert found.difference is None and (found.first, found.last) == (1, 2)


def test_the_other_callbacks_see_the_round_that_stops(tmp_path: Path) -> None:
    before, after = Notes(), Notes()
    trained(tmp_path / "run", before, Stop(2), after)
    calls = [("round", 1), ("round", 2), ("message", "run: stopped after round 2: round 2 was enough"), ("end", 2)]
    assert before.calls[1:] == after.calls[1:] == calls


def test_a_stop_before_the_first_round_makes_none(tmp_path: Path) -> None:
    class Never(Callback):
        def on_start(self, run: Run) -> None:
            raise StopRun

    stopped = trained(tmp_path / "run", Never())
    assert not stopped.rounds and stopped.end["stopped"] == "Never"
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert resumed.end["weights_sha256"] == trained(None).end["weights_sha256"]


def test_a_stop_after_the_last_round_is_none(tmp_path: Path) -> None:
    assert "stopped" not in trained(tmp_path / "run", Stop(4)).end


def test_a_comparison_leaves_stopped_runs_as_they_are(tmp_path: Path) -> None:
    options: dict[str, Any] = {"config": harness.config(rounds=3), "data": harness.digits(), "out": tmp_path}
    first = fedskew.compare(["fedavg"], callbacks=[Stop(2)], **options)
    again = fedskew.compare(["fedavg", "fedprox"], resume=True, **options)
    assert len(first.results["fedavg"][0].rounds) == len(again.results["fedavg"][0].rounds) == 2
    assert len(again.results["fedprox"][0].rounds) == 3


# ---- progress -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "lines"), [(None, 0), (False, 0), (True, 3)])
def test_outside_a_terminal_progress_is_printed_on_request(
    wanted: bool | None, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fedskew.run(config=harness.config(), data=harness.digits(), progress=wanted)
    shown = capsys.readouterr()
    assert not shown.out and len(shown.err.splitlines()) == lines
    assert not lines or shown.err.startswith("fedavg, seed 0: round 1/3, accuracy ")


def test_a_notebook_rewrites_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def display(content: dict[str, str], **_: Any) -> Any:
        shown.append(content["text/plain"])
        return SimpleNamespace(update=display)

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    fedskew.run(config=harness.config(), data=harness.digits())
    assert shown[-1].startswith("fedavg, seed 0: round 3/3, accuracy ") and not capsys.readouterr().err


def test_a_bar_is_closed_before_engines_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a bar is shown it stands before standard error, and workers must not inherit that."""
    own = sys.stderr
    monkeypatch.setattr(own, "isatty", lambda: True)

    class Watch(Callback):
        def on_start(self, run: Run) -> None:
            assert sys.stderr is own

    with progress.showing() as bars:
        report("decoding images", 500, 1000, "images")
        assert sys.stderr is not own
        report("decoding images", 1000, 1000, "images")
        assert sys.stderr is own
        experiment.run(harness.config(), inputs=harness.inputs(), callbacks=[Watch(), *bars])
        assert sys.stderr is own
