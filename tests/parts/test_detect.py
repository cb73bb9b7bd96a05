from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedskew.parts import measures
from fedskew.parts.detect import Detect
from fedskew.parts.protocol import Settled
from fedskew.types import Round, Spec, Tree
from tests.parts.by_hand import desk
from tests.parts.terms.looking import client

CLIENTS, CLASSES = 10, 3


def answer(level: float, k: int, features: float = 0.0, contradicted: float = 0.0) -> Tree:
    """What a client tells whose losses are about `level`."""
    wiggle = 1 + 0.03 * torch.cos(torch.arange(CLASSES) + float(k)).double()
    joint = 40 * ((1 - contradicted) * torch.eye(CLASSES) + contradicted * torch.eye(CLASSES).roll(1, 1))
    return {
        "cells/mean": level * wiggle,
        "cells/se": torch.full((CLASSES,), 0.05 * level).double(),
        "cells/count": torch.full((CLASSES,), 50.0).double(),
        "confusion/joint": joint.double(),
        "features/mean": torch.full((CLASSES, 2), features).double(),
        "features/variance": torch.ones(CLASSES, 2).double(),
        "features/count": torch.full((CLASSES,), 50.0).double(),
        "scalars/loss": torch.tensor(level).double(),
    }


def settle(part: Detect, answers: dict[int, Tree], before: Tree | None = None, index: int = 10) -> Settled:
    at = replace(desk(facts=before, clients=CLIENTS), round=Round(index, index, 0, 1))
    return part.settle(at, Spec("x"), {}, answers)


def noisy(settled: Settled) -> list[int]:
    return settled.facts["noisy"].nonzero().flatten().tolist()


THREE = {k: answer(2.0, k, contradicted=0.4) if k < 3 else answer(0.5, k) for k in range(CLIENTS)}
NOBODY = {k: answer(0.5, k) for k in range(CLIENTS)}


def test_noisy_clients_are_found_and_the_record_can_be_judged_again() -> None:
    settled = settle(Detect(), THREE)
    assert noisy(settled) == [0, 1, 2]
    assert settled.verdict["judgement"]["verdict"] == "some" and settled.verdict["reading"] == "noise"
    assert (settled.facts["probability"][:3] > 0.8).all() and (settled.facts["probability"][3:] < 0.2).all()
    assert settled.verdict["cells"]["mean"][0] == pytest.approx(THREE[0]["cells/mean"].tolist())
    assert settled.verdict["scalars"]["1"]["loss"] == 2.0
    assert settled.verdict["evidence"]["confusions"][0][0][:2] == [0, 1]


def test_where_nobody_is_noisy_nobody_is_flagged_but_without_the_gate_some_are() -> None:
    settled = settle(Detect(), NOBODY)
    assert noisy(settled) == [] and settled.verdict["reading"] == "none"
    assert noisy(settle(Detect(gate=False), NOBODY))


def test_without_the_gate_thin_cells_count_as_published_and_with_it_they_do_not() -> None:
    def thin(k: int) -> Tree:
        return THREE[k] | {"cells/count": torch.full((CLASSES,), 2.0).double()}

    answers = {k: thin(k) if k < 3 else each for k, each in THREE.items()}
    assert noisy(settle(Detect(gate=False), answers)) == [0, 1, 2]
    assert noisy(settle(Detect(), answers)) == []


@pytest.mark.parametrize("gate", [True, False])
def test_who_does_not_answer_keeps_status_and_probability(gate: bool) -> None:
    part = Detect(gate=gate, patience=1)
    first = settle(part, THREE)
    assert noisy(first) == [0, 1, 2]
    for here in (range(2, CLIENTS), range(7, CLIENTS), ()):  # a quorum, none, nobody
        again = settle(part, {k: THREE[k] for k in here}, first.facts, index=20)
        assert noisy(again)[:2] == [0, 1]
        assert torch.equal(again.facts["probability"][:2], first.facts["probability"][:2])


def test_who_has_ever_answered_is_a_fact() -> None:
    first = settle(Detect(), {k: each for k, each in NOBODY.items() if k not in (2, 5)})
    assert first.facts["heard"].logical_not().nonzero().flatten().tolist() == [2, 5]
    later = settle(Detect(), {k: NOBODY[k] for k in (0, 2)}, first.facts, index=12)
    assert later.facts["heard"].logical_not().nonzero().flatten().tolist() == [5]


def test_high_losses_of_shifted_clients_are_no_noise() -> None:
    shifted = {k: answer(2.0, k, features=3.0) if k < 3 else answer(0.5, k) for k in range(CLIENTS)}
    settled = settle(Detect(), shifted)
    assert noisy(settled) == [] and settled.verdict["explained_by_shift"] == [0, 1, 2]
    assert settled.verdict["reading"] == "shift"


def test_both() -> None:
    answers = THREE | {9: answer(0.6, 9, features=3.0)}
    settled = settle(Detect(), answers)
    assert noisy(settled) == [0, 1, 2] and settled.verdict["reading"] == "both"


def test_asked_again_a_status_changes_only_after_patience() -> None:
    part = Detect(patience=2)
    first = settle(part, THREE)
    second = settle(part, NOBODY, first.facts, 12)
    third = settle(part, NOBODY, second.facts, 14)
    assert [noisy(each) for each in (first, second, third)] == [[0, 1, 2], [0, 1, 2], []]


def test_confusions_may_travel_with_noise() -> None:
    local = replace(client((300, 60, 40, 0, 0)), secret=b"a")
    plain, noised = (Detect(joint_noise=each).ask(local)[0] for each in (0.0, 2.0))
    away = noised["confusion/joint"] - plain["confusion/joint"]
    assert 1.0 < float(away.std()) < 3.0  # 25 draws of deviation 2
    assert all(torch.equal(plain[n].nan_to_num(), noised[n].nan_to_num()) for n in plain if "joint" not in n)
    negative = {k: each | {"confusion/joint": each["confusion/joint"] - 1.0} for k, each in THREE.items()}
    rates = settle(Detect(), negative).verdict["evidence"]["rate"]
    assert all(0 <= rate <= 1 for rate in rates) and min(rates[:3]) > 0.3


def test_other_facts_stay() -> None:
    assert torch.equal(settle(Detect(), THREE, {"other": torch.ones(2)}).facts["other"], torch.ones(2))


def test_few_clients_and_no_answers_are_insufficient_not_errors() -> None:
    few = settle(Detect(), dict(list(THREE.items())[:5]))
    assert few.verdict["judgement"]["verdict"] == "insufficient" and noisy(few) == []
    assert "too few" in few.verdict["judgement"]["warnings"][-1]
    assert noisy(settle(Detect(), {})) == [] and noisy(settle(Detect(), {k: {} for k in range(CLIENTS)})) == []


def test_a_class_that_nobody_has_is_dropped_and_noted() -> None:
    answers = {k: dict(each) for k, each in THREE.items()}
    for each in answers.values():
        each["cells/mean"] = torch.cat((each["cells/mean"][:2], torch.tensor([math.nan]).double()))
        each["cells/count"] = torch.tensor([50.0, 50.0, 0.0]).double()
    settled = settle(Detect(), answers)
    assert noisy(settled) == [0, 1, 2]
    assert any("class 2" in each for each in settled.verdict["judgement"]["warnings"])


def test_privacy_adds_up_over_detections_and_only_cells_travel() -> None:
    part = Detect(epsilon=1.0)
    told, _ = part.ask(replace(client((30, 60, 10, 0, 0)), secret=b"a"))
    assert set(told) == {"cells/mean", "cells/se", "cells/count"}
    first = settle(part, NOBODY)
    second = settle(part, NOBODY, first.facts, 12)
    assert first.verdict["privacy"]["epsilon"] == pytest.approx(1.0)
    assert 1.0 < second.verdict["privacy"]["epsilon"] < 2.0


# what a client measures ----------------------------------------------------------------------------------------------


def seen(y: list[int], p: list[list[float]], losses: list[float] | None = None) -> measures.Seen:
    probabilities = torch.tensor(p)
    given = -probabilities[range(len(y)), y].log() if losses is None else torch.tensor(losses)
    return measures.Seen(torch.tensor(y), probabilities, given.double(), torch.zeros(len(y), 2))


def test_loss_cells_by_hand() -> None:
    # class 0: losses 1, 3, mean 2, variance 2, error sqrt(2 / 2); class 1: one sample, no error; class 2: nothing
    cells = measures.loss_cells(seen([0, 1, 0], [[1.0, 0, 0]] * 3, [1.0, 7.0, 3.0]), 3)
    assert cells["mean"].tolist()[:2] == [2.0, 7.0] and cells["mean"][2].isnan()
    assert float(cells["se"][0]) == 1.0 and cells["se"][1:].isnan().all()
    assert cells["count"].tolist() == [2, 1, 0]


def test_counts_travel_by_the_lower_edge_of_their_bucket() -> None:
    assert measures.bucket(torch.tensor([0, 1, 3, 5, 9, 10, 99, 250_000])).tolist() == [0, 1, 2, 5, 5, 10, 50, 100_000]


def test_losses_are_plain_cross_entropy_of_the_received_model() -> None:
    # logits are the inputs; with equal ones the loss is log 3, whatever the prior
    local = client((4, 2, 0), x=torch.zeros(6, 3))
    found = measures.look(local)
    assert torch.allclose(found.losses, torch.full((6,), math.log(3)).double())
    assert found.features.shape == (6, measures.DIRECTIONS)


def test_indicators_may_be_measured_on_varied_samples_the_same_ones_whenever_it_is_asked() -> None:
    local = client((4, 2, 0), x=torch.zeros(6, 3))
    plain, varied, again = (measures.look(replace(local), each).losses for each in (False, True, True))
    assert (varied != plain).any() and torch.equal(varied, again)
    told = [Detect(view=view).ask(replace(local))[0]["cells/mean"] for view in ("plain", "varied")]
    assert told[0][:2].tolist() == pytest.approx([math.log(3)] * 2)
    assert told[1][0] == pytest.approx(float(varied[:4].mean()))


def test_one_number_indicators_by_hand() -> None:
    # the probability of the observed label is .9 and .3, the greatest .9 and .7
    found = measures.scalars(seen([0, 0], [[0.9, 0.1], [0.3, 0.7]]))
    assert float(found["confidence"]) == pytest.approx(0.6)
    assert float(found["certainty"]) == pytest.approx(0.8)
    assert float(found["loss"]) == pytest.approx(-(math.log(0.9) + math.log(0.3)) / 2)


def test_confident_joint_by_hand() -> None:
    # mean own probability: class 0 (.9 + .6 + .3)/3 = .6, class 1 .8. The third sample of class 0 is surely a 1 (.85);
    # the second is at the threshold of its own class; the sample of class 1 at its own
    found = measures.confident_joint(seen([0, 0, 0, 1], [[0.9, 0.1], [0.6, 0.4], [0.3, 0.85], [0.2, 0.8]]), 2)
    assert found["joint"].tolist() == [[2, 1], [0, 1]]


def test_features_go_by_what_the_model_believes_not_by_labels() -> None:
    one = measures.Seen(torch.tensor([1, 1]), torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.zeros(2), torch.eye(2))
    other = replace(one, y=torch.tensor([0, 0]))
    told = measures.feature_means(one, 2)
    assert torch.equal(told["mean"], torch.eye(2).double())
    assert torch.equal(told["mean"], measures.feature_means(other, 2)["mean"])


def test_private_cells_without_noise_are_the_cells_of_clipped_losses() -> None:
    found = seen([0, 0, 0, 0, 1, 1, 1, 1], [[0.5, 0.5]] * 8, [1.0, 2.0, 3.0, 9.0, 0.5, 0.5, 0.5, 0.5])
    got = measures.private_cells(found, 2, 4.0, 0.0, lambda sums, sigma: sums)
    assert got["mean"].tolist() == pytest.approx([(1 + 2 + 3 + 4) / 4, 0.5])
    assert got["count"].tolist() == [2, 2]
    # population variance of (1, 2, 3, 4) is 1.25
    assert float(got["se"][0]) == pytest.approx(math.sqrt(1.25 / 4))


def test_a_loss_that_is_not_a_number_counts_as_the_greatest_one() -> None:
    # which class has it could otherwise be read off whatever noise
    found = seen([0, 0, 1, 1], [[0.5, 0.5]] * 4, [math.nan, 2.0, 1.0, 1.0])
    got = measures.private_cells(found, 2, 4.0, 0.0, lambda sums, sigma: sums)
    assert got["mean"].tolist() == [3.0, 1.0]


def test_private_cells_are_noised_and_thin_ones_suppressed_by_their_noised_count() -> None:
    found = seen([0] * 400 + [1], [[0.5, 0.5]] * 401, [1.0] * 401)
    local = replace(client((30, 60, 10, 0, 0)), secret=b"a")
    turns = [replace(local, purpose=(turn,)) for turn in range(300)]
    draws = [measures.private_cells(found, 2, 5.0, 2.0, turn.hide) for turn in turns]
    means = np.array([float(each["mean"][0]) for each in draws])
    # the noise of the sum and of the count: 5/400 * 2 * sqrt(1 + (1/5)^2)
    assert means.std() == pytest.approx(5 / 400 * 2 * math.sqrt(1.04), rel=0.15)
    assert means.mean() == pytest.approx(1.0, abs=0.01)
    # a count of 1 seems at least 8 with the chance of z >= 3.5: 0.0002
    assert np.mean([bool(each["mean"][1].isnan()) for each in draws]) > 0.99
    assert np.mean([float(each["se"][0]) for each in draws]) > means.std()


def test_privacy_noise_comes_from_the_sites_secret_and_never_from_the_seed() -> None:
    part, local = Detect(epsilon=10.0), client((30, 60, 10, 0, 0))
    mine, again, others = (part.ask(replace(local, secret=s))[0]["cells/mean"] for s in (b"a", b"a", b"b"))
    assert torch.equal(mine[:2], again[:2]) and not torch.equal(mine[:2], others[:2])
