"""Medical images: MedMNIST, ICH (RSNA 2019) and ISIC 2019, in the layouts that the papers read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from fedskew.data import cache, files, images
from fedskew.data.catalogue import Source, from_arrays, reader
from fedskew.data.images import Decoded
from fedskew.data.listing import Listing, source
from fedskew.data.options import whole
from fedskew.data.readers import npz_arrays
from fedskew.errors import UserError

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


@reader(
    "medmnist",
    what="any single-label data set of MedMNIST, by the option file, for example bloodmnist.npz",
    licence="CC BY 4.0, DermaMNIST CC BY-NC 4.0",
    origin="npz files of zenodo.org/records/10519652 (medmnist.com)",
)
def medmnist(folder: Path | None, *, file: str) -> Source:
    """An .npz file with train_images, train_labels, test_images and test_labels, named by `file`."""
    path = files.find("medmnist", files.folders("medmnist", folder, ("medmnist",)), file)
    return from_arrays(*npz_arrays(path), name=path.stem)


@reader(
    "dermamnist",
    what="9,012 skin lesions of HAM10000, 3x28x28, 7 classes, or larger ones by the option file",
    licence="CC BY-NC 4.0",
    origin="dermamnist.npz of zenodo.org/records/6496656 (medmnist.com); larger ones are in records/10519652",
)
def dermamnist(folder: Path | None, *, file: str = "") -> Source:
    """``dermamnist.npz``, or another size of it named by `file`; the classes have their names."""
    places = files.folders("dermamnist", folder, ("dermamnist", "medmnist"))
    names = [file] if file else _DERMA_FILES
    root = files.home("dermamnist", places, names)
    path = next(root / name for name in names if (root / name).exists())
    return from_arrays(*npz_arrays(path), name="dermamnist", labels=_DERMA)


@reader(
    "ich",
    what="67,969 slices of heads with one kind of haemorrhage (RSNA 2019), 128x128, 5 classes",
    licence="RSNA's terms: research and teaching, no redistribution",
    origin="train.csv and test.csv of FedNoRo (or data.csv: id,class) and the PNG images made from kaggle's files",
)
def ich(
    folder: Path | None,
    *,
    images_in: str = _ICH_IMAGES,
    size: int = 0,
    channels: int = 3,
    seed: int = 0,
    skip_bad: bool = False,
) -> Source:
    """``train.csv`` and ``test.csv`` (or ``train_ICH.csv``, ``test_ICH.csv``) with a heading id and the five kinds, and
    one 1 in each row; or ``data.csv`` with id,class, of which a permutation by `seed` takes 70 % for training. Images
    are ``stage_1_train_images/<id>.png``, or in the folder `images_in`.

    `size` resizes (0: as they are); `channels` is 1 or 3; `skip_bad` leaves unreadable images out and counts them.
    """
    places = files.folders("ich", folder, ("ich", "ICH"))
    root = files.home("ich", places, ["train.csv", "train_ICH.csv", "data.csv"])
    names = next(pair for pair in _ICH_TABLES if (root / pair[0]).exists())
    parts = [_listing(root / name, _ICH, root / images_in, ".png") for name in names]
    train, test = parts if len(parts) == 2 else parts[0].split(_TRAINING_SHARE, seed)
    grey_or_colour = _grey_or_colour(channels, "data set 'ich'")
    return source("ich", train, test, _ICH, _decoder("ich", size, grey_or_colour, skip_bad))


_ICH_TABLES = (("train.csv", "test.csv"), ("train_ICH.csv", "test_ICH.csv"), ("data.csv",))


@reader(
    "ich-dicom",
    what="the same from the original files, windowed as their headers say; the option grouped keeps patients whole",
    licence="RSNA's terms: research and teaching, no redistribution",
    origin="kaggle.com/c/rsna-intracranial-hemorrhage-detection: stage_1_train.csv, ID,Label, and .dcm files",
)
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
    """``stage_1_train.csv`` (or `table`), rows ID_<image>_<kind>,<0 or 1>, and ``stage_1_train_images/<image>.dcm``
    (or in the folder `images_in`); pydicom reads them, from the extra `data`.

    Images with exactly one kind of haemorrhage are kept; a permutation by `seed` takes 70 % for training, and with
    `grouped` no patient is in both parts, nor at two clients. Densities are cut to the first window of the header,
    stretched to 0..255 and resized to `size`; `channels` is 1 or 3; `skip_bad` leaves unreadable files out.
    """
    where = "data set 'ich-dicom'"
    pydicom = files.extra("pydicom", where)
    side = whole(size, "size", where)
    path = files.find("ich-dicom", files.folders("ich-dicom", folder, ("ich", "ICH")), table)
    chosen = _single_positives(path)
    paths = [path.parent / images_in / f"{name}.dcm" for name in chosen]
    groups = _patients(pydicom, paths) if grouped else None
    train, test = Listing(paths, list(chosen.values()), groups).split(_TRAINING_SHARE, seed)
    decode = partial(
        images.gather,
        shape=(_grey_or_colour(channels, where), side, side),
        read=partial(_windowed, pydicom, side=side),
        key="ich-dicom",
        skip_bad=skip_bad,
    )
    return source("ich-dicom", train, test, _ICH, decode)


@reader(
    "isic2019",
    what="25,331 photographs of skin lesions, 3x224x224, 8 classes; the option grouped keeps lesions whole",
    licence="CC BY-NC 4.0",
    origin="ISIC_2019_Training_Input and ISIC_2019_Training_GroundTruth.csv of challenge.isic-archive.com/data",
)
def isic2019(
    folder: Path | None, *, size: int = 224, seed: int = 0, grouped: bool = False, skip_bad: bool = False
) -> Source:
    """``ISIC_2019_Training_GroundTruth.csv`` (or ``train.csv`` and ``test.csv`` with its columns) and
    ``ISIC_2019_Training_Input/<image>.jpg``; the column UNK does not count.

    Images are resized to `size`. A permutation by `seed` takes 70 % for training, and with `grouped` no lesion of
    ``ISIC_2019_Training_Metadata.csv`` is in both parts, nor at two clients; `skip_bad` leaves unreadable images out.
    """
    places = files.folders("isic2019", folder, ("isic2019", "ISIC2019", "ISIC_2019"))
    root = files.home("isic2019", places, ["train.csv", _ISIC_TRUTH])
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
    side = whole(size, "size", f"data set '{name}'", least=0)
    return partial(images.decode, size=(side, side) if side else None, channels=channels, key=name, skip_bad=skip_bad)


def _grey_or_colour(channels: int, where: str) -> Literal[1, 3]:
    if channels not in (1, 3):
        raise UserError(f"{where}: channels is {channels!r} and must be 1 or 3")
    return 1 if channels == 1 else 3


def _listing(path: Path, labels: Sequence[str], folder: Path, suffix: str) -> Listing:
    """Images and classes from a table with a column of names, then one for each class (or `class`, a number)."""
    heading, *rows = files.table(path) or [[]]
    if heading[1:] == ["class"]:
        choose = list(map(str, range(len(labels)))).index
    elif missing := [label for label in labels if label not in heading[1:]]:
        raise UserError(f"'{path}' has no column '{missing[0]}'; its heading should be id,{','.join(labels)}")
    columns = [heading.index(label) for label in labels if label in heading]
    paths, y = [], []
    for line, row in enumerate(rows, 2):
        try:
            if len(row) != len(heading):
                raise ValueError
            positive = [k for k, column in enumerate(columns) if float(row[column])] if columns else [choose(row[1])]
        except ValueError:
            raise UserError(f"'{path}', line {line}: {','.join(row)[:80]} does not fit its heading") from None
        if len(positive) > 1 or not (positive or "UNK" in heading):
            raise UserError(f"'{path}', line {line}: '{row[0]}' is of {len(positive)} classes and must be of one")
        if positive:  # in ISIC's tables, a lesion of unknown kind has none
            paths.append(folder / (row[0].removesuffix(suffix) + suffix))
            y += positive
    return Listing(paths, y)


def _lesions(path: Path, paths: Sequence[Path]) -> list[int]:
    """The lesion of each image; one that has no name is a lesion by itself."""
    heading, *rows = files.table(path) or [[]]
    if not {"image", "lesion_id"} <= set(heading):
        raise UserError(f"'{path}' has no columns 'image' and 'lesion_id', which the option grouped needs")
    image, lesion = heading.index("image"), heading.index("lesion_id")
    said = {row[image]: row[lesion] for row in rows}
    return _numbered([said.get(each.stem) or str(each) for each in paths])


def _numbered(names: Sequence[str]) -> list[int]:
    return np.unique(np.array(names), return_inverse=True)[1].tolist()


def _single_positives(path: Path) -> dict[str, int]:
    """Images with exactly one kind of haemorrhage, from rows ``ID_<image>_<kind>,<0 or 1>``; rows may come twice."""
    numbers = {kind: number for number, kind in enumerate(_ICH)}
    found: dict[str, set[int]] = {}
    for line, row in enumerate(files.table(path)[1:], 2):
        image, _, kind = row[0].rpartition("_")
        if len(row) != 2 or kind not in (*_ICH, "any") or row[1] not in ("0", "1"):
            raise UserError(f"'{path}', line {line}: {','.join(row)[:80]} should be like ID_3a0809fec_epidural,0")
        if row[1] == "1" and kind != "any":
            found.setdefault(image, set()).add(numbers[kind])
    single = {image: kinds.pop() for image, kinds in found.items() if len(kinds) == 1}
    if not single:
        raise UserError(f"'{path}' has no image with exactly one kind of haemorrhage")
    return single


def _windowed(pydicom: Any, path: Path, *, side: int) -> np.ndarray:
    """Density cut to the window of the header, then stretched over 0..255, as grey [1, side, side]."""
    try:
        stored = pydicom.dcmread(path)
        density = stored.pixel_array * float(stored.RescaleSlope) + float(stored.RescaleIntercept)
        centre, width = (
            float(value[0] if isinstance(value, pydicom.multival.MultiValue) else value)
            for value in (stored.WindowCenter, stored.WindowWidth)
        )
    except Exception as error:  # bytes from outside can go wrong in any way
        raise UserError(f"'{path}' cannot be read as a DICOM image with a window ({error})") from error
    shown = np.clip(density, centre - width / 2, centre + width / 2)
    shown = shown - shown.min()
    grey = (shown / (shown.max() or 1) * 255).astype(np.uint8)
    return np.asarray(Image.fromarray(grey).resize((side, side), Image.Resampling.BICUBIC))[None]


def _patients(pydicom: Any, paths: Sequence[Path]) -> list[int]:
    """The patient of each file, whose headers are read once."""

    def fill(array: np.ndarray) -> None:
        for row, path in enumerate(paths):
            try:
                name = str(pydicom.dcmread(path, stop_before_pixels=True).PatientID)
            except Exception as error:  # as above
                raise UserError(f"'{path}' cannot be read as a DICOM file with a PatientID ({error})") from error
            array[row] = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], np.int64)[0]

    hashes = cache.mapped(images.fingerprint(paths, "ich-dicom patients"), (len(paths),), np.int64, fill)
    return np.unique(hashes.numpy(), return_inverse=True)[1].tolist()
