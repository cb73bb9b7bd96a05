"""The two kinds of folder: the coordinator's, with ``federation.toml``, and a site's, with ``site.toml``."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedskew.errors import UserError, nearest

FEDERATION, SITE, ALLOWED = "federation.toml", "site.toml", "allowed.txt"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_SITES = re.compile(r"^sites\s*=\s*\[[^\]]*\]", re.MULTILINE)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True)
class Address:
    """Where the coordinator's server is reached."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(f"address '{text}' must be HOST:PORT, for example fl.example.org:9092 or 127.0.0.1:9092")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Coordinator:
    """What ``federation.toml`` says."""

    folder: Path
    name: str
    address: Address
    listen: str
    sites: tuple[str, ...]
    rules: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def here(self) -> Address:
        """The server as this machine reaches it."""
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen), self.address.port)

    @property
    def hosts(self) -> list[str]:
        """Whatever the server may be called."""
        return list(dict.fromkeys([self.address.host, self.here.host, "localhost", "127.0.0.1"]))

    def number(self, site: str) -> int:
        if site not in self.sites:
            raise UserError(f"'{self.folder / FEDERATION}' has no site '{site}'{nearest(site, self.sites)}")
        return self.sites.index(site)


@dataclass(frozen=True)
class Member:
    """What ``site.toml`` says."""

    folder: Path
    federation: str
    name: str
    number: int
    address: Address
    data: str
    model: str | None = None
    classes: str | None = None
    size: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """What the invitation says of data."""
        return {key: text for key, text in (("classes", self.classes), ("size", self.size)) if text is not None}


def opened(folder: Path) -> Coordinator | Member:
    """The folder of a coordinator or of a site, by what lies in it."""
    if (folder / FEDERATION).is_file():
        return coordinator(folder)
    if (folder / SITE).is_file():
        return member(folder)
    raise UserError(
        f"'{folder}' is no folder of a federation: it has neither '{FEDERATION}' (made by 'fedskew federation init') "
        f"nor '{SITE}' (made by 'fedskew federation join')"
    )


def coordinator(folder: Path) -> Coordinator:
    """The coordinator's folder."""
    if not (folder / FEDERATION).is_file():
        raise UserError(f"'{folder}' is not the coordinator's folder: it has no '{FEDERATION}'")
    path = folder / FEDERATION
    found = read_toml(path)
    kinds = {"name": str, "address": str, "listen": str, "sites": list, "rules": dict, "training": dict}
    _check(found, kinds, path)
    sites = check_sites(found["sites"])
    address = Address.parse(found["address"])
    return Coordinator(
        folder.resolve(), found["name"], address, found["listen"], sites, found["rules"], found["training"]
    )


def write_sites(office: Coordinator, sites: Sequence[str]) -> None:
    """Name other sites in the coordinator's file, which otherwise stays as somebody wrote it."""
    path = office.folder / FEDERATION
    text = path.read_text(encoding="utf-8")
    changed = _SITES.sub(lambda _: f"sites = [{', '.join(map(quoted, sites))}]", text, count=1)
    try:
        right = tomllib.loads(changed) == tomllib.loads(text) | {"sites": list(sites)}
    except tomllib.TOMLDecodeError:
        right = False
    if not right:
        raise UserError(f"'{path}' lists its sites in a way that cannot be changed here. Write sites = [...] anew.")
    replace(path, changed.encode())


def member(folder: Path) -> Member:
    """A site's folder."""
    path = folder / SITE
    found = read_toml(path)
    kinds = {"federation": str, "name": str, "number": int, "address": str, "data": str}
    optional = dict.fromkeys(("model", "classes", "size"), str)
    _check(found, kinds | optional, path, tuple(optional))
    return Member(folder.resolve(), **found | {"address": Address.parse(found["address"])})


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' is not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from None


def _check(found: Mapping[str, Any], kinds: Mapping[str, type], path: Path, optional: tuple[str, ...] = ()) -> None:
    for key in found:
        if key not in kinds:
            raise UserError(f"'{path}' has no key '{key}'{nearest(key, kinds)}")
    for key, kind in kinds.items():
        if key not in found and key not in optional:
            raise UserError(f"'{path}' has no '{key}'; put it back")
        if key in found and type(found[key]) is not kind:
            raise UserError(f"'{path}': {key} is {found[key]!r}, and must be of the kind '{kind.__name__}'")


def check_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"{what} '{name}' must be of small letters, digits and hyphens, at most 32 of them")
    return name


def check_sites(names: list[Any]) -> tuple[str, ...]:
    sites = tuple(check_name(name, "site name") for name in names)
    if not sites or len(set(sites)) < len(sites):
        raise UserError(f"sites are '{','.join(sites)}', and must be one or more different names")
    return sites


def new_folder(folder: Path) -> None:
    """A folder that nobody else may look into."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"'{folder}' exists and is not empty; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(f"folder '{folder}' cannot be made: {error.strerror}") from None


def allow(folder: Path, digest: str) -> None:
    """Let this app run here, and no other."""
    path, text = folder / ALLOWED, f"{_ALLOWED}{digest}\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def replace(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content)
    draft.replace(path)


def quoted(text: str) -> str:
    """A text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False)


_ALLOWED = """\
# The one app that may run here, by the SHA-256 of what Flower delivers: fedskew's own, computed here from what is
# installed here, anew at every 'start'. Whatever else somebody submits is refused unopened.
"""
