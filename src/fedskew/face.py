"""The Python face: run, compare and resume, with the command line's own words for everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from fedskew import config as configuration
from fedskew import record
from fedskew.config import RunConfig
from fedskew.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import nn

    from fedskew.experiment import Given, Progress, Result
    from fedskew.parts.stages import Method

#: what a flag or keyword sets in the configuration
FLAGS = {
    "method": "method",
    "seed": "seed",
    "rounds": "rounds",
    "per_round": "per_round",
    "dataset": "data.name",
    "data_dir": "data.dir",
    "augment": "data.augment",
    "clients": "partition.clients",
    "model": "model.name",
    "head": "model.head",
    "epochs": "local.epochs",
    "batch": "local.batch",
    "lr": "local.lr",
    "lr_decay": "local.lr_decay",
    "momentum": "local.momentum",
    "weight_decay": "local.weight_decay",
    "optimiser": "local.optimiser",
    "target": "evaluate.target",
    "score_clients": "evaluate.clients",
    "engine": "engine.name",
    "workers": "engine.workers",
    "device": "engine.device",
    "precision": "engine.precision",
}


def configure(
    config: str | Path | RunConfig | None = None,
    *,
    partition: str | None = None,
    settings: Iterable[str] = (),
    **flags: Any,
) -> RunConfig:
    """A configuration from a TOML file (or the defaults), then flags that are not None, then ``key=value`` settings."""
    base = config if isinstance(config, RunConfig) else RunConfig() if config is None else configuration.load(config)
    values = base.model_dump()
    if partition is not None:
        values["partition"] |= configuration.Partition.parse(partition)
    for flag, value in flags.items():
        if flag not in FLAGS:
            raise UserError(f"there is no option '{flag}'{nearest(flag, FLAGS)}")
        if value is not None:
            *sections, name = FLAGS[flag].split(".")
            table = values
            for section in sections:
                table = table[section]
            table[name] = value
    settings = list(settings)
    checked = configuration.from_dict(values)
    return configuration.override(checked, settings) if settings else checked


def run(
    method: str | Method = "fedavg",
    *,
    data: Sequence[Any] | None = None,
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Train one method. `data` is (x_train, y_train, x_test, y_test); `model` a name, a ``module:function`` or a module."""
    from fedskew import experiment

    config, given = _asked(method, data, model, options)
    folder = None if out is None else Path(out)
    return experiment.run(config, folder, given=given, force=force, progress=progress)


def compare(
    methods: Iterable[str],
    *,
    seeds: int | Sequence[int] = 1,
    data: Sequence[Any] | None = None,
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    force: bool = False,
    progress: Any = None,
    **options: Any,
) -> Comparison:
    """Train several methods on the same data over the same seeds; `progress(method, seed)` gives a Progress."""
    from fedskew import experiment

    wanted = range(seeds) if isinstance(seeds, int) else seeds
    methods = list(methods)
    asked = [(m, s, *_asked(m, data, model, options | {"seed": s})) for m in methods for s in wanted]
    results: dict[str, list[Result]] = {m: [] for m in methods}
    for each, seed, config, given in asked:
        folder = None if out is None else Path(out) / f"{each}-seed{seed}"
        each_progress = None if progress is None else progress(each, seed)
        results[each].append(experiment.run(config, folder, given=given, force=force, progress=each_progress))
    return Comparison(results)


def resume(folder: str | Path, *, data: Sequence[Any] | None = None, model: Any = None, **options: Any) -> Result:
    """Go on with an interrupted run. Data and a module that were handed over in Python must be handed over again."""
    from fedskew import experiment

    return experiment.resume(Path(folder), given=_given(None, data, model), **options)


def load(folder: str | Path) -> record.Run:
    """Read a run's record."""
    return record.read(folder)


class Comparison:
    """Results by method, over seeds."""

    def __init__(self, results: dict[str, list[Result]]) -> None:
        self.results = results

    def table(self, target: float | None = None) -> list[dict[str, Any]]:
        """One row per method: mean and (population) standard deviation over seeds, rounds to the target."""
        rows = []
        for method, results in self.results.items():
            best, last = ([getattr(r, key) for r in results if getattr(r, key) is not None] for key in ("best", "last"))
            row: dict[str, Any] = {"method": method, "seeds": len(results)}
            for name, values in (("best", best), ("last", last)):
                row[name] = fmean(values) if values else None
                row[f"{name}_std"] = pstdev(values) if values else None
            if target is not None:
                row["reached"] = [record.first_reaching(r.rounds, target) for r in results]
            for group in ("majority", "minority", "vacant"):
                shown = [r.rounds[-1].get(f"client_{group}") for r in results if r.rounds]
                found = [value for value in shown if value is not None]
                row[group] = fmean(found) if found else None
            row["seconds"] = fmean(r.end["seconds"] for r in results)
            rows.append(row)
        return rows


def _asked(method: Any, data: Any, model: Any, options: dict[str, Any]) -> tuple[RunConfig, Given]:
    named = method if isinstance(method, str) else method.expression or "custom"
    network = model if isinstance(model, str) else None
    if data is not None:
        options = options | {"dataset": "arrays"}
    config = configure(**options, method=named, model=network)
    return config, _given(None if isinstance(method, str) else method, data, model)


def _given(method: Any, data: Any, model: Any) -> Given:
    from fedskew.data import sources
    from fedskew.experiment import Given

    source = None if data is None else sources.from_arrays(*data)
    return Given(source, None if isinstance(model, str) else model, method)
