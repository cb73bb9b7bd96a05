"""The command that tunes methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedskew.cli import options
from fedskew.cli.progress import showing
from fedskew.cli.screen import echo, print_json, print_table
from fedskew.cli.training import fresh, repeatable
from fedskew.methods import index


@click.command(cls=options.TrainingCommand)
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@click.option(
    "--grid",
    multiple=True,
    metavar="NAME=VALUES",
    help="What to vary: beta=0.5,1,2, fedlmd.beta=0.5,1, lr=0.01,0.1 or mu=1e-4..1:log; repeat it for more.",
)
@click.option("--random", type=int, help="Number of trials to draw for each method.  [the whole grid]")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, help="Seeds of each trial, from --seed on.  [1]")
@click.option("--confirm", type=click.IntRange(0, 10_000), default=3, help="Fresh seeds for the best trials.  [3]")
@click.option("--resume", is_flag=True, help="Continue an interrupted sweep.")
@options.output
@options.as_json
def sweep(methods: tuple[str, ...], resume: bool, out: Path | None, force: bool, as_json: bool, **asked: Any) -> None:
    """Tune methods on validation data. Each has equally many trials; its best runs on the test data.

    Without --validation, trials are scored on 0.2 of each client's data.
    """
    index.check("+".join(methods))
    from fedskew import api
    from fedskew.report import sweep as report

    own = {name: asked.pop(name) for name in ("grid", "random", "seeds", "confirm")}
    config = api.configure(**asked)
    usual = Path("runs") / f"sweep-{config.data.name}"
    folder = out or (usual if resume else fresh(usual, force))
    with repeatable(folder), showing() as callbacks:
        found = api.sweep(
            methods, **own, config=config, out=folder, force=force, resume=resume, callbacks=callbacks, progress=False
        )
    if as_json:
        print_json(found)
        return
    winners = report.winners(found)
    print_table(winners.heading, winners.cells, left=3)
    echo(report.explanation(found))
    echo(f"Written to {folder}; {folder / 'sweep.html'} has all trials.")
