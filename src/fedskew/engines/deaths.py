"""A limit on how often workers may die of the same work."""

from __future__ import annotations

from collections import Counter

from fedskew.core.errors import UserError

#: the run gives up when this many workers died of the same block
DEATHS = 3


class Deaths:
    """Counts how many workers died of each block; `workers` names them in the error."""

    def __init__(self, workers: str) -> None:
        self._workers, self._found = workers, Counter[int | None]()

    def add(self, block: int | None, why: object) -> None:
        """Count a death; raise UserError if there were too many."""
        self._found[block] += 1
        if self._found[block] == DEATHS:
            raise UserError(
                f"{DEATHS} {self._workers} died of the same work; often memory ran out ({why}). Resume "
                "the run with fewer --workers."
            )
