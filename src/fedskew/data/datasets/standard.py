"""The data sets that fedskew reads or makes by itself."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from lzma import LZMAError
from pathlib import Path

import numpy as np
import torch
from joblib import cpu_count

from fedskew import seeds
from fedskew.data import files, safe_pickle
from fedskew.data.catalogue import Source, check_labels, from_arrays, reader
from fedskew.data.options import positive, whole
from fedskew.errors import UserError
from fedskew.types import Arrays

_DIGITS = tuple("0123456789")

# md5 of the unpacked files, as their authors published them.
_MNIST_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_FASHION_FILES = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
_CIFAR10_FILES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_CIFAR100_FILES = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
_DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")

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


@reader(
    "mnist",
    what="70,000 handwritten digits, 1x28x28, 10 classes",
    licence="CC BY-SA 3.0",
    origin="idx files of yann.lecun.com/exdb/mnist",
)
def mnist(folder: Path | None, *, verify: bool = True) -> Source:
    """Four idx files, plain or packed: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-...``.

    Other files than the official ones are refused unless `verify` is false.
    """
    places = files.folders("mnist", folder, ("mnist", "MNIST/raw"))
    return _idx_source("mnist", places, _MNIST_FILES, _DIGITS, (0.1307,), (0.3081,), verify)


@reader(
    "fashion-mnist",
    what="70,000 pictures of clothes, 1x28x28, 10 classes",
    licence="MIT",
    origin="idx files of github.com/zalandoresearch/fashion-mnist, or the Debian package dataset-fashion-mnist",
)
def fashion_mnist(folder: Path | None, *, verify: bool = True) -> Source:
    """Four idx files with the names of MNIST's, plain or packed.

    Other files than the official ones are refused unless `verify` is false.
    """
    places = files.folders("fashion-mnist", folder, ("fashion-mnist", "FashionMNIST/raw"), (_DEBIAN_FASHION,))
    return _idx_source("fashion-mnist", places, _FASHION_FILES, _FASHION, (0.2860,), (0.3530,), verify)


@reader(
    "cifar10",
    what="60,000 photographs, 3x32x32, 10 classes",
    licence="none stated; cite Krizhevsky 2009",
    origin="python version of cs.toronto.edu/~kriz/cifar.html",
)
def cifar10(folder: Path | None, *, verify: bool = True) -> Source:
    """``data_batch_1`` to ``data_batch_5`` and ``test_batch``, pickled (and read without trust), plain or packed.

    Other files than the official ones are refused unless `verify` is false.
    """
    places = files.folders("cifar10", folder, ("cifar-10-batches-py",))
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _cifar_source("cifar10", places, _CIFAR10_FILES, "labels", _CIFAR10, mean, std, verify)


@reader(
    "cifar100",
    what="60,000 photographs, 3x32x32, 100 classes",
    licence="none stated; cite Krizhevsky 2009",
    origin="python version of cs.toronto.edu/~kriz/cifar.html",
)
def cifar100(folder: Path | None, *, verify: bool = True) -> Source:
    """``train`` and ``test``, pickled (and read without trust), plain or packed; the classes are the fine ones.

    Other files than the official ones are refused unless `verify` is false.
    """
    places = files.folders("cifar100", folder, ("cifar-100-python",))
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _cifar_source(
        "cifar100", places, _CIFAR100_FILES, "fine_labels", tuple(_CIFAR100.split()), mean, std, verify
    )


@reader(
    "digits",
    what="1,797 handwritten digits, 1x8x8, 10 classes, no download; every fifth of a class is for testing",
    licence="CC BY 4.0 (UCI)",
    origin="scikit-learn's load_digits",
)
def digits(folder: Path | None) -> Source:
    del folder
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError("data set 'digits' comes with scikit-learn, which is not installed") from error
    pixels, y = load_digits(return_X_y=True)
    x = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    test = np.zeros(len(y), dtype=bool)
    for digit in range(10):
        test[np.flatnonzero(y == digit)[4::5]] = True
    return from_arrays(x[~test], y[~test], x[test], y[test], name="digits", labels=_DIGITS)


@reader(
    "synthetic",
    what="Gaussian blobs, one per class, in the shape of images; as many and as large as you like",
    licence="none needed",
    origin="made from its seed; one test sample for every five training samples",
)
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
    classes = whole(classes, "classes", where, least=2)
    samples = whole(samples, "samples", where, least=classes)
    contrast = positive(contrast, "contrast", where)
    if len(shape) != 3:
        raise UserError(f"{where}: shape is {list(shape)} and must be [channels, height, width]")
    size = tuple(whole(length, "shape", where) for length in shape)
    rng = seeds.numpy_generator(seed, "synthetic")
    centres = rng.standard_normal((classes, *size), dtype=np.float32) * contrast

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % classes
        x = centres[y] + rng.standard_normal((count, *size), dtype=np.float32)
        return np.clip(np.rint(127.5 + 40 * x), 0, 255).astype(np.uint8), y

    names = [str(label) for label in range(classes)]
    return from_arrays(*draw(samples), *draw(max(classes, samples // 5)), name="synthetic", labels=names)


@reader(
    "npz",
    what="your own arrays: x_train, y_train, x_test, y_test (or MedMNIST's train_images, train_labels, ...)",
    licence="yours",
    origin="an .npz file: name it in the place of the folder, or the folder and the option file",
)
def npz(folder: Path | None, *, file: str = "") -> Source:
    if folder is None:
        raise UserError("data set 'npz' is read from a file: name it in the place of the folder")
    path = folder / file if file else folder
    if not path.is_file():
        beside = ", ".join(f"'{other.name}'" for other in sorted(path.parent.glob("*.npz"))[:3])
        there = f", and its folder has {beside}" if beside else ""
        raise UserError(f"data set 'npz': there is no file '{path}'{there}; name an .npz file")
    return from_arrays(*npz_arrays(path), name=path.stem)


def npz_arrays(path: Path) -> list[np.ndarray]:
    """Training samples and labels, test samples and labels, from an .npz file."""
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise UserError(f"'{path}' holds a single array, and must be an .npz file")
        with stored:
            return [stored[key] for key in _npz_keys(stored.files, path)]
    except UserError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, LZMAError) as error:
        raise UserError(f"'{path}' is damaged or no .npz file of plain arrays ({error})") from error


def _npz_keys(stored: Sequence[str], path: Path) -> tuple[str, ...]:
    ours = ("x_train", "y_train", "x_test", "y_test")
    for keys in (ours, ("train_images", "train_labels", "test_images", "test_labels")):
        if set(keys) <= set(stored):
            return keys
    raise UserError(f"'{path}' holds {', '.join(stored) or 'nothing'} and must hold {', '.join(ours)}")


def _idx_source(
    name: str,
    places: Sequence[Path],
    official: Mapping[str, str],
    labels: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    verify: bool,
) -> Source:
    checksums = {}
    tensors = []
    for file, md5 in official.items():
        path = files.find(name, places, file)
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
    places: Sequence[Path],
    official: Mapping[str, str],
    key: str,
    labels: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    verify: bool,
) -> Source:
    paths = {file: files.find(name, places, file) for file in official}

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
        raise UserError(f"'{path}' is no CIFAR batch, which holds 'data', bytes [N, 3072], and N labels in '{key}'")
    y = torch.tensor(labels)
    check_labels(y, classes, f"'{path}'")
    return Arrays(torch.from_numpy(pixels).view(-1, 3, 32, 32), y)
