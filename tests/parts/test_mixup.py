from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedskew.core.errors import UserError
from fedskew.methods import registry
from fedskew.parts.mixup import MixUp
from fedskew.parts.views import Batch


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_hot(y: Tensor, classes: int) -> Tensor:
    return torch.eye(classes)[y]


def mixed(batch: Batch, alpha: float = 1.0, seed: int = 0, classes: int = 5) -> Batch:
    return MixUp(alpha).batch(batch, classes, generator(seed))


def plain(y: Tensor) -> Batch:
    """Samples that are their own labels, so that what happens to the one can be read off the other."""
    return Batch(one_hot(y, 5), y, torch.arange(len(y)))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.floats(0.05, 20), st.integers(0, 10**6))
def test_samples_and_labels_are_mixed_alike_with_one_weight(size: int, alpha: float, seed: int) -> None:
    y = torch.arange(size) % 5
    batch = plain(y)
    out = mixed(batch, alpha, seed)
    assert out.target is not None and out.target.dtype == torch.float32
    assert torch.allclose(out.x, out.target, atol=1e-6)
    assert torch.allclose(out.target.sum(1), torch.ones(size), atol=1e-6)
    own = out.target[torch.arange(size), y]
    # a sample whose partner has another class has the share lam of its own, the same for all
    kept = own[own < 1 - 1e-6]
    assert torch.allclose(kept, kept.mean().expand_as(kept), atol=1e-6)
    # each sample is a partner once: the classes keep their mass
    assert torch.allclose(out.target.sum(0), one_hot(y, 5).sum(0), atol=1e-5)
    assert torch.equal(out.y, y) and torch.equal(batch.x, one_hot(y, 5))


def weights(alpha: float, draws: int = 3000) -> Tensor:
    rng = generator()
    batch = plain(torch.tensor([0, 1]))
    # with two samples the partner is the sample itself every other time, which shows no weight
    targets = [MixUp(alpha).batch(batch, 5, rng).target for _ in range(draws)]
    shown = torch.stack([target[0, 0] for target in targets if target is not None and target[0, 1] > 0])
    assert len(shown) > draws / 5
    return shown.double()


@pytest.mark.parametrize("alpha", [1.0, 4.0])
def test_the_weight_is_drawn_from_a_beta_law(alpha: float) -> None:
    lam = weights(alpha)
    # Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)); five standard errors
    variance = 1 / (4 * (2 * alpha + 1))
    assert float(lam.mean()) == pytest.approx(0.5, abs=5 * (variance / len(lam)) ** 0.5)
    assert float(lam.var()) == pytest.approx(variance, rel=0.15)


def test_the_limits_of_alpha() -> None:
    assert float((weights(1e5, 300) - 0.5).abs().max()) < 0.01
    extreme = weights(0.01, 300)
    assert float((extreme - extreme.round()).abs().median()) < 1e-6


def test_a_single_sample_stays_what_it_is() -> None:
    x = torch.tensor([[0.3, -0.7]])
    out = mixed(Batch(x, torch.tensor([4]), torch.tensor([0])))
    assert out.target is not None
    assert torch.equal(out.x, x) and torch.equal(out.target, one_hot(torch.tensor([4]), 5))


def test_soft_targets_are_mixed_on() -> None:
    soft = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])
    batch = Batch(soft.clone(), torch.tensor([0, 2]), torch.arange(2), target=soft)
    for seed in range(6):
        out = mixed(batch, seed=seed, classes=3)
        assert out.target is not None and torch.equal(out.x, out.target)


def test_it_depends_on_its_generator_alone() -> None:
    batch = plain(torch.arange(5))
    torch.manual_seed(1)
    first = mixed(batch, seed=3)
    torch.manual_seed(2)
    assert torch.equal(first.x, mixed(batch, seed=3).x)
    assert not torch.equal(first.x, mixed(batch, seed=4).x)


def test_whole_numbers_cannot_be_mixed() -> None:
    with pytest.raises(UserError, match=r"mixup cannot mix inputs of type torch\.int64"):
        mixed(Batch(torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 1]), torch.arange(2)))


def test_terms_that_need_hard_labels_are_refused_beside_it() -> None:
    with pytest.raises(UserError, match="LMD needs hard labels, but the inputs make soft ones"):
        registry.build("fedcorr+fedlmd")
