"""Asking a block of clients one after another, and adding up what they say.

The cohort in client order is cut into blocks whose size depends on the cohort's size only; each block is summed by
itself and the blocks are added in order. So neither the number of workers nor their timing changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedskew import tree
from fedskew.errors import Diverged, UserError
from fedskew.parts.protocol import overrides
from fedskew.parts.stages import Plan, Stage
from fedskew.parts.views import Sums
from fedskew.types import Broadcast, Keep, Update
from fedskew.work.client import visit
from fedskew.work.site import Site
from fedskew.work.validate import check_finite

BLOCKS = 64

Visit = Callable[[Site, Broadcast, Keep], tuple[Update, Keep]]


@dataclass
class Gathered:
    """What came back: sums over all accepted updates, the updates themselves as far as a part needs them one by one.

    `lost` says why a client's reply is not among them, such as that it was not finite. Across a network, `late` says
    whose replies to an earlier turn came in meanwhile, too late, and `answered` whose replies are used.
    """

    sums: Sums = field(default_factory=Sums)
    updates: list[Update] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)

    def absorb(self, later: Gathered) -> None:
        """Fold in the next block."""
        self.sums.absorb(later.sums)
        self.updates += later.updates
        self.lost |= later.lost


#: of a block: what its clients said, and what they keep
Answer = tuple[Gathered, dict[int, Keep]]


def blocks(sent: Sequence[Broadcast]) -> list[Sequence[Broadcast]]:
    """Fixed blocks of consecutive clients: of one for a cohort of ten, of sixteen for a thousand."""
    size = -(-len(sent) // BLOCKS) or 1
    return [sent[start : start + size] for start in range(0, len(sent), size)]


def ask_block(site: Site, sent: Iterable[Broadcast], keep_of: Callable[[int], Keep], visit: Visit = visit) -> Answer:
    """Visit the clients of a block; gives what they said and what they keep (of those that keep anything).

    An update that is not finite is lost, and with it what its client would keep.
    """
    gathered, keeps = Gathered(), {}
    for each in sent:
        keep = keep_of(each.client)
        update, new = visit(site, each, keep)
        if each.entry is None and update.steps == 0:
            continue
        if new.pending is not None and (new.pending[1] or new.pending[2] or keep != Keep()):
            keeps[each.client] = new
        if site.loses(each):
            continue
        try:
            check_finite(site.plan, each, update)
        except UserError as reason:
            gathered.lost[each.client] = f"refused: {reason}"
            continue
        if each.entry is None:
            update = lift(site.plan, update, each, gathered.sums)
        gathered.updates.append(update)
    return gathered, keeps


def collect(sent: Sequence[Broadcast], answers: Iterable[Answer], put: Callable[[int, Keep], None]) -> Gathered:
    """Fold the answers of all blocks, in order; `put` stores what clients keep."""
    gathered = Gathered()
    for said, keeps in answers:
        for client, keep in keeps.items():
            put(client, keep)
        gathered.absorb(said)
    if gathered.lost and not any(update.examples for update in gathered.updates):
        (client, reason), *others = gathered.lost.items()
        here, more = sent[0].round, f", and {len(others)} more like it" if others else ""
        raise Diverged(
            f"round {here.index + 1} (stage {here.stage + 1}) has no update that can be used: that of client {client} "
            f"was {reason}{more}. Begin a new run with a smaller --lr, or look for extreme values in the data; the "
            "checkpoint before this round stays"
        )
    return gathered


def packed(said: Gathered, keeps: dict[int, Keep]) -> Any:
    """A block's answer as something that can travel."""
    return keeps, said.sums.added, said.sums.greatest, said.updates, said.lost


def unpacked(answer: Any) -> Answer:
    """The inverse of `packed`."""
    keeps, added, greatest, updates, lost = answer
    return Gathered(Sums(added, greatest), updates, lost), keeps


def lift(plan: Plan, update: Update, sent: Broadcast, sums: Sums) -> Update:
    """Add an update to the sums of every part; gives what is left of it that somebody needs one by one."""
    stage = plan.stage(sent.round)
    for part in stage.parts:
        if overrides(part, "lift"):
            part.lift(update, sent, sums.into(part.name + "|"))
    traffic = {
        "up": float(
            tree.size(update.weights) + tree.size(update.buffers) + sum(map(tree.size, update.extras.values()))
        ),
        "down": float(tree.size(sent.weights) + sum(map(tree.size, sent.extras.values()))),
    }
    traffic |= {f"up/{part}": float(tree.size(extra)) for part, extra in update.extras.items() if extra}
    if sent.score:
        sums.add_tree("drift|", tree.sub(update.weights, sent.weights))
    return replace(_strip(stage, update), metrics=update.metrics | traffic)


def _strip(stage: Stage, update: Update) -> Update:
    wanted = {part.name: part.individual for part in stage.parts if part.individual}
    whole = "weights" in wanted.values()
    return replace(
        update,
        weights=update.weights if whole else {},
        buffers=update.buffers if whole else {},
        extras={name: extra for name, extra in update.extras.items() if name in wanted},
    )
