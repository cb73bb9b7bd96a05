"""Pass the numbers of a record on to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import calendar
import contextlib
import importlib.util
import logging
import netrc
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from fedskew.core import atomic_io
from fedskew.core.errors import UserError, did_you_mean, required
from fedskew.experiment.callbacks import Callback, Run
from fedskew.record import reader
from fedskew.record.schema import EndLine, HeaderLine, Line, RoundLine, SetupLine

if TYPE_CHECKING:
    from fedskew.experiment.recorder import Result

log = logging.getLogger("fedskew")

NONE = "none"
#: lists of clients; they may be as long as lists of classes
_WHO = ("asked", "clients_asked", "late")


class Sink(Protocol):
    """A tracker; `at` is in seconds since 1970."""

    def parameters(self, values: Mapping[str, str]) -> None: ...
    def numbers(self, step: int, at: float, values: Mapping[str, float]) -> None: ...
    def text(self, name: str, step: int, content: str) -> None: ...
    def close(self, finished: bool) -> None: ...


class TensorBoard:
    """Event files in the run folder, written again from the record whenever a run starts or resumes."""

    package, place = "tensorboard", "tensorboard"
    advice = "Check that the run folder can be written to"

    @staticmethod
    def reach() -> None:
        """Do nothing: only the run folder is needed."""

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

    def text(self, name: str, step: int, content: str) -> None:
        self._writer.add_text(name, content, step)

    def close(self, finished: bool) -> None:
        del finished
        self._writer.close()


class MLflow:
    """An MLflow run; its number is stored in the run folder, and what it has is not logged again."""

    package, place = "mlflow", "mlflow-run.txt"
    advice = "Set MLFLOW_TRACKING_URI to a server, or to a folder together with MLFLOW_ALLOW_FILE_STORE=true"

    @staticmethod
    def reach() -> None:
        """Check that the server answers; by itself MLflow would try for minutes."""
        import mlflow

        quick = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
        unset = quick.keys() - os.environ.keys()
        os.environ.update({name: quick[name] for name in unset})
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
        with contextlib.suppress(Exception):  # another server may not have it; a folder raises many kinds of errors
            number = (folder / self.place).read_text().strip()
            self._client.update_run(number, "RUNNING")
            return number
        return None

    def _made(self, folder: Path) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedskew")
        experiment = self._client.get_experiment_by_name(name)
        owner = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        number = str(self._client.create_run(owner, run_name=folder.resolve().name).info.run_id)
        atomic_io.write(folder / self.place, number + "\n")
        return number

    def parameters(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        self._client.log_batch(self._run, params=[Param(name, value[:6000]) for name, value in values.items()])

    def numbers(self, step: int, at: float, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        fresh = [Metric(n, v, int(1000 * at), step) for n, v in values.items() if (n, step) not in self._done]
        for start in range(0, len(fresh), 1000):  # MLflow refuses more
            self._client.log_batch(self._run, metrics=fresh[start : start + 1000])

    def text(self, name: str, step: int, content: str) -> None:
        self._client.log_text(self._run, content, f"{name}/round-{step}.txt")

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class WandB:
    """A run of Weights & Biases; nothing but the record's numbers is passed on.

    Online, its number is stored in the run folder, and rounds that it has are not logged again. Offline, its files lie
    in the run folder and are written again from the record whenever a run starts or resumes.
    """

    package, place = "wandb", "wandb-run.txt"
    advice = "Type 'wandb login', or set WANDB_MODE=offline"

    @staticmethod
    def reach() -> None:
        """Check that somebody is logged in; by itself wandb would ask, and wait for an answer."""
        if _is_offline() or os.environ.get("WANDB_API_KEY"):
            return
        host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
        path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
        if not path.is_file() or netrc.netrc(path).authenticators(host) is None:
            raise ConnectionError(f"nobody is logged in at {host}")

    def __init__(self, folder: Path) -> None:
        import wandb

        self.reach()
        path = folder / self.place
        number = path.read_text().strip() if path.exists() else secrets.token_hex(4)
        if _is_offline():
            for old in (folder / "wandb").glob(f"offline-run-*-{number}"):
                shutil.rmtree(old)
        atomic_io.write(path, number + "\n")
        quiet = {"silent": True, "console": "off", "save_code": False, "init_timeout": 30}
        private = dict.fromkeys(
            ("disable_git", "disable_job_creation", "x_disable_stats", "x_disable_machine_info"), True
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedskew"),
            name=folder.resolve().name,
            id=number,
            dir=folder,
            resume="allow",
            settings=wandb.Settings(**quiet, **private),
        )
        self._next = self._run.step

    def parameters(self, values: Mapping[str, str]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def numbers(self, step: int, at: float, values: Mapping[str, float]) -> None:
        if all(name.startswith("end/") for name in values):
            self._run.summary.update(dict(values))
        elif step >= self._next:
            self._run.log({**values, "_timestamp": at}, step=step)

    def text(self, name: str, step: int, content: str) -> None:
        self._run.summary[f"{name}/round-{step}"] = content

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


def _is_offline() -> bool:
    return os.environ.get("WANDB_MODE", "online") in ("offline", "dryrun", "disabled")


SINKS: dict[str, type[TensorBoard] | type[MLflow] | type[WandB]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


class Follower:
    """Pass on what is new in the record of a run."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._sink: Sink | None = None
        self._offset, self._clock = 0, 0.0
        self._labels: Sequence[str] = ()
        self._finished = False

    def catch_up(self) -> None:
        """Read the lines that were added, and pass on their numbers."""
        with _as_user_error(self._kind):
            lines, self._offset = reader.tail(self._folder / reader.NAME, self._offset)
            for line in lines:
                if self._sink is None:  # only now: it may start threads, and engines fork before the first round
                    self._sink = SINKS[self._kind](self._folder)
                self._pass_on(line, self._sink)

    def close(self) -> None:
        if self._sink is not None:
            with _as_user_error(self._kind):
                self._sink.close(self._finished)

    def _pass_on(self, line: Line, sink: Sink) -> None:
        self._finished = isinstance(line, EndLine)
        if isinstance(line, HeaderLine):
            self._clock = calendar.timegm(time.strptime(str(line.started), "%Y-%m-%dT%H:%M:%SZ"))
            self._labels = [] if line.data is None else line.data.labels
            sink.parameters({name: str(value) for name, value in _leaves(line.config, ".") if value is not None})
        elif isinstance(line, RoundLine):
            self._clock += line.seconds
            sink.numbers(line.round, self._clock, numbers(line.as_json(), self._labels))
        elif isinstance(line, SetupLine) and line.is_detection:
            sink.text("detection", line.round, verdict(line["verdict"]))
        elif isinstance(line, EndLine):
            found = numbers(line.as_json(), self._labels)
            sink.numbers(line.rounds, self._clock, {f"end/{name}": value for name, value in found.items()})


@contextmanager
def _as_user_error(kind: str) -> Iterator[None]:
    """Turn any error of a tracker into one sentence."""
    try:
        yield
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".")
        raise UserError(f"{kind} does not take the numbers ({why}). {SINKS[kind].advice}") from None


class Tracker(Callback):
    """Pass the record on to a tracker after every round.

    A tracker that fails during the run is given up with a warning: the record has everything.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._follower: Follower | None = None

    def on_start(self, run: Run) -> None:
        self._folder = required(run.folder, "the folder of a tracked run")
        self._follower = Follower(self._folder, self._kind)

    def on_round(self, round: int, metrics: RoundLine) -> None:
        self._attempt(Follower.catch_up)

    def on_end(self, result: Result) -> None:
        self._attempt(Follower.catch_up)
        self._attempt(Follower.close)

    def on_error(self, error: BaseException) -> None:
        self._attempt(Follower.close)

    def _attempt(self, step: Callable[[Follower], None]) -> None:
        if self._follower is not None:
            try:
                step(self._follower)
            except UserError as error:
                self._follower = None
                _warn(self._folder, self._kind, error)


def _warn(folder: Path, kind: str, error: UserError) -> None:
    later = f"fedskew track {shlex.quote(str(folder))} --to {kind}"
    log.warning("%s. The run continues without it; to catch up later, type: %s", error, later)


def export(folder: Path, kind: str) -> int:
    """Pass on the record of a run, finished or not; return the number of rounds."""
    check(kind)
    if folder.is_file():
        raise UserError(f"'{folder}' is a file. Name the run folder: fedskew track {folder.parent} --to {kind}")
    rounds = len(reader.read(folder).rounds)
    follower = Follower(folder, kind)
    follower.catch_up()
    follower.close()
    return rounds


def wanted(kind: str | None, folder: Path | None) -> list[Callback]:
    """Make the tracker that is asked for, if any; one that cannot be used is refused before a long training."""
    if kind is None or kind == NONE:
        return []
    check(kind)
    if folder is None:
        raise UserError(f"track '{kind}' reads the record in the run folder, and the run has none. Give one with out.")
    return [Tracker(kind)]


def used(folder: Path) -> list[Callback]:
    """Make the tracker that followed the run in a folder before, if it can be used here."""
    kind = next((kind for kind, sink in SINKS.items() if (folder / sink.place).exists()), None)
    try:
        return wanted(kind, folder)
    except UserError as error:
        _warn(folder, str(kind), error)
        return []


def check(kind: str) -> None:
    """Refuse a tracker that is unknown, not installed or out of reach."""
    if kind not in SINKS:
        raise UserError(f"track '{kind}' is unknown{did_you_mean(kind, SINKS)}")
    if importlib.util.find_spec(SINKS[kind].package) is None:
        raise UserError(f"track '{kind}' needs a package that is not installed. Type: pip install 'fedskew[track]'")
    with _as_user_error(kind):
        SINKS[kind].reach()


def numbers(line: Mapping[str, Any], labels: Sequence[str] = ()) -> dict[str, float]:
    """List the numbers of a record line by name; a list over classes gives one number per class."""
    found: dict[str, float] = {}
    for name, value in _leaves(line, "/"):
        if _is_number(value) and name != "round":
            found[name] = float(value)
        elif isinstance(value, list) and len(value) == len(labels) and name not in _WHO and all(map(_is_number, value)):
            # Trackers turn slashes into folders and refuse other signs; the number keeps equal names apart.
            short = [re.sub(r"[^\w .-]", "_", label) for label in labels]
            found |= {f"{name}/{c} {short[c]}": float(share) for c, share in enumerate(value)}
    return found


def verdict(found: Mapping[str, Any]) -> str:
    """Sum up a detection of noisy clients in one line."""
    judged, p = found["judgment"]["verdict"], found["judgment"].get("p_value")
    noisy = ", ".join(map(str, found["noisy"])) or "nobody"
    shifted = ", ".join(map(str, found.get("explained_by_shift") or ())) or "nobody"
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
