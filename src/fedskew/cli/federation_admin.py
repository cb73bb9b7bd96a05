"""Commands that keep a federation going over the years."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedskew.cli.machine import check_machine
from fedskew.cli.screen import echo
from fedskew.errors import UserError

if TYPE_CHECKING:
    from fedskew.federation.folder import Coordinator, Member

A_FOLDER = click.Path(path_type=Path, file_okay=False)
A_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.argument("site")
def remove(folder: Path, site: str) -> None:
    """Coordinator: let SITE in no more. Later runs are without it; a run that is going goes on without it."""
    check_machine()
    from fedskew.federation import office
    from fedskew.federation.folder import coordinator

    left = office.remove(coordinator(folder), site)
    echo(f"Removed '{site}': its key is refused. Sites left: {', '.join(left.sites)}.")


@click.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.option("--authority", is_flag=True, help="Coordinator: the authority, which sites know the server by.")
@click.option("--finish", is_flag=True, help="With --authority: every site has taken its new invitation.")
@click.option("--invitation", type=A_FILE, help="Site: take the new authority from this, and keep the key.")
def renew(folder: Path, authority: bool, finish: bool, invitation: Path | None) -> None:
    """Make new what expires: the coordinator's certificates, or a site's key."""
    check_machine()
    from fedskew.federation.folder import Coordinator, opened

    found = opened(folder)
    if finish and not authority:
        raise UserError("--finish is for the authority. Add --authority.")
    if isinstance(found, Coordinator):
        if invitation is not None:
            raise UserError(f"--invitation is for a site's folder, and '{folder}' is the coordinator's. Leave it out.")
        _renew_coordinator(found, folder, authority, finish)
    elif authority:
        raise UserError(f"--authority is for the coordinator's folder, and '{folder}' is a site's. Leave it out.")
    else:
        _renew_site(found, invitation)


def _renew_coordinator(office: Coordinator, folder: Path, authority: bool, finish: bool) -> None:
    from fedskew.federation import renewal
    from fedskew.federation.office import INVITATIONS

    shown = shlex.quote(str(folder))
    if finish:
        renewal.finish_authority(office)
        echo("The new authority is the only one, and the server has a certificate of it.")
        echo(f"fedskew federation start {shown}")
    elif authority:
        renewal.begin_authority(office)
        echo("Made a new authority beside the old one, which stays in force.")
        echo(f"1. Send each site its new invitation: {folder / INVITATIONS}/*.zip")
        echo("2. Each site types: fedskew federation renew DIR --invitation NAME.zip")
        echo(f"3. When all have: fedskew federation stop {shown}")
        echo(f"4. fedskew federation renew {shown} --authority --finish")
    else:
        renewal.renew_server(office)
        echo("The server has a new certificate by the same authority; sites need nothing. It counts from the")
        echo(f"next start on: fedskew federation stop {shown} && fedskew federation start {shown}")


def _renew_site(site: Member, invitation: Path | None) -> None:
    from fedskew.federation import certificates, renewal

    if invitation is not None:
        days = renewal.take_authorities(site, invitation)
        echo(f"Took the authorities in '{invitation}': valid for {days:,} days. They count from the next start.")
        return
    public = renewal.renew_key(site)
    echo(f"Made a new key for site '{site.name}'; the old one is kept as 'key{renewal.OLD}'.", err=True)
    echo("Send this line to the coordinator, who admits it with --replace:\n", err=True, lines=True)
    echo(public, lines=True)
    echo(f"Read its fingerprint to them on the telephone: {certificates.fingerprint(public)}", err=True)


@click.command()
@click.argument("folder", metavar="DIR", type=A_FOLDER)
@click.argument("file", type=A_FILE)
def backup(folder: Path, file: Path) -> None:
    """Write what DIR cannot make again into FILE, a .tar.gz: keys, certificates, runs, a site's memory."""
    check_machine()
    from fedskew.federation import backups
    from fedskew.federation.folder import opened

    count = backups.write(opened(folder), file)
    echo(f"Wrote {count:,} files to '{file}', which only you can read. It holds private keys: keep it as those.")


@click.command()
@click.argument("file", type=A_FILE)
@click.argument("folder", metavar="DIR", type=A_FOLDER)
def restore(file: Path, folder: Path) -> None:
    """Make the folder DIR from a FILE that 'backup' wrote."""
    check_machine()
    from fedskew.federation import backups

    backups.read(file, folder)
    echo(f"Restored '{folder}'. Start it here only if nobody starts the one it was copied from:")
    echo(f"fedskew federation start {shlex.quote(str(folder))}")


COMMANDS = (remove, renew, backup, restore)
