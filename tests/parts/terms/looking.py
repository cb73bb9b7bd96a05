"""A client small enough to compute by hand: features are W x, logits are V W x + b, with W and V the identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedskew.core import tree
from fedskew.core.types import Broadcast, Round, Shard, Spec, Task, Tree, Update
from fedskew.models.net import Net
from fedskew.models.registry import TrunkAndHead
from fedskew.parts.part import Part
from fedskew.parts.protocol import Term
from fedskew.parts.views import Batch, ClientContext, ForwardPass, LocalTraining, ServerContext

ROUND = Round(index=3, counted=3, within=3, stage=0)

# the sample of the specification's goldens (§14)
Z = torch.tensor([[1.0, 2.0, -1.0, 0.5, 0.0]])
ZG = torch.tensor([[0.0, 1.0, 2.0, -0.5, 1.5]])
Y = torch.tensor([1])
COUNTS = (30, 60, 10, 0, 0)


def net(width: int = 5, classes: int = 5, batch_norm: bool = False) -> Net:
    linear = nn.Linear(width, width, bias=False)
    return Net(TrunkAndHead(nn.Sequential(linear, nn.BatchNorm1d(width)) if batch_norm else linear, width, classes))


def identity(width: int = 5, classes: int = 5, bias: Tensor | None = None) -> Tree:
    """Weights with which logits are the inputs (plus a bias)."""
    head = torch.eye(classes, width)
    return {"head.bias": torch.zeros(classes) if bias is None else bias, "head.weight": head} | {
        "trunk.weight": torch.eye(width)
    }


def labels(counts: tuple[int, ...]) -> Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


def client(
    counts: tuple[int, ...] = COUNTS,
    weights: Tree | None = None,
    *,
    x: Tensor | None = None,
    y: Tensor | None = None,
    extras: Tree | None = None,
    memory: Tree | None = None,
    of: Net | None = None,
) -> ClientContext:
    y = labels(counts) if y is None else y
    x = torch.zeros(len(y), 5) if x is None else x
    of = net(x.shape[1], len(counts)) if of is None else of
    return ClientContext(
        shard=Shard(0, x, torch.arange(len(y)), y, len(counts)),
        net=of,
        weights=identity(x.shape[1], len(counts)) if weights is None else weights,
        extras=extras or {},
        memory=memory or {},
        facts={},
        round=ROUND,
        task=Task(len(counts), (x.shape[1],), 2),
        view=lambda x: x,
        varied=lambda x, rng: x + torch.randint(1, 9, x.shape, generator=rng),
        train="",
        purpose=(0, "part", 3, 0),
    )


def look(client_context: ClientContext, x: Tensor, y: Tensor, weights: Tree | None = None) -> ForwardPass:
    """A pass of the batch through the client's network, live at `weights` (by default those received)."""
    at = tree.clone(client_context.weights if weights is None else weights)
    return ForwardPass(Batch(x, y, torch.arange(len(y))), client_context.net, client_context.net.prepare(at), {})


def value(term: Term, client_context: ClientContext, x: Tensor, y: Tensor, weights: Tree | None = None) -> float:
    return float(term.loss(look(client_context, x, y, weights), term.begin(client_context)).detach())


def gradient(term: Term, client_context: ClientContext, x: Tensor, y: Tensor, weights: Tree | None = None) -> Tree:
    """The gradient of a term in every trained parameter."""
    out = look(client_context, x, y, weights)
    loss = term.loss(out, term.begin(client_context))
    if not loss.requires_grad:
        return tree.zeros_like(tree.detach(out.weights))
    grads = torch.autograd.grad(loss, list(out.weights.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(out.weights, grads, strict=True))


def still(gradient: Tree) -> bool:
    return not any(t.any() for t in gradient.values())


def run(weights: Tree) -> LocalTraining:
    return LocalTraining(weights, steps=1, lr=0.1, effective=1.0)


def server_context(of: Net, classes: int, memory: Tree | None = None, updates: Any = ()) -> ServerContext:
    return ServerContext(memory or {}, {}, ROUND, Task(classes, (5,), 2), of, torch.Generator(), updates=updates)


def sent_up(part: Part, extra: Tree, number: int = 0) -> tuple[Update, Broadcast]:
    update = Update(number, 1, 1, {}, {}, {part.name: extra}, {})
    return update, Broadcast(number, 3, -1, ROUND, Spec("net"), {}, {})
