"""The commands with which a site approves trainings and reads its log: approve, log."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.federation.group import federation, in_folder, typed
from fedskew.cli.federation.training import from_one, print_turns
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.core.errors import UserError

if TYPE_CHECKING:
    from fedskew.federation.folders import SiteFolder
    from fedskew.federation.site.statements import Statement

#: the setting that holds the features of tables
ENCODER = "data.options.encoder"
#: hexadecimal digits of ids that the screen shows
SHORT = 8


@federation.command(cls=options.flags(settings=True))
@in_folder
@click.argument("method", required=False)
@options.setting("--model", "Name of the network.", "auto")
@options.setting("--clients", "Number of sites in the federation.", "required", int)
@options.setting("--rounds", "Most rounds, over all runs.", "20", int)
@options.setting("--local-epochs", "Local epochs.", "5", int)
@options.setting("--batch-size", "Samples in a batch.", "50", int)
@options.setting("--lr", "Local learning rate.", "0.01", float)
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with the training; options override it.")
@click.option("--allow", multiple=True, metavar="KEY=LOW..HIGH", help="Let a number vary, e.g. local.lr=0.01..0.1.")
@click.option(
    "--score",
    type=click.Choice(["sites", "server"]),
    default="sites",
    show_default=True,
    help="Whose test data scores the model. With 'sites', a confusion matrix and a loss also leave.",
)
@click.option("--mean", type=float, default=0.5, show_default=True, help="The coordinator's mean to normalize images.")
@click.option("--std", type=float, default=0.25, show_default=True, help="Its standard deviation.")
@click.option("--evaluate-clients", is_flag=True, default=None, help="Let scores of this site's own model leave, too.")
@click.option(
    "--epsilon", type=float, help="Largest total privacy loss; for methods with noise (docs/explanation/privacy.md)."
)
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Last day, by this machine's clock.  [in 90 days]")
@click.option("--name", help="Name of the approval.  [by method]")
@click.option("--revoke", metavar="NAME", help="Withdraw this approval.")
@click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
@options.as_json
def approve(folder: Path, method: str | None, revoke: str | None, as_json: bool, **asked: Any) -> None:
    """Site: approve METHOD after seeing what would leave. Without METHOD, list the approvals of DIR.

    The site refuses what it has not approved. An approval fixes everything except the seed and what is measured;
    --allow lets a number vary.
    """
    from fedskew.federation.site import approval

    site = approval.open_site(folder)
    if revoke is not None:
        if method is not None:
            raise UserError(f"--revoke {revoke} takes no METHOD. Remove '{method}'.")
        path, counted = approval.revoke(site, revoke)
        effect = f"Revoked '{revoke}': this site refuses it from now on."
        effect = effect if counted else f"'{revoke}' is not in the log as approved, so it did not count."
        echo(f"{effect} Its statement is now {path}.")
    elif method is None:
        _list(site, as_json)
    else:
        _approve(site, folder, method, as_json, **asked)


def _list(site: SiteFolder, as_json: bool) -> None:
    from fedskew.federation.site.approval import approval_statuses

    found = approval_statuses(site)
    if as_json:
        print_json([asdict(each) for each in found])
    elif not found:
        echo(f"Site '{site.name}' has approved nothing, so it answers nothing.")
    else:
        rows = [[e.name, e.method, e.network, e.until, e.state, f"{e.left} of {e.of}"] for e in found]
        print_table(["approval", "method", "network", "until", "state", "updates sent"], rows, left=5)


def _approve(
    site: SiteFolder,
    folder: Path,
    method: str,
    as_json: bool,
    *,
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
    from fedskew import api
    from fedskew import config as configuration
    from fedskew.federation.site import approval

    base = None if asked["config"] is None else configuration.load(asked["config"])
    if asked["clients"] is None and (base is None or "partition" not in base.model_fields_set):
        raise UserError("--clients is missing. Give the coordinator's number of sites, for example --clients 3.")
    # code runs only if 'model' in site.toml names it, so a file may name any
    config = api.configure(method=method, allow_code=True, **asked)
    last: date | None = None if until is None else until.date()
    statement, turns = approval.propose(
        site, config, approval.ApprovalTerms(score, allow, epsilon, last, name, mean, std)
    )
    if not as_json:
        print_turns(from_one(turns))
        _show(statement)
        others = [each.name for each in approval.approval_statuses(site) if each.state == approval.IN_FORCE]
        if others:
            echo(f"Also in force: {', '.join(others)}. What they let leave adds up, and so do their epsilons.")
    if not yes:
        click.confirm(f"Agree to this for site '{site.name}'?", abort=True, err=True)
    path = approval.write(site, statement)
    if as_json:
        print_json({"approval": str(path)} | asdict(statement))
        return
    echo(f"Approved: {path}. To withdraw: fedskew federation approve {typed(folder)} --revoke {statement.name}")


def _show(statement: Statement) -> None:
    """Show an approval, except its tensors."""
    settings = dict(statement.settings) | {key: f"{low:g}..{high:g}" for key, (low, high) in statement.ranges.items()}
    encoder = settings.pop(ENCODER, None)
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
    if encoder is not None:
        facts["features"] = _features(encoder)
    print_facts(facts)


def _features(encoder: str) -> str:
    """Say what sites had to share for the features of their tables: that has left before, in a file."""
    from fedskew.data.custom.features import agreed
    from fedskew.data.preprocessing.table import TableEncoder

    found = agreed(encoder)
    if not isinstance(found, TableEncoder):
        return "token ids of a common vocabulary"
    words = [f"{each.name} ({', '.join(each.categories)})" for each in found.columns if each.categories]
    numbers = [each.name for each in found.columns if not each.categories]
    shared = [f"mean and deviation of {', '.join(numbers)}"] * bool(numbers) + [f"words of {', '.join(words)}"] * bool(
        words
    )
    return f"agreed from the sums of all sites ('data statistics'): {'; '.join(shared)}"


@federation.command("log")
@in_folder
@options.as_json
def show_log(folder: Path, as_json: bool) -> None:
    """Site: verify and show the log. It has every request, answer and refusal."""
    from fedskew.federation.site import approval

    site = approval.open_site(folder)
    lines = approval.read_log(site)
    if as_json:
        print_json(lines)
        return
    if not lines:
        echo(f"Site '{site.name}' has no log yet: it has neither started nor approved anything.")
        return
    rows = [[str(each["n"]), each["time"], each["kind"], *_row(each)] for each in lines]
    print_table(["line", "time", "event", "run", "round", "asked", "method", "details"], rows, left=8)
    if lines[-1].get("pending"):
        echo(f"Line {len(lines)} is signed but not yet in log.jsonl: its process was killed. The next one adds it.")
    echo(f"The log is intact: {len(lines)} lines, the last one signed by this site. Its hash: {lines[-1]['hash']}")


def _row(line: dict[str, Any]) -> list[str]:
    details = line.get("reason") or line.get("left") or line.get("numbers")
    if isinstance(details, dict):
        details = ", ".join(f"{place}: {what}" for place, what in details.items()) + f"; {line['bytes']:,} bytes"
    elif isinstance(details, list):
        details = f"no tensor; numbers: {', '.join(details)}"
    details = details or line.get("name") or line.get("fedskew") or ""
    facts = [str(line.get("run", ""))[:SHORT], *(line.get(key, "") for key in ("round", "asked", "method")), details]
    return ["".join(sign if sign.isprintable() else "?" for sign in str(each)) for each in facts]
