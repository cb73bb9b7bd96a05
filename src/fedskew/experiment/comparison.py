"""Several methods on the same data, over the same seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core.errors import Diverged, UserError, did_you_mean
from fedskew.core.wording import number_of
from fedskew.experiment import run as experiment
from fedskew.experiment import views
from fedskew.experiment.callbacks import Callback, Callbacks
from fedskew.experiment.preparation import early_warnings
from fedskew.experiment.preparation.annotators import SoftLabelCache
from fedskew.experiment.recorder import Result
from fedskew.experiment.run import RunInputs
from fedskew.methods import registry
from fedskew.record import run_dir, run_lock
from fedskew.record.schema import RoundLine
from fedskew.report import comparison, tables, versus_local
from fedskew.report.versus_local import SiteDifference

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class Comparison:
    """The results of several methods.

    Attributes:
        results: The results by method, one for each seed.
        target: The accuracy to which rounds are counted.
        failed: Why runs diverged, by method and seed.
    """

    def __init__(
        self,
        results: dict[str, list[Result]],
        target: float | None = None,
        failed: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        self.results = results
        self.target = target
        self.failed = dict(failed or {})

    def table(self, target: float | None = None) -> list[dict[str, Any]]:
        """Return a row per method: means and (population) standard deviations over seeds, rounds to the target.

        Args:
            target: The accuracy, from 0 to 1. Default: that of the comparison.

        Returns:
            A dictionary per method, with scores from 0 to 1.
        """
        return tables.comparison(self.results, self.target if target is None else target)

    @property
    def metrics(self) -> dict[str, list[list[RoundLine]]]:
        """What was measured, by method: for each seed a line per round; rounds are numbered from 1."""
        return {method: [result.metrics for result in runs] for method, runs in self.results.items()}

    def summary(self) -> str:
        """Return the table as text."""
        return views.text_table(*tables.comparison_cells(self.table()))

    def versus_local(self) -> list[SiteDifference]:
        """Return what each site gains by each method, over all classes and for each, with intervals and verdicts.

        It needs runs of the method `local`, as `baselines=["local"]` makes them; otherwise the list is empty.
        """
        return versus_local.differences(self.results)

    def plot_versus_local(self, path: str | Path | None = None, method: str | None = None) -> Figure:
        """Draw a forest plot of what each site gains by a method.

        Args:
            path: Where to save the figure, such as "gains.png". Default: nowhere.
            method: The method. Default: the first.

        Returns:
            The figure.

        Raises:
            UserError: If the method, or the baseline `local`, is not in the comparison.
        """
        from fedskew.report.plots import forest, style

        rows = self.versus_local()
        methods = list(dict.fromkeys(row.method for row in rows))
        if not methods or method not in (None, *methods):
            raise UserError(
                f"there is nothing to compare with local training{'' if method is None else f' of {method!r}'}. "
                f"Compare with baselines=['local']{did_you_mean(method, methods) if method and methods else '.'}"
            )
        chosen = method or methods[0]
        drawn = forest.forest(forest.pictured(rows, chosen), chosen)
        if path is not None:
            style.save(drawn, Path(path))
        return drawn

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a row per method, seed and round.

        Raises:
            UserError: If pandas is not installed.
        """
        rows = [
            {"method": method, "seed": result.config.seed, **views.scalars(line)}
            for method, runs in self.results.items()
            for result in runs
            for line in result.rounds
        ]
        return views.data_frame(rows)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw accuracy over rounds, and the client models if they were evaluated.

        Args:
            path: Where to save the figure, such as "curves.png". Default: nowhere.

        Returns:
            The figure.
        """
        return views.figure(self.results, self.target, path)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.results)}: {number_of(sum(map(len, self.results.values())), 'run')})"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return views.html_table(*tables.comparison_cells(self.table()))


def compare(
    base: RunConfig,
    methods: Iterable[str],
    seeds: int | Sequence[int],
    *,
    out: Path | None,
    inputs: RunInputs,
    force: bool,
    resume: bool,
    callbacks: Sequence[Callback],
    baselines: Iterable[str] = (),
) -> Comparison:
    """Train each method with each seed; with `out`, leave a run folder for each, and the table and picture."""
    wanted = _checked(with_baselines(methods, baselines))
    pairs = [(method, seed) for method in wanted for seed in _seeds(base, seeds)]
    folders = {pair: None if out is None else out / comparison.run_name(*pair) for pair in pairs}
    with nullcontext() if out is None else run_lock.locked(out):
        for folder in folders.values():
            if folder is not None and not resume:
                run_dir.check_free(folder, force, fix="Type --resume to continue it")
        if out is not None and resume:
            comparison.check_all_named(out, [folder for folder in folders.values() if folder is not None])
        inputs = replace(
            inputs, source=inputs.source or experiment.shared_source(base), soft_labels=SoftLabelCache(out)
        )
        if out is not None:
            comparison.reopen(out)
        _say_limits(base, dict.fromkeys(method for method, _ in pairs), callbacks)
        train = experiment.resume_or_run if resume else partial(experiment.run, force=force)
        results: dict[str, list[Result]] = {}
        failed: dict[tuple[str, int], str] = {}
        for (method, seed), folder in folders.items():
            config = configuration.from_dict(base.model_dump() | {"method": method, "seed": seed})
            named = replace(inputs, name=f"{method}, seed {seed}")
            try:
                results.setdefault(method, []).append(train(config, folder, inputs=named, callbacks=callbacks))
            except Diverged as error:
                failed[method, seed] = str(error)
        results = {method: found for method, found in results.items() if found}
        if not results:
            raise UserError(next(iter(failed.values())))
        done = Comparison(results, base.evaluate.target, failed)
        if out is not None:
            comparison.write(out, results, done.table())
    return done


def with_baselines(methods: Iterable[str], baselines: Iterable[str]) -> Iterable[str]:
    """Add baselines to the methods: each beside them or, if it is a closing stage, after each of them."""
    if isinstance(methods, str) or not baselines:
        return methods
    wanted = [each.strip() for each in (baselines.split(",") if isinstance(baselines, str) else baselines)]
    for each in wanted:
        if each.partition("(")[0] not in registry.baselines():
            raise UserError(f"there is no baseline '{each}'{did_you_mean(each, registry.baselines())}")
    named = list(methods)
    beside = [each for each in wanted if not _closes(each)]
    after = [f"{method}+{each}" for each in wanted if _closes(each) for method in named]
    return [*named, *(each for each in (*after, *beside) if each not in named)]


def _closes(baseline: str) -> bool:
    return any(stage.closing for stage in registry.build(baseline).stages)


def _say_limits(base: RunConfig, methods: Iterable[str], callbacks: Sequence[Callback]) -> None:
    """Say before the first run what limits any of them."""
    for method in methods:
        for sentence in early_warnings.of_method(base.model_copy(update={"method": method})):
            Callbacks(callbacks).call("on_message", sentence)


def _seeds(base: RunConfig, seeds: int | Sequence[int]) -> Sequence[int]:
    """Return the seeds: those that are listed, or as many as the number says, from the configuration's on."""
    wanted = range(base.seed, base.seed + seeds) if isinstance(seeds, int) else seeds
    listed = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    if not listed or not wanted or len(set(wanted)) < len(wanted):
        raise UserError(f"seeds is {seeds!r}. Give a number of at least 1, or a list of different seeds.")
    return wanted


def _checked(methods: Iterable[str]) -> list[str]:
    """Return the methods; a wrong name is an error before the first run."""
    named = [] if isinstance(methods, str) else list(methods)
    if not named or not all(isinstance(each, str) for each in named):
        raise UserError(f"methods is {methods!r}. Give a list of names, such as ['fedavg', 'fedprox'].")
    named = [registry.canonical(each) for each in named]
    built = [registry.build(each).expression for each in named]
    for method, expression in zip(named, built, strict=True):
        if built.count(expression) > 1:
            raise UserError(f"method '{method}' would be compared with itself. Type it once.")
    return named
