from __future__ import annotations

import math

import pytest
import torch

from fedskew.core import tree
from fedskew.core.types import Tree
from fedskew.parts.terms.prototypes import Prototypes
from fedskew.parts.views import Accumulator, ClientContext
from tests.parts.terms import looking
from tests.parts.terms.looking import client, gradient, identity, run, sent_up, server_context, still, value

PART = Prototypes(0.5)
X, Y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])


def client_context(extras: Tree | None = None) -> ClientContext:
    return client((1, 1), identity(2, 2), x=torch.zeros(2, 2), extras=extras)


def test_edge_13_the_first_round_is_cross_entropy_alone() -> None:
    assert value(PART, client_context(), X, Y) == 0
    assert still(gradient(PART, client_context(), X, Y))


def test_loss_by_hand() -> None:
    # h = (2, 0); class 0 has prototypes (1, 0) and (0, 1), class 1 has (-1, 0): cosines 1, 0, -1.
    # contrast: -log((e^2 + 1) / (e^2 + 1 + e^-2)); pull to u_0 = (1/2, 1/2): ((3/2)^2 + (1/2)^2) / 2 = 5/4
    prototypes = {
        "clusters": torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]),
        "owner": torch.tensor([0, 0, 1]),
        "mean": torch.tensor([[0.5, 0.5], [-1.0, 0.0]]),
    }
    contrast = math.log((math.exp(2) + 1 + math.exp(-2)) / (math.exp(2) + 1))
    assert value(PART, client_context(prototypes), X, Y) == pytest.approx(contrast + 1.25, rel=1e-5)


def test_one_class_has_no_negatives_and_only_pulls() -> None:
    known = {"clusters": torch.tensor([[1.0, 1.0]]), "owner": torch.tensor([0]), "mean": torch.eye(2)}
    # -log 1 = 0, and ((2 - 1)^2 + 0) / 2
    assert value(Prototypes(0.02), client_context(known), X, Y) == pytest.approx(0.5, rel=1e-5)
    # a sample of the class without prototypes adds nothing, but counts in the mean
    both = value(Prototypes(0.02), client_context(known), X.repeat(2, 1), torch.tensor([0, 1]))
    assert both == pytest.approx(0.25, rel=1e-5)
    assert still(gradient(PART, client_context(known), X, torch.tensor([1])))


def test_a_client_sends_the_mean_features_of_its_classes() -> None:
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    here = client((2, 0, 1), identity(2, 3), x=x, y=torch.tensor([0, 0, 2]), of=looking.net(2, 3))
    doubled = identity(2, 3) | {"trunk.weight": 2 * torch.eye(2)}  # features are taken after training
    up, kept = PART.finish(here, {}, run(doubled))
    assert up["class"].tolist() == [0, 2] and up["mean"].tolist() == [[4.0, 0.0], [0.0, 10.0]]
    assert kept == {}


def test_features_are_taken_in_evaluation_mode_and_write_nothing() -> None:
    net = looking.net(2, 2, batch_norm=True)
    weights = net.initial() | {"trunk.0.weight": torch.eye(2)}
    x = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    before = tree.digest(weights)
    up, _ = PART.finish(client((1, 1), weights, x=x, of=net), {}, run(weights))
    # running mean 0 and variance 1 leave the inputs as they are; the batch's would center them
    assert torch.allclose(up["mean"], x, atol=1e-4)
    assert tree.digest(weights) == before


def test_the_server_clusters_each_class_and_averages_its_clusters() -> None:
    # class 0: two directions, of two clients each; class 2: one client
    uploads = [
        {"mean": torch.tensor([[1.0, 0.0], [0.0, 7.0]]), "class": torch.tensor([0, 2])},
        {"mean": torch.tensor([[3.0, 0.0]]), "class": torch.tensor([0])},
        {"mean": torch.tensor([[0.0, 2.0]]), "class": torch.tensor([0])},
        {"mean": torch.tensor([[0.0, 6.0]]), "class": torch.tensor([0])},
    ]
    updates = [sent_up(PART, extra, number) for number, extra in enumerate(uploads)]
    memory = PART.merge(server_context(looking.net(2, 3), 3, updates=updates), Accumulator())
    assert memory["clusters"].tolist() == [[2.0, 0.0], [0.0, 4.0], [0.0, 7.0]]
    assert memory["owner"].tolist() == [0, 0, 2]
    # the mean of the cluster means, not of the clients
    assert memory["mean"].tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 7.0]]
    assert PART.send(server_context(looking.net(2, 3), 3, memory), 0) is memory
