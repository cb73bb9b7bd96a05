"""Lock a run folder: only one process at a time writes into it, from before it reads to its end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedskew.core.errors import UserError

if sys.platform != "win32":
    import fcntl

NAME = "run.lock"
#: seconds to wait for a process that only checks the lock
_PATIENCE = 0.5

_ours: set[int] = set()


def _forget() -> None:
    """Release the lock in forked workers: they may outlive the process that holds it."""
    for descriptor in _ours:
        os.close(descriptor)
    _ours.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder; make it if needed, and remove it again if it stays empty."""
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
        with suppress(OSError):  # the folder may have been removed
            if made and [path.name for path in folder.iterdir()] == [NAME] and _is(descriptor, folder / NAME):
                (folder / NAME).unlink()
                _remove(made)
        _ours.discard(descriptor)
        os.close(descriptor)


def check_locked(folder: Path) -> None:
    """Refuse to continue in a folder that was removed or replaced while it was locked."""
    if sys.platform != "win32" and not any(_is(descriptor, folder / NAME) for descriptor in _ours):
        raise UserError(f"'{folder}' was removed while the run was being prepared. Begin it again.")


def is_locked(folder: Path) -> bool | None:
    """Whether a process writes into a folder now; None if that cannot be known."""
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
    """Refuse a folder into which a process writes now."""
    if is_locked(folder):
        raise _busy(folder)


def _take(folder: Path) -> int:
    path, until = folder / NAME, time.monotonic() + _PATIENCE
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot write run folder '{folder}': {error.strerror}. Choose another --out.") from None
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
        os.close(descriptor)  # the previous holder removed the file
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
    return UserError(f"{who} is writing into '{folder}'. Wait until it ends, or stop it first.")


def _make(folder: Path) -> list[Path]:
    """Return the folders that had to be made, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write run folder '{folder}': {error.strerror}. Choose another --out.") from None
    return missing


def _remove(made: list[Path]) -> None:
    for path in made:
        try:
            path.rmdir()
        except OSError:  # another process wrote into it meanwhile
            return
