"""Everything in this process: the simplest engine, and the one to debug with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedskew.types import Broadcast, Keep, Spec, Tree, Update
from fedskew.work import evaluate
from fedskew.work.client import visit
from fedskew.work.gather import Gathered, ask_block, blocks, collect
from fedskew.work.site import Site
from fedskew.work.store import Store


class Inline:
    """Asks clients one after another."""

    def __init__(self, site: Site, store: Store) -> None:
        self.site, self.store = site, store

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        answers = (ask_block(self.site, block, self.store.get, self.visit) for block in blocks(sent))
        return collect(sent, answers, self.store.put)

    def visit(self, site: Site, sent: Broadcast, keep: Keep) -> tuple[Update, Keep]:
        """Reach one client."""
        return visit(site, sent, keep)

    def score(self, spec: Spec, weights: Tree) -> dict[str, Any]:
        return evaluate.scores(
            [evaluate.score_slice(self.site, spec, weights, piece) for piece in evaluate.slices(self.site)]
        )

    def settle(self, seen: dict[int, int]) -> None:
        self.store.settle(seen)

    def close(self) -> None:
        pass
