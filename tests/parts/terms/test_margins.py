from __future__ import annotations

import math

import pytest
import torch

from fedskew.parts.protocol import Term
from fedskew.parts.terms.margins import (
    CalibratedCrossEntropy,
    LogitSuppression,
    MarginCrossEntropy,
    RestrictedCrossEntropy,
    SmoothedCrossEntropy,
)
from tests.parts.terms.looking import Y, Z, client, gradient, still, value


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (SmoothedCrossEntropy(0.1), 0.724438),
        (CalibratedCrossEntropy(1e-9), 0.175832),
        (CalibratedCrossEntropy(0.0), 0.175832),
        (MarginCrossEntropy(0.5), 0.336876),
        (RestrictedCrossEntropy(0.5), 0.546256),
    ],
    ids=lambda given: given.name if isinstance(given, Term) else "",
)
def test_goldens(base: Term, expected: float) -> None:
    assert value(base, client(), Z, Y) == pytest.approx(expected, abs=1e-5)


def test_calibration_by_hand() -> None:
    # equal logits: the softmax is the prior (3/4, 1/4), and the sample is of the rare class
    client_context = client((3, 1), x=torch.zeros(4, 2))
    assert value(CalibratedCrossEntropy(0.0), client_context, torch.zeros(1, 2), torch.tensor([1])) == pytest.approx(
        math.log(4)
    )


def test_margins_by_hand() -> None:
    # equal logits less 16^{-1/4} = 1/2 and 1^{-1/4} = 1, the vacant class out: -log of 1 / (e^{1/2} + 1)
    client_context = client((16, 1, 0), x=torch.zeros(17, 3))
    expected = math.log(math.exp(0.5) + 1)
    assert value(MarginCrossEntropy(1.0), client_context, torch.zeros(1, 3), torch.tensor([1])) == pytest.approx(
        expected
    )


def test_restriction_by_hand() -> None:
    # counts 4, 2, 0: binary scales 1, 1, 1/2; soft ones 1/2 + n_c/8 = 1, 3/4, 1/2
    client_context, z, y = client((4, 2, 0), x=torch.zeros(6, 3)), torch.full((1, 3), 2.0), torch.tensor([0])
    assert value(RestrictedCrossEntropy(0.5), client_context, z, y) == pytest.approx(
        math.log(2 + math.exp(-1)), rel=1e-6
    )
    soft = math.log(1 + math.exp(-0.5) + math.exp(-1))
    assert value(RestrictedCrossEntropy(0.5, "soft"), client_context, z, y) == pytest.approx(soft, rel=1e-6)


@pytest.mark.parametrize("base", [CalibratedCrossEntropy(0.0), MarginCrossEntropy(1.0)])
def test_edge_6_a_single_class_client_learns_nothing_from_a_softmax_over_one_class(base: Term) -> None:
    client_context = client((0, 7, 0, 0, 0))
    assert value(base, client_context, Z, Y) == 0
    assert still(gradient(base, client_context, Z, Y))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_edge_1_restriction_without_vacant_classes_is_cross_entropy(alpha: float) -> None:
    assert value(RestrictedCrossEntropy(alpha), client((1, 2, 3, 4, 5)), Z, Y) == pytest.approx(0.574438, abs=1e-6)


def test_suppression_goldens() -> None:
    z = torch.tensor([[1, 2, -1, 0.5, 0], [0.5, 0, 1, -1, 0.3], [2, -1, 0, 0.2, 0.1]])
    y = torch.tensor([1, 2, 0])
    assert value(LogitSuppression(1.0, "paper"), client(), z, y) == pytest.approx(-0.437106, abs=1e-5)
    assert value(LogitSuppression(0.005), client(), z, y) == pytest.approx(-0.00166127, abs=1e-7)


def test_edge_7_suppression_drops_the_class_of_a_single_class_batch() -> None:
    # p = (1/2, 1/2), all samples of class 0: only log e^{z_1} = 3 of class 1 is left, at weight 1/2
    client_context, z, y = client((2, 2), x=torch.zeros(4, 2)), torch.tensor([[5.0, 3.0]]), torch.tensor([0])
    assert value(LogitSuppression(1.0, "paper"), client_context, z, y) == pytest.approx(1.5)


def test_suppression_on_a_single_class_client() -> None:
    client_context = client((0, 9, 0, 0, 0))
    assert value(LogitSuppression(1.0, "paper"), client_context, Z, Y) == 0
    # as released every sample counts as e^0: log(1/B * B) = 0
    assert value(LogitSuppression(1.0), client_context, Z, Y) == 0
    assert still(gradient(LogitSuppression(1.0), client_context, Z, Y))


def test_suppression_pushes_wrong_observed_logits_down_and_leaves_vacant_ones() -> None:
    grads = gradient(LogitSuppression(1.0), client(), Z, Y)["head.bias"]
    assert (grads[[0, 2]] > 0).all() and not grads[[1, 3, 4]].any()
