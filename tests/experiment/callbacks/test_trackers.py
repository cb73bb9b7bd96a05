"""Trackers get the record's numbers, each once. Their packages come with the extra `track`: `make test-track`."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedskew import experiment, face, record, track
from fedskew.cli import main
from fedskew.errors import UserError
from tests.contract import harness

# ---- what is passed on, seen by a sink of our own -------------------------------------------------------------------


def test_numbers_of_a_line_keep_their_names_and_classes_are_told_apart() -> None:
    line = {
        "kind": "round",
        "round": 4,
        "counted": True,
        "clients_asked": [0, 2],
        "late": [1, 3],
        "loss": 0.5,
        "up": 12,
        "lr": None,
        "recall": [1.0, 0.25],
        "memorisation": {"true": 0.75, "flipped_true": None},
        "clients": [{"client": 0, "accuracy_all": 0.5}],
    }
    assert track.numbers(line, ("cat", "Sci/Tech")) == {
        "loss": 0.5,
        "up": 12.0,
        "recall/0 cat": 1.0,
        "recall/1 Sci_Tech": 0.25,
        "memorisation/true": 0.75,
    }


@pytest.mark.parametrize(
    ("p", "shown"),
    [(0.0104, "verdict: noisy (p = 0.010); "), (None, "verdict: noisy; "), (math.nan, "verdict: noisy;")],
)
def test_a_verdict_is_one_line(p: float | None, shown: str) -> None:
    said = {"judgement": {"verdict": "noisy", "p_value": p}, "noisy": [1, 4], "explained_by_shift": []}
    assert track.verdict(said).startswith(shown)
    assert track.verdict(said).endswith("noisy: 1, 4; only looks different: nobody")


class Notes:
    """A tracker that keeps what it is told."""

    package, place, advice = "json", "notes", "sharpen the pencil"
    reachable = True
    #: the round from which on nothing can be written
    breaks_at = math.inf

    @classmethod
    def reach(cls) -> None:
        if not cls.reachable:
            raise ConnectionError("nobody there")

    def __init__(self, folder: Path) -> None:
        (folder / self.place).touch()
        self.parameters_told: dict[str, str] = {}
        self.told: list[tuple[int, dict[str, float]]] = []
        self.texts: list[tuple[str, int, str]] = []
        self.at: list[float] = []
        self.finished: bool | None = None
        OPENED.append(self)

    def parameters(self, values: Any) -> None:
        self.parameters_told |= values

    def numbers(self, step: int, at: float, values: Any) -> None:
        if step >= self.breaks_at:
            raise Exception("the pencil broke\nin two")
        self.told.append((step, dict(values)))
        self.at.append(at)

    def text(self, name: str, step: int, said: str) -> None:
        self.texts.append((name, step, said))

    def close(self, finished: bool) -> None:
        self.finished = finished


OPENED: list[Notes] = []


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Notes]:
    monkeypatch.setitem(track.SINKS, "notes", Notes)  # type: ignore[arg-type]
    OPENED.clear()
    return OPENED


def in_record(folder: Path) -> list[tuple[int, dict[str, float]]]:
    run = record.read(folder)
    labels = run.header["data"]["labels"]
    rounds = [(line["round"], track.numbers(line, labels)) for line in run.rounds]
    if run.end is None:
        return rounds
    return [*rounds, (run.end["rounds"], {f"end/{k}": v for k, v in track.numbers(run.end, labels).items()})]


def test_a_tracker_hears_every_line_of_the_record_once_and_in_time(notes: list[Notes], tmp_path: Path) -> None:
    heard = []

    def progress(line: dict[str, Any]) -> None:
        heard.append((line["round"], len(notes[0].told)))

    with track.following("notes", tmp_path / "run", progress) as advance:
        experiment.run(harness.config(), tmp_path / "run", given=harness.given(), progress=advance)
    assert heard == [(0, 1), (1, 2), (2, 3)]
    assert notes[0].told == in_record(tmp_path / "run")
    assert notes[0].told[1][1]["accuracy"] == record.read(tmp_path / "run").rounds[1]["accuracy"]
    assert notes[0].parameters_told["local.lr"] == "0.05" and "per_round" in notes[0].parameters_told
    assert notes[0].at == sorted(notes[0].at) and notes[0].finished
    assert len(notes) == 1


def test_a_run_cut_off_and_gone_on_with_is_told_from_its_record(notes: list[Notes], tmp_path: Path) -> None:
    def cut(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), track.following("notes", tmp_path / "run", cut) as advance:
        experiment.run(harness.config(), tmp_path / "run", given=harness.given(), progress=advance)
    assert notes[0].finished is False and [step for step, _ in notes[0].told] == [0, 1]
    assert track.used(tmp_path / "run") == "notes"
    face.resume(tmp_path / "run", data=harness.digits())  # which finds the tracker by itself
    assert [step for step, _ in notes[1].told] == [0, 1, 2, 3]
    assert notes[1].told == in_record(tmp_path / "run") and notes[1].finished


def test_detection_is_passed_on_as_text(notes: list[Notes], tmp_path: Path) -> None:
    done = harness.finish(harness.config("fednoro(warmup=1)", per_round=4), out=tmp_path / "run")
    assert track.export(tmp_path / "run", "notes") == len(done.rounds)
    (name, step, said), *others = notes[0].texts
    assert (name, step, others) == ("detection", done.doors[0]["round"], [])
    assert said.startswith(f"verdict: {done.doors[0]['verdict']['judgement']['verdict']}")


# ---- trackers that fail ---------------------------------------------------------------------------------------------


def test_a_tracker_that_fails_on_the_way_is_one_warning_and_the_run_goes_on(
    notes: list[Notes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Notes, "breaks_at", 1)
    done = face.run(config=harness.config(), data=harness.digits(), out=tmp_path / "run", track="notes")
    assert len(done.rounds) == 3 and record.read(tmp_path / "run").end is not None
    said = capsys.readouterr().err
    assert said.startswith("Warning: notes does not take the numbers (the pencil broke); sharpen the pencil. ")
    assert said.endswith(f"fedskew track {tmp_path / 'run'} --to notes\n") and said.count("\n") == 1
    assert [step for step, _ in notes[0].told] == [0] and len(notes) == 1
    export = CliRunner().invoke(main, ["track", str(tmp_path / "run"), "--to", "notes"])
    assert export.exit_code == 2 and export.stderr.startswith("Error: notes does not take the numbers")
    monkeypatch.setattr(Notes, "breaks_at", math.inf)
    assert track.export(tmp_path / "run", "notes") == 3
    assert notes[-1].told == in_record(tmp_path / "run") and notes[-1].finished


def test_a_tracker_out_of_reach_is_told_before_anything_is_trained(
    notes: list[Notes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notes, "reachable", False)
    asked: Any = {"config": harness.config(), "data": harness.digits(), "out": tmp_path / "run", "track": "notes"}
    for begin in (face.run, lambda **options: face.compare(["fedavg"], **options)):
        with pytest.raises(UserError, match=r"notes does not take the numbers \(nobody there\); sharpen the pencil"):
            begin(**asked)
    assert not notes and not (tmp_path / "run").exists()


def test_a_run_whose_tracker_is_gone_can_be_gone_on_with(
    notes: list[Notes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    face.run(config=harness.config(rounds=1), data=harness.digits(), out=out, track="notes")
    monkeypatch.setattr(Notes, "reachable", False)
    assert len(face.resume(out, data=harness.digits(), rounds=2).rounds) == 2
    said = capsys.readouterr().err
    assert said.startswith("Warning: notes does not take the numbers (nobody there)") and said.count("\n") == 1
    monkeypatch.setattr(Notes, "package", "no_such_package")
    assert len(face.resume(out, data=harness.digits(), rounds=3).rounds) == 3
    assert "needs a package that is not installed" in capsys.readouterr().err
    assert len(face.resume(out, data=harness.digits(), track="none").rounds) == 3
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match="not installed"):
        face.resume(out, data=harness.digits(), track="notes")  # which was asked for
    assert len(notes) == 1


def test_tail_reads_whole_lines_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    assert record.tail(path, 0) == ([], 0)
    path.write_bytes(b'{"kind":"header"}\n{"kind":"round","round":0}\n{"kind":"rou')
    lines, offset = record.tail(path)
    assert [line["kind"] for line in lines] == ["header", "round"] and offset == 18 + 27
    assert record.tail(path, offset) == ([], offset)
    with path.open("ab") as file:
        file.write(b'nd","round":1}\nnonsense\n{"kind":"end"}\n')
    assert record.tail(path, offset) == ([{"kind": "round", "round": 1}], offset + 27)


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_mistakes_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"track 'tensorbord' is unknown; did you mean 'tensorboard'\?"):
        face.run(rounds=1, out=tmp_path / "run", track="tensorbord")
    monkeypatch.setattr(track.TensorBoard, "package", "no_such_package")
    with pytest.raises(UserError, match=r"needs a package that is not installed: pip install 'fedskew\[track\]'"):
        face.run(rounds=1, out=tmp_path / "run", track="tensorboard")
    assert not any(tmp_path.iterdir())


def test_without_a_folder_there_is_no_record_to_pass_on(notes: list[Notes]) -> None:
    with pytest.raises(UserError, match="the run has none"):
        face.run(rounds=1, track="notes")


def test_a_folder_without_record_cannot_be_exported(notes: list[Notes], tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["track", str(tmp_path), "--to", "notes"])
    assert result.exit_code == 2 and "cannot be read" in result.stderr and len(result.stderr.splitlines()) == 1
    assert not notes


def test_a_record_is_named_by_its_folder(notes: list[Notes], tmp_path: Path) -> None:
    face.run(rounds=1, out=tmp_path / "run")
    result = CliRunner().invoke(main, ["track", str(tmp_path / "run" / record.NAME), "--to", "notes"])
    assert result.exit_code == 2 and "is a file; name the run's folder" in result.stderr
    assert not notes


# ---- the real ones --------------------------------------------------------------------------------------------------


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads, doubles included."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "tensorboard").iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0]))
                else:
                    found.setdefault(value.tag, []).append((event.step, math.nan))
    return found


def agree(found: dict[str, list[tuple[int, float]]], folder: Path, digits: float) -> None:
    expected: dict[str, list[tuple[int, float]]] = {}
    for step, values in in_record(folder):
        for name, value in values.items():
            expected.setdefault(name, []).append((step, value))
    assert expected.keys() == found.keys()
    for name, pairs in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in pairs], name
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in pairs], digits, nan_ok=True)


def interrupted_and_resumed(folder: Path, kind: str) -> None:
    """A run whose record is behind its tracker when it goes on: the second round is done twice."""

    def cut(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            raise KeyboardInterrupt

    config = harness.config(settings=["partition.min_size=5", "checkpoint.every=3"])
    with pytest.raises(KeyboardInterrupt), track.following(kind, folder, cut) as advance:
        experiment.run(config, folder, given=harness.given(), progress=advance)
    face.resume(folder, data=harness.digits())
    assert len(record.read(folder).rounds) == 3


@pytest.mark.slow
def test_tensorboard_has_the_records_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    interrupted_and_resumed(tmp_path / "run", "tensorboard")
    found = scalars(tmp_path / "run")
    assert len(found.pop("config/text_summary")) == 1
    agree(found, tmp_path / "run", 1e-6)  # events are float32
    result = CliRunner().invoke(main, ["track", str(tmp_path / "run"), "--to", "tensorboard"])
    assert result.exit_code == 0 and result.stdout.startswith("3 rounds of ")
    again = scalars(tmp_path / "run")
    again.pop("config/text_summary")
    agree(again, tmp_path / "run", 1e-6)


@pytest.mark.slow
def test_mlflow_has_the_records_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    mlflow = pytest.importorskip("mlflow")
    interrupted_and_resumed(tmp_path / "run", "mlflow")
    track.export(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    (only,) = client.search_runs([client.get_experiment_by_name("fedskew").experiment_id])
    assert only.info.status == "FINISHED" and only.info.run_name == "run"
    assert only.data.params["method"] == "fedavg"
    found = {
        name: [(m.step, m.value) for m in client.get_metric_history(only.info.run_id, name)]
        for name in only.data.metrics
    }
    took = found.pop("seconds")
    assert [step for step, _ in took] == [0, 1, 2]
    run = [json.loads(line) for line in (tmp_path / "run" / record.NAME).read_text().splitlines()]
    assert took[2][1] == run[3]["seconds"]  # the others were measured before the interruption
    ended = found.pop("end/seconds")
    assert ended == [(3, run[-1]["seconds"])]
    agree(found | {"seconds": [(line["round"], line["seconds"]) for line in run[1:4]], "end/seconds": ended},
          tmp_path / "run", 1e-12)  # fmt: skip


@pytest.mark.slow
def test_an_mlflow_that_cannot_write_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    pytest.importorskip("mlflow")
    harness.finish(harness.config(rounds=1), out=tmp_path / "run")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(UserError, match="set MLFLOW_TRACKING_URI to a server"):
        track.export(tmp_path / "run", "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # where nobody listens
    with pytest.raises(UserError, match=r"Connection refused.*set MLFLOW_TRACKING_URI to a server"):
        face.run(config=harness.config(rounds=1), data=harness.digits(), out=tmp_path / "other", track="mlflow")
    assert not (tmp_path / "other").exists() and "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ


@pytest.mark.slow
def test_an_mlflow_folder_that_vanishes_costs_no_round_and_is_caught_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = tmp_path / "mlruns", tmp_path / "run"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    mlflow = pytest.importorskip("mlflow")

    def vanish(line: dict[str, Any]) -> None:
        if line["round"] == 0:
            store.rename(tmp_path / "unplugged")

    asked: Any = {"data": harness.digits(), "out": out, "track": "mlflow", "progress": vanish}
    assert len(face.run(config=harness.config(), **asked).rounds) == 3
    for _ in range(2):
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Warning")]
        assert len(said) == 1 and said[0].endswith(f"fedskew track {out} --to mlflow")
        assert len(face.resume(out, data=harness.digits(), rounds=4).rounds) == 4
    (tmp_path / "unplugged").rename(store)
    assert track.export(out, "mlflow") == 4
    client = mlflow.MlflowClient()
    (only,) = client.search_runs([client.get_experiment_by_name("fedskew").experiment_id])
    assert [m.step for m in client.get_metric_history(only.info.run_id, "accuracy")] == [0, 1, 2, 3]
