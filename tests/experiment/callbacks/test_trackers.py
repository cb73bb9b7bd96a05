"""Trackers get each number of the record once. Their packages come with the extra `track`: `make test-track`."""

from __future__ import annotations

import calendar
import json
import math
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedskew import api
from fedskew.cli import main
from fedskew.core.errors import UserError
from fedskew.experiment import run as experiment
from fedskew.experiment.callbacks import trackers
from fedskew.record import reader
from fedskew.record.schema import EndLine, HeaderLine, RoundLine
from fedskew.record.writer import encode
from tests.contract import harness

# ---- what is passed on, seen by a sink of our own -------------------------------------------------------------------


def test_numbers_of_a_line_have_names_with_their_classes() -> None:
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
        "memorization": {"true": 0.75, "flipped_true": None},
        "clients": [{"client": 0, "accuracy_all": 0.5}],
    }
    assert trackers.numbers(line, ("cat", "Sci/Tech")) == {
        "loss": 0.5,
        "up": 12.0,
        "recall/0 cat": 1.0,
        "recall/1 Sci_Tech": 0.25,
        "memorization/true": 0.75,
    }


@pytest.mark.parametrize(
    ("p", "shown"),
    [(0.0104, "verdict: noisy (p = 0.010); "), (None, "verdict: noisy; "), (math.nan, "verdict: noisy;")],
)
def test_a_verdict_is_one_line(p: float | None, shown: str) -> None:
    said = {"judgment": {"verdict": "noisy", "p_value": p}, "noisy": [1, 4], "explained_by_shift": []}
    assert trackers.verdict(said).startswith(shown)
    assert trackers.verdict(said).endswith("noisy: 1, 4; only looks different: nobody")


class Notes:
    """A tracker that stores what it receives."""

    package, place, advice = "json", "notes", "Sharpen the pencil"
    reachable = True
    #: the round from which on nothing can be written
    breaks_at = math.inf

    @classmethod
    def reach(cls) -> None:
        if not cls.reachable:
            raise ConnectionError("nobody there")

    def __init__(self, folder: Path) -> None:
        (folder / self.place).touch()
        self.parameters_given: dict[str, str] = {}
        self.diagnostics: list[tuple[int, dict[str, float]]] = []
        self.texts: list[tuple[str, int, str]] = []
        self.at: list[float] = []
        self.finished: bool | None = None
        OPENED.append(self)

    def parameters(self, values: Any) -> None:
        self.parameters_given |= values

    def numbers(self, step: int, at: float, values: Any) -> None:
        if step >= self.breaks_at:
            raise Exception("the pencil broke\nin two")
        self.diagnostics.append((step, dict(values)))
        self.at.append(at)

    def text(self, name: str, step: int, said: str) -> None:
        self.texts.append((name, step, said))

    def close(self, finished: bool) -> None:
        self.finished = finished


OPENED: list[Notes] = []


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Notes]:
    monkeypatch.setitem(trackers.SINKS, "notes", Notes)  # type: ignore[arg-type]
    OPENED.clear()
    return OPENED


def in_record(folder: Path) -> list[tuple[int, dict[str, float]]]:
    run = reader.read(folder)
    labels = run.header["data"]["labels"]
    rounds = [(line["round"], trackers.numbers(line, labels)) for line in run.rounds]
    if run.end is None:
        return rounds
    return [*rounds, (run.end["rounds"], {f"end/{k}": v for k, v in trackers.numbers(run.end, labels).items()})]


def test_a_tracker_gets_every_line_of_the_record_once_and_in_time(notes: list[Notes], tmp_path: Path) -> None:
    seen = []

    def progress(line: dict[str, Any]) -> None:
        seen.append((line["round"], len(notes[0].diagnostics)))

    callbacks = [trackers.Tracker("notes"), harness.each_round(progress)]
    experiment.run(harness.config(), tmp_path / "run", inputs=harness.inputs(), callbacks=callbacks)
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert notes[0].diagnostics == in_record(tmp_path / "run")
    assert notes[0].diagnostics[1][1]["accuracy"] == reader.read(tmp_path / "run").rounds[1]["accuracy"]
    assert notes[0].parameters_given["local.lr"] == "0.05" and "clients_per_round" in notes[0].parameters_given
    assert notes[0].at == sorted(notes[0].at) and notes[0].finished
    assert len(notes) == 1


def test_an_interrupted_run_is_tracked_from_its_record(notes: list[Notes], tmp_path: Path) -> None:
    def cut(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    callbacks = [trackers.Tracker("notes"), harness.each_round(cut)]
    with pytest.raises(KeyboardInterrupt):
        experiment.run(harness.config(), tmp_path / "run", inputs=harness.inputs(), callbacks=callbacks)
    assert notes[0].finished is False and [step for step, _ in notes[0].diagnostics] == [1, 2]
    assert [type(each) for each in trackers.used(tmp_path / "run")] == [trackers.Tracker]
    api.resume(tmp_path / "run", data=harness.digits())  # which finds the tracker by itself
    assert [step for step, _ in notes[1].diagnostics] == [1, 2, 3, 3]
    assert notes[1].diagnostics == in_record(tmp_path / "run") and notes[1].finished


def test_detection_is_passed_on_as_text(notes: list[Notes], tmp_path: Path) -> None:
    done = harness.finish(harness.config("fednoro(warmup=1)", clients_per_round=4), out=tmp_path / "run")
    assert trackers.export(tmp_path / "run", "notes") == len(done.rounds)
    (name, step, said), *others = notes[0].texts
    assert (name, step, others) == ("detection", done.setups[0]["round"], [])
    assert said.startswith(f"verdict: {done.setups[0]['verdict']['judgment']['verdict']}")


# ---- trackers that fail ---------------------------------------------------------------------------------------------


def test_a_tracker_that_fails_gives_one_warning_and_the_run_continues(
    notes: list[Notes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Notes, "breaks_at", 2)
    done = api.run(config=harness.config(), data=harness.digits(), out=tmp_path / "run", track="notes")
    assert len(done.rounds) == 3 and reader.read(tmp_path / "run").end is not None
    (said,) = caplog.messages
    assert said.startswith("notes does not take the numbers (the pencil broke). Sharpen the pencil. ")
    assert said.endswith(f"fedskew track {tmp_path / 'run'} --to notes")
    assert [step for step, _ in notes[0].diagnostics] == [1] and len(notes) == 1
    export = CliRunner().invoke(main, ["track", str(tmp_path / "run"), "--to", "notes"])
    assert export.exit_code == 2 and export.stderr.startswith("Error: notes does not take the numbers")
    monkeypatch.setattr(Notes, "breaks_at", math.inf)
    assert trackers.export(tmp_path / "run", "notes") == 3
    assert notes[-1].diagnostics == in_record(tmp_path / "run") and notes[-1].finished


def test_a_tracker_out_of_reach_is_refused_before_anything_is_trained(
    notes: list[Notes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notes, "reachable", False)
    asked: Any = {"config": harness.config(), "data": harness.digits(), "out": tmp_path / "run", "track": "notes"}
    for begin in (api.run, lambda **options: api.compare(["fedavg"], **options)):
        with pytest.raises(UserError, match=r"notes does not take the numbers \(nobody there\)\. Sharpen the pencil"):
            begin(**asked)
    assert not notes and not (tmp_path / "run").exists()


def test_a_run_whose_tracker_is_gone_can_be_resumed(
    notes: list[Notes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    api.run(config=harness.config(rounds=1), data=harness.digits(), out=out, track="notes")
    monkeypatch.setattr(Notes, "reachable", False)
    assert len(api.resume(out, data=harness.digits(), rounds=2).rounds) == 2
    (said,) = caplog.messages
    assert said.startswith("notes does not take the numbers (nobody there)")
    caplog.clear()
    monkeypatch.setattr(Notes, "package", "no_such_package")
    assert len(api.resume(out, data=harness.digits(), rounds=3).rounds) == 3
    assert "needs a package that is not installed" in caplog.text
    caplog.clear()
    assert len(api.resume(out, data=harness.digits(), track="none").rounds) == 3
    assert not caplog.messages
    with pytest.raises(UserError, match="not installed"):
        api.resume(out, data=harness.digits(), track="notes")  # which was asked for
    assert len(notes) == 1


def test_tail_reads_whole_lines_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    assert reader.tail(path, 0) == ([], 0)
    first, second = encode(RoundLine(round=1)), encode(RoundLine(round=2))
    path.write_bytes(encode(HeaderLine()) + first + second[:20])
    lines, offset = reader.tail(path)
    assert [line.kind for line in lines] == ["header", "round"] and offset == len(encode(HeaderLine()) + first)
    assert reader.tail(path, offset) == ([], offset)
    with path.open("ab") as file:
        file.write(second[20:] + b"nonsense\n" + encode(EndLine()))
    assert reader.tail(path, offset) == ([RoundLine(round=2)], offset + len(second))


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_mistakes_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"track 'tensorbord' is unknown. Did you mean 'tensorboard'\?"):
        api.run(rounds=1, out=tmp_path / "run", track="tensorbord")
    monkeypatch.setattr(trackers.TensorBoard, "package", "no_such_package")
    with pytest.raises(UserError, match=r"needs a package that is not installed. Type: pip install 'fedskew\[track\]'"):
        api.run(rounds=1, out=tmp_path / "run", track="tensorboard")
    assert not any(tmp_path.iterdir())


def test_without_a_folder_there_is_no_record_to_pass_on(notes: list[Notes]) -> None:
    with pytest.raises(UserError, match="the run has none"):
        api.run(rounds=1, track="notes")


def test_a_folder_without_record_cannot_be_exported(notes: list[Notes], tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["track", str(tmp_path), "--to", "notes"])
    assert result.exit_code == 2 and "cannot be read" in result.stderr and len(result.stderr.splitlines()) == 1
    assert not notes


def test_a_record_is_named_by_its_folder(notes: list[Notes], tmp_path: Path) -> None:
    api.run(rounds=1, out=tmp_path / "run")
    result = CliRunner().invoke(main, ["track", str(tmp_path / "run" / reader.NAME), "--to", "notes"])
    assert result.exit_code == 2 and "is a file. Name the run folder" in result.stderr
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
    """A resumed run whose record is behind its tracker: the second round is made twice."""

    def cut(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    config = harness.config(settings=["partition.min_size=5", "checkpoint.every=3"])
    with pytest.raises(KeyboardInterrupt):
        callbacks = [trackers.Tracker(kind), harness.each_round(cut)]
        experiment.run(config, folder, inputs=harness.inputs(), callbacks=callbacks)
    api.resume(folder, data=harness.digits())
    assert len(reader.read(folder).rounds) == 3


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
    trackers.export(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    (only,) = client.search_runs([client.get_experiment_by_name("fedskew").experiment_id])
    assert only.info.status == "FINISHED" and only.info.run_name == "run"
    assert only.data.params["method"] == "fedavg"
    found = {
        name: [(m.step, m.value) for m in client.get_metric_history(only.info.run_id, name)]
        for name in only.data.metrics
    }
    took = found.pop("seconds")
    assert [step for step, _ in took] == [1, 2, 3]
    run = [json.loads(line) for line in (tmp_path / "run" / reader.NAME).read_text().splitlines()]
    assert took[2][1] == run[3]["seconds"]  # the others were measured before the interruption
    ended = found.pop("end/seconds")
    assert ended == [(3, run[-1]["seconds"])]
    agree(found | {"seconds": [(line["round"], line["seconds"]) for line in run[1:4]], "end/seconds": ended},
          tmp_path / "run", 1e-12)  # fmt: skip


def wandb_records(folder: Path) -> Iterator[Any]:
    """The records of an offline run: framed as LevelDB's log, in blocks of 32 KiB after seven bytes."""
    from wandb.proto import wandb_internal_pb2

    (path,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    content, at, whole = path.read_bytes(), 7, b""
    while at < len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def items(updates: Any) -> dict[str, Any]:
    return {"/".join(each.nested_key) or each.key: json.loads(each.value_json) for each in updates}


@pytest.mark.slow
def test_wandb_has_the_records_numbers_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install 'fedskew[track]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    out = tmp_path / "run"
    interrupted_and_resumed(out, "wandb")
    trackers.export(out, "wandb")  # which writes the same files again
    records = list(wandb_records(out))
    waiting = time.monotonic() + 20
    while not (records and records[-1].HasField("exit")) and time.monotonic() < waiting:
        time.sleep(0.1)  # wandb's own process writes the file, a little later
        records = list(wandb_records(out))
    rounds = [items(record.history.item) for record in records if record.HasField("history")]
    *expected, (_, ended) = in_record(out)
    assert [line.pop("_step") for line in rounds] == [step for step, _ in expected] == [1, 2, 3]
    times = [line.pop("_timestamp") for line in rounds]
    assert times == sorted(times) and times[-1] < times[0] + 600  # of the record, not of the export
    assert (
        abs(times[0] - calendar.timegm(time.strptime(str(reader.read(out).header.started), "%Y-%m-%dT%H:%M:%SZ"))) < 60
    )
    for line, (_, values) in zip(rounds, expected, strict=True):
        assert {name: value for name, value in line.items() if name != "_runtime"} == pytest.approx(values, nan_ok=True)
    summary = {
        k: v for record in records if record.HasField("summary") for k, v in items(record.summary.update).items()
    }
    assert {name: summary[name] for name in ended} == pytest.approx(ended)
    (run,) = (record.run for record in records if record.HasField("run"))
    settings = {k: v for record in records for k, v in items(record.config.update).items()}
    assert (run.project, run.display_name, settings["method"]) == ("fedskew", "run", "fedavg")
    beside = [record.environment for record in records if record.HasField("environment")]
    assert not any(each.git.remote_url or each.email or each.cpu_count or each.HasField("disk") for each in beside)


def test_wandb_without_a_login_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install 'fedskew[track]'")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(UserError, match=r"nobody is logged in at api\.wandb\.ai.*or set WANDB_MODE=offline"):
        trackers.check("wandb")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    trackers.check("wandb")


@pytest.mark.slow
def test_an_mlflow_that_cannot_write_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    pytest.importorskip("mlflow")
    harness.finish(harness.config(rounds=1), out=tmp_path / "run")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(UserError, match="Set MLFLOW_TRACKING_URI to a server"):
        trackers.export(tmp_path / "run", "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # no server listens there
    with pytest.raises(UserError, match=r"Connection refused.*Set MLFLOW_TRACKING_URI to a server"):
        api.run(config=harness.config(rounds=1), data=harness.digits(), out=tmp_path / "other", track="mlflow")
    assert not (tmp_path / "other").exists() and "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ


@pytest.mark.slow
def test_an_mlflow_folder_that_vanishes_costs_no_round_and_is_caught_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, out = tmp_path / "mlruns", tmp_path / "run"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    mlflow = pytest.importorskip("mlflow")

    def vanish(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            store.rename(tmp_path / "unplugged")

    asked: Any = {"data": harness.digits(), "out": out, "track": "mlflow", "callbacks": [harness.each_round(vanish)]}
    assert len(api.run(config=harness.config(), **asked).rounds) == 3
    for _ in range(2):
        said = [record.getMessage() for record in caplog.records if record.name == "fedskew"]
        caplog.clear()
        assert len(said) == 1 and said[0].endswith(f"fedskew track {out} --to mlflow")
        assert len(api.resume(out, data=harness.digits(), rounds=4).rounds) == 4
    (tmp_path / "unplugged").rename(store)
    assert trackers.export(out, "mlflow") == 4
    client = mlflow.MlflowClient()
    (only,) = client.search_runs([client.get_experiment_by_name("fedskew").experiment_id])
    assert [m.step for m in client.get_metric_history(only.info.run_id, "accuracy")] == [1, 2, 3, 4]
