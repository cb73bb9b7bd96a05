"""What a client does with a broadcast: train, answer a setup, or evaluate. The one loop over batches is here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedskew.core import codec, devices, seeds, tree
from fedskew.core.errors import UserError, required
from fedskew.core.types import Broadcast, ClientState, Output, Round, Shard, Tree, Update
from fedskew.models.net import Net
from fedskew.parts.part import Part
from fedskew.parts.protocol import Effort, Phase, Term
from fedskew.parts.stages import Stage
from fedskew.parts.views import Batch, ClientContext, ForwardPass, LocalTraining
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import Scoring, client_scores, score_slice, slices

#: the place of an evaluation in an update
SCORES = "scores"

Message = TypeVar("Message", Broadcast, Update, ClientState)


def visit(context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
    """Do what a broadcast asks. A second visit of the same turn returns the same update and the same state."""
    client_state = confirmed(client_state, sent.seen)
    if context.device != "cpu":
        sent, client_state = to_device(sent, context.device), to_device(client_state, context.device)
    try:
        sent = with_personal(context, sent, client_state)
        work = evaluate if sent.evaluate else train if sent.setup is None else answer
        update, client_state = work(context, sent, client_state)
        if context.device != "cpu":
            update, client_state = to_device(update, "cpu"), to_device(client_state, "cpu")
        return update, client_state
    except Exception as error:
        part = _part_at_fault(error)
        where = f"client {sent.client}, round {sent.round.index}, stage {sent.round.stage}{part}"
        error.add_note(f"while working for {where}")
        raise


def to_device(message: Message, device: str) -> Message:
    """Return the message with its tensors on another device."""
    head, tensors = codec.flatten(message)
    moved: Message = codec.rebuild(head, [devices.put(t, device) for t in tensors])
    return moved


def confirmed(client_state: ClientState, seen: int) -> ClientState:
    """Make the last visit final if the server absorbed its reply; forget it otherwise."""
    if client_state.pending is None:
        return client_state
    turn, memory, facts = client_state.pending
    return ClientState(memory, facts) if turn == seen else ClientState(client_state.memory, client_state.facts)


def with_personal(context: RunContext, sent: Broadcast, client_state: ClientState) -> Broadcast:
    """Put the weights that stayed at the client over those that it receives."""
    part = context.plan.stage(sent.round).personal
    if part is None or (part.beside and not sent.evaluate):
        return sent
    own = personal(context, sent, client_state)
    if missing := context.net(sent.spec).select(part.what) - own.keys() - sent.weights.keys():
        raise UserError(
            f"client {sent.client} has lost its personal weights, such as '{min(missing)}'. Restore its memory, or "
            "start a new run."
        )
    return replace(sent, weights=sent.weights | own)


def personal(context: RunContext, sent: Broadcast, client_state: ClientState) -> Tree:
    """Return the weights that stayed at the client, the last ones even if the server may not have used its reply."""
    part = context.plan.stage(sent.round).personal
    memory = client_state.memory if client_state.pending is None else client_state.pending[1]
    return {} if part is None else memory.get(context.plan.keys[sent.round.stage][part.name], {})


def train(context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
    """Train phase after phase, and let every part finish."""
    began = time.perf_counter()
    plan, stage, net = context.plan, context.plan.stage(sent.round), context.net(sent.spec)
    shard = context.shard(sent.client, client_state.facts)
    contexts = {p.name: _client_context(context, sent, client_state, shard, net, p) for p in stage.at_clients}
    scratch = {part.name: part.begin(contexts[part.name]) for part in stage.filling("begin")}
    work = LocalWork(context, sent, shard, contexts, scratch)
    weights, steps, losses = work.train(sent.weights)
    if steps == 0:
        return Update(sent.client, 0, 0, {}, {}, {}, {}), client_state
    training = local_training(stage, sent.round, weights, steps)
    extras: dict[str, Tree] = {}
    memory: dict[str, Tree] = {}
    for part in stage.filling("finish"):
        after = training
        if part is stage.personal and stage.personal.beside:
            second, _, _ = work.train(sent.weights | personal(context, sent, client_state), own=True)
            after = replace(training, weights=second)
        extras[part.name], new = part.finish(contexts[part.name], scratch.get(part.name), after)
        if new:
            memory[plan.keys[sent.round.stage][part.name]] = new
    metrics = {"loss": losses / steps}
    if sent.score:
        metrics |= client_scores(context, sent, shard, weights)
    metrics["seconds"] = time.perf_counter() - began
    shared = (tree.only(weights, net.trainable(stage.train)), tree.only(weights, net.buffers))
    if stage.personal is not None:
        shared = (stage.personal.shared(net, shared[0]), stage.personal.shared(net, shared[1]))
    update = Update(sent.client, len(shard), steps, *shared, extras, metrics)
    if stage.privacy is not None:
        update = stage.privacy.protect(update, contexts[stage.privacy.name])
    return update, ClientState(client_state.memory, client_state.facts, (sent.turn, memory, client_state.facts))


class LocalWork:
    """The one loop over batches: inputs -> objective -> gradient -> corrections -> optimizer."""

    def __init__(
        self,
        context: RunContext,
        sent: Broadcast,
        shard: Shard,
        contexts: Mapping[str, ClientContext],
        scratch: Mapping[str, Any],
    ) -> None:
        self._context, self._sent, self._shard = context, sent, shard
        self._contexts, self._scratch = contexts, scratch
        self._stage, self._net = context.plan.stage(sent.round), context.net(sent.spec)

    def train(self, start: Tree, own: bool = False) -> tuple[Tree, int, float]:
        """Return the weights after the phases of the shared or of the `own` copy, their steps and the summed loss.

        Both copies draw the same random numbers, so that they see the same batches.
        """
        seed, purpose = self._context.plan.seed, (self._sent.round.index, self._sent.client)
        self._draws = seeds.generator(seed, "augment", *purpose)
        self._order = seeds.generator(seed, "batches", *purpose)
        self._dropout = seeds.key(seed, "dropout", *purpose)
        weights, self._steps, losses = tree.clone(start), 0, 0.0
        for phase in (phase for phase in self._stage.phases if phase.own == own):
            losses += self._phase(weights, phase)
        return weights, self._steps, losses

    def _phase(self, weights: Tree, phase: Phase) -> float:
        """Train the weights in place; return the summed loss of the batches."""
        stage, net, losses = self._stage, self._net, 0.0
        selector = phase.train or stage.train
        terms = (stage.base, *(phase.terms if phase.own else stage.terms))
        optimizer = required(stage.optimizer, "the optimizer of a stage")
        lr = optimizer.rate(self._sent.round)
        objective = Objective(net, weights, selector, [(t, self._scratch.get(t.name)) for t in terms], self._dropout)
        state = optimizer.start(objective.trained)
        for index in batches(len(self._shard), phase.effort(stage.effort), net.has_batch_norm, self._order):
            objective.turn_to(self._batch(index), self._steps)
            grads, loss = self._gradient(objective, phase)
            optimizer.step(objective.trained, grads, state, lr)
            for term in () if phase.own else terms:
                if type(term).observe is not Term.observe:
                    term.observe(objective.first, self._scratch.get(term.name))
            self._steps += 1
            losses += float(loss)
        weights |= net.written()
        return losses

    def _batch(self, index: Tensor) -> Batch:
        shard, device = self._shard, self._net.device
        at = devices.put(index, device)
        x = shard.x.index_select(0, shard.index[at])
        batch = Batch(self._context.view.train(x, self._draws), shard.y[at], at)
        for each in self._stage.inputs:
            batch = each.batch(batch, self._scratch.get(each.name), self._contexts[each.name].rng)
        return batch

    def _gradient(self, objective: Objective, phase: Phase) -> tuple[Tree, Tensor]:
        """Return (gradient, loss); the second copy has the plain gradient."""
        if phase.own:
            return objective.grad_at(objective.trained)
        taken = self._stage.gradient
        grads, loss = taken.take(objective.grad_at, objective.trained, self._scratch.get(taken.name))
        for correction in self._stage.corrections:
            grads = correction.adjust(grads, objective.trained, self._scratch.get(correction.name))
        return grads, loss


def local_training(stage: Stage, round: Round, weights: Tree, steps: int) -> LocalTraining:
    """Return what a number of steps amounts to."""
    optimizer = required(stage.optimizer, "the optimizer of a stage")
    lr = optimizer.rate(round)
    pull = sum(term.pull for term in (stage.base, *stage.terms))
    return LocalTraining(weights, steps, lr, optimizer.effective_steps(steps, lr, pull))


class Objective:
    """The sum of base and terms on the current batch, and its gradient at any weights."""

    def __init__(self, net: Net, weights: Tree, train: str, terms: Sequence[tuple[Term, Any]], dropout: int) -> None:
        self._net, self._terms, self._dropout = net, terms, dropout
        self._live = net.prepare(weights, train)
        self._parameters = list(self._live.values())
        self.trained = tree.only(weights, self._live)

    def turn_to(self, batch: Batch, step: int) -> None:
        """Move on to the next batch."""
        self._batch, self._step = batch, step
        self._frozen: dict[Any, Output] = {}
        self._passes: list[ForwardPass] = []

    @property
    def first(self) -> ForwardPass:
        """Return the first forward pass of the current batch."""
        return self._passes[0]

    def grad_at(self, at: Tree) -> tuple[Tree, Tensor]:
        """Return (gradient, loss) at these values of the trained parameters."""
        net, again = self._net, bool(self._passes)
        if at is not self.trained:
            net.move(at)
        devices.seed(net.device, (self._dropout + self._step) % 2**63)
        with net.borrowed_statistics() if again else nullcontext():  # a second pass of a batch does not change them
            out = ForwardPass(self._batch, net, self._live, self._frozen)
            loss, *others = (term.loss(out, scratch) for term, scratch in self._terms)
        for other in others:
            loss = loss + other
        grads = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        if at is not self.trained:
            net.move(self.trained)
        self._passes.append(out)
        return dict(zip(self._live, grads, strict=True)), loss.detach()


def answer(context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
    """Answer the question of a setup on the client's own data."""
    setup = context.plan.stage(sent.round).setups[required(sent.setup, "the number of the setup")]
    shard, net = context.shard(sent.client, client_state.facts), context.net(sent.spec)
    own, facts = setup.answer(_client_context(context, sent, client_state, shard, net, setup))
    update = Update(sent.client, len(shard), 0, {}, {}, {setup.name: own}, {})
    return update, ClientState(client_state.memory, client_state.facts, (sent.turn, client_state.memory, facts))


def evaluate(context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
    """Predict the test data with the weights that this client would use, and count on its own part of them."""
    how = Scoring(detailed=sent.evaluate == "detailed")
    pieces = [score_slice(context, sent.spec, sent.weights, piece, how, sent.client) for piece in slices(context)]
    likely = [piece.pop("probabilities") for piece in pieces if how.detailed]
    total: Tree = {name: torch.stack([piece[name] for piece in pieces]).sum(0) for name in pieces[0]}
    total |= {"probabilities": torch.cat(likely).float()} if likely else {}
    return Update(sent.client, 0, 0, {}, {}, {SCORES: total}, {}), client_state


def batches(samples: int, effort: Effort, batch_norm: bool, order: torch.Generator) -> Iterator[Tensor]:
    """Yield the positions of each step's samples. Batch norm needs two: a last batch of one joins the one before."""
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


def steps_of(samples: int, stage: Stage, batch_norm: bool) -> int:
    """Return how many steps the shared weights make."""
    efforts = (phase.effort(stage.effort) for phase in stage.phases if not phase.own)
    return sum(_steps(samples, effort, batch_norm) for effort in efforts)


def _steps(samples: int, effort: Effort, batch_norm: bool) -> int:
    """Return the number of batches that `batches` yields."""
    size, least = _sizes(effort, batch_norm)
    if samples < least:
        return 0
    if effort.steps is not None:
        return effort.steps
    return required(effort.epochs, "the number of epochs") * (samples // size + (samples % size >= least))


def _sizes(effort: Effort, batch_norm: bool) -> tuple[int, int]:
    """Return the size of a batch, and the smallest size allowed."""
    size = max(required(effort.batch_size, "the size of a batch"), 2 if batch_norm else 1)
    return size, size if effort.drop_last else 2 if batch_norm else 1


def _client_context(
    context: RunContext, sent: Broadcast, client_state: ClientState, shard: Shard, net: Net, part: Part
) -> ClientContext:
    stage: Stage = context.plan.stage(sent.round)
    memory = client_state.memory.get(context.plan.memory_key(part, sent.round, client_state.memory))
    if memory is None:
        memory = part.init_client(sent.weights, context.plan.task)
    return ClientContext(
        shard=shard,
        net=net,
        weights=sent.weights,
        extras=sent.extras.get(part.name, {}),
        memory=memory,
        facts=client_state.facts,
        round=sent.round,
        task=context.plan.task,
        view=context.view.eval,
        varied=context.view.train,
        train=stage.train,
        purpose=(context.plan.seed, part.name, sent.turn, sent.client),
        secret=context.secret,
    )


def _part_at_fault(error: BaseException) -> str:
    """Return the innermost part on the traceback, for the error's note."""
    found, trace = "", error.__traceback__
    while trace is not None:
        holder = trace.tb_frame.f_locals.get("self")
        if isinstance(holder, Part):
            found = f", part {holder.name}"
        trace = trace.tb_next
    return found
