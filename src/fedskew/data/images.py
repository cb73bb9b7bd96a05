"""Decode image files once, on all cores, into one array that is memory-mapped from then on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from joblib import cpu_count
from PIL import Image
from torch import Tensor

from fedskew.core import progress
from fedskew.core.errors import UserError
from fedskew.data import cache

_MODES = {1: "L", 3: "RGB"}
_BLOCK = 64
_DIGEST = 32


class Unusable(UserError):
    """An image that cannot be used; `path` is its file."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"image '{path}' {why}")
        self.path = path


@dataclass(frozen=True)
class Decoded:
    """Images uint8 [N, C, H, W], their positions in the list of paths, and the number of unreadable ones."""

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
) -> Decoded:
    """Read images as gray or color, resized (bicubic) to `size`, which is (height, width).

    They are decoded again when a file's name, size or time of change is another one, or a setting is.
    """
    sized, first = (size, None) if size is not None else _size_of_first(paths, skip_bad)
    key = f"{key}|{'as they are' if size is None else 'resized'}"

    def read(path: Path) -> np.ndarray:
        return _read(path, sized, channels, first)

    return gather(paths, (channels, *sized), read, key=key, skip_bad=skip_bad)


def gather(
    paths: Sequence[Path],
    shape: tuple[int, int, int],
    read: Callable[[Path], np.ndarray],
    *,
    key: str,
    skip_bad: bool = False,
) -> Decoded:
    """Decode any kind of file: `read` returns an image of `shape`, or raises a UserError that names the file."""
    start = _DIGEST + len(paths)

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

        _in_threads(block, len(paths))
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


def _in_threads(block: Callable[[int], int], total: int) -> None:
    """Process all blocks on all cores; decoding takes nearly all the time and holds no lock."""
    done = 0
    with ThreadPoolExecutor(cpu_count()) as pool:
        try:
            for more in pool.map(block, range(0, total, _BLOCK)):
                done += more
                progress.report("decoding images", done, total, "images")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def fingerprint(paths: Sequence[Path], key: str) -> str:
    """Return a key for what is made of files; it changes with a file's path, size or time of change.

    Archives set a file's modification time and renaming keeps it, so the time of its inode counts, too.
    """
    found = hashlib.sha256(key.encode())
    for path in map(Path.absolute, paths):
        try:
            status = path.stat()
            known = f"{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}|{status.st_ino}"
            found.update(f"|{path}|{known}".encode(errors="surrogateescape"))
        except OSError:
            found.update(f"|{path}|missing".encode(errors="surrogateescape"))
    return found.hexdigest()


def _size_of_first(paths: Sequence[Path], skip_bad: bool) -> tuple[tuple[int, int], Path | None]:
    for path in paths:
        try:
            with _open_image(path) as image:
                return (image.height, image.width), path
        except UserError:
            if not skip_bad:
                raise
    return (1, 1), None


def _open_image(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except Exception as error:  # bytes from outside can go wrong in any way
        raise Unusable(path, f"cannot be read ({_why(path, error)}). Replace it, or set skip_bad.") from error


def _is_deep(path: Path, image: Image.Image) -> bool:
    """Whether it is a PNG of 16 bits per channel, which Pillow reads as 8 bits if it has color or transparency."""
    if image.format != "PNG":
        return False
    with path.open("rb") as file:
        return file.read(25)[24:] == b"\x10"  # signature, length and name of the header, width, height, depth


def _read(path: Path, size: tuple[int, int], channels: int, like: Path | None) -> np.ndarray:
    """Read one image as [C, H, W]; `like` is the image whose size it must have."""
    height, width = size
    with _open_image(path) as image:
        if image.mode[0] in "IF" or _is_deep(path, image):
            raise Unusable(path, f"has more than 8 bits per channel ({image.mode}). Save it with 8.")
        if like is not None and (image.height, image.width) != size:
            sizes = f"has {image.width}x{image.height} pixels and '{like}' has {width}x{height}"
            raise Unusable(path, f"{sizes}. Resize all with --set data.options.size=64.")
        try:
            gray_or_color = image.convert(_MODES[channels])
        except Exception as error:  # as above
            raise Unusable(path, f"cannot be read ({_why(path, error)}). Replace it, or set skip_bad.") from error
    if like is None:
        gray_or_color = gray_or_color.resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(gray_or_color)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _why(path: Path, error: Exception) -> str:
    return "there is no such file" if not path.is_file() else f"it is damaged or no image: {error}"
