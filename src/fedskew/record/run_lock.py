"""One process at a time writes into a folder: it holds a lock on a file there, from before it reads to its end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedskew.errors import UserError

if sys.platform != "win32":
    import fcntl

NAME = "run.lock"
#: seconds for which whoever only asks may hold the lock
_PATIENCE = 0.5

_ours: set[int] = set()


def _forget() -> None:
    """A forked worker must not hold the lock when the process that forked it is gone."""
    for descriptor in _ours:
        os.close(descriptor)
    _ours.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Be the only process that writes into `folder`, which is made, and taken away again if nothing came of it."""
    if sys.platform == "win32":
        yield
        return
    made = _make(folder)
    try:
        descriptor = _take(folder)
    except BaseException:
        _remove(made)
        raise
    try:
        yield
    finally:
        with suppress(OSError):  # somebody may have taken the folder away
            if made and [path.name for path in folder.iterdir()] == [NAME] and _is(descriptor, folder / NAME):
                (folder / NAME).unlink()
                _remove(made)
        _ours.discard(descriptor)
        os.close(descriptor)


def check_held(folder: Path) -> None:
    """Refuse to go on in a folder that was removed, and perhaps made anew, while this process held its lock."""
    if sys.platform != "win32" and not any(_is(descriptor, folder / NAME) for descriptor in _ours):
        raise UserError(f"'{folder}' was removed while the run was being prepared; begin it again")


def is_held(folder: Path) -> bool | None:
    """Whether a living process writes there; None where that cannot be known."""
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def check_free(folder: Path) -> None:
    """Refuse a folder into which a process writes at this moment."""
    if is_held(folder):
        raise _busy(folder)


def _take(folder: Path) -> int:
    path, until = folder / NAME, time.monotonic() + _PATIENCE
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot write the run folder '{folder}': {error.strerror}; choose another --out") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > until:
                raise _busy(folder) from None
            time.sleep(0.02)
            continue
        except OSError:  # a file system without locks
            pass
        if _is(descriptor, path):
            break
        os.close(descriptor)  # whoever held it took the file away
    _ours.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"process": os.getpid(), "command": sys.argv[:3]}).encode(), 0)
    except OSError:  # a full disk; what is written here only names us
        pass
    return descriptor


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _busy(folder: Path) -> UserError:
    try:
        who = f"process {int(json.loads((folder / NAME).read_text())['process'])}"
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    return UserError(f"{who} is writing into '{folder}'; wait until it ends, or stop it first")


def _make(folder: Path) -> list[Path]:
    """The folders that had to be made, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the run folder '{folder}': {error.strerror}; choose another --out") from None
    return missing


def _remove(made: list[Path]) -> None:
    for path in made:
        try:
            path.rmdir()
        except OSError:  # somebody else put something there meanwhile
            return
