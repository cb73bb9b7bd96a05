"""The losses for noisy labels against the specification's goldens, plain-Python twins, their limits and their edges."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedskew import functional as L
from fedskew.core.errors import UserError
from tests.functional import test_losses
from tests.functional.test_losses import Draw, Ours, Plain, Rows, close, extremes, gradient, softmax

Z = torch.tensor([[0.7, 0.2, 0.1]]).log()
SECOND = torch.tensor([[0.5, 0.3, 0.2]]).log()
Y = torch.tensor([0])
FIRST_ONLY = torch.tensor(1.0)


draw = functools.cache(test_losses.draw)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def u_of(d: Draw) -> Tensor:
    return torch.tensor(d.tau / 4)


def plain_symmetric(zs: Rows, y: list[int], alpha: float, beta: float) -> float:
    total = 0.0
    for z, t in zip(zs, y, strict=True):
        p = softmax(dict(enumerate(z)), 1.0)
        onehot = {c: min(max(float(c == t), 1e-4), 1.0) for c in p}
        rce = -sum(min(max(p[c], 1e-7), 1.0) * math.log(onehot[c]) for c in p)
        total += -alpha * math.log(p[t]) + beta * rce
    return total / len(zs)


def plain_entropy(zs: Rows) -> float:
    laws = [softmax(dict(enumerate(z)), 1.0) for z in zs]
    return -sum(v * math.log(v) for p in laws for v in p.values()) / len(zs)


def plain_sharpened(zs: Rows, seconds: Rows, y: list[int], u: float, again: bool) -> float:
    total = 0.0
    for z, second, t in zip(zs, seconds, y, strict=True):
        one, two = softmax(dict(enumerate(z)), 1.0), softmax(dict(enumerate(second)), 1.0)
        squares = {c: (u * one[c] + (1 - u) * two[c]) ** 2 for c in one}
        p_s = {c: v / sum(squares.values()) for c, v in squares.items()}
        total -= math.log(softmax(p_s, 1.0)[t] if again else p_s[t])
    return total / len(zs)


def plain_divergence(zs: Rows, seconds: Rows, tau: float) -> float:
    total = 0.0
    for z, second in zip(zs, seconds, strict=True):
        one, two = (softmax(dict(enumerate(each)), tau) for each in (z, second))
        for c in one:
            a, b = max(one[c], 1e-6), max(two[c], 1e-6)
            total += (a * math.log(2 * a / (a + b)) + b * math.log(2 * b / (a + b))) / 2
    return total / len(zs)


def plain_adjusted(z: list[float], counts: list[int], tau: float) -> dict[int, float]:
    """The student's law over the classes with a count."""
    return softmax({c: z[c] + tau * math.log(n / sum(counts)) for c, n in enumerate(counts) if n}, 1.0)


def plain_prior(zs: Rows, y: list[int], counts: list[int], tau: float) -> float:
    return -sum(math.log(plain_adjusted(z, counts, tau)[t]) for z, t in zip(zs, y, strict=True)) / len(zs)


def plain_prior_distillation(zs: Rows, teachers: Rows, counts: list[int], T: float, tau: float) -> float:
    total = 0.0
    for z, zg in zip(zs, teachers, strict=True):
        p = plain_adjusted(z, counts, tau)
        q = softmax({c: zg[c] for c in p}, T)  # renormalized over the present classes
        total += sum(q[c] * math.log(q[c] / p[c]) for c in p)
    return total / len(zs)


LOSSES: dict[str, tuple[Ours, Plain]] = {
    "prior": (
        lambda z, d: L.prior_cross_entropy(z, d.y, d.counts, d.tau),
        lambda z, d: plain_prior(z, d.y.tolist(), d.counts.tolist(), d.tau),
    ),
    "symmetric": (
        lambda z, d: L.symmetric_cross_entropy(z, d.y, d.tau, 0.7),
        lambda z, d: plain_symmetric(z, d.y.tolist(), d.tau, 0.7),
    ),
    "entropy": (lambda z, d: L.entropy(z), lambda z, d: plain_entropy(z)),
    "sharpened-paper": (
        lambda z, d: L.sharpened_nll(z, d.zg, d.y, u_of(d), "paper"),
        lambda z, d: plain_sharpened(z, d.zg.tolist(), d.y.tolist(), d.tau / 4, again=False),
    ),
    "sharpened-code": (
        lambda z, d: L.sharpened_nll(z, d.zg, d.y, u_of(d), "code"),
        lambda z, d: plain_sharpened(z, d.zg.tolist(), d.y.tolist(), d.tau / 4, again=True),
    ),
    "divergence": (
        lambda z, d: L.jensen_shannon(L.tempered(z, d.tau), L.tempered(d.zg, d.tau)),
        lambda z, d: plain_divergence(z, d.zg.tolist(), d.tau),
    ),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


# Goldens (spec §11) -------------------------------------------------------------------------------------------------


def test_golden_symmetric() -> None:
    assert close(L.symmetric_cross_entropy(Z, Y, 1, 0), 0.356675)
    assert close(L.symmetric_cross_entropy(Z, Y, 0, 1), 2.763102)
    assert close(L.symmetric_cross_entropy(Z, Y, 0.1, 1), 2.798770)


def test_golden_two_views() -> None:
    assert L.tempered(Z)[0].tolist() == pytest.approx([0.974432, 0.022727, 0.002841], abs=1e-6)
    assert close(L.sharpened_nll(Z, SECOND, Y, FIRST_ONLY, "paper"), 0.097164)
    assert close(L.sharpened_nll(Z, SECOND, Y, FIRST_ONLY, "code"), 0.612864)
    divergence = L.jensen_shannon(L.tempered(Z), L.tempered(SECOND))
    assert close(divergence, 0.049586) and close(divergence / 3, 0.016529)


# Twins --------------------------------------------------------------------------------------------------------------


@every_loss
def test_agrees_with_plain_python(name: str) -> None:
    ours, plain = LOSSES[name]
    for seed in range(1000):
        d = draw(seed)
        assert close(ours(d.z, d), plain(d.z.tolist(), d)), seed


def test_distillation_to_an_adjusted_student_agrees_with_plain_python() -> None:
    for seed in range(1000):
        d = draw(seed)
        plain = plain_prior_distillation(d.z.tolist(), d.zg.tolist(), d.counts.tolist(), 0.8, d.tau)
        assert close(L.prior_distillation(d.z, d.zg, d.counts, 0.8, d.tau), plain), seed


@every_loss
def test_gradient_agrees_with_differences_of_plain_python(name: str) -> None:
    ours, plain = LOSSES[name]
    step = 1e-5
    for seed in range(1000, 1050):
        d = draw(seed)
        grad, rows = gradient(ours, d.z, d), d.z.tolist()
        for i, row in enumerate(rows):
            for j, middle in enumerate(row):
                row[j] = middle + step
                above = plain(rows, d)
                row[j] = middle - step
                slope = (above - plain(rows, d)) / (2 * step)
                row[j] = middle
                assert grad[i, j].item() == pytest.approx(slope, rel=1e-3, abs=2e-5), (seed, i, j)


def test_small_losses_agree_with_plain_python() -> None:
    for seed in range(1000):
        d = draw(seed)
        r = (seed % 11) / 10
        losses = [
            -math.log(softmax(dict(enumerate(z)), 1.0)[t]) for z, t in zip(d.z.tolist(), d.y.tolist(), strict=True)
        ]
        kept = max(math.floor(round((1 - r) * len(losses), 6)), 1)
        assert L.small_losses(d.z, d.y, r).tolist() == sorted(sorted(range(len(losses)), key=losses.__getitem__)[:kept])


# Limits and bounds --------------------------------------------------------------------------------------------------


def test_symmetric_limits() -> None:
    for seed in range(100):
        d = draw(seed)
        assert torch.equal(L.symmetric_cross_entropy(d.z, d.y, 1, 0), L.cross_entropy(d.z, d.y))
        p = d.z.double().softmax(1).gather(1, d.y[:, None]).mean().item()
        # 9.2103 (1 - p_y), but for the clipping of at most C 1e-7
        assert close(L.symmetric_cross_entropy(d.z, d.y, 0, 1), -math.log(1e-4) * (1 - p), 1e-4)


def test_reverse_cross_entropy_is_bounded_where_cross_entropy_is_not() -> None:
    wrong = torch.tensor([[1000.0, 0.0]])
    assert L.symmetric_cross_entropy(wrong, torch.tensor([1]), 0, 1).item() == pytest.approx(-math.log(1e-4))
    assert L.symmetric_cross_entropy(wrong, torch.tensor([1]), 1, 0).item() == 1000


def test_u_chooses_the_view() -> None:
    for seed in range(100):
        d = draw(seed)
        for variant in ("code", "paper"):
            first = L.sharpened_nll(d.z, d.zg, d.y, torch.tensor(1.0), variant)
            assert torch.equal(first, L.sharpened_nll(d.z, -d.zg, d.y, torch.tensor(1.0), variant))
            assert close(L.sharpened_nll(d.zg, d.z, d.y, torch.tensor(0.0), variant), first.item())
            unseen = gradient(lambda second, d=d: L.sharpened_nll(d.z, second, d.y, torch.tensor(1.0)), d.zg)
            assert not unseen.any()
        # squares of probabilities are a softmax of twice the logits
        assert close(L.sharpened_nll(d.z, d.z, d.y, u_of(d), "paper"), L.cross_entropy(2 * d.z, d.y).item())


def test_a_second_softmax_squeezes_the_loss() -> None:
    for seed in range(100):
        d = draw(seed)
        top = math.log(math.e + d.z.shape[1] - 1)
        assert top - 1 - 1e-5 <= L.sharpened_nll(50 * d.z, d.zg, d.y, u_of(d), "code") <= top + 1e-5


def test_divergence_is_symmetric_zero_of_equals_and_at_most_log_2() -> None:
    for seed in range(200):
        d = draw(seed)
        q, second = L.tempered(d.z, d.tau), L.tempered(d.zg, d.tau)
        assert torch.equal(L.jensen_shannon(q, second), L.jensen_shannon(second, q))
        assert L.jensen_shannon(q, q).item() == 0
        assert 0 <= L.jensen_shannon(q, second) <= math.log(2) + 1e-4


def test_entropy_is_that_of_chance_at_most() -> None:
    assert L.entropy(torch.zeros(3, 5)).item() == pytest.approx(math.log(5))
    assert L.entropy(torch.tensor([[1000.0, 0.0]])).item() == 0


def test_small_losses_by_hand() -> None:
    z, y = torch.tensor([[0.0, 3.0], [2.0, 0.0], [0.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 0, 0])
    # losses fall with z_0 - z_1 = -3, 2, 0, 1
    assert L.small_losses(z, y, 0.5).tolist() == [1, 3]
    assert L.small_losses(z, y, 0.3).tolist() == [1, 3]  # floor(2.8)
    assert L.small_losses(z, y, 0.0).tolist() == [0, 1, 2, 3]
    assert L.small_losses(z, y, 1.0).tolist() == [1]
    assert L.small_losses(z[:1], y[:1], 0.9).tolist() == [0]
    assert len(L.small_losses(z.repeat(5, 1), y.repeat(5), 0.9)) == 2  # (1 - 0.9) 20 is 1.99... in floating point
    assert L.small_losses(torch.zeros(4, 2), y, 0.5).tolist() == [0, 1]  # the first of equals
    assert L.small_losses(torch.cat((torch.full((1, 2), math.nan), z)), torch.zeros(5).long(), 0.2).tolist() == [
        1,
        2,
        3,
        4,
    ]


def test_linear_ramp() -> None:
    assert [L.linear_ramp(t, 4) for t in (0, 1, 4, 9)] == [0, 0.25, 1, 1]
    assert L.linear_ramp(0, 0) == 1


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(UserError, match="sharpened_nll: variant='printed' is unknown"):
        L.sharpened_nll(Z, SECOND, Y, FIRST_ONLY, "printed")  # type: ignore[arg-type]


# Losses of the methods that learn labels --------------------------------------------------------------------------


def test_symmetric_with_the_papers_logarithm_of_zero() -> None:
    # 0.1 (-ln 0.7) + 4 (0.2 + 0.1)
    assert L.symmetric_cross_entropy(Z, Y, 0.1, 1.0, -4.0).item() == pytest.approx(1.2356675)


def test_generalized_cross_entropy_by_hand() -> None:
    assert L.generalized_cross_entropy(Z, Y, 0.7).item() == pytest.approx((1 - 0.7**0.7) / 0.7)
    assert L.generalized_cross_entropy(Z, Y, 1.0).item() == pytest.approx(0.3)
    assert L.generalized_cross_entropy(Z, Y, 1e-5).item() == pytest.approx(-math.log(0.7), rel=1e-4)
    # the derivative in z_y is -p_y^q (1 - p_y)
    grad = gradient(lambda z: L.generalized_cross_entropy(z, Y, 0.7), Z)
    assert grad[0, 0].item() == pytest.approx(-(0.7**0.7) * 0.3)


def test_early_learning_by_hand() -> None:
    t = torch.tensor([[0.5, 0.25, 0.25]])
    assert L.early_learning(Z, t).item() == pytest.approx(math.log(1 - 0.425))  # 0.35 + 0.05 + 0.025
    assert L.early_learning(Z, torch.zeros(1, 3)).item() == 0
    # where prediction and target are sure, 1 - <p, t> stops at 1e-4
    assert L.early_learning(torch.tensor([[99.0, 0.0]]), torch.tensor([[1.0, 0.0]])).item() == pytest.approx(
        math.log(1e-4)
    )
    # the derivative in p is -t / (1 - <p, t>): the prediction is pulled to its target
    grad = gradient(lambda z: L.early_learning(z, t), Z)
    assert grad[0, 0].item() == pytest.approx(-0.7 * (0.5 - 0.425) / 0.575)


def test_prior_divergence_by_hand() -> None:
    z = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1]]).log()  # whose mean is (0.7, 0.2, 0.1)
    wanted = 0.5 * math.log(0.5 / 0.7) + 0.25 * math.log(0.25 / 0.2) + 0.25 * math.log(0.25 / 0.1)
    assert L.prior_divergence(z, torch.tensor([2, 1, 1])).item() == pytest.approx(wanted)
    assert L.prior_divergence(z, torch.tensor([3, 0, 0])).item() == pytest.approx(-math.log(0.7))  # 0 log 0 is 0
    assert L.prior_divergence(z, torch.tensor([7, 2, 1])).item() == pytest.approx(0, abs=1e-7)


def test_label_divergence_by_hand() -> None:
    v = torch.tensor([[0.5, 0.25, 0.25]]).log()
    wanted = 0.7 * math.log(0.7 / 0.5) + 0.2 * math.log(0.2 / 0.25) + 0.1 * math.log(0.1 / 0.25)
    assert L.label_divergence(Z, v).item() == pytest.approx(wanted)
    assert L.label_divergence(Z, Z + 3).item() == pytest.approx(0, abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(extremes(vacant_targets=False))
def test_losses_that_learn_labels_are_finite(d: Draw) -> None:
    t = d.zg.softmax(-1)
    losses = {
        "gce": lambda z: L.generalized_cross_entropy(z, d.y),
        "elr": lambda z: L.early_learning(z, t),
        "prior": lambda z: L.prior_divergence(z, d.counts),
        "label": lambda z: L.label_divergence(z, d.zg),
    }
    for name, loss in losses.items():
        assert loss(d.z).isfinite() and gradient(loss, d.z).isfinite().all(), name


# Finiteness and precision -------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(extremes(vacant_targets=False), st.sampled_from([0.0, 0.3, 1.0]))
def test_finite(d: Draw, u: float) -> None:
    mixed = {
        variant: (lambda z, d, v=variant: L.sharpened_nll(z, d.zg, d.y, torch.tensor(u), v))
        for variant in ("code", "paper")
    }
    for name, ours in {**{name: ours for name, (ours, _) in LOSSES.items()}, **mixed}.items():
        z = d.z.clone().requires_grad_()
        value = ours(z, d)
        (grad,) = torch.autograd.grad(value, z)
        assert value.isfinite() and grad.isfinite().all(), name


@every_loss
def test_bfloat16_is_computed_in_float32(name: str) -> None:
    d = draw(5)
    half = d.z.bfloat16()
    value = LOSSES[name][0](half, d)
    assert value.dtype == torch.float32
    assert torch.equal(value, LOSSES[name][0](half.float(), d))


@every_loss
def test_weight_zero_leaves_the_gradient_exact(name: str) -> None:
    for seed in range(50):
        d = draw(seed)
        assert torch.equal(gradient(lambda z, d=d: z.square().sum() + 0.0 * LOSSES[name][0](z, d), d.z), 2 * d.z)
