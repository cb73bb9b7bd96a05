"""How often to ask for news, where nobody calls: often at first, and ever less often while there are none."""

from __future__ import annotations

QUICK, IDLE = 0.2, 3.0


def pause(waited: float) -> float:
    """Seconds until one asks again, after `waited` seconds: a twentieth of what has passed is lost at most."""
    return min(max(waited / 20, QUICK), IDLE)
