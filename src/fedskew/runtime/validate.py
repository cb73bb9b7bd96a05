"""Checks of the updates that arrive from other machines: nothing may be missing, extra, misshapen or absurd.

The server finds out itself what an update looks like: it does the client's work for one step on made-up samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from fedskew.core import codec, seeds, tree
from fedskew.core.errors import InvalidData, UserError
from fedskew.core.types import Broadcast, ClientState, Tree, Update
from fedskew.data.shards import Shards
from fedskew.models.net import VARIANCE
from fedskew.parts.part import Part, check_extras
from fedskew.parts.protocol import Effort
from fedskew.parts.stages import Plan
from fedskew.runtime.client import local_training, steps_of, visit
from fedskew.runtime.context import RunContext

#: the smallest number of replies whose median is used
ENOUGH = 3
#: floats count exactly up to the first; no client makes as many steps in a round as the second
MOST = {"examples": 2**53, "steps": 2**24}
#: metrics of an update that must be finite
MEASURES = ("loss", "drift")
#: a counter may grow by this much in a round, and so not wrap around within a billion rounds
GROWTH = 2**32


def trees(update: Update) -> dict[str, Tree]:
    """Return all trees of an update by their place."""
    return {"weights": update.weights, "buffers": update.buffers, **update.extras}


def check_finite(plan: Plan, sent: Broadcast, update: Update) -> None:
    """Refuse an update with a number that is not finite, unless it was sent so (a mask) or its part allows NaN."""
    every = trees(update)
    for name in MEASURES:
        if not math.isfinite(update.metrics.get(name, 0.0)):
            raise InvalidData(f"its metric '{name}' is not finite")
    if all(map(tree.finite, every.values())):
        return
    stage = plan.stage(sent.round)
    allows_nan = {part.name: part.allows_nan for part in (*stage.parts, *stage.setups)}
    for place, each in every.items():
        same = sent.weights if place in ("weights", "buffers") else {}
        for name, t in each.items():
            good = t.isfinite() | unchanged(t, same.get(name))
            if not (good | t.isnan() if name in allows_nan.get(place, ()) else good).all():
                raise InvalidData(f"tensor '{name}' of its {place} has a number that is not finite")


def unchanged(t: Tensor, before: Tensor | None) -> Tensor:
    """Return where a tensor equals its value before, if there was one."""
    if before is None or before.shape != t.shape:
        return torch.zeros_like(t, dtype=torch.bool)
    return (t == before) | (t.isnan() & before.isnan())


def stand_in(context: RunContext) -> RunContext:
    """Return the same work for one client with two made-up samples of each class, and for one step."""
    task, plan = context.plan.task, context.plan
    y = torch.arange(2 * task.classes) % task.classes
    x = torch.rand(len(y), *task.shape, generator=seeds.generator(0, "stand-in"))
    if not context.x.is_floating_point():  # every vocabulary has at least two tokens
        x = (x * (255 if context.x.dtype == torch.uint8 else 2)).to(context.x.dtype)
    one_step = Effort(epochs=1, steps=1, batch_size=len(y), drop_last=False)
    stages = tuple(replace(stage, effort=one_step) for stage in plan.method.stages)
    shards = Shards(torch.arange(len(y)), y, torch.tensor([0, len(y)]), task.classes)
    return replace(context, plan=replace(plan, method=replace(plan.method, stages=stages)), x=x, shards=shards)


class UpdateValidator:
    """Filters the replies to one turn. A norm above `max_norm` times the median is too large.

    The stand-in client writes its state to the file `memory`, since a setup may ask what clients did before.
    """

    def __init__(self, context: RunContext, max_norm: float, memory: Path | None = None) -> None:
        self.plan, self.context, self.max_norm, self.memory = context.plan, stand_in(context), max_norm, memory
        self._models: dict[str, Update] = {}
        self._state: ClientState = codec.load(memory) if memory is not None and memory.exists() else ClientState()

    def filter(
        self, sent: Mapping[int, Broadcast], replies: Mapping[int, Any]
    ) -> tuple[dict[int, Update], dict[int, str]]:
        """Return the replies that pass, and for each other one the reason."""
        good: dict[int, Update] = {}
        refused: dict[int, str] = {}
        for client, reply in replies.items():
            model = self._model(sent[client])
            try:
                self._check(sent[client], reply, model)
                good[client] = reply
            except UserError as reason:
                refused[client] = f"refused: {reason}"
            except Exception as error:  # another machine made it, so any error is possible
                refused[client] = f"refused: it cannot be checked: {type(error).__name__}"
        norms = {client: _norms(sent[client], update) for client, update in good.items()}
        for place in sorted({place for each in norms.values() for place in each}):
            found = {client: each[place] for client, each in norms.items() if place in each}
            usual = _usual(list(found.values()))
            if place == "weights":
                usual = usual or float(tree.norm(sent[min(found)].weights)) or None
            for client, norm in found.items():
                if usual is not None and norm > self.max_norm * usual and client in good:
                    del good[client]
                    refused[client] = f"refused: the norm of its {place} is {norm:.3g}, but {usual:.3g} is usual"
        return good, refused

    def _check(self, sent: Broadcast, reply: Any, model: Update) -> None:
        _check_types(sent, reply)
        if sent.setup is None and not reply.steps:  # it is not used
            return
        if reply.extras.keys() != model.extras.keys():
            raise InvalidData(f"it has extras of {sorted(reply.extras)}, but must have those of {sorted(model.extras)}")
        if not reply.examples and not any(trees(reply).values()):
            return
        found, wanted = trees(reply), trees(model)
        stage = self.plan.stage(sent.round)
        parts = {part.name: part for part in (*stage.parts, *stage.setups)}
        for place in sorted(found.keys() | wanted.keys()):
            _check_names(place, found.get(place, {}), wanted.get(place, {}))
            _check_tree(place, found.get(place, {}), wanted.get(place, {}), parts.get(place, Part()))
        _check_metrics(reply.metrics, model.metrics)
        check_finite(self.plan, sent, reply)
        _check_buffers(reply.buffers, sent.weights)
        self._check_steps(sent, reply)
        training = local_training(stage, sent.round, reply.weights, reply.steps)
        for name in reply.extras:
            check_extras(parts[name], reply, training)

    def _check_steps(self, sent: Broadcast, reply: Update) -> None:
        stage, batch_norm = self.plan.stage(sent.round), self.context.net(sent.spec).has_batch_norm
        right = steps_of(reply.examples, stage, batch_norm) if sent.setup is None else 0
        if reply.steps != right:
            raise InvalidData(f"it made {reply.steps} steps, but {reply.examples} examples make {right}")

    def _model(self, sent: Broadcast) -> Update:
        """Return what an update to this broadcast looks like."""
        shape = {name: sorted(each) for name, each in sent.extras.items()}
        key = json.dumps([sent.round.stage, sent.setup, sent.score, sent.spec.name, sent.spec.args, shape])
        if key not in self._models:
            seen = -1 if self._state.pending is None else self._state.pending[0]
            self._models[key], self._state = visit(self.context, replace(sent, client=0, seen=seen), self._state)
            if self.memory is not None:
                codec.save(self._state, self.memory)
        return self._models[key]


def _check_types(sent: Broadcast, reply: Any) -> None:
    if not isinstance(reply, Update):
        raise InvalidData(f"it is a {type(reply).__name__} and no update")
    if type(reply.client) is not int or reply.client != sent.client:
        raise InvalidData(f"it claims to be from client {reply.client!r}, but client {sent.client} was asked")
    for name in ("examples", "steps"):
        value = getattr(reply, name)
        if type(value) is not int or not 0 <= value <= MOST[name]:
            raise InvalidData(f"its {name} are {value!r:.40}, but must be an integer from 0 to {MOST[name]}")
    if reply.steps and not reply.examples:
        raise InvalidData(f"it made {reply.steps} steps without an example")
    if type(reply.metrics) is not dict or type(reply.extras) is not dict:
        raise InvalidData("its extras or metrics are no dictionary")
    for place, each in trees(reply).items():
        if type(each) is not dict or not all(map(_is_dense, each.values())):
            raise InvalidData(f"its {place} are no dictionary of dense tensors")
    named: list[dict[Any, Any]] = [reply.extras, reply.metrics, *trees(reply).values()]
    for key in (key for each in named for key in each):
        if type(key) is not str:
            raise InvalidData(f"it has the name {key!r:.40}, but names must be strings")


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _check_names(place: str, given: Tree, wanted: Tree) -> None:
    for name in sorted(wanted.keys() - given.keys()):
        raise InvalidData(f"tensor '{name}' of its {place} is missing")
    for name in sorted(given.keys() - wanted.keys()):
        raise InvalidData(f"tensor '{name}' of its {place} is unknown")


def _check_tree(place: str, given: Tree, wanted: Tree, part: Part) -> None:
    rows = set()
    for name, t in given.items():
        model, where = wanted[name], f"tensor '{name}' of its {place}"
        shape, right = tuple(t.shape), tuple(model.shape)
        if name in part.variable_rows and shape and len(shape) == len(right):
            rows.add(shape[0])
            if shape[0] <= right[0]:  # the stand-in client has every class
                right = (shape[0], *right[1:])
        if (shape, t.dtype) != (right, model.dtype):
            raise InvalidData(f"{where} is {t.dtype} {list(shape)}, but must be {model.dtype} {list(right)}")
        if name in part.variable_rows and not t.is_floating_point() and not _names_classes(t, len(model)):
            raise InvalidData(f"{where} must list classes below {len(model)} in ascending order")
    if len(rows) > 1:
        raise InvalidData(f"tensors of its {place} have {sorted(rows)} rows, but must have equally many")


def _check_buffers(given: Tree, sent: Tree) -> None:
    for name, t in given.items():
        where = f"tensor '{name}' of its buffers"
        if name.endswith(VARIANCE) and (t < 0).any():
            raise InvalidData(f"{where} is a variance below 0")
        if not t.is_floating_point():
            now, before = t.long(), sent[name].long()
            if (now < before.clamp(max=0)).any() or (now > before + GROWTH).any():
                raise InvalidData(f"{where} is a counter that fell below 0 or grew by more than {GROWTH}")


def _names_classes(t: Tensor, classes: int) -> bool:
    return not len(t) or bool((t.diff() > 0).all() and t[0] >= 0 and t[-1] < classes)


def _check_metrics(given: dict[str, Any], wanted: dict[str, float]) -> None:
    for name, value in given.items():
        if type(value) is not float or not (name in wanted or name.startswith("accuracy_")):
            raise InvalidData(f"its metrics have {name!r}: {value!r}, which was not asked for")
    for name in MEASURES:
        if name in wanted and name not in given:
            raise InvalidData(f"its metric '{name}' is missing")


def _usual(norms: list[float]) -> float | None:
    """Return the lower median; if most norms are 0, that of the others. None: there are too few."""
    others = [norm for norm in norms if norm]
    if len(norms) < ENOUGH:
        return None
    return median_low(norms) or (median_low(others) if len(others) >= ENOUGH else 0.0)


def _norms(sent: Broadcast, update: Update) -> dict[str, float]:
    """Return the norms of the weights' change, the buffers and the extras; a part checks its integers itself."""
    if sent.setup is None and not update.steps:
        return {}
    found = {
        place: {name: t for name, t in each.items() if t.is_floating_point()} for place, each in update.extras.items()
    }
    # without counters, which grow with samples; what is not finite is as it was sent
    found["buffers"] = {n: t.where(t.isfinite(), 0) for n, t in update.buffers.items() if t.is_floating_point()}
    if update.weights:
        found["weights"] = tree.sub(update.weights, sent.weights)
    flat = {place: {name: t.nan_to_num() for name, t in each.items()} for place, each in found.items() if each}
    return {place: float(tree.norm(each)) for place, each in flat.items()}
