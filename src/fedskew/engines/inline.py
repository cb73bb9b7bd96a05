"""The engine without processes: the simplest one, and the one to debug with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedskew.core import devices
from fedskew.core.types import Broadcast, ClientState, Spec, Tree, Update
from fedskew.runtime import evaluate
from fedskew.runtime.accumulate import Replies, ask_block, blocks, collect, simulate
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import TEST, Scoring
from fedskew.runtime.store import Store


class Inline:
    """Asks clients one after another, on one device."""

    scores_at_clients = False

    def __init__(
        self, context: RunContext, store: Store, device: str = devices.CPU, deterministic: bool = True
    ) -> None:
        devices.start(device, deterministic)
        with devices.memory(device, workers=1):
            self.context, self.store = context.on(device), store

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        with devices.memory(self.context.device, workers=1):
            answers = (ask_block(self.context, block, self.store.get, self.visit) for block in blocks(sent))
            return collect(sent, answers, self.store.put)

    def visit(self, context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
        """Visit one client; tests replace this."""
        return simulate(context, sent, client_state)

    def score(self, spec: Spec, weights: Tree, scoring: Scoring = TEST) -> dict[str, Any]:
        pieces = evaluate.slices(self.context, scoring)
        with devices.memory(self.context.device, workers=1):
            found = [evaluate.score_slice(self.context, spec, weights, piece, scoring) for piece in pieces]
        return evaluate.scores(found)

    def confirm(self, seen: dict[int, int]) -> None:
        self.store.confirm(seen)

    def close(self) -> None:
        pass
