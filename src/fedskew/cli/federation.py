"""Commands of a real federation."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import federation_admin, federation_approval, options
from fedskew.cli.failures import Group, Interrupted
from fedskew.cli.machine import check_machine as _check_machine
from fedskew.cli.preview import print_turns
from fedskew.cli.screen import echo, print_facts, print_json, print_table, rounds_from_one
from fedskew.errors import UserError

if TYPE_CHECKING:
    from fedskew import record
    from fedskew.federation.folder import Coordinator, Member
    from fedskew.federation.training import Training

A_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group(cls=Group)
def federation() -> None:
    """Train across organisations: each keeps its data."""


@federation.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.option("--name", required=True, help="What the federation is called: small letters, digits, hyphens.")
@click.option("--address", required=True, metavar="HOST:PORT", help="Where sites reach this machine.")
@click.option("--sites", required=True, metavar="A,B,C", help="The sites' names.")
@click.option("--classes", default="", metavar="X,Y,...", help="All classes by name.  [you write them into the file]")
@click.option("--size", default="", help="Size of images, such as 64 or 64x48.  [as they are]")
def init(folder: Path, name: str, address: str, sites: str, classes: str, size: str) -> None:
    """Coordinator: make the folder DIR with everything a federation needs, and an invitation for each site."""
    _check_machine()
    from fedskew.federation import certificates, office

    names = [each.strip() for each in sites.split(",")]
    made = office.init(folder, name, address, names, classes, size)
    echo(f"Made '{folder}': only you can read it. Its certificates are valid for {certificates.YEARS} years.")
    echo(f"1. Look through {folder / 'federation.toml'}: the rules, the data, and how to train.")
    echo(f"2. fedskew federation start {_shown(folder)}, which writes invitations anew if the file changed them")
    echo(f"3. Send each site its invitation, which holds no secret: {folder / office.INVITATIONS}/*.zip")
    echo(f"4. When a site sends its public key: fedskew federation admit {_shown(folder)} {made.sites[0]} KEY")
    echo(f"5. fedskew federation run {_shown(folder)}")


@federation.command()
@click.argument("invitation", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Your own: a .csv, a folder, arrays.")
def join(invitation: Path, folder: Path, data: Path) -> None:
    """Site: make the folder DIR from an INVITATION, with a key of its own, and print the public one."""
    _check_machine()
    from fedskew.federation import certificates, site

    made = site.join(invitation, folder, data)
    public = (folder / certificates.PUBLIC_KEY).read_text()
    echo(f"Made '{folder}' for site '{made.name}' of '{made.federation}'; your data can be read.", err=True)
    echo("Send this line, your public key, to the coordinator:\n", err=True, lines=True)
    echo(public, lines=True)
    echo(f"Read its fingerprint to them on the telephone: {certificates.fingerprint(public)}", err=True)
    echo(f"Agree to a training: fedskew federation approve {_shown(folder)} METHOD --clients SITES", err=True)
    echo(f"When you are admitted: fedskew federation start {_shown(folder)}", err=True)


@federation.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.argument("site")
@click.argument("public_key")
@click.option("--replace", is_flag=True, help="The site has made a new key; its old one is let in no more.")
def admit(folder: Path, site: str, public_key: str, replace: bool) -> None:
    """Coordinator: let SITE in with its PUBLIC_KEY, a file or the text itself."""
    _check_machine()
    from fedskew.federation import office
    from fedskew.federation.folder import coordinator

    fingerprint = office.admit(coordinator(folder), site, public_key, replace)
    echo(f"Admitted '{site}', whose key is {fingerprint}: let the site read that to you, to be sure.")


@federation.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.option("--foreground", is_flag=True, help="Stay, and end with this command; for systemd and the like.")
def start(folder: Path, foreground: bool) -> None:
    """Start the coordinator's server, or a site, whichever DIR is of; returns when it is up."""
    _check_machine()
    from fedskew.federation import office, processes, site
    from fedskew.federation.folder import Coordinator, opened

    found = opened(folder)
    if isinstance(found, Coordinator):
        for invited in office.invite(found):
            path = found.folder / office.INVITATIONS / f"{invited}.zip"
            echo(f"Written anew, for '{invited}' if that site has not joined yet: {path}")
    if not foreground:
        processes.begin(found.folder)
        echo(f"{_up(found)} 'fedskew federation stop {_shown(folder)}' ends it.")
    elif isinstance(found, Coordinator):
        office.keep(found, lambda: echo(_up(found)))
    else:
        site.keep(found, lambda: echo(_up(found)))


def _up(found: Coordinator | Member) -> str:
    from fedskew.federation.folder import Coordinator

    if isinstance(found, Coordinator):
        return f"'{found.name}' is up and listens at {found.address}."
    return f"Site '{found.name}' is up and connected to {found.address}."


@federation.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
def stop(folder: Path) -> None:
    """End what 'start' began for DIR, and nothing else."""
    _check_machine()
    from fedskew.federation import processes
    from fedskew.federation.folder import opened

    ended = processes.end_everything(opened(folder).folder)
    echo(f"Ended: {', '.join(ended)}." if ended else f"'{folder}' was not running.")


@federation.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.argument("method", required=False)
@click.option("--name", help="Of the run's folder in DIR/runs; the same one goes on where it stopped.  [by method]")
@options.setting("--rounds", "Number of rounds.", "as in DIR/federation.toml, like the others", int)
@options.setting("--per-round", "Sites asked in each round.", "all", int)
@options.setting("--epochs", "Local epochs.", "file", int)
@options.setting("--batch", "Samples in a batch.", "file", int)
@options.setting("--lr", "Local learning rate.", "file", float)
@options.setting("--model", "A network's name.", "file")
@options.setting("--weights", "Start from these: a .safetensors or .pt file, or a run's folder.", "random")
@options.setting("--seed", "All randomness follows from it.", "file", int)
@options.setting("--target", "Count the rounds to this accuracy, 0 to 1.", "none", float)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key, e.g. local.momentum=0.")
@options.allow_code
@options.as_json
def run(folder: Path, method: str | None, name: str | None, as_json: bool, **asked: Any) -> None:
    """Coordinator: train METHOD with all sites, show every round, and write a report.

    Ctrl-C only stops the showing: the run goes on, and the same command shows it again. If a run was interrupted, the
    same command goes on after its last round.
    """
    _check_machine()
    from fedskew.federation.folder import coordinator
    from fedskew.federation.training import Training, configure
    from fedskew.report.comparison import run_name

    office = coordinator(folder)
    config = configure(office, method=method, **asked)
    training = Training(office, config, name or run_name(config.method, config.seed))
    try:
        result = training.follow(lambda line: echo(_round(training, line), err=True))
    except KeyboardInterrupt:
        raise Interrupted(
            f"The run goes on without being shown; the same command shows it again, and "
            f"'fedskew federation stop {_shown(folder)}' stops it, with all else."
        ) from None
    _show(training, result, as_json)


def _round(training: Training, line: dict[str, Any]) -> str:
    """Who answered, who is lost and why, who was late, how good the model is."""
    sites = training.sites
    lost = {sites[int(client)]: why for client, why in line.get("lost", {}).items()}
    said = [f"round {line['round'] + 1}/{training.config.rounds}: {line['replies']} of {line['asked']} sites answered"]
    if line["asked"] == len(sites) and line["replies"]:
        said[0] += f" ({', '.join(site for site in sites if site not in lost)})"
    if line.get("accuracy") is not None:
        said.append(f"accuracy {_percent(line['accuracy'])}")
    said += [f"lost: {site} ({why})" for site, why in lost.items()]
    said += [f"late: {sites[client]}" for client in line.get("late", [])]
    return ", ".join(said)


def _show(training: Training, result: record.Run, as_json: bool) -> None:
    from fedskew.report import tables

    end, report, numbers = result.end or {}, training.report(), range(len(training.sites))
    lost = [[line["lost"].get(str(number)) for line in result.rounds if "lost" in line] for number in numbers]
    missed = [[why for why in whys if why is not None] for whys in lost]
    late = [sum(number in line.get("late", []) for line in result.rounds) for number in numbers]
    if as_json:
        facts = {key: value for key, value in end.items() if key != "kind"}
        print_json(
            facts
            | rounds_from_one(end)
            | {"lost": dict(zip(training.sites, missed, strict=True)), "report": str(report)}
        )
        return
    rows = [
        [site, whys[-1] if whys else "", str(len(whys)), str(often)]
        for site, whys, often in zip(training.sites, missed, late, strict=True)
    ]
    print_table(["site", "why it was lost last", "lost", "late"], rows, left=2)
    recall = tables.final_recall(result)
    shown = {
        "best": f"{tables.percent(end['best'])} %",
        "last": f"{tables.percent(end['last'])} %",
        "time": tables.duration(end["seconds"]),
        "weights_sha256": end["weights_sha256"] or "no single model",
        "folder": str(training.out),
        "report": str(report),
    }
    if recall is not None:
        shares = (tables.percent(None if share != share else share, digits=0) for share in recall)
        names = result.header["data"]["labels"]
        shown["recall by class"] = "  ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True))
    print_facts(shown)


@federation.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@options.as_json
def status(folder: Path, as_json: bool) -> None:
    """Tell whether DIR's processes are up, which sites are there, and how far the runs are."""
    _check_machine()
    from fedskew.federation import renewal
    from fedskew.federation.folder import Coordinator, opened

    found = opened(folder)
    told = renewal.warnings(found, _shown(folder))
    if isinstance(found, Coordinator):
        _status_of_coordinator(found, told, as_json)
    else:
        _status_of_site(found, told, as_json)


def _status_of_coordinator(office: Coordinator, told: list[str], as_json: bool) -> None:
    from fedskew.federation import office as offices
    from fedskew.federation import processes, training

    up = processes.is_up(office.folder)
    with offices.link(office) if up else nullcontext() as server:
        sites = offices.standings(office, server)
    runs = training.standings(office)
    if as_json:
        found = {"sites": [asdict(each) for each in sites], "runs": [asdict(each) for each in runs], "warnings": told}
        print_json({"role": "coordinator", "name": office.name, "address": str(office.address), "up": up} | found)
        return
    echo(_up(office) if up else f"'{office.name}' is not started.")
    words = {True: "yes", False: "no", None: "?"}
    rows = [[each.site, words[each.admitted], words[each.connected], each.since] for each in sites]
    print_table(["site", "admitted", "connected", "since"], rows, left=4)
    if runs:
        far = ["" if each.of is None else f"{each.rounds} of {each.of}" for each in runs]
        cells = [[each.name, each.state, done, _percent(each.accuracy)] for each, done in zip(runs, far, strict=True)]
        print_table(["run", "is", "rounds", "accuracy"], cells, left=2)
    _print_warnings(told)


def _print_warnings(told: list[str]) -> None:
    for each in told:
        echo(f"Warning: {each}", err=True)


def _status_of_site(found: Member, told: list[str], as_json: bool) -> None:
    from fedskew.federation import processes, site

    up, answered = processes.is_up(found.folder), site.answered(found)
    if as_json:
        here = {"site": found.name, "number": found.number, "address": str(found.address), "answered": answered}
        print_json({"role": "site", "name": found.federation, "up": up} | here | {"warnings": told})
        return
    echo(_up(found) if up else f"Site '{found.name}' is not started.")
    when = "never" if answered is None else f"{datetime.fromtimestamp(answered).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    echo(f"It last answered a training: {when}.")
    _print_warnings(told)


@federation.command("dry-run")
@click.argument("method")
@click.option("--site", type=int, default=0, show_default=True, help="Which client: the site's number.")
@click.option(
    "--invitation",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What the coordinator sent: it says the classes and the size of images. Beside --data.",
)
@options.training
@options.as_json
def dry_run(method: str, site: int, invitation: Path | None, as_json: bool, **asked: Any) -> None:
    """List exactly which tensors would leave a site in each round of METHOD. Nothing is sent.

    Each round's work is done here, for one step of it. With --data the site holds all of that data, as in a federation;
    give the network (--model) and the number of sites (--clients) that the coordinator names.
    """
    from fedskew import face
    from fedskew.leaving import dry_run, own_data

    config = face.configure(method=method, **asked)
    if not 0 <= site < config.partition.clients:
        raise UserError(f"--site is {site}, and sites are 0..{config.partition.clients - 1}")
    if config.data.name == "own":
        if asked["partition"] is not None:
            raise UserError(f"--partition is '{asked['partition']}', but a site holds all of its --data; leave it out")
        turns = dry_run(config, own_data(config, _told(invitation)))
    elif invitation is not None:
        raise UserError(f"--invitation '{invitation}' is for data of your own; give --data, too")
    else:
        turns = dry_run(config)
    # counted from 1, like all rounds that a command tells
    turns = [replace(turn, round=turn.round + 1) for turn in turns if turn.client == site]
    if as_json:
        print_json([asdict(turn) for turn in turns])
        return
    print_turns(turns)


def _told(invitation: Path | None) -> dict[str, Any]:
    if invitation is None:
        return {}
    _check_machine()
    from fedskew.federation.site import data_options

    return data_options(invitation)


def _percent(share: float | None) -> str:
    from fedskew.report.tables import percent

    return "" if share is None else f"{percent(share, digits=1)} %"


def _shown(folder: Path) -> str:
    """As a shell takes it."""
    return shlex.quote(str(folder))


for command in (federation_approval.approve, federation_approval.show_log, *federation_admin.COMMANDS):
    federation.add_command(command)
