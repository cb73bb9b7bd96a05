"""People's own data: image folders, CSV, arrays, client folders and PyTorch data sets, as one Source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from fedskew import seeds
from fedskew.data import images, listing, rows
from fedskew.data.catalogue import Source, from_arrays, reader
from fedskew.data.listing import Listing
from fedskew.data.rows import TEST, TRAIN, Rows
from fedskew.errors import UserError, nearest

Decode = Callable[[Sequence[Path]], images.Decoded]

_FOUR = ("x_train", "y_train", "x_test", "y_test")


@reader(
    "own",
    what="your own: a folder of images or of clients, a CSV, arrays in .npz or .safetensors; see docs/own-data.md",
    licence="yours",
    origin="the path after --data",
)
def own(
    folder: Path | None,
    *,
    test_share: float = 0.2,
    seed: int = 0,
    classes: str = "",
    size: int | str = "",
    channels: Literal[1, 3] = 3,
    skip_bad: bool = False,
    vacant: bool = False,
) -> Source:
    """Read what lies at `folder`; the split into training and test samples depends on `seed` alone.

    `vacant` is for one site of a federation, which need not have samples of every class.
    """
    if folder is None:
        raise UserError("your own data is read from a path: say data PATH (--data PATH)")
    named = tuple(name.strip() for name in str(classes).split(",")) if classes else None
    if named is not None and len(set(named)) < len(named):
        raise UserError(f"option classes is '{classes}', and must name every class once")
    if folder.suffix in rows.ARRAYS and not folder.is_dir():
        return _check_classes(_from_file(folder, named), vacant)
    decode = _decoder(_size(size), channels, skip_bad)
    listed = rows.read(folder)
    if named is None:
        listed = replace(listed, labels=_as_meant(listed))
    names = named or ordered(listed.labels)
    y = _numbers(listed, names)
    test = _for_testing(listed, y, test_share, seed)
    _check_patients(listed, test)
    if not test.any() or test.all():
        here = "test" if not test.any() else "training"
        raise UserError(f"'{folder}': no sample is for {here}; give more samples, or another test_share")
    name, root = folder.resolve().stem, folder if folder.is_dir() else folder.parent
    if isinstance(listed.samples, np.ndarray):
        return _check_classes(_of_arrays(name, root, listed, names, y, test), vacant)
    return _check_classes(_of_images(name, root, listed, names, y, test, decode), vacant)


def site_names(path: Path) -> tuple[str, ...]:
    """The sites that data at `path` names for its training samples, in order; none if it names none."""
    if path.suffix in rows.ARRAYS and not path.is_dir():
        sites = rows.arrays(path, ["site_train"]).get("site_train")
        return () if sites is None else ordered(map(str, sites.ravel().tolist()))
    return _training_sites(rows.read(path))


def from_datasets(train: Any, test: Any) -> Source:
    """Two PyTorch data sets of (sample, label) pairs, read once; names of classes are taken from `train.classes`."""
    x_train, y_train = _unrolled(train, TRAIN)
    x_test, y_test = _unrolled(test, TEST)
    names = getattr(train, "classes", None)
    labels = list(map(str, names)) if isinstance(names, list | tuple) else None
    return from_arrays(x_train, y_train, x_test, y_test, name="datasets", labels=labels)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Every name once: numbers by their value, anything else by the alphabet."""
    found = sorted(set(names))
    return tuple(sorted(found, key=int) if all(re.fullmatch(r"[+-]?\d+", name) for name in found) else found)


def _of_arrays(name: str, root: Path, listed: Rows, names: Sequence[str], y: np.ndarray, test: np.ndarray) -> Source:
    sites, groups = _site_numbers(listed), _group_numbers(listed)
    source = from_arrays(
        *(np.asarray(array)[chosen] for chosen in (~test, test) for array in (listed.samples, y)),
        name=name,
        labels=names,
        sites=None if sites is None else sites[~test],
        site_names=_training_sites(listed),
    )
    numbers = None if groups is None else torch.from_numpy(groups[~test])
    return replace(source, groups=numbers, **_places(listed, ~test, root))


def _of_images(
    name: str, root: Path, listed: Rows, names: Sequence[str], y: np.ndarray, test: np.ndarray, decode: Decode
) -> Source:
    numbers = (None if found is None else found.tolist() for found in (_group_numbers(listed), _site_numbers(listed)))
    everything = Listing(list(listed.samples), y.tolist(), *numbers)
    train, testing = (everything.rows(np.flatnonzero(chosen)) for chosen in (~test, test))
    sites, places = _training_sites(listed), _places(listed, ~test, root)
    try:
        return listing.source(name, train, testing, names, decode, site_names=sites, **places)
    except images.Unusable as error:
        row = list(listed.samples).index(error.path)
        raise UserError(f"{listed.name(row)}: {error}" if listed.line(row) else str(error)) from error


def _places(listed: Rows, chosen: np.ndarray, root: Path) -> dict[str, Any]:
    """The file and the line of some of the rows, as far as they are known."""
    found = np.flatnonzero(chosen).tolist()
    lines = [listed.line(row) for row in found]
    files = [line and line[0] for line in lines]
    if not isinstance(listed.samples, np.ndarray):
        files = [listed.samples[row] for row in found]
    return {
        "paths": () if None in files else tuple(_below(root, file) for file in files if file is not None),
        "lines": tuple(line and line[1] for line in lines) if any(lines) else (),
    }


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _decoder(size: tuple[int, int] | None, channels: Literal[1, 3], skip_bad: bool) -> Decode:
    """Decodes image files, and wants those of every call to have the shape of the first."""
    if channels not in (1, 3):
        raise UserError(f"option channels is {channels!r}, and must be 1 (grey) or 3 (colour)")
    shapes: list[torch.Size] = []

    def decode(paths: Sequence[Path]) -> images.Decoded:
        # The settings in the key tell 32x16 from 16x32, whose arrays are equally long.
        found = images.decode(paths, size=size, channels=channels, key=f"own|{size}|{channels}", skip_bad=skip_bad)
        if not len(found.kept):
            raise UserError(f"none of {len(paths)} images can be read, '{paths[0]}' to begin with")
        shapes.append(found.x.shape[1:])
        if shapes[-1] != shapes[0]:
            sizes = " and ".join(f"{height}x{width}" for _, height, width in shapes)
            raise UserError(f"training and test images have {sizes} pixels (height first); set the option size")
        return found

    return decode


def _site_numbers(listed: Rows) -> np.ndarray | None:
    """-1 for a site without training samples."""
    number = {name: at for at, name in enumerate(_training_sites(listed))}
    return np.array([number.get(site, -1) for site in listed.sites]) if listed.sites else None


def _group_numbers(listed: Rows) -> np.ndarray | None:
    return np.unique(listed.patients, return_inverse=True)[1] if listed.patients else None


def _training_sites(listed: Rows) -> tuple[str, ...]:
    splits = listed.splits or [TRAIN] * len(listed.sites)
    return ordered(site for site, split in zip(listed.sites, splits, strict=False) if split == TRAIN)


def _as_meant(listed: Rows) -> list[str]:
    """Labels without what a spreadsheet or a data frame makes of them: 3.0 for 3, and a word where there is none."""
    for row, label in enumerate(listed.labels):
        if label.lower() in rows.MISSING:
            raise UserError(
                f"label '{label}' ({listed.name(row)}) stands for a label that is missing; fill it in or leave the "
                "sample out, or name it in the option classes if it is a class"
            )
    whole = [re.fullmatch(r"([+-]?\d+)(\.0*)?", label) for label in listed.labels]
    return [number[1] for number in whole if number] if all(whole) else listed.labels


def _numbers(listed: Rows, names: Sequence[str]) -> np.ndarray:
    """Labels as numbers of classes: by name, else by number."""
    number = {name: at for at, name in enumerate(names)}
    if not any(name.isdecimal() for name in names):
        number |= {str(at): at for at in range(len(names))}
    for row, label in enumerate(listed.labels):
        if label not in number:
            raise UserError(f"label '{label}' ({listed.name(row)}) is no class{nearest(label, names)}")
    return np.array([number[label] for label in listed.labels])


def _for_testing(listed: Rows, y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Which rows are for testing: as the data says, else a share of every site's patients, or of its classes' samples.

    What is drawn is always whole patients; the first of a site, or of a site's class, is for training.
    """
    if listed.splits:
        return np.array(listed.splits) == TEST
    if isinstance(share, bool) or not isinstance(share, float | int) or not 0 < share <= 0.5:
        raise UserError(f"option test_share is {share!r}, and must be above 0 and at most 0.5")
    site = np.unique(listed.sites, return_inverse=True)[1] if listed.sites else np.zeros_like(y)
    if listed.patients:
        _, first, unit = np.unique(listed.patients, return_index=True, return_inverse=True)
        stratum = site[first]
    else:
        unit, stratum = np.arange(len(y)), site * (y.max() + 1) + y
    order = np.lexsort((seeds.numpy_generator(seed, "own", "test").random(len(stratum)), stratum))
    others = order[np.diff(stratum[order], prepend=-1) == 0]
    many = min(max(round(share * len(order)), 1), len(others))
    chosen = np.zeros(len(order), bool)
    chosen[others[((np.arange(many) + 0.5) * len(others) / max(many, 1)).astype(int)]] = True
    return chosen[unit]


def _check_patients(listed: Rows, test: np.ndarray) -> None:
    """Nobody is in both training and test samples, nor at two sites."""
    seen: dict[str, tuple[bool, str]] = {}
    for row, patient in enumerate(listed.patients):
        split, site = bool(test[row]), listed.sites[row] if listed.sites else ""
        other = seen.setdefault(patient, (split, site))
        if other[0] != split:
            raise UserError(f"patient '{patient}' is in both the training and the test samples; choose one of them")
        if other[1] != site:
            raise UserError(
                f"patient '{patient}' is at two sites, '{other[1]}' and '{site}'; if they are two people, call them "
                f"'{other[1]}-{patient}' and '{site}-{patient}'"
            )


def _check_classes(source: Source, vacant: bool) -> Source:
    train, test = (part.y.bincount(minlength=source.classes).tolist() for part in (source.train, source.test))
    for name, count, tested in zip(source.labels, train, test, strict=True):
        if not count and not vacant:
            mend = "give it some, or leave it out of the classes"
            mend = f"all {tested} are for testing: take another seed, or say in a column split" if tested else mend
            raise UserError(f"class '{name}' of data set '{source.name}' is empty: it has no training sample; {mend}")
    return source


def _from_file(path: Path, names: Sequence[str] | None) -> Source:
    stored = rows.arrays(path, [*_FOUR, "site_train"])
    missing = [key for key in _FOUR if key not in stored]
    if missing:
        raise UserError(f"'{path}' has no array '{missing[0]}'; it must hold {', '.join(_FOUR)}, perhaps site_train")
    for name in rows.array_names(path):
        if name not in stored and any(word in name.lower() for word in ("site", "patient", "client", "hospital")):
            raise UserError(
                f"'{path}' has an array '{name}', which is not read; the sites of training samples are 'site_train', "
                "and patients can be told in a table only: rename it, or leave it out"
            )
    sites, called = stored.get("site_train"), None
    if sites is not None:
        called = ordered(map(str, sites.ravel().tolist()))
        sites = np.array([called.index(str(site)) for site in sites.ravel().tolist()])
    return from_arrays(*(stored[key] for key in _FOUR), name=path.stem, labels=names, sites=sites, site_names=called)


def _size(wanted: int | str) -> tuple[int, int] | None:
    """(height, width) of 64 or "64x48"."""
    if wanted == "":
        return None
    sides = str(wanted).split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise UserError(f"option size is {wanted!r}, and must be pixels, such as 64, or 64x48 (height first)")
    return int(sides[0]), int(sides[-1])


def _unrolled(dataset: Any, which: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        pairs = [(x, y) for x, y in (dataset[place] for place in range(len(dataset)))]
    except (TypeError, ValueError) as error:
        raise UserError(f"the {which} data set must have a length and give (sample, label) pairs ({error})") from None
    samples = [_array(x, f"sample {place} of the {which} data set") for place, (x, _) in enumerate(pairs)]
    for place, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            shapes = f"{list(samples[0].shape)} and {list(sample.shape)}"
            raise UserError(f"samples 0 and {place} of the {which} data set have shapes {shapes}; all must have one")
    return np.array(samples), np.array([np.asarray(y) for _, y in pairs])


def _array(sample: Any, where: str) -> np.ndarray:
    """A picture as grey or colour of 8 bits, a tensor without its history, anything else as numpy takes it."""
    if isinstance(sample, Image.Image):
        if sample.mode[0] in "IF":
            raise UserError(f"{where} has more than 8 bits a pixel ({sample.mode}); give pictures of 8, or tensors")
        sample = sample.convert("L" if sample.mode in ("1", "L", "LA") else "RGB")
    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu()
        sample = sample.float() if sample.dtype == torch.bfloat16 else sample
    return np.asarray(sample)
