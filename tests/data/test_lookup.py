from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.data import lookup, preview, registry, sources
from fedskew.data.datasets import text as read_text
from fedskew.data.lookup import DatasetLocation
from fedskew.data.registry import DatasetInfo

FETCHED = [info.name for info in registry.known() if info.files]


def described(folders: tuple[str, ...], markers: tuple[str, ...]) -> DatasetInfo:
    return DatasetInfo("toy", "a toy", "ours", "here", folders=folders, markers=markers)


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()


# ---- the descriptions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FETCHED)
def test_addresses_and_checksums_are_well_formed(name: str) -> None:
    for file in registry.info(name).files:
        kind, _, digits = file.checksum.partition(":")
        assert re.fullmatch("[0-9a-f]+", digits) and len(digits) == {"md5": 32, "sha256": 64}[kind]
        assert all(re.fullmatch(r"https?://[\w.-]+/\S+", url) and url.endswith(f"/{file.name}") for url in file.urls)
        assert file.size > 0


def test_every_data_set_can_be_read_or_says_what_it_is() -> None:
    for info in registry.known():
        assert info.what and info.license and info.origin, info.name
        if info.reader:
            assert callable(sources.read_function(info))
        assert not (info.reader and info.read_as)
        assert not info.read_as or registry.info(info.read_as).reader, info.name
        always_here = info.name in ("digits", "synthetic")
        assert bool(info.files) + bool(info.how_to_get) + bool(info.parts) + info.yours + always_here == 1, info.name
        assert set(info.parts) <= registry.datasets().keys()
    assert {info.name for info in registry.known() if info.yours} == {"own", "npz", "medmnist", "huggingface"}
    assert {info.name for info in registry.known() if not info.readable} == {"cifar10n", "cifar100n"}


@pytest.mark.parametrize("name", [info.name for info in registry.known() if info.reader and info.markers])
def test_readers_look_where_downloads_go(tmp_path: Path, name: str) -> None:
    """With every marker in its place as an empty file, a reader complains of its content, not that it is missing."""
    info = registry.info(name)
    put(tmp_path / info.folders[0], *(marker.split("|")[0] for marker in info.markers))
    assert info.missing(tmp_path) == [] and info.problem(tmp_path) is None
    with pytest.raises(UserError) as caught:
        sources.load(name, tmp_path)
    assert "is in none of" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "ag-news"])
def test_archives_and_files_are_those_that_readers_verify(name: str) -> None:
    """Files that are not packed have the checksum of their content, which was written down on its own."""
    info = registry.info(name)
    assert set(info.contents) == set(info.markers)
    for file in info.files:
        if not file.packed and not file.name.endswith(".gz"):
            assert info.contents[file.name] == file.checksum.removeprefix("md5:")
        assert file.packed == (name in ("cifar10", "cifar100"))


# ---- what is here ----------------------------------------------------------------------------------------------------


def test_files_are_found_packed_or_plain_in_any_place(tmp_path: Path) -> None:
    toy = described(("first", "Other/raw"), ("a", "b|c", "deep/d", "e/"))
    assert toy.missing(tmp_path) == ["a", "b|c", "deep/d", "e/"] == toy.missing(None)
    put(tmp_path, "first/a.gz", "Other/raw/c.xz", "deep/d", "first/e/")
    assert toy.missing(tmp_path) == []


def test_a_part_and_a_file_in_place_of_a_folder_do_not_count(tmp_path: Path) -> None:
    put(tmp_path, "a.part", "a.gz.part", "b", "c/")
    assert described((), ("a", "b/", "c")).missing(tmp_path) == ["a", "b/", "c"]


def test_a_set_of_sets_misses_what_they_miss(tmp_path: Path) -> None:
    usps = registry.info("usps").missing(tmp_path)
    assert usps and set(usps) < set(registry.info("digits-domains").missing(tmp_path))
    for part in registry.info("digits-domains").parts:
        put(tmp_path / part, *(marker.split("|")[0] for marker in registry.info(part).markers))
    assert registry.info("digits-domains").missing(tmp_path) == []


def test_a_problem_is_one_sentence(tmp_path: Path) -> None:
    said = registry.info("cifar10").problem(tmp_path)
    assert said == f"data set 'cifar10' is not here: 'data_batch_1' and 5 more is not in '{tmp_path}'"
    assert "no data folder is named" in str(registry.info("usps").problem(None))
    assert registry.info("digits").problem(None) is None


# ---- what a name or a path stands for --------------------------------------------------------------------------------


def test_names_come_first_then_known_files_then_own_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    put(data, "mnist/train-images-idx3-ubyte.gz", "ag_news/test.csv", "usps/usps.h5", "cat/1.png", "my.csv")
    assert lookup.find("mnist", data) == [DatasetLocation("mnist", data)]
    assert {each.name for each in lookup.find(str(data), None)} == {"mnist", "ag-news", "usps"}
    assert lookup.find(str(data / "mnist"), None) == [DatasetLocation("mnist", data / "mnist")]
    file = data / "mnist" / "train-images-idx3-ubyte.gz"
    assert lookup.find(str(file), None) == [DatasetLocation("mnist", file.parent)]
    assert lookup.find(str(data / "my.csv"), None) == [DatasetLocation("own", data / "my.csv")]
    assert lookup.find(str(data / "cat"), None) == [DatasetLocation("own", data / "cat")]
    with pytest.raises(UserError, match=r"neither a path that exists nor a known data set\. Did you mean 'mnist'"):
        lookup.find("mnits", None)


def test_own_tables_are_not_taken_for_a_known_data_set(tmp_path: Path) -> None:
    """ag-news, ich and isic2019 have files of these names, too."""
    put(tmp_path, "train.csv", "test.csv", "train/", "test/", "stage_1_train_images/")
    assert lookup.find(str(tmp_path), None) == [DatasetLocation("own", tmp_path)]
    assert lookup.find(str(tmp_path / "train.csv"), None) == [DatasetLocation("own", tmp_path / "train.csv")]


def test_files_distinguish_data_sets_that_share_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "ich/stage_1_train.csv", "ich/stage_1_train_images/")
    assert lookup.find(str(tmp_path), None) == [DatasetLocation("ich-dicom", tmp_path)]
    put(tmp_path, "ich/data.csv", "CINIC-10/train/airplane/")  # of CINIC-10, folders are all there is
    assert {each.name for each in lookup.find(str(tmp_path), None)} == {"ich", "ich-dicom", "cinic10"}


def test_arrays_with_medmnists_names_are_read_as_such(tmp_path: Path) -> None:
    x, y = np.zeros((4, 5, 5), np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "theirs.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    for name, reader in (("theirs", "npz"), ("mine", "own")):
        (found,) = lookup.find(str(tmp_path / f"{name}.npz"), None)
        assert found.name == reader and lookup.read(found, {}).train.x.shape == (4, 1, 5, 5)
    np.savez(tmp_path / "other.npz", x=x)
    (tmp_path / "broken.npz").write_text("no arrays")
    for name in ("other", "broken"):
        assert lookup.find(str(tmp_path / f"{name}.npz"), None)[0].name == "own", "which says what it must hold"


def test_a_set_of_medmnist_is_read_by_its_name(tmp_path: Path) -> None:
    x, y = np.zeros((4, 5, 5), np.uint8), np.array([[0], [1], [0], [1]])
    (tmp_path / "medmnist").mkdir()
    np.savez(tmp_path / "medmnist" / "bloodmnist.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    assert registry.info("bloodmnist").missing(tmp_path) == []
    assert lookup.read(DatasetLocation("bloodmnist", tmp_path), {}).train.y.tolist() == [0, 1, 0, 1]


def test_labels_are_no_data_set_and_must_be_the_official_ones(tmp_path: Path, shared_data: Path) -> None:
    with pytest.raises(UserError, match="no data set but labels"):
        lookup.read(DatasetLocation("cifar10n", shared_data), {})
    assert lookup.verify_files(DatasetLocation("cifar10n", shared_data)) == [
        shared_data / "cifar-n" / "CIFAR-10_human.pt"
    ]
    with pytest.raises(UserError, match="not here"):
        lookup.verify_files(DatasetLocation("cifar10n", tmp_path))
    put(tmp_path, "cifar-n/CIFAR-10_human.pt")
    with pytest.raises(UserError, match="not the official file"):
        lookup.verify_files(DatasetLocation("cifar10n", tmp_path))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    assert registry.info("mnist").files
    with pytest.raises(UserError, match="Did you mean 'cifar100'"):
        registry.info("cifar-100")


# ---- samples to look at ----------------------------------------------------------------------------------------------


def test_test_samples_that_are_training_samples_are_counted() -> None:
    train, test = torch.arange(20).view(10, 2), torch.tensor([[2, 3], [3, 2], [18, 19], [18, 19], [1, 2]])
    y = np.zeros(10, int)
    # Rows 1 and 9 of training come once and twice in test; (3, 2) and (1, 2) are no rows.
    assert lookup.count_leaked(sources.from_arrays(train, y, test, y[:5])) == 3


def test_samples_are_from_all_over_a_class() -> None:
    x = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 1, 2, 2)
    y = [0] * 9 + [1] * 9 + [2] * 2
    source = sources.from_arrays(x, y, x, y)
    shown = [[int(image[0, 0]) for image in images] for images in preview.samples(source, 3)]
    assert shown == [[0, 4, 8], [9, 13, 17], [18, 19]]  # first, middle and last; of two, both
    # Of nine, four lie at 0, 2.67, 5.33 and 8.
    assert [int(image[0, 0]) for image in preview.samples(source, 4)[0]] == [0, 3, 5, 8]
    assert [image.shape for image in preview.samples(source, 1)[0]] == [(2, 2)]


def test_color_stays_color_and_numbers_become_words() -> None:
    color = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2)
    image = preview.samples(sources.from_arrays(color, [0], color, [0]), 5)[0][0]
    assert isinstance(image, np.ndarray) and image[0, 1].tolist() == [1, 5, 9]  # the second pixel of each channel
    table = torch.tensor([[0.5, -2.0]])
    assert preview.samples(sources.from_arrays(table, [0], table, [0]), 5) == [["0.5 -2"]]


def test_texts_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('"3","Fears for T N","Unions ""at"" work"\n"1","A title","Its text"\n')
    assert read_text.training_texts(tmp_path) == ['Fears for T N Unions "at" work', "A title Its text"]
    found = DatasetLocation("ag-news", tmp_path)
    (tmp_path / "few.csv").write_text("2,Only this\n")
    assert lookup.training_texts(found, {"train": "few.csv", "length": 3}) == ["Only this"]
    assert lookup.training_texts(DatasetLocation("digits", None), {}) is None
    x = torch.zeros(3, 1, 1, 1, dtype=torch.uint8)
    source = sources.from_arrays(x, [1, 0, 1], x, [1, 0, 1])
    assert preview.samples(source, 2, ["one", "two", "three"]) == [["two"], ["one", "three"]]
