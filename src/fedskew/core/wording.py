"""Words for numbers."""

from __future__ import annotations


def number_of(count: float, noun: str) -> str:
    """Write ``1 round`` or ``1,200 rounds``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
