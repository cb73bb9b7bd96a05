"""New certificates and keys for a federation that goes on: what expires, or may have been stolen, is replaced."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fedskew.errors import UserError
from fedskew.federation import certificates, folder, processes
from fedskew.federation import office as offices
from fedskew.federation import site as sites
from fedskew.federation.folder import Coordinator, Member
from fedskew.flower.request_log import RequestLog

OLD = ".old"


def renew_server(office: Coordinator) -> None:
    """A new key and certificate for the server, by the same authority: sites need nothing."""
    certificates.make_server(office.folder, office.hosts)


def begin_authority(office: Coordinator) -> list[str]:
    """Make the authority that is to follow, and invitations with both; whose they are. The server stays as it is."""
    at = office.folder
    if (at / certificates.NEXT).exists():
        raise UserError(
            f"'{at / certificates.NEXT}' exists: a renewal of the authority has begun. When every site has taken its "
            "new invitation, add --finish."
        )
    certificates.make_next_authority(at, office.name)
    return offices.invite(office)


def finish_authority(office: Coordinator) -> None:
    """Let the new authority be the only one, and the server have a certificate of it."""
    at = office.folder
    if not (at / certificates.NEXT).exists():
        raise UserError(f"'{at}' has no new authority to finish with; begin without --finish")
    processes.check_nothing_runs(at)  # it has the old certificate, which commands would no longer believe
    certificates.take_next_authority(at)
    offices.furnish(office)


def renew_key(site: Member) -> str:
    """A new key pair for a site, whose folder keeps everything else; the public key.

    The process that is up goes on with the old key until the coordinator lets that in no more, and then begins again
    with the new one.
    """
    RequestLog(site.folder).rekey(lambda: _replace_key(site))
    return (site.folder / certificates.PUBLIC_KEY).read_text()


def _replace_key(site: Member) -> None:
    """There is a key at every moment."""
    names = (certificates.KEY, certificates.PUBLIC_KEY)
    with tempfile.TemporaryDirectory(dir=site.folder) as made:
        certificates.make_site_key(Path(made), site.name)
        for name in names:
            certificates.write_private(site.folder / f"{name}{OLD}", (site.folder / name).read_bytes())
        for name in names:
            os.replace(Path(made) / name, site.folder / name)


def take_authorities(site: Member, invitation: Path) -> int:
    """Trust the authorities of a new invitation if the present one vouches for them; days that they are valid."""
    told, ca, signature = sites.read_invitation(invitation)
    if (told["federation"], told["name"]) != (site.federation, site.name):
        raise UserError(
            f"invitation '{invitation}' is for site '{told['name']}' of '{told['federation']}', and this is "
            f"'{site.name}' of '{site.federation}'. Ask the coordinator for yours."
        )
    at = site.folder / certificates.CA
    try:
        follows = certificates.is_followed(at.read_bytes(), ca, signature)
    except ValueError:
        follows = False
    if not follows:
        raise UserError(
            f"invitation '{invitation}' has an authority that '{at}' did not sign. Ask the coordinator for the "
            "invitation made by 'fedskew federation renew --authority', or join again."
        )
    folder.replace(at, ca)
    return certificates.days_left(at)


def warnings(found: Coordinator | Member, shown: str) -> list[str]:
    """Sentences about certificates that expire soon; `shown` is the folder as one types it."""
    told = []
    here = isinstance(found, Coordinator)
    mends = {
        certificates.SERVER: f"Type 'fedskew federation renew {shown}'",
        certificates.CA: f"Type 'fedskew federation renew {shown} --authority'"
        if here
        else f"Ask the coordinator for a new invitation, and type 'fedskew federation renew {shown} --invitation FILE'",
    }
    for name, mend in mends.items():
        path = found.folder / name
        if path.exists() and (days := certificates.days_left(path)) < certificates.SOON:
            when = f"expires in {days} days" if days >= 0 else "has expired"
            told.append(f"Certificate '{path}' {when}. {mend}.")
    return told
