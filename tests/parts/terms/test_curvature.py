from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.core.types import Tree
from fedskew.parts.terms.curvature import Curvature
from fedskew.parts.views import Accumulator, ClientContext
from tests.parts.terms import looking
from tests.parts.terms.looking import client, gradient, identity, look, run, sent_up, server_context, still, value

X, Y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])


def client_context(extras: Tree | None = None, memory: Tree | None = None, x: Tensor | None = None) -> ClientContext:
    """A client with one sample of each of two classes."""
    return client((1, 1), identity(2, 2), x=torch.zeros(2, 2) if x is None else x, extras=extras, memory=memory)


def share(u: float, w: float) -> Tree:
    """What a client of Fisher information u everywhere at weights w everywhere adds to the sums."""
    model = identity(2, 2)
    return tree.tag({n: torch.full_like(t, u) for n, t in model.items()}, "u/") | tree.tag(
        {n: torch.full_like(t, u * w) for n, t in model.items()}, "v/"
    )


def test_edge_13_before_anybody_sent_anything_the_term_is_zero() -> None:
    term = Curvature(lam=5, s=10)
    assert value(term, client_context(), X, Y) == 0
    assert still(gradient(term, client_context(), X, Y))


def test_loss_and_gradient_by_hand() -> None:
    # u = 2 at w_j = 3: lam sum (u w^2 - 2 u w_j w) over 10 weights, 4 of them 1 and the others 0: 3 * 4 * (2 - 12);
    # its slope 2 lam u (w - w_j) is 12 (1 - 3) or 12 (0 - 3)
    term, here = Curvature(lam=3, s=10), client_context(share(2, 3))
    assert value(term, here, X, Y) == pytest.approx(-120)
    grads = gradient(term, here, X, Y)
    assert grads["trunk.weight"].tolist() == [[-24.0, -36.0], [-36.0, -24.0]]
    assert grads["head.bias"].tolist() == [-36.0, -36.0]


def test_two_clients_each_see_the_other_only() -> None:
    term = Curvature(lam=1, s=10)
    a, b = share(2, 3), share(0.5, -1)
    sums = Accumulator()
    for number, extra in enumerate((a, b)):
        term.accumulate(*sent_up(term, extra, number), sums)
    memory = term.merge(server_context(client_context().net, 2), sums)
    for own, other in ((a, b), (b, a)):
        u, v = term.begin(client_context(memory, own))
        assert tree.equal(tree.tag(u, "u/") | tree.tag(v, "v/"), other)


def test_the_server_forgets_what_a_client_replaced() -> None:
    term, x = Curvature(lam=1, s=10), torch.tensor([[0.3, 0.7], [1.1, -0.2]])
    server: Tree = {}
    own: Tree = {}
    for shift in (0.0, 0.3, -0.7):
        here = client_context(server, own, x)
        moved = {name: t + shift for name, t in here.weights.items()}
        up, own = term.finish(here, ({}, {}), run(moved))
        sums = Accumulator()
        term.accumulate(*sent_up(term, up), sums)
        server = term.merge(server_context(here.net, 2, server), sums)
        assert torch.allclose(server["v/head.bias"], server["u/head.bias"] * moved["head.bias"], atol=1e-6)
        # alone, a client feels no pull: its own share is taken off to the last bit
        assert tree.equal(server, own)
        assert still(gradient(term, client_context(server, own, x), X, Y))


@pytest.mark.parametrize("fisher", ["batch", "sample"])
def test_information_by_hand(fisher: Literal["batch", "sample"]) -> None:
    # one sample x = (2, 0) of class 0; with a bias of (-2, 0) both logits are 0 and the softmax is (1/2, 1/2):
    # the slope in the bias is -1/2 and 1/2, in the head's row c that times (2, 0); squares 1/4, and 1 or 0
    weights = identity(2, 2, torch.tensor([-2.0, 0.0]))
    one = client((1, 0), weights, x=torch.tensor([[2.0, 0.0]]))
    up, _ = Curvature(1, s=10, fisher=fisher).finish(one, ({}, {}), run(weights))
    assert up["u/head.bias"].tolist() == pytest.approx([0.25] * 2)
    assert up["u/head.weight"].flatten().tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0])
    assert up["v/head.bias"].tolist() == pytest.approx([-0.5, 0.0])  # times the weights -2 and 0


def test_batches_cancel_what_samples_do_not() -> None:
    # zero inputs of both classes at equal logits: slopes (-1/2, 1/2) and (1/2, -1/2) in the bias, whose mean is 0
    here = client_context()
    by_batch, by_sample = Curvature(1, s=10), Curvature(1, s=10, fisher="sample")
    for term, expected in ((by_batch, 0.0), (by_sample, 0.25)):
        up, _ = term.finish(here, ({}, {}), run(here.weights))
        assert up["u/head.bias"].tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize(
    ("s", "fisher", "samples", "batches"),
    [(500, "batch", 700, 11), (500, "batch", 120, 3), (0, "batch", 120, 1), (4, "sample", 120, 5), (9, "sample", 3, 3)],
)
def test_more_than_s_samples_are_seen(
    s: int, fisher: Literal["batch", "sample"], samples: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = client((samples, 0), identity(2, 2), x=torch.zeros(samples, 2))
    taken = many.net.gradient
    seen: list[int] = []
    monkeypatch.setattr(many.net, "gradient", lambda w, x, y, train: seen.append(len(y)) or taken(w, x, y, train))
    Curvature(1, s, fisher).finish(many, ({}, {}), run(many.weights))
    assert len(seen) == batches and sum(seen) == min(samples, 50 * batches if fisher == "batch" else batches)


def test_information_leaves_the_training_alone() -> None:
    net = looking.net(2, 2, batch_norm=True)
    weights = net.initial()
    here = client((3, 3), weights, x=torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), of=net)
    out = look(here, X.repeat(2, 1), Y.repeat(2))
    before, statistics = tree.digest(tree.detach(out.weights)), out.on(X.repeat(2, 1)).logits.detach()
    kept = tree.digest(weights)
    Curvature(1, s=10).finish(here, ({}, {}), run(weights))
    assert tree.digest(weights) == kept and tree.digest(tree.detach(out.weights)) == before
    # the live module still trains: its batch norm goes by the batch
    assert torch.equal(out.on(X.repeat(2, 1)).logits.detach(), statistics)
    assert all(p.requires_grad for p in out.weights.values())
