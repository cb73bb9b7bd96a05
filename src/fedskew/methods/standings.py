"""What leads where, as far as the project's own records tell; `scripts/standings.py` writes the file from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("standings.json")


@dataclass(frozen=True)
class Place:
    """A method's score in a situation: the mean over its last ten rounds, in percent."""

    method: str
    #: with the parameters that it was run with
    expression: str
    seeds: int
    score: float
    over_fedavg: float
    #: of the difference, if there are enough seeds for one
    interval: list[float] | None


@dataclass(frozen=True)
class Situation:
    """A kind of federation, and the methods that were run in it, best first."""

    name: str
    question: str
    metric: str
    setting: str
    #: the tables of `fedskew reproduce` that its records are of
    sources: list[str]
    standings: list[Place]


def situations() -> list[Situation]:
    """Read all situations."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return [Situation(**each | {"standings": [Place(**one) for one in each["standings"]]}) for each in stored]


def places() -> dict[str, list[str]]:
    """Return for each method its places, such as "text 1/9"."""
    found: dict[str, list[str]] = {}
    for each in situations():
        for place, one in enumerate(each.standings, start=1):
            found.setdefault(one.method, []).append(f"{each.name} {place}/{len(each.standings)}")
    return found
