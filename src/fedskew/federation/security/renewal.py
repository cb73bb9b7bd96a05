"""Replace certificates and keys that expire, or that may have been stolen."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.federation import processes
from fedskew.federation.coordinator import service as coordinator_service
from fedskew.federation.folders import CoordinatorFolder, SiteFolder
from fedskew.federation.security import certificates
from fedskew.federation.site import service as site_service
from fedskew.federation.site.request_log import RequestLog

OLD = ".old"


def renew_server(coordinator: CoordinatorFolder) -> None:
    """Make a new key and certificate for the server, by the same authority; sites need nothing."""
    certificates.make_server(coordinator.folder, coordinator.host_names)


def begin_authority(coordinator: CoordinatorFolder) -> list[str]:
    """Make the next authority, and invitations with both; return their sites. The server stays as it is."""
    path = coordinator.folder / certificates.NEXT
    if path.exists():
        raise UserError(
            f"'{path}' exists: a renewal of the authority has begun. Add --finish when every "
            "site has taken its new invitation."
        )
    certificates.make_next_authority(coordinator.folder, coordinator.name)
    return coordinator_service.write_invitations(coordinator)


def finish_authority(coordinator: CoordinatorFolder) -> None:
    """Make the next authority the only one, and give the server a certificate of it."""
    folder = coordinator.folder
    if not (folder / certificates.NEXT).exists():
        raise UserError(f"'{folder}' has no new authority. Start the renewal without --finish.")
    processes.check_nothing_runs(folder)  # the server has the old certificate, which commands would no longer trust
    certificates.take_next_authority(folder)
    coordinator_service.make_missing_files(coordinator)


def renew_key(site: SiteFolder) -> str:
    """Give a site a new key pair, and return the public key; everything else stays.

    A running process uses the old key until the coordinator refuses it, and then starts again with the new one.
    """
    RequestLog(site.folder).rekey(lambda: _replace_key(site))
    return (site.folder / certificates.PUBLIC_KEY).read_text()


def _replace_key(site: SiteFolder) -> None:
    """Replace the key without a moment that has none."""
    names = (certificates.KEY, certificates.PUBLIC_KEY)
    with tempfile.TemporaryDirectory(dir=site.folder) as made:
        certificates.make_site_key(Path(made), site.name)
        for name in names:
            atomic_io.write(site.folder / f"{name}{OLD}", (site.folder / name).read_bytes(), private=True)
        for name in names:
            atomic_io.rename(Path(made) / name, site.folder / name)


def take_authorities(site: SiteFolder, invitation: Path) -> int:
    """Trust the authorities of a new invitation if the present one signed them; return for how many days."""
    content, ca, signature = site_service.read_invitation(invitation)
    if (content["federation"], content["name"]) != (site.federation, site.name):
        raise UserError(
            f"invitation '{invitation}' is for site '{content['name']}' of '{content['federation']}', but this is "
            f"'{site.name}' of '{site.federation}'. Ask the coordinator for yours."
        )
    path = site.folder / certificates.CA
    try:
        trusted = certificates.is_followed(path.read_bytes(), ca, signature)
    except ValueError:
        trusted = False
    if not trusted:
        raise UserError(
            f"invitation '{invitation}' has an authority that '{path}' did not sign. Ask the coordinator for the "
            "invitation made by 'fedskew federation renew --authority', or join again."
        )
    atomic_io.write(path, ca)
    return certificates.days_left(path)


def warnings(member: CoordinatorFolder | SiteFolder, shown: str) -> list[str]:
    """Return a sentence for each certificate that expires soon; `shown` is the folder as a user types it."""
    renew, at_coordinator = f"fedskew federation renew {shown}", isinstance(member, CoordinatorFolder)
    ask = f"Ask the coordinator for a new invitation, and type '{renew} --invitation FILE'"
    remedies = {
        certificates.SERVER: f"Type '{renew}'",
        certificates.CA: f"Type '{renew} --authority'" if at_coordinator else ask,
    }
    found = []
    for name, remedy in remedies.items():
        path = member.folder / name
        if path.exists() and (days := certificates.days_left(path)) < certificates.SOON:
            when = f"expires in {days} days" if days >= 0 else "has expired"
            found.append(f"Certificate '{path}' {when}. {remedy}.")
    return found
