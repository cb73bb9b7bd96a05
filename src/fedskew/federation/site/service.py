"""Join a federation with an invitation, and run the process that answers the coordinator."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedskew import __version__
from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.federation import folders, processes, texts
from fedskew.federation.coordinator.superlink_client import check_server
from fedskew.federation.folders import Address, SiteFolder
from fedskew.federation.processes import Command, Supervisor
from fedskew.federation.security import certificates
from fedskew.federation.site.request_log import RequestLog
from fedskew.federation.transport import project

MEMORY, NODE, EXECUTOR = "memory", "node.toml", "executor"
#: seconds within which the coordinator's server must have accepted this site
CONNECT = 300.0
#: in Flower's error for a node whose key is not registered, or which seems to be connected already
NOT_REGISTERED = "[code: 2004]"
#: most bytes of a file in an invitation
MOST = 100_000
#: the form of `project.version`
VERSION = re.compile(r"^fedskew [\w.+-]{1,40} with Flower [\w.+-]{1,40}$")


def join(invitation: Path, folder: Path, data: Path, notation: Mapping[str, str] = MappingProxyType({})) -> SiteFolder:
    """Make a site's folder with a key of its own, after a check of the version and the data.

    `notation` is how the site writes numbers in its table: `decimal` and `missing`, as far as the table needs them.
    """
    invited, ca, _ = read_invitation(invitation)
    digest, version = project.digest(), invited.pop("version")
    if invited.pop("digest") != digest:
        named = version if version not in ("", project.version()) else "another build of fedskew or Flower"
        raise UserError(
            f"invitation '{invitation}' is for {named}, and here is {project.version()}. Install the coordinator's "
            "version, or ask for an invitation made with yours."
        )
    options = invited.pop("data")
    _check_data(data, {**options, **notation})
    folders.make_folder(folder)
    atomic_io.write(folder / certificates.CA, ca)
    certificates.make_site_key(folder, invited["name"])
    (folder / MEMORY).mkdir(mode=0o700)
    folders.write_allow_list(folder, digest)
    lines = [
        "\n".join(f"{key} = {folders.toml_text(str(value))}" for key, value in each.items())
        for each in (options, notation)
    ]
    shown = {"options": lines[0], "notation": lines[1] or '# decimal = "comma"\n# missing = "-99"'}
    text = texts.SITE.format(**invited, data=folders.toml_text(str(data.resolve())), **shown)
    atomic_io.write(folder / folders.SITE, text)
    return folders.open_site(folder)


def read_invitation(invitation: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """Return an invitation's settings, its authorities, and the first one's signature of the second (or b"")."""
    try:
        with zipfile.ZipFile(invitation) as archive:
            page, ca = (archive.open(name).read(MOST) for name in (folders.SITE, certificates.CA))
            signed = certificates.NEXT_SIGNED in archive.namelist()
            signature = archive.open(certificates.NEXT_SIGNED).read(MOST) if signed else b""
        content = tomllib.loads(page.decode())
        checked = {
            "federation": folders.check_name(content["federation"], "name"),
            "name": folders.check_name(content["name"], "site name"),
            "number": int(content["number"]),
            "address": Address.parse(content["address"]),
            "digest": str(content["digest"]),
            "version": found[0] if (found := VERSION.search(str(content.get("version", "")))) else "",
            "data": dict(content["data"]),
        }
    except FileNotFoundError:
        raise UserError(f"invitation '{invitation}' does not exist. Check the path.") from None
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, OSError):
        raise UserError(f"'{invitation}' is not an invitation. Name the .zip that the coordinator sent.") from None
    return checked, ca, signature


def data_options(invitation: Path) -> dict[str, Any]:
    """Return an invitation's settings for the data: classes and image size."""
    content, _, _ = read_invitation(invitation)
    return dict(content["data"])


def _check_data(data: Path, options: dict[str, Any]) -> None:
    """Read the data as a training would."""
    from fedskew.data.sources import load

    load("own", data, **options, vacant=True)


def serve(site: SiteFolder, announce: Callable[[], None]) -> None:
    """Answer the coordinator until a signal comes."""
    at = site.folder
    check_server(site.address, at / certificates.CA)
    folders.write_allow_list(at, project.digest())
    RequestLog(at).append("start", fedskew=__version__)
    node = {"name": site.name, "data": site.data, "memory": str(at / MEMORY), "federation": str(at)}
    node |= site.data_options | site.notation | ({"model": site.model} if site.model else {})
    lines = [f"{key} = {folders.toml_text(value)}" for key, value in node.items()]
    (at / "flower").mkdir(mode=0o700, exist_ok=True)
    atomic_io.write(at / "flower" / NODE, "\n".join([f"site = {site.number}", *lines, ""]))
    executor = [
        *(sys.executable, "-P", "-m", "fedskew.federation.transport.executor", "site", "--address", site.address),
        *("--allow", at / folders.ALLOWED, "--node-config", at / "flower" / NODE),
        *("--ca", at / certificates.CA, "--key", at / certificates.KEY),
    ]

    def wait_until_ready(supervisor: Supervisor) -> None:
        try:
            connected = supervisor.wait_for(lambda: "is connected to" in supervisor.output(EXECUTOR), CONNECT)
        except UserError:
            if NOT_REGISTERED in supervisor.output(EXECUTOR):
                raise UserError(
                    f"the server at {site.address} does not accept this site. Send '{at / certificates.PUBLIC_KEY}' "
                    f"to the coordinator if its key is not admitted. If it was killed a moment ago, start it again "
                    "in a minute."
                ) from None
            raise
        if not connected:
            log = processes.log_path(at, EXECUTOR)
            raise UserError(f"the server at {site.address} did not answer. See '{log}'.")

    command = Command(EXECUTOR, tuple(map(str, executor)))
    processes.supervise(at, [command], wait_until_ready, announce)


def last_answer(site: SiteFolder) -> float | None:
    """Return when the site last answered a training, in seconds since 1970."""
    return max((path.stat().st_mtime for path in (site.folder / MEMORY).glob("*/*/turn-*")), default=None)
