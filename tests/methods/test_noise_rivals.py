"""What rofl, rhfl and fedlsr are made of, what they refuse, and what they leave in the server's memory."""

from __future__ import annotations

import math

import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.core.types import ServerState
from fedskew.data import sources
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.methods import registry
from fedskew.parts.inputs import SecondView
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.confidence import Confidence
from fedskew.parts.servers.weigh import Uniform
from fedskew.parts.terms.centroids import CentroidCrossEntropy
from fedskew.parts.terms.robust import SymmetricCrossEntropy
from fedskew.parts.terms.two_views import SelfRegularized
from tests.contract import harness


def ended(expression: str, **options: object) -> experiment.Result:
    return harness.finish(harness.config(expression, **options))


def states(expression: str, **options: object) -> ServerState:
    context, state = harness.site_of(harness.config(expression, **options))
    return harness.final_state(context, state, Inline(context, harness.store()))


def test_defaults_are_those_of_the_specification() -> None:
    (rofl,) = registry.build("rofl").stages
    assert rofl.base == CentroidCrossEntropy(
        T_pl=10, forget=0.2, gradual=10, lam_cen=1, lam_e=0.8, detach_features=True
    )
    assert rofl.server == Aggregate(weigh=Uniform(), statistics="weights")
    (rhfl,) = registry.build("rhfl").stages
    assert rhfl.base == SymmetricCrossEntropy(0.1, 1)
    assert rhfl.server == Aggregate(weigh=Confidence(0.5, 0.1, 1, safe=True, size_weighted=True), statistics="weights")
    (fedlsr,) = registry.build("fedlsr").stages
    assert fedlsr.base == SelfRegularized(0.4, 0.6, None, "code")
    assert fedlsr.inputs == (SecondView(30, True, 0.1),) and fedlsr.server == Aggregate()


def test_the_entropy_of_fedlsr_goes_with_the_variant_unless_it_is_given() -> None:
    bases = [
        registry.build(f"fedlsr({given})").stages[0].base for given in ("variant='paper'", "variant='paper', lam_e=0.3")
    ]
    assert bases == [SelfRegularized(0.4, 0.0, None, "paper"), SelfRegularized(0.4, 0.3, None, "paper")]


def test_confidence_is_in_the_loss_that_is_trained() -> None:
    (stage,) = registry.build("rhfl(alpha=0.3, beta=2)").stages
    assert stage.base == SymmetricCrossEntropy(0.3, 2)
    assert isinstance(stage.server, Aggregate) and stage.server.weigh == Confidence(0.5, 0.3, 2)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("rofl+fedvls", "'rofl' and 'fedvls' both bring their own base"),
        ("rofl+fedconcat", "CentroidCrossEntropy needs one model for all clients, but PerCluster has several"),
        ("rofl(forget=1.2)", "forget is 1.2"),
        ("rofl(T_pl=-1)", "T_pl is -1"),
        ("rofl(gradual=0)", "gradual is 0"),
        ("rhfl(eta=-1)", "eta is -1"),
        ("rhfl+rofl", "both bring their own base"),
        ("fedlsr(variant='printed')", "variant is 'printed'"),
        ("fedlsr(t_w=-3)", "t_w is -3"),
    ],
)
def test_refused_with_one_sentence(expression: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        registry.build(expression)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "choices"),
    [
        # T_pl=1, so that pseudo-labels play a part in two rounds
        ("rofl", ["T_pl=1", "forget=0", "gradual=2", "lam_e=0", "detach_features=False"]),
        ("rhfl", ["alpha=1", "beta=2", "eta=0", "size_weighted=False"]),
        ("fedlsr", ["gamma=0", "lam_e=0", "t_w=9", "variant='paper'", "degrees=0", "flip=False"]),
    ],
)
def test_every_choice_matters(method: str, choices: list[str]) -> None:
    # everybody in every round: confidence needs two rounds of a client in a row
    ends = [
        ended(e, clients_per_round=4, rounds=2, local_epochs=1).end["weights_sha256"]
        for e in (method, *(f"{method}({c})" for c in choices))
    ]
    assert len(set(ends)) == len(ends)


def test_in_the_code_s_form_of_rofl_the_pull_trains_nothing() -> None:
    ends = [ended(f"rofl(lam_cen={lam}, detach_features={cut})", rounds=2) for cut in (True, False) for lam in (0, 1)]
    hashes = [end.end["weights_sha256"] for end in ends]
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]


@pytest.mark.parametrize("method", ["rofl", "rofl(T_pl=0)", "rhfl", "fedlsr", "fedlsr(variant='paper')"])
def test_with_one_class_per_client_and_tails_of_batches_all_stays_finite(method: str) -> None:
    # 20 samples each, in batches of 16 and 4
    result = ended(method, partition="labels:1", clients=10, clients_per_round=10, local_epochs=1)
    assert result.weights is not None and all(t.isfinite().all() for t in result.weights.values())


def test_rofl_knows_the_centroids_of_the_classes_it_was_shown() -> None:
    # one class per client and three of ten clients a round: classes appear as their clients do
    options = {"partition": "labels:1", "clients": 10, "clients_per_round": 3}
    seen = []
    for rounds in (1, 3):
        state = states("rofl", rounds=rounds, **options)
        centroids = state.memory["CentroidCrossEntropy@0"]["centroids"]
        assert centroids.isfinite().all() and centroids.shape == (10, 16)
        assert int(centroids.any(1).sum()) == len(state.seen)  # as many as clients that replied
        seen.append(len(state.seen))
    assert seen[0] == 3 < seen[1]


def test_rhfl_remembers_the_losses_of_the_last_round_only() -> None:
    context, state = harness.site_of(harness.config("rhfl"))
    state = harness.final_state(context, state, Inline(context, harness.store()))
    losses = state.memory["Aggregate@0"]["weigh/loss"].tolist()
    last = {client for client, turn in state.seen.items() if turn == state.turn - 1}
    assert {k for k, loss in enumerate(losses) if not math.isnan(loss)} == last and len(last) == 3
    assert all(0 < losses[k] < 0.1 * 20 - math.log(1e-4) for k in last)


def test_fedlsr_needs_no_images() -> None:
    dice = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    x = torch.randn(80, 6, generator=dice) + 3 * torch.eye(4, 6)[y]
    table = sources.from_arrays(x, y, x, y)
    given = experiment.RunInputs(source=table)
    run = experiment.run(harness.config("fedlsr(variant='paper')", model="mlp", rounds=8), inputs=given)
    assert run.accuracy[-1] > 0.7
