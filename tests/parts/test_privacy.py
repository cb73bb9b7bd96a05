from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedskew.core import tree
from fedskew.core.types import Tree, Update
from fedskew.parts.privacy import GaussianMechanism
from fedskew.parts.views import ClientContext
from tests.parts.by_hand import Federation, stage
from tests.parts.terms.looking import client

RECEIVED: Tree = {
    "a": torch.tensor([1.0, 2.0]),
    "b": torch.tensor([[3.0]]),
    "frozen": torch.tensor([9.0]),
    "n.running_mean": torch.tensor([0.0]),
    "n.running_var": torch.tensor([1.0]),
    "n.num_batches_tracked": torch.tensor(4),
}


def client_context(secret: bytes = b"mine", received: Tree = RECEIVED) -> ClientContext:
    return replace(client(weights=received), secret=secret)


def update(a: list[float], b: float = 3.0, mean: float = 0.0, var: float = 1.0) -> Update:
    weights = {"a": torch.tensor(a), "b": torch.tensor([[b]])}
    statistics = {"n.running_mean": torch.tensor([mean]), "n.running_var": torch.tensor([var])}
    metrics = {"loss": 0.3, "seconds": 1.0, "accuracy_all": 0.5}
    return Update(0, 10, 2, weights, statistics | {"n.num_batches_tracked": torch.tensor(6)}, {"P": {}}, metrics)


def floats(given: Update) -> Tree:
    return given.weights | {name: t for name, t in given.buffers.items() if t.is_floating_point()}


def test_parameters_and_statistics_are_clipped_as_one_vector() -> None:
    # D = (2, 0 | 4 | 4, 0): length 6, so clip 3 halves it: a = 1 + 1, b = 3 + 2, mean = 0 + 2
    left = GaussianMechanism(3.0, 0.0, 1e-5).protect(update([3.0, 2.0], 7.0, mean=4.0), client_context())
    assert left.weights["a"].tolist() == [2.0, 2.0]
    assert left.weights["b"].tolist() == [[5.0]]
    assert left.buffers["n.running_mean"].tolist() == [2.0]
    assert left.buffers["n.running_var"].tolist() == [1.0]


def test_what_is_shorter_than_the_clip_stays_bit_for_bit() -> None:
    # 1 + (1e-12 - 1) is not 1e-12 in float64: the change must not be put on the beginning
    scratch = update([1e-12, 2.1], 3.3, mean=0.7, var=1e-9)
    for mechanism in (GaussianMechanism(6.0, 0.0, 1e-5), GaussianMechanism(None, 0.0, 1e-5)):
        assert tree.equal(floats(mechanism.protect(scratch, client_context())), floats(scratch))


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_what_came_infinite_stays_so_and_hides_nothing_else(sigma: float) -> None:
    mask = torch.tensor([0.0, -torch.inf])
    given = update([1.3, 2.0])
    given = replace(given, buffers=given.buffers | {"mask": mask})
    left = GaussianMechanism(9.0, sigma, 1e-5).protect(given, client_context(received=RECEIVED | {"mask": mask}))
    assert float(left.buffers["mask"][1]) == -torch.inf
    assert (left.weights["a"].tolist() == given.weights["a"].tolist()) == (sigma == 0)
    assert left.weights["a"].tolist() != RECEIVED["a"].tolist()


def test_only_the_loss_stays_at_home() -> None:
    left = GaussianMechanism(1.0, 1.0, 1e-5).protect(update([3.0, 2.0]), client_context())
    assert left.metrics == {"seconds": 1.0, "accuracy_all": 0.5}
    assert list(left.weights) == ["a", "b"] and list(left.buffers) == list(update([1.0, 1.0]).buffers)
    assert int(left.buffers["n.num_batches_tracked"]) == 6
    assert (left.client, left.examples, left.steps, left.extras) == (0, 10, 2, {"P": {}})
    assert all(t.dtype == torch.float32 for t in floats(left).values())


number = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@given(st.lists(number, min_size=2, max_size=2), number, st.floats(0.001, 1e4))
def test_no_change_is_longer_than_the_clip(a: list[float], mean: float, clip: float) -> None:
    left = GaussianMechanism(clip, 0.0, 1e-5).protect(update(a, mean=mean), client_context())
    change = tree.sub(floats(left), tree.only(RECEIVED, floats(left)))
    floats_of = {name: t.double() for name, t in floats(update(a, mean=mean)).items()}
    whole = tree.norm(tree.sub(floats_of, {name: RECEIVED[name].double() for name in floats_of}))
    rounding = 1e-6 * (clip + 4)  # of float32, relative to what was received and to the change
    assert float(tree.norm(change)) <= clip + rounding
    assert float(tree.norm(change)) >= min(clip, float(whole)) - rounding


def test_noise_has_the_deviation_stated_on_every_kind_of_tensor() -> None:
    size = 20_000
    began = {"w": torch.ones(size), "n.running_mean": torch.zeros(size)}
    ended = {"w": torch.ones(size), "n.running_mean": torch.zeros(size)}
    ended["w"][0] += 100
    scratch = Update(0, 1, 1, {"w": ended["w"]}, {"n.running_mean": ended["n.running_mean"]}, {}, {})
    left = floats(GaussianMechanism(2.0, 1.5, 1e-5).protect(scratch, client_context(received=began)))
    for name, t in left.items():
        drawn = (t - began[name]).double()[1:] / (2.0 * 1.5)
        # the deviation of 20,000 draws is 1 to within 1/sqrt(40,000) = 0.005
        assert float(drawn.std()) == pytest.approx(1, abs=0.02)
        assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-4
    assert torch.isclose(left["w"] - 1, left["n.running_mean"]).sum() < 20  # tensors do not share their noise


CLIPPED = GaussianMechanism(1.0, 0.0, 1e-5)


def test_the_same_secret_hides_the_same_change_alike_and_nothing_else() -> None:
    mechanism, scratch = GaussianMechanism(1.0, 1.0, 1e-5), update([3.0, 2.0])

    def noise(secret: bytes, changed: Update, received: Tree = RECEIVED) -> Tree:
        clipped = CLIPPED.protect(changed, client_context(secret, received))
        return tree.sub(mechanism.protect(changed, client_context(secret, received)).weights, clipped.weights)

    assert tree.equal(
        mechanism.protect(scratch, client_context()).weights, mechanism.protect(scratch, client_context()).weights
    )
    first = noise(b"mine", scratch)["a"]
    assert not torch.isclose(first, noise(b"yours", scratch)["a"]).all()
    # a server that asks the same turn again with other weights cannot subtract one answer from the other
    assert not torch.isclose(first, noise(b"mine", update([3.0, 2.5]))["a"]).all()
    # nor one of two runs that differ in nothing but the noise from the other
    twice = tree.sub(
        GaussianMechanism(1.0, 2.0, 1e-5).protect(scratch, client_context()).weights,
        CLIPPED.protect(scratch, client_context()).weights,
    )
    assert not torch.isclose(2 * first, twice["a"]).all()
    assert not torch.isclose(first, noise(b"mine", scratch, RECEIVED | {"a": torch.tensor([1.5, 2.0])})["a"]).all()


def test_the_seed_of_the_run_is_no_secret() -> None:
    mechanism, scratch = GaussianMechanism(1.0, 1.0, 1e-5), update([3.0, 2.0])
    guessed, known = (replace(client_context(secret), purpose=(0, "GaussianSeal", 0, 0)) for secret in (b"", b"mine"))
    assert not torch.isclose(
        mechanism.protect(scratch, guessed).weights["a"], mechanism.protect(scratch, known).weights["a"]
    ).all()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_change_that_is_not_finite_counts_as_none(broken: float) -> None:
    left = GaussianMechanism(1.0, 0.0, 1e-5).protect(update([broken, 5.0]), client_context())
    assert tree.equal(floats(left), tree.only(RECEIVED, floats(left)))
    noised = GaussianMechanism(1.0, 1.0, 1e-5).protect(update([broken, 5.0]), client_context())
    assert all(t.isfinite().all() and not torch.equal(t, RECEIVED[name]) for name, t in noised.weights.items())


def test_no_variance_becomes_negative() -> None:
    began = {"w": torch.zeros(1), "n.running_var": torch.full((1000,), 0.01)}
    scratch = Update(0, 1, 1, {"w": torch.zeros(1)}, {"n.running_var": began["n.running_var"].clone()}, {}, {})
    left = GaussianMechanism(1.0, 1.0, 1e-5).protect(scratch, client_context(received=began)).buffers["n.running_var"]
    assert float(left.min()) == 0 and float(left.max()) > 1


def test_what_covers_an_update() -> None:
    # two updates in the ball of radius C are up to 2 C apart: sigma C / (2 C)
    privacy_noise = GaussianMechanism(3.0, 1.5, 1e-5).privacy_noise
    assert privacy_noise is not None and (privacy_noise.ratio, privacy_noise.unit) == (0.75, "client")
    assert GaussianMechanism(3.0, 0.0, 1e-5).privacy_noise is None


def test_a_federation_of_clipped_clients_by_hand() -> None:
    # lr 1/2, one step from b = 4: D_0 = -(4 - 0)/2 = -2, D_1 = -(4 - 2)/2 = -1, on the first of three equal biases;
    # their gradients differ from 0 there only, so clip 1.5 makes D_0 = -1.5: b = 4 - (1.5 + 1)/2
    protected = stage(privacy=GaussianMechanism(1.5, 0.0, 1e-5))
    assert Federation([(1, 0), (1, 2)], protected, start=4.0).iterates(1) == [2.75]
