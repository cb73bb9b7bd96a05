from __future__ import annotations

import gzip
import lzma
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.data import registry
from fedskew.data.datasets import safe_pickle
from fedskew.data.sources import Source, from_arrays, load, moments

PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def idx(array: np.ndarray) -> bytes:
    """The idx format: two zero bytes, 8 for bytes, the number of dimensions, the dimensions, the data."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, suffix: str = "", samples: int = 7) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    arrays = {}
    for part in ("train", "t10k"):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (samples, 28, 28))
        arrays[f"{part}-labels-idx1-ubyte"] = rng.integers(0, 10, samples)
    for name, array in arrays.items():
        (folder / (name + suffix)).write_bytes(PACK[suffix](idx(array)))
    return arrays


def write_cifar(folder: Path, kind: str, suffix: str = "", protocol: int = 2, text_keys: bool = False) -> list[Any]:
    """Batches of 4 images each in the layout of CIFAR-10 or CIFAR-100; what was written, in order."""
    names, key, classes = {
        "cifar10": ([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], b"labels", 10),
        "cifar100": (["train", "test"], b"fine_labels", 100),
    }[kind]
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    written = []
    for name in names:
        pixels = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        labels = rng.integers(0, classes, 4).tolist()
        batch = {b"data": pixels, key: labels, b"batch_label": b"x", b"coarse_labels": [0] * 4}
        stored = {k.decode(): v for k, v in batch.items()} if text_keys else batch
        (folder / (name + suffix)).write_bytes(PACK[suffix](pickle.dumps(stored, protocol=protocol)))
        written.append((pixels, labels))
    return written


class TestRealFiles:
    def test_mnist_is_complete(self, shared_data: Path) -> None:
        mnist = load("mnist", shared_data)
        assert torch.bincount(mnist.train.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert torch.bincount(mnist.test.y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
        assert mnist.train.y[:5].tolist() == [5, 0, 4, 1, 9]
        assert mnist.train.x.shape == (60000, 1, 28, 28)
        assert mnist.checksums["train-labels-idx1-ubyte"] == "md5:a25bea736e30d166cdddb491f175f624"
        mean, std = moments(mnist.train.x)
        assert (round(mean[0], 4), round(std[0], 4)) == (0.1307, 0.3081) == (mnist.mean[0], mnist.std[0])

    def test_cifar10_is_complete(self, shared_data: Path) -> None:
        cifar = load("cifar10", shared_data)
        assert torch.bincount(cifar.train.y).tolist() == [5000] * 10
        assert torch.bincount(cifar.test.y).tolist() == [1000] * 10
        assert [cifar.labels[y] for y in cifar.train.y[:4]] == ["frog", "truck", "truck", "deer"]
        assert [cifar.labels[y] for y in cifar.test.y[:4]] == ["cat", "ship", "ship", "airplane"]
        assert (cifar.train.x.shape, cifar.train.x.dtype) == ((50000, 3, 32, 32), torch.uint8)
        assert next(iter(cifar.checksums)) == "data_batch_1"
        mean, std = moments(cifar.train.x)
        assert tuple(round(m, 4) for m in mean) == pytest.approx(cifar.mean, abs=1e-4)
        assert tuple(round(s, 4) for s in std) == pytest.approx(cifar.std, abs=1e-4)

    def test_medmnist_layout_is_read_as_npz(self, shared_data: Path) -> None:
        derma = load("npz", shared_data / "dermamnist" / "dermamnist_ham10000_28.npz")
        assert torch.bincount(derma.train.y).tolist() == [228, 359, 769, 80, 779, 4693, 99]
        assert derma.train.x.shape == (7007, 3, 28, 28)
        assert len(derma.test) == 2005

    def test_human_labels_pass_the_restricted_unpickler(self, shared_data: Path) -> None:
        import zipfile

        path = shared_data / "cifar-n" / "CIFAR-10_human.pt"
        found = safe_pickle.load_arrays(zipfile.ZipFile(path).read("archive/data.pkl"), path)
        assert round(float((found["worse_label"] != found["clean_label"]).mean()), 3) == 0.402


class TestDigits:
    def test_every_fifth_of_each_class_is_for_testing(self) -> None:
        digits = load("digits")
        train, test = torch.bincount(digits.train.y), torch.bincount(digits.test.y)
        assert (train + test).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
        assert test.tolist() == [n // 5 for n in (train + test).tolist()]
        assert (digits.train.x.shape[1:], digits.train.x.dtype) == ((1, 8, 8), torch.uint8)
        assert (int(digits.train.x.min()), int(digits.train.x.max())) == (0, 255)

    def test_twice_the_same(self) -> None:
        assert load("digits").checksums == load("digits").checksums


class TestSynthetic:
    def test_shape_balance_and_seed(self) -> None:
        one = load("synthetic", samples=60, classes=3, shape=(3, 5, 4), seed=1)
        assert one.train.x.shape == (60, 3, 5, 4)
        assert torch.bincount(one.train.y).tolist() == [20, 20, 20]
        assert torch.bincount(one.test.y).tolist() == [4, 4, 4]
        again, other = (load("synthetic", samples=60, classes=3, shape=(3, 5, 4), seed=seed) for seed in (1, 2))
        assert torch.equal(one.train.x, again.train.x)
        assert not torch.equal(one.train.x, other.train.x)

    def test_classes_are_separable(self) -> None:
        made = load("synthetic", samples=400, classes=4)
        flat, test = made.train.x.flatten(1).double(), made.test.x.flatten(1).double()
        centers = torch.stack([flat[made.train.y == c].mean(0) for c in range(4)])
        assert (torch.cdist(test, centers).argmin(1) == made.test.y).double().mean() > 0.95

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"samples": 3}, "samples is 3"),
            ({"classes": 1}, "classes is 1"),
            ({"shape": (8, 8)}, "shape"),
            ({"shape": (1, 0, 8)}, "shape is 0"),
            ({"contrast": 0}, "contrast is 0"),
            ({"samples": "many"}, "'many'"),
        ],
    )
    def test_impossible_options(self, options: dict[str, Any], word: str) -> None:
        with pytest.raises(UserError, match=word):
            load("synthetic", **options)


class TestIdx:
    @pytest.mark.parametrize("suffix", PACK)
    @pytest.mark.parametrize("inside", ["", "mnist", "MNIST/raw"])
    def test_plain_or_packed_in_known_places(self, tmp_path: Path, suffix: str, inside: str) -> None:
        written = write_mnist(tmp_path / inside, suffix)
        mnist = load("mnist", tmp_path, verify=False)
        assert np.array_equal(mnist.train.x[:, 0].numpy(), written["train-images-idx3-ubyte"])
        assert np.array_equal(mnist.test.x[:, 0].numpy(), written["t10k-images-idx3-ubyte"])
        assert np.array_equal(mnist.train.y.numpy(), written["train-labels-idx1-ubyte"])
        assert mnist.train.y.dtype == torch.int64

    def test_other_files_than_the_official_ones_are_refused(self, tmp_path: Path) -> None:
        write_mnist(tmp_path)
        with pytest.raises(UserError, match=r"train-images-idx3-ubyte' is not the official file.*verify"):
            load("mnist", tmp_path)

    def test_fashion_mnist_falls_back_to_the_debian_package(self, tmp_path: Path, monkeypatch: Any) -> None:
        debian = replace(registry.info("fashion-mnist"), elsewhere=(str(tmp_path / "debian"),))
        monkeypatch.setitem(registry.datasets(), "fashion-mnist", debian)
        write_mnist(tmp_path / "debian", ".gz")
        (tmp_path / "empty").mkdir()
        for folder in (None, tmp_path / "empty"):
            fashion = load("fashion-mnist", folder, verify=False)
            assert (len(fashion.train), fashion.labels[9]) == (7, "ankle boot")

    @pytest.mark.parametrize("suffix", PACK)
    @pytest.mark.parametrize("keep", [0, 3, 10, 200])
    def test_a_file_cut_short_is_named(self, tmp_path: Path, suffix: str, keep: int) -> None:
        write_mnist(tmp_path, suffix)
        path = tmp_path / f"train-images-idx3-ubyte{suffix}"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(UserError, match="train-images-idx3-ubyte"):
            load("mnist", tmp_path, verify=False)

    @pytest.mark.parametrize("magic", [(0, 0, 9, 3), (0, 0, 8, 1), (31, 139, 8, 3)])
    def test_wrong_magic(self, tmp_path: Path, magic: tuple[int, ...]) -> None:
        write_mnist(tmp_path)
        path = tmp_path / "train-images-idx3-ubyte"
        path.write_bytes(bytes(magic) + path.read_bytes()[4:])
        with pytest.raises(UserError, match="train-images-idx3-ubyte' is no idx file"):
            load("mnist", tmp_path, verify=False)

    def test_more_images_than_labels(self, tmp_path: Path) -> None:
        write_mnist(tmp_path)
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(6)))
        with pytest.raises(UserError, match=r"7 samples have 6 labels. Give each one label."):
            load("mnist", tmp_path, verify=False)

    def test_labels_out_of_range_name_the_file(self, tmp_path: Path) -> None:
        write_mnist(tmp_path)
        (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.full(7, 10)))
        with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte.*label 10 is outside 0\.\.9"):
            load("mnist", tmp_path, verify=False)


class TestCifar:
    @pytest.mark.parametrize("suffix", PACK)
    @pytest.mark.parametrize("text_keys", [False, True])
    def test_cifar10_written_by_python_3(self, tmp_path: Path, suffix: str, text_keys: bool) -> None:
        *train, test = write_cifar(tmp_path, "cifar10", suffix, text_keys=text_keys)
        cifar = load("cifar10", tmp_path, verify=False)
        assert np.array_equal(cifar.train.x.flatten(1).numpy(), np.concatenate([pixels for pixels, _ in train]))
        assert cifar.train.y.tolist() == [label for _, labels in train for label in labels]
        assert np.array_equal(cifar.test.x.numpy(), test[0].reshape(4, 3, 32, 32))

    def test_cifar100_uses_fine_labels(self, tmp_path: Path) -> None:
        train, test = write_cifar(tmp_path / "cifar-100-python", "cifar100")
        cifar = load("cifar100", tmp_path, verify=False)
        assert (cifar.train.y.tolist(), cifar.test.y.tolist()) == (train[1], test[1])
        assert (cifar.classes, cifar.labels[0], cifar.labels[99]) == (100, "apple", "worm")
        assert cifar.labels == tuple(sorted(set(cifar.labels)))

    def test_other_files_than_the_official_ones_are_refused(self, tmp_path: Path) -> None:
        write_cifar(tmp_path, "cifar100", ".xz")
        with pytest.raises(UserError, match=r"train\.xz' is not the official file"):
            load("cifar100", tmp_path)

    @pytest.mark.parametrize("suffix", PACK)
    def test_a_file_cut_short_is_named(self, tmp_path: Path, suffix: str) -> None:
        write_cifar(tmp_path, "cifar10", suffix)
        path = tmp_path / f"data_batch_3{suffix}"
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(UserError, match="data_batch_3"):
            load("cifar10", tmp_path, verify=False)

    @pytest.mark.parametrize(
        "batch",
        [
            {b"data": np.zeros((4, 3072), np.uint8)},
            {b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2]},
            {b"data": np.zeros((4, 3072), np.int64), b"labels": [0, 1, 2, 3]},
            {b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, 10]},
            {b"data": np.zeros((4, 3072), np.uint8), b"labels": [0, 1, 2, 0.5]},
            {b"data": "pixels", b"labels": [0, 1, 2, 3]},
            [1, 2],
        ],
    )
    def test_a_pickle_of_something_else_is_named(self, tmp_path: Path, batch: Any) -> None:
        write_cifar(tmp_path, "cifar10")
        (tmp_path / "data_batch_2").write_bytes(pickle.dumps(batch, protocol=2))
        with pytest.raises(UserError, match="data_batch_2"):
            load("cifar10", tmp_path, verify=False)


class _Shell:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


class TestSafePickle:
    @pytest.mark.parametrize("protocol", [0, 2, 4])
    def test_no_call_is_made(self, tmp_path: Path, protocol: int) -> None:
        write_cifar(tmp_path, "cifar10")
        trace = tmp_path / "trace"
        shell = _Shell(os.system, f"touch {trace}")
        pickle.loads(pickle.dumps(shell, protocol=protocol))
        assert trace.exists(), "the file must do harm when it is not refused"
        trace.unlink()
        (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": shell}, protocol=protocol))
        with pytest.raises(UserError, match=r"test_batch' uses '(posix|nt)\.system'"):
            load("cifar10", tmp_path, verify=False)
        assert not trace.exists()

    @pytest.mark.parametrize(
        "name", ["builtins\neval", "numpy\nload", "numpy\ndtype.__reduce__", "numpy.core\nmultiarray"]
    )
    def test_only_what_arrays_need(self, name: str) -> None:
        with pytest.raises(UserError, match="which no data file needs"):
            safe_pickle.load_arrays(f"c{name}\n.".encode(), Path("f"))

    @pytest.mark.parametrize("dtype", [">i4", "<f8", "|b1", "<i2"])
    def test_arrays_of_other_types_and_orders(self, dtype: str) -> None:
        array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype))
        found = safe_pickle.load_arrays(pickle.dumps({"a": array, "b": [1, "x"]}, protocol=2), Path("f"))
        assert np.array_equal(found["a"], array)
        assert (found["a"].dtype, found["b"]) == (array.dtype, [1, "x"])

    def test_arrays_of_objects_are_refused(self) -> None:
        with pytest.raises(UserError, match=r"arrays of type \|O8"):
            safe_pickle.load_arrays(pickle.dumps({"a": np.array([{}, ()], dtype=object)}, protocol=2), Path("f"))

    def test_a_huge_memo_is_refused_before_it_is_allocated(self) -> None:
        with pytest.raises(UserError, match="more memory"):
            safe_pickle.load_arrays(b"\x80\x02}r\xff\xff\xff\x7f.", Path("f"))

    @given(st.data())
    def test_damage_never_ends_in_anything_but_a_user_error(self, data: st.DataObject) -> None:
        whole = pickle.dumps({b"data": np.arange(12, dtype=np.uint8).reshape(3, 4), b"labels": [1, 2, 3]}, protocol=2)
        damaged = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        try:
            assert isinstance(safe_pickle.load_arrays(bytes(damaged), Path("batch")), dict)
        except UserError as error:
            assert "'batch'" in str(error)


NPZ_ARRAYS = {
    "x_train": np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3),
    "y_train": np.array([0, 1]),
    "x_test": np.zeros((1, 6, 5, 3), np.uint8),
    "y_test": np.array([1]),
}


class TestNpz:
    def test_file_in_the_place_of_the_folder_or_as_option(self, tmp_path: Path) -> None:
        np.savez_compressed(tmp_path / "mine.npz", **NPZ_ARRAYS)
        one, other = load("npz", tmp_path / "mine.npz"), load("npz", tmp_path, file="mine.npz")
        assert np.array_equal(one.train.x.numpy(), NPZ_ARRAYS["x_train"].transpose(0, 3, 1, 2))
        assert one.checksums == other.checksums
        assert one.name == "mine"

    def test_missing_array(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "mine.npz", x_train=np.zeros(3))
        with pytest.raises(UserError, match=r"mine.npz' holds x_train. Save x_train, y_train, x_test, y_test"):
            load("npz", tmp_path / "mine.npz")

    def test_pickled_objects_inside_are_refused(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "mine.npz", **{**NPZ_ARRAYS, "y_test": np.array([{}], dtype=object)})
        with pytest.raises(UserError, match=r"mine.npz' is damaged or no \.npz file of plain arrays"):
            load("npz", tmp_path / "mine.npz")

    @pytest.mark.parametrize("keep", [0, 10, 400, -30])
    def test_cut_short(self, tmp_path: Path, keep: int) -> None:
        path = tmp_path / "mine.npz"
        np.savez(path, **NPZ_ARRAYS)
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(UserError, match=r"mine\.npz"):
            load("npz", path)

    def test_a_single_array_is_not_enough(self, tmp_path: Path) -> None:
        np.save(tmp_path / "mine.npy", np.zeros(3))
        with pytest.raises(UserError, match="single array"):
            load("npz", tmp_path / "mine.npy")

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"there is no file '.*none\.npz'"):
            load("npz", tmp_path, file="none.npz")
        np.savez(tmp_path / "mine.npz", **NPZ_ARRAYS)
        with pytest.raises(UserError, match=r"no file '.*none\.npz', and its folder has 'mine\.npz'"):
            load("npz", tmp_path, file="none.npz")


class TestLoad:
    def test_unknown_name_suggests_the_nearest(self) -> None:
        with pytest.raises(UserError, match=r"'cifar-10' is unknown\. Did you mean 'cifar10'"):
            load("cifar-10")

    def test_unknown_option_suggests_the_nearest(self) -> None:
        with pytest.raises(UserError, match=r"data set 'synthetic' has no option 'sample'\. Did you mean 'samples'"):
            load("synthetic", sample=3)
        with pytest.raises(UserError, match=r"'digits' has no option 'verify'\. Remove it"):
            load("digits", verify=False)

    def test_a_switch_is_true_or_false_and_a_number_is_whole(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"data set 'own': seed is 'x'. Give an integer."):
            load("own", tmp_path, seed="x")
        with pytest.raises(UserError, match=r"data set 'own': skip_bad is 3. Give true or false."):
            load("own", tmp_path, skip_bad=3)
        with pytest.raises(UserError, match=r"data set 'mnist': verify is 'no'. Give true or false."):
            load("mnist", tmp_path, verify="no")

    def test_files_are_needed(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"'mnist' is read from files\. Name the folder") as raised:
            load("mnist")
        assert "--data-dir FOLDER or FEDSKEW_DATA. Type 'fedskew data get mnist' to fetch it." in str(raised.value)
        with pytest.raises(UserError, match=r"which is in none of .*Type 'fedskew data get mnist' to fetch it"):
            load("mnist", tmp_path)
        with pytest.raises(UserError, match=r"'isic2019' needs .*Type 'fedskew data get isic2019' to see how to apply"):
            load("isic2019", tmp_path)
        with pytest.raises(UserError, match=r"'medmnist' needs .*Type 'fedskew data list' to see what can be fetched"):
            load("medmnist", tmp_path, file="pathmnist.npz")
        with pytest.raises(UserError, match=r"data folder '.*nowhere', needed for data set 'cifar10', is missing"):
            load("cifar10", tmp_path / "nowhere")
        with pytest.raises(UserError, match=r"'cifar10' needs the file 'data_batch_1' \(plain, \.gz or \.xz\)"):
            load("cifar10", tmp_path)

    def test_the_registry_describes_what_there_is(self) -> None:
        entries = {entry.name: entry for entry in registry.known()}
        assert set(entries) >= {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "npz", "synthetic"}
        assert list(entries) == sorted(entries)
        assert all(entry.what and entry.license and entry.origin for entry in entries.values())

    def test_a_new_reader_needs_one_decorator(self, monkeypatch: Any) -> None:
        known = dict(registry.datasets())
        monkeypatch.setattr(registry, "datasets", lambda: known)

        @registry.register("mine", what="two points", license="none", origin="here")
        def own(folder: Path | None, *, scale: float = 1.0) -> Source:
            return from_arrays([[scale]], [0], [[scale]], [0], name="mine")

        assert load("mine", scale=3.0).train.x.tolist() == [[3.0]]
        with pytest.raises(UserError, match="no option 'scales'"):
            load("mine", scales=3.0)
