from __future__ import annotations

import hashlib
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedskew.core.errors import UserError
from fedskew.core.progress import listening
from fedskew.data import cache, images
from fedskew.data.images import Decoded, decode
from fedskew.experiment.callbacks import progress


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"


def write(path: Path, pixels: Any, **options: Any) -> Path:
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path, **options)
    return path


def colors(count: int, height: int = 4, width: int = 6) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def written(folder: Path, pixels: np.ndarray) -> list[Path]:
    return [write(folder / f"{i:03}.png", image) for i, image in enumerate(pixels)]


def read(paths: list[Path], **options: Any) -> Decoded:
    return decode(paths, **{"size": None, "channels": 3, "key": "test"} | options)


class TestMapped:
    def test_made_once(self, empty_cache: Path) -> None:
        calls = []

        def fill(array: np.ndarray) -> None:
            calls.append(array.shape)
            array[:] = np.arange(6).reshape(2, 3)

        for _ in range(2):
            assert torch.equal(cache.mapped("k", (2, 3), np.int64, fill), torch.arange(6).view(2, 3))
        assert calls == [(2, 3)]
        assert [path.stat().st_size for path in empty_cache.iterdir()] == [6 * 8]
        cache.mapped("another key", (2, 3), np.int64, fill)
        cache.mapped("k", (3, 3), np.int64, lambda array: calls.append(array.shape))
        assert calls[1:] == [(2, 3), (3, 3)]

    def test_a_write_into_the_tensor_does_not_reach_the_file(self) -> None:
        first = cache.mapped("k", (4,), np.uint8, lambda array: array.fill(7))
        first[:] = 9
        assert cache.mapped("k", (4,), np.uint8, lambda array: array.fill(0)).tolist() == [7] * 4

    def test_nothing_is_left_of_a_failed_attempt(self, empty_cache: Path) -> None:
        def fail(array: np.ndarray) -> None:
            array[0] = 1
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cache.mapped("k", (5,), np.uint8, fail)
        assert not list(empty_cache.iterdir())

    def test_a_file_cut_short_is_made_again(self, empty_cache: Path) -> None:
        cache.mapped("k", (5,), np.uint8, lambda array: array.fill(1))
        (path,) = empty_cache.iterdir()
        path.write_bytes(b"\1")
        assert cache.mapped("k", (5,), np.uint8, lambda array: array.fill(2)).tolist() == [2] * 5

    def test_no_samples_need_no_file(self, empty_cache: Path) -> None:
        assert cache.mapped("k", (0, 3), np.uint8, lambda array: None).shape == (0, 3)
        assert not empty_cache.exists()

    def test_a_disk_that_is_too_small(self) -> None:
        with pytest.raises(UserError, match=r"cannot hold 1099511627776 MiB .*FEDSKEW_CACHE"):
            cache.mapped("k", (2**60,), np.uint8, lambda array: None)

    def test_a_folder_that_cannot_be(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "file"))
        with pytest.raises(UserError, match="FEDSKEW_CACHE"):
            cache.mapped("k", (5,), np.uint8, lambda array: None)

    def test_which_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FEDSKEW_CACHE", "/a")
        monkeypatch.setenv("XDG_CACHE_HOME", "/b")
        monkeypatch.setenv("HOME", "/c")
        assert cache.folder() == Path("/a")
        monkeypatch.setenv("FEDSKEW_CACHE", "")
        assert cache.folder() == Path("/b/fedskew")
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache.folder() == Path("/c/.cache/fedskew")


class TestDecode:
    def test_pixels_are_those_of_the_files(self, tmp_path: Path) -> None:
        pixels = colors(70)  # more than one block
        reported: list[tuple[int, int]] = []
        with listening(lambda task, done, total, unit: reported.append((done, total))):
            found = read(written(tmp_path, pixels))
        assert torch.equal(found.x, torch.from_numpy(pixels).permute(0, 3, 1, 2))
        assert (found.kept.tolist(), found.bad) == (list(range(70)), 0)
        assert found.checksum == f"sha256:{hashlib.sha256(found.x.numpy().tobytes()).hexdigest()}"
        assert reported == [(64, 70), (70, 70)]

    def test_a_second_call_decodes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = written(tmp_path, colors(3))
        first = read(paths, size=(4, 6))
        monkeypatch.setattr(images, "_open_image", None)
        assert torch.equal(read(paths, size=(4, 6)).x, first.x)

    def test_files_that_took_each_other_s_name_are_decoded_again(self, tmp_path: Path) -> None:
        """As one mends two classes that were mistaken; an archive may have given both the same time."""
        paths = [write(tmp_path / name, np.full((4, 6), shade)) for name, shade in (("a.bmp", 10), ("b.bmp", 200))]
        for path in paths:
            os.utime(path, ns=(0, 0))
        assert read(paths).x[:, 0, 0, 0].tolist() == [10, 200]
        paths[0].rename(tmp_path / "c.bmp")
        paths[1].rename(paths[0])
        (tmp_path / "c.bmp").rename(paths[1])
        assert read(paths).x[:, 0, 0, 0].tolist() == [200, 10]

    def test_the_same_name_in_another_folder_is_another_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder, shade in (("one", 10), ("two", 200)):
            (tmp_path / folder).mkdir()
            os.utime(write(tmp_path / folder / "a.bmp", np.full((4, 6), shade)), ns=(0, 0))
            monkeypatch.chdir(tmp_path / folder)
            assert read([Path("a.bmp")]).x[0, 0, 0, 0] == shade

    def test_deep_colors_are_not_cut_either(self, tmp_path: Path) -> None:
        """A PNG by hand: 1x1 pixels of three channels of 16 bits, which Pillow opens as RGB of 8."""

        def chunk(name: bytes, content: bytes) -> bytes:
            return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

        header, line = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0), b"\0" + struct.pack(">HHH", 200, 200, 200)
        content = [(b"IHDR", header), (b"IDAT", zlib.compress(line)), (b"IEND", b"")]
        path = tmp_path / "deep.png"
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in content))
        with pytest.raises(UserError, match="has more than 8 bits per channel"):
            read([path])

    def test_a_changed_file_or_setting_is_decoded_again(self, tmp_path: Path) -> None:
        paths = written(tmp_path, colors(2))
        assert read(paths).x.float().mean() > 50
        write(paths[0], np.zeros((4, 6, 3)))
        write(paths[1], np.zeros((4, 6, 3)))
        assert not read(paths).x.any()
        assert read(paths, channels=1).x.shape == (2, 1, 4, 6)
        assert read(paths, size=(2, 3)).x.shape == (2, 3, 2, 3)

    def test_gray_of_colors_and_colors_of_gray(self, tmp_path: Path) -> None:
        gray = write(tmp_path / "gray.png", [[10, 20], [30, 40]])
        assert read([gray]).x[0].tolist() == [[[10, 20], [30, 40]]] * 3
        red = write(tmp_path / "red.png", [[[255, 0, 0]]])
        # ITU-R 601-2 luma, as Pillow documents it: 0.299 * 255 = 76.2
        assert read([red], channels=1).x.tolist() == [[[[76]]]]

    def test_jpeg_and_size(self, tmp_path: Path) -> None:
        flat = np.full((40, 60, 3), (200, 100, 50))
        photo = write(tmp_path / "a.jpg", flat, quality=95)
        found = read([photo, write(tmp_path / "b.png", flat[:10, :10])], size=(8, 5)).x
        assert found.shape == (2, 3, 8, 5)
        wanted = torch.tensor([200, 100, 50]).view(3, 1, 1)
        assert (found[0].int() - wanted).abs().max() <= 3  # JPEG loses a little
        assert (found[1] == wanted).all()

    def test_two_sizes(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / "a.png", np.zeros((4, 6, 3))), write(tmp_path / "b.png", np.zeros((5, 6, 3)))]
        with pytest.raises(UserError, match=r"b\.png' has 6x5 pixels and '.*a\.png' has 6x4"):
            read(paths)
        found = read(paths, skip_bad=True)
        assert (found.kept.tolist(), found.bad) == ([0], 1)

    @pytest.mark.parametrize("content", [None, b"", b"no image", "cut"], ids=["missing", "empty", "text", "cut"])
    def test_unreadable_images_are_named_or_left_out(self, tmp_path: Path, content: Any) -> None:
        pixels = colors(5)
        paths = written(tmp_path, pixels)
        whole = paths[1].read_bytes()
        for wrong in (paths[0], paths[3]):
            wrong.unlink()
            if content is not None:
                wrong.write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
        with pytest.raises(UserError, match=r"image '.*000\.png' cannot be read") as caught:
            read(paths)
        assert ("no such file" in str(caught.value)) == (content is None)
        for _ in range(2):  # the second time from the cache
            found = read(paths, skip_bad=True)
            assert (found.kept.tolist(), found.bad) == ([1, 2, 4], 2)
            assert torch.equal(found.x, torch.from_numpy(pixels[[1, 2, 4]]).permute(0, 3, 1, 2))

    def test_all_unreadable(self, tmp_path: Path) -> None:
        found = read([tmp_path / "a.png", tmp_path / "b.png"], skip_bad=True)
        assert (len(found.x), found.bad) == (0, 2)

    def test_sixteen_bits_are_not_silently_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "deep.png"
        Image.fromarray(np.full((4, 4), 40000, dtype=np.uint16)).save(path)
        with pytest.raises(UserError, match=r"deep\.png' has more than 8 bits"):
            read([path])

    def test_pixels_stay_in_the_file(self, tmp_path: Path) -> None:
        found = read(written(tmp_path, colors(4)))
        name = str(cache.folder())
        assert any(name in line for line in Path("/proc/self/maps").read_text().splitlines())
        assert found.x.is_contiguous()


def test_decoding_prints_lines_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = written(tmp_path, colors(1))
    with progress.showing(lines=lambda text: print(text, file=sys.stderr)):
        read(picture * (1000 - 1))
        assert not capsys.readouterr().err  # too few to wonder
        for key in ("one", "two"):
            read(picture * 1000, key=key)
            lines = capsys.readouterr().err.splitlines()
            assert len(lines) == 10
            assert lines[0] == "decoding images: 128 of 1,000" and lines[-1] == "decoding images: 1,000 of 1,000"
