"""Name some of a network's tensors, to train them or to leave them at the clients.

A selector is a kind (`all`, `head`, `body`, `batchnorm`, `adapters`), the beginning of names (``trunk.0``), a pattern
with `*`, or several of them with commas between. A `!` before it means everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase


def names(what: str, name: str, kinds: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether a selector names a tensor; `kinds` has the beginnings, or patterns, that a kind stands for."""
    what = "!head" if what == "body" else what
    if what.startswith("!"):
        return not names(what[1:], name, kinds)
    starts = [start for each in what.split(",") for start in kinds.get(each.strip(), (each.strip(),))]
    return any(fnmatchcase(name, start) if "*" in start else name.startswith(start) for start in starts)


def rest(what: str) -> str:
    """Return the selector of everything else."""
    return {"head": "body", "body": "head"}.get(what, what[1:] if what.startswith("!") else f"!{what}")
