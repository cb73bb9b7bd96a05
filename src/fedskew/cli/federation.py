"""Commands of a real federation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.failures import Group
from fedskew.cli.screen import print_facts, print_json, print_table
from fedskew.errors import UserError

if TYPE_CHECKING:
    from fedskew.leaving import Turn


@click.group(cls=Group)
def federation() -> None:
    """Train across organisations: each keeps its data."""


@federation.command("dry-run")
@click.argument("method")
@click.option("--site", type=int, default=0, show_default=True, help="Which client: the site's number.")
@options.training
@options.as_json
def dry_run(method: str, site: int, as_json: bool, **asked: Any) -> None:
    """List exactly which tensors would leave a site in each round of METHOD. Nothing is sent.

    Each round's work is done here, for one step of it.
    """
    from fedskew import face
    from fedskew.leaving import dry_run

    config = face.configure(method=method, **asked)
    if not 0 <= site < config.partition.clients:
        raise UserError(f"--site is {site}, and sites are 0..{config.partition.clients - 1}")
    turns = [turn for turn in dry_run(config) if turn.client == site]
    if as_json:
        print_json([asdict(turn) for turn in turns])
        return
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


def _alike(turns: list[Turn]) -> list[list[Turn]]:
    """Turns in which the very same tensors leave, in the order of their first."""
    groups: dict[Any, list[Turn]] = {}
    for turn in turns:
        groups.setdefault((turn.stage, turn.question, turn.leaves, turn.metrics), []).append(turn)
    return list(groups.values())
