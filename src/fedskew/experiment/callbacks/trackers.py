"""A run's numbers where people already look: TensorBoard, MLflow. The record stays the source of all of them."""

from __future__ import annotations

import calendar
import contextlib
import importlib.util
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedskew import record
from fedskew.errors import UserError, nearest
from fedskew.names import printable

Progress = Callable[[dict[str, Any]], None]
NONE = "none"
#: lists of clients, which may be as many as classes
_WHO = ("asked", "clients_asked", "late")


class Sink(Protocol):
    """Where numbers go; `at` is in seconds since 1970."""

    def parameters(self, values: Mapping[str, str]) -> None: ...
    def numbers(self, step: int, at: float, values: Mapping[str, float]) -> None: ...
    def text(self, name: str, step: int, said: str) -> None: ...
    def close(self, finished: bool) -> None: ...


class TensorBoard:
    """Event files in the run's folder, written anew from the record whenever a run is begun or gone on with."""

    package, place = "tensorboard", "tensorboard"
    advice = "see whether the run's folder can be written to"

    @staticmethod
    def reach() -> None:
        """Nothing is needed but the run's folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for old in (folder / self.place).glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder / self.place))

    def parameters(self, values: Mapping[str, str]) -> None:
        lines = [f"| {name} | {value} |" for name, value in values.items()]
        self._writer.add_text("config", "\n".join(["| key | value |", "|---|---|", *lines]))

    def numbers(self, step: int, at: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=at)
        self._writer.flush()

    def text(self, name: str, step: int, said: str) -> None:
        self._writer.add_text(name, said, step)

    def close(self, finished: bool) -> None:
        del finished
        self._writer.close()


class MLflow:
    """A run of MLflow, whose number is kept in the run's folder; what it has already is not logged again."""

    package, place = "mlflow", "mlflow-run.txt"
    advice = "set MLFLOW_TRACKING_URI to a server, or to a folder together with MLFLOW_ALLOW_FILE_STORE=true"

    @staticmethod
    def reach() -> None:
        """Ask for something, to see whether anybody answers; usually MLflow would try for minutes."""
        import mlflow

        hasty = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
        unset = hasty.keys() - os.environ.keys()
        os.environ.update({name: hasty[name] for name in unset})
        try:
            mlflow.MlflowClient().search_experiments(max_results=1)
        finally:
            for name in unset:
                del os.environ[name]

    def __init__(self, folder: Path) -> None:
        import mlflow

        self.reach()
        self._client = mlflow.MlflowClient()
        self._run = self._found(folder) or self._made(folder)
        logged = self._client.get_run(self._run).data.metrics
        self._done = {(n, m.step) for n in logged for m in self._client.get_metric_history(self._run, n)}

    def _found(self, folder: Path) -> str | None:
        with contextlib.suppress(Exception):  # another server may not have it, and a folder says so with any of them
            number = (folder / self.place).read_text().strip()
            self._client.update_run(number, "RUNNING")
            return number
        return None

    def _made(self, folder: Path) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedskew")
        experiment = self._client.get_experiment_by_name(name)
        owner = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        number = str(self._client.create_run(owner, run_name=folder.resolve().name).info.run_id)
        (folder / self.place).write_text(number + "\n")
        return number

    def parameters(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        self._client.log_batch(self._run, params=[Param(name, value[:6000]) for name, value in values.items()])

    def numbers(self, step: int, at: float, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        fresh = [Metric(n, v, int(1000 * at), step) for n, v in values.items() if (n, step) not in self._done]
        for start in range(0, len(fresh), 1000):  # more are refused
            self._client.log_batch(self._run, metrics=fresh[start : start + 1000])

    def text(self, name: str, step: int, said: str) -> None:
        self._client.log_text(self._run, said, f"{name}/round-{step}.txt")

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


SINKS: dict[str, type[TensorBoard] | type[MLflow]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


class Follower:
    """Passes on what is new in the record of the run in a folder."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._sink: Sink | None = None
        self._offset, self._clock = 0, 0.0
        self._labels: Sequence[str] = ()
        self._finished = False

    def catch_up(self) -> None:
        """Read the lines that were added, and pass their numbers on."""
        with _in_one_sentence(self._kind):
            lines, self._offset = record.tail(self._folder / record.NAME, self._offset)
            for line in lines:
                if self._sink is None:  # only now: it may have threads, and engines fork before the first round
                    self._sink = SINKS[self._kind](self._folder)
                self._pass_on(line, self._sink)

    def close(self) -> None:
        if self._sink is not None:
            with _in_one_sentence(self._kind):
                self._sink.close(self._finished)

    def _pass_on(self, line: Mapping[str, Any], sink: Sink) -> None:
        kind = line["kind"]
        self._finished = kind == "end"
        if kind == "header":
            self._clock = calendar.timegm(time.strptime(line["started"], "%Y-%m-%dT%H:%M:%SZ"))
            self._labels = line["data"]["labels"]
            sink.parameters({name: str(value) for name, value in _leaves(line["config"], ".") if value is not None})
        elif kind == "round":
            self._clock += line["seconds"]
            sink.numbers(line["round"], self._clock, numbers(line, self._labels))
        elif kind == "door" and "judgement" in (line["verdict"] or {}):
            sink.text("detection", line["round"], verdict(line["verdict"]))
        elif kind == "end":
            found = numbers(line, self._labels)
            sink.numbers(line["rounds"], self._clock, {f"end/{name}": value for name, value in found.items()})


@contextmanager
def _in_one_sentence(kind: str) -> Iterator[None]:
    """Networks, disks and other people's code fail in many ways."""
    try:
        yield
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".")
        raise UserError(f"{kind} does not take the numbers ({said}); {SINKS[kind].advice}") from None


@contextmanager
def following(kind: str | None, folder: Path | None, progress: Progress | None = None) -> Iterator[Progress | None]:
    """A Progress for the run in a folder that also passes its record on to a tracker, to the last line.

    A tracker that fails on the way is let go, with a warning: the record has it all.
    """
    if kind is None:
        yield progress
        return
    if folder is None:
        raise UserError(
            f"track '{kind}' reads the record in a run's folder, and the run has none; give it one with out"
        )
    follower: Follower | None = Follower(folder, kind)

    def attempt(step: Callable[[Follower], None]) -> None:
        nonlocal follower
        if follower is not None:
            try:
                step(follower)
            except UserError as error:
                follower = None
                _warn(folder, kind, error)

    def advance(line: dict[str, Any]) -> None:
        attempt(Follower.catch_up)
        if progress is not None:
            progress(line)

    try:
        yield advance
        attempt(Follower.catch_up)
    finally:
        attempt(Follower.close)


def _warn(folder: Path, kind: str, error: UserError) -> None:
    later = f"fedskew track {shlex.quote(str(folder))} --to {kind}"
    said = f"Warning: {error}. The run goes on without; later, catch up with: {later}"
    print(printable(said), file=sys.stderr, flush=True)


def export(folder: Path, kind: str) -> int:
    """Pass on the record that a run left, finished or not; gives the number of rounds."""
    check(kind)
    if folder.is_file():
        raise UserError(f"'{folder}' is a file; name the run's folder, beside whose record trackers write")
    rounds = len(record.read(folder).rounds)
    follower = Follower(folder, kind)
    follower.catch_up()
    follower.close()
    return rounds


def wanted(kind: str | None) -> str | None:
    """The tracker that is asked for, after a try whether it can be had: before a long training, not after it."""
    if kind is None or kind == NONE:
        return None
    check(kind)
    return kind


def used(folder: Path) -> str | None:
    """The tracker that the run in a folder was followed by, if there was one and it can be had here."""
    kind = next((kind for kind, sink in SINKS.items() if (folder / sink.place).exists()), None)
    try:
        return wanted(kind)
    except UserError as error:
        _warn(folder, str(kind), error)
        return None


def check(kind: str) -> None:
    """Refuse a tracker that is unknown, is not installed, or does not answer."""
    if kind not in SINKS:
        raise UserError(f"track '{kind}' is unknown{nearest(kind, SINKS)}")
    if importlib.util.find_spec(SINKS[kind].package) is None:
        raise UserError(f"track '{kind}' needs a package that is not installed: pip install 'fedskew[track]'")
    with _in_one_sentence(kind):
        SINKS[kind].reach()


def numbers(line: Mapping[str, Any], labels: Sequence[str] = ()) -> dict[str, float]:
    """The numbers of a line by name, those for each class one by one; who was asked is no number."""
    found: dict[str, float] = {}
    for name, value in _leaves(line, "/"):
        if _is_number(value) and name != "round":
            found[name] = float(value)
        elif isinstance(value, list) and len(value) == len(labels) and name not in _WHO and all(map(_is_number, value)):
            # Trackers make folders of slashes and refuse other signs; the class's number keeps names apart.
            short = [re.sub(r"[^\w .-]", "_", label) for label in labels]
            found |= {f"{name}/{c} {short[c]}": float(share) for c, share in enumerate(value)}
    return found


def verdict(said: Mapping[str, Any]) -> str:
    """What a detection of noisy clients came to, in a line."""
    judged, p = said["judgement"]["verdict"], said["judgement"].get("p_value")
    noisy = ", ".join(map(str, said["noisy"])) or "nobody"
    shifted = ", ".join(map(str, said.get("explained_by_shift") or ())) or "nobody"
    chance = "" if p is None or p != p else f" (p = {p:.3f})"
    return f"verdict: {judged}{chance}; noisy: {noisy}; only looks different: {shifted}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _leaves(values: Mapping[str, Any], joint: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, joint, f"{prefix}{name}{joint}")
        else:
            yield prefix + name, value
