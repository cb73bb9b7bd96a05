"""Devices, with a stand-in for GPUs: nothing here has run on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew import UserError
from fedskew.core import devices
from fedskew.engines.pool import CANNOT_FORK
from fedskew.methods import registry
from tests.contract.methods import COMBINATIONS, SMALL

ROOT = Path(__file__).parents[2]
KNOWN = [SMALL.get(name, name) for name in registry.known()]
GROUPS = [KNOWN[start::3] for start in range(3)]


class Pair:
    """What a kind of device with two devices says; torch does not know it."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def count(self) -> int:
        return 2

    def start(self, device: torch.device, deterministic: bool) -> None:
        self.started.append(str(device))

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair()
    monkeypatch.setitem(devices.BACKENDS, "npu", made)
    yield made


def on_the_stand_in(*words: str) -> Any:
    """Run a function of tests/standin.py in a process of its own."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "tests.standin", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("cpu", ("cpu",)),
        ("cpu:0", ("cpu",)),
        ("npu", ("npu:0", "npu:1")),
        ("npu:1", ("npu:1",)),
        ("npu:1,0,1", ("npu:1", "npu:0")),
    ],
)
def test_a_name_means_one_or_several_devices(wanted: str, found: tuple[str, ...], pair: Pair) -> None:
    assert devices.named(wanted) == found
    assert pair.started == [], "a process that starts a GPU must not fork"


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ("toaster", "device 'toaster' is unknown. Known: cpu, cuda, mps, npu."),
        ("cdua", "device 'cdua' is unknown. Did you mean 'cuda'?"),
        ("npu:2", "device 'npu:2' is not here: there are 2, from 0. Type --device npu."),
        ("npu:0;1", "device 'npu:0;1' is not a device. Type --device npu, or npu:0,1 for some of them."),
    ],
)
def test_a_device_that_is_not_here_is_one_sentence(wanted: str, complaint: str, pair: Pair) -> None:
    with pytest.raises(UserError) as refused:
        devices.named(wanted)
    assert str(refused.value) == complaint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_cuda_is_refused() -> None:
    with pytest.raises(UserError, match=r"device 'cuda' is not here: torch .* sees none\. Type --device cpu\."):
        devices.named("cuda")


def test_workers_take_the_devices_in_turn(pair: Pair) -> None:
    found = devices.named("npu")
    assert [devices.of_worker(found, worker) for worker in range(5)] == [f"npu:{n}" for n in (0, 1, 0, 1, 0)]


@pytest.mark.parametrize("methods", GROUPS, ids=lambda group: group[0])
def test_every_method_gives_the_same_bits_on_a_device(methods: list[str]) -> None:
    """The stand-in computes on the CPU, and refuses what was left there."""
    found = on_the_stand_in("methods", *methods)
    assert list(found) == methods
    assert {method: here == there for method, (here, there) in found.items()} == dict.fromkeys(methods, True)


@pytest.mark.slow
@pytest.mark.parametrize("methods", [COMBINATIONS[start::4] for start in range(4)], ids=lambda group: group[0])
def test_every_combination_gives_the_same_bits_on_a_device(methods: list[str]) -> None:
    assert all(here == there for here, there in on_the_stand_in("methods", *methods).values())


def test_a_pool_has_a_worker_for_each_device_by_default() -> None:
    found = on_the_stand_in("pool")
    assert found["None"] == ["standin:0", "standin:1"] and found["3"] == ["standin:0", "standin:1", "standin:0"]
    assert found["None digest"] == found["3 digest"] == found["cpu digest"]
    assert found["started here"] == [], "a process that starts a GPU must not fork"


def test_gradients_before_the_workers_are_one_sentence() -> None:
    """torch refuses gradients in a process that was forked after its first ones, where it sees a GPU."""
    assert on_the_stand_in("late") == CANNOT_FORK


def test_a_full_memory_is_one_sentence() -> None:
    fixes = ["Type --workers 2, or a smaller --batch-size.", *["Type a smaller --batch-size."] * 2]
    assert on_the_stand_in("full") == [f"the memory of device 'standin:0' is full. {fix}" for fix in fixes]


def test_fast_gives_up_algorithms_that_repeat() -> None:
    assert on_the_stand_in("fast") == [["standin:0", True], ["standin:0", False]]


def test_a_foreign_network_with_dropout_runs_on_the_device() -> None:
    here, there = on_the_stand_in("module")
    assert here == there


def test_the_doctor_trains_on_each_device() -> None:
    found = on_the_stand_in("doctor")["devices"]
    assert [(each["device"], each["same_bits"], each["error"]) for each in found] == [
        (device, True, None) for device in ("cpu", "standin:0", "standin:1")
    ]


def test_cuda_repeats_its_bits_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided for a GPU, as far as it can be seen without one."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        devices.start("cuda:1")
        assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
        assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
        devices.start("cuda:0", deterministic=False)
        assert not torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.benchmark
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    finally:
        torch.use_deterministic_algorithms(False)
    assert chosen == [torch.device("cuda:1"), torch.device("cuda:0")]


@pytest.mark.parametrize(("flags", "has"), [("fpu avx512_bf16 sse", True), ("fpu avx2 sse", False), (None, None)])
def test_the_processor_says_whether_it_has_bf16(flags: str | None, has: bool | None, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(f"processor : 0\nflags : {flags}\n")
    assert devices.has_bf16(file) is has
