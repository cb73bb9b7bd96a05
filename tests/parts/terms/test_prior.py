from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedskew import functional
from fedskew.core.types import Round, Task
from fedskew.parts.terms.prior import PriorCrossEntropy, RampedDistillation
from fedskew.parts.views import Batch, ForwardPass
from tests.parts.by_hand import server_context
from tests.parts.terms.looking import client, gradient, identity, look, value

# the sample of the specification's goldens (label noise, §11)
Z, ZG, COUNTS = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.0, 2.0, 0.0]]), torch.tensor([6, 3, 1])
RAMP = RampedDistillation(a=0.8, T=0.8, start=10, end=49)


def test_adjusted_cross_entropy_is_the_golden() -> None:
    client_context = client((8, 2, 0), x=torch.zeros(10, 3))
    assert value(PriorCrossEntropy(), client_context, torch.zeros(1, 3), torch.tensor([1])) == pytest.approx(
        1.609438, abs=1e-6
    )


def test_soft_targets_mix_the_hard_ones() -> None:
    hard = [float(functional.prior_cross_entropy(Z, torch.tensor([c]), COUNTS)) for c in range(3)]
    soft = functional.prior_cross_entropy(Z, torch.tensor([[0.5, 0.3, 0.2]]), COUNTS)
    assert float(soft) == pytest.approx(0.5 * hard[0] + 0.3 * hard[1] + 0.2 * hard[2], rel=1e-6)


def test_tau_0_is_cross_entropy_over_the_classes_at_hand() -> None:
    got = functional.prior_cross_entropy(Z, torch.tensor([0]), torch.tensor([6, 3, 0]), 0.0)
    assert float(got) == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-6)


def test_a_class_that_the_client_lacks_gets_no_gradient() -> None:
    client_context = client((8, 2, 0), x=torch.zeros(10, 3))
    grads = gradient(PriorCrossEntropy(), client_context, torch.ones(1, 3), torch.tensor([0]))
    assert grads["head.bias"][2] == 0 and grads["head.bias"][0] != 0


def test_distillation_is_the_golden() -> None:
    assert float(functional.prior_distillation(Z, ZG, COUNTS, 0.8)) == pytest.approx(1.404901, abs=1e-6)


def test_distillation_has_the_gradient_of_the_code() -> None:
    # (S p - y_G) / B on present classes, 0 on absent ones, S the teacher's mass on the present ones
    counts, z = torch.tensor([6, 3, 0]), Z.clone().requires_grad_()
    functional.prior_distillation(z, ZG, counts, 0.8).backward()
    y_g = (ZG / 0.8).softmax(-1)
    p = (Z + torch.tensor([math.log(6), math.log(3), -math.inf])).softmax(-1)
    expected = y_g[:, :2].sum() * p - torch.where(counts > 0, y_g, 0)
    assert z.grad is not None and torch.allclose(z.grad, expected, atol=1e-6)
    assert z.grad[0, 2] == 0


@given(st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=8, max_size=8), st.integers(1, 14))
def test_distillation_is_finite_and_not_negative(numbers: list[float], present: int) -> None:
    z = torch.tensor(numbers[:4]).view(1, 4).requires_grad_()
    counts = torch.tensor([(present >> c) & 1 for c in range(4)]) * 5
    got = functional.prior_distillation(z, torch.tensor(numbers[4:]).view(1, 4), counts)
    got.backward()
    assert z.grad is not None and z.grad.isfinite().all()
    assert math.isfinite(float(got)) and float(got) >= -1e-3


@pytest.mark.parametrize(
    ("t", "lam"), [(10, 0.005390), (15, 0.017894), (25, 0.120436), (35, 0.420019), (48, 0.797374), (49, 0.8), (90, 0.8)]
)
def test_ramp_is_the_golden(t: int, lam: float) -> None:
    assert RAMP.ramp(t, Task(3, (3,), 2)) == pytest.approx(lam, abs=1e-6)


def test_ramp_without_an_end_goes_by_the_runs_length() -> None:
    assert RampedDistillation(0.8, 0.8, 10).ramp(48, Task(3, (3,), 2, rounds=100)) == pytest.approx(0.797374, abs=1e-6)
    assert RampedDistillation(0.8, 0.8, 10).depends_on_total_rounds and not RAMP.depends_on_total_rounds


def test_ramp_of_no_length_is_a_step() -> None:
    step = RampedDistillation(a=0.8, T=0.8, start=10, end=10)
    assert step.ramp(10, Task(3, (3,), 2)) == 0.8
    assert step.ramp(9, Task(3, (3,), 2)) == pytest.approx(0.8 * math.exp(-5))


def taught(lam: float, kd_logits: str = "adjusted") -> float:
    term = RampedDistillation(0.8, 0.8, 10, 49, kd_logits)  # type: ignore[arg-type]
    # the teacher's logits are the inputs plus (-1, 2, 1), which is the golden's (0, 2, 0)
    weights = identity(3, 3, bias=torch.tensor([-1.0, 2.0, 1.0]))
    client_context = client((6, 3, 1), weights, x=torch.zeros(10, 3), extras={"lam": torch.tensor(lam)})
    out = look(client_context, Z, torch.tensor([0]), identity(3, 3))
    return float(term.loss(out, term.begin(client_context)).detach())


def test_loss_on_a_noisy_client_is_the_golden() -> None:
    assert taught(0.5) == pytest.approx(0.796310, abs=1e-6)


def test_loss_without_lam_is_the_adjusted_cross_entropy() -> None:
    assert taught(0.0) == pytest.approx(0.187720, abs=1e-6)


def test_raw_logits_are_distilled_without_the_prior() -> None:
    kl = float(functional.kd(Z, ZG / 0.8))  # a teacher of temperature T, a student without
    assert taught(0.5, "raw") == pytest.approx(0.5 * kl + 0.5 * 0.187720, abs=1e-6)


def test_only_noisy_clients_are_sent_a_weight() -> None:
    at = replace(server_context({}, {"noisy": torch.tensor([0, 1])}), round=Round(20, 20, 0, 1))
    assert float(RAMP.send(at, 0)["lam"]) == 0
    assert float(RAMP.send(at, 1)["lam"]) == pytest.approx(0.0504, abs=1e-4)


def test_soft_targets_reach_the_base() -> None:
    client_context = client((6, 3, 1), x=torch.zeros(10, 3))
    target: Tensor = torch.tensor([[0.0, 1.0, 0.0]])
    out = ForwardPass(
        Batch(Z, torch.tensor([0]), torch.tensor([0]), target),
        client_context.net,
        client_context.net.prepare(client_context.weights),
        {},
    )
    expected = float(functional.prior_cross_entropy(Z, torch.tensor([1]), COUNTS))
    assert float(PriorCrossEntropy().loss(out, COUNTS)) == pytest.approx(expected)
