"""Workers that end before they have answered: their block is asked again, but not for ever."""

from __future__ import annotations

from collections import Counter

from fedskew.errors import UserError

#: so many workers may die of the same block before the run gives up
DEATHS = 3


class Deaths:
    """Counts how many workers died of each block; `who` they are is said when the run gives up."""

    def __init__(self, who: str) -> None:
        self._who, self._found = who, Counter[int | None]()

    def add(self, block: int | None, why: object) -> None:
        self._found[block] += 1
        if self._found[block] == DEATHS:
            raise UserError(
                f"{DEATHS} {self._who} ended unexpectedly at the same work, which often means that memory ran out "
                f"({why}). Resume the run with fewer --workers"
            )
