"""Updates from afar are believed only if they look as they must; what is missing, extra, misshapen or absurd is not.

What an update must look like is found out, not written down: the server does the client's work itself, for one step on
made-up samples.
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

from fedskew import codec, seeds, tree
from fedskew.data.shards import Shards
from fedskew.errors import UserError
from fedskew.parts import protocol
from fedskew.parts.privacy import VARIANCE
from fedskew.parts.protocol import Effort, Part
from fedskew.parts.stages import Plan
from fedskew.types import Broadcast, Keep, Tree, Update
from fedskew.work.client import amount, steps_of, visit
from fedskew.work.site import Site

#: from so many replies on, their median is worth something
ENOUGH = 3
#: up to which a float counts exactly, and more steps than anybody makes in a round
MOST = {"examples": 2**53, "steps": 2**24}
#: numbers about an update that must be finite
MEASURES = ("loss", "drift")
#: by which a counter may grow in a round, so that it does not wrap around within a billion of them
GROWTH = 2**32


def trees(update: Update) -> dict[str, Tree]:
    """All that an update holds, by where it is for."""
    return {"weights": update.weights, "buffers": update.buffers, **update.extras}


def check_finite(plan: Plan, sent: Broadcast, update: Update) -> None:
    """Refuse an update with a number that is not finite, unless it was sent so, such as a mask, or may be a gap."""
    every = trees(update)
    for name in MEASURES:
        if not math.isfinite(update.metrics.get(name, 0.0)):
            raise UserError(f"its metric '{name}' is not finite")
    if all(map(tree.finite, every.values())):
        return
    stage = plan.stage(sent.round)
    gaps = {part.name: part.gaps for part in (*stage.parts, *stage.entries)}
    for place, each in every.items():
        same = sent.weights if place in ("weights", "buffers") else {}
        for name, t in each.items():
            good = t.isfinite() | unchanged(t, same.get(name))
            if not (good | t.isnan() if name in gaps.get(place, ()) else good).all():
                raise UserError(f"tensor '{name}' of its {place} holds a number that is not finite")


def unchanged(t: Tensor, before: Tensor | None) -> Tensor:
    """Where a tensor is as it was before, if it was there."""
    if before is None or before.shape != t.shape:
        return torch.zeros_like(t, dtype=torch.bool)
    return (t == before) | (t.isnan() & before.isnan())


def stand_in(site: Site) -> Site:
    """The same work for one client with two made-up samples of each class, and one step of it."""
    task, plan = site.plan.task, site.plan
    y = torch.arange(2 * task.classes) % task.classes
    draw = torch.rand(len(y), *task.shape, generator=seeds.generator(0, "stand-in"))
    # Two tokens are known to every vocabulary.
    x = draw if site.x.is_floating_point() else (draw * (255 if site.x.dtype == torch.uint8 else 2)).to(site.x.dtype)
    one_step = Effort(epochs=1, steps=1, batch=len(y), drop_last=False)
    stages = tuple(replace(stage, effort=one_step) for stage in plan.method.stages)
    shards = Shards(torch.arange(len(y)), y, torch.tensor([0, len(y)]), task.classes)
    return replace(site, plan=replace(plan, method=replace(plan.method, stages=stages)), x=x, shards=shards)


class Inspector:
    """Sifts the replies to one turn. `max_norm` times the median of the norms is too much.

    The stand-in remembers what it did, in the file `memory`, for an entry may ask about what clients did before.
    """

    def __init__(self, site: Site, max_norm: float, memory: Path | None = None) -> None:
        self.plan, self.site, self.max_norm, self.memory = site.plan, stand_in(site), max_norm, memory
        self._models: dict[str, Update] = {}
        self._keep: Keep = codec.load(memory) if memory is not None and memory.exists() else Keep()

    def sift(
        self, sent: Mapping[int, Broadcast], replies: Mapping[int, Any]
    ) -> tuple[dict[int, Update], dict[int, str]]:
        """Those replies that may be believed, and for each other one the reason."""
        good: dict[int, Update] = {}
        refused: dict[int, str] = {}
        for client, reply in replies.items():
            model = self._model(sent[client])
            try:
                self._check(sent[client], reply, model)
                good[client] = reply
            except UserError as reason:
                refused[client] = f"refused: {reason}"
            except Exception as error:  # made by a stranger, it may fail in any way
                refused[client] = f"refused: it cannot be looked at: {type(error).__name__}"
        norms = {client: _norms(sent[client], update) for client, update in good.items()}
        for place in sorted({place for each in norms.values() for place in each}):
            found = {client: each[place] for client, each in norms.items() if place in each}
            usual = _usual(list(found.values()))
            if place == "weights":
                usual = usual or float(tree.norm(sent[min(found)].weights)) or None
            for client, norm in found.items():
                if usual is not None and norm > self.max_norm * usual and client in good:
                    del good[client]
                    refused[client] = f"refused: the norm of its {place} is {norm:.3g}, and {usual:.3g} is usual"
        return good, refused

    def _check(self, sent: Broadcast, reply: Any, model: Update) -> None:
        _check_types(sent, reply)
        if sent.entry is None and not reply.steps:  # nobody will look at it
            return
        if reply.extras.keys() != model.extras.keys():
            raise UserError(f"it speaks for {sorted(reply.extras)}, and must for {sorted(model.extras)}")
        if not reply.examples and not any(trees(reply).values()):
            return
        given, wanted = trees(reply), trees(model)
        stage = self.plan.stage(sent.round)
        parts = {part.name: part for part in (*stage.parts, *stage.entries)}
        for place in sorted(given.keys() | wanted.keys()):
            _check_names(place, given.get(place, {}), wanted.get(place, {}))
            _check_tree(place, given.get(place, {}), wanted.get(place, {}), parts.get(place, Part()))
        _check_metrics(reply.metrics, model.metrics)
        check_finite(self.plan, sent, reply)
        _check_buffers(reply.buffers, sent.weights)
        self._check_steps(sent, reply)
        run = amount(stage, sent.round, reply.weights, reply.steps)
        for name in reply.extras:
            protocol.check(parts[name], reply, run)

    def _check_steps(self, sent: Broadcast, reply: Update) -> None:
        effort, batch_norm = self.plan.stage(sent.round).effort, self.site.net(sent.spec).has_batch_norm
        right = steps_of(reply.examples, effort, batch_norm) if sent.entry is None else 0
        if reply.steps != right:
            raise UserError(f"it made {reply.steps} steps, and {reply.examples} examples make {right}")

    def _model(self, sent: Broadcast) -> Update:
        """What an update to this broadcast looks like."""
        shape = {name: sorted(each) for name, each in sent.extras.items()}
        key = json.dumps([sent.round.stage, sent.entry, sent.score, sent.spec.name, sent.spec.args, shape])
        if key not in self._models:
            seen = -1 if self._keep.pending is None else self._keep.pending[0]
            self._models[key], self._keep = visit(self.site, replace(sent, client=0, seen=seen), self._keep)
            if self.memory is not None:
                codec.save(self._keep, self.memory)
        return self._models[key]


def _check_types(sent: Broadcast, reply: Any) -> None:
    if not isinstance(reply, Update):
        raise UserError(f"a {type(reply).__name__} came in the place of an update")
    if type(reply.client) is not int or reply.client != sent.client:
        raise UserError(f"it says to be of client {reply.client!r}, and client {sent.client} was asked")
    for name in ("examples", "steps"):
        value = getattr(reply, name)
        if type(value) is not int or not 0 <= value <= MOST[name]:
            raise UserError(f"its {name} are {value!r:.40}, and must be a whole number up to {MOST[name]}")
    if reply.steps and not reply.examples:
        raise UserError(f"it made {reply.steps} steps without an example")
    if type(reply.metrics) is not dict or type(reply.extras) is not dict:
        raise UserError("its extras or metrics are no dictionary")
    for place, each in trees(reply).items():
        if type(each) is not dict or not all(map(_is_dense, each.values())):
            raise UserError(f"its {place} are no dictionary of dense tensors")
    named: list[dict[Any, Any]] = [reply.extras, reply.metrics, *trees(reply).values()]
    for key in (key for each in named for key in each):
        if type(key) is not str:
            raise UserError(f"it calls something {key!r:.40}, and names must be text")


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _check_names(place: str, given: Tree, wanted: Tree) -> None:
    for name in sorted(wanted.keys() - given.keys()):
        raise UserError(f"tensor '{name}' of its {place} is missing")
    for name in sorted(given.keys() - wanted.keys()):
        raise UserError(f"tensor '{name}' of its {place} is one too many")


def _check_tree(place: str, given: Tree, wanted: Tree, part: Part) -> None:
    rows = set()
    for name, t in given.items():
        model, where = wanted[name], f"tensor '{name}' of its {place}"
        shape, right = tuple(t.shape), tuple(model.shape)
        if name in part.ragged and shape and len(shape) == len(right):
            rows.add(shape[0])
            if shape[0] <= right[0]:  # the stand-in has every class
                right = (shape[0], *right[1:])
        if (shape, t.dtype) != (right, model.dtype):
            raise UserError(f"{where} is {t.dtype} {list(shape)}, and must be {model.dtype} {list(right)}")
        if name in part.ragged and not t.is_floating_point() and not _names_classes(t, len(model)):
            raise UserError(f"{where} must name classes below {len(model)} in order")
    if len(rows) > 1:
        raise UserError(f"tensors of its {place} have {sorted(rows)} rows, and must have equally many")


def _check_buffers(given: Tree, sent: Tree) -> None:
    for name, t in given.items():
        where = f"tensor '{name}' of its buffers"
        if name.endswith(VARIANCE) and (t < 0).any():
            raise UserError(f"{where} is a variance below 0")
        if not t.is_floating_point():
            now, before = t.long(), sent[name].long()
            if (now < before.clamp(max=0)).any() or (now > before + GROWTH).any():
                raise UserError(f"{where} is a counter that fell below 0 or grew by more than {GROWTH}")


def _names_classes(t: Tensor, classes: int) -> bool:
    return not len(t) or bool((t.diff() > 0).all() and t[0] >= 0 and t[-1] < classes)


def _check_metrics(given: dict[str, Any], wanted: dict[str, float]) -> None:
    for name, value in given.items():
        if type(value) is not float or not (name in wanted or name.startswith("accuracy_")):
            raise UserError(f"its metrics hold {name!r}: {value!r}, which nobody asked for")
    for name in MEASURES:
        if name in wanted and name not in given:
            raise UserError(f"its metric '{name}' is missing")


def _usual(norms: list[float]) -> float | None:
    """Their lower median; where most are 0, that of the others, if they are enough. None: too few to say."""
    others = [norm for norm in norms if norm]
    if len(norms) < ENOUGH:
        return None
    return median_low(norms) or (median_low(others) if len(others) >= ENOUGH else 0.0)


def _norms(sent: Broadcast, update: Update) -> dict[str, float]:
    """Of the change of the weights, and of whatever else was sent; whole numbers of a part are counts, and its own."""
    if sent.entry is None and not update.steps:
        return {}
    found = {
        place: {name: t for name, t in each.items() if t.is_floating_point()} for place, each in update.extras.items()
    }
    # not counters, which grow with samples; what is not finite is as it was sent
    found["buffers"] = {n: t.where(t.isfinite(), 0) for n, t in update.buffers.items() if t.is_floating_point()}
    if update.weights:
        found["weights"] = tree.sub(update.weights, sent.weights)
    flat = {place: {name: t.nan_to_num() for name, t in each.items()} for place, each in found.items() if each}
    return {place: float(tree.norm(each)) for place, each in flat.items()}
