"""Image files decoded once, on all cores, into one array that is mapped from then on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from joblib import cpu_count
from PIL import Image
from torch import Tensor

from fedskew.data import cache
from fedskew.errors import UserError

_MODES = {1: "L", 3: "RGB"}
_BLOCK = 64
_DIGEST = 32

#: called with the number of images done and of all
Tell = Callable[[int, int], None]

_LISTENER: ContextVar[Tell | None] = ContextVar("listener", default=None)


@contextmanager
def telling(tell: Tell) -> Iterator[None]:
    """Whatever is decoded meanwhile, and has nobody else to tell, tells `tell`."""
    before = _LISTENER.set(tell)
    try:
        yield
    finally:
        _LISTENER.reset(before)


class Unusable(UserError):
    """An image that cannot be taken as it is; `path` is whose."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"image '{path}' {why}")
        self.path = path


@dataclass(frozen=True)
class Decoded:
    """Images uint8 [N, C, H, W], the places of theirs in the list of paths, how many others were unreadable."""

    x: Tensor
    kept: Tensor
    bad: int
    checksum: str


def decode(
    paths: Sequence[Path],
    *,
    size: tuple[int, int] | None,
    channels: Literal[1, 3],
    key: str,
    skip_bad: bool = False,
    tell: Tell | None = None,
) -> Decoded:
    """Read images as grey or colour, resized (bicubic) to `size`, which is (height, width); None: all have one size.

    They are decoded again when a file's name, size or time of change is another one, or a setting is.
    """
    sized, first = (size, None) if size is not None else _size_of_first(paths, skip_bad)
    key = f"{key}|{'as they are' if size is None else 'resized'}"

    def read(path: Path) -> np.ndarray:
        return _read(path, sized, channels, first)

    return gather(paths, (channels, *sized), read, key=key, skip_bad=skip_bad, tell=tell)


def gather(
    paths: Sequence[Path],
    shape: tuple[int, int, int],
    read: Callable[[Path], np.ndarray],
    *,
    key: str,
    skip_bad: bool = False,
    tell: Tell | None = None,
) -> Decoded:
    """The same for any kind of file: `read` makes it an image of `shape`, or raises a UserError that names it."""
    start = _DIGEST + len(paths)
    heard = tell or _LISTENER.get()

    def fill(flat: np.ndarray) -> None:
        good = flat[_DIGEST:start].view(bool)
        images = flat[start:].reshape(len(paths), *shape)

        def block(begin: int) -> int:
            end = min(begin + _BLOCK, len(paths))
            for row in range(begin, end):
                try:
                    images[row] = read(paths[row])
                    good[row] = True
                except UserError:
                    if not skip_bad:
                        raise
            return end - begin

        _in_threads(block, len(paths), heard)
        kept = np.flatnonzero(good)
        for to, row in enumerate(kept):
            if to != row:
                images[to] = images[row]
        flat[:_DIGEST] = np.frombuffer(hashlib.sha256(images[: len(kept)].data).digest(), np.uint8)

    size = start + len(paths) * math.prod(shape)
    stored = cache.mapped(fingerprint(paths, f"{key}|{shape}|{skip_bad}"), (size,), np.uint8, fill)
    kept = stored[_DIGEST:start].nonzero()[:, 0]
    x = stored[start:].view(len(paths), *shape)[: len(kept)]
    return Decoded(x, kept, len(paths) - len(kept), f"sha256:{stored[:_DIGEST].numpy().tobytes().hex()}")


def _in_threads(block: Callable[[int], int], total: int, tell: Tell | None) -> None:
    """Do all blocks on all cores: decoding takes nearly all the time and holds no lock."""
    done = 0
    with ThreadPoolExecutor(cpu_count()) as pool:
        try:
            for more in pool.map(block, range(0, total, _BLOCK)):
                done += more
                if tell is not None:
                    tell(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def fingerprint(paths: Sequence[Path], key: str) -> str:
    """A name for what is made of files, another one when a file's place, size or a time of change is another.

    Archives set the time of a file's content, and renaming leaves it; the time of its entry nobody can set.
    """
    found = hashlib.sha256(key.encode())
    for path in map(Path.absolute, paths):
        try:
            told = path.stat()
            known = f"{told.st_size}|{told.st_mtime_ns}|{told.st_ctime_ns}|{told.st_ino}"
            found.update(f"|{path}|{known}".encode(errors="surrogateescape"))
        except OSError:
            found.update(f"|{path}|missing".encode(errors="surrogateescape"))
    return found.hexdigest()


def _size_of_first(paths: Sequence[Path], skip_bad: bool) -> tuple[tuple[int, int], Path | None]:
    for path in paths:
        try:
            with _opened(path) as image:
                return (image.height, image.width), path
        except UserError:
            if not skip_bad:
                raise
    return (1, 1), None


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except Exception as error:  # bytes from outside can go wrong in any way
        raise Unusable(path, f"cannot be read ({_why(path, error)})") from error


def _is_deep(path: Path, image: Image.Image) -> bool:
    """Whether it is a PNG of 16 bits a channel, which Pillow opens as one of 8 if it has colour or transparency."""
    if image.format != "PNG":
        return False
    with path.open("rb") as file:
        return file.read(25)[24:] == b"\x10"  # signature, length and name of the header, width, height, depth


def _read(path: Path, size: tuple[int, int], channels: int, like: Path | None) -> np.ndarray:
    """One image as [C, H, W]; `like` is the image whose size it must have."""
    height, width = size
    with _opened(path) as image:
        if image.mode[0] in "IF" or _is_deep(path, image):
            raise Unusable(path, f"has more than 8 bits a pixel ({image.mode}); store it with 8")
        if like is not None and (image.height, image.width) != size:
            told = f"has {image.width}x{image.height} pixels and '{like}' has {width}x{height}"
            raise Unusable(path, f"{told}: all must have one size, or be brought to one by the option size")
        try:
            grey_or_colour = image.convert(_MODES[channels])
        except Exception as error:  # as above
            raise Unusable(path, f"cannot be read ({_why(path, error)})") from error
    if like is None:
        grey_or_colour = grey_or_colour.resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(grey_or_colour)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _why(path: Path, error: Exception) -> str:
    return "there is no such file" if not path.is_file() else f"it is damaged or no image: {error}"
