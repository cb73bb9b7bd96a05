"""What a client does when it is asked: train, or answer a question. The one loop over batches is here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedskew import seeds, tree
from fedskew.models.net import Net
from fedskew.parts.protocol import Effort, Part, Term, overrides
from fedskew.parts.stages import Stage
from fedskew.parts.views import Batch, Local, Pass, Run
from fedskew.types import Broadcast, Keep, Output, Shard, Tree, Update
from fedskew.work.evaluate import client_scores
from fedskew.work.site import Site


def visit(site: Site, sent: Broadcast, keep: Keep) -> tuple[Update, Keep]:
    """Do what a broadcast asks. Asked the same turn twice, a client gives the same update and the same keep."""
    keep = settled(keep, sent.seen)
    try:
        return train(site, sent, keep) if sent.entry is None else answer(site, sent, keep)
    except Exception as error:
        part = _part_at_fault(error)
        where = f"client {sent.client}, round {sent.round.index}, stage {sent.round.stage}{part}"
        error.add_note(f"while working for {where}")
        raise


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
    optimiser, gradient, terms = stage.optimiser, stage.gradient, (stage.base, *stage.terms)
    assert optimiser is not None
    lr = optimiser.rate(sent.round)

    weights = tree.clone(sent.weights)
    live = net.prepare(weights, stage.train)
    trained = tree.only(weights, live)
    parameters = list(live.values())

    views = {part.name: _local(site, sent, keep, shard, net, part) for part in stage.parts}
    mine = {part.name: part.begin(views[part.name]) for part in stage.parts if overrides(part, "begin")}
    objective = [(term, mine.get(term.name)) for term in terms]
    corrections = [(c, mine.get(c.name)) for c in stage.corrections]
    inputs = [(i, mine.get(i.name), views[i.name]) for i in stage.inputs]
    observers = [(term, mine.get(term.name)) for term in terms if type(term).observe is not Term.observe]
    own = mine.get(gradient.name)
    state = optimiser.start(trained)

    purpose = (sent.round.index, sent.client)
    draws = seeds.generator(plan.seed, "augment", *purpose)
    dropout = seeds.key(plan.seed, "dropout", *purpose)
    order = seeds.generator(plan.seed, "batches", *purpose)
    steps, losses = 0, 0.0
    for index in batches(len(shard), stage.effort, net.has_batch_norm, order):
        batch = Batch(site.view.train(shard.x[shard.index[index]], draws), shard.y[index], index)
        for part, scratch, local in inputs:
            batch = part.batch(batch, scratch, local.rng)
        frozen: dict[Any, Output] = {}
        passes: list[Pass] = []

        def grad_at(at: Tree) -> tuple[Tree, Tensor]:
            again = bool(passes)  # a second look at the same batch must leave the statistics alone
            if at is not trained:
                net.move(at)
            if again:
                net.borrow_statistics(None)
            torch.default_generator.manual_seed((dropout + steps) % 2**63)
            out = Pass(batch, net, live, frozen)
            loss = objective[0][0].loss(out, objective[0][1])
            for term, scratch in objective[1:]:
                loss = loss + term.loss(out, scratch)
            grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            if at is not trained:
                net.move(trained)
            if again:
                net.borrow_statistics(weights)
            passes.append(out)
            return dict(zip(live, grads, strict=True)), loss.detach()

        grads, loss = gradient.take(grad_at, trained, own)
        for correction, scratch in corrections:
            grads = correction.adjust(grads, trained, scratch)
        optimiser.step(trained, grads, state, lr)
        for term, scratch in observers:
            term.observe(passes[0], scratch)
        steps += 1
        losses += float(loss)

    if steps == 0:
        return Update(sent.client, 0, 0, {}, {}, {}, {}), keep
    effective = optimiser.effective_steps(steps, lr, sum(term.pull for term in terms))
    run = Run(weights, steps, lr, effective)
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
    return update, Keep(keep.memory, keep.facts, (sent.turn, memory, keep.facts))


def answer(site: Site, sent: Broadcast, keep: Keep) -> tuple[Update, Keep]:
    """Answer the question of an entry on the client's own data."""
    assert sent.entry is not None
    entry = site.plan.stage(sent.round).entries[sent.entry]
    shard, net = site.shard(sent.client, keep.facts), site.net(sent.spec)
    given, facts = entry.ask(_local(site, sent, keep, shard, net, entry))
    update = Update(sent.client, len(shard), 0, {}, {}, {entry.name: given}, {})
    return update, Keep(keep.memory, keep.facts, (sent.turn, keep.memory, facts))


def batches(samples: int, effort: Effort, batch_norm: bool, order: torch.Generator) -> Iterator[Tensor]:
    """Positions of each step's samples. A tail of one goes with the batch before it where batch norm could not bear it."""
    size, steps = effort.batch, 0
    assert size is not None and effort.epochs is not None
    least = size if effort.drop_last else 2 if batch_norm else 1
    if samples < least:
        return
    epoch = 0
    while effort.steps is not None or epoch < effort.epochs:
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


def _local(site: Site, sent: Broadcast, keep: Keep, shard: Shard, net: Net, part: Part) -> Local:
    stage: Stage = site.plan.stage(sent.round)
    key = site.plan.keys[sent.round.stage].get(part.name, "")
    memory = keep.memory.get(key)
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
        train=stage.train,
        purpose=(site.plan.seed, part.name, sent.turn, sent.client),
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
