"""Read and write the two kinds of folder: the coordinator's (``federation.toml``) and a site's (``site.toml``)."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedskew.core import atomic_io
from fedskew.core.errors import UserError, did_you_mean

FEDERATION, SITE, ALLOWED = "federation.toml", "site.toml", "allowed.txt"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_SITES = re.compile(r"^sites\s*=\s*\[[^\]]*\]", re.MULTILINE)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True)
class Address:
    """Host and port of the coordinator's server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read HOST:PORT."""
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(f"address '{text}' is not HOST:PORT. Write it as fl.example.org:9092 or 127.0.0.1:9092.")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class CoordinatorFolder:
    """A coordinator's folder and the content of its ``federation.toml``."""

    folder: Path
    name: str
    address: Address
    listen: str
    sites: tuple[str, ...]
    rules: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def local_address(self) -> Address:
        """The server's address as seen from this machine."""
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen), self.address.port)

    @property
    def host_names(self) -> list[str]:
        """All names under which clients reach the server."""
        return list(dict.fromkeys([self.address.host, self.local_address.host, "localhost", "127.0.0.1"]))

    def check_site(self, site: str) -> None:
        """Refuse the name of a site that is not in the federation."""
        if site not in self.sites:
            raise UserError(f"'{self.folder / FEDERATION}' has no site '{site}'{did_you_mean(site, self.sites)}")


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder and the content of its ``site.toml``."""

    folder: Path
    federation: str
    name: str
    number: int
    address: Address
    data: str
    model: str | None = None
    classes: str | None = None
    size: str | None = None
    encoder: str | None = None
    decimal: str | None = None
    missing: str | None = None

    @property
    def data_options(self) -> dict[str, str]:
        """The invitation's settings for the data: classes, image size, and the encoder of tables."""
        given = {"classes": self.classes, "size": self.size, "encoder": self.encoder}
        return {key: text for key, text in given.items() if text is not None}

    @property
    def notation(self) -> dict[str, str]:
        """How this site writes numbers in its table, if the table does not say; no other site needs to know."""
        given = {"decimal": self.decimal, "missing": self.missing}
        return {key: text for key, text in given.items() if text is not None}


def open_folder(folder: Path) -> CoordinatorFolder | SiteFolder:
    """Open a coordinator's or a site's folder, depending on the file in it."""
    if (folder / FEDERATION).is_file():
        return open_coordinator(folder)
    if (folder / SITE).is_file():
        return open_site(folder)
    raise UserError(
        f"'{folder}' is not a federation folder: it has neither '{FEDERATION}' nor '{SITE}'. "
        "Make one with 'fedskew federation init' (coordinator) or 'fedskew federation join' (site)."
    )


def open_coordinator(folder: Path) -> CoordinatorFolder:
    """Open a coordinator's folder."""
    path = folder / FEDERATION
    if not path.is_file():
        raise UserError(f"'{folder}' is not a coordinator's folder: it has no '{FEDERATION}'. Name the one of 'init'.")
    content = read_toml(path)
    _check_keys(content, path, name=str, address=str, listen=str, sites=list, rules=dict, training=dict)
    content |= {"address": Address.parse(content["address"]), "sites": check_sites(content["sites"])}
    return CoordinatorFolder(folder.resolve(), **content)


def open_site(folder: Path) -> SiteFolder:
    """Open a site's folder."""
    path = folder / SITE
    content = read_toml(path)
    optional = dict.fromkeys(("model", "classes", "size", "encoder", "decimal", "missing"), str)
    required = {"federation": str, "name": str, "number": int, "address": str, "data": str}
    _check_keys(content, path, tuple(optional), **required, **optional)
    return SiteFolder(folder.resolve(), **content | {"address": Address.parse(content["address"])})


def write_sites(coordinator: CoordinatorFolder, sites: Sequence[str]) -> None:
    """Replace the list of sites in ``federation.toml``; comments and all other lines stay."""
    path = coordinator.folder / FEDERATION
    text = path.read_text(encoding="utf-8")
    changed = _SITES.sub(lambda _: f"sites = [{', '.join(map(toml_text, sites))}]", text, count=1)
    try:
        correct = tomllib.loads(changed) == tomllib.loads(text) | {"sites": list(sites)}
    except tomllib.TOMLDecodeError:
        correct = False
    if not correct:
        raise UserError(
            f"the list of sites in '{path}' has a form that cannot be edited. Write sites = [...] yourself."
        )
    atomic_io.write(path, changed)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' is not valid TOML: {error}. Correct it.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}. Give this user the right to it.") from None


def _check_keys(content: Mapping[str, Any], path: Path, optional: tuple[str, ...] = (), **kinds: type) -> None:
    for key in content:
        if key not in kinds:
            raise UserError(f"'{path}' has no key '{key}'{did_you_mean(key, kinds)}")
    for key, kind in kinds.items():
        if key not in content and key not in optional:
            raise UserError(f"'{path}' lacks the key '{key}'. Add it again.")
        if key in content and type(content[key]) is not kind:
            raise UserError(f"'{path}': {key} is {content[key]!r}. Write a value of type '{kind.__name__}'.")


def check_name(name: Any, what: str) -> str:
    """Refuse a name that cannot stand in file names and commands."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"{what} '{name}' is not allowed. Use lowercase letters, digits and hyphens, at most 32.")
    return name


def check_sites(names: Sequence[Any]) -> tuple[str, ...]:
    """Refuse a list of sites that is empty or names one twice."""
    sites = tuple(check_name(name, "site name") for name in names)
    if not sites or len(set(sites)) < len(sites):
        raise UserError(f"sites are '{','.join(sites)}'. Give one or more different names.")
    return sites


def check_empty(folder: Path) -> None:
    """Refuse a folder that exists and holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"'{folder}' exists and is not empty. Choose another folder.")


def make_folder(folder: Path) -> None:
    """Make a folder that only its owner can read."""
    try:
        check_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(f"folder '{folder}' cannot be made: {error.strerror}. Choose another one.") from None


def write_allow_list(folder: Path, digest: str) -> None:
    """Allow this app, and no other."""
    path, text = folder / ALLOWED, f"{_ALLOWED}{digest}\n"
    if not path.exists() or path.read_text() != text:
        atomic_io.write(path, text)


def toml_text(text: str) -> str:
    """Quote a text for TOML."""
    return json.dumps(text, ensure_ascii=False)


_ALLOWED = """\
# The SHA-256 of the only app that may run here: fedskew's own, as Flower delivers it. Every 'start' computes it from
# the installed fedskew. Any other app is refused without being opened.
"""
