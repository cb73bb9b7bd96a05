"""The commands that maintain a federation over the years: remove, renew, backup, restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedskew.cli.federation.group import FILE, federation, in_folder, typed
from fedskew.cli.federation.service import print_public_key
from fedskew.cli.screen import echo
from fedskew.core.errors import UserError

if TYPE_CHECKING:
    from fedskew.federation.folders import CoordinatorFolder, SiteFolder


@federation.command()
@in_folder
@click.argument("site")
def remove(folder: Path, site: str) -> None:
    """Coordinator: remove SITE and refuse its key. Runs continue without it."""
    from fedskew.federation.coordinator import service
    from fedskew.federation.folders import open_coordinator

    left = service.remove_site(open_coordinator(folder), site)
    echo(f"Removed '{site}': its key is refused. Sites left: {', '.join(left.sites)}.")


@federation.command()
@in_folder
@click.option("--authority", is_flag=True, help="Coordinator: renew the authority by which sites trust the server.")
@click.option("--finish", is_flag=True, help="With --authority: every site has taken its new invitation.")
@click.option("--invitation", type=FILE, help="Site: trust the new authority in this file; the key stays.")
def renew(folder: Path, authority: bool, finish: bool, invitation: Path | None) -> None:
    """Renew the coordinator's certificates, or a site's key."""
    from fedskew.federation.folders import CoordinatorFolder, open_folder

    member = open_folder(folder)
    if finish and not authority:
        raise UserError("--finish applies to the authority. Add --authority.")
    if isinstance(member, CoordinatorFolder):
        if invitation is not None:
            raise UserError(f"--invitation is for a site's folder, but '{folder}' is the coordinator's. Remove it.")
        _renew_coordinator(member, folder, authority, finish)
    elif authority:
        raise UserError(f"--authority is for the coordinator's folder, but '{folder}' is a site's. Remove it.")
    else:
        _renew_site(member, invitation)


def _renew_coordinator(coordinator: CoordinatorFolder, folder: Path, authority: bool, finish: bool) -> None:
    from fedskew.federation.coordinator.service import INVITATIONS
    from fedskew.federation.security import renewal

    shown = typed(folder)
    if finish:
        renewal.finish_authority(coordinator)
        echo("The new authority is now the only one, and the server has a certificate of it.")
        echo(f"Start the server: fedskew federation start {shown}")
    elif authority:
        renewal.begin_authority(coordinator)
        echo("Made a new authority. The old one stays valid.")
        echo(f"1. Send each site its new invitation: {folder / INVITATIONS}/*.zip")
        echo("2. Each site types: fedskew federation renew DIR --invitation NAME.zip")
        echo(f"3. When all have done so: fedskew federation stop {shown}")
        echo(f"4. fedskew federation renew {shown} --authority --finish")
    else:
        renewal.renew_server(coordinator)
        echo("The server has a new certificate by the same authority; sites need nothing. To use it:")
        echo(f"fedskew federation stop {shown} && fedskew federation start {shown}")


def _renew_site(site: SiteFolder, invitation: Path | None) -> None:
    from fedskew.federation.security import renewal

    if invitation is not None:
        days = renewal.take_authorities(site, invitation)
        echo(f"Trusted the authorities in '{invitation}' for {days:,} days, from the next start on.")
        return
    public = renewal.renew_key(site)
    echo(f"Made a new key for site '{site.name}'; the old one is now 'key{renewal.OLD}'.", err=True)
    print_public_key(public, "Send this line to the coordinator, who admits it with --replace:")


@federation.command()
@in_folder
@click.argument("file", type=FILE)
def backup(folder: Path, file: Path) -> None:
    """Back up the folder DIR to FILE, a .tar.gz. It holds keys, certificates, runs and a site's memory."""
    from fedskew.federation import backups
    from fedskew.federation.folders import open_folder

    count = backups.write(open_folder(folder), file)
    echo(f"Wrote {count:,} files to '{file}', readable by you alone. It holds private keys: store it like them.")


@federation.command()
@click.argument("file", type=FILE)
@in_folder
def restore(file: Path, folder: Path) -> None:
    """Make the folder DIR from a FILE that 'backup' wrote."""
    from fedskew.federation import backups

    backups.restore(file, folder)
    echo(f"Restored '{folder}'. Start it only if the original is not started any more:")
    echo(f"fedskew federation start {typed(folder)}")
