"""Every decision about devices: which there are, which worker uses which, how tensors get there.

A run's device is a name of torch, or several: `cpu`, `cuda` (all that are visible), `cuda:1`, `cuda:0,2`, `mps`.
Workers are forked, and a process that has started CUDA must not fork. So nothing here starts a device but `start`.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedskew.core.errors import UserError, did_you_mean

CPU = "cpu"


class Backend(Protocol):
    """One kind of device. Tests register another one, whose tensors are on the CPU but refuse those of the CPU."""

    def count(self) -> int:
        """Return how many there are, without starting any."""

    def start(self, device: torch.device, deterministic: bool) -> None:
        """Prepare this process to compute on a device."""

    def pin(self, tensor: Tensor) -> Tensor:
        """Return the tensor in memory from which it travels fastest."""


class _Cpu:
    def count(self) -> int:
        return 1

    def start(self, device: torch.device, deterministic: bool) -> None:
        pass

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor


class _Cuda(_Cpu):
    def count(self) -> int:
        return torch.cuda.device_count()  # asks the driver; starts nothing

    def start(self, device: torch.device, deterministic: bool) -> None:
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.benchmark = not deterministic
        torch.cuda.set_device(device)

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()


class _Mps(_Cpu):
    def count(self) -> int:
        return int(torch.backends.mps.is_available())


BACKENDS: dict[str, Backend] = {CPU: _Cpu(), "cuda": _Cuda(), "mps": _Mps()}


def named(wanted: str) -> tuple[str, ...]:
    """Return the devices that a name means.

    Raises:
        UserError: If there is no such device here.
    """
    match = re.fullmatch(r"(\w+)(?::(\d+(?:,\d+)*))?", wanted)
    kind = match[1] if match else wanted.partition(":")[0]
    if kind not in BACKENDS:
        raise UserError(f"device '{wanted}' is unknown{did_you_mean(kind, BACKENDS)}")
    if match is None:
        raise UserError(f"device '{wanted}' is not a device. Type --device {kind}, or {kind}:0,1 for some of them.")
    there = BACKENDS[kind].count()
    if kind == CPU:
        return (CPU,)
    if not there:
        raise UserError(f"device '{wanted}' is not here: torch {torch.__version__} sees none. Type --device cpu.")
    numbers = [int(number) for number in match[2].split(",")] if match[2] else list(range(there))
    if missing := [number for number in numbers if number >= there]:
        raise UserError(f"device '{kind}:{missing[0]}' is not here: there are {there}, from 0. Type --device {kind}.")
    return tuple(f"{kind}:{number}" for number in dict.fromkeys(numbers))


def of_worker(devices: tuple[str, ...], worker: int) -> str:
    """Return the device of a worker: workers take the devices in turn."""
    return devices[worker % len(devices)]


def start(device: str, deterministic: bool = True) -> None:
    """Prepare this process to compute on a device, with algorithms that give the same bits if there are such."""
    _backend(device).start(torch.device(device), deterministic)


def put(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Return the tensor on a device; the copy need not have arrived when this returns."""
    device = torch.device(device)
    if tensor.device == device:
        return tensor
    if tensor.device.type == CPU:
        tensor = _backend(device).pin(tensor)
    return tensor.to(device, non_blocking=device.type != CPU)


def rows(x: Tensor, index: Tensor, device: str | torch.device) -> Tensor:
    """Return these rows on a device; they are taken where `x` is."""
    return put(x.index_select(0, put(index, x.device)), device)


def seed(device: torch.device, number: int) -> None:
    """Seed what torch itself draws from, such as dropout, on the CPU and on this device."""
    torch.default_generator.manual_seed(number) if device.type == CPU else torch.manual_seed(number)


@contextmanager
def memory(device: str, workers: int) -> Iterator[None]:
    """Say what to do if the device's memory is full."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        fewer = f"--workers {workers // 2}, or " if workers > 1 else ""
        raise UserError(f"the memory of device '{device}' is full. Type {fewer}a smaller --batch-size.") from error


def has_bf16(flags: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Return whether this processor has instructions for bfloat16; None if it cannot be known."""
    if platform.machine() not in ("x86_64", "AMD64", "aarch64") or not flags.exists():
        return None
    words = set(flags.read_text(encoding="utf-8").split())
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})


def _backend(device: str | torch.device, known: Mapping[str, Backend] = BACKENDS) -> Backend:
    return known[torch.device(device).type]
