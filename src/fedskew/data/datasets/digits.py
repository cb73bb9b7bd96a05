"""Read data sets of digits, and all of them together as domains."""

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

from fedskew.core import seeds
from fedskew.core.errors import UserError, did_you_mean
from fedskew.core.types import Arrays
from fedskew.data import files, registry
from fedskew.data.datasets.standard import mnist
from fedskew.data.options import integer, positive
from fedskew.data.partitions.dirichlet import dirichlet, replay
from fedskew.data.partitions.groups import Parts, by_class
from fedskew.data.sources import Source, from_arrays, moments

_DIGITS = tuple("0123456789")
_SYNTH_FILES = ("synth_train_32x32.mat", "synth_test_32x32.mat")
_SYNTH_FIVE = "syn_number.mat"


def usps(folder: Path | None) -> Source:
    """Read ``usps.h5``, whose groups train and test hold data and target, or libsvm's ``usps.bz2`` and ``usps.t.bz2``.

    The .h5 file needs h5py, from the extra `data`.
    """
    root = files.find_folder("usps", folder, ["usps.h5", "usps.bz2"])
    arrays = _usps_h5(root / "usps.h5") if (root / "usps.h5").exists() else _usps_libsvm(root)
    return from_arrays(*arrays, name="usps", labels=_DIGITS)


def _usps_h5(path: Path) -> list[np.ndarray]:
    """Read groups train and test, with `data` in 0..1 and `target`."""
    h5py = files.extra("h5py", f"'{path}'")
    found = []
    try:
        with h5py.File(path) as stored:
            for part in ("train", "test"):
                found += [_bytes(np.asarray(stored[part]["data"])), np.asarray(stored[part]["target"])]
    except (OSError, KeyError, ValueError) as error:
        wanted = "groups 'train' and 'test' of 'data' [N, 256] and 'target'"
        raise UserError(f"'{path}' is damaged or does not hold {wanted} ({error}). Fetch it again.") from error
    return found


def _usps_libsvm(root: Path) -> list[np.ndarray]:
    """Read one line per digit: its label plus one, then index:value with values in -1..1."""
    found = []
    for name in ("usps.bz2", "usps.t.bz2"):
        path = files.find_file("usps", root, name)
        try:
            lines = bz2.decompress(path.read_bytes()).decode().splitlines()
            values = [[float(pair.partition(":")[2]) for pair in line.split()[1:]] for line in lines]
            found += [_bytes((np.array(values) + 1) / 2), np.array([int(line.split()[0]) - 1 for line in lines])]
        except (OSError, EOFError, ValueError, IndexError) as error:
            raise UserError(
                f"'{path}' is damaged or no libsvm file of 256 values a line ({error}). Fetch it again."
            ) from error
    return found


def _bytes(share: np.ndarray) -> np.ndarray:
    return np.rint(share * 255).astype(np.uint8).reshape(-1, 1, 16, 16)


def svhn(folder: Path | None, *, verify: bool = True) -> Source:
    """Read ``train_32x32.mat`` and ``test_32x32.mat``, with X [32, 32, 3, N] and y, in which 10 is the digit 0.

    Files that differ from the official ones are refused; set `verify` to false to read them as they are.
    """
    official = registry.info("svhn").contents
    paths = [files.find_file("svhn", folder, name) for name in official]
    return _mat_source("svhn", paths, list(official.values()) if verify else [None, None])


def synthdigits(folder: Path | None) -> Source:
    """Read ``synth_train_32x32.mat`` and ``synth_test_32x32.mat``, laid out as those of SVHN, or ``syn_number.mat``.

    The latter holds train_data, train_label, test_data and test_label.
    """
    root = files.find_folder("synthdigits", folder, [_SYNTH_FILES[0], _SYNTH_FIVE])
    if (root / _SYNTH_FILES[0]).exists():
        return _mat_source("synthdigits", [files.find_file("synthdigits", root, name) for name in _SYNTH_FILES])
    path = root / _SYNTH_FIVE
    stored = _mat(path, files.read(path), ("train_data", "train_label", "test_data", "test_label"))
    return from_arrays(*stored, name="synthdigits", labels=_DIGITS)


def _mat_source(name: str, paths: Sequence[Path], official: Sequence[str | None] = (None, None)) -> Source:
    """Read two files of `X` [32, 32, 3, N] and `y`, where 10 may stand for the digit 0."""
    arrays, checksums = [], {}
    for path, md5 in zip(paths, official, strict=True):
        content = files.read(path)
        checksums[path.name] = files.check_md5(path, content, md5)
        pixels, y = _mat(path, content, ("X", "y"))
        if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[2] != 3 or y.size != pixels.shape[3]:
            shape = f"X, {pixels.dtype} of shape {list(pixels.shape)}, and {y.size} labels"
            raise UserError(f"'{path}' holds {shape}. Fetch it again: X must be uint8 [32, 32, 3, N].")
        arrays += [pixels.transpose(3, 2, 0, 1), y.reshape(-1).astype(np.int64) % 10]
    train, test = (Arrays(torch.from_numpy(x.copy()), torch.from_numpy(y)) for x, y in (arrays[:2], arrays[2:]))
    return Source(name, train, test, 10, _DIGITS, *moments(train.x), checksums)


def _mat(path: Path, content: bytes, names: Sequence[str]) -> list[np.ndarray]:
    try:
        stored = loadmat(io.BytesIO(content), variable_names=list(names))
    except Exception as error:  # bytes from outside can go wrong in any way
        raise UserError(f"'{path}' is damaged or no MATLAB file ({error}). Fetch it again.") from error
    for name in names:
        if not isinstance(stored.get(name), np.ndarray):
            raise UserError(f"'{path}' has no array '{name}'. Name a file with {', '.join(names)}.")
    return [stored[name] for name in names]


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
    """Read the files of mnist as FedVLS' released code does. Use it to compare with published results only.

    Split and clients are those of that code's first trial with numpy's `seed`: each class is split among `clients`
    clients by Dirichlet(`alpha`), and drawn again until each has `min_size` images. `tested` chooses the test samples:
    the "rest", or the "pool" that clients train on, as in that code, which measures memory rather than learning.

    Files that differ from the official ones are refused; set `verify` to false to read them as they are.
    """
    where = "data set 'mnist-pooled'"
    if tested not in ("rest", "pool"):
        raise UserError(f"{where}: tested is {tested!r}. Set it to 'rest' or 'pool'.")
    if integer(seed, "seed", where, least=0) >= 2**32:
        raise UserError(f"{where}: seed is {seed}. Set it below 2**32, as numpy needs.")
    dealt = integer(clients, "clients", where)
    official = mnist(folder, verify=verify)
    x = torch.cat((official.train.x, official.test.x))
    y = torch.cat((official.train.y, official.test.y))
    stream = np.random.RandomState(seed)
    chosen = train_test_split(np.arange(len(y)), train_size=0.75, random_state=stream)
    train, test = (Arrays(x[rows], y[rows]) for rows in map(torch.from_numpy, chosen))
    parts = replay(train.y.numpy(), 10, dealt, stream, alpha=alpha, min_size=min_size).parts
    shown = {"rest": test, "pool": train}[tested]
    return _with_sites(replace(official, name="mnist-pooled", train=train, test=shown), parts)


_DOMAINS: dict[str, Callable[..., Source]] = {"mnist": mnist, "usps": usps, "svhn": svhn, "synthdigits": synthdigits}


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
    """Read the four data sets in one folder. Gray images are enlarged and get three equal channels.

    `domains` names some of them, with commas; `fraction` is the share of each training class that is used. Each
    domain is split among `clients_per_domain` clients by Dirichlet(`alpha`), and ``partition natural`` has that many
    clients for each domain. Both draws depend on `seed`.

    Files that differ from the official ones are refused; set `verify` to false to read them as they are.
    """
    where = "data set 'digits-domains'"
    names, clients = domains.replace(" ", "").split(","), integer(clients_per_domain, "clients_per_domain", where)
    if positive(fraction, "fraction", where) > 1:
        raise UserError(f"{where}: fraction is {fraction}. Set it to at most 1.")
    found: list[Source] = []
    for place, name in enumerate(names):
        if name not in _DOMAINS or name in names[:place]:
            raise UserError(
                f"{where}: domains has '{name}'{' twice' if name in _DOMAINS else did_you_mean(name, _DOMAINS)}"
            )
        options = {"verify": verify} if name in ("mnist", "svhn") else {}
        domain = _some(_DOMAINS[name](folder, **options), fraction, seeds.numpy_generator(seed, "domain", place))
        found.append(_with_clients(domain, clients, alpha, seed))
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
    """Draw a random `fraction` of each training class, and at least one sample."""
    pools = by_class(domain.train.y.numpy(), 10)
    chosen = [rng.permutation(pool)[: max(1, round(fraction * len(pool)))] for pool in pools]
    rows = torch.from_numpy(np.sort(np.concatenate(chosen)))
    return replace(domain, train=Arrays(domain.train.x[rows], domain.train.y[rows]))


def _with_clients(domain: Source, clients: int, alpha: float, seed: int) -> Source:
    """Split a domain among clients of its own, as sites."""
    enough = max(1, min(10, len(domain.train) // (4 * clients)))
    return _with_sites(domain, dirichlet(domain.train.y.numpy(), 10, clients, seed, alpha=alpha, min_size=enough))


def _with_sites(source: Source, parts: Parts) -> Source:
    """Make the clients of a partition the sites of the data set."""
    sites = torch.empty(len(source.train), dtype=torch.int64)
    for client, rows in enumerate(parts):
        sites[torch.from_numpy(rows)] = client
    return replace(source, sites=sites, site_names=tuple(map(str, range(len(parts)))))


def _as_photograph(x: Tensor) -> Tensor:
    """Return three channels of 32x32, enlarged bilinearly."""
    if x.shape[2:] != (32, 32):
        x = F.interpolate(x.float(), (32, 32), mode="bilinear").round().to(torch.uint8)
    return x.expand(-1, 3, -1, -1)
