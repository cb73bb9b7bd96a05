"""Ask the clients of a block one after another, and sum their updates.

The cohort, in client order, is cut into blocks whose size depends only on the cohort's size. Each block has its own
sums, and blocks are added in order. So neither the number of workers nor their timing changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from fedskew.core import tree
from fedskew.core.errors import Diverged, InvalidData
from fedskew.core.types import Broadcast, ClientState, Update
from fedskew.parts.stages import Plan
from fedskew.parts.views import Accumulator
from fedskew.runtime.client import visit
from fedskew.runtime.context import RunContext
from fedskew.runtime.validate import check_finite

BLOCKS = 64

Visit = Callable[[RunContext, Broadcast, ClientState], tuple[Update, ClientState]]


@dataclass
class Replies:
    """The replies to one turn: sums over the accepted updates, and what parts need of single updates.

    `lost` gives the reason for each reply that is not used. In a federation, `answered` lists the clients whose
    replies are used, and `late` those whose reply to an earlier turn arrived too late.
    """

    sums: Accumulator = field(default_factory=Accumulator)
    updates: list[Update] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)

    def absorb(self, later: Replies) -> None:
        """Add the replies of the next block."""
        self.sums.absorb(later.sums)
        self.updates += later.updates
        self.lost |= later.lost


#: the replies of a block, and the new states of its clients
Answer = tuple[Replies, dict[int, ClientState]]


def blocks(sent: Sequence[Broadcast]) -> list[Sequence[Broadcast]]:
    """Cut a cohort into blocks of consecutive clients: of one client for a cohort of ten, of sixteen for a thousand."""
    size = -(-len(sent) // BLOCKS) or 1
    return [sent[start : start + size] for start in range(0, len(sent), size)]


def simulate(context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
    """Visit a client of a simulation, which may be hostile."""
    update, new = visit(context, sent, client_state)
    return (update if context.tamper is None else context.tamper(sent, update)), new


def ask_block(
    context: RunContext,
    sent: Iterable[Broadcast],
    client_state_of: Callable[[int], ClientState],
    visit: Visit = simulate,
) -> Answer:
    """Visit the clients of a block; return their replies and the states of those that remember something.

    An update that is not finite is lost, and its client forgets the round.
    """
    replies, client_states = Replies(), {}
    for each in sent:
        client_state = client_state_of(each.client)
        update, new = visit(context, each, client_state)
        if each.evaluate:
            replies.updates.append(update)
            continue
        if each.setup is None and update.steps == 0:
            continue
        if new.pending is not None and (new.pending[1] or new.pending[2] or client_state != ClientState()):
            client_states[each.client] = new
        if context.loses(each):
            continue
        try:
            check_finite(context.plan, each, update)
        except InvalidData as reason:
            replies.lost[each.client] = f"refused: {reason}"
            continue
        if each.setup is None:
            update = accumulate(context.plan, update, each, replies.sums)
        replies.updates.append(update)
    return replies, client_states


def collect(sent: Sequence[Broadcast], answers: Iterable[Answer], put: Callable[[int, ClientState], None]) -> Replies:
    """Add up the answers of all blocks in order; `put` stores the clients' states."""
    replies = Replies()
    for block, client_states in answers:
        for client, client_state in client_states.items():
            put(client, client_state)
        replies.absorb(block)
    if replies.lost and not any(update.examples for update in replies.updates):
        (client, reason), *others = replies.lost.items()
        here, more = sent[0].round, f" (and so were {len(others)} more)" if others else ""
        raise Diverged(
            f"round {here.index + 1} (stage {here.stage + 1}) has no usable update: that of client {client} was "
            f"{reason}{more}. Start a new run with a smaller --lr, or look for extreme values in the data; the "
            "checkpoint before this round stays."
        )
    return replies


def accumulate(plan: Plan, update: Update, sent: Broadcast, sums: Accumulator) -> Update:
    """Add an update to the sums of every part; return what parts need of it as a single update."""
    stage = plan.stage(sent.round)
    for part in stage.filling("accumulate"):
        part.accumulate(update, sent, sums.into(part.name + "|"))
    traffic = {
        "up": float(
            tree.size(update.weights) + tree.size(update.buffers) + sum(map(tree.size, update.extras.values()))
        ),
        "down": float(tree.size(sent.weights) + sum(map(tree.size, sent.extras.values()))),
    }
    traffic |= {f"up/{part}": float(tree.size(extra)) for part, extra in update.extras.items() if extra}
    if sent.score:
        sums.add_tree("drift|", tree.sub(update.weights, sent.weights))
    with_weights = "weights" in stage.individual_updates.values()
    return replace(
        update,
        weights=update.weights if with_weights else {},
        buffers=update.buffers if with_weights else {},
        extras={name: extra for name, extra in update.extras.items() if name in stage.individual_updates},
        metrics=update.metrics | traffic,
    )
