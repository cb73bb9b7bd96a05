from __future__ import annotations

import dataclasses
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedskew.core.errors import UserError
from fedskew.data.partitions.partition import counts, partition
from fedskew.data.shards import Shards, load, make
from fedskew.data.sources import load as load_source

LABELS = np.array([0, 2, 2, 1, 0, 1])
PARTS = [np.array([5, 0]), np.array([], np.int64), np.array([1, 2, 4])]


def test_each_client_sees_its_rows_in_order() -> None:
    shards = make(LABELS, PARTS)
    x = torch.arange(6)
    assert [shards.shard(client, x).index.tolist() for client in range(3)] == [[5, 0], [], [1, 2, 4]]
    assert [shards.shard(client, x).y.tolist() for client in range(3)] == [[1, 0], [], [2, 2, 0]]
    assert [shards.shard(client, x).counts.tolist() for client in range(3)] == [[1, 1, 0], [0, 0, 0], [1, 0, 2]]
    assert (len(shards), shards.classes, shards.sizes().tolist()) == (3, 3, [2, 0, 3])


def test_labels_are_the_observed_ones() -> None:
    observed = torch.tensor([0, 1, 2, 1, 1, 1])
    assert make(observed, PARTS, classes=4).shard(2, torch.arange(6)).y.tolist() == [1, 2, 1]


def test_a_source_brings_labels_and_classes() -> None:
    source = load_source("synthetic", samples=40, classes=4)
    shards = make(source, partition(source.train.y.numpy(), 4, 5, "iid", 1))
    shard = shards.shard(3, source.train.x)
    assert torch.equal(shard.y, source.train.y[shard.index])
    assert shard.classes == 4


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=8))
def test_views_copy_nothing(lists: list[list[int]]) -> None:
    shards = make(LABELS, [np.array(entry, np.int64) for entry in lists])
    x = torch.zeros(6, 1)
    for client, entry in enumerate(lists):
        shard = shards.shard(client, x)
        assert shard.index.tolist() == entry
        assert shard.y.tolist() == LABELS[entry].tolist()
        assert shard.x is x
        assert shard.index.untyped_storage().data_ptr() == shards.index.untyped_storage().data_ptr()
        assert shard.y.untyped_storage().data_ptr() == shards.y.untyped_storage().data_ptr()


def test_ten_thousand_clients_are_three_tensors() -> None:
    labels = np.arange(50_000) % 10
    shards = make(labels, partition(labels, 10, 10_000, "iid", 1))
    assigned = [value for value in vars(shards).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.numel() for tensor in assigned) == 50_000 + 50_000 + 10_001
    assert torch.equal(torch.stack([shards.shard(k, labels).counts for k in (0, 9_999)]).sum(1), torch.tensor([5, 5]))


@pytest.mark.parametrize("client", [-1, 3])
def test_no_such_client(client: int) -> None:
    with pytest.raises(UserError, match=f"client {client} does not exist. Choose one of 0..2"):
        make(LABELS, PARTS).shard(client, torch.arange(6))


@pytest.mark.parametrize(
    ("labels", "parts", "classes", "message"),
    [
        (LABELS, [], None, "the partition has no client"),
        (LABELS, [np.array([6])], None, "outside 0..5"),
        (LABELS, [np.array([-1])], None, "outside 0..5"),
        (LABELS, PARTS, 2, "label 2 is outside 0..1"),
        (-LABELS, PARTS, 3, "label -2 is outside 0..2"),
    ],
)
def test_mistakes(labels: np.ndarray, parts: list[np.ndarray], classes: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(labels, parts, classes)


class TestDigest:
    def test_the_same_data_has_the_same_digest(self) -> None:
        assert make(LABELS, PARTS).digest == make(torch.tensor(LABELS), PARTS, 3).digest

    @pytest.mark.parametrize(
        ("labels", "parts", "classes"),
        [
            (LABELS, [np.array([5]), np.array([0]), PARTS[2]], 3),  # the same rows, cut elsewhere
            (LABELS, [np.array([0, 5]), *PARTS[1:]], 3),
            (LABELS, [*PARTS, np.array([], np.int64)], 3),
            (np.array([1, 2, 2, 1, 0, 1]), PARTS, 3),
            (LABELS, PARTS, 4),
        ],
    )
    def test_any_difference_changes_it(self, labels: np.ndarray, parts: list[np.ndarray], classes: int) -> None:
        assert make(labels, parts, classes).digest != make(LABELS, PARTS, 3).digest


class TestFile:
    def test_back_as_it_was(self, tmp_path: Path) -> None:
        shards = make(LABELS, PARTS)
        path = shards.save(tmp_path / "new" / "folder")
        assert path.name == f"shards-{shards.digest[:12]}.safetensors"
        for place in (path, path.parent):
            back = load(place)
            assert back.digest == shards.digest
            assert torch.equal(back.index, shards.index)
            assert torch.equal(back.y, shards.y)
            assert back.offsets.tolist() == [0, 2, 2, 5]
            assert back.classes == 3

    def test_written_once_and_whole(self, tmp_path: Path) -> None:
        shards = make(LABELS, PARTS)
        path = shards.save(tmp_path)
        os.utime(path, (1, 1))
        assert shards.save(tmp_path) == path
        assert path.stat().st_mtime == 1
        assert os.listdir(tmp_path) == [path.name]

    def test_a_disk_without_room_leaves_no_shards(self, tmp_path: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                make(LABELS, PARTS).save(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(tmp_path.glob("shards-*.safetensors"))

    def test_changed_content_is_noticed(self, tmp_path: Path) -> None:
        path = make(LABELS, PARTS).save(tmp_path)
        stored = load_file(path)
        stored["y"][0] = 2
        save_file(stored, path)
        with pytest.raises(UserError, match="was changed after it was written"):
            load(path)

    @pytest.mark.parametrize("keep", [0, 20, -1])
    def test_cut_short(self, tmp_path: Path, keep: int) -> None:
        path = make(LABELS, PARTS).save(tmp_path)
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(UserError, match=r"shards-.*is missing, damaged or no file of shards"):
            load(path)

    def test_something_else(self, tmp_path: Path) -> None:
        save_file({"weights": torch.zeros(2)}, tmp_path / "model.safetensors")
        for name in ("model.safetensors", "none.safetensors"):
            with pytest.raises(UserError, match=f"{name}' is missing, damaged or no file of shards"):
                load(tmp_path / name)

    def test_a_folder_must_hold_one(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="holds 0 files of shards"):
            load(tmp_path)
        make(LABELS, PARTS).save(tmp_path)
        make(LABELS, PARTS, 5).save(tmp_path)
        with pytest.raises(UserError, match="holds 2 files of shards"):
            load(tmp_path)


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(LABELS, PARTS).classes = 4  # type: ignore[misc]


def test_counts_agree_with_the_partition() -> None:
    labels = np.random.default_rng(1).integers(0, 5, 200)
    parts = partition(labels, 5, 8, "dirichlet", 1, alpha=0.5, min_size=1)
    shards: Shards = make(labels, parts, 5)
    rows = torch.stack([shards.shard(client, torch.empty(200)).counts for client in range(8)])
    assert rows.tolist() == counts(labels, parts, 5).tolist()
