"""Terms that remember something of each sample; logits are the inputs (`looking`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional
from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Round, Tree
from fedskew.parts.terms.robust import EarlyLearning, JointOptimization, LearnedLabels
from fedskew.parts.views import Batch, ClientContext, ForwardPass
from tests.parts.terms import looking

X = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]]).log()
P = X.softmax(-1)
Y = torch.tensor([0, 0, 1])


def client(memory: Tree | None = None, extras: Tree | None = None, t: int = 3) -> ClientContext:
    made = looking.client((0, 0, 0), x=X, y=Y, memory=memory, extras=extras)
    return replace(made, round=Round(t, t, t, 0))


def passed(ctx: ClientContext, *rows: int) -> ForwardPass:
    at = torch.tensor(rows)
    return ForwardPass(Batch(X[at], Y[at], at), ctx.net, ctx.net.prepare(tree.clone(ctx.weights)), {})


def test_targets_of_early_learning_follow_the_predictions() -> None:
    term = EarlyLearning(lam=3.0, beta=0.7)
    ctx = client()
    scratch = term.begin(ctx)
    t = scratch.t
    assert not t.any()
    out = passed(ctx, 0, 2)
    # with t = 0 before the step, t = 0.3 p in it, and <p, t> = 0.3 |p|^2
    wanted = 3 * (1 - 0.3 * P[[0, 2]].square().sum(1)).log().mean()
    assert term.loss(out, scratch).item() == pytest.approx(wanted.item())
    assert not t.any()  # a second pass of the step, as SAM's, starts from the same targets
    term.observe(out, scratch)
    assert torch.allclose(t[[0, 2]], 0.3 * P[[0, 2]]) and not t[1].any()
    term.observe(passed(ctx, 0), scratch)
    assert torch.allclose(t[0], (0.7 * 0.3 + 0.3) * P[0])
    _, memory = term.finish(ctx, scratch, looking.run(ctx.weights))
    again = term.begin(client(memory)).t
    assert torch.equal(again, t) and again is not memory["t"]


def test_labels_are_the_mean_of_the_last_rounds_predictions_from_the_start_on() -> None:
    term = JointOptimization(alpha=0.0, beta=0.0, start=4)
    ctx = client(t=3)
    scratch = term.begin(ctx)
    out = passed(ctx, 0, 1)
    assert term.loss(out, scratch).item() == F.cross_entropy(out.logits, Y[:2]).item()
    term.observe(out, scratch)
    scratch.sum[0] += torch.tensor([0.1, 0.0, 0.9])  # a second epoch with another prediction of sample 0
    scratch.seen[0] += 1
    _, memory = term.finish(ctx, scratch, looking.run(ctx.weights))
    first = (P[0] + torch.tensor([0.1, 0.0, 0.9])) / 2
    # sample 2 was in no batch, so it has the label given
    assert torch.allclose(memory["s"], torch.stack((first, P[1], torch.tensor([0.0, 1.0, 0.0]))))

    assert term.begin(client(memory, t=3)).s is None
    later = term.begin(client(memory, t=4))
    # KL(s || p) is 0 for sample 1, whose label is its prediction
    assert term.loss(passed(client(t=4), 1), later).item() == pytest.approx(0, abs=1e-6)
    wanted = (first * (first / P[0]).log()).sum() / 2
    assert term.loss(passed(client(t=4), 0, 1), later).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_prior_and_entropy_are_added() -> None:
    ctx = client(t=0)
    out = passed(ctx, 0, 1, 2)
    plain, whole = JointOptimization(0.0, 0.0, 9), JointOptimization(1.2, 0.8, 9)
    more = whole.loss(out, whole.begin(ctx)) - plain.loss(out, plain.begin(ctx))
    counts = torch.tensor([2, 1, 0])
    wanted = 1.2 * functional.prior_divergence(X, counts) + 0.8 * functional.entropy(X)
    assert more.item() == pytest.approx(wanted.item(), rel=1e-5)


def noisy(flag: int = 1, memory: Tree | None = None) -> ClientContext:
    return client(memory, {"noisy": torch.tensor(flag)})


def test_a_clean_client_learns_from_the_labels_given() -> None:
    term = LearnedLabels(K=10.0, lam=1000.0, alpha=0.5, beta=0.2)
    ctx = noisy(0)
    scratch, out = term.begin(ctx), passed(ctx, 0, 1, 2)
    wanted = functional.prior_cross_entropy(X, Y, torch.tensor([2, 1, 0]))
    assert term.loss(out, scratch).item() == pytest.approx(wanted.item())
    term.observe(out, scratch)
    assert term.finish(ctx, scratch, looking.run(ctx.weights)) == ({}, {})


def test_a_noisy_client_learns_its_labels() -> None:
    term = LearnedLabels(K=2.0, lam=5.0, alpha=0.5, beta=0.2)
    ctx = noisy()
    scratch, out = term.begin(ctx), passed(ctx, 0, 1)
    v = torch.tensor([[2.0, 0, 0], [2.0, 0, 0], [0, 2.0, 0]])
    assert scratch.v is not None and torch.equal(scratch.v, v)

    def loss(v: Tensor, p: Tensor) -> Tensor:
        divergence = (p * (p.log() - v.log_softmax(-1))).sum(-1).mean()
        entropy = -(p * p.log()).sum(-1).mean()
        return (divergence + 0.2 * entropy) / 3 + 0.5 * F.cross_entropy(v, Y[:2])

    assert term.loss(out, scratch).item() == pytest.approx(loss(v[:2], P[:2]).item(), rel=1e-6)
    at = v[:2].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(at, P[:2]), at)
    term.observe(out, scratch)
    assert torch.allclose(scratch.v, torch.cat((v[:2] - 5 * gradient, v[2:])), atol=1e-6)

    moved = scratch.v.clone()
    _, memory = term.finish(ctx, scratch, looking.run(ctx.weights))
    assert torch.allclose(memory["v"], moved.softmax(-1) + P)  # K / 2 is 1
    assert torch.equal(term.begin(noisy(memory=memory)).v, memory["v"])


def test_a_flag_that_is_neither_is_refused() -> None:
    with pytest.raises(UserError, match="sent noisy = 7"):
        LearnedLabels(10.0, 1000.0, 0.5, 0.2).begin(noisy(7))
