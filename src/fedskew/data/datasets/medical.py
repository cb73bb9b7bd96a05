"""Read medical images: MedMNIST, ICH (RSNA 2019) and ISIC 2019, in the layouts that the papers use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from fedskew.core.errors import UserError
from fedskew.data import cache, files, images
from fedskew.data.datasets.listing import Listing, source
from fedskew.data.datasets.standard import npz_arrays
from fedskew.data.images import Decoded
from fedskew.data.options import integer
from fedskew.data.sources import Source, from_arrays

_DERMA = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
_DERMA_FILES = ("dermamnist.npz", "dermamnist_ham10000_28.npz")
_ICH = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
_ICH_IMAGES = "stage_1_train_images"
_ISIC = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
_ISIC_IMAGES = "ISIC_2019_Training_Input"
_ISIC_TRUTH = "ISIC_2019_Training_GroundTruth.csv"
_ISIC_METADATA = "ISIC_2019_Training_Metadata.csv"
#: Where no split is published, the first share of a permutation is for training.
_TRAINING_SHARE = 0.7


def medmnist(folder: Path | None, *, file: str) -> Source:
    """Read the .npz file named by `file`, with train_images, train_labels, test_images and test_labels."""
    path = files.find_file("medmnist", folder, file)
    return from_arrays(*npz_arrays(path), name=path.stem)


def dermamnist(folder: Path | None, *, file: str = "") -> Source:
    """Read ``dermamnist.npz``, or another size of it named by `file`."""
    names = [file] if file else _DERMA_FILES
    root = files.find_folder("dermamnist", folder, names)
    path = next(root / name for name in names if (root / name).exists())
    return from_arrays(*npz_arrays(path), name="dermamnist", labels=_DERMA)


def ich(
    folder: Path | None,
    *,
    images_in: str = _ICH_IMAGES,
    size: int = 0,
    channels: int = 3,
    seed: int = 0,
    skip_bad: bool = False,
) -> Source:
    """Read ``train.csv`` and ``test.csv`` (or ``train_ICH.csv``, ``test_ICH.csv``), or ``data.csv``, and PNG images.

    The first two have the columns id and the five kinds, with a single 1 in each row. ``data.csv`` has id,class; a
    permutation by `seed` takes 70 % of it for training. Images are ``stage_1_train_images/<id>.png``, or in the folder
    `images_in`.

    `size` resizes images (0: as they are); `channels` is 1 or 3; `skip_bad` leaves out unreadable images and counts
    them.
    """
    root = files.find_folder("ich", folder, ["train.csv", "train_ICH.csv", "data.csv"])
    names = next(pair for pair in _ICH_TABLES if (root / pair[0]).exists())
    parts = [_listing(root / name, _ICH, root / images_in, ".png") for name in names]
    train, test = parts if len(parts) == 2 else parts[0].split(_TRAINING_SHARE, seed)
    gray_or_color = _gray_or_color(channels, "data set 'ich'")
    return source("ich", train, test, _ICH, _decoder("ich", size, gray_or_color, skip_bad))


_ICH_TABLES = (("train.csv", "test.csv"), ("train_ICH.csv", "test_ICH.csv"), ("data.csv",))


def ich_dicom(
    folder: Path | None,
    *,
    table: str = "stage_1_train.csv",
    images_in: str = _ICH_IMAGES,
    size: int = 128,
    channels: int = 3,
    seed: int = 0,
    grouped: bool = False,
    skip_bad: bool = False,
) -> Source:
    """Read ``stage_1_train.csv`` (or `table`), with rows ``ID_<image>_<kind>,<0 or 1>``, and the DICOM files.

    They are ``stage_1_train_images/<image>.dcm``, or in the folder `images_in`. pydicom reads them, from the extra
    `data`.

    Images with exactly one kind of hemorrhage are used. A permutation by `seed` takes 70 % for training; with
    `grouped` no patient is in both parts, nor at two clients. Densities are clipped to the first window of the header,
    stretched to 0..255 and resized to `size`. `channels` is 1 or 3; `skip_bad` leaves out unreadable files.
    """
    where = "data set 'ich-dicom'"
    pydicom = files.extra("pydicom", where)
    side = integer(size, "size", where)
    path = files.find_file("ich-dicom", folder, table)
    chosen = _single_positives(path)
    paths = [path.parent / images_in / f"{name}.dcm" for name in chosen]
    groups = _patients(pydicom, paths) if grouped else None
    train, test = Listing(paths, list(chosen.values()), groups).split(_TRAINING_SHARE, seed)
    decode = partial(
        images.gather,
        shape=(_gray_or_color(channels, where), side, side),
        read=partial(_windowed, pydicom, side=side),
        key="ich-dicom",
        skip_bad=skip_bad,
    )
    return source("ich-dicom", train, test, _ICH, decode)


def isic2019(
    folder: Path | None, *, size: int = 224, seed: int = 0, grouped: bool = False, skip_bad: bool = False
) -> Source:
    """Read ``ISIC_2019_Training_GroundTruth.csv`` and ``ISIC_2019_Training_Input/<image>.jpg``.

    ``train.csv`` and ``test.csv`` with the same columns are used instead if they are there; the column UNK is ignored.

    Images are resized to `size`. A permutation by `seed` takes 70 % for training; with `grouped` no lesion of
    ``ISIC_2019_Training_Metadata.csv`` is in both parts, nor at two clients. `skip_bad` leaves out unreadable images.
    """
    root = files.find_folder("isic2019", folder, ["train.csv", _ISIC_TRUTH])
    inside = root / _ISIC_IMAGES
    inside = inside / _ISIC_IMAGES if (inside / _ISIC_IMAGES).is_dir() else inside
    if (root / "train.csv").exists() and not grouped:
        train, test = (_listing(root / name, _ISIC, inside, ".jpg") for name in ("train.csv", "test.csv"))
    else:
        every = _listing(root / _ISIC_TRUTH, _ISIC, inside, ".jpg")
        groups = _lesions(root / _ISIC_METADATA, every.paths) if grouped else None
        train, test = Listing(every.paths, every.y, groups).split(_TRAINING_SHARE, seed)
    return source("isic2019", train, test, _ISIC, _decoder("isic2019", size, 3, skip_bad))


def _decoder(name: str, size: int, channels: Literal[1, 3], skip_bad: bool) -> Callable[[Sequence[Path]], Decoded]:
    side = integer(size, "size", f"data set '{name}'", least=0)
    return partial(images.decode, size=(side, side) if side else None, channels=channels, key=name, skip_bad=skip_bad)


def _gray_or_color(channels: int, where: str) -> Literal[1, 3]:
    if channels not in (1, 3):
        raise UserError(f"{where}: channels is {channels!r}. Set it to 1 or 3.")
    return 1 if channels == 1 else 3


def _listing(path: Path, labels: Sequence[str], folder: Path, suffix: str) -> Listing:
    """Read images and classes from a table with a column of names, then one for each class, or a number `class`."""
    heading, *rows = files.table(path) or [[]]
    if heading[1:] == ["class"]:
        choose = list(map(str, range(len(labels)))).index
    elif missing := [label for label in labels if label not in heading[1:]]:
        raise UserError(f"'{path}' has no column '{missing[0]}'. Write the heading id,{','.join(labels)}.")
    columns = [heading.index(label) for label in labels if label in heading]
    paths, y = [], []
    for line, row in enumerate(rows, 2):
        try:
            if len(row) != len(heading):
                raise ValueError
            positive = [k for k, column in enumerate(columns) if float(row[column])] if columns else [choose(row[1])]
        except ValueError:
            raise UserError(
                f"'{path}', line {line}: {','.join(row)[:80]} does not fit its heading. Correct the line."
            ) from None
        if len(positive) > 1 or not (positive or "UNK" in heading):
            raise UserError(f"'{path}', line {line}: '{row[0]}' is of {len(positive)} classes. Name one.")
        if positive:  # in ISIC's tables, a lesion of unknown kind has none
            paths.append(folder / (row[0].removesuffix(suffix) + suffix))
            y += positive
    return Listing(paths, y)


def _lesions(path: Path, paths: Sequence[Path]) -> list[int]:
    """Return the lesion of each image; an image without one is a lesion by itself."""
    heading, *rows = files.table(path) or [[]]
    if not {"image", "lesion_id"} <= set(heading):
        raise UserError(f"'{path}' has no columns 'image' and 'lesion_id'. Add them, or remove the option grouped.")
    image, lesion = heading.index("image"), heading.index("lesion_id")
    lesions = {row[image]: row[lesion] for row in rows}
    return _numbered([lesions.get(each.stem) or str(each) for each in paths])


def _numbered(names: Sequence[str]) -> list[int]:
    return np.unique(np.array(names), return_inverse=True)[1].tolist()


def _single_positives(path: Path) -> dict[str, int]:
    """Return the images with exactly one kind of hemorrhage; rows may come twice."""
    numbers = {kind: number for number, kind in enumerate(_ICH)}
    found: dict[str, set[int]] = {}
    for line, row in enumerate(files.table(path)[1:], 2):
        image, _, kind = row[0].rpartition("_")
        if len(row) != 2 or kind not in (*_ICH, "any") or row[1] not in ("0", "1"):
            raise UserError(f"'{path}', line {line}: {','.join(row)[:80]} is no label. Write ID_3a0809f_epidural,0.")
        if row[1] == "1" and kind != "any":
            found.setdefault(image, set()).add(numbers[kind])
    single = {image: kinds.pop() for image, kinds in found.items() if len(kinds) == 1}
    if not single:
        raise UserError(f"'{path}' has no image with exactly one kind of hemorrhage. Name another table.")
    return single


def _windowed(pydicom: Any, path: Path, *, side: int) -> np.ndarray:
    """Clip densities to the window of the header and stretch them over 0..255, as gray [1, side, side]."""
    try:
        stored = pydicom.dcmread(path)
        density = stored.pixel_array * float(stored.RescaleSlope) + float(stored.RescaleIntercept)
        center, width = (
            float(value[0] if isinstance(value, pydicom.multival.MultiValue) else value)
            for value in (stored.WindowCenter, stored.WindowWidth)
        )
    except Exception as error:  # bytes from outside can go wrong in any way
        raise UserError(
            f"'{path}' cannot be read as a DICOM image with a window ({error}). Set skip_bad to leave it out."
        ) from error
    shown = np.clip(density, center - width / 2, center + width / 2)
    shown = shown - shown.min()
    gray = (shown / (shown.max() or 1) * 255).astype(np.uint8)
    return np.asarray(Image.fromarray(gray).resize((side, side), Image.Resampling.BICUBIC))[None]


def _patients(pydicom: Any, paths: Sequence[Path]) -> list[int]:
    """Return the patient of each file; headers are read once."""

    def fill(array: np.ndarray) -> None:
        for row, path in enumerate(paths):
            try:
                name = str(pydicom.dcmread(path, stop_before_pixels=True).PatientID)
            except Exception as error:  # as above
                raise UserError(
                    f"'{path}' cannot be read as a DICOM file with a PatientID ({error}). Remove it."
                ) from error
            array[row] = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], np.int64)[0]

    hashes = cache.mapped(images.fingerprint(paths, "ich-dicom patients"), (len(paths),), np.int64, fill)
    return np.unique(hashes.numpy(), return_inverse=True)[1].tolist()
