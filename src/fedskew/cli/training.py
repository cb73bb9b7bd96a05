"""Commands that train: run, compare, resume, verify."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.failures import Different, Interrupted
from fedskew.cli.progress import showing
from fedskew.cli.screen import echo, print_json, print_table
from fedskew.core.errors import UserError
from fedskew.core.wording import number_of
from fedskew.methods import index

if TYPE_CHECKING:
    from fedskew.config.schema import RunConfig
    from fedskew.experiment.run import Result


@click.command(cls=options.RunCommand)
@options.output
@options.track
@options.as_json
def run(out: Path | None, force: bool, track: str | None, as_json: bool, **asked: Any) -> None:
    """Train one method, and write a run folder."""
    index.check(asked.get("method") or "")
    from fedskew import api
    from fedskew.report.comparison import run_name

    config = api.configure(**asked)
    name = run_name(f"{config.method}-{config.data.name}", config.seed)
    folder = out or fresh(Path("runs") / name, force)
    _announce(config.method, config)
    with _resumable(folder, config), showing() as callbacks:
        result = api.run(config=config, out=folder, force=force, callbacks=callbacks, progress=False, track=track)
    _show(result, as_json)


@click.command(cls=options.flags("data_dir", "workers", unset="as before"))
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--rounds", type=int, help="New number of rounds, to make the run longer.")
@options.setting("--track", "Log to tensorboard, mlflow, wandb or none.", "as before")
@options.allow_code
@options.as_json
def resume(run: Path, track: str | None, as_json: bool, **now: Any) -> None:
    """Continue the interrupted run in the folder RUN. It ends in the same bits as if it had never stopped."""
    from fedskew import api
    from fedskew.experiment import run as experiment

    config = experiment.resumed_config(run, **now)
    with _resumable(run, config), showing() as callbacks:
        result = api.resume(run, callbacks=callbacks, progress=False, track=track, **now)
    _show(result, as_json)


@click.command(cls=options.flags("data_dir", "workers", unset="as before"))
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--rounds", metavar="FIRST-LAST", help="Rounds to verify; faster with checkpoint.keep.  [all]")
@options.allow_code
def verify(run: Path, rounds: str | None, **now: Any) -> None:
    """Compute the run in the folder RUN again. Compare its record and checkpoints bit for bit."""
    from fedskew import api
    from fedskew.experiment import verification
    from fedskew.report.tables import duration

    first, last = _range(rounds)
    wanted = verification.plan(run, first, last)
    count = wanted.last - wanted.first + 1
    echo(
        f"Computing rounds {wanted.first} to {wanted.last} again; they took {duration(wanted.seconds)} in the run.",
        err=True,
    )
    with showing() as callbacks:
        found = api.verify(run, first=first, last=last, callbacks=callbacks, progress=False, **now)
    if found.difference is not None:
        raise Different(found.difference)
    states = f", and {found.states} stored states" if found.states else ""
    echo(f"Confirmed: {count} rounds have the same numbers{states}, bit for bit.")


def _range(text: str | None) -> tuple[int | None, int | None]:
    """Return the first and the last of ``5-10``, or of ``5``."""
    if text is None:
        return None, None
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise UserError(f"--rounds is '{text}', no round or range. Type, for example, --rounds 5-10.")
    return int(first), int(last or first)


@click.command(cls=options.TrainingCommand)
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@click.option(
    "--baselines", default="", metavar="NAMES", help="Also run: local, centralized, finetuned; commas between."
)
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, help="Number of seeds, from --seed on.  [1]")
@click.option("--resume", is_flag=True, help="Continue an interrupted comparison.")
@options.output
@options.track
@options.as_json
def compare(
    methods: tuple[str, ...],
    baselines: str,
    seeds: int,
    resume: bool,
    out: Path | None,
    force: bool,
    track: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Train several methods on the same data and seeds. Print one table."""
    index.check("+".join(methods))
    from fedskew import api
    from fedskew.report import run_warnings, tables, versus_local

    config = api.configure(**asked)
    usual = Path("runs") / f"compare-{config.data.name}"
    folder = out or (usual if resume else fresh(usual, force))
    _announce(", ".join(methods), config)
    with repeatable(folder), showing() as callbacks:
        done = api.compare(
            methods,
            baselines=baselines.split(",") if baselines else (),
            seeds=seeds,
            config=config,
            out=folder,
            force=force,
            resume=resume,
            callbacks=callbacks,
            progress=False,
            track=track,
        )
    for (method, seed), why in done.failed.items():
        echo(f"{method}, seed {seed}, is not in the table: {why}.", err=True)
    rows, gains = done.table(), done.versus_local()
    if as_json:
        of = {name: [gain.row() for gain in gains if gain.method == name] for name in done.results}
        print_json([{**row, **({"versus_local": of[row["method"]]} if of[row["method"]] else {})} for row in rows])
        return
    print_table(*tables.comparison_cells(rows))
    if gains:
        print_table(*versus_local.cells([gain for gain in gains if gain.label is None]), left=3)
        for said in versus_local.summary(gains):
            echo(said)
    for name, runs in done.results.items():
        for warning in run_warnings.together(runs):
            echo(f"{name}: {warning}.")
    echo(f"Written to {folder}; its picture is comparison.png.")
    echo(f"For a page of it, type: fedskew report {shlex.quote(str(folder))}")


def fresh(usual: Path, force: bool) -> Path:
    """Return the usual folder, or the first of usual-2, usual-3, ... that does not exist."""
    number, folder = 1, usual
    while folder.exists() and not force:
        number += 1
        folder = usual.with_name(f"{usual.name}-{number}")
    return folder


def _announce(what: str, config: RunConfig) -> None:
    """Say on a terminal what is prepared, before the first round."""
    if not sys.stderr.isatty():
        return
    rounds, clients = number_of(config.rounds, "round"), number_of(config.partition.clients, "client")
    asked = config.clients_per_round or config.partition.clients
    echo(f"{what} on {config.data.name}, {config.partition}: {rounds}, {asked} of {clients} in each", err=True)
    if config.noise.kind in ("h_idn", "idn") and config.noise.soft_labels is None:
        echo(f"The annotators that make the noise train first: {config.noise.annotator.epochs} epochs", err=True)


@contextmanager
def _resumable(folder: Path, config: RunConfig) -> Iterator[None]:
    """End after Ctrl-C with a line that says how to continue the run."""
    try:
        yield
    except KeyboardInterrupt:
        from fedskew.config import consent
        from fedskew.record.run_dir import CONFIG

        if not (folder / CONFIG).exists():
            raise Interrupted("Interrupted before the first round; nothing was written.") from None
        words = ["fedskew", "resume", str(folder), *(["--allow-code"] if consent.code_in(config) else [])]
        raise Interrupted(f"Interrupted. To continue, type: {shlex.join(words)}") from None


@contextmanager
def repeatable(folder: Path) -> Iterator[None]:
    """End after Ctrl-C with a line that says how to continue the command."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted. To continue, type the same command with --resume --out {shlex.quote(str(folder))}"
        ) from None


def _show(result: Result, as_json: bool) -> None:
    from fedskew.report import run_warnings, tables

    if as_json:
        more = {**tables.traffic(result), "notes": run_warnings.of(result), "folder": str(result.folder)}
        print_json({**result.end.as_json(), **more})
    else:
        echo(result.summary(), lines=True)
