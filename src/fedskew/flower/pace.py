"""How often to ask for news, where nobody calls: often at first, and ever less often while there are none."""

from __future__ import annotations

#: a question costs a SuperLink some 13 ms of its one core: ten sites at this pace a third of it
QUICK, IDLE = 0.4, 3.0


def pause(waited: float) -> float:
    """Seconds until one asks again, after `waited` seconds: at most a tenth of what has passed is lost."""
    return min(max(waited / 10, QUICK), IDLE)
