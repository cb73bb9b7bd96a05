"""The commands that make a federation and run it: init, join, admit, start, stop, status."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.federation.group import FILE, federation, in_folder, typed
from fedskew.cli.screen import echo, print_json, print_table

if TYPE_CHECKING:
    from fedskew.federation.folders import CoordinatorFolder, SiteFolder


@federation.command()
@in_folder
@click.option("--name", required=True, help="Name of the federation: lowercase letters, digits, hyphens.")
@click.option("--address", required=True, metavar="HOST:PORT", help="Address at which sites reach this machine.")
@click.option("--sites", required=True, metavar="A,B,C", help="Names of the sites.")
@click.option("--classes", default="", metavar="X,Y,...", help="Names of all classes.  [write them into the file]")
@click.option("--size", default="", help="Size of images, such as 64 or 64x48.  [unchanged]")
@click.option("--encoder", type=FILE, help="Features of tables, a file of 'fedskew data agree'.  [not for tables]")
def init(folder: Path, name: str, address: str, sites: str, classes: str, size: str, encoder: Path | None) -> None:
    """Coordinator: make the folder DIR and the invitations. DIR has all keys and settings."""
    from fedskew.federation.coordinator import service
    from fedskew.federation.security import certificates

    names = [each.strip() for each in sites.split(",")]
    agreed = "" if encoder is None else encoder.read_text(encoding="utf-8").strip()
    made = service.init(folder, name, address, names, classes, size, agreed)
    echo(f"Made '{folder}', readable by you alone. Its certificates are valid for {certificates.YEARS} years.")
    echo(f"1. Check {folder / 'federation.toml'}: rules, data and training.")
    echo(f"2. Start the server: fedskew federation start {typed(folder)}. It also updates the invitations.")
    echo(f"3. Send each site its invitation, which holds no secret: {folder / service.INVITATIONS}/*.zip")
    echo(f"4. When a site sends its public key: fedskew federation admit {typed(folder)} {made.sites[0]} KEY")
    echo(f"5. Train: fedskew federation run {typed(folder)}")


@federation.command()
@click.argument("invitation", type=FILE)
@in_folder
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Your data: a .csv, a folder, arrays.")
@click.option("--decimal", type=click.Choice(["comma", "point"]), help="Decimal mark of your table.  [found]")
@click.option("--missing", metavar="X,Y,...", help="Cells of your table that mean no value.  [the usual ones]")
def join(invitation: Path, folder: Path, data: Path, decimal: str | None, missing: str | None) -> None:
    """Site: make the folder DIR from an INVITATION. Make a key, too, and print its public part."""
    from fedskew.federation.security import certificates
    from fedskew.federation.site import service

    notation = {key: text for key, text in (("decimal", decimal), ("missing", missing)) if text}
    made = service.join(invitation, folder, data, notation)
    public = (folder / certificates.PUBLIC_KEY).read_text()
    echo(f"Made '{folder}' for site '{made.name}' of '{made.federation}'; your data can be read.", err=True)
    print_public_key(public, "Send this line, your public key, to the coordinator:")
    echo(f"Approve a training: fedskew federation approve {typed(folder)} METHOD --clients SITES", err=True)
    echo(f"When you are admitted: fedskew federation start {typed(folder)}", err=True)


def print_public_key(public: str, request: str) -> None:
    """Print a public key, with a request to send it and its fingerprint on stderr."""
    from fedskew.federation.security import certificates

    echo(f"{request}\n", err=True, lines=True)
    echo(public, lines=True)
    echo(f"Read its fingerprint to them on the telephone: {certificates.fingerprint(public)}", err=True)


@federation.command()
@in_folder
@click.argument("site")
@click.argument("public_key")
@click.option("--replace", is_flag=True, help="Replace the site's key; the old one is refused from now on.")
def admit(folder: Path, site: str, public_key: str, replace: bool) -> None:
    """Coordinator: admit SITE with its PUBLIC_KEY. The key is a file or the text itself."""
    from fedskew.federation.coordinator import service
    from fedskew.federation.folders import open_coordinator

    fingerprint = service.admit_site(open_coordinator(folder), site, public_key, replace)
    echo(f"Admitted '{site}' with the key {fingerprint}. Ask the site to read you its fingerprint, to be sure.")


@federation.command()
@in_folder
@click.option("--foreground", is_flag=True, help="Stay in the foreground, for systemd and the like.")
def start(folder: Path, foreground: bool) -> None:
    """Start the coordinator or the site of DIR; return when it is up."""
    from fedskew.federation import processes
    from fedskew.federation.coordinator import service as coordinator_service
    from fedskew.federation.folders import CoordinatorFolder, open_folder
    from fedskew.federation.site import service as site_service

    member = open_folder(folder)
    if isinstance(member, CoordinatorFolder):
        for site in coordinator_service.write_invitations(member):
            path = member.folder / coordinator_service.INVITATIONS / f"{site}.zip"
            echo(f"Updated the invitation of '{site}': {path}. Send it if the site has not joined yet.")
    if not foreground:
        processes.start_in_background(member.folder)
        echo(f"{_up(member)} To stop it: fedskew federation stop {typed(folder)}")
    elif isinstance(member, CoordinatorFolder):
        coordinator_service.serve(member, lambda: echo(_up(member)))
    else:
        site_service.serve(member, lambda: echo(_up(member)))


def _up(member: CoordinatorFolder | SiteFolder) -> str:
    from fedskew.federation.folders import CoordinatorFolder

    if isinstance(member, CoordinatorFolder):
        return f"'{member.name}' is up and listens at {member.address}."
    return f"Site '{member.name}' is up and connected to {member.address}."


@federation.command()
@in_folder
def stop(folder: Path) -> None:
    """Stop all processes that 'start' started for DIR."""
    from fedskew.federation import processes
    from fedskew.federation.folders import open_folder

    stopped = processes.stop_all(open_folder(folder).folder)
    echo(f"Stopped: {', '.join(stopped)}." if stopped else f"'{folder}' was not running.")


@federation.command()
@in_folder
@options.as_json
def status(folder: Path, as_json: bool) -> None:
    """Show whether DIR is up, its sites and its runs."""
    from fedskew.federation.folders import CoordinatorFolder, open_folder
    from fedskew.federation.security import renewal

    member = open_folder(folder)
    warnings = renewal.warnings(member, typed(folder))
    if isinstance(member, CoordinatorFolder):
        _coordinator_status(member, warnings, as_json)
    else:
        _site_status(member, warnings, as_json)
    if not as_json:
        for each in warnings:
            echo(f"Warning: {each}", err=True)


def _coordinator_status(coordinator: CoordinatorFolder, warnings: list[str], as_json: bool) -> None:
    from fedskew.federation import processes
    from fedskew.federation.coordinator import service, training

    up = processes.is_up(coordinator.folder)
    with service.connect(coordinator) if up else nullcontext() as server:
        sites = service.site_statuses(coordinator, server)
    runs = training.run_statuses(coordinator)
    if as_json:
        facts = {"role": "coordinator", "name": coordinator.name, "address": str(coordinator.address), "up": up}
        print_json(facts | {"sites": list(map(asdict, sites)), "runs": list(map(asdict, runs)), "warnings": warnings})
        return
    echo(_up(coordinator) if up else f"'{coordinator.name}' is not started.")
    words = {True: "yes", False: "no", None: "?"}
    rows = [[each.site, words[each.admitted], words[each.connected], each.since] for each in sites]
    print_table(["site", "admitted", "connected", "since"], rows, left=4)
    if runs:
        done = ["" if each.of is None else f"{each.rounds} of {each.of}" for each in runs]
        cells = [[e.name, e.state, far, short_percent(e.accuracy)] for e, far in zip(runs, done, strict=True)]
        print_table(["run", "state", "rounds", "accuracy"], cells, left=2)


def _site_status(site: SiteFolder, warnings: list[str], as_json: bool) -> None:
    from fedskew.federation import processes
    from fedskew.federation.site import service

    up, answered = processes.is_up(site.folder), service.last_answer(site)
    if as_json:
        facts: dict[str, Any] = {"role": "site", "name": site.federation, "up": up, "site": site.name}
        facts |= {"number": site.number, "address": str(site.address), "answered": answered}
        print_json(facts | {"warnings": warnings})
        return
    echo(_up(site) if up else f"Site '{site.name}' is not started.")
    when = "never" if answered is None else f"{datetime.fromtimestamp(answered).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    echo(f"Last answer to a training: {when}.")


def short_percent(share: float | None) -> str:
    """Return a share with one digit; "" for None."""
    from fedskew.report import tables

    return "" if share is None else f"{tables.percent(share, digits=1)} %"
