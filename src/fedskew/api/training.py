"""The Python API to train: run, compare, sweep, resume and verify."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedskew.config.consent import Consent
from fedskew.config.keywords import Settings, documented
from fedskew.experiment.configure import check_kind, run_inputs, with_inputs

if TYPE_CHECKING:
    from torch import nn

    from fedskew.experiment.callbacks import Callback
    from fedskew.experiment.comparison import Comparison
    from fedskew.experiment.configure import Data
    from fedskew.experiment.recorder import Result
    from fedskew.experiment.verification import Verified
    from fedskew.parts.stages import Method
    from fedskew.report.before_after import BeforeAfter


@documented
def run(
    method: str | Method | None = None,
    *,
    data: Data | None = None,
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    force: bool = False,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    track: str | None = None,
    **options: Unpack[Settings],
) -> Result:
    """Train one method.

    Args:
        method: Its name, with parameters and combined, such as "fedlmd(beta=2)+prox"; or a `Method`. Default: fedavg.
        out: Folder for the configuration, the record and the weights. Default: nothing is written.

    Returns:
        The finished run: its rounds, scores and weights.

    Raises:
        UserError: If a value is not valid; the error says what to type.
        Diverged: If the weights are no longer finite.

    Examples:
        >>> import fedskew
        >>> quick = {"clients": 3, "rounds": 2, "local_epochs": 1, "engine": "inline"}
        >>> result = fedskew.run("fedprox(mu=0.1)", **quick)
        >>> len(result.metrics)
        2
    """
    from fedskew.experiment import run as experiment
    from fedskew.experiment.callbacks import trackers

    config, inputs = with_inputs(data, model, options, method)
    folder = None if out is None else Path(out)
    with _followed(callbacks, progress, trackers.wanted(track, folder)) as follow:
        return experiment.run(config, folder, inputs=inputs, force=force, callbacks=follow)


@documented
def compare(
    methods: Iterable[str],
    *,
    baselines: Iterable[str] = (),
    seeds: int | Sequence[int] = 1,
    data: Data | None = None,
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    track: str | None = None,
    **options: Unpack[Settings],
) -> Comparison:
    """Train several methods on the same data over the same seeds.

    Args:
        methods: Their names, with parameters and combined.
        baselines: What to run beside them: "local" (each client alone), "centralized" (all data in one place),
            "finetuned" (each method, then local epochs at each client). Default: nothing.
        seeds: The seeds, or how many from `seed` on. Default: 1.
        out: Folder for a run folder of each run, the table and the picture. Default: nothing is written.

    Returns:
        The results of all methods.

    Raises:
        UserError: If a value is not valid; the error says what to type.

    Examples:
        >>> import fedskew
        >>> quick = {"clients": 3, "rounds": 1, "local_epochs": 1, "engine": "inline"}
        >>> comparison = fedskew.compare(["fedavg", "fedprox"], **quick)
        >>> [row["method"] for row in comparison.table()]
        ['fedavg', 'fedprox']
    """
    from fedskew.experiment import comparison
    from fedskew.experiment.callbacks import trackers

    base, inputs = with_inputs(data, model, options)
    place = None if out is None else Path(out)
    with _followed(callbacks, progress, trackers.wanted(track, place)) as follow:
        return comparison.compare(
            base,
            methods,
            seeds,
            out=place,
            inputs=inputs,
            force=force,
            resume=resume,
            callbacks=follow,
            baselines=baselines,
        )


@documented
def sweep(
    methods: Iterable[str],
    *,
    grid: Iterable[str],
    out: str | Path,
    random: int | None = None,
    seeds: int = 1,
    confirm: int = 3,
    data: Data | None = None,
    model: str | nn.Module | None = None,
    force: bool = False,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    **options: Unpack[Settings],
) -> dict[str, Any]:
    """Tune methods on validation data, with equally many trials each; then run the best of each on the test data.

    Args:
        methods: Their names, with parameters and combined.
        grid: What to vary: ["lr=0.01,0.1", "fedlmd.beta=0.5,1"], or ranges to draw from, ["mu=1e-4..1:log"].
        out: Folder for a run folder of each trial, and for sweep.json, sweep.md and sweep.html.
        random: Number of trials to draw for each method. Default: the whole grid.
        seeds: Number of seeds of each trial. Default: 1.
        confirm: Number of fresh seeds on which the best trial of each method runs again. Default: 3.
        validation: Share of each client's data on which trials are scored. Default: 0.2.

    Returns:
        What sweep.json has: a dictionary with the trials and the chosen values of each method.

    Raises:
        UserError: If a value is not valid; the error says what to type.

    Examples:
        >>> import fedskew, tempfile
        >>> quick = {"clients": 3, "rounds": 1, "local_epochs": 1, "engine": "inline"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = fedskew.sweep(["fedavg"], grid=["lr=0.001,0.1"], confirm=1, out=folder, **quick)
        >>> found["methods"][0]["values"]
        {'local.lr': 0.1}
    """
    from fedskew.tuning import sweep as tuning

    check_kind("grid", grid, (list, tuple, Iterator), "a list, such as ['lr=0.01,0.1']")
    base, inputs = with_inputs(data, model, options)
    trials = tuning.Trials(tuple(grid), random, seeds, confirm)
    with _followed(callbacks, progress) as follow:
        return tuning.run(base, methods, trials, Path(out), inputs, force=force, resume=resume, callbacks=follow)


@documented
def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    method: Method | None = None,
    data: Data | None = None,
    model: nn.Module | None = None,
    data_dir: str | Path | None = None,
    workers: int | None = None,
    allow_code: Consent = False,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    track: str | None = None,
) -> Result:
    """Continue an interrupted run, to the same bits as if it had never stopped.

    Args:
        folder: The run folder.
        rounds: The new number of rounds, to make the run longer. Default: as before.
        method: The `Method`, if the run started with one in Python. Default: none.
        data: The data, if the run started with data in Python. Default: none.
        model: The module, if the run started with one in Python. Default: none.
        data_dir: Folder of the data files, if they have moved. Default: as before.
        workers: Number of workers. Default: as before.
        allow_code: Run the network "module:function" that the folder names: True, or a list of modules. Default: False.
        track: "tensorboard", "mlflow", "wandb" or "none". Default: as before.

    Returns:
        The finished run, with the rounds that were made before.

    Raises:
        UserError: If the folder holds no run, or the run started with other data or another network.

    Examples:
        >>> import fedskew, tempfile
        >>> quick = {"clients": 3, "rounds": 1, "local_epochs": 1, "engine": "inline"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = fedskew.run("fedavg", out=folder, **quick)
        ...     longer = fedskew.resume(folder, rounds=2)
        >>> len(longer.metrics)
        2
    """
    from fedskew.experiment import run as experiment
    from fedskew.experiment.callbacks import trackers

    place = Path(folder)
    tracker = trackers.used(place) if track is None else trackers.wanted(track, place)
    inputs = run_inputs(method, data, model)
    with _followed(callbacks, progress, tracker) as follow:
        now: dict[str, Any] = {"data_dir": data_dir, "workers": workers, "allow_code": allow_code}
        return experiment.resume(place, inputs=inputs, callbacks=follow, rounds=rounds, **now)


@documented
def retrain(
    folder: str | Path,
    corrections: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    force: bool = False,
    data_dir: str | Path | None = None,
    workers: int | None = None,
    allow_code: Consent = False,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
) -> BeforeAfter:
    """Train a run again with corrected labels, everything else as before, and compare the two models.

    Args:
        folder: The run folder.
        corrections: CSV files of corrected labels, as `review` writes them, such as one of each site.
        out: Folder of the new run, with the page before-after.html. A run there that was interrupted is continued.
        data_dir: Folder of the data files, if they have moved. Default: as before.
        workers: Number of workers. Default: as before.
        allow_code: Run the network "module:function" that the folder names: True, or a list of modules. Default: False.

    Returns:
        How often both models are right, over all test samples, classes and sites, with intervals of the difference.

    Raises:
        UserError: If the run is not finished, or a file names no sample of it.

    Examples:
        >>> import fedskew, pathlib, tempfile
        >>> quick = {"clients": 3, "rounds": 1, "local_epochs": 1, "engine": "inline"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fedskew.run("fedavg", out=f"{folder}/before", **quick)
        ...     corrected = pathlib.Path(folder, "corrections.csv")
        ...     size = corrected.write_text("row,corrected\\n3,7\\n")
        ...     found = fedskew.retrain(f"{folder}/before", corrected, out=f"{folder}/after")
        >>> found.changes[0].what
        'all'
    """
    from fedskew.experiment import retraining

    files = [corrections] if isinstance(corrections, str | Path) else corrections
    with _followed(callbacks, progress) as follow:
        return retraining.retrain(
            Path(folder),
            [Path(each) for each in files],
            Path(out),
            force=force,
            callbacks=follow,
            data_dir=data_dir,
            workers=workers,
            allow_code=allow_code,
        )


@documented
def verify(
    folder: str | Path,
    *,
    first: int | None = None,
    last: int | None = None,
    method: Method | None = None,
    data: Data | None = None,
    model: nn.Module | None = None,
    data_dir: str | Path | None = None,
    workers: int | None = None,
    allow_code: Consent = False,
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
) -> Verified:
    """Compute rounds of a finished run again, and compare them bit for bit with its record and checkpoints.

    Args:
        folder: The run folder.
        first: The first round to compare, from 1 on. Without kept checkpoints (`checkpoint.keep`) the computation
            starts with round 1 all the same. Default: 1.
        last: The last round to compare. Default: the run's last.
        method: The `Method`, if the run started with one in Python. Default: none.
        data: The data, if the run started with data in Python. Default: none.
        model: The module, if the run started with one in Python. Default: none.
        data_dir: Folder of the data files, if they have moved. Default: as before.
        workers: Number of workers. Default: as before.
        allow_code: Run the network "module:function" that the folder names: True, or a list of modules. Default: False.

    Returns:
        What was compared, and the first difference, if there is one.

    Raises:
        UserError: If the run has not ended, or does not have these rounds.

    Examples:
        >>> import fedskew, tempfile
        >>> quick = {"clients": 3, "rounds": 1, "local_epochs": 1, "engine": "inline"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fedskew.run("fedavg", out=folder, **quick)
        ...     verified = fedskew.verify(folder)
        >>> print(verified.difference)
        None
    """
    from fedskew.experiment import verification

    wanted = verification.plan(Path(folder), first, last)
    inputs = run_inputs(method, data, model)
    with _followed(callbacks, progress) as follow:
        now: dict[str, Any] = {"data_dir": data_dir, "workers": workers, "allow_code": allow_code}
        return verification.verify(Path(folder), wanted, inputs=inputs, callbacks=follow, **now)


@contextmanager
def _followed(
    callbacks: Iterable[Callback], progress: bool | None, trackers: Iterable[Callback] = ()
) -> Iterator[list[Callback]]:
    """Give all that follows a run: trackers, the caller's callbacks, and progress bars."""
    from fedskew.experiment.callbacks import Callback
    from fedskew.experiment.callbacks import progress as display

    check_kind("progress", progress, (bool,), "True or False")
    check_kind("callbacks", callbacks, (list, tuple, Iterator), "a list of fedskew.Callback objects")
    for each in (own := list(callbacks)):
        check_kind("a callback", each, (Callback,), "an object of a class that inherits from fedskew.Callback")
    with display.showing(progress) as bars:
        yield [*trackers, *own, *bars]
