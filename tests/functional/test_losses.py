"""The losses against the specification's goldens, plain-Python twins, their limits and their edges."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedskew import functional as L
from fedskew.core.errors import UserError

Rows = list[list[float]]

Z = torch.tensor([[1, 2, -1, 0.5, 0]])
ZG = torch.tensor([[0, 1, 2, -0.5, 1.5]])
Y = torch.tensor([1])
MAJORITY = torch.tensor([True, True, False, False, False])
COUNTS = torch.tensor([30, 60, 10, 0, 0])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def close(value: Tensor, expected: float, tolerance: float = 1e-5) -> bool:
    assert value.shape == () and value.dtype == torch.float32
    return value.item() == pytest.approx(expected, rel=tolerance, abs=tolerance)


def gradient(loss: Callable[..., Tensor], x: Tensor, *rest: Any) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(leaf, *rest), leaf)[0]


# Goldens (spec §14) -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "tau_1", "tau_3"),
    [
        (lambda tau: L.kd(Z, ZG, tau), 1.306468, 1.403420),
        (lambda tau: L.ntd(Z, ZG, Y, tau), 1.169946, 1.431040),
        (lambda tau: L.ntd(Z, None, Y, tau), 0.235273, 0.262280),
        (lambda tau: L.lmd(Z, ZG, Y, MAJORITY, tau), 1.489433, 4.735915),
        (lambda tau: L.lmd(Z, None, Y, MAJORITY, tau), 0.814622, 3.726418),
        (lambda tau: L.lmd(Z, ZG, torch.tensor([2]), MAJORITY, tau), 2.121071, 9.109414),
        (lambda tau: L.vacant_distillation(Z, ZG, COUNTS, tau), 0.549142, 0.745881),
        (lambda tau: L.ekd(Z, ZG, COUNTS, tau), 1.602370, 1.773860),
    ],
    ids=["kd", "ntd", "ntd-tf", "lmd", "lmd-tf", "lmd-y2", "vacant", "ekd"],
)
def test_golden_distillation(loss: Callable[[float], Tensor], tau_1: float, tau_3: float) -> None:
    assert close(loss(1.0), tau_1)
    assert close(loss(3.0), tau_3)


def test_golden_decoupled() -> None:
    assert close(L.dkd(Z, ZG, Y, alpha=1.0, beta=0.0), 0.332888)
    assert close(L.dkd(Z, ZG, Y, alpha=0.0, beta=1.0), 1.169946)
    assert close(L.dkd(Z, ZG, Y, alpha=0.0, beta=1.0, tau=3.0), 1.431040)


def test_golden_cross_entropies() -> None:
    assert close(L.cross_entropy(Z, Y), 0.574438)
    assert close(L.label_smoothing(Z, Y, 0.1), 0.724438)
    assert close(L.calibrated_cross_entropy(Z, Y, COUNTS, 0.0), 0.175832)
    assert close(L.calibrated_cross_entropy(Z, Y, COUNTS, 1e-9), 0.175832)
    assert close(L.margin_cross_entropy(Z, Y, COUNTS, 0.5), 0.336876)
    assert close(L.restricted_cross_entropy(Z, Y, COUNTS, 0.5), 0.546256)


def test_golden_suppression() -> None:
    z = torch.tensor([[1, 2, -1, 0.5, 0], [0.5, 0, 1, -1, 0.3], [2, -1, 0, 0.2, 0.1]])
    y = torch.tensor([1, 2, 0])
    assert close(L.logit_suppression(z, y, COUNTS, form="paper"), -0.437106)
    assert close(L.logit_suppression(z, y, COUNTS, form="code"), -0.332254)
    assert close(0.005 * L.logit_suppression(z, y, COUNTS), -0.00166127, 1e-8)


# Plain-Python twins: loops and the math module only -----------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """One random situation; `tau` stands for whichever positive scalar a loss takes."""

    z: Tensor
    zg: Tensor
    y: Tensor
    counts: Tensor
    majority: Tensor
    teacher_support: Tensor
    student_support: Tensor
    tau: float
    h: Tensor
    others: Tensor
    clusters: Tensor
    owner: Tensor
    mean: Tensor


@functools.cache
def draw(seed: int) -> Draw:
    dice, torch_dice = random.Random(seed), torch.Generator().manual_seed(seed)
    batch, classes, width, prototypes = dice.randint(1, 4), dice.randint(2, 6), dice.randint(1, 5), dice.randint(1, 6)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch_dice)

    y = torch.tensor([dice.randrange(classes) for _ in range(batch)])
    counts = torch.tensor([dice.choice([0, 0, 1, 7, 40]) for _ in range(classes)])
    counts += torch.bincount(y, minlength=classes)
    student = torch.rand(batch, classes, generator=torch_dice) < 0.7
    return Draw(
        z=3 * normal(batch, classes),
        zg=3 * normal(batch, classes),
        y=y,
        counts=counts,
        majority=torch.rand(classes, generator=torch_dice) < 0.4,
        teacher_support=student & (torch.rand(batch, classes, generator=torch_dice) < 0.7),
        student_support=student,
        tau=dice.choice([0.5, 1.0, 2.0, 3.0]),
        h=normal(batch, width),
        others=normal(dice.randint(0, 2), batch, width),
        clusters=normal(prototypes, width),
        owner=torch.tensor([dice.randrange(classes) for _ in range(prototypes)]),
        mean=normal(classes, width),
    )


def softmax(logits: dict[int, float], tau: float) -> dict[int, float]:
    top = max(logits.values(), default=0.0)
    weights = {c: math.exp((v - top) / tau) for c, v in logits.items()}
    return {c: w / sum(weights.values()) for c, w in weights.items()}


def plain_kl(zs: Rows, zgs: Rows | None, a: list[list[int]], b: list[list[int]], tau: float) -> float:
    total = 0.0
    for i, z in enumerate(zs):
        zg = [0.0] * len(z) if zgs is None else zgs[i]
        p, q = softmax({c: z[c] for c in b[i]}, tau), softmax({c: zg[c] for c in a[i]}, tau)
        total += sum(q[c] * math.log(q[c] / p[c]) for c in a[i])
    return tau**2 * total / len(zs)


def plain_ce(zs: Rows, y: list[int], weight: Callable[[int, int], float] | None = None) -> float:
    """Cross-entropy against the law weight(c, y), one-hot unless given; a logit of -inf is out of the softmax."""
    total = 0.0
    for z, t in zip(zs, y, strict=True):
        p = softmax({c: v for c, v in enumerate(z) if v > -math.inf}, 1.0)
        total -= math.log(p[t]) if weight is None else sum(weight(c, t) * math.log(p[c]) for c in p)
    return total / len(zs)


def plain_decoupled(zs: Rows, zgs: Rows, y: list[int], alpha: float, beta: float, tau: float) -> float:
    total = 0.0
    for z, zg, t in zip(zs, zgs, y, strict=True):
        p, q = softmax(dict(enumerate(z)), tau), softmax(dict(enumerate(zg)), tau)
        rest_p, rest_q = sum(v for c, v in p.items() if c != t), sum(v for c, v in q.items() if c != t)
        total += alpha * (q[t] * math.log(q[t] / p[t]) + rest_q * math.log(rest_q / rest_p))
        total += beta * sum(q[c] / rest_q * math.log(q[c] / rest_q / (p[c] / rest_p)) for c in p if c != t)
    return tau**2 * total / len(zs)


def plain_calibrated(zs: Rows, y: list[int], n: list[int], eps: float) -> float:
    shift = [math.log(c / sum(n) + eps) if c or eps else -math.inf for c in n]
    return plain_ce([[v + s for v, s in zip(z, shift, strict=True)] for z in zs], y)


def soft_scales(n: list[int], alpha: float) -> list[float]:
    return [alpha + (1 - alpha) * c / max(n) for c in n]


def plain_margin(zs: Rows, y: list[int], n: list[int], tau: float) -> float:
    return plain_ce([[v - tau * c**-0.25 if c else -math.inf for v, c in zip(z, n, strict=True)] for z in zs], y)


def plain_suppression(zs: Rows, y: list[int], n: list[int], form: str) -> float:
    total = 0.0
    for c, count in enumerate(n):
        p = count / sum(n)
        if form == "code" and p:
            terms = [1.0 if t == c else math.exp(z[c]) / ((p + 1e-9) * len(n)) for z, t in zip(zs, y, strict=True)]
        else:
            terms = [math.exp(z[c]) for z, t in zip(zs, y, strict=True) if t != c]
        if p and terms:
            total += p * math.log(sum(terms) / len(zs))
    return total


def cosine(a: list[float], b: list[float]) -> float:
    return math.fsum(i * j for i, j in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def plain_contrast(hs: Rows, pool: list[Rows], tau: float) -> float:
    total = 0.0
    for i, h in enumerate(hs):
        scores = [math.exp(cosine(h, model[i]) / tau) for model in pool]
        total -= math.log(scores[0] / sum(scores))
    return total / len(hs)


def plain_prototypes(hs: Rows, y: list[int], clusters: Rows, owner: list[int], mean: Rows, tau: float) -> float:
    total = 0.0
    for h, t in zip(hs, y, strict=True):
        if t in owner:
            scores = [math.exp(cosine(h, v) / tau) for v in clusters]
            total -= math.log(sum(s for s, o in zip(scores, owner, strict=True) if o == t) / sum(scores))
            total += sum((a - b) ** 2 for a, b in zip(h, mean[t], strict=True)) / len(h)
    return total / len(hs)


def plain_manifold(hs: Rows, y: list[int]) -> float:
    total, samples, width = 0.0, 0, len(hs[0])
    for c in set(y):
        members = [h for h, t in zip(hs, y, strict=True) if t == c]
        m = len(members)
        if m < 2:
            continue
        samples += m
        columns = []
        for j in range(width):
            values = [h[j] for h in members]
            center = sum(values) / m
            deviation = math.sqrt(sum((v - center) ** 2 for v in values) / (m - 1) + 1e-8)
            columns.append([(v - center) / deviation for v in values])
        pairs = [
            sum(a * b for a, b in zip(columns[i], columns[j], strict=True)) ** 2
            for i in range(width)
            for j in range(width)
            if i != j
        ]
        total += sum(pairs) / max(len(pairs), 1)
    return total / max(samples, 1)


def classes_where(mask: Tensor, batch: int) -> list[list[int]]:
    rows = mask.tolist() if mask.dim() == 2 else [mask.tolist()] * batch
    return [[c for c, inside in enumerate(row) if inside] for row in rows]


def plain_supported(zs: Rows, zg: Tensor | None, a: Tensor, b: Tensor, tau: float) -> float:
    teacher = None if zg is None else zg.tolist()
    return plain_kl(zs, teacher, classes_where(a, len(zs)), classes_where(b, len(zs)), tau)


def not_y(d: Draw) -> Tensor:
    mask = torch.ones_like(d.z, dtype=torch.bool)
    for i, t in enumerate(d.y.tolist()):
        mask[i, t] = False
    return mask


def smoothed(d: Draw, mu: float) -> Callable[[int, int], float]:
    return lambda c, t: (1 - mu) * (c == t) + mu / d.z.shape[1]


Ours = Callable[[Tensor, Draw], Tensor]
Plain = Callable[[Rows, Draw], float]

#: Losses of the logits: ours on a tensor, its twin on lists.
ON_LOGITS: dict[str, tuple[Ours, Plain]] = {
    "masked_kl": (
        lambda z, d: L.masked_kl(z, d.zg, d.teacher_support, d.student_support, d.tau),
        lambda z, d: plain_supported(z, d.zg, d.teacher_support, d.student_support, d.tau),
    ),
    "masked_kl-tf": (
        lambda z, d: L.masked_kl(z, None, d.teacher_support, d.student_support, d.tau),
        lambda z, d: plain_supported(z, None, d.teacher_support, d.student_support, d.tau),
    ),
    "masked_kl-[C]": (
        lambda z, d: L.masked_kl(z, d.zg, d.majority, d.majority | (d.counts > 0), d.tau),
        lambda z, d: plain_supported(z, d.zg, d.majority, d.majority | (d.counts > 0), d.tau),
    ),
    "kd": (
        lambda z, d: L.kd(z, d.zg, d.tau),
        lambda z, d: plain_supported(z, d.zg, d.z < math.inf, d.z < math.inf, d.tau),
    ),
    "kd-tf": (
        lambda z, d: L.kd(z, None, d.tau),
        lambda z, d: plain_supported(z, None, d.z < math.inf, d.z < math.inf, d.tau),
    ),
    "ntd": (
        lambda z, d: L.ntd(z, d.zg, d.y, d.tau),
        lambda z, d: plain_supported(z, d.zg, not_y(d), not_y(d), d.tau),
    ),
    "ntd-tf": (
        lambda z, d: L.ntd(z, None, d.y, d.tau),
        lambda z, d: plain_supported(z, None, not_y(d), not_y(d), d.tau),
    ),
    "lmd": (
        lambda z, d: L.lmd(z, d.zg, d.y, d.majority, d.tau),
        lambda z, d: plain_supported(z, d.zg, not_y(d) & ~d.majority, not_y(d), d.tau),
    ),
    "lmd-tf": (
        lambda z, d: L.lmd(z, None, d.y, d.majority, d.tau),
        lambda z, d: plain_supported(z, None, not_y(d) & ~d.majority, not_y(d), d.tau),
    ),
    "ekd": (
        lambda z, d: L.ekd(z, d.zg, d.counts, d.tau),
        lambda z, d: plain_supported(z, d.zg, d.counts > 0, d.counts > 0, d.tau),
    ),
    "vacant_distillation": (
        lambda z, d: L.vacant_distillation(z, d.zg, d.counts, d.tau),
        lambda z, d: plain_supported(z, d.zg, d.counts == 0, d.counts == 0, d.tau),
    ),
    "dkd": (
        lambda z, d: L.dkd(z, d.zg, d.y, 0.7, 1.3, d.tau),
        lambda z, d: plain_decoupled(z, d.zg.tolist(), d.y.tolist(), 0.7, 1.3, d.tau),
    ),
    "dkd-tf": (
        lambda z, d: L.dkd(z, None, d.y, 0.7, 1.3, d.tau),
        lambda z, d: plain_decoupled(z, torch.zeros_like(d.zg).tolist(), d.y.tolist(), 0.7, 1.3, d.tau),
    ),
    "cross_entropy": (
        lambda z, d: L.cross_entropy(z, d.y),
        lambda z, d: plain_ce(z, d.y.tolist()),
    ),
    "label_smoothing": (
        lambda z, d: L.label_smoothing(z, d.y, d.tau / 10),
        lambda z, d: plain_ce(z, d.y.tolist(), smoothed(d, d.tau / 10)),
    ),
    "calibrated": (
        lambda z, d: L.calibrated_cross_entropy(z, d.y, d.counts, 1e-9),
        lambda z, d: plain_calibrated(z, d.y.tolist(), d.counts.tolist(), 1e-9),
    ),
    "calibrated-exact": (
        lambda z, d: L.calibrated_cross_entropy(z, d.y, d.counts, 0.0),
        lambda z, d: plain_calibrated(z, d.y.tolist(), d.counts.tolist(), 0.0),
    ),
    "restricted": (
        lambda z, d: L.restricted_cross_entropy(z, d.y, d.counts, d.tau / 4),
        lambda z, d: plain_ce(
            [[v * (1 if n else d.tau / 4) for v, n in zip(row, d.counts.tolist(), strict=True)] for row in z],
            d.y.tolist(),
        ),
    ),
    "restricted-soft": (
        lambda z, d: L.restricted_cross_entropy(z, d.y, d.counts, d.tau / 4, mode="soft"),
        lambda z, d: plain_ce(
            [[v * s for v, s in zip(row, soft_scales(d.counts.tolist(), d.tau / 4), strict=True)] for row in z],
            d.y.tolist(),
        ),
    ),
    "margin": (
        lambda z, d: L.margin_cross_entropy(z, d.y, d.counts, d.tau),
        lambda z, d: plain_margin(z, d.y.tolist(), d.counts.tolist(), d.tau),
    ),
    "suppression-code": (
        lambda z, d: L.logit_suppression(z, d.y, d.counts, form="code"),
        lambda z, d: plain_suppression(z, d.y.tolist(), d.counts.tolist(), "code"),
    ),
    "suppression-paper": (
        lambda z, d: L.logit_suppression(z, d.y, d.counts, form="paper"),
        lambda z, d: plain_suppression(z, d.y.tolist(), d.counts.tolist(), "paper"),
    ),
}

#: Losses of the features.
ON_FEATURES: dict[str, tuple[Ours, Plain]] = {
    "model_contrast": (
        lambda h, d: L.model_contrast(h, d.h.flip(1), d.others, d.tau),
        lambda h, d: plain_contrast(h, [d.h.flip(1).tolist(), *d.others.tolist()], d.tau),
    ),
    "prototype_contrast": (
        lambda h, d: L.prototype_contrast(h, d.y, d.clusters, d.owner, d.mean, d.tau),
        lambda h, d: plain_prototypes(h, d.y.tolist(), d.clusters.tolist(), d.owner.tolist(), d.mean.tolist(), d.tau),
    ),
    "manifold": (
        lambda h, d: L.manifold(h, d.y),
        lambda h, d: plain_manifold(h, d.y.tolist()),
    ),
}

ALL = {**ON_LOGITS, **ON_FEATURES}


def argument(name: str, d: Draw) -> Tensor:
    return d.z if name in ON_LOGITS else d.h


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_plain_python(name: str) -> None:
    ours, plain = ALL[name]
    for seed in range(1000):
        d = draw(seed)
        x = argument(name, d)
        assert close(ours(x, d), plain(x.tolist(), d)), seed


@pytest.mark.parametrize("name", ALL)
def test_gradient_agrees_with_differences_of_plain_python(name: str) -> None:
    ours, plain = ALL[name]
    step = 1e-5
    for seed in range(1000, 1050):
        d = draw(seed)
        x = argument(name, d)
        if name in ON_FEATURES and x.shape[1] == 1:
            continue  # cosine and standardization of a single dimension are steps, not slopes
        grad = gradient(ours, x, d)
        rows = x.tolist()
        for i, row in enumerate(rows):
            for j, middle in enumerate(row):
                row[j] = middle + step
                above = plain(rows, d)
                row[j] = middle - step
                slope = (above - plain(rows, d)) / (2 * step)
                row[j] = middle
                assert grad[i, j].item() == pytest.approx(slope, rel=1e-3, abs=2e-5), (seed, i, j)


def test_weights_agree_with_plain_python() -> None:
    for seed in range(1000):
        dice = torch.Generator().manual_seed(seed)
        w, r, u, v = (
            {n: torch.randn(s, generator=dice) for n, s in {"a": (2, 3), "b": (4,)}.items()} for _ in range(4)
        )
        flat = [torch.cat([tree[n].flatten() for n in w]).tolist() for tree in (w, r, u, v)]
        assert close(L.proximal(w, r), sum((a - b) ** 2 for a, b, _, _ in zip(*flat, strict=True)) / 2)
        assert close(L.curvature(w, u, v), sum(a * c * a - 2 * d * a for a, _, c, d in zip(*flat, strict=True)))


def test_majority_agrees_with_plain_python() -> None:
    for seed in range(1000):
        counts = draw(seed).counts
        n, total = counts.tolist(), int(counts.sum())
        present = sum(c > 0 for c in n)
        assert L.majority_labels(counts).tolist() == [c > total / len(n) for c in n]
        assert L.majority_labels(counts, rule="mean_present").tolist() == [c > 0 and c * present >= total for c in n]


# Identities ---------------------------------------------------------------------------------------------------------


def test_gradient_of_masked_kl_is_student_minus_teacher() -> None:
    """dL/dz_c = (tau / B)(p_c - q_c) on B, 0 elsewhere (spec §2)."""
    for seed in range(200):
        d = draw(seed)
        supported = d.teacher_support.any(1, keepdim=True)
        p = (d.z / d.tau).masked_fill(~d.student_support, -1e30).softmax(1) * d.student_support
        q = (d.zg / d.tau).masked_fill(~d.teacher_support, -1e30).softmax(1) * d.teacher_support
        expected = d.tau / len(d.z) * (p - q) * supported
        actual = gradient(ON_LOGITS["masked_kl"][0], d.z, d)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_kd_is_target_plus_weighted_non_target() -> None:
    for seed in range(200):
        d = draw(seed)
        z, zg, y = d.z[:1], d.zg[:1], d.y[:1]
        rest = 1 - zg.double().softmax(1)[0, y[0]].item()
        assert close(L.kd(z, zg), L.dkd(z, zg, y, alpha=1.0, beta=rest).item())


def test_limits() -> None:
    for seed in range(100):
        d = draw(seed)
        nobody, everybody = torch.zeros_like(d.majority), d.counts.clamp(min=1)
        plain = L.cross_entropy(d.z, d.y)
        assert torch.equal(L.lmd(d.z, d.zg, d.y, nobody, d.tau), L.ntd(d.z, d.zg, d.y, d.tau))
        assert torch.equal(L.restricted_cross_entropy(d.z, d.y, d.counts, 1.0), plain)
        assert torch.equal(L.label_smoothing(d.z, d.y, 0.0), plain)
        assert torch.equal(L.margin_cross_entropy(d.z, d.y, everybody, 0.0), plain)
        assert close(L.calibrated_cross_entropy(d.z, d.y, torch.full_like(d.counts, 9), 0.0), plain.item())
        assert close(L.margin_cross_entropy(d.z, d.y, torch.full_like(d.counts, 9), d.tau), plain.item())
        assert close(L.ekd(d.z, d.zg, everybody, d.tau), L.kd(d.z, d.zg, d.tau).item())
        assert L.proximal({"z": d.z}, {"z": d.z}).item() == 0


def test_eps_is_a_ceiling_on_vacant_logits_and_invisible_below_it() -> None:
    exact = L.calibrated_cross_entropy(Z, Y, COUNTS, 0.0)
    assert close(L.calibrated_cross_entropy(Z, Y, COUNTS, 1e-9), exact.item(), 1e-7)
    high = Z + torch.tensor([0, 0, 0, 0, 40.0])
    assert L.calibrated_cross_entropy(high, Y, COUNTS, 0.0) == exact
    assert L.calibrated_cross_entropy(high, Y, COUNTS, 1e-9) > 10
    assert gradient(lambda z: L.calibrated_cross_entropy(z, Y, COUNTS, 0.0), high)[0, 3:].abs().max() == 0


@pytest.mark.parametrize("name", ALL)
def test_weight_zero_leaves_the_gradient_exact(name: str) -> None:
    def total(x: Tensor, d: Draw) -> Tensor:
        return x.square().sum() + 0.0 * ALL[name][0](x, d)

    for seed in range(50):
        d = draw(seed)
        x = argument(name, d)
        assert torch.equal(gradient(total, x, d), 2 * x)


@pytest.mark.parametrize("name", [n for n in ON_LOGITS if "suppression" not in n])
def test_divergences_and_entropies_are_not_negative(name: str) -> None:
    for seed in range(200):
        d = draw(seed)
        assert ON_LOGITS[name][0](d.z, d) >= -1e-6


# Finiteness ---------------------------------------------------------------------------------------------------------

logit = st.floats(-1e4, 1e4, width=32)


@st.composite
def extremes(draw: st.DrawFn, vacant_targets: bool) -> Draw:
    """Logits up to +-1e4; any counts, with targets among the observed classes unless `vacant_targets`."""
    batch, classes = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    counts = draw(st.lists(st.sampled_from([0, 0, 1, 1000]), min_size=classes, max_size=classes))
    if not vacant_targets and not any(counts):
        counts[draw(st.integers(0, classes - 1))] = 3
    allowed = [c for c in range(classes) if vacant_targets or counts[c]]

    def matrix(rows: int) -> Tensor:
        values = draw(st.lists(logit, min_size=rows * classes, max_size=rows * classes))
        return torch.tensor(values, dtype=torch.float32).reshape(rows, classes)

    def mask(size: int) -> Tensor:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)))

    student = mask(batch * classes).reshape(batch, classes)
    return Draw(
        z=matrix(batch),
        zg=matrix(batch),
        y=torch.tensor(draw(st.lists(st.sampled_from(allowed), min_size=batch, max_size=batch))),
        counts=torch.tensor(counts),
        majority=mask(classes),
        teacher_support=student & mask(batch * classes).reshape(batch, classes),
        student_support=student,
        tau=draw(st.sampled_from([0.02, 0.5, 1.0, 3.0])),
        h=matrix(batch),
        others=matrix(batch)[None],
        clusters=matrix(3),
        owner=torch.tensor(draw(st.lists(st.integers(0, classes - 1), min_size=3, max_size=3))),
        mean=matrix(classes),
    )


def assert_finite(name: str, d: Draw) -> None:
    x = argument(name, d).clone().requires_grad_()
    value = ALL[name][0](x, d)
    (grad,) = torch.autograd.grad(value, x)
    assert value.shape == () and value.dtype == torch.float32
    assert value.isfinite(), name
    assert grad.isfinite().all(), name


@settings(max_examples=150, deadline=None)
@given(extremes(vacant_targets=False))
def test_finite(d: Draw) -> None:
    for name in ALL:
        assert_finite(name, d)


@settings(max_examples=75, deadline=None)
@given(extremes(vacant_targets=True))
def test_finite_even_if_targets_are_vacant_or_nothing_is_observed(d: Draw) -> None:
    for name in ALL.keys() - {"calibrated-exact", "margin"}:
        assert_finite(name, d)


@pytest.mark.parametrize("name", ALL)
def test_no_intermediate_gradient_is_nan(name: str) -> None:
    with torch.autograd.set_detect_anomaly(True):
        for seed in range(50):
            d = draw(seed)
            gradient(ALL[name][0], argument(name, d), d)


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_is_computed_in_float32(name: str) -> None:
    d = draw(5)
    half = argument(name, d).bfloat16()
    value = ALL[name][0](half, d)
    assert value.dtype == torch.float32
    assert torch.equal(value, ALL[name][0](half.float(), d))


def test_masked_classes_are_out_however_low_the_others() -> None:
    """Subtracting 1000 from masked logits, as released, lets them back in here."""
    low, majority = -8192.0, torch.tensor([False, True, True, False, False])
    for student, teacher in ((Z + low, ZG), (Z, ZG + low), (Z + low, ZG + low)):
        assert close(L.ntd(student, teacher, Y), L.ntd(Z, ZG, Y).item(), 1e-3)
        assert close(L.lmd(student, teacher, Y, majority), L.lmd(Z, ZG, Y, majority).item(), 1e-3)
        assert close(L.vacant_distillation(student, teacher, COUNTS), 0.549142, 1e-3)
    assert close(L.margin_cross_entropy(Z + low, Y, COUNTS, 0.5), 0.336876, 1e-3)
    assert close(L.logit_suppression(Z + low, Y, COUNTS, form="paper"), 0.3 * (1 + low) + 0.1 * (-1 + low), 1e-6)


def test_float16_logits_beyond_the_range_of_exp() -> None:
    z = torch.full((4, 5), 60000.0, dtype=torch.float16)
    for form in ("code", "paper"):
        assert L.logit_suppression(z, torch.tensor([0, 1, 2, 0]), COUNTS, form=form).isfinite()


# Edges (spec §5, by row) --------------------------------------------------------------------------------------------


def vanishes(loss: Callable[..., Tensor], x: Tensor, *rest: Any) -> bool:
    """Zero, and with a zero gradient, exactly."""
    return loss(x, *rest).item() == 0 and not gradient(loss, x, *rest).any()


def test_1_no_vacant_class() -> None:
    counts = torch.tensor([30, 60, 10, 1, 5])
    assert vanishes(L.vacant_distillation, Z, ZG, counts)
    assert torch.equal(L.restricted_cross_entropy(Z, Y, counts, 0.5), L.cross_entropy(Z, Y))
    assert close(L.ekd(Z, ZG, counts), L.kd(Z, ZG).item())
    assert close(L.margin_cross_entropy(Z, Y, counts), plain_margin(Z.tolist(), [1], counts.tolist(), 1.0))

    def total(z: Tensor, lam: float) -> Tensor:
        return L.calibrated_cross_entropy(z, Y, counts) + lam * L.vacant_distillation(z, ZG, counts)

    assert torch.equal(gradient(lambda z: total(z, 0.5), Z), gradient(lambda z: total(z, 0.0), Z))


def test_2_one_vacant_class() -> None:
    counts = torch.tensor([30, 60, 10, 5, 0])
    assert vanishes(L.vacant_distillation, Z, ZG, counts)
    one_observed = torch.tensor([0, 60, 0, 0, 0])
    assert vanishes(L.ekd, Z, ZG, one_observed)


@pytest.mark.parametrize("teacher", [ZG, None])
def test_3_no_minority_class_beside_the_target(teacher: Tensor | None) -> None:
    majority = torch.tensor([True, False, True, True, True])
    assert vanishes(L.lmd, Z, teacher, Y, majority)
    both = None if teacher is None else teacher.expand(2, -1)
    mixed = L.lmd(Z.expand(2, -1), both, torch.tensor([1, 0]), majority)
    assert close(mixed, L.lmd(Z, teacher, torch.tensor([0]), majority).item() / 2)


@pytest.mark.parametrize("teacher", [ZG[:, :2], None])
def test_3_two_classes_leave_nothing_to_distil(teacher: Tensor | None) -> None:
    for majority in torch.tensor([[False, False], [True, False], [False, True], [True, True]]):
        assert vanishes(L.lmd, Z[:, :2], teacher, Y, majority)
    assert vanishes(L.ntd, Z[:, :2], teacher, Y)


def test_4_and_5_balanced_client() -> None:
    balanced = torch.full((5,), 20)
    every, none = L.majority_labels(balanced, "mean_present"), L.majority_labels(balanced)
    assert every.all() and not none.any()
    assert vanishes(L.lmd, Z, ZG, Y, every)
    assert torch.equal(L.lmd(Z, ZG, Y, none), L.ntd(Z, ZG, Y))


def test_majority_rules() -> None:
    assert L.majority_labels(COUNTS).tolist() == [True, True, False, False, False]
    assert L.majority_labels(COUNTS, rule="mean_present").tolist() == [False, True, False, False, False]
    nobody = torch.zeros(5, dtype=torch.int64)
    assert not L.majority_labels(nobody).any() and not L.majority_labels(nobody, rule="mean_present").any()


def test_6_single_class_client() -> None:
    counts = torch.tensor([0, 60, 0, 0, 0])
    assert vanishes(L.margin_cross_entropy, Z, Y, counts)
    assert vanishes(L.calibrated_cross_entropy, Z, Y, counts, 0.0)
    assert close(L.calibrated_cross_entropy(Z, Y, counts), 0.0, 1e-7)
    assert vanishes(L.logit_suppression, Z, Y, counts, "paper")


def test_7_single_class_batch_drops_that_class() -> None:
    z, y = Z.expand(3, -1), torch.tensor([1, 1, 1])
    expected = 0.3 * 1.0 + 0.1 * -1.0  # p(0) z_0 + p(2) z_2; class 1 is the batch's
    assert close(L.logit_suppression(z, y, COUNTS, form="paper"), expected)
    assert not gradient(lambda x: L.logit_suppression(x, y, COUNTS, form="paper"), z)[:, 1].any()
    assert L.logit_suppression(z, y, COUNTS, form="code").isfinite()


def test_8_vacant_target() -> None:
    vacant = torch.tensor([4])
    assert L.calibrated_cross_entropy(torch.zeros(1, 5), vacant, COUNTS).item() == pytest.approx(20.72, abs=0.01)
    with pytest.raises(ValueError, match="vacant class"):
        L.calibrated_cross_entropy(Z, vacant, COUNTS, 0.0)
    with pytest.raises(ValueError, match="vacant class"):
        L.margin_cross_entropy(Z, vacant, COUNTS)


def test_10_margin_of_zero_times_infinity() -> None:
    observed = Z[:, :3]
    assert close(L.margin_cross_entropy(Z, Y, COUNTS, 0.0), L.cross_entropy(observed, Y).item())
    assert gradient(lambda z: L.margin_cross_entropy(z, Y, COUNTS, 0.0), Z).isfinite().all()


def test_11_batch_of_one() -> None:
    h = torch.tensor([[1.0, 2.0, 3.0]])
    assert vanishes(L.manifold, h, Y)
    assert L.model_contrast(h, h.flip(1), h).shape == ()


def test_13_first_round() -> None:
    h, y = torch.tensor([[1.0, 2.0], [0.5, -1.0]]), torch.tensor([0, 1])
    assert vanishes(L.model_contrast, h, h, h.new_zeros(0, 2, 2))
    nothing, nobody = h.new_zeros(0, 2), y.new_zeros(0)
    unknown = torch.full((2, 2), math.nan)
    assert vanishes(L.prototype_contrast, h, y, nothing, nobody, unknown)


def test_14_teacher_is_student() -> None:
    assert L.kd(Z, Z).item() == 0
    same: list[tuple[Any, ...]] = [
        (L.kd, 3.0),
        (L.ntd, Y),
        (L.ekd, COUNTS),
        (L.vacant_distillation, COUNTS),
        (L.dkd, Y),
    ]
    for loss, *rest in same:
        assert close(loss(Z, Z, *rest), 0.0, 1e-7)
        assert gradient(loss, Z, Z, *rest).abs().max() < 1e-6
    assert L.lmd(Z, Z, Y, MAJORITY) > 0.1


def test_teacher_gets_no_gradient() -> None:
    teacher = ZG.clone().requires_grad_()
    student = Z.clone().requires_grad_()
    total = L.kd(student, teacher) + L.lmd(student, teacher, Y, MAJORITY) + L.dkd(student, teacher, Y)
    assert torch.autograd.grad(total, teacher, allow_unused=True)[0] is None


def test_unknown_words_are_named() -> None:
    with pytest.raises(UserError, match=r"form='papr'.*Did you mean 'paper'"):
        L.logit_suppression(Z, Y, COUNTS, form="papr")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"rule='mean_al'.*Did you mean 'mean_all'"):
        L.majority_labels(COUNTS, rule="mean_al")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"mode='sofd'.*Did you mean 'soft'"):
        L.restricted_cross_entropy(Z, Y, COUNTS, mode="sofd")  # type: ignore[arg-type]


# Features and weights -----------------------------------------------------------------------------------------------


def test_model_contrast_of_equal_models_is_log_two() -> None:
    h = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    g = h.flip(0)
    assert close(L.model_contrast(h, g, g), math.log(2))
    assert gradient(lambda x: L.model_contrast(x, g, g), h).abs().max() < 1e-6


def test_zero_features_are_finite() -> None:
    zero, g = torch.zeros(2, 3), torch.ones(2, 3)
    y = torch.tensor([0, 1])
    calls: list[tuple[Any, ...]] = [
        (L.model_contrast, g, -g),
        (L.model_contrast, zero, zero),
        (L.prototype_contrast, y, g, y, g),
        (L.manifold, torch.tensor([0, 0])),
    ]
    for loss, *rest in calls:
        assert loss(zero, *rest).isfinite() and gradient(loss, zero, *rest).isfinite().all()


def test_prototypes_of_one_class_have_no_negatives() -> None:
    h, clusters = torch.tensor([[1.0, 2.0], [0.5, -1.0]]), torch.tensor([[3.0, 1.0], [1.0, 1.0]])
    y, owner = torch.tensor([0, 1]), torch.tensor([0, 0])
    mean = torch.tensor([[2.0, 1.0], [math.nan, math.inf]])
    assert close(
        L.prototype_contrast(h, y, clusters, owner, mean), (1 + 1) / 2 / 2
    )  # MSE of the first, over two samples
    assert gradient(lambda x: L.prototype_contrast(x, y, clusters, owner, mean), h).isfinite().all()


def test_manifold_equals_the_definition_on_wide_features() -> None:
    dice = torch.Generator().manual_seed(0)
    h, y = torch.randn(64, 512, generator=dice), torch.randint(10, (64,), generator=dice)
    expected, samples = 0.0, 0
    for c in range(10):
        x = h[y == c].double()
        if len(x) > 1:
            x = (x - x.mean(0)) / (x.var(0) + 1e-8).sqrt()
            correlation = x.T @ x
            off = correlation[~torch.eye(512, dtype=torch.bool)]
            expected, samples = expected + off.square().mean().item(), samples + len(x)
    assert close(L.manifold(h, y), expected / samples)


def test_gradients_on_weights() -> None:
    dice = torch.Generator().manual_seed(0)
    w, r, u = (torch.randn(3, 2, generator=dice) for _ in range(3))
    torch.testing.assert_close(gradient(lambda x: L.proximal({"a": x}, {"a": r}), w), w - r)
    torch.testing.assert_close(gradient(lambda x: L.curvature({"a": x}, {"a": u}, {"a": u * r}), w), 2 * u * (w - r))


# The drift of ledger D2 (spec §4.15) --------------------------------------------------------------------------------


def observed_logits(form: str, gamma: float, steps: int = 600) -> list[float]:
    """Mean observed logit, step by step, of a linear client trained on L_cal + 0.1 L_dis + gamma L_logit."""
    dice = torch.Generator().manual_seed(0)
    y = torch.repeat_interleave(torch.arange(5), COUNTS)
    x = torch.randn(5, 8, generator=dice)[y] + torch.randn(len(y), 8, generator=dice)
    x = torch.cat((x, torch.ones(len(y), 1)), dim=1)
    w = 0.1 * torch.randn(9, 5, generator=dice)
    zg = x @ w
    trace = []
    for _ in range(steps):
        w.requires_grad_()
        z = x @ w
        loss = L.calibrated_cross_entropy(z, y, COUNTS) + 0.1 * L.vacant_distillation(z, zg, COUNTS)
        loss = loss + gamma * L.logit_suppression(z, y, COUNTS, form=form)  # type: ignore[arg-type]
        w = w.detach() - 0.5 * torch.autograd.grad(loss, w)[0]
        trace.append(z[:, COUNTS > 0].mean().item())
    return trace


def test_paper_form_of_logit_suppression_drifts_and_the_shipped_one_does_not() -> None:
    paper, code = observed_logits("paper", 1.0), observed_logits("code", 0.005)
    assert paper[-1] < -100
    assert paper[-1] - paper[300] < 0.9 * (paper[300] - paper[0])  # as fast in the second half as in the first
    assert min(code) > -3


# Local dimension, losses of samples and distance (FedCorr) ----------------------------------------------------------


def dimension(point: list[float], others: Rows, k: int) -> float:
    """The formula in plain Python."""
    r = sorted(math.dist(point, other) for other in others)[:k]
    if 0 in r:
        return 0.0
    return -len(r) / (sum(math.log(each / (r[-1] + 1e-6)) for each in r) + 1e-6)


def test_golden_dimension() -> None:
    # distances (1, 2, 4) from the first point: 3 / (log 4 + log 2)
    points = torch.tensor([[0.0], [1.0], [2.0], [4.0]])
    assert L.lid(points, 3)[0].item() == pytest.approx(1.442695, abs=5e-6)
    # there are but three others: 20 neighbors are 3, also in the numerator
    assert torch.equal(L.lid(points, 20), L.lid(points, 3))
    # the two nearest, at 1 and 2: 2 / log 2
    assert L.lid(points, 2)[0].item() == pytest.approx(2 / math.log(2), abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.integers(2, 14), st.integers(0, 10**6))
def test_dimension_against_its_plain_twin(n: int, k: int, seed: int) -> None:
    p = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    rows = p.double().tolist()
    twin = [dimension(row, rows[:i] + rows[i + 1 :], k) for i, row in enumerate(rows)]
    assert L.lid(p, k).tolist() == pytest.approx(twin, rel=1e-3)


def test_dimension_is_computed_in_pieces_of_one_whole() -> None:
    p = torch.randn(501, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    rows = p.double().tolist()
    found = L.lid(p, 5)
    assert found.shape == (501,)
    for i in (0, 499, 500):
        assert found[i].item() == pytest.approx(dimension(rows[i], rows[:i] + rows[i + 1 :], 5), rel=1e-3)


def test_dimension_of_equal_outputs_is_zero() -> None:
    assert L.lid(torch.full((30, 4), 0.25)).tolist() == [0] * 30
    found = L.lid(torch.tensor([[0.0], [0.0], [1.0], [3.0]]), 3)
    assert found[:2].tolist() == [0, 0] and (found[2:] > 0).all()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_dimension_needs_two_neighbors(n: int) -> None:
    assert L.lid(torch.eye(3)[:n]).tolist() == [0] * n


def test_outputs_that_fill_more_directions_have_more_dimensions() -> None:
    dice = torch.Generator().manual_seed(0)
    line = torch.cat((torch.rand(400, 1, generator=dice), torch.zeros(400, 2)), dim=1)
    cube = torch.rand(400, 3, generator=dice)
    assert L.lid(line).mean().item() == pytest.approx(1, abs=0.2)
    assert L.lid(cube).mean().item() == pytest.approx(3, abs=0.6)


def test_losses_of_samples_by_hand() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1]])
    z, y = p.log(), torch.tensor([0])
    assert L.sample_losses(z, y, "paper").item() == pytest.approx(-math.log(0.7), rel=1e-5)
    again = math.log(math.exp(0.7) + math.exp(0.2) + math.exp(0.1)) - 0.7
    assert L.sample_losses(z, y).item() == pytest.approx(again, rel=1e-5)
    # a sure network, right and wrong: log(e + 2) - 1 and log(e + 2)
    sure = L.sample_losses(torch.tensor([[99.0, 0.0, 0.0]] * 2), torch.tensor([0, 1]))
    assert sure.tolist() == pytest.approx([math.log(math.e + 2) - 1, math.log(math.e + 2)], rel=1e-6)
    with pytest.raises(UserError, match=r"form='papr' is unknown\. Did you mean 'paper'"):
        L.sample_losses(z, y, "papr")  # type: ignore[arg-type]


def test_distance_is_the_root_and_still_at_its_corner() -> None:
    reference = {"a": torch.zeros(2), "b": torch.zeros(1)}
    at = {"a": torch.tensor([1.0, 2.0], requires_grad=True), "b": torch.tensor([2.0], requires_grad=True)}
    assert close(L.distance(at, reference), 3)
    grads = torch.autograd.grad(L.distance(at, reference), list(at.values()))
    assert torch.cat(grads).tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    corner = {name: t.clone().requires_grad_() for name, t in reference.items()}
    assert close(L.distance(corner, reference), 0)
    assert torch.cat(torch.autograd.grad(L.distance(corner, reference), list(corner.values()))).tolist() == [0] * 3
