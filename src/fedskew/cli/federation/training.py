"""The commands that train with the sites: run, and dry-run for what would leave a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.failures import Interrupted
from fedskew.cli.federation.group import FILE, check_machine, federation, in_folder, typed
from fedskew.cli.federation.service import short_percent
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.core.errors import UserError

if TYPE_CHECKING:
    from fedskew.experiment.upload_preview import Leaf, Turn
    from fedskew.federation.coordinator.training import FederatedRun
    from fedskew.record import reader
    from fedskew.record.schema import RoundLine


#: what the coordinator may say about the training of one run
_KEYWORDS = ("rounds", "clients_per_round", "local_epochs", "batch_size", "lr", "model", "weights", "seed", "target")


@federation.command(cls=options.flags(*_KEYWORDS, unset="as in DIR/federation.toml", settings=True))
@in_folder
@click.argument("method", required=False)
@click.option("--name", help="Name of the run's folder in DIR/runs; the same name continues a run.  [by method]")
@options.allow_code
@options.as_json
def run(folder: Path, method: str | None, name: str | None, as_json: bool, **asked: Any) -> None:
    """Coordinator: train METHOD with all sites. Show every round, and write a report.

    Ctrl-C only stops the display: the run continues, and the same command shows it again. After an interruption the
    same command continues the run.
    """
    from fedskew.experiment.preparation import early_warnings
    from fedskew.federation.coordinator.training import FederatedRun, configure
    from fedskew.federation.folders import open_coordinator
    from fedskew.report.comparison import run_name

    coordinator = open_coordinator(folder)
    config = configure(coordinator, method=method, **asked)
    training = FederatedRun(coordinator, config, name or run_name(config.method, config.seed))
    for sentence in early_warnings.of_method(training.config):
        echo(sentence, err=True)
    try:
        result = training.follow(lambda line: echo(_round(training, line), err=True))
    except KeyboardInterrupt:
        raise Interrupted(
            "The run continues without display. To see it again, repeat the command. To stop it and the server, type: "
            f"fedskew federation stop {typed(folder)}"
        ) from None
    _show_result(training, result, as_json)


def _round(training: FederatedRun, line: RoundLine) -> str:
    """Describe a round: who answered, who was lost and why, who was late, and the accuracy."""
    sites = training.sites
    lost = {sites[int(client)]: why for client, why in line.get("lost", {}).items()}
    parts = [f"round {line['round']}/{training.config.rounds}: {line['replies']} of {line['asked']} sites answered"]
    if line["asked"] == len(sites) and line["replies"]:
        parts[0] += f" ({', '.join(site for site in sites if site not in lost)})"
    if line.get("accuracy") is not None:
        parts.append(f"accuracy {short_percent(line['accuracy'])}")
    parts += [f"lost: {site} ({why})" for site, why in lost.items()]
    parts += [f"late: {sites[client]}" for client in line.get("late", [])]
    return ", ".join(parts)


def _show_result(training: FederatedRun, result: reader.RunRecord, as_json: bool) -> None:
    from fedskew.record.schema import EndLine
    from fedskew.report import tables

    end, report = result.end or EndLine(), training.report()
    lost = {
        site: [line["lost"][str(number)] for line in result.rounds if str(number) in line.get("lost", {})]
        for number, site in enumerate(training.sites)
    }
    if as_json:
        facts = {key: value for key, value in end.as_json().items() if key != "kind"}
        print_json(facts | {"lost": lost, "report": str(report)})
        return
    late = [sum(number in line.get("late", []) for line in result.rounds) for number in range(len(lost))]
    rows = [
        [site, reasons[-1] if reasons else "", str(len(reasons)), str(count)]
        for (site, reasons), count in zip(lost.items(), late, strict=True)
    ]
    print_table(["site", "last reason for a loss", "lost", "late"], rows, left=2)
    shown = {
        "best": f"{tables.percent(end['best'])} %",
        "last": f"{tables.percent(end['last'])} %",
        "time": tables.duration(end["seconds"]),
        "weights_sha256": end["weights_sha256"] or "no single model",
        "folder": str(training.out),
        "report": str(report),
    }
    recall = tables.final_recall(result)
    if recall is not None:
        shares = (tables.percent(None if share != share else share, digits=0) for share in recall)
        names = result.header["data"]["labels"]
        shown["recall by class"] = "  ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True))
    print_facts(shown)


@federation.command("dry-run", cls=options.TrainingCommand)
@click.argument("method")
@click.option("--site", type=int, default=0, show_default=True, help="Number of the site.")
@click.option("--invitation", type=FILE, help="The coordinator's invitation, for classes and image size; with --data.")
@options.as_json
def dry_run(method: str, site: int, invitation: Path | None, as_json: bool, **asked: Any) -> None:
    """List every tensor that would leave a site. Nothing is sent.

    Each round of METHOD runs here, with one step of its work. With --data the site has all of that data. Give
    the network (--model) and the number of sites (--clients) that the coordinator names.
    """
    from fedskew import api
    from fedskew.experiment.upload_preview import dry_run, own_data

    config = api.configure(method=method, **asked)
    if not 0 <= site < config.partition.clients:
        raise UserError(f"--site is {site}. Give a number from 0 to {config.partition.clients - 1}.")
    if config.data.name == "own":
        if asked["partition"] is not None:
            raise UserError(f"--partition is '{asked['partition']}', but a site has all of its --data. Remove it.")
        turns = dry_run(config, own_data(config, _invited(invitation)))
    elif invitation is not None:
        raise UserError(f"--invitation '{invitation}' applies to your own data. Add --data.")
    else:
        turns = dry_run(config)
    turns = [turn for turn in from_one(turns) if turn.client == site]
    if as_json:
        print_json([asdict(turn) for turn in turns])
    else:
        print_turns(turns)


def _invited(invitation: Path | None) -> dict[str, Any]:
    if invitation is None:
        return {}
    check_machine()
    from fedskew.federation.site.service import data_options

    return data_options(invitation)


def from_one(turns: Sequence[Turn]) -> list[Turn]:
    """Count rounds from 1, as everywhere that users see them."""
    return [replace(turn, round=turn.round + 1) for turn in turns]


def print_turns(turns: Sequence[Turn]) -> None:
    """Show each kind of answer once, tensor by tensor."""
    groups: dict[Any, list[Turn]] = {}
    for turn in turns:
        groups.setdefault((turn.stage, turn.question, turn.leaves, turn.metrics), []).append(turn)
    for group in groups.values():
        first = group[0]
        what = f"the answers to {first.question}" if first.question else "the updates"
        rounds = ", ".join(str(turn.round) for turn in group[:3]) + (" ..." if len(group) > 3 else "")
        facts = {
            "leaves": f"{what} of stage {first.stage}, {len(group)} times (rounds {rounds})",
            "tensors": f"{len(first.leaves)}, {first.bytes:,} bytes each time",
            "numbers": ", ".join(("client", "examples", "steps", *first.metrics)),
        }
        print_facts(facts)
        _print_tensors(first.leaves)
        if first.stays:
            print_facts({"stays": f"{len(first.stays)} tensors, {sum(leaf.bytes for leaf in first.stays):,} bytes"})
            _print_tensors(first.stays)


def _print_tensors(leaves: Sequence[Leaf]) -> None:
    rows = [[f.place, f.name, f.dtype, str(list(f.shape)), f"{f.bytes:,}"] for f in leaves]
    print_table(["of", "tensor", "type", "shape", "bytes"], rows, left=4)
