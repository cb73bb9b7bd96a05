"""The command bench."""

from __future__ import annotations

import statistics
from dataclasses import asdict

import click

from fedskew.cli import options
from fedskew.cli.progress import showing
from fedskew.cli.screen import echo, print_json, print_table
from fedskew.core.errors import UserError, did_you_mean


@click.command()
@click.argument("jobs", nargs=-1)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Timed rounds of each side.")
@click.option("--data-dir", default=None, help="Folder with data sets.  [FEDSKEW_DATA]")
@options.as_json
def bench(jobs: tuple[str, ...], repeats: int, data_dir: str | None, as_json: bool) -> None:
    """Time rounds against the bare PyTorch loop that makes the same local steps.

    JOBS are A, B, C, fedlmd, fedvls, fedsam; all by default, which takes 15 minutes on two cores. Some need CIFAR-10
    or MNIST. Both sides take turns, round by round, and evaluation counts. Let nothing else run meanwhile.
    """
    from fedskew.benchmark.jobs import JOBS
    from fedskew.benchmark.measure import measure
    from fedskew.experiment import run_metadata

    known = {job.id: job for job in JOBS}
    for name in jobs:
        if name not in known:
            raise UserError(f"job '{name}' is unknown{did_you_mean(name, known)}")
    rows, found = [], {}
    with showing():
        for job in (known[name] for name in jobs or known):
            try:
                measured = measure(job, repeats, data_dir)
            except UserError as error:
                if jobs:
                    raise
                echo(f"Job {job.id} is left out: {error}", err=True)
                continue
            found[job.id] = measured
            low, high = measured.spread
            rows.append(
                (
                    job.id, job.what, f"{statistics.median(measured.floor):.3f}",
                    f"{statistics.median(measured.pool):.3f}", f"{measured.ratio:.2f}", f"{low:.2f} to {high:.2f}",
                    f"{job.bound:.2f}", "{:.1f} / {:.1f}".format(*(100 * each for each in measured.accuracies)),
                )
            )  # fmt: skip
    if as_json:
        print_json({name: asdict(each) | {"ratio": each.ratio} for name, each in found.items()})
        return
    heading = ("job", "", "bare loop s", "pool s", "ratio", "of single rounds", "aim", "accuracy %")
    print_table(heading, rows, left=2)
    machine = run_metadata.hardware()
    echo(f"{machine['cpu']}; medians of {repeats} rounds in turns, after one to warm up.")
