"""The one exception a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake the user can mend: one sentence naming the value, the place, and what would be right."""


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` when something known looks like `word`, else the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(names)}"
