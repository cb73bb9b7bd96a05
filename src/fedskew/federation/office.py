"""The coordinator's end: making the federation, admitting its sites, its server, and how all of them are."""

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
from fedskew.errors import UserError
from fedskew.federation import certificates, folder, processes, texts
from fedskew.federation.folder import Address, Coordinator
from fedskew.federation.link import Link, check_port, shake_hands
from fedskew.federation.processes import Command, Keeper
from fedskew.flower import project

INVITATIONS, KEYS, SECRET = "invitations", "keys", "executor.secret"
#: configurations that `run` has submitted: the executor takes no others
SUBMITTED = Path("flower") / "submitted"
SUPERLINK, EXECUTOR = "superlink", "executor"
#: seconds that the server may take to come up
BIRTH = 300.0


def init(at: Path, name: str, address: str, sites: Sequence[str], classes: str = "", size: str = "") -> Coordinator:
    """Make the coordinator's folder, with an invitation for each site."""
    folder.check_name(name, "name")
    where, names = Address.parse(address), folder.check_sites(list(sites))
    wanted = described({key: text for key, text in (("classes", classes), ("size", size)) if text})
    folder.new_folder(at)
    known = {key: f"{key} = {folder.quoted(text)}" for key, text in wanted.items()}
    examples = {"classes": '# classes = "benign,malignant"', "size": '# size = "64x64"'}
    (at / folder.FEDERATION).write_text(
        texts.FEDERATION.format(
            name=name, address=where, listen=where.host, sites=", ".join(map(folder.quoted, names)), **examples | known
        ),
        encoding="utf-8",
    )
    made = folder.coordinator(at)
    certificates.make_authority(at, name)
    (at / KEYS).mkdir()
    furnish(made)
    return made


def described(options: Mapping[str, Any], place: str = "") -> dict[str, str]:
    """What sites' data must look like: the classes and the size among `options`, checked as a site will check them."""
    from fedskew.flower.guard import LIMITS

    most = LIMITS["size"]

    def are_classes(text: str) -> bool:
        names = [name.strip() for name in text.split(",")]
        return len(names) > 1 and all(names) and len(set(names)) == len(names)

    def is_size(text: str) -> bool:
        sides = text.split("x")
        return len(sides) <= 2 and all(side.isdecimal() and 0 < int(side) <= most for side in sides)

    right = {
        "classes": (are_classes, "two or more names, each once, with commas between"),
        "size": (is_size, f"pixels from 1 to {most}, such as 64, or 64x48 (height first)"),
    }
    found = {key: str(options[key]) for key in right if key in options}
    for key, text in found.items():
        holds, what = right[key]
        if not holds(text):
            raise UserError(f"{place}{key} is '{text}', and must be {what}")
    return found


def furnish(office: Coordinator) -> None:
    """Make what is missing in the coordinator's folder and can be made: at first, and where a backup lacks it."""
    at = office.folder
    if not set(office.hosts) <= certificates.names_of_server(at):
        certificates.make_server(at, office.hosts)
    if not (at / SECRET).exists():
        certificates.write_private(at / SECRET, secrets.token_bytes(32))
    invite(office)


def invite(office: Coordinator) -> list[str]:
    """Write the invitations that are missing, or say something else than the file does by now; whose they are."""
    path = office.folder / folder.FEDERATION
    config = configuration.from_dict({"data": office.training.get("data", {})}, f"section 'training' of '{path}'")
    wanted = described(config.data.options, f"'{path}': training.data.options.")
    data = "\n".join(f"{key} = {folder.quoted(text)}" for key, text in wanted.items())
    (office.folder / INVITATIONS).mkdir(exist_ok=True)
    digest, written = project.digest(), []
    for number, site in enumerate(office.sites):
        told = {"federation": office.name, "name": site, "address": office.address}
        page = texts.INVITATION.format(**told, number=number, digest=digest, version=project.version(), data=data)
        content = {
            certificates.CA: certificates.trusted(office.folder),
            folder.SITE: page.encode(),
            "README.md": texts.README.format(**told).encode(),
        }
        signature = office.folder / certificates.NEXT_SIGNED
        content |= {signature.name: signature.read_bytes()} if signature.exists() else {}
        invitation = office.folder / INVITATIONS / f"{site}.zip"
        if _content_of(invitation) != content:
            with zipfile.ZipFile(invitation, "w") as archive:
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


def remove(office: Coordinator, site: str) -> Coordinator:
    """Let a site in no more, and name it no more: later runs are without it, and one that is going loses it."""
    office.number(site)
    if len(office.sites) == 1:
        raise UserError(f"'{site}' is the only site; a federation needs one. 'fedskew federation stop' ends it.")
    folder.write_sites(office, [each for each in office.sites if each != site])
    for path in (office.folder / KEYS / f"{site}.pub", office.folder / INVITATIONS / f"{site}.zip"):
        path.unlink(missing_ok=True)
    left = folder.coordinator(office.folder)
    if processes.is_up(left.folder):
        with link(left) as server:
            register(left, server)
    return left


def admit(office: Coordinator, site: str, given: str, replace: bool = False) -> str:
    """Keep a site's public key, and register it if the server is up; the key's fingerprint."""
    office.number(site)
    key, known = certificates.public_key(given), admitted(office)
    other = next((each for each, held in known.items() if held == key and each != site), None)
    if other is not None:
        raise UserError(f"the key is that of site '{other}'; every site must have its own, made by 'join'")
    if known.get(site, key) != key and not replace:
        raise UserError(
            f"site '{site}' has another key already, {certificates.fingerprint(known[site])}; if the site has really "
            "made a new one, say --replace"
        )
    (office.folder / KEYS / f"{site}.pub").write_text(f"{key} {site}\n")
    if processes.is_up(office.folder):
        with link(office) as server:
            register(office, server)
    return certificates.fingerprint(key)


def admitted(office: Coordinator) -> dict[str, str]:
    """The sites' public keys."""
    paths = {site: office.folder / KEYS / f"{site}.pub" for site in office.sites}
    return {site: certificates.public_key(str(path)) for site, path in paths.items() if path.exists()}


def register(office: Coordinator, server: Link) -> None:
    """Let in whoever is admitted, and nobody else: not the old key of a site that has a new one."""
    wanted = {certificates.pem(key): site for site, key in admitted(office).items()}
    there = {node.key: node for node in server.nodes()}
    for key in there.keys() - wanted.keys():
        server.unregister(there[key].id)
    for key, site in wanted.items():
        if key not in there:
            server.register(key, site)


def keep(office: Coordinator, say: Callable[[], None]) -> None:
    """Be the coordinator's server until a signal comes."""
    at = office.folder
    processes.check_nothing_runs(at)  # else it would be said of the port that somebody has it
    check_port(office.listen, office.address.port)
    furnish(office)
    folder.allow(at, project.digest())
    superlink = [
        *(sys.executable, "-P", "-m", "fedskew.flower.link"),
        *("--isolation", "process", "--superexec-auth-secret-file", at / SECRET, "--enable-supernode-auth"),
        *("--ssl-ca-certfile", at / certificates.CA),
        *("--ssl-certfile", at / certificates.SERVER, "--ssl-keyfile", at / certificates.SERVER_KEY),
        *("--disable-runtime-dependency-installation", "--database", at / "flower" / "state.db"),
        *("--host", office.listen, "--port", office.address.port),
    ]
    executor = [
        *(sys.executable, "-P", "-m", "fedskew.flower.executor", "coordinator", "--address", office.here),
        *("--allow", at / folder.ALLOWED, "--secret", at / SECRET, "--ca", at / certificates.CA),
        *("--runs", at / SUBMITTED),
    ]
    (at / SUBMITTED).mkdir(parents=True, exist_ok=True)

    def ready(keeper: Keeper) -> None:
        if not keeper.wait_for(lambda: _answers(office), BIRTH):
            raise UserError(f"the server at {office.here} does not answer; see '{processes.log_of(at, SUPERLINK)}'")
        with link(office) as server:
            register(office, server)
        keeper.start(Command(EXECUTOR, tuple(map(str, executor))))

    processes.keep(at, [Command(SUPERLINK, tuple(map(str, superlink)))], ready, say)


def _answers(office: Coordinator) -> bool:
    try:
        shake_hands(office.here, office.folder / certificates.CA)
    except UserError:
        return False
    return True


def link(office: Coordinator) -> AbstractContextManager[Link]:
    """The coordinator's own server."""
    return Link.to(office.here, office.folder / certificates.CA)


@dataclass(frozen=True)
class Standing:
    """How a site is; what only the server knows is None while that is down. `since` it is there, or gone."""

    site: str
    admitted: bool
    node: int | None = None
    connected: bool | None = None
    since: str = ""


def standings(office: Coordinator, server: Link | None) -> list[Standing]:
    """How every site is."""
    keys = {site: certificates.pem(key) for site, key in admitted(office).items()}
    nodes = {node.key: node for node in server.nodes()} if server is not None else {}
    known = {site: nodes[key] for site, key in keys.items() if key in nodes}
    return [
        Standing(site, True, known[site].id, known[site].connected, known[site].since)
        if site in known
        else Standing(site, site in keys)
        for site in office.sites
    ]
