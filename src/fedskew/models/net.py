"""Use a module as a function of its weights: live with gradients, or frozen without."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedskew.core.types import Output, Statistics, Tree
from fedskew.models import selector
from fedskew.models.registry import Adapted


class _Slots:
    """One module whose parameters and buffers can be pointed at the tensors of a tree, without copying."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = dict(module.named_parameters())
        self.free = {name for name, parameter in self.parameters.items() if parameter.requires_grad}
        self.buffers: dict[str, tuple[nn.Module, str]] = {}
        persistent = set(module.state_dict())
        for prefix, owner in module.named_modules():
            for key in owner._buffers:
                name = f"{prefix}.{key}" if prefix else key
                if name in persistent:
                    self.buffers[name] = (owner, key)

    def point_at(self, weights: Tree) -> None:
        for name, parameter in self.parameters.items():
            parameter.data = weights[name]
        self.point_buffers_at(weights)

    def point_buffers_at(self, weights: Tree) -> None:
        for name, (owner, key) in self.buffers.items():
            owner._buffers[key] = weights[name]


#: suffix of the names that batch norm gives its variances
VARIANCE = "running_var"


class Net:
    """The network of a run on one worker: a live module that is trained, and a frozen twin for teachers."""

    def __init__(self, module: nn.Module, device: str = "cpu", precision: str = "float32") -> None:
        self.device = torch.device(device)
        self._live = _Slots(module.to(self.device))
        self._twin: _Slots | None = None
        self._twin_at: tuple[Tree | None, Statistics] = (None, "running")
        self._train = "?"
        self._bf16 = precision == "bf16"
        # the layout that processors with bf16 convolve in, a third quicker; a user's own module may count on the usual
        self._channels_last = self._bf16 and not any(isinstance(m, Adapted) for m in module.modules())
        self.head = str(getattr(module, "head_name", "head"))
        self.parameters = tuple(self._live.parameters)
        self.buffers = tuple(self._live.buffers)
        #: other names of tensors that two layers share
        self.tied = frozenset(module.state_dict()) - {*self.parameters, *self.buffers}
        norms = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, _BatchNorm))
        self.has_batch_norm = bool(norms)
        #: the kinds of a selector, as the beginnings of names
        self._kinds = {
            "": ("",),
            "all": ("",),
            "batchnorm": norms,
            "head": (f"{self.head}.",),
            "adapters": ("*.lora_down", "*.lora_up"),
        }
        self._trainable: dict[str, tuple[str, ...]] = {}

    def initial(self) -> Tree:
        """Return the weights that the module was built with: parameters first, then buffers."""
        module = self._live.module.state_dict()
        return {name: module[name].detach().clone() for name in (*self.parameters, *self.buffers)}

    def trainable(self, train: str = "") -> tuple[str, ...]:
        """Return the names of the parameters that the selector `train` names and that were not built frozen."""
        if train not in self._trainable:
            named = (name for name in self.parameters if self._named(train, name))
            self._trainable[train] = tuple(name for name in named if name in self._live.free)
        return self._trainable[train]

    def select(self, what: str) -> frozenset[str]:
        """Return the parameters and buffers that a selector names (`selector.py`)."""
        return frozenset(name for name in (*self.parameters, *self.buffers) if self._named(what, name))

    def _named(self, what: str, name: str) -> bool:
        return selector.names(what, name, self._kinds)

    def prepare(self, weights: Tree, train: str = "") -> Tree:
        """Point the live module at `weights`, with `train` in training mode; return the parameters to train."""
        if train != self._train:
            self._train, trained = train, set(self.trainable(train))
            self._live.module.eval()
            modules = self._live.module.named_modules()
            inside = {name: module for name, module in modules if self._named(train, f"{name}." if name else "")}
            for name, module in inside.items():
                if not name or name.rpartition(".")[0] not in inside:  # a module may leave its layers as they are
                    module.train()
            for name, parameter in self._live.parameters.items():
                parameter.requires_grad_(name in trained)
        self._live.point_at(weights)
        return {name: self._live.parameters[name] for name in self.trainable(train)}

    def live(self, x: Tensor) -> Output:
        """Run the live module; gradients flow to its trained parameters."""
        return self._forward(self._live.module, x)

    def move(self, weights: Tree) -> None:
        """Point the live parameters, but not the buffers, at other values, to take a gradient elsewhere."""
        for name, tensor in weights.items():
            self._live.parameters[name].data = tensor

    def written(self) -> Tree:
        """Return the current buffers of the live module; one that it reassigned is another tensor."""
        return {name: owner._buffers[key].detach() for name, (owner, key) in self._live.buffers.items()}  # type: ignore[union-attr]

    @contextmanager
    def borrowed_statistics(self) -> Iterator[None]:
        """Let batch norm write its running statistics into copies."""
        before = self.written()
        self._live.point_buffers_at({name: buffer.clone() for name, buffer in before.items()})
        yield
        self._live.point_buffers_at(before)

    def frozen(self, weights: Tree, x: Tensor, statistics: Statistics = "running") -> Output:
        """Run the network at `weights` without gradients; `statistics` is what batch norm uses. Nothing is written."""
        twin = self._twin_pointed_at(weights, statistics)
        with torch.no_grad():
            return self._forward(twin.module, x)

    def gradient(self, weights: Tree, x: Tensor, y: Tensor, train: str = "") -> Tree:
        """Return the gradient of the cross-entropy at `weights` in the sub-tree `train`, in evaluation mode."""
        twin = self._twin_pointed_at(weights, "running")
        parameters = {name: twin.parameters[name].requires_grad_() for name in self.trainable(train)}
        loss = F.cross_entropy(self._forward(twin.module, x).logits, y)
        grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(parameters, grads, strict=True))

    def _twin_pointed_at(self, weights: Tree, statistics: Statistics) -> _Slots:
        if self._twin is None:
            self._twin = _Slots(copy.deepcopy(self._live.module).eval())
        twin = self._twin
        if self._twin_at[0] is not weights or self._twin_at[1] != statistics or statistics == "batch":
            self._twin_at = (weights, statistics)
            twin.point_at(weights)
            for module in twin.module.modules():
                if isinstance(module, _BatchNorm):
                    module.training = statistics == "batch"
            if statistics == "batch":
                twin.point_buffers_at({name: weights[name].clone() for name in twin.buffers})
        return twin

    def _forward(self, module: nn.Module, x: Tensor) -> Output:
        if self._channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        autocast: Any = torch.autocast(self.device.type, torch.bfloat16) if self._bf16 else nullcontext()
        with autocast:
            logits, features = module.forward_with_features(x)  # type: ignore[operator]
        return Output(logits.float(), features.float())
