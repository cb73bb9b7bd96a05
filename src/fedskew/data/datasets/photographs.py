"""Photographs in folders of image files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedskew.data import files, images
from fedskew.data.catalogue import Source, reader
from fedskew.data.listing import Listing, source
from fedskew.errors import UserError

_CINIC10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
#: Of the training part, as FedLMD normalises.
_CINIC10_MOMENTS = ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587))


@reader(
    "cinic10",
    what="270,000 photographs, 3x32x32, 10 classes; a third is for training, with the option valid two thirds",
    licence="MIT; its images come from CIFAR-10 and ImageNet, whose terms hold for them",
    origin="CINIC-10.tar.gz of datashare.ed.ac.uk/handle/10283/3192: folders train, valid, test of class folders",
)
def cinic10(folder: Path | None, *, valid: bool = False, skip_bad: bool = False) -> Source:
    """``train/airplane/*.png`` and so on, ``valid/`` and ``test/`` likewise.

    `valid` adds the validation part to the training part; `skip_bad` leaves unreadable images out and counts them.
    """
    places = files.folders("cinic10", folder, ("CINIC-10", "cinic-10", "cinic10"))
    root = files.home("cinic10", places, ["train"])
    train = _class_folders([root / "train", root / "valid"] if valid else [root / "train"], _CINIC10)
    test = _class_folders([root / "test"], _CINIC10)
    decode = partial(images.decode, size=None, channels=3, key="cinic10", skip_bad=skip_bad)
    return source("cinic10", train, test, _CINIC10, decode, _CINIC10_MOMENTS)


@reader(
    "tiny-imagenet",
    what="110,000 photographs, 3x64x64, 200 classes; its validation part, whose labels are public, is for testing",
    licence="ImageNet's terms: research and teaching only",
    origin="cs231n.stanford.edu/tiny-imagenet-200.zip",
)
def tiny_imagenet(folder: Path | None, *, skip_bad: bool = False) -> Source:
    """``wnids.txt`` (whose order numbers the classes), ``words.txt``, ``train/<wnid>/images/*.JPEG``,
    ``val/images/*.JPEG`` and ``val/val_annotations.txt``.

    `skip_bad` leaves unreadable images out and counts them.
    """
    places = files.folders("tiny-imagenet", folder, ("tiny-imagenet-200", "tiny-imagenet"))
    root = files.home("tiny-imagenet", places, ["wnids.txt"])
    codes = _lines(root / "wnids.txt")
    training = [_images(root / "train" / code / "images", "*.JPEG") for code in codes]
    train = Listing(
        [path for paths in training for path in paths], [y for y, paths in enumerate(training) for _ in paths]
    )
    test = _annotated(root / "val", codes)
    decode = partial(images.decode, size=None, channels=3, key="tiny-imagenet", skip_bad=skip_bad)
    return source("tiny-imagenet", train, test, _words(root / "words.txt", codes), decode)


def _annotated(folder: Path, codes: Sequence[str]) -> Listing:
    """The validation images, whose classes stand in a file: name, code, and a box that nobody needs here."""
    numbers = {code: number for number, code in enumerate(codes)}
    path = folder / "val_annotations.txt"
    paths, y = [], []
    for place, line in enumerate(_lines(path), 1):
        name, _, rest = line.partition("\t")
        code = rest.partition("\t")[0]
        if code not in numbers:
            raise UserError(f"'{path}', line {place}: class '{code}' is not one of the {len(codes)} of wnids.txt")
        paths.append(folder / "images" / name)
        y.append(numbers[code])
    return Listing(paths, y)


def _words(path: Path, codes: Sequence[str]) -> list[str]:
    """What each class is called, or its code if nobody says."""
    lines = _lines(path) if path.is_file() else []
    said = {code: words.split(",")[0] for code, _, words in (line.partition("\t") for line in lines)}
    return [said.get(code, code) for code in codes]


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in files.read(path).decode().splitlines() if line]
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is no text in UTF-8 ({error})") from error


def _class_folders(parts: Sequence[Path], labels: Sequence[str]) -> Listing:
    """Images in folders that are called as their classes."""
    found = [(path, y) for part in parts for y, label in enumerate(labels) for path in _images(part / label, "*.png")]
    return Listing([path for path, _ in found], [y for _, y in found])


def _images(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise UserError(f"folder '{folder}' holds no image {pattern}, and should hold those of one class")
    return found
