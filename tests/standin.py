"""A device for tests: its tensors are computed on the CPU, and refuse to be mixed with tensors of the CPU.

So a forgotten `.to()` fails here as it would on a GPU. torch knows the device as `standin:0`. It must be registered
before the process computes its first gradient, so tests do it in processes of their own:

    python -m tests.standin methods fedavg fedlmd     # the digests on the CPU and on the device
    python -m tests.standin pool | late | fast | module
    python -m tests.standin full                      # with a network that is too large for the device
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.utils.backend_registration as registration
from torch import Tensor, nn
from torch.library import Library
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

from fedskew.config.schema import RunConfig
from fedskew.core import devices
from fedskew.core.errors import UserError
from fedskew.engines.pool import Pool
from fedskew.experiment import run as experiment
from fedskew.experiment.doctor import diagnose
from tests.contract import harness

NAME = "standin"
_MOVES = ("aten::_to_copy", "aten::copy_")
#: take positions from the CPU, too, as on a GPU
_INDEXED = ("aten::index", "aten::index_put_", "aten::_unsafe_index")


class StandIn(Tensor):
    """A tensor of the device; `raw` has its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> StandIn:
        layout = {"strides": raw.stride(), "storage_offset": raw.storage_offset(), "dtype": raw.dtype}
        made: StandIn = Tensor._make_wrapper_subclass(cls, raw.size(), device=torch.device(NAME, 0), **layout)
        made.raw = raw
        return made

    def __repr__(self, **_: Any) -> str:
        return f"StandIn({self.raw})"

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: StandIn) -> None:
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.raw = other.raw

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return _compute(func, *args, **(kwargs or {}))


def _compute(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute on the CPU what is asked of this device."""
    given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
    here = [t for t in given if isinstance(t, StandIn)]
    elsewhere = [t for t in given if not isinstance(t, StandIn) and t.dim()]  # numbers may come from the CPU
    if func._schema.name in _INDEXED and isinstance(args[0], StandIn):
        elsewhere = [t for t in elsewhere if all(t is not each for each in args[1])]
    if here and elsewhere and func._schema.name not in _MOVES:
        raise RuntimeError(f"{func}: expected all tensors on {NAME}, but some of {elsewhere[0].shape} are on the CPU")
    target = kwargs.get("device") or (args[0] if func._schema.name == "aten::copy_" else (here or given)[0]).device
    kwargs = {key: torch.device("cpu") if key == "device" else value for key, value in kwargs.items()}
    kwargs.pop("pin_memory", None)
    plain = tree_map(lambda value: value.raw if isinstance(value, StandIn) else value, (args, kwargs))
    out = func(*plain[0], **plain[1])
    if any(t.size() != t.raw.size() for t in here):
        raise NotImplementedError(f"{func} resized a tensor, which {NAME} cannot")
    if torch.device(target).type == devices.CPU:
        return out
    wrapped = tree_map(lambda value: StandIn(value) if isinstance(value, Tensor) else value, out)
    return (
        wrapped if func._schema.name == "aten::_to_copy" else return_and_correct_aliasing(func, args, kwargs, wrapped)
    )


def _arange(*ends: Any, dtype: Any = None, **_: Any) -> StandIn:
    return StandIn(torch.arange(*ends, dtype=dtype))


def _through_the_cpu(function: Any) -> Any:
    """Make tensors on the CPU first: a backend that is written in Python cannot."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        device = torch.device(NAME, 0) if args and isinstance(args[0], StandIn) and device is None else device
        if device is None or torch.device(device).type != NAME:
            return function(*args, device=device, **kwargs)  # type: ignore[no-any-return]
        first = args[0].raw if isinstance(args[0], StandIn) else args[0]
        return function(first, *args[1:], device="cpu", **kwargs).to(device)  # type: ignore[no-any-return]

    return made


class _Module(registration._DummyBackendModule):  # type: ignore[misc]
    """What torch asks a kind of device."""


class Backend:
    """What fedskew asks: there are two, and what was started is noted."""

    def __init__(self) -> None:
        self.started: list[tuple[str, bool]] = []

    def count(self) -> int:
        return 2

    def start(self, device: torch.device, deterministic: bool) -> None:
        self.started.append((str(device), deterministic))

    def pin(self, tensor: Tensor) -> Tensor:
        return tensor


def register() -> Backend:
    """Make the device known to torch, once in a process, and to fedskew."""
    if NAME not in devices.BACKENDS:
        registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
        register.library = Library("_", "IMPL")  # type: ignore[attr-defined]  # as long as it lives, so does the fallback
        register.library.fallback(_compute, "PrivateUse1")  # type: ignore[attr-defined]
        register.operators = Library("aten", "IMPL")  # type: ignore[attr-defined]
        for name in ("arange", "arange.start", "arange.start_step"):  # which torch makes by resizing
            register.operators.impl(name, _arange, "PrivateUse1")  # type: ignore[attr-defined]
        for name in ("tensor", "as_tensor"):
            setattr(torch, name, _through_the_cpu(getattr(torch, name)))
        Tensor.new_tensor = _through_the_cpu(Tensor.new_tensor)  # type: ignore[method-assign]
    made = Backend()
    devices.BACKENDS[NAME] = made  # type: ignore[assignment]
    return made


# ---- what tests run in a process of its own -------------------------------------------------------------------------


class Greedy(nn.Module):
    """A network that is too large for its device, wherever that is the stand-in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == NAME:
            raise torch.cuda.OutOfMemoryError("tried to allocate 20 GiB")
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def digest(wanted: RunConfig, module: nn.Module | None = None) -> str:
    inputs = replace(harness.inputs(), source=harness.digits(80), module=module)
    return str(experiment.run(wanted, inputs=inputs).end["weights_sha256"])


def refusal(wanted: RunConfig, module: nn.Module | None = None) -> str:
    try:
        digest(wanted, module)
    except UserError as refused:
        return str(refused)
    return "nothing was refused"


def methods(*named: str) -> dict[str, list[str]]:
    return {
        each: [
            digest(harness.config(each, device=device, engine="inline", local_epochs=1))
            for device in (devices.CPU, NAME)
        ]
        for each in named
    }


def pool(backend: Backend) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for workers in (None, 3):
        config = harness.config("fedlmd", device=NAME, workers=workers, engine="pool")
        context, _ = harness.site_of(config)
        made = Pool(context, harness.store(), workers, devices.named(NAME))
        found[str(workers)] = [worker.place.device for worker in made._workers]
        made.close()
        found[f"{workers} digest"] = digest(config)
    found["started here"] = backend.started
    return found | {"cpu digest": digest(harness.config("fedlmd", engine="inline"))}


def late() -> str:
    torch.ones((), requires_grad=True).exp().backward()
    return refusal(harness.config("fedavg", workers=1, engine="pool"))


def full() -> list[str]:
    """Four workers, one, and this process itself."""
    places = ({"workers": 4, "engine": "pool"}, {"workers": 1, "engine": "pool"}, {"engine": "inline"})
    return [refusal(harness.config(device=f"{NAME}:0", **each), Greedy()) for each in places]


def fast(backend: Backend) -> list[tuple[str, bool]]:
    for each in (False, True):
        digest(harness.config(device=f"{NAME}:0", engine="inline", fast=each, rounds=1))
    return backend.started


def foreign() -> list[str]:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 10))
    return [digest(harness.config(device=each, engine="inline"), module) for each in (devices.CPU, NAME)]


if __name__ == "__main__":
    os.environ["FEDSKEW_SECRET"] = "of the stand-in"
    torch.set_num_threads(1)
    wanted, *words = sys.argv[1:]
    backend = register()
    doings = {
        "methods": lambda: methods(*words), "pool": lambda: pool(backend), "late": late, "full": full,
        "fast": lambda: fast(backend), "module": foreign, "doctor": lambda: asdict(diagnose()),
    }  # fmt: skip
    print(json.dumps(doings[wanted]()))
