"""The methods' names, parameters and cards, without importing torch.

`cards.json` holds them. ``python -m fedskew.methods.index`` generates it from the code; a test holds the two equal.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedskew.core import atomic_io
from fedskew.core.errors import UserError, did_you_mean
from fedskew.parts.card import Card

_REGISTRY = "fedskew.methods.registry"


@dataclass(frozen=True)
class MethodEntry:
    """A method as users see it: its name, its parameters with their defaults, and its card."""

    id: str
    parameters: Mapping[str, Any]
    aliases: Sequence[str]
    card: Card
    #: parts that need the updates of individual clients
    individual_parts: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return what ``fedskew methods --json`` prints."""
        card = self.card
        return {
            "id": self.id,
            "title": card.title,
            "paper": card.paper,
            "year": card.year,
            "parameters": dict(self.parameters),
            "travels": card.travels,
            "cost": card.cost,
            "lost_reply": card.lost_reply,
            "secure_aggregation": not self.individual_parts,
            "aliases": list(self.aliases),
        }

    @property
    def call(self) -> str:
        """How to write it on the command line, with all its defaults."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"{self.id}({given})" if given else self.id


def known() -> list[MethodEntry]:
    """List all methods by name: those in the code if it is imported already, else those of the index."""
    if _REGISTRY in sys.modules:  # it may hold methods of the user's own
        return from_code()
    stored = json.loads(Path(__file__).with_name("cards.json").read_text(encoding="utf-8"))
    return [MethodEntry(**entry | {"card": Card(**entry["card"])}) for entry in stored]


def find(name: str) -> MethodEntry:
    """Find a method by its name or an alias."""
    entries = {each: entry for entry in known() for each in (entry.id, *entry.aliases)}
    found = entries.get(name) or {each.lower(): entries[each] for each in entries}.get(name.lower())
    if found is None:
        raise UserError(f"there is no method '{name}'{did_you_mean(name, entries)}")
    return found


def check(expression: str) -> None:
    """Refuse an expression with an unknown name before torch is imported; later the registry does it."""
    if _REGISTRY not in sys.modules:
        for name in re.findall(r"(?:^|\+)\s*([A-Za-z][\w-]*)", re.sub(r"\(.*?\)", "", expression)):
            find(name)


def from_code() -> list[MethodEntry]:
    """List the methods that are registered, which imports torch."""
    registry = importlib.import_module(_REGISTRY)
    stages = importlib.import_module("fedskew.parts.stages")
    entries = []
    for name in registry.known():
        registered = registry.entry(name)
        aliases = [each for each in registry.known(aliases=True) if registry.entry(each).alias_of == name]
        method = registered.build()
        entries.append(MethodEntry(name, registered.defaults, aliases, method.card, stages.seen_singly(method)))
    return entries


def text() -> str:
    """Return what `cards.json` must hold."""
    return json.dumps([asdict(entry) for entry in from_code()], indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    atomic_io.write(Path(__file__).with_name("cards.json"), text())
