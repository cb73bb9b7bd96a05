"""Read MNIST, Fashion-MNIST, CIFAR and .npz files, and make digits and synthetic data."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from lzma import LZMAError
from pathlib import Path

import numpy as np
import torch
from joblib import cpu_count

from fedskew.core import seeds
from fedskew.core.errors import UserError
from fedskew.core.types import Arrays
from fedskew.data import files, registry
from fedskew.data.datasets import safe_pickle
from fedskew.data.options import integer, positive
from fedskew.data.sources import Source, check_labels, from_arrays

_DIGITS = tuple("0123456789")

_FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""


def mnist(folder: Path | None, *, verify: bool = True) -> Source:
    """Read four idx files, plain or packed: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-...``.

    Files that differ from the official ones are refused; set `verify` to false to read them as they are.
    """
    return _idx_source("mnist", folder, _DIGITS, (0.1307,), (0.3081,), verify)


def fashion_mnist(folder: Path | None, *, verify: bool = True) -> Source:
    """Read four idx files, plain or packed, with the names of MNIST's.

    Files that differ from the official ones are refused; set `verify` to false to read them as they are.
    """
    return _idx_source("fashion-mnist", folder, _FASHION, (0.2860,), (0.3530,), verify)


def cifar10(folder: Path | None, *, verify: bool = True) -> Source:
    """Read ``data_batch_1`` to ``data_batch_5`` and ``test_batch``, plain or packed. Code in these pickles never runs.

    Files that differ from the official ones are refused; set `verify` to false to read them as they are.
    """
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _cifar_source("cifar10", folder, "labels", _CIFAR10, mean, std, verify)


def cifar100(folder: Path | None, *, verify: bool = True) -> Source:
    """Read ``train`` and ``test`` with the fine classes, plain or packed. Code in these pickles never runs.

    Files that differ from the official ones are refused; set `verify` to false to read them as they are.
    """
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _cifar_source("cifar100", folder, "fine_labels", tuple(_CIFAR100.split()), mean, std, verify)


def digits(folder: Path | None) -> Source:
    del folder
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            "data set 'digits' needs scikit-learn, which is not installed. Type: pip install scikit-learn"
        ) from error
    pixels, y = load_digits(return_X_y=True)
    x = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    test = np.zeros(len(y), dtype=bool)
    for digit in range(10):
        test[np.flatnonzero(y == digit)[4::5]] = True
    return from_arrays(x[~test], y[~test], x[test], y[test], name="digits", labels=_DIGITS)


def synthetic(
    folder: Path | None,
    *,
    samples: int = 1000,
    classes: int = 10,
    shape: Sequence[int] = (1, 8, 8),
    contrast: float = 1.0,
    seed: int = 0,
) -> Source:
    del folder
    where = "data set 'synthetic'"
    classes = integer(classes, "classes", where, least=2)
    samples = integer(samples, "samples", where, least=classes)
    contrast = positive(contrast, "contrast", where)
    if len(shape) != 3:
        raise UserError(f"{where}: shape is {list(shape)}. Set it to [channels, height, width].")
    size = tuple(integer(length, "shape", where) for length in shape)
    rng = seeds.numpy_generator(seed, "synthetic")
    centers = rng.standard_normal((classes, *size), dtype=np.float32) * contrast

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % classes
        x = centers[y] + rng.standard_normal((count, *size), dtype=np.float32)
        return np.clip(np.rint(127.5 + 40 * x), 0, 255).astype(np.uint8), y

    names = [str(label) for label in range(classes)]
    return from_arrays(*draw(samples), *draw(max(classes, samples // 5)), name="synthetic", labels=names)


def npz(folder: Path | None, *, file: str = "") -> Source:
    if folder is None:
        raise UserError("no .npz file is named. Add --data-dir FILE.")
    path = folder / file if file else folder
    if not path.is_file():
        beside = ", ".join(f"'{other.name}'" for other in sorted(path.parent.glob("*.npz"))[:3])
        there = f", and its folder has {beside}" if beside else ""
        raise UserError(f"data set 'npz': there is no file '{path}'{there}. Name an .npz file.")
    return from_arrays(*npz_arrays(path), name=path.stem)


def npz_arrays(path: Path) -> list[np.ndarray]:
    """Read training samples and labels, test samples and labels from an .npz file."""
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise UserError(f"'{path}' holds a single array. Save several with numpy.savez.")
        with stored:
            return [stored[key] for key in _npz_keys(stored.files, path)]
    except UserError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, LZMAError) as error:
        raise UserError(
            f"'{path}' is damaged or no .npz file of plain arrays ({error}). Save it again with numpy.savez."
        ) from error


def _npz_keys(stored: Sequence[str], path: Path) -> tuple[str, ...]:
    ours = ("x_train", "y_train", "x_test", "y_test")
    for keys in (ours, ("train_images", "train_labels", "test_images", "test_labels")):
        if set(keys) <= set(stored):
            return keys
    raise UserError(f"'{path}' holds {', '.join(stored) or 'nothing'}. Save {', '.join(ours)} in it.")


def _idx_source(
    name: str,
    folder: Path | None,
    labels: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    verify: bool,
) -> Source:
    checksums = {}
    tensors = []
    for file, md5 in registry.info(name).contents.items():
        path = files.find_file(name, folder, file)
        content = files.read(path)
        array = files.parse_idx(path, content, 3 if "images" in file else 1)
        checksums[file] = files.check_md5(path, content, md5 if verify else None)
        tensor = torch.from_numpy(array.copy())
        if array.ndim == 1 and len(array):
            check_labels(tensor, len(labels), f"'{path}'")
        tensors.append(tensor.unsqueeze(1) if array.ndim == 3 else tensor.long())
    x_train, y_train, x_test, y_test = tensors
    train, test = Arrays(x_train, y_train), Arrays(x_test, y_test)
    return Source(name, train, test, len(labels), labels, mean, std, checksums)


def _cifar_source(
    name: str,
    folder: Path | None,
    key: str,
    labels: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    verify: bool,
) -> Source:
    official = registry.info(name).contents
    paths = {file: files.find_file(name, folder, file) for file in official}

    def read(file: str) -> tuple[Arrays, str]:
        content = files.read(paths[file])
        checksum = files.check_md5(paths[file], content, official[file] if verify else None)
        return _cifar_batch(paths[file], content, key, len(labels)), checksum

    # Unpacking xz takes nearly all the time and holds no lock.
    with ThreadPoolExecutor(cpu_count()) as pool:
        batches = dict(zip(official, pool.map(read, official), strict=True))
    *training, (test, _) = batches.values()
    train = Arrays(torch.cat([batch.x for batch, _ in training]), torch.cat([batch.y for batch, _ in training]))
    checksums = {file: checksum for file, (_, checksum) in batches.items()}
    return Source(name, train, test, len(labels), labels, mean, std, checksums)


def _cifar_batch(path: Path, content: bytes, key: str, classes: int) -> Arrays:
    batch = safe_pickle.load_arrays(content, path)
    pixels, labels = batch.get("data"), batch.get(key)
    if (
        not isinstance(pixels, np.ndarray)
        or not isinstance(labels, list)
        or not labels
        or any(type(label) is not int for label in labels)
        or (pixels.dtype, pixels.shape) != (np.uint8, (len(labels), 3 * 32 * 32))
    ):
        raise UserError(
            f"'{path}' is no CIFAR batch of 'data', bytes [N, 3072], and N labels in '{key}'. Fetch it again."
        )
    y = torch.tensor(labels)
    check_labels(y, classes, f"'{path}'")
    return Arrays(torch.from_numpy(pixels).view(-1, 3, 32, 32), y)
