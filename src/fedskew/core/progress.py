"""Progress of long preparations: low layers report it without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: called with a task's name, how much of it is done, of how much (0 if unknown), and the unit
OnProgress = Callable[[str, int, int, str], None]

_LISTENER: ContextVar[OnProgress | None] = ContextVar("listener", default=None)


@contextmanager
def listening(on_progress: OnProgress) -> Iterator[None]:
    """Call `on_progress` for everything that is reported inside the `with` block."""
    before = _LISTENER.set(on_progress)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def report(task: str, done: int, total: int, unit: str) -> None:
    """Report how far a task is; `total` is 0 while nobody knows it, and equals `done` at the end."""
    if (on_progress := _LISTENER.get()) is not None:
        on_progress(task, done, total, unit)
