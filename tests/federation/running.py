"""Federations of real processes, by the commands alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedskew.federation import processes
from tests.commands import succeed
from tests.federation import made
from tests.federation.transport.processes import free_port


@dataclass(frozen=True)
class Federation:
    folder: Path
    address: str

    @property
    def coordinator(self) -> Path:
        return self.folder / "coordinator"

    @property
    def members(self) -> list[Path]:
        return [self.folder / name for name in made.SITES]

    def member(self, name: str) -> Path:
        return self.folder / name

    def running(self) -> list[str]:
        """Commands of all processes that know of this folder."""
        found = []
        for setup in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"FLWR_HOME={self.folder}".encode() in (setup / "environ").read_bytes():
                    found.append((setup / "cmdline").read_text())
        return found


def together(command: str, folders: list[Path]) -> list[str]:
    """One command for several folders at the same time; what each said."""
    words = [[sys.executable, "-m", "fedskew", "federation", command, str(folder)] for folder in folders]
    started = [subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for each in words]
    said = [each.communicate()[0] for each in started]
    assert [each.returncode for each in started] == [0] * len(folders), said
    return said


@contextmanager
def running(folder: Path, training: Sequence[str], **rules: object) -> Iterator[Federation]:
    """A coordinator and three sites that approved fedavg and are up, with other rules; all end at the end."""
    found = Federation(folder.resolve(), f"127.0.0.1:{free_port()}")
    made.coordinator(found.coordinator, found.address)
    path = found.coordinator / "federation.toml"
    lines = [line.partition(" = ") for line in path.read_text().splitlines()]
    path.write_text("\n".join(f"{a}{b}{rules.get(a, c)}" for a, b, c in lines) + "\n")
    for name, member in zip(made.SITES, found.members, strict=True):
        made.site(member, found.coordinator, name)
        made.approve(member, "fedavg", *training)
        succeed("federation", "admit", found.coordinator, name, member / "key.pub")
    try:
        together("start", [found.coordinator])
        together("start", found.members)
        yield found
    finally:
        for each in [*found.members, found.coordinator]:
            processes.stop_all(each)
