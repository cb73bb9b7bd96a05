"""What would leave a site, on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedskew.cli.screen import print_facts, print_table

if TYPE_CHECKING:
    from fedskew.leaving import Turn


def print_turns(turns: Sequence[Turn]) -> None:
    """Show each kind of answer once, tensor for tensor; rounds are counted from 1 already."""
    for alike in _alike(turns):
        first = alike[0]
        what = f"the question of {first.question}" if first.question else "the updates"
        rounds = ", ".join(str(turn.round) for turn in alike[:3]) + (" ..." if len(alike) > 3 else "")
        facts = {
            "leaves": f"{what} of stage {first.stage}, {len(alike)} times (rounds {rounds})",
            "tensors": f"{len(first.leaves)}, {first.bytes:,} bytes each time",
            "numbers": ", ".join(("client", "examples", "steps", *first.metrics)),
        }
        print_facts(facts)
        print_table(
            ["of", "tensor", "type", "shape", "bytes"],
            [[f.place, f.name, f.dtype, str(list(f.shape)), f"{f.bytes:,}"] for f in first.leaves],
            left=4,
        )


def _alike(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Turns in which the very same tensors leave, in the order of their first."""
    groups: dict[Any, list[Turn]] = {}
    for turn in turns:
        groups.setdefault((turn.stage, turn.question, turn.leaves, turn.metrics), []).append(turn)
    return list(groups.values())
