"""The errors that users read."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """An error that the user can fix: it names the wrong value and the place, and says how to fix it."""


class InvalidData(UserError):
    """Data of another machine that fail a check. The text is a clause; the receiver says whose data they are."""


class Diverged(UserError):
    """A run whose numbers are no longer finite; other runs may work."""


def required(value: T | None, what: str) -> T:
    """Return `value` if it is not None. Unlike an assertion, python -O does not remove this check."""
    if value is None:
        raise TypeError(f"{what} is missing")
    return value


def similar(word: str, known: Iterable[str]) -> list[str]:
    """Return the known word that looks most like `word`, if any does."""
    return difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.7)


def did_you_mean(word: str, known: Iterable[str], where: str = "") -> str:
    """Return ``". Did you mean 'x'?"`` if a known word is similar, else the known words, or `where` to find them."""
    names = sorted(known)
    if close := similar(word, names):
        return f". Did you mean '{close[0]}'?"
    return f". {where}." if where else f". Known: {', '.join(names)}."


def format_user_exception(error: Exception) -> str:
    """Return an exception of a user's own code in one line, with the place in that code."""
    frames = traceback.walk_tb(error.__traceback__)
    own = [
        f" ({frame.f_code.co_filename}, line {line})"
        for frame, line in frames
        if str(frame.f_globals.get("__name__")).split(".")[0] not in ("fedskew", "torch", "importlib")
    ]
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{own[-1] if own else ''}"
