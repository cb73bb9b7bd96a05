from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedskew import functional
from fedskew.core.types import Spec, Task, Tree
from fedskew.parts.corrected import (
    AdaptiveProximal,
    DrawOrder,
    JudgeByDimension,
    LocalDimension,
    RelabelAll,
    RelabelWorst,
)
from fedskew.parts.protocol import SetupResult
from fedskew.parts.views import Accumulator, ClientContext
from tests.parts.by_hand import server_context
from tests.parts.terms import looking
from tests.parts.terms.looking import client, gradient, identity, run, still, value

# ---- the pull -------------------------------------------------------------------------------------------------------

X, Y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])


def pulled(mu: float) -> ClientContext:
    return client((1, 1), identity(2, 2), x=torch.zeros(2, 2), extras={"mu": torch.tensor(mu, dtype=torch.float64)})


def moved() -> Tree:
    """Three from the received weights in one tensor and four in another: five in all."""
    at = identity(2, 2)
    return at | {"head.bias": torch.tensor([3.0, 0.0]), "trunk.weight": at["trunk.weight"] + torch.tensor([0.0, 4.0])}


def test_the_pull_is_the_distance_itself_and_grows_with_the_noise() -> None:
    # the trunk's two rows both move by 4: the distance is (9 + 16 + 16)^(1/2)
    far = math.sqrt(41)
    assert value(AdaptiveProximal(5.0), pulled(0.2), X, Y, moved()) == pytest.approx(far, rel=1e-6)
    assert value(AdaptiveProximal(5.0), pulled(0.4), X, Y, moved()) == pytest.approx(2 * far, rel=1e-6)
    # its gradient is the direction, of length beta mu
    pull = gradient(AdaptiveProximal(5.0), pulled(0.2), X, Y, moved())
    assert float(pull["head.bias"][0]) == pytest.approx(3 / far, rel=1e-6)
    assert sum(float((t**2).sum()) for t in pull.values()) == pytest.approx(1, rel=1e-6)


def test_the_pull_is_nothing_for_clean_clients_and_at_the_start() -> None:
    assert value(AdaptiveProximal(5.0), pulled(0.0), X, Y, moved()) == 0
    assert still(gradient(AdaptiveProximal(5.0), pulled(0.0), X, Y, moved()))
    assert value(AdaptiveProximal(5.0), pulled(0.4), X, Y) == 0
    assert still(gradient(AdaptiveProximal(5.0), pulled(0.4), X, Y))


def test_every_client_hears_its_own_share() -> None:
    facts = {"mu": torch.tensor([0.0, 0.25, 0.5, 0.0], dtype=torch.float64)}
    assert [float(AdaptiveProximal(5.0).send(server_context(facts=facts), c)["mu"]) for c in range(4)] == [
        0,
        0.25,
        0.5,
        0,
    ]


# ---- what clients measure -------------------------------------------------------------------------------------------


def eight(y: list[int], weights: Tree | None = None) -> ClientContext:
    """Eight samples that the identity network takes for classes 0, 0, 0, 1, 1, 1, 2, 2, each a little differently."""
    x = 4 * torch.eye(3)[[0, 0, 0, 1, 1, 1, 2, 2]] + 0.1 * torch.arange(8.0)[:, None] * torch.tensor([1.0, 0.5, 0.0])
    return client((3, 3, 2), weights, x=x, y=torch.tensor(y))


@pytest.mark.parametrize("form", ["code", "paper"])
def test_the_share_of_wrong_labels_is_that_of_the_higher_losses(form: Any) -> None:
    # two of eight labels are not what the network says
    y = [0, 0, 2, 1, 1, 0, 2, 2]
    client_context = eight(y, weights={name: torch.zeros_like(t) for name, t in identity(3, 3).items()})
    sent, kept = LocalDimension(3, form).finish(client_context, None, run(identity(3, 3)))
    assert float(sent["mu"]) == 0.25 and sent["mu"].dtype == torch.float64
    assert sorted(kept["losses"].argsort(descending=True)[:2].tolist()) == [2, 5]
    z = client_context.shard.x
    assert torch.allclose(kept["losses"], functional.sample_losses(z, torch.tensor(y), form), atol=1e-6)
    assert float(sent["lid"]) == pytest.approx(float(functional.lid(z.softmax(-1), 3).mean()), rel=1e-5)
    assert set(sent) == {"lid", "mu"} and set(kept) == {"losses"}


def test_a_client_whose_outputs_are_all_alike_measures_nothing() -> None:
    client_context = client((4, 0, 0), x=torch.zeros(4, 3))
    sent, _ = LocalDimension(20, "code").finish(client_context, None, run(client_context.weights))
    assert float(sent["lid"]) == 0 and float(sent["mu"]) == 0


def test_one_sample_is_measured_too() -> None:
    client_context = client((1, 0, 0), x=torch.ones(1, 3))
    sent, kept = LocalDimension(20, "code").finish(client_context, None, run(client_context.weights))
    assert float(sent["lid"]) == 0 and float(sent["mu"]) == 0 and kept["losses"].shape == (1,)


def test_a_network_that_went_astray_is_no_error() -> None:
    client_context = eight([0] * 8)
    broken = {name: torch.full_like(t, math.nan) for name, t in identity(3, 3).items()}
    sent, _ = LocalDimension(3, "code").finish(client_context, None, run(broken))
    assert float(sent["mu"]) == 0 and math.isnan(float(sent["lid"]))


def test_the_server_sums_dimensions_and_keeps_the_last_share() -> None:
    part = LocalDimension(3, "code")
    memory = part.init_server(identity(3, 3), Task(3, (3,), 2))
    for lid, mu in ((2.5, 0.5), (1.5, 0.25)):
        said = {"lid": torch.tensor(lid, dtype=torch.float64), "mu": torch.tensor(mu, dtype=torch.float64)}
        at_hand = looking.server_context(looking.net(3, 3), 3, memory, [looking.sent_up(part, said, number=1)])
        memory = part.merge(at_hand, Accumulator())
    assert {name: t.tolist() for name, t in memory.items()} == {"lid": [0, 4], "visits": [0, 2], "mu": [0, 0.25]}


# ---- who is noisy ---------------------------------------------------------------------------------------------------


def judged(lid: list[float], visits: list[int] | None = None, mu: float = 0.4) -> SetupResult:
    numbers = {"lid": lid, "visits": visits or [1] * len(lid), "mu": [mu] * len(lid)}
    memory = {name: torch.tensor(each, dtype=torch.float64) for name, each in numbers.items()}
    return JudgeByDimension().decide(server_context(memory, {"other": Y}, clients=len(lid)), Spec("x"), {}, {})


def test_the_higher_dimensions_are_noisy_and_the_others_have_no_share() -> None:
    decided = judged([2.0, 9.9, 2.2, 10.1, 1.9, 2.1])
    assert decided.facts["noisy"].tolist() == [0, 1, 0, 1, 0, 0] and decided.facts["noisy"].dtype == torch.int64
    assert decided.facts["mu"].tolist() == [0, 0.4, 0, 0.4, 0, 0]
    assert "other" in decided.facts
    assert decided.verdict["noisy"] == [1, 3] and decided.verdict["lid"][1] == 9.9


def test_before_anything_was_measured_all_are_clean() -> None:
    decided = JudgeByDimension().decide(server_context(clients=3), Spec("x"), {}, {})
    assert decided.facts["noisy"].tolist() == [0, 0, 0] and decided.facts["mu"].tolist() == [0, 0, 0]
    assert decided.verdict == {"noisy": [], "mu": [0, 0, 0], "lid": [None, None, None]}


def test_a_lost_visit_counts_like_the_mean_of_the_others() -> None:
    # client 2 is as noisy as 0 and 1 but answered once: its 10 is half of a 20, not the clean clients' 10
    decided = judged([20.0, 20.4, 10.0, 10.2, 9.8, 10.4, 10.0], [2, 2, 1, 2, 2, 2, 2])
    assert decided.verdict["noisy"] == [0, 1, 2] and decided.verdict["lid"][2] == 20


@pytest.mark.parametrize("odd", [0.0, math.nan, math.inf])
def test_who_was_never_measured_or_not_in_numbers_is_clean(odd: float) -> None:
    decided = judged([odd, 9.9, 2.2, 10.1, 1.9, 2.1], [0 if odd == 0 else 1, 1, 1, 1, 1, 1])
    assert decided.verdict["noisy"] == [1, 3] and decided.verdict["lid"][0] is None
    json.dumps(decided.verdict, allow_nan=False)


def test_equal_dimensions_make_no_client_noisy() -> None:
    assert judged([3.0] * 5).verdict["noisy"] == []
    assert judged([3.0]).verdict["noisy"] == []


def test_every_setup_draws_a_new_order() -> None:
    def order(seed: int) -> list[int]:
        at_hand = replace(server_context(clients=20), rng=torch.Generator().manual_seed(seed))
        drawn: list[int] = DrawOrder().decide(at_hand, Spec("x"), {}, {}).facts["order"].tolist()
        return drawn

    assert sorted(order(0)) == list(range(20)) and order(0) == order(0) and order(0) != order(1)


# ---- new labels -----------------------------------------------------------------------------------------------------

# what the global model says: sure of 0, even between 0 and 1, sure of 1, sure of 2
SAYS = torch.tensor([[9.0, 0.0, 0.0], [0.0, 0.0, -99.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]])


def suspect(y: list[int], **from_server: Tensor) -> ClientContext:
    losses = torch.tensor([0.9, 1.4, 0.2, 1.1])
    return replace(
        client((4, 0, 0), x=SAYS, y=torch.tensor(y), extras=from_server, memory={"losses": losses}), facts={"a": Y}
    )


def share(mu: float) -> Tensor:
    return torch.tensor(mu, dtype=torch.float64)


@pytest.mark.parametrize(
    ("mu", "labels", "changed"),
    [
        (0.0, None, 0),  # clean
        (0.25, None, 0),  # floor(0.5 * 1) = 0
        (0.5, [1, 1, 0, 0], 0),  # the worst, sample 1, has probability 1/2 at most, which is not more than 0.5
        (1.0, [1, 1, 0, 2], 1),  # samples 1 and 3; the label of the latter becomes 2
    ],
)
def test_the_worst_losses_take_the_word_of_a_sure_model(mu: float, labels: list[int] | None, changed: int) -> None:
    answer, facts = RelabelWorst(0.5, 0.5).answer(suspect([1, 1, 0, 0], mu=share(mu)))
    assert int(answer["relabeled"]) == changed and "a" in facts
    assert (facts["labels"].tolist() if "labels" in facts else None) == labels


def test_a_share_of_samples_is_rounded_down_after_rounding_errors() -> None:
    """0.29 * 100 is 28.999999999999996 in floating point."""
    hundred = client(
        (100, 0, 0), x=SAYS[3:].repeat(100, 1), y=torch.zeros(100, dtype=torch.int64), extras={"mu": share(1)}
    )
    answer, _ = RelabelWorst(0.29, 0.5).answer(replace(hundred, memory={"losses": torch.arange(100.0)}, facts={"a": Y}))
    assert int(answer["relabeled"]) == 29


def test_less_confidence_is_needed_if_less_is_asked_for() -> None:
    # of two probabilities of one half the first is taken
    answer, facts = RelabelWorst(0.5, 0.49).answer(suspect([1, 1, 0, 0], mu=share(0.5)))
    assert facts["labels"].tolist() == [1, 0, 0, 0] and int(answer["relabeled"]) == 1


def test_the_number_of_suspects_does_not_suffer_from_rounding() -> None:
    # (30 / 44) 44 / 2 is 14.999999999999998 in floating point
    client_context = client((44, 0, 0), x=9 * torch.eye(3)[[1] * 44], extras={"mu": share(30 / 44)})
    answer, _ = RelabelWorst(0.5, 0.5).answer(replace(client_context, memory={"losses": torch.arange(44.0)}))
    assert int(answer["relabeled"]) == 15


def test_noisy_clients_correct_all_of_which_the_model_is_sure_and_clean_ones_nothing() -> None:
    answer, facts = RelabelAll(0.5).answer(suspect([1, 1, 0, 0], noisy=torch.tensor(1)))
    assert facts["labels"].tolist() == [0, 1, 1, 2] and int(answer["relabeled"]) == 3 and "a" in facts
    answer, facts = RelabelAll(0.5).answer(suspect([1, 1, 0, 0], noisy=torch.tensor(0)))
    assert "labels" not in facts and int(answer["relabeled"]) == 0


@pytest.mark.parametrize("part", [RelabelWorst(0.5, 0.5), RelabelAll(0.5)])
def test_a_client_without_samples_has_nothing_to_correct(part: RelabelWorst | RelabelAll) -> None:
    from_server = {"mu": share(1.0), "noisy": torch.tensor(1)}
    client_context = client((0, 0, 0), x=torch.zeros(0, 3), y=torch.zeros(0, dtype=torch.int64), extras=from_server)
    answer, facts = part.answer(client_context)
    assert int(answer["relabeled"]) == 0 and facts == {}


def test_the_record_has_the_number_of_changed_labels() -> None:
    answers = {0: {"relabeled": torch.tensor(2)}, 3: {"relabeled": torch.tensor(5)}}
    for part in (RelabelWorst(0.5, 0.5), RelabelAll(0.5)):
        assert part.decide(server_context(), Spec("x"), {}, answers).verdict == {"relabeled": 7}
