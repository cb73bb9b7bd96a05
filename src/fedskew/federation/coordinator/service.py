"""Make the coordinator's folder, invite and admit sites, run the server, and show who is connected."""

from __future__ import annotations

import secrets
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.federation import folders, processes, texts
from fedskew.federation.coordinator.superlink_client import SuperLinkClient, check_port, check_server
from fedskew.federation.folders import Address, CoordinatorFolder
from fedskew.federation.processes import Command, Supervisor
from fedskew.federation.security import certificates
from fedskew.federation.transport import project

INVITATIONS, KEYS, SECRET = "invitations", "keys", "executor.secret"
#: configurations that `run` has submitted: the executor accepts no others
SUBMITTED = Path("flower") / "submitted"
SUPERLINK, EXECUTOR = "superlink", "executor"
#: seconds within which the server must be up
START = 300.0


def init(
    folder: Path, name: str, address: str, sites: Sequence[str], classes: str = "", size: str = "", encoder: str = ""
) -> CoordinatorFolder:
    """Make the coordinator's folder, with an invitation for each site."""
    folders.check_name(name, "name")
    parsed, names = Address.parse(address), folders.check_sites(sites)
    given = {"classes": classes, "size": size, "encoder": encoder}
    options = check_data_options({key: text for key, text in given.items() if text})
    folders.make_folder(folder)
    examples = {"classes": '# classes = "benign,malignant"', "size": '# size = "64x64"'}
    examples["encoder"] = "# encoder = '...'"
    lines = examples | {key: f"{key} = {folders.toml_text(text)}" for key, text in options.items()}
    listed = ", ".join(map(folders.toml_text, names))
    text = texts.FEDERATION.format(name=name, address=parsed, listen=parsed.host, sites=listed, **lines)
    atomic_io.write(folder / folders.FEDERATION, text)
    coordinator = folders.open_coordinator(folder)
    certificates.make_authority(folder, name)
    (folder / KEYS).mkdir()
    make_missing_files(coordinator)
    return coordinator


def check_data_options(options: Mapping[str, Any], place: str = "") -> dict[str, str]:
    """Return the classes, the image size and the encoder among `options`, checked as a site will check them."""
    from fedskew.data.custom import features
    from fedskew.federation.site.guard import LIMITS

    largest = LIMITS["size"]
    found = {key: str(options[key]) for key in ("classes", "size", "encoder") if key in options}
    features.agreed(found.get("encoder", ""))
    classes = [name.strip() for name in found.get("classes", "a,b").split(",")]
    if len(classes) < 2 or not all(classes) or len(set(classes)) < len(classes):
        raise UserError(f"{place}classes is '{found['classes']}'. Give two or more different names, with commas.")
    sides = found.get("size", "1").split("x")
    if len(sides) > 2 or not all(side.isdecimal() and 0 < int(side) <= largest for side in sides):
        raise UserError(
            f"{place}size is '{found['size']}'. Give pixels from 1 to {largest}: 64, or 64x48 (height first)."
        )
    return found


def make_missing_files(coordinator: CoordinatorFolder) -> None:
    """Make the certificate, secret and invitations that a new or restored folder lacks."""
    folder = coordinator.folder
    if not set(coordinator.host_names) <= certificates.names_of_server(folder):
        certificates.make_server(folder, coordinator.host_names)
    if not (folder / SECRET).exists():
        atomic_io.write(folder / SECRET, secrets.token_bytes(32), private=True)
    write_invitations(coordinator)


def write_invitations(coordinator: CoordinatorFolder) -> list[str]:
    """Write the invitations that are missing or out of date; return their sites."""
    folder, path = coordinator.folder, coordinator.folder / folders.FEDERATION
    config = configuration.from_dict({"data": coordinator.training.get("data", {})}, f"section 'training' of '{path}'")
    options = check_data_options(config.data.options, f"'{path}': training.data.options.")
    data = "\n".join(f"{key} = {folders.toml_text(text)}" for key, text in options.items())
    (folder / INVITATIONS).mkdir(exist_ok=True)
    common: dict[str, Any] = {"federation": coordinator.name, "address": coordinator.address, "data": data}
    common |= {"digest": project.digest(), "version": project.version()}
    signature, written = folder / certificates.NEXT_SIGNED, []
    for number, site in enumerate(coordinator.sites):
        values = common | {"name": site, "number": number}
        content = {
            certificates.CA: certificates.trusted(folder),
            folders.SITE: texts.INVITATION.format(**values).encode(),
            "README.md": texts.README.format(**values).encode(),
        }
        content |= {signature.name: signature.read_bytes()} if signature.exists() else {}
        invitation = folder / INVITATIONS / f"{site}.zip"
        if _content_of(invitation) != content:
            with atomic_io.replacing(invitation) as file, zipfile.ZipFile(file, "w") as archive:
                for name, each in content.items():
                    archive.writestr(name, each)
            written.append(site)
    return written


def _content_of(invitation: Path) -> dict[str, bytes] | None:
    try:
        with zipfile.ZipFile(invitation) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (FileNotFoundError, zipfile.BadZipFile):
        return None


def remove_site(coordinator: CoordinatorFolder, site: str) -> CoordinatorFolder:
    """Remove a site and refuse its key. Later runs are without it; a run in progress loses it."""
    coordinator.check_site(site)
    if len(coordinator.sites) == 1:
        raise UserError(f"'{site}' is the only site. Type 'fedskew federation stop' to end the federation.")
    folders.write_sites(coordinator, [each for each in coordinator.sites if each != site])
    for path in (_key_path(coordinator, site), coordinator.folder / INVITATIONS / f"{site}.zip"):
        path.unlink(missing_ok=True)
    left = folders.open_coordinator(coordinator.folder)
    _register_if_up(left)
    return left


def admit_site(coordinator: CoordinatorFolder, site: str, key_or_file: str, replace: bool = False) -> str:
    """Store a site's public key, and register it if the server is up; return the key's fingerprint."""
    coordinator.check_site(site)
    key, known = certificates.public_key(key_or_file), public_keys(coordinator)
    owner = next((each for each, other in known.items() if other == key and each != site), None)
    if owner is not None:
        raise UserError(f"this is the key of site '{owner}'. Ask '{site}' for its own, made by 'join'.")
    if known.get(site, key) != key and not replace:
        raise UserError(
            f"site '{site}' already has another key, {certificates.fingerprint(known[site])}. Add --replace if the "
            "site really made a new one."
        )
    atomic_io.write(_key_path(coordinator, site), f"{key} {site}\n")
    _register_if_up(coordinator)
    return certificates.fingerprint(key)


def _key_path(coordinator: CoordinatorFolder, site: str) -> Path:
    return coordinator.folder / KEYS / f"{site}.pub"


def public_keys(coordinator: CoordinatorFolder) -> dict[str, str]:
    """Return the public keys of admitted sites."""
    paths = {site: _key_path(coordinator, site) for site in coordinator.sites}
    return {site: certificates.public_key(str(path)) for site, path in paths.items() if path.exists()}


def _register_if_up(coordinator: CoordinatorFolder) -> None:
    if processes.is_up(coordinator.folder):
        with connect(coordinator) as server:
            register_sites(coordinator, server)


def register_sites(coordinator: CoordinatorFolder, server: SuperLinkClient) -> None:
    """Register the keys of admitted sites, and unregister all others, such as a site's old key."""
    admitted = {certificates.pem(key): site for site, key in public_keys(coordinator).items()}
    registered = {node.key: node for node in server.nodes()}
    for key in registered.keys() - admitted.keys():
        server.unregister(registered[key].id)
    for key, site in admitted.items():
        if key not in registered:
            server.register(key, site)


def serve(coordinator: CoordinatorFolder, announce: Callable[[], None]) -> None:
    """Run the coordinator's server until a signal comes."""
    at = coordinator.folder
    processes.check_nothing_runs(at)  # otherwise check_port would only say that the port is taken
    check_port(coordinator.listen, coordinator.address.port)
    make_missing_files(coordinator)
    folders.write_allow_list(at, project.digest())
    (at / SUBMITTED).mkdir(parents=True, exist_ok=True)
    superlink = [
        *(sys.executable, "-P", "-m", "fedskew.federation.transport.superlink"),
        *("--isolation", "process", "--superexec-auth-secret-file", at / SECRET, "--enable-supernode-auth"),
        *("--ssl-ca-certfile", at / certificates.CA),
        *("--ssl-certfile", at / certificates.SERVER, "--ssl-keyfile", at / certificates.SERVER_KEY),
        *("--disable-runtime-dependency-installation", "--database", at / "flower" / "state.db"),
        *("--host", coordinator.listen, "--port", coordinator.address.port),
    ]
    executor = [
        *(sys.executable, "-P", "-m", "fedskew.federation.transport.executor", "coordinator"),
        *("--address", coordinator.local_address),
        *("--allow", at / folders.ALLOWED, "--secret", at / SECRET, "--ca", at / certificates.CA),
        *("--runs", at / SUBMITTED),
    ]

    def wait_until_ready(supervisor: Supervisor) -> None:
        if not supervisor.wait_for(lambda: _answers(coordinator), START):
            log = processes.log_path(at, SUPERLINK)
            raise UserError(f"the server at {coordinator.local_address} does not answer. See '{log}'.")
        with connect(coordinator) as server:
            register_sites(coordinator, server)
        supervisor.start(Command(EXECUTOR, tuple(map(str, executor))))

    processes.supervise(at, [Command(SUPERLINK, tuple(map(str, superlink)))], wait_until_ready, announce)


def _answers(coordinator: CoordinatorFolder) -> bool:
    try:
        check_server(coordinator.local_address, coordinator.folder / certificates.CA)
    except UserError:
        return False
    return True


def connect(coordinator: CoordinatorFolder) -> AbstractContextManager[SuperLinkClient]:
    """Connect to the coordinator's own server."""
    return SuperLinkClient.connect(coordinator.local_address, coordinator.folder / certificates.CA)


@dataclass(frozen=True)
class SiteStatus:
    """A site's connection: `since` when it has been connected, or gone. Without a server, only `admitted` is known."""

    site: str
    admitted: bool
    node: int | None = None
    connected: bool | None = None
    since: str = ""


def site_statuses(coordinator: CoordinatorFolder, server: SuperLinkClient | None) -> list[SiteStatus]:
    """Return the status of every site."""
    keys = {site: certificates.pem(key) for site, key in public_keys(coordinator).items()}
    nodes = {node.key: (node.id, node.connected, node.since) for node in server.nodes()} if server is not None else {}
    return [SiteStatus(site, site in keys, *nodes.get(keys.get(site, b""), ())) for site in coordinator.sites]
