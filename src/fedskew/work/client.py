"""What a client does when it is asked: train, or answer a question. The one loop over batches is here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedskew import codec, seeds, tree
from fedskew.errors import required
from fedskew.models.net import Net
from fedskew.parts.protocol import Effort, Part, Term, overrides
from fedskew.parts.stages import Stage
from fedskew.parts.views import Batch, Local, Pass, Run
from fedskew.types import Broadcast, Keep, Output, Round, Shard, Tree, Update
from fedskew.work.evaluate import client_scores
from fedskew.work.site import Site

Message = TypeVar("Message", Broadcast, Update, Keep)


def visit(site: Site, sent: Broadcast, keep: Keep) -> tuple[Update, Keep]:
    """Do what a broadcast asks. Asked the same turn twice, a client gives the same update and the same keep."""
    keep = settled(keep, sent.seen)
    if site.device != "cpu":
        sent, keep = to_device(sent, site.device), to_device(keep, site.device)
    try:
        update, keep = train(site, sent, keep) if sent.entry is None else answer(site, sent, keep)
        return (update, keep) if site.device == "cpu" else (to_device(update, "cpu"), to_device(keep, "cpu"))
    except Exception as error:
        part = _part_at_fault(error)
        where = f"client {sent.client}, round {sent.round.index}, stage {sent.round.stage}{part}"
        error.add_note(f"while working for {where}")
        raise


def to_device(message: Message, device: str) -> Message:
    """The same message with its tensors on another device."""
    head, tensors = codec.flatten(message)
    moved: Message = codec.rebuild(head, [t.to(device) for t in tensors])
    return moved


def settled(keep: Keep, seen: int) -> Keep:
    """Make the last visit final if the server absorbed its reply, else forget it."""
    if keep.pending is None:
        return keep
    turn, memory, facts = keep.pending
    return Keep(memory, facts) if turn == seen else Keep(keep.memory, keep.facts)


def train(site: Site, sent: Broadcast, keep: Keep) -> tuple[Update, Keep]:
    """inputs -> objective -> gradient -> corrections -> optimiser, batch after batch."""
    began = time.perf_counter()
    plan, stage, net = site.plan, site.plan.stage(sent.round), site.net(sent.spec)
    shard = site.shard(sent.client, keep.facts)
    optimiser = required(stage.optimiser, "the optimizer of a stage")
    lr = optimiser.rate(sent.round)
    weights = tree.clone(sent.weights)
    views = {part.name: _local(site, sent, keep, shard, net, part) for part in stage.parts}
    mine = {part.name: part.begin(views[part.name]) for part in stage.parts if overrides(part, "begin")}

    purpose = (sent.round.index, sent.client)
    objective = Objective(net, weights, stage, mine, seeds.key(plan.seed, "dropout", *purpose))
    trained = objective.trained
    state = optimiser.start(trained)
    draws = seeds.generator(plan.seed, "augment", *purpose)
    order = seeds.generator(plan.seed, "batches", *purpose)
    observers = [term for term in (stage.base, *stage.terms) if type(term).observe is not Term.observe]
    steps, losses = 0, 0.0
    for index in batches(len(shard), stage.effort, net.has_batch_norm, order):
        x = shard.x.index_select(0, shard.index[index]).to(net.device)
        batch = Batch(site.view.train(x, draws), shard.y[index].to(net.device), index)
        for inputs in stage.inputs:
            batch = inputs.batch(batch, mine.get(inputs.name), views[inputs.name].rng)
        objective.turn_to(batch, steps)
        grads, loss = stage.gradient.take(objective.grad_at, trained, mine.get(stage.gradient.name))
        for correction in stage.corrections:
            grads = correction.adjust(grads, trained, mine.get(correction.name))
        optimiser.step(trained, grads, state, lr)
        for term in observers:
            term.observe(objective.first, mine.get(term.name))
        steps += 1
        losses += float(loss)

    if steps == 0:
        return Update(sent.client, 0, 0, {}, {}, {}, {}), keep
    weights |= net.written()
    run = amount(stage, sent.round, weights, steps)
    extras: dict[str, Tree] = {}
    memory: dict[str, Tree] = {}
    for part in stage.parts:
        if overrides(part, "finish"):
            extras[part.name], kept = part.finish(views[part.name], mine.get(part.name), run)
            if kept:
                memory[plan.keys[sent.round.stage][part.name]] = kept
    metrics = {"loss": losses / steps}
    if sent.score:
        metrics |= client_scores(site, sent, shard, weights)
    metrics["seconds"] = time.perf_counter() - began
    update = Update(sent.client, len(shard), steps, trained, tree.only(weights, net.buffers), extras, metrics)
    if stage.seal is not None:
        update = stage.seal.seal(update, views[stage.seal.name])
    return update, Keep(keep.memory, keep.facts, (sent.turn, memory, keep.facts))


def amount(stage: Stage, round: Round, weights: Tree, steps: int) -> Run:
    """What so many steps amount to."""
    optimiser = required(stage.optimiser, "the optimizer of a stage")
    lr = optimiser.rate(round)
    pull = sum(term.pull for term in (stage.base, *stage.terms))
    return Run(weights, steps, lr, optimiser.effective_steps(steps, lr, pull))


class Objective:
    """The sum of base and terms on the batch at hand, and its gradient wherever it is asked for."""

    def __init__(self, net: Net, weights: Tree, stage: Stage, mine: dict[str, Any], dropout: int) -> None:
        self._net, self._dropout = net, dropout
        self._live = net.prepare(weights, stage.train)
        self._parameters = list(self._live.values())
        self._terms = [(term, mine.get(term.name)) for term in (stage.base, *stage.terms)]
        self.trained = tree.only(weights, self._live)

    def turn_to(self, batch: Batch, step: int) -> None:
        """Go on to the next batch."""
        self._batch, self._step = batch, step
        self._frozen: dict[Any, Output] = {}
        self._passes: list[Pass] = []

    @property
    def first(self) -> Pass:
        """The first pass of the batch at hand."""
        return self._passes[0]

    def grad_at(self, at: Tree) -> tuple[Tree, Tensor]:
        """(gradient at these values of the trained parameters, loss there)."""
        net, again = self._net, bool(self._passes)
        if at is not self.trained:
            net.move(at)
        torch.default_generator.manual_seed((self._dropout + self._step) % 2**63)
        with net.borrowed_statistics() if again else nullcontext():  # a second look at a batch leaves them alone
            out = Pass(self._batch, net, self._live, self._frozen)
            loss, *others = (term.loss(out, scratch) for term, scratch in self._terms)
        for other in others:
            loss = loss + other
        grads = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        if at is not self.trained:
            net.move(self.trained)
        self._passes.append(out)
        return dict(zip(self._live, grads, strict=True)), loss.detach()


def answer(site: Site, sent: Broadcast, keep: Keep) -> tuple[Update, Keep]:
    """Answer the question of an entry on the client's own data."""
    entry = site.plan.stage(sent.round).entries[required(sent.entry, "the number of the entry")]
    shard, net = site.shard(sent.client, keep.facts), site.net(sent.spec)
    given, facts = entry.ask(_local(site, sent, keep, shard, net, entry))
    update = Update(sent.client, len(shard), 0, {}, {}, {entry.name: given}, {})
    return update, Keep(keep.memory, keep.facts, (sent.turn, keep.memory, facts))


def batches(samples: int, effort: Effort, batch_norm: bool, order: torch.Generator) -> Iterator[Tensor]:
    """Positions of each step's samples. Batch norm cannot bear one alone: a tail of one joins the batch before it."""
    (size, least), steps = _sizes(effort, batch_norm), 0
    epochs = required(effort.epochs, "the number of epochs")
    if samples < least:
        return
    epoch = 0
    while effort.steps is not None or epoch < epochs:
        cut = list(torch.randperm(samples, generator=order).split(size))
        if len(cut[-1]) < least:
            tail = cut.pop()
            if not effort.drop_last:
                cut[-1] = torch.cat((cut[-1], tail))
        for index in cut:
            if steps == effort.steps:
                return
            yield index
            steps += 1
        epoch += 1


def steps_of(samples: int, effort: Effort, batch_norm: bool) -> int:
    """How many batches that makes."""
    size, least = _sizes(effort, batch_norm)
    if samples < least:
        return 0
    if effort.steps is not None:
        return effort.steps
    return required(effort.epochs, "the number of epochs") * (samples // size + (samples % size >= least))


def _sizes(effort: Effort, batch_norm: bool) -> tuple[int, int]:
    """Of a batch, and of the smallest that there may be."""
    size = max(required(effort.batch, "the size of a batch"), 2 if batch_norm else 1)
    return size, size if effort.drop_last else 2 if batch_norm else 1


def _local(site: Site, sent: Broadcast, keep: Keep, shard: Shard, net: Net, part: Part) -> Local:
    stage: Stage = site.plan.stage(sent.round)
    memory = keep.memory.get(site.plan.shown(part, sent.round, keep.memory))
    if memory is None:
        memory = part.init_client(sent.weights, site.plan.task)
    return Local(
        shard=shard,
        net=net,
        weights=sent.weights,
        extras=sent.extras.get(part.name, {}),
        memory=memory,
        facts=keep.facts,
        round=sent.round,
        task=site.plan.task,
        view=site.view.eval,
        varied=site.view.train,
        train=stage.train,
        purpose=(site.plan.seed, part.name, sent.turn, sent.client),
        secret=site.secret,
    )


def _part_at_fault(error: BaseException) -> str:
    """The innermost part on the traceback."""
    found, trace = "", error.__traceback__
    while trace is not None:
        holder = trace.tb_frame.f_locals.get("self")
        if isinstance(holder, Part):
            found = f", part {holder.name}"
        trace = trace.tb_next
    return found
