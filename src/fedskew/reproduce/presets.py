"""Define every identifier, and the runs that it needs at each scale."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from pydantic import ValidationError

from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError, did_you_mean
from fedskew.methods import registry
from fedskew.reproduce import facts
from fedskew.reproduce.schema import STATIC, Hyper, PresetFile, RequestedRun, Scale, Settings, Shows, Start, Sweep

FILES = ("fedlmd", "fedvls", "fednoro", "niid-bench", "fnbench")
#: What naming another data set, partition, network or noise takes away from the last one.
_FORGOTTEN = {
    "data": ("options",),
    "partition": ("alpha", "s", "k"),
    "model": ("args", "weights"),
    "noise": ("labels", "key"),
}
#: Hyper-parameters that are the run's, and the section of its configuration that they stand in.
_OF_THE_RUN = {"rounds": "", "epochs": "local", "weight_decay": "local"}


@dataclass(frozen=True, eq=False)
class Cell:
    """Describe one run of a table, at `row` and `column`; `start` is the run whose model it starts from.

    With `client`, only that client's data are there, and the run's model is that client's.
    """

    row: str
    column: str
    config: RunConfig
    #: the same at the scale of the paper, and on the paper's own task
    printed: RunConfig
    start: Cell | None = None
    client: int | None = None

    @property
    def stands_in(self) -> bool:
        """Return whether the data differ from the paper's, or are a part of them."""
        ours, reference = self.config, self.printed
        return ours.data.name != reference.data.name or facts.of(ours) != facts.of(reference)

    def seeded(self, number: int) -> Cell:
        """Return the cell with another seed, which its starting run gets too."""
        config = self.config.model_copy(update={"seed": self.config.seed + number})
        return replace(self, config=config, start=self.start and self.start.seeded(number))


@dataclass(frozen=True)
class Preset:
    """Describe one table, one figure, or one setting of either."""

    id: str
    file: PresetFile
    shows: Shows
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    also: tuple[str, ...] = ()
    rows: Mapping[str, str] = field(default_factory=dict)
    seeds: int = 1
    sweep: Sweep | None = None
    prefixes: tuple[int, ...] = ()
    first_rounds: int | None = None
    start: Start | None = None
    client: int | None = None
    settings: Mapping[str, Any] | None = None
    note: str = ""
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """Return the printed table that this belongs to: ``fedlmd/table3``."""
        return "/".join(self.id.split("/")[:2])

    @property
    def paper(self) -> str:
        return "FedED" if self.id.startswith("feded/") else self.file.paper

    @property
    def protocol(self) -> str:
        """Describe the preset in one line."""
        if self.shows in STATIC:
            return "no training: " + (", ".join(self.tasks) if self.shows in ("partition", "counts") else "data only")
        own = [f"{task} stands in for {other}" for task, other in self.stand_ins.items()]
        given = [
            p for task in self.tasks for name in _lineage(self.file, task) if (p := self.file.tasks[name].protocol)
        ]
        return f"{', '.join(own or self.tasks)}; {given[-1] if given else self.file.base.protocol}"

    def is_comparable(self, row: str) -> bool:
        """Return whether the paper ran this row like the others."""
        return row not in self.file.methods or self.file.methods[row].comparable

    @property
    def stand_ins(self) -> dict[str, str]:
        """Return our own tasks, and the paper's tasks that they replace."""
        known = self.file.tasks
        return {task: other for task in self.tasks if (other := known[task].stands_for) is not None}

    def deviations(self, methods: Sequence[str] = ()) -> list[str]:
        """List where the paper's scale differs from the paper, with the ledger entries that methods cite."""
        named = methods or self.methods
        lines = [
            d for task in self.tasks for each in _lineage(self.file, task) for d in self.file.tasks[each].deviations
        ]
        lines += [d for method in named for d in self.file.methods[method].deviations]
        cited = {method: self.file.methods[method].ledger for method in named}
        if any(cited.values()):
            entries = (f"{method} {' '.join(each)}" for method, each in cited.items() if each)
            lines.append(f"Readings where paper and code differ are in docs/reference/ledger.md: {', '.join(entries)}.")
        return [] if self.shows in STATIC else list(dict.fromkeys([*self.file.base.deviations, *lines]))

    def assumed(self, scale: Scale, methods: Sequence[str] = ()) -> list[str]:
        """Return the hyper-parameters that neither paper nor code gives, by method; a swept one is no assumption."""
        swept = "" if self.sweep is None else self.sweep.key.removeprefix("method.")
        found: dict[str, None] = {}
        for method in methods or self.methods:
            source = self.file.methods[method].source
            for task in self.tasks:
                values = self.arguments(scale, task, method).items()
                ours = [f"{key}={value}" for key, value in values if source[key] == "assumed" and key != swept]
                if ours:
                    found[f"{method}({', '.join(ours)})"] = None
        return list(found)

    def cells(self, scale: Scale, methods: Sequence[str] = ()) -> list[Cell]:
        """Return the runs; with `methods`, only those of these rows."""
        for name in methods:
            if name not in self.methods:
                raise UserError(f"'{self.id}' has no method '{name}'{did_you_mean(name, self.methods)}")
        if self.shows in STATIC:
            return []
        # that model is the same in all tables: what a preset sets is set for its own runs
        plain = replace(self, settings=None)
        start = None if self.start is None else plain._cell(scale, self.start.task, self.start.method, None)
        rows = [name for name in self.methods if not methods or name in methods]
        values = [None] if self.sweep is None else self.sweep.values(scale)
        return [
            replace(self._cell(scale, task, row, value), start=start, client=self.client)
            if start is None
            else _one_round(self._cell(scale, task, row, value), start, self.client)
            for task in self.tasks
            for row in rows
            if row in self.only.get(task, rows)
            for value in values
        ]

    def config(self, scale: Scale, task: str, method: str = "fedavg", value: Any = None) -> RunConfig:
        """Return the configuration of one run."""
        if self.sweep is not None and value is not None and f"{value:g}" in self.sweep.same:
            return self.config(scale, task, self.sweep.same[f"{value:g}"])
        base, lineage = self.file.base, [self.file.tasks[name] for name in _lineage(self.file, task)]
        layers: list[Settings] = [base.paper, *(each.paper for each in lineage), dict(self.settings or {})]
        if scale != "paper":
            layers += [getattr(base, scale), *(getattr(each, scale) for each in lineage)]
        values: Settings = {}
        for layer in layers:
            _merge(values, layer)
        arguments = self.arguments(scale, task, method)
        for name in _OF_THE_RUN.keys() & arguments.keys():
            _section(values, _OF_THE_RUN[name])[name] = arguments.pop(name)
        if self.sweep is not None and value is not None:
            section, _, name = self.sweep.key.rpartition(".")
            (arguments if section == "method" else _section(values, section))[name] = value
        hyper = self.file.methods[method]
        if not hyper.evaluate_clients:
            _section(values, "evaluate")["clients"] = False
        values["method"] = expression(method, hyper, arguments)
        return configuration.from_dict(values, f"preset '{self.id}' at scale '{scale}'")

    def arguments(self, scale: Scale, task: str, method: str) -> Settings:
        """Return the hyper-parameters of a method on a task: its own, or those of the nearest similar task.

        Of several fitting names the longest counts.
        """
        hyper = self.file.methods[method]
        longest_first = sorted(hyper.at, key=len, reverse=True)
        nearest_first = reversed(_lineage(self.file, task))
        fitting = [hyper.at[name] for each in nearest_first for name in longest_first if each.startswith(name)]
        arguments = dict(hyper.usual) | (fitting[0] if fitting else {})
        if scale == "paper":
            return arguments
        # a smaller run is as long as its task says, unless the method has its own length there too
        return {key: value for key, value in arguments.items() if key not in _OF_THE_RUN} | getattr(hyper, scale)

    def _cell(self, scale: Scale, task: str, row: str, value: Any) -> Cell:
        several = self.sweep is not None and len(self.tasks) > 1
        column = task if value is None else f"{value:g}-{task}" if several else f"{value:g}"
        # a value of a smaller grid may not be among the paper's, but it names the same protocol
        printed = self.config("paper", self.stand_ins.get(task, task), row, value)
        return Cell(row, column, self.config(scale, task, row, value), printed)


def expression(name: str, hyper: Hyper, arguments: Mapping[str, Any]) -> str:
    """Return the method as the registry writes it."""
    if hyper.is_ is None:
        wanted = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    else:
        wanted = hyper.is_.format(**arguments) if arguments else hyper.is_
    return _canonical(wanted)


@cache
def _canonical(method: str) -> str:
    return registry.build(method).expression


@cache
def presets() -> dict[str, Preset]:
    """Return all identifiers in the papers' order."""
    found = [each for name in FILES for each in _expanded(read(name))]
    return {preset.id: preset for preset in found}


def find(wanted: str) -> list[tuple[Preset, tuple[str, ...]]]:
    """Find presets by identifier, by another name, by a common beginning, or by one with a row appended."""
    known = presets()
    also = {other: preset for preset in known.values() for other in preset.also}
    if wanted in known or wanted in also:
        return [(known.get(wanted) or also[wanted], ())]
    below = {preset.id: preset for name, preset in [*known.items(), *also.items()] if name.startswith(f"{wanted}/")}
    if below:
        return [(preset, ()) for preset in below.values()]
    parent, _, row = wanted.rpartition("/")
    if (preset := known.get(parent) or also.get(parent)) is not None:
        method = preset.rows.get(row, row)
        if method in preset.methods:
            return [(preset, (method,))]
        if preset.methods:
            raise UserError(f"'{parent}' has no method '{row}'{did_you_mean(row, [*preset.methods, *preset.rows])}")
    pieces = [name.split("/") for name in (*known, *also)]
    beginnings = {"/".join(each[:length]) for each in pieces for length in range(2, len(each) + 1)}
    hint = did_you_mean(wanted, beginnings, where="'fedskew reproduce --list' shows all of them")
    raise UserError(f"there is no table or figure '{wanted}'{hint}")


@cache
def read(name: str) -> PresetFile:
    """Read a file of presets."""
    text = resources.files("fedskew.reproduce").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")
    try:
        file = PresetFile.model_validate(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"presets '{name}': {'.'.join(map(str, first['loc']))}: {first['msg']}. Correct it.") from None
    for asked in file.presets:
        same = asked.sweep.same.values() if asked.sweep else ()
        for method in [*asked.methods, *(m for each in asked.papers.values() for m in each), *same]:
            if method not in file.methods:
                raise UserError(f"preset '{asked.id}' has method '{method}'{did_you_mean(method, file.methods)}")
        for task in asked.tasks:
            if task not in file.tasks:
                raise UserError(f"preset '{asked.id}' has task '{task}'{did_you_mean(task, file.tasks)}")
    for name, each in file.tasks.items():
        for other in (each.like, each.stands_for):
            if other is not None and other not in file.tasks:
                raise UserError(f"task '{name}' names task '{other}'{did_you_mean(other, file.tasks)}")
    return file


def _expanded(file: PresetFile) -> Iterator[Preset]:
    for asked in file.presets:
        for paper, methods in asked.papers.items() or [("", asked.methods)]:
            figure = asked.figures.get(paper, "")
            for tasks in [[task] for task in asked.tasks] if "{task}" in asked.id else [asked.tasks]:
                yield _preset(file, asked, paper, figure, tasks, methods)


def _preset(
    file: PresetFile, asked: RequestedRun, paper: str, figure: str, tasks: Sequence[str], methods: Sequence[str]
) -> Preset:
    named = asked.id.format(task=tasks[0] if tasks else "", paper=paper, figure=figure)
    return Preset(
        named,
        file,
        asked.shows,
        tuple(tasks),
        tuple(methods),
        tuple(other for other in asked.also if not paper or other.startswith(f"{paper}/")),
        asked.rows,
        asked.seeds,
        asked.sweep,
        tuple(asked.prefixes),
        asked.first_rounds,
        asked.start,
        asked.client,
        asked.paper,
        asked.note,
        asked.only,
    )


def _one_round(cell: Cell, start: Cell, client: int | None) -> Cell:
    """Return a cell that makes one local update of the last model of another run."""
    once = {"rounds": 1, "clients_per_round": None}
    config, printed = (each.model_copy(update=once) for each in (cell.config, cell.printed))
    return replace(cell, config=config, printed=printed, start=start, client=client)


def _lineage(file: PresetFile, task: str) -> list[str]:
    """Return the tasks that this one resembles, the farthest first, and itself."""
    like = file.tasks[task].like
    return [task] if like is None else [*_lineage(file, like), task]


def _section(values: Settings, name: str) -> Settings:
    """Return a section of a configuration; without a name, the top level."""
    section: Settings = values.setdefault(name, {}) if name else values
    return section


def _merge(values: Settings, layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if not isinstance(value, Mapping):
            values[key] = value
            continue
        section, naming = values.setdefault(key, {}), "kind" if key == "noise" else "name"
        if value.get(naming, section.get(naming)) != section.get(naming):
            for forgotten in _FORGOTTEN.get(key, ()):
                section.pop(forgotten, None)
        _merge(section, deepcopy(dict(value)))
