"""CINIC-10 and TinyImageNet, written here in their official layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.data.sources import load

CINIC = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def image(path: Path, value: int, side: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 255 - value)).save(path)


def write_cinic(root: Path) -> None:
    """Class k has k + 1 training images, 1 for validation and 2 for testing; red tells the class."""
    for k, name in enumerate(CINIC):
        for part, count in (("train", k + 1), ("valid", 1), ("test", 2)):
            for i in range(count):
                image(root / part / name / f"cifar10-{part}-{i}.png", 20 * k, 32)


def write_tiny(root: Path) -> list[str]:
    """Three classes in an order that is not the alphabet's, two training images each, four for validation."""
    codes = ["n03444034", "n01443537", "n02124075"]
    root.mkdir(parents=True, exist_ok=True)
    (root / "wnids.txt").write_text("\n".join(codes) + "\n")
    (root / "words.txt").write_text(
        "n01443537\tgoldfish, Carassius auratus\nn00001740\tentity\nn03444034\tgo-kart\nn02124075\tEgyptian cat\n"
    )
    for k, code in enumerate(codes):
        for i in range(2):
            image(root / "train" / code / "images" / f"{code}_{i}.JPEG", 100 * k, 64)
        (root / "train" / code / f"{code}_boxes.txt").write_text(f"{code}_0.JPEG\t0\t0\t63\t63\n")
    lines = []
    for i, k in enumerate((2, 0, 1, 2)):
        image(root / "val" / "images" / f"val_{i}.JPEG", 100 * k, 64, "L" if i == 3 else "RGB")
        lines.append(f"val_{i}.JPEG\t{codes[k]}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return codes


class TestCinic:
    @pytest.mark.parametrize("inside", ["CINIC-10", "."])
    def test_classes_by_folder(self, tmp_path: Path, inside: str) -> None:
        write_cinic(tmp_path / inside)
        cinic = load("cinic10", tmp_path)
        assert torch.bincount(cinic.train.y).tolist() == list(range(1, 11))
        assert torch.bincount(cinic.test.y).tolist() == [2] * 10
        assert cinic.train.x.shape == (55, 3, 32, 32)
        assert (cinic.train.x[:, 0] == 20 * cinic.train.y.view(-1, 1, 1)).all()
        assert cinic.labels == CINIC
        assert cinic.mean == (0.4789, 0.4723, 0.4305)

    def test_validation_images_may_train_too(self, tmp_path: Path) -> None:
        write_cinic(tmp_path)
        assert torch.bincount(load("cinic10", tmp_path, valid=True).train.y).tolist() == list(range(2, 12))

    def test_a_class_without_images(self, tmp_path: Path) -> None:
        write_cinic(tmp_path)
        for path in (tmp_path / "test" / "dog").iterdir():
            path.unlink()
        with pytest.raises(UserError, match=r"test/dog' holds no image \*\.png"):
            load("cinic10", tmp_path)

    def test_damaged_images(self, tmp_path: Path) -> None:
        write_cinic(tmp_path)
        (tmp_path / "train" / "truck" / "cifar10-train-3.png").write_bytes(b"\x89PNG")
        with pytest.raises(UserError, match=r"truck/cifar10-train-3\.png' cannot be read"):
            load("cinic10", tmp_path)
        some = load("cinic10", tmp_path, skip_bad=True)
        assert torch.bincount(some.train.y).tolist() == [*range(1, 10), 9]
        assert some.notes == ("1 images are left out, which cannot be read or have another size",)

    def test_a_wrong_size(self, tmp_path: Path) -> None:
        write_cinic(tmp_path)
        image(tmp_path / "train" / "cat" / "zz.png", 0, 31)
        with pytest.raises(UserError, match=r"zz\.png' has 31x31 pixels and .* has 32x32"):
            load("cinic10", tmp_path)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="data set 'cinic10' needs 'train', which is in none of"):
            load("cinic10", tmp_path)
        with pytest.raises(UserError, match="Name the folder"):
            load("cinic10")


class TestTinyImageNet:
    def test_the_order_is_that_of_wnids(self, tmp_path: Path) -> None:
        write_tiny(tmp_path / "tiny-imagenet-200")
        tiny = load("tiny-imagenet", tmp_path)
        assert tiny.labels == ("go-kart", "goldfish", "Egyptian cat")
        assert tiny.train.y.tolist() == [0, 0, 1, 1, 2, 2]
        assert tiny.test.y.tolist() == [2, 0, 1, 2]
        assert tiny.train.x.shape == (6, 3, 64, 64)
        red = tiny.train.x[:, 0].float().mean((1, 2))
        assert torch.allclose(red, torch.tensor([0.0, 0, 100, 100, 200, 200]), atol=4)  # JPEG loses a little
        assert (tiny.test.x[3] - tiny.test.x[3, :1]).abs().max() == 0  # a gray image has three equal channels

    def test_moments_are_measured_once(self, tmp_path: Path) -> None:
        write_tiny(tmp_path)
        tiny = load("tiny-imagenet", tmp_path)
        assert (tiny.mean, tiny.std) == sources.moments(tiny.train.x)
        assert tiny.mean[0] == pytest.approx(100 / 255, abs=0.01)
        assert load("tiny-imagenet", tmp_path).mean == tiny.mean

    def test_without_words_codes_are_the_names(self, tmp_path: Path) -> None:
        codes = write_tiny(tmp_path / "t")
        (tmp_path / "t" / "words.txt").unlink()
        assert load("tiny-imagenet", tmp_path / "t").labels == tuple(codes)

    def test_an_unknown_class(self, tmp_path: Path) -> None:
        write_tiny(tmp_path / "t")
        with (tmp_path / "t" / "val" / "val_annotations.txt").open("a") as file:
            file.write("val_4.JPEG\tn99999999\t0\t0\t1\t1\n")
        with pytest.raises(UserError, match=r"line 5: class 'n99999999' is not in wnids.txt"):
            load("tiny-imagenet", tmp_path / "t")

    def test_missing_files(self, tmp_path: Path) -> None:
        write_tiny(tmp_path / "t")
        (tmp_path / "t" / "val" / "val_annotations.txt").unlink()
        with pytest.raises(UserError, match=r"val_annotations\.txt' does not exist"):
            load("tiny-imagenet", tmp_path / "t")

    def test_words_that_are_no_text(self, tmp_path: Path) -> None:
        write_tiny(tmp_path / "t")
        (tmp_path / "t" / "words.txt").write_bytes(np.array([255, 254, 0], dtype=np.uint8).tobytes())
        with pytest.raises(UserError, match=r"words\.txt' is no text"):
            load("tiny-imagenet", tmp_path / "t")
