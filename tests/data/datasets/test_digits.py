from __future__ import annotations

import bz2
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedskew.core.errors import UserError
from fedskew.data.sources import load
from tests.data.datasets.test_standard import write_mnist


def house_numbers(path: Path, digits: list[int], **changes: Any) -> np.ndarray:
    """A file as SVHN has it: X [32, 32, 3, N] and y [N, 1]; pixels are random."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(len(digits)).integers(0, 256, (32, 32, 3, len(digits)), dtype=np.uint8)
    savemat(path, {"X": x, "y": np.array(digits, dtype=np.uint8)[:, None]} | changes)
    return x


def write_usps(path: Path, counts: tuple[int, int] = (40, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for part, count in zip(("train", "test"), counts, strict=True):
            group = file.create_group(part)
            group["data"] = np.full((count, 256), 0.5, dtype=np.float32)
            group["target"] = np.arange(count, dtype=np.int32) % 10


def write_domains(folder: Path) -> None:
    """All four, with random pixels; SynthDigits as in Digits-Five."""
    write_mnist(folder / "mnist", samples=200)
    write_usps(folder / "usps" / "usps.h5", (100, 10))
    for part in ("train", "test"):
        house_numbers(folder / "svhn" / f"{part}_32x32.mat", [1 + k % 10 for k in range(60)])
    (folder / "synthdigits").mkdir()
    stored = {f"{part}_data": np.zeros((50, 32, 32, 3), dtype=np.uint8) for part in ("train", "test")}
    stored |= {f"{part}_label": np.arange(50, dtype=np.uint8)[:, None] % 10 for part in ("train", "test")}
    savemat(folder / "synthdigits" / "syn_number.mat", stored)


class TestUsps:
    def test_real_files(self, shared_data: Path) -> None:
        usps = load("usps", shared_data)
        assert torch.bincount(usps.train.y).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
        assert torch.bincount(usps.test.y).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
        assert usps.train.x.shape == (7291, 1, 16, 16)
        assert (int(usps.train.x.min()), int(usps.train.x.max())) == (0, 255)

    def test_shares_become_bytes(self, tmp_path: Path) -> None:
        write_usps(tmp_path / "usps.h5")
        usps = load("usps", tmp_path)
        assert usps.train.x.unique().tolist() == [128]  # 127.5, and numpy rounds to even
        assert (len(usps.train), len(usps.test)) == (40, 10)

    def test_lines_of_libsvm(self, tmp_path: Path) -> None:
        # Labels count from 1, values lie in -1..1: -1 is 0 and 1 is 255.
        line = " ".join(f"{k}:{1 if k == 17 else -1}" for k in range(1, 257))
        for name, labels in (("usps.bz2", (1, 10, 5)), ("usps.t.bz2", (7,))):
            (tmp_path / name).write_bytes(bz2.compress("".join(f"{y} {line} \n" for y in labels).encode()))
        usps = load("usps", tmp_path)
        assert (usps.train.y.tolist(), usps.test.y.tolist()) == ([0, 9, 4], [6])
        assert usps.train.x[0].nonzero().tolist() == [[0, 1, 0]]  # the 17th value: second row, first column
        assert int(usps.train.x[0, 0, 1, 0]) == 255

    @pytest.mark.parametrize("name", ["usps.h5", "usps.bz2"])
    def test_damaged(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"nothing of the kind")
        (tmp_path / "usps.t.bz2").touch()
        with pytest.raises(UserError, match=f"{name}' is damaged"):
            load("usps", tmp_path)

    def test_another_h5(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "usps.h5", "w") as file:
            file["train"] = np.zeros(3)
        with pytest.raises(UserError, match="groups 'train' and 'test'"):
            load("usps", tmp_path)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"needs 'usps\.h5' or 'usps\.bz2'"):
            load("usps", tmp_path)


class TestPooledMnist:
    def test_the_first_clients_of_the_released_code(self, shared_data: Path) -> None:
        """A plain loop over numpy's global stream (seed 1, permutation of 70,000, then shuffles and shares by class)
        needed three draws and gave these counts.
        """
        pooled = load("mnist-pooled", shared_data)
        assert (len(pooled.train), len(pooled.test)) == (52_500, 17_500)
        assert [torch.bincount(pooled.train.y[pooled.sites == k], minlength=10).tolist() for k in (0, 2, 8)] == [
            [0, 0, 739, 5, 4202, 3227, 0, 0, 0, 0],
            [191, 0, 26, 0, 0, 0, 0, 16, 0, 41],
            [3140, 0, 0, 0, 0, 38, 0, 813, 5, 5208],
        ]

    def test_every_image_is_on_one_side(self, tmp_path: Path) -> None:
        written = write_mnist(tmp_path / "mnist", samples=40)
        pooled = load("mnist-pooled", tmp_path, alpha=1.0, clients=3, min_size=2, verify=False)
        both = torch.cat((pooled.train.x, pooled.test.x)).flatten(1).sum(1).sort().values
        images = [written[f"{part}-images-idx3-ubyte"] for part in ("train", "t10k")]
        assert both.tolist() == sorted(int(image.sum()) for part in images for image in part)
        assert len(pooled.test) == 20
        # the split is a permutation, and its first quarter is for testing
        first = np.random.RandomState(1).permutation(80)[0]
        assert torch.equal(pooled.test.x[0, 0], torch.from_numpy(np.concatenate(images)[first].astype(np.uint8)))
        assert pooled.sites is not None and pooled.sites.bincount().min() >= 2
        released = load("mnist-pooled", tmp_path, alpha=1.0, clients=3, min_size=2, tested="pool", verify=False)
        assert torch.equal(released.train.x, pooled.train.x) and torch.equal(released.test.x, pooled.train.x)

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"clients": 0}, "clients is 0. Give an integer of at least 1."),
            ({"seed": -1}, "seed is -1. Give an integer of at least 0."),
            ({"seed": 2**32}, r"Set it below 2\*\*32"),
            ({"alpha": 0.0}, "alpha is 0.0. Give a number above 0."),
            ({"min_size": 100}, "cannot have min_size=100 samples each"),
            ({"tested": "all"}, "tested is 'all'. Set it to 'rest' or 'pool'"),
        ],
    )
    def test_other_options(self, tmp_path: Path, options: dict[str, Any], word: str) -> None:
        write_mnist(tmp_path / "mnist", samples=40)
        with pytest.raises(UserError, match=word):
            load("mnist-pooled", tmp_path, **({"clients": 3, "min_size": 2, "verify": False} | options))


class TestSvhn:
    def test_ten_is_the_digit_zero(self, tmp_path: Path) -> None:
        x = house_numbers(tmp_path / "SVHN" / "train_32x32.mat", [10, 1, 9])
        house_numbers(tmp_path / "SVHN" / "test_32x32.mat", [2, 10])
        svhn = load("svhn", tmp_path, verify=False)
        assert (svhn.train.y.tolist(), svhn.test.y.tolist()) == ([0, 1, 9], [2, 0])
        assert torch.equal(svhn.train.x[1], torch.from_numpy(x[:, :, :, 1]).permute(2, 0, 1))

    def test_real_files(self, shared_data: Path) -> None:
        svhn = load("svhn", shared_data, verify=False)
        assert (svhn.train.x.shape, len(svhn.test)) == ((4000, 3, 32, 32), 1500)
        # In the full training set, of 73,257, the digit 1 comes most, 18.9 %, and 0 least, 6.8 %.
        share = torch.bincount(svhn.train.y) / 4000
        assert share[1] == pytest.approx(0.189, abs=0.02) and share[0] == pytest.approx(0.068, abs=0.01)

    def test_only_official_files_unless_verify_is_false(self, shared_data: Path) -> None:
        with pytest.raises(UserError, match="not the official file"):
            load("svhn", shared_data)

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"X": np.zeros((3, 32, 32, 3), dtype=np.uint8)}, r"uint8 of shape \[3, 32, 32, 3\], and 2 labels"),
            ({"X": np.zeros((32, 32, 3, 2))}, "float64 of shape"),
            ({"y": np.zeros((5, 1))}, "5 labels"),
        ],
    )
    def test_other_arrays(self, tmp_path: Path, changes: dict[str, Any], word: str) -> None:
        for part in ("train", "test"):
            house_numbers(tmp_path / f"{part}_32x32.mat", [1, 2], **changes)
        with pytest.raises(UserError, match=word):
            load("svhn", tmp_path, verify=False)

    def test_damaged_or_without_an_array(self, tmp_path: Path) -> None:
        path = tmp_path / "train_32x32.mat"
        house_numbers(tmp_path / "test_32x32.mat", [1])
        path.write_bytes(b"MATLAB 5.0")
        with pytest.raises(UserError, match="damaged or no MATLAB file"):
            load("svhn", tmp_path, verify=False)
        savemat(path, {"X": np.zeros(3)})
        with pytest.raises(UserError, match="has no array 'y'"):
            load("svhn", tmp_path, verify=False)


class TestSynthDigits:
    def test_both_layouts(self, tmp_path: Path) -> None:
        x = house_numbers(tmp_path / "one" / "synth_train_32x32.mat", [0, 5, 10])
        house_numbers(tmp_path / "one" / "synth_test_32x32.mat", [3])
        one = load("synthdigits", tmp_path / "one")
        assert (one.train.y.tolist(), one.test.y.tolist()) == ([0, 5, 0], [3])
        stored = {"train_data": x.transpose(3, 0, 1, 2), "train_label": np.array([[0], [5], [0]])}
        (tmp_path / "five").mkdir()
        savemat(
            tmp_path / "five" / "syn_number.mat",
            stored | {"test_data": x[..., :1].transpose(3, 0, 1, 2), "test_label": [[3]]},
        )
        five = load("synthdigits", tmp_path / "five")
        assert torch.equal(five.train.x, one.train.x) and torch.equal(five.train.y, one.train.y)
        assert five.mean == one.mean


class TestDomains:
    def test_clients_hold_one_domain_each(self, tmp_path: Path) -> None:
        write_domains(tmp_path)
        found = load("digits-domains", tmp_path, clients_per_domain=2, verify=False)
        assert found.train.x.shape == (200 + 100 + 60 + 50, 3, 32, 32)
        assert len(found.test) == 200 + 10 + 60 + 50
        assert found.sites is not None
        assert found.site_names == tuple(f"{d}-{k}" for d in ("mnist", "usps", "svhn", "synthdigits") for k in (0, 1))
        sizes = torch.bincount(found.sites, minlength=8)
        assert (sizes[0::2] + sizes[1::2]).tolist() == [200, 100, 60, 50] and sizes.min() >= 6
        usps = found.train.x[(found.sites == 2) | (found.sites == 3)]
        assert usps.unique().tolist() == [128]  # an even image stays even when it grows
        assert "svhn/train_32x32.mat" in found.checksums

    def test_a_fraction_of_each_class(self, tmp_path: Path) -> None:
        write_domains(tmp_path)
        some = load("digits-domains", tmp_path, domains="usps, svhn", fraction=0.3, clients_per_domain=1, verify=False)
        # 10 of each digit in USPS and 6 in SVHN: 3 and round(1.8) = 2 remain.
        assert some.sites is not None
        assert torch.bincount(some.train.y[some.sites == 0]).tolist() == [3] * 10
        assert torch.bincount(some.train.y[some.sites == 1]).tolist() == [2] * 10
        assert len(some.test) == 10 + 60
        other = load(
            "digits-domains", tmp_path, domains="usps, svhn", fraction=0.3, clients_per_domain=1, seed=1, verify=False
        )
        assert not torch.equal(other.train.x, some.train.x)

    def test_gray_images_grow_along_lines(self, shared_data: Path) -> None:
        found = load("digits-domains", shared_data, domains="mnist", fraction=0.01, clients_per_domain=1)
        assert (found.train.x[:, 0] == found.train.x[:, 2]).all()
        # Ink stays ink: the mean of MNIST is 0.1307, whatever the size.
        assert found.mean[0] == pytest.approx(0.1307, abs=0.004)

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"domains": "mnist,mnistm"}, "domains has 'mnistm'. Did you mean 'mnist'"),
            ({"domains": "mnist,mnist"}, "'mnist' twice"),
            ({"fraction": 0}, "fraction is 0"),
            ({"fraction": 1.5}, "fraction is 1.5. Set it to at most 1"),
            ({"clients_per_domain": 0}, "clients_per_domain is 0"),
            ({"alpha": -1}, "alpha is -1"),
        ],
    )
    def test_impossible_options(self, tmp_path: Path, options: dict[str, Any], word: str) -> None:
        write_domains(tmp_path)
        with pytest.raises(UserError, match=word):
            load("digits-domains", tmp_path, verify=False, **options)
