"""Read the user's own data: image folders, CSV, arrays, client folders and PyTorch data sets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedskew.core.errors import UserError, did_you_mean
from fedskew.data import images
from fedskew.data.custom import features, folders, hugging_face
from fedskew.data.custom.arrays import ARRAYS, array_names, arrays
from fedskew.data.custom.features import Encoded
from fedskew.data.custom.rows import TRAIN, Rows, below
from fedskew.data.custom.split import check_patients, for_testing
from fedskew.data.custom.table import TEXT
from fedskew.data.datasets import listing
from fedskew.data.datasets.listing import Listing
from fedskew.data.preprocessing import columns
from fedskew.data.preprocessing.columns import NO_VALUE, Notation
from fedskew.data.preprocessing.table import ColumnStatistics
from fedskew.data.preprocessing.text import TextEncoder
from fedskew.data.sources import Source, from_arrays

Decode = Callable[[Sequence[Path]], images.Decoded]

_FOUR = ("x_train", "y_train", "x_test", "y_test")


def own(
    folder: Path | None,
    *,
    test_share: float = 0.2,
    seed: int = 0,
    classes: str = "",
    size: int | str = "",
    channels: Literal[1, 3] = 3,
    skip_bad: bool = False,
    scale: bool = False,
    categories: str = "",
    decimal: str = "",
    missing: str = "",
    length: int = 0,
    vocab: int = 20_000,
    encoder: str = "",
    vacant: bool = False,
) -> Source:
    """Read the data at `folder`; the split into training and test samples depends only on `seed`.

    `vacant` is for one site of a federation, which need not have samples of every class.
    """
    if folder is None:
        raise UserError("no path to your own data is given. Add --data PATH.")
    chosen = {"size": size, "channels": channels, "skip_bad": skip_bad}
    cells = notation(categories, decimal, missing)
    wanted = features.Wanted(scale, cells, length, vocab, encoder)
    chosen |= {"scale": scale, **asdict(cells), "length": length, "vocab": vocab, "encoder": encoder}
    named = _names(classes, "classes")
    if folder.suffix in ARRAYS and not folder.is_dir():
        _check_used("arrays", chosen)
        return _check_classes(_from_file(folder, named), vacant)
    decode = _decoder(_size(size), channels, skip_bad)
    listed, names, y, test = _split(folders.read(folder), folder.name, named, test_share, seed)
    _check_used(_kind(listed), chosen)
    name, root = folder.resolve().stem, folder if folder.is_dir() else folder.parent
    if isinstance(listed.samples, list):
        return _check_classes(_of_images(name, root, listed, names, y, test, decode), vacant)
    encoded = features.encode(listed, ~test, wanted)
    if vacant and not encoder:
        features.check_common(encoded)
    return _check_classes(_of_arrays(name, root, listed, encoded, names, y, test), vacant)


def huggingface(
    folder: Path | None,
    *,
    name: str = "",
    config: str = "",
    label: str = "label",
    test_share: float = 0.2,
    seed: int = 0,
) -> Source:
    """Read the data set `name` of Hugging Face's hub, or of a local folder that their library loads.

    Its parts train and test are used; without test, the split depends only on `seed`. `label` names the column of
    labels. The features are the first column of images, or else all other columns; `site` and `patient` as in own.
    """
    if not name:
        raise UserError("data set 'huggingface' needs the option name. Add --set data.options.name=ylecun/mnist.")
    listed, names, y, test = _split(hugging_face.from_hub(name, config, label), name, None, test_share, seed)
    return _of_arrays(name, folder or Path(), listed, Encoded(listed.samples), names, y, test)


def _split(
    listed: Rows, called: str, named: Sequence[str] | None, test_share: float, seed: int
) -> tuple[Rows, Sequence[str], np.ndarray, np.ndarray]:
    """Return the samples, the names of the classes, the class of each sample, and which are for testing."""
    if named is None:
        listed = replace(listed, labels=_as_meant(listed))
    names = named or ordered(listed.labels)
    y = _numbers(listed, names)
    test = for_testing(listed, y, test_share, seed)
    check_patients(listed, test)
    if not test.any() or test.all():
        advice = _lack(listed, test, len(names))
        raise UserError(f"'{called}' has {advice}")
    return listed, names, y, test


def _lack(listed: Rows, test: np.ndarray, classes: int) -> str:
    """Say why there are no test samples, or no others."""
    if listed.splits:
        return f"no {'training' if test.all() else 'test'} sample. Change some cells of the column split, or remove it."
    if classes == len(listed.labels) > 1:
        return "another label in every row, so there is nothing to learn. Group the values into a few classes."
    of = "site" if listed.patients else "class of a site" if listed.sites else "class"
    one = "patient" if listed.patients else "sample"
    fix = "Give more, or remove the column site" if listed.sites else "Give more"
    return f"no test sample: every {of} has a single {one}, which is for training. {fix}."


def column_statistics(
    folder: Path,
    *,
    classes: str,
    test_share: float = 0.2,
    seed: int = 0,
    categories: str = "",
    decimal: str = "",
    missing: str = "",
) -> dict[str, ColumnStatistics]:
    """Return what a site must share of its table so that all sites agree on one encoder: of training rows only.

    Which rows are for training depends on the classes in their order, so they must be named as in the training.
    """
    listed, _, _, test = _split(folders.read(folder), folder.name, _names(classes, "classes"), test_share, seed)
    if not isinstance(listed.samples, dict) or TEXT in listed.samples:
        raise UserError(
            f"'{folder}' is no table of features, but {_kind(listed)}. Name a CSV file: only tables need statistics."
        )
    read = columns.parse(listed.samples, notation(categories, decimal, missing), listed.name)
    return features.statistics(read, ~test)


#: which kinds of data the options below are for; None is what has no effect
_FOR = {
    **dict.fromkeys(("size", "channels", "skip_bad"), ("images",)),
    **dict.fromkeys(("scale", "categories", "decimal", "missing"), ("table",)),
    **dict.fromkeys(("length", "vocab"), ("text",)),
    "encoder": ("table", "text"),
}


def _check_used(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that does nothing for this kind of data."""
    for name, value in options.items():
        default = inspect.signature(own).parameters[name].default
        if kind not in _FOR[name] and value not in (default, ()):
            raise UserError(
                f"option {name} is for {' and '.join(_FOR[name])}, and these data are {kind}. Leave it out."
            )


def _kind(listed: Rows) -> str:
    if isinstance(listed.samples, dict):
        return "text" if TEXT in listed.samples else "table"
    return "images" if isinstance(listed.samples, list) else "arrays"


def notation(categories: str = "", decimal: str = "", missing: str | int = "") -> Notation:
    """Return how to read cells, from options."""
    return Notation(_names(categories, "categories") or (), decimal, _names(missing, "missing") or ())


def _names(text: str | int, option: str) -> tuple[str, ...] | None:
    """Return the names in an option, which are separated by commas."""
    names = tuple(name.strip() for name in str(text).split(",")) if text != "" else None
    if names is not None and len(set(names)) < len(names):
        raise UserError(f"option {option} is '{text}'. Name {'every class' if option == 'classes' else 'each'} once.")
    return names


def site_names(path: Path) -> tuple[str, ...]:
    """Return the names of the sites in the training samples at `path`, in order."""
    if path.suffix in ARRAYS and not path.is_dir():
        sites = arrays(path, ["site_train"]).get("site_train")
        return () if sites is None else ordered(map(str, sites.ravel().tolist()))
    return _training_sites(folders.read(path))


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once: numbers sorted by value, other names by the alphabet."""
    found = sorted(set(names))
    return tuple(sorted(found, key=int) if all(re.fullmatch(r"[+-]?\d+", name) for name in found) else found)


def _of_arrays(
    name: str, root: Path, listed: Rows, encoded: Encoded, names: Sequence[str], y: np.ndarray, test: np.ndarray
) -> Source:
    sites, groups = _site_numbers(listed), _group_numbers(listed)
    source = from_arrays(
        *(np.asarray(array)[chosen] for chosen in (~test, test) for array in (encoded.x, y)),
        name=name,
        labels=names,
        sites=None if sites is None else sites[~test],
        site_names=_training_sites(listed),
    )
    numbers = None if groups is None else torch.from_numpy(groups[~test])
    vocab = encoded.encoder.vocab if isinstance(encoded.encoder, TextEncoder) else 0
    owner, patient = (None if found is None else torch.from_numpy(found[test]) for found in (sites, groups))
    tested = replace(source.test, sites=owner, groups=patient)
    made = replace(source, test=tested, groups=numbers, encoder=encoded.encoder, notes=encoded.notes, vocab=vocab)
    return replace(made, **_places(listed, test, root))


def _of_images(
    name: str, root: Path, listed: Rows, names: Sequence[str], y: np.ndarray, test: np.ndarray, decode: Decode
) -> Source:
    numbers = (None if found is None else found.tolist() for found in (_group_numbers(listed), _site_numbers(listed)))
    everything = Listing(listed.paths, y.tolist(), *numbers)
    train, testing = (everything.rows(np.flatnonzero(chosen)) for chosen in (~test, test))
    sites, places = _training_sites(listed), _places(listed, test, root)
    try:
        return listing.source(name, train, testing, names, decode, site_names=sites, **places)
    except images.Unusable as error:
        row = listed.paths.index(error.path)
        raise UserError(f"{listed.name(row)}: {error}" if listed.line(row) else str(error)) from error


def _places(listed: Rows, test: np.ndarray, root: Path) -> dict[str, Any]:
    """Return the file and the line of the samples of both parts, as far as they are known."""
    found: dict[str, Any] = {}
    for part, chosen in (("", ~test), ("test_", test)):
        rows = np.flatnonzero(chosen).tolist()
        lines = [listed.line(row) for row in rows]
        files: list[Path | None] = [line and line[0] for line in lines]
        if listed.paths:
            files = [listed.paths[row] for row in rows]
        found[f"{part}paths"] = () if None in files else tuple(below(root, file) for file in files if file is not None)
        found[f"{part}lines"] = tuple(line and line[1] for line in lines) if any(lines) else ()
    return found


def _decoder(size: tuple[int, int] | None, channels: Literal[1, 3], skip_bad: bool) -> Decode:
    """Return a decoder of image files that refuses another shape than that of its first call."""
    if channels not in (1, 3):
        raise UserError(f"option channels is {channels!r}. Set it to 1 (gray) or 3 (color).")
    shapes: list[torch.Size] = []

    def decode(paths: Sequence[Path]) -> images.Decoded:
        # The settings in the key tell 32x16 from 16x32, whose arrays are equally long.
        found = images.decode(paths, size=size, channels=channels, key=f"own|{size}|{channels}", skip_bad=skip_bad)
        if not len(found.kept):
            raise UserError(f"none of {len(paths)} images can be read, such as '{paths[0]}'. Save them as PNG or JPEG.")
        shapes.append(found.x.shape[1:])
        if shapes[-1] != shapes[0]:
            sizes = " and ".join(f"{height}x{width}" for _, height, width in shapes)
            raise UserError(f"training and test images have {sizes} pixels (height first). Set the option size.")
        return found

    return decode


def _site_numbers(listed: Rows) -> np.ndarray | None:
    """Return the site of each row; -1 for a site without training samples."""
    number = {name: at for at, name in enumerate(_training_sites(listed))}
    return np.array([number.get(site, -1) for site in listed.sites]) if listed.sites else None


def _group_numbers(listed: Rows) -> np.ndarray | None:
    return np.unique(listed.patients, return_inverse=True)[1] if listed.patients else None


def _training_sites(listed: Rows) -> tuple[str, ...]:
    splits = listed.splits or [TRAIN] * len(listed.sites)
    return ordered(site for site, split in zip(listed.sites, splits, strict=False) if split == TRAIN)


def _as_meant(listed: Rows) -> list[str]:
    """Undo what spreadsheets and data frames do to labels: 3.0 becomes 3, and a word for a missing value is refused."""
    for row, label in enumerate(listed.labels):
        if label.lower() in NO_VALUE:
            raise UserError(
                f"label '{label}' ({listed.name(row)}) stands for a missing label. Fill it in or remove the sample, or "
                "name it in the option classes if it is a class."
            )
    whole = [re.fullmatch(r"([+-]?\d+)(\.0*)?", label) for label in listed.labels]
    return [number[1] for number in whole if number] if all(whole) else listed.labels


def _numbers(listed: Rows, names: Sequence[str]) -> np.ndarray:
    """Return labels as numbers of classes: by name, else by number."""
    number = {name: at for at, name in enumerate(names)}
    if not any(name.isdecimal() for name in names):
        number |= {str(at): at for at in range(len(names))}
    for row, label in enumerate(listed.labels):
        if label not in number:
            raise UserError(f"label '{label}' ({listed.name(row)}) is no class{did_you_mean(label, names)}")
    return np.array([number[label] for label in listed.labels])


def _check_classes(source: Source, vacant: bool) -> Source:
    train, test = (part.y.bincount(minlength=source.classes).tolist() for part in (source.train, source.test))
    for name, count, tested in zip(source.labels, train, test, strict=True):
        if not count and not vacant:
            hint = "Give it some, or leave it out of the option classes"
            if (train.index(0), train.count(0)) == (0, 1) and source.labels[0] == "0":
                hint = "Subtract 1 from all labels if they count from 1; else give it some"
            kept = f"All of its samples ({tested}) are for testing: move some to training, or set another seed"
            hint = kept if tested else hint
            raise UserError(f"class '{name}' of data set '{source.name}' has no training sample. {hint}.")
    return source


def _from_file(path: Path, names: Sequence[str] | None) -> Source:
    stored = arrays(path, [*_FOUR, "site_train"])
    missing = [key for key in _FOUR if key not in stored]
    if missing:
        raise UserError(f"'{path}' has no array '{missing[0]}'. Give it {', '.join(_FOUR)}, and perhaps site_train.")
    for name in array_names(path):
        if name not in stored and any(word in name.lower() for word in ("site", "patient", "client", "hospital")):
            raise UserError(
                f"'{path}' has an array '{name}', which is not read. Call the sites of training samples 'site_train', "
                "name patients in a CSV, or remove it."
            )
    sites, called = stored.get("site_train"), None
    if sites is not None:
        called = ordered(map(str, sites.ravel().tolist()))
        sites = np.array([called.index(str(site)) for site in sites.ravel().tolist()])
    return from_arrays(*(stored[key] for key in _FOUR), name=path.stem, labels=names, sites=sites, site_names=called)


def _size(wanted: int | str) -> tuple[int, int] | None:
    """Return (height, width) of 64 or "64x48"."""
    if wanted == "":
        return None
    sides = str(wanted).split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise UserError(f"option size is {wanted!r}. Give pixels, such as 64, or 64x48 (height first).")
    return int(sides[0]), int(sides[-1])
