"""The command that shows runs while they are going."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from fedskew.cli.screen import echo


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="To listen on.  [one that is free]")
def watch(runs: tuple[Path, ...], port: int) -> None:
    """Show runs in a browser while they are going. RUN is a run folder, a record file, or a folder of runs."""
    from fedskew.watch import Server, Watched

    with Server(Watched(runs), port) as server:
        echo(f"Watch at {server.address} (Ctrl-C ends the watching, not the run).")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
