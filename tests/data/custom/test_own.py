from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save_file
from torch.utils.data import TensorDataset

from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.data.custom import own, torch_datasets
from fedskew.data.custom.rows import Rows
from fedskew.data.custom.split import for_testing
from fedskew.data.partitions.partition import partition
from fedskew.data.sources import Source, from_arrays


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path_factory.mktemp("cache")))


def load(path: Path, **options: Any) -> Source:
    return sources.load("own", path, **options)


def picture(path: Path, shade: int, size: tuple[int, int] = (4, 4)) -> Path:
    """A PNG of one color, (shade, shade + 1, shade + 2)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[:] = (shade, shade + 1, shade + 2)
    Image.fromarray(pixels).save(path)
    return path


def table(path: Path, heading: str, rows: Iterable[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([heading.split(","), *rows])
    return path


def numbers(path: Path, heading: str = "label,a", rows: Iterable[Sequence[object]] = ()) -> Path:
    """A table of plain numbers; by default 20 rows of two classes."""
    return table(path, heading, rows or [("no" if i % 2 else "yes", i) for i in range(20)])


def shades(x: torch.Tensor) -> list[int]:
    return x[:, 0, 0, 0].tolist()


# ------------------------------------------------------------------------------------------------------- image folders


class TestImageFolder:
    def test_train_and_test_inside(self, tmp_path: Path) -> None:
        for at, place in enumerate(["train/dog/a.png", "train/cat/b.png", "train/cat/c.png", "test/dog/d.png"]):
            picture(tmp_path / "photos" / place, 10 * at)
        (tmp_path / "photos/train/cat/notes.txt").write_text("no image")
        source = load(tmp_path / "photos")
        assert (source.name, source.labels, source.classes) == ("photos", ("cat", "dog"), 2)
        assert (shades(source.train.x), source.train.y.tolist()) == ([10, 20, 0], [0, 0, 1])
        assert (shades(source.test.x), source.test.y.tolist()) == ([30], [1])
        assert source.test.x[0, :, 2, 3].tolist() == [30, 31, 32]
        assert source.sites is None and source.groups is None and source.notes == ()

    def test_a_share_of_every_class_is_for_testing(self, tmp_path: Path) -> None:
        for label, many in (("cat", 10), ("dog", 5)):
            for at in range(many):
                picture(tmp_path / label / f"{at}.png", at)
        source = load(tmp_path, test_share=0.4)
        # 6 of 15, evenly among the 9 + 4 that are not the first of their class: places 1 3 5 7, then 9 11.
        assert source.test.y.bincount().tolist() == [4, 2]
        assert source.train.y.bincount().tolist() == [6, 3]
        again, other = load(tmp_path, test_share=0.4), load(tmp_path, test_share=0.4, seed=1)
        assert again.checksums == source.checksums != other.checksums

    def test_classes_that_are_numbers_go_by_value(self, tmp_path: Path) -> None:
        for label in ("10", "9", "2"):
            for at in range(2):
                picture(tmp_path / label / f"{at}.png", int(label))
        assert load(tmp_path).labels == ("2", "9", "10")

    def test_gray_and_resized(self, tmp_path: Path) -> None:
        for at, size in enumerate([(4, 4), (6, 3), (5, 5), (8, 2)]):
            picture(tmp_path / "ab"[at % 2] / f"{at}.png", 60, size)
        source = load(tmp_path, size="2x3", channels=1)
        assert source.train.x.shape[1:] == (1, 2, 3)
        assert source.train.x.unique().tolist() == [61]
        assert load(tmp_path, size=3).train.x.shape[1:] == (3, 3, 3)
        assert load(tmp_path, size="3x2", channels=1).train.x.shape[1:] == (1, 3, 2)

    def test_an_image_of_another_size_is_named_with_the_remedy(self, tmp_path: Path) -> None:
        for at in range(4):
            picture(tmp_path / "train/a" / f"{at}.png", 1, (4, 5 if at == 2 else 4))
        picture(tmp_path / "test/a/0.png", 1, (4, 6))
        with pytest.raises(UserError, match=r"2\.png' has 5x4 pixels .*data.options.size"):
            load(tmp_path)
        (tmp_path / "train/a/2.png").unlink()
        with pytest.raises(UserError, match=r"training and test images have 4x4 and 4x6 pixels .*option size"):
            load(tmp_path)

    @pytest.mark.parametrize(("content", "why"), [(b"no image", "damaged"), (None, "no such file")])
    def test_an_unreadable_image_is_named_or_counted(self, tmp_path: Path, content: bytes | None, why: str) -> None:
        rows = [
            (picture(tmp_path / f"{at}.png", at).name, "ab"[at % 2], "train" if at < 8 else "test") for at in range(10)
        ]
        (tmp_path / "3.png").unlink()
        if content is not None:
            (tmp_path / "3.png").write_bytes(content)
        path = table(tmp_path / "my.csv", "path,label,split", rows)
        with pytest.raises(UserError, match=rf"3\.png' cannot be read \(.*{why}"):
            load(path)
        source = load(path, skip_bad=True)
        assert source.notes == ("1 images are left out, which cannot be read or have another size",)
        assert shades(source.train.x) == [0, 1, 2, 4, 5, 6, 7]
        assert source.train.y.tolist() == [0, 1, 0, 0, 1, 0, 1]

    def test_no_readable_image(self, tmp_path: Path) -> None:
        rows = [(f"{at}.png", "a", "train" if at < 2 else "test") for at in range(3)]
        with pytest.raises(UserError, match=r"none of 2 images can be read, such as '.*0\.png'"):
            load(table(tmp_path / "my.csv", "path,label,split", rows), skip_bad=True)

    def test_an_empty_class(self, tmp_path: Path) -> None:
        picture(tmp_path / "photos/cat/0.png", 0)
        (tmp_path / "photos/dog").mkdir()
        with pytest.raises(UserError, match=r"class 'dog' is empty. Add images to '.*dog'"):
            load(tmp_path / "photos")
        with pytest.raises(
            UserError, match=r"holds no folders\. Put the images of each class into a folder of its own"
        ):
            load(tmp_path / "photos/cat")


# ----------------------------------------------------------------------------------------------------------------- CSV


class TestTable:
    def test_images_with_sites_patients_and_splits(self, tmp_path: Path) -> None:
        said = [
            ("cat", "north", "p1", "train"),
            ("dog", "south", "p9", "train"),
            ("cat", "north", "p1", "train"),
            ("dog", "north", "p2", "test"),
            ("dog", "south", "p3", "train"),
            ("cat", "abroad", "p5", "test"),
        ]
        rows = [(f"deep/{at}.png", *each) for at, each in enumerate(said)]
        for at in range(6):
            picture(tmp_path / f"deep/{at}.png", at)
        source = load(table(tmp_path / "my.csv", "path,label,site,patient,split", rows))
        assert (shades(source.train.x), shades(source.test.x)) == ([0, 1, 2, 4], [3, 5])
        # A site that has test samples only is no client.
        assert source.site_names == ("north", "south")
        assert source.sites is not None and source.sites.tolist() == [0, 1, 0, 1]
        assert source.groups is not None and source.groups.tolist() == [0, 4, 0, 2]
        assert own.site_names(tmp_path / "my.csv") == ("north", "south")

    def test_columns_of_numbers(self, tmp_path: Path) -> None:
        rows = [(1.5, "b", -2, "train"), ("3e1", "a", 4, "train"), (5, "a", 6, "test")]
        source = load(table(tmp_path / "my.csv", "age,label,dose,split", rows))
        assert source.train.x.dtype == torch.float32 and source.train.x.tolist() == [[1.5, -2.0], [30.0, 4.0]]
        assert (source.train.y.tolist(), source.labels, source.test.x.tolist()) == ([1, 0], ("a", "b"), [[5.0, 6.0]])

    def test_the_list_of_classes_can_be_fixed(self, tmp_path: Path) -> None:
        path = numbers(tmp_path / "my.csv")
        assert load(path).labels == ("no", "yes")
        source = load(path, classes="yes, no")
        assert source.labels == ("yes", "no")
        # Even rows are labeled yes, and hold even numbers.
        assert torch.equal(source.train.x[:, 0].long() % 2, source.train.y)
        by_number = numbers(tmp_path / "two.csv", "label,a", [(at % 2, at) for at in range(20)])
        assert torch.equal(load(by_number, classes="yes,no").train.y, source.train.y)

    def test_a_number_is_no_place_among_classes_called_by_numbers(self, tmp_path: Path) -> None:
        path = numbers(tmp_path / "my.csv", "label,a", [(1 + at % 2, at) for at in range(8)] + [(0, 9)])
        with pytest.raises(UserError, match=r"label '0' \('.*my\.csv', line 10\) is no class"):
            load(path, classes="1,2")

    @pytest.mark.parametrize(
        ("heading", "rows", "message"),
        [
            ("path,lable,site", [("a.png", "x", "s")], "has no column 'label', but path, lable, site. Call"),
            ("label,site", [("x", "s")], "has no column 'path' or 'text', and no feature besides label, site"),
            ("label,a", [], "no rows below its heading"),
            (
                "label,a",
                [("x", 1), ("x", "1o"), ("x", 2)],
                "line 3: column 'a' is '1o', which is no number like other cells",
            ),
            ("label,a", [("x", "1e99"), ("x", "inf")], "line 2: column 'a' is '1e99', which is no number"),
            ("file,label", [("a.png", "x")], r"column 'file' is 'a\.png'. Call it 'path' if it names images"),
            ("label,a", [("x", 1), (" ", 2)], "line 3: column 'label' is empty"),
            ("label,a,patient", [("x", 1, "p"), ("x", 2, "")], "line 3: column 'patient' is empty"),
            ("label,a", [("x", 1, 2)], "line 2 has 3 cells instead of 2"),
            ("label,a,split", [("x", 1, "valid")], "line 2: split is 'valid'. Write train or test"),
            ("label,a,split", [("x", 1, "train")], "has no test sample"),
            ("label,a,split", [("x", 1, "test")], "has no training sample"),
            (
                "label,a,patient,split",
                [("x", 1, "p7", "train"), ("x", 2, "p8", "train"), ("x", 3, "p7", "test")],
                "patient 'p7' is in both the training and the test samples",
            ),
            (
                "label,a,patient,site",
                [("x", 1, "7", "north"), ("x", 2, "7", "south"), ("x", 3, "8", "north")],
                r"patient '7' is at two sites, 'north' and 'south'\. .* 'north-7' and 'south-7'",
            ),
            (
                "label,a,site,split",
                [("x", 1, "A", "train"), ("x", 1, "A", "train"), ("x", 2, "B", "train"), ("x", 3, "B", "test")],
                "site 'B' has 1 training sample. Give 2 or more.",
            ),
            (
                "label,a,split",
                [("x", 1, "train"), ("y", 2, "test")],
                "class 'y' of data set 'my' has no training sample",
            ),
        ],
    )
    def test_mistakes(self, tmp_path: Path, heading: str, rows: list[tuple[Any, ...]], message: str) -> None:
        with pytest.raises(UserError, match=message):
            load(table(tmp_path / "my.csv", heading, rows))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"classes": "yes,nay"}, r"label 'no' \(.*, line 3\) is no class\. (Did you mean 'nay'|Known: nay, yes)"),
            ({"classes": "yes,no,maybe"}, "class 'maybe' of data set 'my' has no training sample"),
            ({"classes": "yes,no,yes"}, "Name every class once"),
            ({"test_share": 0.7}, "test_share is 0.7. Set it above 0 and to at most 0.5"),
            ({"test_share": "half"}, "test_share is 'half'"),
            ({"size": "64by64"}, "size is '64by64'. Give pixels"),
            ({"size": 0}, "size is 0. Give pixels"),
            ({"sizes": 3}, "no option 'sizes'. Did you mean 'size'"),
        ],
    )
    def test_wrong_options(self, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            load(numbers(tmp_path / "my.csv"), **options)

    def test_wrong_channels(self, tmp_path: Path) -> None:
        for at in range(2):
            picture(tmp_path / "a" / f"{at}.png", 0)
        with pytest.raises(UserError, match=r"channels is 2. Set it to 1 \(gray\) or 3"):
            load(tmp_path, channels=2)

    @pytest.mark.parametrize(("name", "content"), [("my.csv", b"\xff\xfe\x00"), ("my.txt", b"x"), ("gone.csv", None)])
    def test_wrong_files(self, tmp_path: Path, name: str, content: bytes | None) -> None:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            load(tmp_path / name)


# --------------------------------------------------------------------------------------------------- the seeded split


@st.composite
def listings(draw: st.DrawFn) -> Rows:
    """Patients, each at one site, with some samples each."""
    at = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=4, max_size=20))
    patients = [f"p{p}" for p, (_, many) in enumerate(at) for _ in range(many)]
    sites = [f"s{site}" for site, many in at for _ in range(many)]
    return Rows(np.zeros((len(sites), 1)), ["x"] * len(sites), sites, patients, [])


class TestSplit:
    @given(listings(), st.floats(0.05, 0.5), st.integers(0, 5), st.booleans())
    def test_patients_stay_together_and_every_site_trains_on_some(
        self, listed: Rows, share: float, seed: int, known: bool
    ) -> None:
        rows = listed if known else Rows(listed.samples, listed.labels, listed.sites, [], [])
        test = for_testing(rows, np.zeros(len(listed.labels), np.int64), share, seed)
        assert set(np.array(listed.sites)[~test]) == set(listed.sites)
        units = np.array(listed.patients if known else range(len(test)))
        assert not set(units[test]) & set(units[~test])
        # As many as asked for, unless that would take the only one of a site.
        firsts, all_units = len(set(listed.sites)), len(set(units))
        assert len(set(units[test])) == min(max(round(share * all_units), 1), all_units - firsts)

    def test_nothing_depends_on_the_order_of_equal_calls(self, tmp_path: Path) -> None:
        path = numbers(tmp_path / "my.csv")
        assert load(path).checksums == load(path).checksums != load(path, seed=3).checksums


# -------------------------------------------------------------------------------------------------------------- arrays


FOUR = {
    "x_train": np.arange(12, dtype=np.float32).reshape(6, 2),
    "y_train": np.array([0, 1, 0, 1, 0, 1]),
    "x_test": np.ones((2, 2), np.float32),
    "y_test": np.array([1, 0]),
}


class TestArrays:
    @pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
    def test_both_kinds_of_file(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"mine{suffix}"
        stored = FOUR | {"site_train": np.array([7, 30, 7, 30, 30, 7]), "more": np.zeros(1)}
        np.savez(path, **stored) if suffix == ".npz" else save_file(stored, path)  # type: ignore[arg-type]
        source = load(path, classes="no,yes")
        assert (source.name, source.labels, source.site_names) == ("mine", ("no", "yes"), ("7", "30"))
        assert source.sites is not None and source.sites.tolist() == [0, 1, 0, 1, 1, 0]
        assert torch.equal(source.train.x, torch.arange(12.0).view(6, 2))
        assert own.site_names(path) == ("7", "30")

    def test_names_of_sites(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", **FOUR, site_train=np.array(["b", "a", "b", "a", "b", "a"]))  # type: ignore[arg-type]
        source = load(tmp_path / "a.npz")
        assert source.sites is not None and (source.site_names, source.sites.tolist()) == (("a", "b"), [1, 0] * 3)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"x_test": None}, "has no array 'x_test'. Give it x_train, y_train, x_test, y_test"),
            ({"y_train": np.array([0, 2, 0, 2, 0, 2])}, "class '1' of data set 'a' has no training sample"),
            (
                {"sites_train": np.zeros(6)},
                "has an array 'sites_train', which is not read. Call the sites of training samples",
            ),
            ({"patient": np.zeros(6)}, "has an array 'patient', which is not read"),
            ({"site_train": np.array([0, 1])}, r"sites \[2\] for 6 training samples"),
            ({"site_train": np.array([0, 0, 0, 0, 0, 1])}, "site '1' has 1 training sample"),
            ({"y_train": np.array([0, 1, 0, 1, 0, 1], object)}, "no .npz file of plain arrays"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        kept = {key: value for key, value in (FOUR | changes).items() if value is not None}
        np.savez(tmp_path / "a.npz", **kept)
        with pytest.raises(UserError, match=message):
            load(tmp_path / "a.npz")

    @pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
    @pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 and no more"])
    def test_damaged_files(self, tmp_path: Path, name: str, content: bytes | None) -> None:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="does not exist" if content is None else "is damaged or no"):
            load(tmp_path / name)

    def test_a_single_array(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros(3))
        with pytest.raises(UserError, match=r"no \.npz file of plain arrays"):
            load((tmp_path / "a.npy").rename(tmp_path / "a.npz"))

    def test_sites_of_a_source(self) -> None:
        source = from_arrays(*FOUR.values(), sites=[0, 1, 0, 1, 1, 0])
        assert source.site_names == ("0", "1")
        with pytest.raises(UserError, match=r"site's number is outside 0\.\.0"):
            from_arrays(*FOUR.values(), sites=[0, 1, 0, 1, 1, 0], site_names=["only"])


# ------------------------------------------------------------------------------------------------------ client folders


class TestClients:
    def test_image_folders_with_test_data_beside_them(self, tmp_path: Path) -> None:
        for client in range(2):
            for at in range(3):
                picture(tmp_path / f"client-0{client}" / "ab"[at % 2] / f"{at}.png", 10 * client + at)
        picture(tmp_path / "test/b/0.png", 90)
        source = load(tmp_path)
        assert (source.labels, source.site_names) == (("a", "b"), ("client-00", "client-01"))
        assert shades(source.train.x) == [0, 2, 1, 10, 12, 11]
        assert source.sites is not None and source.sites.tolist() == [0, 0, 0, 1, 1, 1]
        assert (shades(source.test.x), source.test.y.tolist()) == ([90], [1])
        assert own.site_names(tmp_path) == source.site_names

    def test_arrays_with_a_share_for_testing(self, tmp_path: Path) -> None:
        for client in range(3):
            (tmp_path / f"client-{client}").mkdir()
            x = np.full((10, 2), client, np.float32)
            np.savez(tmp_path / f"client-{client}/data.npz", x=x, y=np.arange(10) % 2)
        source = load(tmp_path)
        assert source.sites is not None and torch.equal(source.train.x[:, 0].long(), source.sites)
        # 2 of 10 at every site, as all sites are alike.
        assert source.sites.bincount().tolist() == [8, 8, 8]
        assert source.test.x[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]

    def test_tables_that_say_what_is_for_testing(self, tmp_path: Path) -> None:
        for name in ("client-a", "client-b"):
            rows = [("x", 1, "train"), ("y", 2, "train"), ("y", 3, "test")]
            table(tmp_path / name / "mine.csv", "label,a,split", rows)
        source = load(tmp_path)
        assert (len(source.train), len(source.test)) == (4, 2)

    def test_mistakes(self, tmp_path: Path) -> None:
        one = numbers(tmp_path / "client-0/a.csv")
        other = tmp_path / "client-1"
        numbers(other / "a.csv", "label,a,b", [("yes", 1, 2)])
        with pytest.raises(
            UserError, match=r"'client-0' and 'client-1' differ in their samples: columns a and columns a, b"
        ):
            load(tmp_path)
        numbers(other / "a.csv", "label,a,split", [("yes", 1, "train")])
        with pytest.raises(UserError, match="differ in their splits: one has them and the other has not"):
            load(tmp_path)
        numbers(other / "b.csv")
        with pytest.raises(UserError, match=r"client-1' holds a\.csv and b\.csv. Leave one file for each client"):
            load(tmp_path)
        (other / "a.csv").unlink()
        (other / "b.csv").unlink()
        np.savez(other / "a.npz", x_train=np.zeros(2))
        with pytest.raises(UserError, match=r"holds x_train\. Name the arrays of a client x and y"):
            load(tmp_path)
        np.savez(other / "a.npz", x=np.zeros((2, 1)), y=np.zeros(3, int))
        with pytest.raises(UserError, match="other labels than integers, one for each of the 2 rows of x"):
            load(tmp_path)
        (other / "a.npz").unlink()
        numbers(other / "a.csv", "label,a,split", [("yes", 1, "train")] * 2)
        numbers(one, "label,a,split", [("yes", 1, "train")] * 2)
        numbers(tmp_path / "test/a.csv")
        with pytest.raises(UserError, match="clients' own data say what is for testing"):
            load(tmp_path)


# -------------------------------------------------------------------------------------- data sets of other libraries


class Pictures:
    """As torchvision's data sets are: PIL images, and names of classes."""

    classes = ("cat", "dog")

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, place: int) -> tuple[Image.Image, int]:
        if place >= len(self):
            raise IndexError
        return Image.new("RGB", (4, self.sizes[place]), (place, 2, 3)), place % 2


class TestDatasets:
    def test_tensors_and_pictures(self) -> None:
        x, y = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 2
        source = torch_datasets.from_datasets(TensorDataset(x, y), TensorDataset(x[:2], y[:2]))
        assert torch.equal(source.train.x, x) and torch.equal(source.test.y, y[:2])
        source = torch_datasets.from_datasets(Pictures([5, 5, 5]), Pictures([5, 5]))
        assert (source.labels, source.train.x.shape, shades(source.train.x)) == (
            ("cat", "dog"),
            (3, 3, 5, 4),
            [0, 1, 2],
        )

    def test_mistakes(self) -> None:
        with pytest.raises(
            UserError, match=r"samples 0 and 1 of the test data set have shapes \[5, 4, 3\] and \[6, 4, 3\]"
        ):
            torch_datasets.from_datasets(Pictures([5, 5]), Pictures([5, 6]))
        with pytest.raises(UserError, match=r"the train data set cannot be read"):
            torch_datasets.from_datasets(iter([(1, 2)]), Pictures([5]))
        with pytest.raises(UserError, match=r"the train data set cannot be read"):
            torch_datasets.from_datasets(TensorDataset(torch.zeros(3)), Pictures([5]))
        with pytest.raises(UserError, match="y_train is no array of numbers"):
            torch_datasets.from_datasets([(1.0, "cat"), (2.0, "dog")], [(1.0, 0)])
        with pytest.raises(UserError, match="y_train is float64"):
            torch_datasets.from_datasets([([1.0], 0.5), ([2.0], 1.0)], [([1.0], 0)])

    def test_a_hugging_face_data_set_needs_its_library(self, tmp_path: Path) -> None:
        (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
        try:
            import datasets  # noqa: F401
        except ImportError:
            with pytest.raises(
                UserError, match=r"needs datasets, which is not installed. Type: pip install 'fedskew\[data\]'"
            ):
                load(tmp_path)
        else:
            pytest.skip("the package datasets is installed")

    def test_a_hugging_face_data_set(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        raised = {"label": [0, 1, 0, 1], "site": ["a", "a", "b", "b"], "patient": [1, 1, 2, 2]}
        features = datasets.Features(
            image=datasets.Image(),
            label=datasets.ClassLabel(names=["dog", "cat"]),
            site=datasets.Value("string"),
            patient=datasets.Value("int64"),
        )
        pictures = [Image.new("RGB", (4, 5), (shade, 0, 0)) for shade in range(4)]
        train = datasets.Dataset.from_dict({"image": pictures, **raised}, features=features)
        test = datasets.Dataset.from_dict(
            {"image": pictures[:2], "label": [1, 0], "site": ["c", "c"], "patient": [3, 3]}, features=features
        )
        datasets.DatasetDict(train=train, test=test).save_to_disk(str(tmp_path / "both"))
        source = load(tmp_path / "both")
        assert (source.labels, source.site_names) == (("cat", "dog"), ("a", "b"))
        assert (source.train.x.shape, shades(source.train.x)) == ((4, 3, 5, 4), [0, 1, 2, 3])
        assert source.train.y.tolist() == [1, 0, 1, 0] and source.test.y.tolist() == [0, 1]
        measured = datasets.Dataset.from_dict({"a": [1.0, 2.0, 3.0, 4.0] * 5, "b": [0] * 20, "label": ["x", "y"] * 10})
        measured.save_to_disk(str(tmp_path / "numbers"))
        assert load(tmp_path / "numbers").train.x.shape == (16, 2)


# ---------------------------------------------------------------------------------------------------------- partitions


class TestPartitions:
    def test_every_site_is_a_client(self) -> None:
        parts = partition(np.zeros(5, int), 1, 3, "natural", 0, sites=np.array([2, 0, 1, 0, 2]))
        assert [part.tolist() for part in parts] == [[1, 3], [2], [0, 4]]
        with pytest.raises(UserError, match=r"clients is 10, but the data has 3 sites\. Set clients to 3"):
            partition(np.zeros(50, int), 1, 10, "natural", 0, sites=np.arange(50) % 3)

    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=6, max_size=20), st.integers(0, 3))
    def test_patients_stay_whole(self, patients: list[tuple[int, int]], seed: int) -> None:
        groups = np.repeat(np.arange(len(patients)) * 3, [many for _, many in patients])  # numbers may have gaps
        labels = np.repeat([label for label, _ in patients], [many for _, many in patients])
        parts = partition(labels, 3, 4, "iid", seed, groups=groups)
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
        owners = [set(groups[part]) for part in parts]
        assert sum(map(len, owners)) == len(patients)
        assert all((np.diff(part) > 0).all() for part in parts)

    def test_a_patient_counts_by_most_of_its_labels(self) -> None:
        # Patient 0 is mostly of class 1, patient 1 of class 0: each of two clients holds one class.
        labels, groups = np.array([1, 1, 0, 0, 0, 1]), np.array([0, 0, 0, 1, 1, 1])
        parts = partition(labels, 2, 2, "labels", 0, k=1, groups=groups)
        assert [part.tolist() for part in parts] == [[3, 4, 5], [0, 1, 2]]

    def test_mistakes(self) -> None:
        labels, groups = np.zeros(4, int), np.array([0, 1, 1, 1])
        with pytest.raises(UserError, match="clients is 3, more than the 2 groups"):
            partition(labels, 1, 3, "iid", 0, groups=groups)
        with pytest.raises(UserError, match=r"clients 0 and 1 share a group \(patient\), that of sample 3"):
            partition(labels, 1, 2, "explicit", 0, groups=groups, lists=[[0, 1], [3]])
        assert len(partition(labels, 1, 2, "explicit", 0, groups=groups, lists=[[0], [3, 1]])) == 2


# ------------------------------------------------------------------------------------------- what is not as it seems


@pytest.mark.parametrize(
    ("heading", "row", "words"),
    [
        (",a,label", (0, 1.5, "yes"), "has a column without a name"),
        ("patient,a,label", ("NA", 1.5, "yes"), "line 2: patient 'NA' stands for a missing value"),
        ("site,a,label", ("nan", 1.5, "yes"), "line 2: site 'nan' stands for a missing value"),
    ],
)
def test_what_other_programs_write(heading: str, row: Sequence[object], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        load(table(tmp_path / "mine.csv", heading, [row] * 9))


def test_whole_numbers_go_by_value_whatever_their_sign_and_zeros() -> None:
    assert own.ordered(["10", "-1", "2", "1"]) == ("-1", "1", "2", "10")
    assert own.ordered(["1", "01", "2"]) == own.ordered(["2", "01", "1"]) == ("01", "1", "2")
    listed = Rows([], ["-1", "1", "-1.0", "1.0"], [], [], [])
    assert own._as_meant(listed) == ["-1", "1", "-1", "1"]


def test_test_labels_are_in_the_checksums(tmp_path: Path) -> None:
    rows = [(f"{i}.png", "yes" if i % 2 else "no", "test" if i > 3 else "train") for i in range(8)]
    for name, _, _ in rows:
        picture(tmp_path / name, 10)
    first = load(table(tmp_path / "mine.csv", "path,label,split", rows)).checksums
    turned = [
        (name, ("no" if label == "yes" else "yes") if split == "test" else label, split) for name, label, split in rows
    ]
    again = load(table(tmp_path / "mine.csv", "path,label,split", turned)).checksums
    assert {name for name in first if first[name] != again[name]} == {"y_test"}


def test_images_that_lie_too_deep_or_beside(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
            picture(tmp_path / "split" / split / name, 10)
    with pytest.raises(UserError, match="has a folder 'val' next to 'train'"):
        load(tmp_path / "split")
    picture(tmp_path / "split" / "train" / "a" / ".hidden" / "0.png", 10)
    load(tmp_path / "split" / "train")
    picture(tmp_path / "split" / "train" / "a" / "more" / "0.png", 10)
    with pytest.raises(UserError, match=r"0\.png' is too deep. Move images of the class into '.*a' itself"):
        load(tmp_path / "split" / "train")


@pytest.mark.parametrize(
    ("mode", "shape", "first"),
    [("RGBA", (3, 4, 4), 255), ("P", (3, 4, 4), 255), ("CMYK", (3, 4, 4), 255), ("LA", (1, 4, 4), 76)],
)
def test_pictures_of_a_data_set_are_gray_or_color(mode: str, shape: tuple[int, ...], first: int) -> None:
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    red = red.convert("L").convert("LA") if mode == "LA" else red.convert(mode)
    made = torch_datasets.from_datasets([(red, 0), (red, 1)], [(red, 0), (red, 1)])
    assert made.train.x.shape[1:] == shape and int(made.train.x[0, 0, 0, 0]) == first


def test_odd_things_of_data_sets(tmp_path: Path) -> None:
    class Counted(TensorDataset):
        classes = 2

    x = torch.randn(4, 3, requires_grad=True)
    made = torch_datasets.from_datasets(Counted(x, torch.arange(4) % 2), Counted(x.bfloat16(), torch.arange(4) % 2))
    assert made.labels == ("0", "1") and made.test.x.dtype == torch.float32
    with pytest.raises(UserError, match=r"has 4 channels \(\[4, 8, 8, 4\]\). Give gray \(1\) or color \(3\)"):
        from_arrays(torch.zeros(4, 8, 8, 4, dtype=torch.uint8), [0, 1, 0, 1], torch.zeros(1, 8, 8, 4), [0])
    sparse = torch.eye(4).to_sparse()
    assert torch.equal(from_arrays(sparse, [0, 1, 0, 1], sparse, [0, 1, 0, 1]).train.x, torch.eye(4))
    np.savez(tmp_path / "mine.npz", x=np.zeros((4, 3), np.float32), y=np.eye(4, dtype=int))
    (tmp_path / "all" / "client-0").mkdir(parents=True)
    (tmp_path / "mine.npz").rename(tmp_path / "all" / "client-0" / "mine.npz")
    with pytest.raises(UserError, match=r"has other labels than integers, one for each of the 4 rows of x. Correct y."):
        load(tmp_path / "all")


def test_a_class_that_is_all_test_samples_is_named(tmp_path: Path) -> None:
    rows = [(i, "rare" if i == 0 else "usual", "test" if i < 3 else "train") for i in range(12)]
    with pytest.raises(
        UserError, match=r"class 'rare' .*\. All of its samples \(1\) are for testing: move some to training"
    ):
        load(table(tmp_path / "mine.csv", "a,label,split", rows))

    def test_a_hugging_face_data_set_by_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A local folder stands for a name of the hub: their library reads both alike."""
        datasets = pytest.importorskip("datasets")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        for part, rows in (("train", 6), ("test", 2)):
            table = {"a": [float(row) for row in range(rows)], "b": [0.5] * rows, "fine": ["x", "y"] * (rows // 2)}
            datasets.Dataset.from_dict(table).to_parquet(str(tmp_path / "data" / f"{part}-0.parquet"))
        named = {"name": str(tmp_path / "data"), "label": "fine"}
        source = sources.load("huggingface", None, **named)
        assert source.labels == ("x", "y") and source.train.x[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert len(source.test) == 2 and source.train.y.tolist() == [0, 1] * 3
        with pytest.raises(UserError, match=r"has no column 'coarse'\. Name another by the option label"):
            sources.load("huggingface", None, **named | {"label": "coarse"})
        with pytest.raises(UserError, match=r"needs the option name\. Add --set data\.options\.name"):
            sources.load("huggingface")
        with pytest.raises(UserError, match="cannot load"):
            sources.load("huggingface", None, name=str(tmp_path / "nowhere"))
