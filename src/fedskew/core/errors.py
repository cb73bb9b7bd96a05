"""The one exception a user is meant to read."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A mistake the user can mend: one sentence naming the value, the place, and what would be right."""


class Diverged(UserError):
    """A run whose numbers are no longer finite; it says nothing about other runs."""


def required(value: T | None, what: str) -> T:
    """Return `value`; its absence is a mistake in code, which python -O must not hide as it hides assertions."""
    if value is None:
        raise TypeError(f"{what} is missing")
    return value


def nearest(word: str, known: Iterable[str], where: str = "") -> str:
    """``"; did you mean 'x'?"`` when something known looks like `word`, else all that is known, or `where` it is."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.7)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; {where}" if where else f"; known: {', '.join(names)}"


def theirs(error: Exception) -> str:
    """What a user's own code raised, in one line, and the place in that code."""
    frames = traceback.walk_tb(error.__traceback__)
    own = [
        f" ({frame.f_code.co_filename}, line {line})"
        for frame, line in frames
        if str(frame.f_globals.get("__name__")).split(".")[0] not in ("fedskew", "torch", "importlib")
    ]
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{own[-1] if own else ''}"
