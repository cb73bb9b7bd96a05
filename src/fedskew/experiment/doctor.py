"""What fedskew finds on this machine, and whether each device can train: the same bits twice."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import dataclass

import torch
from joblib import cpu_count

from fedskew.core import devices, tree
from fedskew.core.types import Spec
from fedskew.models import registry
from fedskew.models.net import Net
from fedskew.runtime.context import one_thread

#: the extras of pyproject.toml, each with a package that it brings
EXTRAS = {
    **{"flower": "flwr", "ray": "ray", "privacy": "dp-accounting", "track": "tensorboard", "data": "h5py"},
    **{"pandas": "pandas", "onnx": "onnx"},
}


@dataclass(frozen=True)
class DeviceCheck:
    """One training step on a device, twice; `error` says why there was none."""

    device: str
    name: str
    seconds: float | None = None
    same_bits: bool | None = None
    error: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What there is here."""

    versions: dict[str, str]
    processor: str
    cores: int
    bf16: bool | None
    extras: dict[str, bool]
    data_folder: str | None
    devices: list[DeviceCheck]

    @property
    def well(self) -> bool:
        return all(each.error is None and each.same_bits for each in self.devices)


def diagnose() -> Diagnosis:
    """Look at this machine, and train one step on each device."""
    found = [name for kind, backend in devices.BACKENDS.items() if backend.count() for name in devices.named(kind)]
    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    versions |= {name: importlib.metadata.version(name) for name in ("numpy", "scikit-learn")}
    return Diagnosis(
        versions,
        torch.backends.cpu.get_cpu_capability(),
        cpu_count(),
        devices.has_bf16(),
        {extra: _installed(package) for extra, package in EXTRAS.items()},
        os.environ.get("FEDSKEW_DATA"),
        [check(device) for device in found],
    )


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check(device: str) -> DeviceCheck:
    """Train a step on a device, twice."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    try:
        with one_thread():
            devices.start(device)
            (first, _), (second, seconds) = _step(device), _step(device)
    except Exception as error:  # whatever a driver says
        return DeviceCheck(device, name, error=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return DeviceCheck(device, name, seconds, first == second)


def _step(device: str) -> tuple[str, float]:
    """Return the digest of the gradient of a small convolutional network, and how long it took."""
    torch.manual_seed(0)
    net = Net(registry.build(Spec("cnn2", {}), 10, (3, 32, 32), seed=0), device)
    x = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    began = time.perf_counter()
    live = net.prepare({key: devices.put(t, device) for key, t in net.initial().items()})
    loss = net.live(devices.put(x, device)).logits.logsumexp(1).mean()
    gradient = torch.autograd.grad(loss, list(live.values()))
    digest = tree.digest({key: devices.put(t, devices.CPU) for key, t in zip(live, gradient, strict=True)})
    return digest, time.perf_counter() - began
