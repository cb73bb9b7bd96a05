"""Where the data sets lie in the net, what their files must sum up to, and how to tell that they are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from fedskew.data import archives


@dataclass(frozen=True)
class File:
    """A file at one or more addresses; the checksum decides, and what is longer than `most` bytes is never read."""

    urls: tuple[str, ...]
    size: int
    checksum: str
    #: to two or three digits, from where it is offered
    rounded: bool = False

    @property
    def most(self) -> int:
        return 2 * self.size if self.rounded else self.size

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.urls[0]).path).name

    @property
    def comes_from(self) -> str:
        return f"{self.name} of {self.urls[0].partition('://')[2].rpartition('/')[0]}"

    @property
    def packed(self) -> bool:
        return self.name.endswith(archives.ENDINGS)


@dataclass(frozen=True)
class Origin:
    """Where a data set comes from and where it goes.

    It lies in the first of `places` (below the data folder) when we fetched it, and in any of them, or in the data
    folder itself, when others did. Then all of `proofs` are there: names of files, plain or packed, or of folders if
    they end in /, with | between names of which one suffices. `ask` says how people get data that no program may
    fetch, `parts` what it is made of. `reader`, `options`, `what` and `licence` are given where no reader has its name.
    """

    places: tuple[str, ...] = ()
    proofs: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    ask: str = ""
    parts: tuple[str, ...] = ()
    elsewhere: tuple[Path, ...] = ()
    reader: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    what: str = ""
    licence: str = ""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def missing(self, folder: Path | None) -> list[str]:
        """Those of `proofs` that are nowhere, found out without reading any."""
        inside = () if folder is None else (*(folder / place for place in self.places), folder)
        absent = _absent(self.proofs, (*inside, *self.elsewhere))
        return absent + [proof for part in self.parts for proof in ORIGINS[part].missing(folder)]

    def is_in(self, folder: Path) -> bool:
        """Whether some of it is in one of its places below `folder`, or `folder` is such a place."""
        places = [folder / place for place in self.places]
        parts = folder.resolve().parts
        places += [folder for place in self.places if parts[-len(Path(place).parts) :] == Path(place).parts]
        # Folders may have the same name in several data sets; files are sure signs, where there are any.
        signs = [proof for proof in self.proofs if not proof.endswith("/")] or self.proofs
        return any(_is_there(place, sign) for place in places for sign in signs)


def _absent(proofs: Sequence[str], places: Sequence[Path]) -> list[str]:
    return [proof for proof in proofs if not any(_is_there(place, proof) for place in places)]


def _is_there(place: Path, proof: str) -> bool:
    return any(
        (place / name).is_dir() if name.endswith("/") else (place / (name + ending)).is_file()
        for name in proof.split("|")
        for ending in ("", ".gz", ".xz")
    )


def _file(url: str, size: int, checksum: str, rounded: bool = False) -> File:
    return File((url,), size, checksum, rounded)


def _idx(bases: tuple[str, ...], files: Mapping[str, tuple[int, str]]) -> tuple[File, ...]:
    return tuple(
        File(tuple(f"{base}/{name}.gz" for base in bases), size, f"md5:{md5}") for name, (size, md5) in files.items()
    )


def _medmnist(name: str, what: str, size: int, md5: str, rounded: bool = True) -> Origin:
    file = _file(f"https://zenodo.org/records/6496656/files/{name}.npz", size, f"md5:{md5}", rounded)
    return Origin(
        ("medmnist",),
        (file.name,),
        (file,),
        reader="medmnist",
        options={"file": file.name},
        what=f"{what}, 28x28; --dataset medmnist --set data.options.file={file.name}",
        licence="CC BY 4.0",
    )


_MNIST = {
    "train-images-idx3-ubyte": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}
_FASHION = {
    "train-images-idx3-ubyte": (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte": (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte": (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte": (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
}
_MNIST_AT = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "http://yann.lecun.com/exdb/mnist",
)
_FASHION_AT = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_CIFAR_N = "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data"
_USPS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
_SVHN = "http://ufldl.stanford.edu/housenumbers"
_AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
_RSNA = "https://www.kaggle.com/c/rsna-intracranial-hemorrhage-detection"
_HUMAN = "labels that people gave to the training images of {}, for --noise human"

ORIGINS: dict[str, Origin] = {
    "digits": Origin(),  # these two are always here
    "synthetic": Origin(),
    "mnist": Origin(("mnist", "MNIST/raw"), tuple(_MNIST), _idx(_MNIST_AT, _MNIST)),
    "fashion-mnist": Origin(
        ("fashion-mnist", "FashionMNIST/raw"),
        tuple(_FASHION),
        _idx(_FASHION_AT, _FASHION),
        elsewhere=(Path("/usr/share/datasets/fashion-mnist"),),
    ),
    "cifar10": Origin(
        ("cifar-10-batches-py",),
        (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
        (_file(f"{_CIFAR}/cifar-10-python.tar.gz", 170_498_071, "md5:c58f30108f718f92721af3b95e74349a"),),
    ),
    "cifar100": Origin(
        ("cifar-100-python",),
        ("train", "test"),
        (_file(f"{_CIFAR}/cifar-100-python.tar.gz", 169_001_437, "md5:eb9058c3a382ffc7106e4002c42a8d85"),),
    ),
    "cifar10n": Origin(
        ("cifar-n",),
        ("CIFAR-10_human.pt",),
        (
            _file(
                f"{_CIFAR_N}/CIFAR-10_human.pt",
                2_401_007,
                "sha256:873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
            ),
        ),
        what=_HUMAN.format("cifar10"),
        licence="CC BY-NC 4.0",
    ),
    "cifar100n": Origin(
        ("cifar-n",),
        ("CIFAR-100_human.pt",),
        (
            _file(
                f"{_CIFAR_N}/CIFAR-100_human.pt",
                1_000_959,
                "sha256:bd2d80409754d420292d622e15e25248ba21e37d27429efac49c8da723f44394",
            ),
        ),
        what=_HUMAN.format("cifar100"),
        licence="CC BY-NC 4.0",
    ),
    "cinic10": Origin(
        ("CINIC-10", "cinic-10", "cinic10"),
        ("train/airplane/", "test/airplane/"),
        (
            File(
                (
                    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                    "https://datashare.is.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                ),
                687_544_992,
                "md5:6ee4d0c996905fe93221de577967a372",
            ),
        ),
    ),
    "tiny-imagenet": Origin(
        ("tiny-imagenet-200", "tiny-imagenet"),
        ("wnids.txt", "train/", "val/"),
        (
            _file(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                248_100_043,
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
    ),
    "usps": Origin(
        ("usps", "USPS"),
        ("usps.h5|usps.bz2", "usps.h5|usps.t.bz2"),
        (
            _file(f"{_USPS}/usps.bz2", 6_600_000, "md5:ec16c51db3855ca6c91edd34d0e9b197", rounded=True),
            _file(f"{_USPS}/usps.t.bz2", 1_800_000, "md5:8ea070ee2aca1ac39742fdd1ef5ed118", rounded=True),
        ),
    ),
    "svhn": Origin(
        ("svhn", "SVHN"),
        ("train_32x32.mat", "test_32x32.mat"),
        (
            _file(f"{_SVHN}/train_32x32.mat", 182_040_794, "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
            _file(f"{_SVHN}/test_32x32.mat", 64_275_384, "md5:eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    "synthdigits": Origin(
        ("synthdigits", "SynthDigits", "syn", "SYN"),
        ("synth_train_32x32.mat|syn_number.mat", "synth_test_32x32.mat|syn_number.mat"),
        ask="SynthDigits.zip is linked on http://yaroslav.ganin.net; unpack its two .mat files",
    ),
    "mnist-pooled": Origin(parts=("mnist",)),
    "digits-domains": Origin(parts=("mnist", "usps", "svhn", "synthdigits")),
    "ag-news": Origin(
        ("ag_news", "ag_news_csv", "AG_NEWS"),
        ("train.csv", "test.csv"),
        (
            _file(f"{_AG_NEWS}/train.csv", 29_470_338, "md5:b1a00f826fdfbd249f79597b59e1dc12"),
            _file(f"{_AG_NEWS}/test.csv", 1_857_427, "md5:d52ea96a97a2d943681189a97654912d"),
        ),
    ),
    "ich": Origin(
        ("ich", "ICH"),
        ("train.csv|train_ICH.csv|data.csv", "stage_1_train_images/"),
        ask=f"apply at {_RSNA}, make PNG images of its files, and take train.csv and test.csv of FedNoRo's repository",
    ),
    "ich-dicom": Origin(
        ("ich", "ICH"),
        ("stage_1_train.csv", "stage_1_train_images/"),
        ask=f"apply at {_RSNA}",
    ),
    "isic2019": Origin(
        ("isic2019", "ISIC2019", "ISIC_2019"),
        ("train.csv|ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Input/"),
        ask="accept the terms at https://challenge.isic-archive.com/data/#2019",
    ),
    "dermamnist": Origin(
        ("dermamnist", "medmnist"),
        ("dermamnist.npz|dermamnist_ham10000_28.npz",),
        (
            _file(
                "https://zenodo.org/records/6496656/files/dermamnist.npz",
                20_000_000,
                "md5:0744692d530f8e62ec473284d019b0c7",
                rounded=True,
            ),
        ),
    ),
    "pathmnist": _medmnist(
        "pathmnist",
        "107,180 patches of colon tissue, 9 classes",
        205_615_438,
        "a8b06965200029087d5bd730944a56c1",
        rounded=False,
    ),
    "octmnist": _medmnist(
        "octmnist", "109,309 retinal OCT images, 4 classes", 55_000_000, "c68d92d5b585d8d81f7112f81e2d0842"
    ),
    "pneumoniamnist": _medmnist(
        "pneumoniamnist", "5,856 chest X-rays of children, 2 classes", 4_200_000, "28209eda62fecd6e6a2d98b1501bb15f"
    ),
    "retinamnist": _medmnist(
        "retinamnist", "1,600 fundus images, 5 classes", 3_300_000, "bd4c0672f1bba3e3a89f0e4e876791e4"
    ),
    "breastmnist": _medmnist(
        "breastmnist", "780 breast ultrasound images, 2 classes", 560_000, "750601b1f35ba3300ea97c75c52ff8f6"
    ),
    "bloodmnist": _medmnist(
        "bloodmnist", "17,092 blood cells, 8 classes", 35_000_000, "7053d0359d879ad8a5505303e11de1dc"
    ),
    "tissuemnist": _medmnist(
        "tissuemnist", "236,386 kidney cortex cells, 8 classes", 125_000_000, "ebe78ee8b05294063de985d821c1c34b"
    ),
    "organamnist": _medmnist(
        "organamnist", "58,850 CT images of organs, axial, 11 classes", 38_000_000, "866b832ed4eeba67bfb9edee1d5544e6"
    ),
    "organcmnist": _medmnist(
        "organcmnist", "23,660 CT images of organs, coronal, 11 classes", 16_000_000, "0afa5834fb105f7705a7d93372119a21"
    ),
    "organsmnist": _medmnist(
        "organsmnist",
        "25,221 CT images of organs, sagittal, 11 classes",
        17_000_000,
        "e5c39f1af030238290b9557d9503af9d",
    ),
}
