"""Digits from several worlds, and all of them together as domains."""

from __future__ import annotations

import bz2
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.io import loadmat
from sklearn.model_selection import train_test_split
from torch import Tensor

from fedskew import seeds
from fedskew.data import files
from fedskew.data.catalogue import Source, from_arrays, moments, reader
from fedskew.data.dirichlet import dirichlet, replay
from fedskew.data.groups import Parts, by_class
from fedskew.data.options import positive, whole
from fedskew.data.readers import mnist
from fedskew.errors import UserError, nearest
from fedskew.types import Arrays

_DIGITS = tuple("0123456789")
_SVHN_FILES = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
_SYNTH_FILES = ("synth_train_32x32.mat", "synth_test_32x32.mat")
_SYNTH_FIVE = "syn_number.mat"


@reader(
    "usps",
    what="9,298 handwritten digits from envelopes, 1x16x16, 10 classes",
    licence="none stated; cite Hull 1994",
    origin="usps.h5, or usps.bz2 and usps.t.bz2 of csie.ntu.edu.tw/~cjlin/libsvmtools/datasets",
)
def usps(folder: Path | None) -> Source:
    """``usps.h5`` with groups train and test of data and target (h5py reads it, from the extra `data`), or the two
    files of libsvm, ``usps.bz2`` and ``usps.t.bz2``.
    """
    places = files.folders("usps", folder, ("usps", "USPS"))
    root = files.home("usps", places, ["usps.h5", "usps.bz2"])
    arrays = _usps_h5(root / "usps.h5") if (root / "usps.h5").exists() else _usps_libsvm(root)
    return from_arrays(*arrays, name="usps", labels=_DIGITS)


def _usps_h5(path: Path) -> list[np.ndarray]:
    """Groups train and test, with `data` in 0..1 and `target`."""
    h5py = files.extra("h5py", f"'{path}'")
    found = []
    try:
        with h5py.File(path) as stored:
            for part in ("train", "test"):
                found += [_bytes(np.asarray(stored[part]["data"])), np.asarray(stored[part]["target"])]
    except (OSError, KeyError, ValueError) as error:
        wanted = "groups 'train' and 'test' of 'data' [N, 256] and 'target'"
        raise UserError(f"'{path}' is damaged or does not hold {wanted} ({error})") from error
    return found


def _usps_libsvm(root: Path) -> list[np.ndarray]:
    """A line per digit: its number plus one, then place:value with values in -1..1."""
    found = []
    for name in ("usps.bz2", "usps.t.bz2"):
        path = files.find("usps", [root], name)
        try:
            lines = bz2.decompress(path.read_bytes()).decode().splitlines()
            values = [[float(pair.partition(":")[2]) for pair in line.split()[1:]] for line in lines]
            found += [_bytes((np.array(values) + 1) / 2), np.array([int(line.split()[0]) - 1 for line in lines])]
        except (OSError, EOFError, ValueError, IndexError) as error:
            raise UserError(f"'{path}' is damaged or no libsvm file of 256 values a line ({error})") from error
    return found


def _bytes(share: np.ndarray) -> np.ndarray:
    return np.rint(share * 255).astype(np.uint8).reshape(-1, 1, 16, 16)


@reader(
    "svhn",
    what="99,289 digits of house numbers, 3x32x32, 10 classes",
    licence="non-commercial use only",
    origin="train_32x32.mat and test_32x32.mat of ufldl.stanford.edu/housenumbers",
)
def svhn(folder: Path | None, *, verify: bool = True) -> Source:
    """``train_32x32.mat`` and ``test_32x32.mat``: X, [32, 32, 3, N], and y, in which 10 is the digit 0.

    Other files than the official ones are refused unless `verify` is false.
    """
    places = files.folders("svhn", folder, ("svhn", "SVHN"))
    paths = [files.find("svhn", places, name) for name in _SVHN_FILES]
    return _mat_source("svhn", paths, list(_SVHN_FILES.values()) if verify else [None, None])


@reader(
    "synthdigits",
    what="488,953 rendered digits, 3x32x32, 10 classes; or the 34,000 of them in Digits-Five",
    licence="none stated; cite Ganin and Lempitsky 2015",
    origin="synth_train_32x32.mat and synth_test_32x32.mat of yaroslav.ganin.net, or syn_number.mat of Digits-Five",
)
def synthdigits(folder: Path | None) -> Source:
    """``synth_train_32x32.mat`` and ``synth_test_32x32.mat`` as those of SVHN, or ``syn_number.mat`` with train_data,
    train_label, test_data and test_label.
    """
    places = files.folders("synthdigits", folder, ("synthdigits", "SynthDigits", "syn", "SYN"))
    root = files.home("synthdigits", places, [_SYNTH_FILES[0], _SYNTH_FIVE])
    if (root / _SYNTH_FILES[0]).exists():
        return _mat_source("synthdigits", [files.find("synthdigits", [root], name) for name in _SYNTH_FILES])
    path = root / _SYNTH_FIVE
    stored = _mat(path, files.read(path), ("train_data", "train_label", "test_data", "test_label"))
    return from_arrays(*stored, name="synthdigits", labels=_DIGITS)


def _mat_source(name: str, paths: Sequence[Path], official: Sequence[str | None] = (None, None)) -> Source:
    """Two files of `X`, [32, 32, 3, N], and `y`, where 10 may stand for the digit 0."""
    arrays, checksums = [], {}
    for path, md5 in zip(paths, official, strict=True):
        content = files.read(path)
        checksums[path.name] = files.check_md5(path, content, md5)
        pixels, y = _mat(path, content, ("X", "y"))
        if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[2] != 3 or y.size != pixels.shape[3]:
            told = f"'{path}' holds X, {pixels.dtype} of shape {list(pixels.shape)}, and {y.size} labels"
            raise UserError(f"{told}; X should be uint8 [32, 32, 3, N], and y N labels")
        arrays += [pixels.transpose(3, 2, 0, 1), y.reshape(-1).astype(np.int64) % 10]
    train, test = (Arrays(torch.from_numpy(x.copy()), torch.from_numpy(y)) for x, y in (arrays[:2], arrays[2:]))
    return Source(name, train, test, 10, _DIGITS, *moments(train.x), checksums)


def _mat(path: Path, content: bytes, names: Sequence[str]) -> list[np.ndarray]:
    try:
        stored = loadmat(io.BytesIO(content), variable_names=list(names))
    except Exception as error:  # bytes from outside can go wrong in any way
        raise UserError(f"'{path}' is damaged or no MATLAB file ({error})") from error
    for name in names:
        if not isinstance(stored.get(name), np.ndarray):
            raise UserError(f"'{path}' has no array '{name}'; it should hold {', '.join(names)}")
    return [stored[name] for name in names]


@reader(
    "mnist-pooled",
    what="MNIST as FedVLS' code deals it: training and test images in one pool, a quarter of them for testing",
    licence="that of mnist",
    origin="the files of mnist; the clients are those of partition 'natural'",
)
def mnist_pooled(
    folder: Path | None,
    *,
    alpha: float = 0.05,
    clients: int = 10,
    min_size: int = 256,
    seed: int = 1,
    tested: str = "rest",
    verify: bool = True,
) -> Source:
    """The files of mnist, for comparison with what was published; for anything else take ``mnist``.

    Split and clients are those of the released code's first trial with numpy's `seed`: each class is dealt to
    `clients` clients by Dirichlet(`alpha`), again and again until each has `min_size` images. What is `tested` is the
    "rest", or, as in that code, the "pool" that clients train on, which measures memory rather than learning. Other
    files than the official ones are refused unless `verify` is false.
    """
    where = "data set 'mnist-pooled'"
    if tested not in ("rest", "pool"):
        raise UserError(f"{where}: tested is {tested!r} and must be 'rest' or 'pool'")
    if whole(seed, "seed", where, least=0) >= 2**32:
        raise UserError(f"{where}: seed is {seed} and must be below 2**32, as numpy's are")
    dealt = whole(clients, "clients", where)
    official = mnist(folder, verify=verify)
    x = torch.cat((official.train.x, official.test.x))
    y = torch.cat((official.train.y, official.test.y))
    stream = np.random.RandomState(seed)
    chosen = train_test_split(np.arange(len(y)), train_size=0.75, random_state=stream)
    train, test = (Arrays(x[rows], y[rows]) for rows in map(torch.from_numpy, chosen))
    parts = replay(train.y.numpy(), 10, dealt, stream, alpha=alpha, min_size=min_size).parts
    shown = {"rest": test, "pool": train}[tested]
    return _dealt(replace(official, name="mnist-pooled", train=train, test=shown), parts)


_DOMAINS: dict[str, Callable[..., Source]] = {"mnist": mnist, "usps": usps, "svhn": svhn, "synthdigits": synthdigits}


@reader(
    "digits-domains",
    what="MNIST, USPS, SVHN and SynthDigits, all 3x32x32, 10 classes, with clients of one domain each (FPL)",
    licence="those of its four data sets",
    origin="the files of these data sets in one folder; clients share a domain by Dirichlet: partition 'natural'",
)
def digits_domains(
    folder: Path | None,
    *,
    domains: str = ",".join(_DOMAINS),
    fraction: float = 1.0,
    clients_per_domain: int = 6,
    alpha: float = 0.5,
    seed: int = 0,
    verify: bool = True,
) -> Source:
    """A folder with those of the four data sets; grey images are enlarged and get three equal channels.

    `domains` names some of them, with commas; `fraction` is the share of each training class that is used. Each
    domain is dealt to `clients_per_domain` clients by Dirichlet(`alpha`), so that ``partition natural`` has that many
    clients for each; both go by `seed`. Other files than the official ones are refused unless `verify` is false.
    """
    where = "data set 'digits-domains'"
    names, clients = domains.replace(" ", "").split(","), whole(clients_per_domain, "clients_per_domain", where)
    if positive(fraction, "fraction", where) > 1:
        raise UserError(f"{where}: fraction is {fraction} and must be at most 1")
    found: list[Source] = []
    for place, name in enumerate(names):
        if name not in _DOMAINS or name in names[:place]:
            raise UserError(f"{where}: domains has '{name}'{' twice' if name in _DOMAINS else nearest(name, _DOMAINS)}")
        options = {"verify": verify} if name in ("mnist", "svhn") else {}
        domain = _some(_DOMAINS[name](folder, **options), fraction, seeds.numpy_generator(seed, "domain", place))
        found.append(_shared(domain, clients, alpha, seed))
    train, test = (
        Arrays(torch.cat([_as_photograph(part.x) for part in parts]), torch.cat([part.y for part in parts]))
        for parts in ([each.train for each in found], [each.test for each in found])
    )
    return Source(
        "digits-domains",
        train,
        test,
        10,
        _DIGITS,
        *moments(train.x),
        {f"{each.name}/{file}": checksum for each in found for file, checksum in each.checksums.items()},
        sites=torch.cat([place * clients + each.sites for place, each in enumerate(found) if each.sites is not None]),
        site_names=tuple(f"{name}-{client}" for name in names for client in range(clients)),
    )


def _some(domain: Source, fraction: float, rng: np.random.Generator) -> Source:
    """A random `fraction` of each class of the training part, and at least one sample."""
    pools = by_class(domain.train.y.numpy(), 10)
    chosen = [rng.permutation(pool)[: max(1, round(fraction * len(pool)))] for pool in pools]
    rows = torch.from_numpy(np.sort(np.concatenate(chosen)))
    return replace(domain, train=Arrays(domain.train.x[rows], domain.train.y[rows]))


def _shared(domain: Source, clients: int, alpha: float, seed: int) -> Source:
    """A domain with the numbers of its own clients as sites."""
    enough = max(1, min(10, len(domain.train) // (4 * clients)))
    return _dealt(domain, dirichlet(domain.train.y.numpy(), 10, clients, seed, alpha=alpha, min_size=enough))


def _dealt(source: Source, parts: Parts) -> Source:
    """With the clients that these parts of its training data belong to as sites."""
    sites = torch.empty(len(source.train), dtype=torch.int64)
    for client, rows in enumerate(parts):
        sites[torch.from_numpy(rows)] = client
    return replace(source, sites=sites, site_names=tuple(map(str, range(len(parts)))))


def _as_photograph(x: Tensor) -> Tensor:
    """Three channels of 32x32, enlarged by straight lines between pixels."""
    if x.shape[2:] != (32, 32):
        x = F.interpolate(x.float(), (32, 32), mode="bilinear").round().to(torch.uint8)
    return x.expand(-1, 3, -1, -1)
