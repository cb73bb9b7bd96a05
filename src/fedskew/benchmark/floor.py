"""The bare loop: workers that train plain modules with torch's own SGD, as one would write it by hand.

It has as many processes with one thread as there are cores, one copy of the weights and one sum per client, and no
federated code.
"""

from __future__ import annotations

import copy
import mmap
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew import functional
from fedskew.config.schema import RunConfig
from fedskew.core.types import Shard, Spec
from fedskew.runtime.context import RunContext

#: returns the loss of a batch: (student, teacher, x, y, the client's shard)
Loss = Callable[[nn.Module, nn.Module, Tensor, Tensor, Shard], Tensor]


def plain(student: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor, shard: Shard) -> Tensor:
    del teacher, shard
    return F.cross_entropy(student(x), y)


def label_masking(student: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor, shard: Shard) -> Tensor:
    with torch.no_grad():
        zg = teacher(x)
    z = student(x)
    return F.cross_entropy(z, y) + functional.lmd(z, zg, y, functional.majority_labels(shard.counts))


def vacant_classes(student: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor, shard: Shard) -> Tensor:
    with torch.no_grad():
        zg = teacher(x)
    z, counts = student(x), shard.counts
    loss = functional.calibrated_cross_entropy(z, y, counts) + 0.1 * functional.vacant_distillation(z, zg, counts)
    return loss + 0.005 * functional.logit_suppression(z, y, counts)


#: methods whose loss is not the cross-entropy
LOSSES: dict[str, Loss] = {"fedlmd": label_masking, "fedvls": vacant_classes}


def climb(parameters: list[nn.Parameter], rho: float) -> list[Tensor]:
    """Move the parameters to the worst point nearby (SAM); return where they were."""
    with torch.no_grad():
        before = [p.clone() for p in parameters]
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = torch.stack([g.norm() for g in grads]).norm()
        torch._foreach_add_(list[Tensor](parameters), grads, alpha=float(rho / (norm + 1e-12)))
    return before


class Floor:
    """Processes that make the local steps of a round, and evaluate the mean of the models."""

    def __init__(self, context: RunContext, config: RunConfig, spec: Spec) -> None:
        self._context, self._config, self._spec = context, config, spec
        start = context.net(spec).initial()
        self._sizes = [t.numel() for t in start.values()]
        self._weights = _shared(sum(self._sizes))
        self._weights.copy_(torch.cat([t.flatten() for t in start.values()]))
        cores = os.cpu_count() or 1
        self._sums = [_shared(sum(self._sizes)) for _ in range(cores)]
        self._pipes: list[Connection] = []
        self._processes = []
        fork = multiprocessing.get_context("fork")
        for number in range(cores):
            near, far = multiprocessing.Pipe()
            process = fork.Process(target=self._work, args=(far, self._sums[number]), daemon=True)
            process.start()
            self._pipes.append(near)
            self._processes.append(process)

    def round(self, cohort: list[int]) -> float:
        """Train these clients and evaluate the mean; return the accuracy."""
        samples = self._context.shards.sizes()
        loads: list[list[int]] = [[] for _ in self._pipes]
        for client in sorted(cohort, key=lambda c: -int(samples[c])):
            shortest = len if len(cohort) >= 100 else lambda load: sum(int(samples[c]) for c in load)
            min(loads, key=shortest).append(client)
        total = len(self._context.test)
        cut = torch.linspace(0, total, len(self._pipes) + 1).long().tolist()
        for number, pipe in enumerate(self._pipes):
            pipe.send((loads[number], (cut[number], cut[number + 1])))
        for pipe in self._pipes:
            pipe.recv()
        self._weights.copy_(torch.stack(self._sums).sum(0) / sum(int(samples[c]) for c in cohort))
        for pipe in self._pipes:
            pipe.send(None)
        return float(sum(pipe.recv() for pipe in self._pipes) / total)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()

    def _work(self, pipe: Connection, total: Tensor) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        model = self._context.build(self._spec)
        state = list(model.state_dict(keep_vars=True).values())
        teacher = copy.deepcopy(model).eval()
        taught = list(teacher.state_dict(keep_vars=True).values())
        totals = torch.split(total, self._sizes)
        while True:
            clients, (first, last) = pipe.recv()
            total.zero_()
            self._load(taught)
            for client in clients:
                shard = self._context.shards.shard(client, self._context.x)
                self._load(state)
                self._train(model.train(), teacher, shard)
                with torch.no_grad():
                    for t, view in zip(state, totals, strict=True):
                        view.add_(t.flatten(), alpha=len(shard))
            pipe.send(None)
            pipe.recv()
            self._load(state)
            pipe.send(self._right(model.eval(), first, last))

    def _load(self, state: list[Tensor]) -> None:
        with torch.no_grad():
            for t, view in zip(state, torch.split(self._weights, self._sizes), strict=True):
                t.copy_(view.view_as(t))

    def _train(self, model: nn.Module, teacher: nn.Module, shard: Shard) -> None:
        local, view, draws = self._config.local, self._context.view, torch.Generator()
        loss_of = LOSSES.get(self._config.method, plain)
        parameters = list(model.parameters())
        sgd = torch.optim.SGD(parameters, local.lr, momentum=local.momentum, weight_decay=local.weight_decay)
        for _ in range(local.epochs or 1):
            for index in torch.randperm(len(shard)).split(local.batch_size):
                x, y = view.train(shard.x.index_select(0, shard.index[index]), draws), shard.y[index]
                sgd.zero_grad()
                loss_of(model, teacher, x, y, shard).backward()
                if self._config.method == "fedsam":
                    before = climb(parameters, rho=0.1)
                    sgd.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    with torch.no_grad():
                        torch._foreach_copy_(list[Tensor](parameters), before)
                sgd.step()

    def _right(self, model: nn.Module, first: int, last: int) -> int:
        test, size, right = self._context.test, self._context.score_batch, 0
        with torch.no_grad():
            for start in range(first, last, size):
                piece = slice(start, min(start + size, last))
                logits = model(self._context.view.eval(test.x[piece]))
                right += int((logits.argmax(1) == test.y[piece]).sum())
        return right


def _shared(size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(-1, size * 4), dtype=torch.float32)
