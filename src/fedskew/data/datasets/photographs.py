"""Read photographs in folders of image files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedskew.core.errors import UserError
from fedskew.data import files, images
from fedskew.data.datasets.listing import Listing, source
from fedskew.data.sources import Source

_CINIC10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
#: means and deviations of the training part, as in FedLMD
_CINIC10_MOMENTS = ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587))


def cinic10(folder: Path | None, *, valid: bool = False, skip_bad: bool = False) -> Source:
    """Read ``train/airplane/*.png`` and the folders of the other classes, and likewise ``valid/`` and ``test/``.

    `valid` adds the validation part to the training part; `skip_bad` leaves out unreadable images and counts them.
    """
    root = files.find_folder("cinic10", folder, ["train"])
    train = _class_folders([root / "train", root / "valid"] if valid else [root / "train"], _CINIC10)
    test = _class_folders([root / "test"], _CINIC10)
    decode = partial(images.decode, size=None, channels=3, key="cinic10", skip_bad=skip_bad)
    return source("cinic10", train, test, _CINIC10, decode, _CINIC10_MOMENTS)


def tiny_imagenet(folder: Path | None, *, skip_bad: bool = False) -> Source:
    """Read ``train/<wnid>/images/*.JPEG`` and, for testing, ``val/images/*.JPEG`` with ``val/val_annotations.txt``.

    The order of ``wnids.txt`` numbers the classes; ``words.txt`` names them. `skip_bad` leaves out unreadable images
    and counts them.
    """
    root = files.find_folder("tiny-imagenet", folder, ["wnids.txt"])
    codes = _lines(root / "wnids.txt")
    training = [_images(root / "train" / code / "images", "*.JPEG") for code in codes]
    train = Listing(
        [path for paths in training for path in paths], [y for y, paths in enumerate(training) for _ in paths]
    )
    test = _annotated(root / "val", codes)
    decode = partial(images.decode, size=None, channels=3, key="tiny-imagenet", skip_bad=skip_bad)
    return source("tiny-imagenet", train, test, _words(root / "words.txt", codes), decode)


def _annotated(folder: Path, codes: Sequence[str]) -> Listing:
    """Read the validation images and their classes from lines of name, code, and a box that is not used."""
    numbers = {code: number for number, code in enumerate(codes)}
    path = folder / "val_annotations.txt"
    paths, y = [], []
    for place, line in enumerate(_lines(path), 1):
        name, _, rest = line.partition("\t")
        code = rest.partition("\t")[0]
        if code not in numbers:
            raise UserError(f"'{path}', line {place}: class '{code}' is not in wnids.txt. Fetch it again.")
        paths.append(folder / "images" / name)
        y.append(numbers[code])
    return Listing(paths, y)


def _words(path: Path, codes: Sequence[str]) -> list[str]:
    """Return the name of each class, or its code if there is none."""
    lines = _lines(path) if path.is_file() else []
    names = {code: words.split(",")[0] for code, _, words in (line.partition("\t") for line in lines)}
    return [names.get(code, code) for code in codes]


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in files.read(path).decode().splitlines() if line]
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is no text in UTF-8 ({error}). Fetch it again.") from error


def _class_folders(parts: Sequence[Path], labels: Sequence[str]) -> Listing:
    """List images in folders that are named after their classes."""
    found = [(path, y) for part in parts for y, label in enumerate(labels) for path in _images(part / label, "*.png")]
    return Listing([path for path, _ in found], [y for _, y in found])


def _images(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise UserError(f"folder '{folder}' holds no image {pattern}. Put the images of one class there.")
    return found
