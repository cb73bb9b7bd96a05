"""Run one training of the federation: configure it, submit it once, follow it to its end, and continue it."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew.config import consent
from fedskew.config.schema import RunConfig
from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.experiment.preparation import resolve
from fedskew.federation import processes
from fedskew.federation.coordinator import service
from fedskew.federation.coordinator.superlink_client import SuperLinkClient
from fedskew.federation.folders import FEDERATION, CoordinatorFolder
from fedskew.federation.rules import RULES, parse_rules
from fedskew.federation.transport import project
from fedskew.record import reader, run_dir, run_lock, scores
from fedskew.record.schema import RoundLine

RUNS, FLOWER_RUN, REPORT = "runs", "flower_run", "report.html"
#: seconds between two readings of the record
POLL = 1.0
#: sections that the federation sets itself
_FIXED = ("partition", "noise", "engine")
#: names of runs, as `run_name` makes them; never a path
_NAME = re.compile(r"\w[\w.+=-]*")


def configure(coordinator: CoordinatorFolder, **options: Any) -> RunConfig:
    """Return the section `training` of ``federation.toml``, overridden by the options of a command."""
    from fedskew.experiment import configure as overriding
    from fedskew.methods import registry
    from fedskew.parts.stages import check_federated

    path = coordinator.folder / FEDERATION
    values: dict[str, Any] = copy.deepcopy(dict(coordinator.training))
    for section in _FIXED:
        if section in values:
            raise UserError(f"'{path}' has a section 'training.{section}', which the federation sets. Remove it.")
    values["partition"] = {"name": "natural", "clients": len(coordinator.sites)}
    values["engine"] = {"name": "inline"}
    base = configuration.from_dict(values, f"section 'training' of '{path}'")
    if "name" not in base.data.model_fields_set:
        base = configuration.override(base, ["data.name=own"])
    config = overriding.configure(base, **options)
    consent.check(config, path, options.get("allow_code", False), overriding.typed_keys(**options))
    for section in _FIXED:
        if getattr(config, section) != getattr(base, section):
            raise UserError(f"--set changes '{section}', which the federation sets. Remove that option.")
    if config.data.name != "own":
        raise UserError(f"data.name is '{config.data.name}', but every site has data of its own. Remove that key.")
    if not config.data.options.get("classes"):
        raise UserError(f"'{path}' names no classes. List all of them in training.data.options.classes.")
    service.check_data_options(config.data.options, "data.options.")
    check_federated(registry.build(config.method))
    config.attack.check_simulated()
    if config.model.weights is not None:  # the server app runs in another folder
        weights = str(Path(config.model.weights).resolve())
        config = config.model_copy(update={"model": config.model.model_copy(update={"weights": weights})})
    return config


def sites_of(out: Path) -> tuple[str, ...]:
    """Return the sites with which a run was started; none if it was not."""
    path = out / RULES
    return tuple(json.loads(path.read_text()).get("names", ())) if path.exists() else ()


class FederatedRun:
    """A run in the coordinator's folder; the server app writes its record there.

    Raises:
        UserError: If the folder holds a run with another configuration.
    """

    def __init__(self, coordinator: CoordinatorFolder, config: RunConfig, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UserError(f"--name is '{name}'. Use letters, digits and _ . + = -, with a letter or digit first.")
        self.coordinator, self.out = coordinator, coordinator.folder / RUNS / name
        self.sites = sites_of(self.out) or coordinator.sites
        partition = config.partition.model_copy(update={"clients": len(self.sites)})
        self.config = config.model_copy(update={"partition": partition})
        self._rules = _rules(coordinator)
        if run_dir.holds_run(self.out):
            self._check_same()
        else:
            resolve.weights_file(config)  # report its errors here, not in the server app's log

    def _check_same(self) -> None:
        from fedskew.experiment import run as experiment

        if experiment.resumed_config(self.out, self.config.rounds, allow_code=True) != self.config:
            raise UserError(f"'{self.out}' holds a run with another configuration. Choose another --name.")

    @property
    def finished(self) -> bool:
        """Whether all rounds are in the record."""
        found = self.read()
        return found.end is not None and _counted(found) >= self.config.rounds

    def read(self) -> reader.RunRecord:
        """Return the record so far."""
        return reader.read(self.out) if (self.out / reader.NAME).exists() else reader.RunRecord()

    def follow(self, on_round: Callable[[RoundLine], None]) -> reader.RunRecord:
        """Submit the run unless it is in progress or finished, and report every new round until its end."""
        if self.finished:
            return self.read()
        folder = self.coordinator.folder
        if not processes.is_up(folder):
            raise UserError(f"'{folder}' is not started. Type: fedskew federation start {folder}")
        with service.connect(self.coordinator) as server:
            run = self._in_progress(server)
            shown = len(self.read().rounds)
            if run is None:
                run = self._submit(server)
            for line in self._new_rounds(server, run, shown):
                on_round(line)
        return self.read()

    def _in_progress(self, server: SuperLinkClient) -> int | None:
        """Return Flower's number of this run, unless it has ended."""
        path = self.out / FLOWER_RUN
        number = int(path.read_text()) if path.exists() else None
        return number if number is not None and server.outcome(number) is None else None

    def _submit(self, server: SuperLinkClient) -> int:
        if not any(each.node is not None for each in service.site_statuses(self.coordinator, server)):
            raise UserError("no site is admitted. Admit one with 'fedskew federation admit DIR SITE PUBLIC_KEY'.")
        values = {"config": configuration.dumps(self.config), "out": str(self.out), "names": ",".join(self.sites)}
        project.write(self.coordinator.folder / service.SUBMITTED / self.out.name, self._rules | values)
        run = server.submit(self._rules | values)
        self.out.mkdir(parents=True, exist_ok=True)
        atomic_io.write(self.out / FLOWER_RUN, str(run))
        return run

    def _new_rounds(self, server: SuperLinkClient, run: int, shown: int) -> Iterator[RoundLine]:
        """Yield new rounds as they come. A restarted server app may write the last ones again; they are skipped."""
        while True:
            outcome = None if run_lock.is_locked(self.out) else server.outcome(run)
            rounds = self.read().rounds
            yield from rounds[shown:]
            shown = max(shown, len(rounds))
            if self.finished:
                return
            if outcome is not None:
                log = processes.log_path(self.coordinator.folder, service.EXECUTOR)
                raise UserError(f"the run ended without a result ({outcome}). See '{log}'.")
            time.sleep(POLL)

    def report(self) -> Path:
        """Write the run's page."""
        from fedskew.report import load as records
        from fedskew.report.html import page

        path = self.out / REPORT
        atomic_io.save(path, page.html(records.read([self.out])))
        return path


def _rules(coordinator: CoordinatorFolder) -> dict[str, Any]:
    """Return the rules that go with every run."""
    values = dict(coordinator.rules) | {"own-data": True}
    try:
        parse_rules(values)
    except UserError as error:
        place = f"section 'rules' of '{coordinator.folder / FEDERATION}'"
        raise UserError(str(error).replace("run config", place, 1)) from None
    return values


def _counted(record: reader.RunRecord) -> int:
    return sum(line["counted"] for line in record.rounds)


@dataclass(frozen=True)
class TrainingStatus:
    """Progress of a run. If it cannot be read, `state` says why."""

    name: str
    state: str
    rounds: int | None = None
    of: int | None = None
    accuracy: float | None = None


def run_statuses(coordinator: CoordinatorFolder) -> list[TrainingStatus]:
    """Return the progress of all runs in the coordinator's folder."""
    return [_status(path) for path in sorted((coordinator.folder / RUNS).glob(f"*/{reader.NAME}"))]


def _status(path: Path) -> TrainingStatus:
    name = path.parent.name
    try:
        found, config = reader.read(path), configuration.load(path.with_name(run_dir.CONFIG))
    except UserError as error:
        return TrainingStatus(name, f"unreadable: {error}")
    state = "finished" if found.end is not None else "in progress" if run_lock.is_locked(path.parent) else "interrupted"
    return TrainingStatus(name, state, _counted(found), config.rounds, scores.summary(found.rounds)["last"])
