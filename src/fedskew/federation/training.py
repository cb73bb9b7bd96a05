"""A training of the federation: what is asked of the sites, submitted once, followed to its end, gone on with."""

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
from fedskew import consent, record, resolve, run_folder, run_lock
from fedskew.config import RunConfig
from fedskew.errors import UserError
from fedskew.federation import office as offices
from fedskew.federation import processes
from fedskew.federation.folder import FEDERATION, Coordinator
from fedskew.federation.link import Link
from fedskew.flower import project
from fedskew.flower.settings import RULES, rules

RUNS, FLOWERS_NUMBER, REPORT = "runs", "flower_run", "report.html"
#: seconds between two looks at the record
LOOK = 1.0
#: decided by the federation itself
_OURS = ("partition", "noise", "engine")
#: of runs: what `run_name` makes, and never a path
_NAME = re.compile(r"\w[\w.+=-]*")

Tell = Callable[[dict[str, Any]], None]


def configure(office: Coordinator, **asked: Any) -> RunConfig:
    """The section `training` of the federation's file, then options, as everywhere."""
    from fedskew import face
    from fedskew.methods import registry

    path = office.folder / FEDERATION
    values: dict[str, Any] = copy.deepcopy(dict(office.training))
    for section in _OURS:
        if section in values:
            raise UserError(
                f"'{path}' has a section 'training.{section}'; a federation has no use for it, leave it out"
            )
    values["partition"] = {"name": "natural", "clients": len(office.sites)}
    values["engine"] = {"name": "inline"}
    base = configuration.from_dict(values, f"section 'training' of '{path}'")
    if "name" not in base.data.model_fields_set:
        base = configuration.override(base, ["data.name=own"])
    config = face.configure(base, **asked)
    consent.check(config, path, asked.get("allow_code", False), face.typed_keys(**asked))
    for section in _OURS:
        if getattr(config, section) != getattr(base, section):
            raise UserError(f"--set changes '{section}', which the federation itself decides; leave that out")
    if config.data.name != "own":
        raise UserError(f"data.name is '{config.data.name}', and must be left out: every site has data of its own")
    if not config.data.options.get("classes"):
        raise UserError(f"'{path}' names no classes; set training.data.options.classes to all of them, with commas")
    offices.described(config.data.options, "data.options.")
    registry.build(config.method)
    return config if config.model.weights is None else _from_anywhere(config, Path(config.model.weights))


def _from_anywhere(config: RunConfig, weights: Path) -> RunConfig:
    """With weights that the server app, whose folder is another one, finds too."""
    return config.model_copy(update={"model": config.model.model_copy(update={"weights": str(weights.resolve())})})


def sites_of(out: Path) -> tuple[str, ...]:
    """The sites that a run was begun with, which it keeps; none before it has begun."""
    path = out / RULES
    return tuple(json.loads(path.read_text()).get("names", ())) if path.exists() else ()


def _with_sites(config: RunConfig, clients: int) -> RunConfig:
    return config.model_copy(update={"partition": config.partition.model_copy(update={"clients": clients})})


class Training:
    """A run in the coordinator's folder. Its record is what the server app writes there."""

    def __init__(self, office: Coordinator, config: RunConfig, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"--name is '{name}', and must be of letters, digits and _ . + = -, a letter or digit to begin with"
            )
        self.office, self.out = office, office.folder / RUNS / name
        self.sites = sites_of(self.out) or office.sites
        self.config = _with_sites(config, len(self.sites))
        self._rules = _rules(office)
        if run_folder.holds_run(self.out):
            self._check_same()
        else:
            resolve.weights_file(config)  # what is wrong with it is said here, not in the server app's log

    def _check_same(self) -> None:
        from fedskew import experiment

        if experiment.begun(self.out, self.config.rounds, allow_code=True) != self.config:
            raise UserError(f"'{self.out}' holds a run with another configuration; choose another --name for this one")

    @property
    def finished(self) -> bool:
        found = self.read()
        return found.end is not None and sum(line["counted"] for line in found.rounds) >= self.config.rounds

    def read(self) -> record.Run:
        """The record so far."""
        return record.read(self.out) if (self.out / record.NAME).exists() else record.Run()

    def follow(self, tell: Tell) -> record.Run:
        """Submit it unless it goes on already or has ended, and tell every new round until its end."""
        if self.finished:
            return self.read()
        if not processes.is_up(self.office.folder):
            raise UserError(
                f"'{self.office.folder}' is not started; 'fedskew federation start {self.office.folder}' does it"
            )
        with offices.link(self.office) as link:
            run = self._going(link)
            shown = len(self.read().rounds)
            if run is None:
                run = self._submit(link)
            for line in self._lines(link, run, shown):
                tell(line)
        return self.read()

    def _going(self, link: Link) -> int | None:
        """Flower's number of this run, if it has not ended."""
        path = self.out / FLOWERS_NUMBER
        number = int(path.read_text()) if path.exists() else None
        return number if number is not None and link.ended(number) is None else None

    def _submit(self, link: Link) -> int:
        if not any(each.node is not None for each in offices.standings(self.office, link)):
            raise UserError("no site is admitted; 'fedskew federation admit' takes a site's public key")
        words = {"config": configuration.dumps(self.config), "out": str(self.out), "names": ",".join(self.sites)}
        project.write(self.office.folder / offices.SUBMITTED / self.out.name, self._rules | words)
        run = link.submit(self._rules | words)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / FLOWERS_NUMBER).write_text(str(run))
        return run

    def _lines(self, link: Link, run: int, shown: int) -> Iterator[dict[str, Any]]:
        """New rounds as they come. A server app that goes on after a kill may write the last of them again."""
        while True:
            ended = None if run_lock.is_held(self.out) else link.ended(run)
            rounds = self.read().rounds
            yield from rounds[shown:]
            shown = max(shown, len(rounds))
            if self.finished:
                return
            if ended is not None:
                log = processes.log_of(self.office.folder, offices.EXECUTOR)
                raise UserError(f"the run ended without a result ({ended}); '{log}' says more")
            time.sleep(LOOK)

    def report(self) -> Path:
        """Write the run's page."""
        from fedskew.report import page
        from fedskew.report import runs as records
        from fedskew.report.comparison import save

        path = self.out / REPORT
        save(path, page.html(records.read([self.out])))
        return path


def _rules(office: Coordinator) -> dict[str, Any]:
    """What goes with every run."""
    given = dict(office.rules) | {"own-data": True}
    try:
        rules(given)
    except UserError as mistake:
        place = f"section 'rules' of '{office.folder / FEDERATION}'"
        raise UserError(str(mistake).replace("run config", place, 1)) from None
    return given


@dataclass(frozen=True)
class Standing:
    """How far a run is; of one that cannot be read, the state says why."""

    name: str
    state: str
    rounds: int | None = None
    of: int | None = None
    accuracy: float | None = None


def standings(office: Coordinator) -> list[Standing]:
    """How far the runs in the coordinator's folder are."""
    return [_standing(path) for path in sorted((office.folder / RUNS).glob(f"*/{record.NAME}"))]


def _standing(path: Path) -> Standing:
    try:
        found, config = record.read(path), configuration.load(path.with_name(run_folder.CONFIG))
    except UserError as mistake:
        return Standing(path.parent.name, f"unreadable: {mistake}")
    going = "going on" if run_lock.is_held(path.parent) else "interrupted"
    return Standing(
        path.parent.name,
        going if found.end is None else "finished",
        sum(line["counted"] for line in found.rounds),
        config.rounds,
        record.summary(found.rounds)["last"],
    )
