"""A site's end: joining with an invitation, and the one process that answers the coordinator."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedskew import __version__
from fedskew.errors import UserError
from fedskew.federation import certificates, folder, processes, texts
from fedskew.federation.folder import Address, Member
from fedskew.federation.link import shake_hands
from fedskew.federation.processes import Command, Keeper
from fedskew.flower import project
from fedskew.flower.request_log import RequestLog

MEMORY, NODE, EXECUTOR = "memory", "node.toml", "executor"
#: seconds that it may take until the coordinator's server has taken us in
ENTRY = 300.0
#: Flower's words for a node whose key is not registered, or which it believes to be there already
NOT_TAKEN = "[code: 2004]"
#: what a file in an invitation may have, in bytes
MOST = 100_000
#: as `project.version` says it
VERSION = re.compile(r"^fedskew [\w.+-]{1,40} with Flower [\w.+-]{1,40}$")


def join(invitation: Path, at: Path, data: Path) -> Member:
    """Make a site's folder: its own key, and nothing of the coordinator's but what the invitation holds."""
    told, ca, _ = read_invitation(invitation)
    digest, theirs = project.digest(), told.pop("version")
    if told.pop("digest") != digest:
        named = theirs if theirs not in ("", project.version()) else "another build of fedskew or Flower"
        raise UserError(
            f"invitation '{invitation}' is for {named}, and here is {project.version()}. Install the coordinator's "
            "version, or ask for an invitation made with yours."
        )
    options = told.pop("data")
    _check_data(data, options)
    folder.new_folder(at)
    (at / certificates.CA).write_bytes(ca)
    certificates.make_site_key(at, told["name"])
    (at / MEMORY).mkdir(mode=0o700)
    folder.allow(at, digest)
    said = "\n".join(f"{key} = {folder.quoted(str(value))}" for key, value in options.items())
    text = texts.MEMBER.format(**told, data=folder.quoted(str(data.resolve())), options=said)
    (at / folder.SITE).write_text(text, encoding="utf-8")
    return folder.member(at)


def read_invitation(invitation: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """What an invitation says, the authorities in it, and a signature by which the first vouches for the second."""
    try:
        with zipfile.ZipFile(invitation) as archive:
            page, ca = (archive.open(name).read(MOST) for name in (folder.SITE, certificates.CA))
            signed = certificates.NEXT_SIGNED in archive.namelist()
            signature = archive.open(certificates.NEXT_SIGNED).read(MOST) if signed else b""
        told = tomllib.loads(page.decode())
        checked = {
            "federation": folder.check_name(told["federation"], "name"),
            "name": folder.check_name(told["name"], "site name"),
            "number": int(told["number"]),
            "address": Address.parse(told["address"]),
            "digest": str(told["digest"]),
            "version": found[0] if (found := VERSION.search(str(told.get("version", "")))) else "",
            "data": dict(told["data"]),
        }
    except FileNotFoundError:
        raise UserError(f"invitation '{invitation}' does not exist") from None
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, OSError):
        raise UserError(f"'{invitation}' is no invitation; it must be the .zip that the coordinator sent") from None
    return checked, ca, signature


def data_options(invitation: Path) -> dict[str, Any]:
    """What an invitation says about data: the classes, the size of images."""
    told, _, _ = read_invitation(invitation)
    return dict(told["data"])


def _check_data(data: Path, options: dict[str, Any]) -> None:
    """Read what lies there, as a training would."""
    from fedskew.data.sources import load

    load("own", data, **options, vacant=True)


def keep(site: Member, say: Callable[[], None]) -> None:
    """Answer the coordinator until a signal comes."""
    at = site.folder
    shake_hands(site.address, at / certificates.CA)
    folder.allow(at, project.digest())
    RequestLog(at).append("start", fedskew=__version__)
    node = {"name": site.name, "data": site.data, "memory": str(at / MEMORY), "federation": str(at)} | site.options
    node |= {"model": site.model} if site.model else {}
    lines = [f"{key} = {folder.quoted(value)}" for key, value in node.items()]
    (at / "flower").mkdir(mode=0o700, exist_ok=True)
    (at / "flower" / NODE).write_text("\n".join([f"site = {site.number}", *lines, ""]), encoding="utf-8")
    executor = [
        *(sys.executable, "-P", "-m", "fedskew.flower.executor", "site", "--address", site.address),
        *("--allow", at / folder.ALLOWED, "--node-config", at / "flower" / NODE),
        *("--ca", at / certificates.CA, "--key", at / certificates.KEY),
    ]

    def ready(keeper: Keeper) -> None:
        try:
            entered = keeper.wait_for(lambda: "is connected to" in keeper.said(EXECUTOR), ENTRY)
        except UserError:
            if NOT_TAKEN in keeper.said(EXECUTOR):
                raise UserError(
                    f"the server at {site.address} does not take this site in: its key is not admitted yet, or no "
                    f"longer (send '{at / certificates.PUBLIC_KEY}' to the coordinator), or it was killed a moment "
                    "ago (start it again in a minute)"
                ) from None
            raise
        if not entered:
            raise UserError(
                f"the server at {site.address} did not answer; '{processes.log_of(at, EXECUTOR)}' says more"
            )

    command = Command(EXECUTOR, tuple(map(str, executor)))
    processes.keep(at, [command], ready, say)


def answered(site: Member) -> float | None:
    """When it last answered a training, in seconds since 1970."""
    return max((path.stat().st_mtime for path in (site.folder / MEMORY).glob("*/*/turn-*")), default=None)
