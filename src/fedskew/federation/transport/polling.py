"""Choose how often to poll: often at first, and less often the longer nothing happens."""

from __future__ import annotations

#: seconds; a poll costs a SuperLink some 13 ms of its one core, so ten sites at the quick rate take a third of it
QUICK, IDLE = 0.4, 3.0


def pause(waited: float) -> float:
    """Return the seconds until the next poll: at most a tenth of the time `waited` is lost."""
    return min(max(waited / 10, QUICK), IDLE)
