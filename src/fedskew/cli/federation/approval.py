"""Commands with which a site says what it agrees to, and sees what was asked of it."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.machine import check_machine
from fedskew.cli.preview import print_turns
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.errors import UserError

if TYPE_CHECKING:
    from fedskew.federation.folder import Member
    from fedskew.flower.approval import Statement

A_FOLDER = click.Path(path_type=Path, file_okay=False)
#: hexadecimal digits of ids and hashes that tell them apart on the screen
SHORT = 8


@click.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.argument("method", required=False)
@options.setting("--model", "The network's name.", "auto")
@options.setting("--clients", "Number of sites in the federation.", "you must say it", int)
@options.setting("--rounds", "Most rounds, in all runs together.", "20", int)
@options.setting("--epochs", "Local epochs.", "5", int)
@options.setting("--batch", "Samples in a batch.", "50", int)
@options.setting("--lr", "Local learning rate.", "0.01", float)
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with the training; options win over it.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key, e.g. local.momentum=0.")
@click.option("--allow", multiple=True, metavar="KEY=LOW..HIGH", help="Let a number vary, e.g. local.lr=0.01..0.1.")
@click.option(
    "--score",
    type=click.Choice(["sites", "server"]),
    default="sites",
    show_default=True,
    help="Whose test data scores the model. With 'sites' a confusion matrix and a loss leave, too.",
)
@click.option("--mean", type=float, default=0.5, show_default=True, help="Images are normalized by it.")
@click.option("--std", type=float, default=0.25, show_default=True, help="Likewise; both are the coordinator's.")
@click.option("--score-clients", is_flag=True, default=None, help="Let scores of this site's own model leave, too.")
@click.option("--epsilon", type=float, help="Most privacy loss in all; for methods with noise (docs/privacy.md).")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Last day, by this machine's clock.  [in 90 days]")
@click.option("--name", help="Name of the approval.  [by method]")
@click.option("--revoke", metavar="NAME", help="Withdraw this approval.")
@click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
@options.as_json
def approve(folder: Path, method: str | None, revoke: str | None, as_json: bool, **asked: Any) -> None:
    """Site: agree to METHOD after seeing what would leave; without METHOD, list what DIR has approved.

    The site refuses whatever it has not approved. All but the seed and what is measured is fixed by the approval;
    --allow lets a number vary.
    """
    check_machine()
    from fedskew.federation import approval

    site = approval.member(folder)
    if revoke is not None:
        if method is not None:
            raise UserError(f"--revoke {revoke} takes no METHOD. Leave out '{method}'.")
        kept, counted = approval.revoke(site, revoke)
        if counted:
            echo(f"Revoked '{revoke}': this site refuses it from now on. Its statement is kept as {kept}.")
        else:
            echo(f"'{revoke}' is not in the log as approved, so it did not count. Its statement is kept as {kept}.")
    elif method is None:
        _list(site, as_json)
    else:
        _approve(site, folder, method, as_json, **asked)


def _list(site: Member, as_json: bool) -> None:
    from fedskew.federation.approval import standings

    found = standings(site)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    if not found:
        echo(f"Site '{site.name}' has approved nothing, so it answers nothing.")
        return
    rows = [[e.name, e.method, e.network, e.until, e.state, f"{e.left} of {e.of}"] for e in found]
    print_table(["approval", "method", "network", "until", "is", "updates sent"], rows, left=5)


def _approve(
    site: Member,
    folder: Path,
    method: str,
    as_json: bool,
    score: str,
    allow: tuple[str, ...],
    epsilon: float | None,
    until: datetime | None,
    name: str | None,
    mean: float,
    std: float,
    yes: bool,
    **asked: Any,
) -> None:
    from fedskew import config as configuration
    from fedskew import face
    from fedskew.federation import approval

    base = None if asked["config"] is None else configuration.load(asked["config"])
    if asked["clients"] is None and (base is None or "partition" not in base.model_fields_set):
        raise UserError(
            "--clients is missing. Give the number of sites that the coordinator names, such as --clients 3."
        )
    # code runs only if 'model' in site.toml names it, whatever a file says
    config = face.configure(method=method, allow_code=True, **asked)
    last: date | None = None if until is None else until.date()
    wish = approval.Wish(score, allow, epsilon, last, name, mean, std)
    statement, turns = approval.propose(site, config, wish)
    if not as_json:
        print_turns([replace(turn, round=turn.round + 1) for turn in turns])
        _show(statement)
        others = [each.name for each in approval.standings(site) if each.state == approval.IN_FORCE]
        if others:
            echo(f"In force beside it: {', '.join(others)}. What they let leave, and their epsilons, add up.")
    if not yes:
        click.confirm(f"Agree to this for site '{site.name}'?", abort=True, err=True)
    path = approval.write(site, statement)
    if as_json:
        print_json({"approval": str(path)} | asdict(statement))
        return
    echo(f"Approved: {path}. To withdraw it: {_withdrawing(folder, statement.name)}")


def _withdrawing(folder: Path, name: str) -> str:
    return f"fedskew federation approve {shlex.quote(str(folder))} --revoke {name}"


def _show(statement: Statement) -> None:
    """Show what is agreed to, but for the tensors."""
    settings = dict(statement.settings) | {key: f"{low:g}..{high:g}" for key, (low, high) in statement.ranges.items()}
    network = statement.network
    arguments = f" {json.dumps(network['args'])}" if network["args"] else ""
    facts = {
        "method": statement.method,
        "network": f"{network['name']}{arguments}",
        "rounds": f"at most {statement.rounds}, in all runs together",
        "settings": ", ".join(f"{key}={value}" for key, value in sorted(settings.items())),
        "scores": "a confusion matrix and a loss on this site's test data after each round"
        if statement.sends_scores
        else "none on this site's test data",
        "epsilon": "not limited" if statement.epsilon is None else f"at most {statement.epsilon:g}",
        "until": statement.until,
    }
    print_facts(facts)


@click.command("log")
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@options.as_json
def show_log(folder: Path, as_json: bool) -> None:
    """Site: verify and show the log of every request, answer and refusal."""
    check_machine()
    from fedskew.federation import approval

    site = approval.member(folder)
    lines = approval.history(site)
    if as_json:
        print_json(lines)
        return
    if not lines:
        echo(f"Site '{site.name}' has no log yet: it was neither started nor asked to approve anything.")
        return
    rows = [[str(each["n"]), each["time"], each["kind"], *_row(each)] for each in lines]
    print_table(["line", "time", "what", "run", "round", "asked", "method", "said"], rows, left=8)
    if lines[-1].get("pending"):
        echo(f"Line {len(lines)} is signed, and not yet in log.jsonl: its process was killed. The next one adds it.")
    echo(f"The chain holds: {len(lines)} lines, the last is signed by this site. Its hash: {lines[-1]['hash']}")


def _row(line: dict[str, Any]) -> list[str]:
    said = line.get("reason") or line.get("left") or line.get("name") or line.get("fedskew") or ""
    if isinstance(said, dict):
        said = ", ".join(f"{place}: {what}" for place, what in said.items()) + f"; {line['bytes']:,} bytes"
    facts = (
        str(line.get("run", ""))[:SHORT],
        line.get("round", ""),
        line.get("asked", ""),
        line.get("method", ""),
        said,
    )
    return ["".join(sign if sign.isprintable() else "?" for sign in str(each)) for each in facts]
