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
from fedskew.cli.progress import Advance, Progress, all_rounds
from fedskew.cli.screen import echo, print_facts, print_json, print_table, rounds_from_one
from fedskew.errors import UserError

if TYPE_CHECKING:
    from fedskew.config import RunConfig
    from fedskew.experiment import Result


@click.command()
@options.setting("--method", "A name such as fedprox(mu=0.5), or several with +.", "fedavg")
@options.training
@options.output
@options.track
@options.as_json
def run(out: Path | None, force: bool, track: str | None, as_json: bool, **asked: Any) -> None:
    """Train one method and leave a run folder."""
    from fedskew import face
    from fedskew.report.comparison import run_name

    config = face.configure(**asked)
    name = run_name(f"{config.method}-{config.data.name}", config.seed)
    folder = out or fresh(Path("runs") / name, force)
    _announce(config.method, config)
    with _resumable(folder, config), Progress() as progress:
        shown = progress.of(config.method, all_rounds(config))
        result = face.run(config=config, out=folder, force=force, progress=shown, track=track)
    _show(result, as_json)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--rounds", type=int, help="Go on to this many rounds in all; not where a method goes by their number.")
@options.setting("--data-dir", "Where its data are now; or set FEDSKEW_DATA.", "where they were")
@options.setting("--workers", "Processes of the pool, or actors of Ray.", "as before", int)
@options.setting("--track", "Show the record's numbers in tensorboard or mlflow, too, or in none.", "as before")
@options.allow_code
@options.as_json
def resume(run: Path, track: str | None, as_json: bool, **now: Any) -> None:
    """Go on with the run in the folder RUN, to the same bits as if it had never stopped."""
    from fedskew import experiment, face

    config = experiment.begun(run, **now)
    with _resumable(run, config), Progress() as progress:
        shown = progress.of(config.method, all_rounds(config))
        result = face.resume(run, progress=shown, track=track, **now)
    _show(result, as_json)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--rounds", metavar="FIRST-LAST", help="Only these, from 1 on; needs states kept by checkpoint.keep.  [all]"
)
@options.setting("--data-dir", "Where its data are now; or set FEDSKEW_DATA.", "where they were")
@options.setting("--workers", "Processes of the pool, or actors of Ray.", "as before", int)
@options.allow_code
def verify(run: Path, rounds: str | None, **now: Any) -> None:
    """Compute the finished run in RUN again, and confirm its record and its states bit for bit."""
    from fedskew import face, verification
    from fedskew.report.tables import duration

    first, last = _range(rounds)
    wanted = verification.plan(run, first, last)
    count = wanted.last - wanted.first + 1
    echo(
        f"Computing rounds {wanted.first} to {wanted.last} again; the run took {duration(wanted.seconds)} for them.",
        err=True,
    )
    with Progress() as progress:
        shown = progress.of(f"verify {run}", wanted.last)
        found = face.verify(run, first=first, last=last, progress=shown, **now)
    if found.difference is not None:
        raise Different(found.difference)
    states = f", and {found.states} stored states" if found.states else ""
    echo(f"Confirmed: {count} rounds have the same numbers{states}, bit for bit.")


def _range(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise UserError(f"--rounds is '{text}'; give a round or a range, for example --rounds 5-10")
    return int(first), int(last or first)


@click.command()
@click.argument("methods", nargs=-1, required=True, metavar="METHOD...")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, help="How many, from --seed on.  [1]")
@click.option("--resume", is_flag=True, help="Go on with a comparison that was interrupted.")
@options.training
@options.output
@options.track
@options.as_json
def compare(
    methods: tuple[str, ...],
    seeds: int,
    resume: bool,
    out: Path | None,
    force: bool,
    track: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Train several methods on the same data over the same seeds, and print one table."""
    from fedskew import face
    from fedskew.report import shortfalls, tables

    config = face.configure(**asked)
    usual = Path("runs") / f"compare-{config.data.name}"
    folder = out or (usual if resume else fresh(usual, force))
    _announce(", ".join(methods), config)
    with repeatable(folder), Progress() as progress:

        def shown(method: str, seed: int) -> Advance:
            wanted = config.model_copy(update={"method": method})
            return progress.of(f"{method}, seed {seed}", all_rounds(wanted))

        done = face.compare(
            methods, seeds=seeds, config=config, out=folder, force=force, resume=resume, progress=shown, track=track
        )
    for (method, seed), why in done.failed.items():
        echo(f"{method}, seed {seed}, is not in the table: {why}.", err=True)
    rows = done.table()
    if as_json:
        print_json(rows)
        return
    print_table(*tables.comparison_cells(rows))
    for name, runs in done.results.items():
        for told in shortfalls.together(runs):
            echo(f"{name}: {told}.")
    echo(f"Written to {folder}; fedskew report {shlex.quote(str(folder))} makes a page of it.")


def fresh(usual: Path, force: bool) -> Path:
    """The usual folder, or the first of usual-2, usual-3, ... that is not there yet."""
    number, folder = 1, usual
    while folder.exists() and not force:
        number += 1
        folder = usual.with_name(f"{usual.name}-{number}")
    return folder


def _announce(what: str, config: RunConfig) -> None:
    """Tell who is watching what is being prepared; logs begin with the first rounds."""
    if not sys.stderr.isatty():
        return
    from fedskew.config import PARTITION_NEEDS

    needed = PARTITION_NEEDS[config.partition.name]
    split = config.partition.name + (f":{getattr(config.partition, needed)}" if needed else "")
    clients = f"{config.per_round or config.partition.clients} of {config.partition.clients} clients in each"
    echo(f"{what} on {config.data.name}, {split}: {config.rounds} rounds, {clients}", err=True)
    if config.noise.kind in ("h_idn", "idn") and config.noise.soft_labels is None:
        echo(f"Annotators, who make the noise, come first: {config.noise.annotator.epochs} epochs", err=True)


@contextmanager
def _resumable(folder: Path, config: RunConfig) -> Iterator[None]:
    """Ctrl-C ends in a line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        from fedskew import consent
        from fedskew.run_folder import CONFIG

        if not (folder / CONFIG).exists():
            raise Interrupted("Interrupted before the first round; nothing was written.") from None
        words = ["fedskew", "resume", str(folder), *(["--allow-code"] if consent.code_in(config) else [])]
        raise Interrupted(f"Interrupted; go on with: {shlex.join(words)}") from None


@contextmanager
def repeatable(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted; go on with the same command and --resume --out {shlex.quote(str(folder))}"
        ) from None


def _show(result: Result, as_json: bool) -> None:
    from fedskew.report import shortfalls, tables

    traffic, end = tables.traffic(result), result.end
    at = rounds_from_one(end)
    if as_json:
        more = {**at, **traffic, "notes": shortfalls.of(result), "folder": str(result.folder)}
        print_json({**{k: v for k, v in end.items() if k != "kind"}, **more})
        return
    facts = _scores(result, at) | ({"note": "; ".join(told)} if (told := shortfalls.of(result)) else {})
    recall = tables.final_recall(result)
    if recall is not None:
        labels = result.header["data"]["labels"]
        facts["recall by class"] = "  ".join(
            f"{name} {tables.percent(None if share != share else share, digits=0)}"
            for name, share in zip(labels, recall, strict=True)
        )
    for group in tables.GROUPS:
        if (score := tables.client_score(result, group)) is not None:
            facts[f"clients: {group}"] = f"{tables.percent(score)} %"
    if result.header["data"].get("notes"):
        facts["data"] = "; ".join(result.header["data"]["notes"])
    if "privacy" in end:
        facts["privacy"] = end["privacy"]["statement"]
    facts |= {
        "time": tables.duration(end["seconds"]),
        "up, down": f"{tables.size(traffic['up'])}, {tables.size(traffic['down'])}",
        "weights_sha256": end["weights_sha256"] or "no single model",
        "folder": str(result.folder),
    }
    print_facts(facts)


def _scores(result: Result, at: dict[str, int]) -> dict[str, str]:
    """How good the models were; `at` says in which round."""
    from fedskew import record
    from fedskew.report import tables

    end = result.end
    if not result.rounds:
        return {"rounds": "none, so nothing was trained; the weights are the initial ones"}
    best_round = f" (round {at['best_round']})" if "best_round" in at else ""
    facts = {"best": f"{tables.percent(end['best'])} %{best_round}", "last": f"{tables.percent(end['last'])} %"}
    averaged = len(record.evaluated(result.rounds)[-10:])
    if averaged > 1:
        facts[f"mean of last {averaged}"] = f"{tables.percent(end['last10'])} %"
    undecided = next((line.get("undecided") for line in reversed(result.rounds) if "accuracy" in line), None)
    if undecided:
        tested = result.header["data"]["test"]
        facts["diverged"] = (
            f"the last model gives no numbers for {undecided:,} of {tested:,} test samples, which count as wrong; a "
            "smaller --lr may help"
        )
    if "target" in end:
        reached = f"reached in round {at['reached']}" if "reached" in at else "not reached"
        facts[f"target {tables.percent(end['target'])} %"] = reached
    return facts
