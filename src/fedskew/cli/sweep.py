"""The command that tunes methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.progress import Advance, Progress, all_rounds
from fedskew.cli.screen import echo, print_json, print_table
from fedskew.cli.training import fresh, repeatable

if TYPE_CHECKING:
    from fedskew.config import RunConfig


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@click.option(
    "--grid",
    multiple=True,
    metavar="NAME=VALUES",
    help="beta=0.5,1,2 or fedlmd.beta=..., lr=0.01,0.1, mu=1e-4..1:log; may be repeated.",
)
@click.option("--random", type=int, help="Draw this many trials for each method.  [the whole grid]")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, help="For each trial, from --seed on.  [1]")
@click.option("--confirm", type=click.IntRange(0, 10_000), default=3, help="Fresh seeds for each method's best.  [3]")
@click.option("--validation", type=float, help="Share of clients' data that trials are scored on.  [0.2]")
@click.option("--resume", is_flag=True, help="Go on with a sweep that was interrupted.")
@options.training
@options.output
@options.as_json
def sweep(methods: tuple[str, ...], resume: bool, out: Path | None, force: bool, as_json: bool, **asked: Any) -> None:
    """Tune methods on validation data, with equally many trials each; then run the best of each on the test set."""
    from fedskew import face, sweep
    from fedskew.report import sweep as report

    own = {name: asked.pop(name) for name in ("grid", "random", "seeds", "confirm", "validation")}
    config = face.configure(**asked)
    usual = Path("runs") / f"sweep-{config.data.name}"
    folder = out or (usual if resume else fresh(usual, force))
    with repeatable(folder), Progress() as progress:

        def shown(trial: str, config: RunConfig) -> Advance:
            return progress.of(f"{trial}, seed {config.seed}", all_rounds(config))

        found = sweep.run(methods, **own, config=config, out=folder, force=force, resume=resume, progress=shown)
    if as_json:
        print_json(found)
        return
    print_table(*report.winners(found), left=3)
    echo(report.explanation(found))
    echo(f"Written to {folder}; {folder / 'sweep.html'} has all trials.")
