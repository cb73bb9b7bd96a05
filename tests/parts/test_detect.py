from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedskew.core.types import Round, Spec, Tree
from fedskew.parts import measures
from fedskew.parts.detect import Detect
from fedskew.parts.protocol import SetupResult
from tests.parts.by_hand import server_context
from tests.parts.terms.looking import client

CLIENTS, CLASSES = 10, 3


def answer(level: float, k: int, features: float = 0.0, contradicted: float = 0.0) -> Tree:
    """Return the report of a client with losses of about `level`."""
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


def decide(part: Detect, answers: dict[int, Tree], before: Tree | None = None, index: int = 10) -> SetupResult:
    at = replace(server_context(facts=before, clients=CLIENTS), round=Round(index, index, 0, 1))
    return part.decide(at, Spec("x"), {}, answers)


def noisy(decided: SetupResult) -> list[int]:
    return decided.facts["noisy"].nonzero().flatten().tolist()


THREE = {k: answer(2.0, k, contradicted=0.4) if k < 3 else answer(0.5, k) for k in range(CLIENTS)}
NOBODY = {k: answer(0.5, k) for k in range(CLIENTS)}


def test_noisy_clients_are_found_and_the_record_can_be_judged_again() -> None:
    decided = decide(Detect(), THREE)
    assert noisy(decided) == [0, 1, 2]
    assert decided.verdict["judgment"]["verdict"] == "some" and decided.verdict["reading"] == "noise"
    assert (decided.facts["probability"][:3] > 0.8).all() and (decided.facts["probability"][3:] < 0.2).all()
    assert decided.verdict["cells"]["mean"][0] == pytest.approx(THREE[0]["cells/mean"].tolist())
    assert decided.verdict["scalars"]["1"]["loss"] == 2.0
    assert decided.verdict["evidence"]["confusions"][0][0][:2] == [0, 1]


def test_clean_clients_are_flagged_only_without_the_gate() -> None:
    decided = decide(Detect(), NOBODY)
    assert noisy(decided) == [] and decided.verdict["reading"] == "none"
    assert noisy(decide(Detect(gate=False), NOBODY))


def test_without_the_gate_thin_cells_count_as_published_and_with_it_they_do_not() -> None:
    def thin(k: int) -> Tree:
        return THREE[k] | {"cells/count": torch.full((CLASSES,), 2.0).double()}

    answers = {k: thin(k) if k < 3 else each for k, each in THREE.items()}
    assert noisy(decide(Detect(gate=False), answers)) == [0, 1, 2]
    assert noisy(decide(Detect(), answers)) == []


@pytest.mark.parametrize("gate", [True, False])
def test_who_does_not_answer_keeps_status_and_probability(gate: bool) -> None:
    part = Detect(gate=gate, patience=1)
    first = decide(part, THREE)
    assert noisy(first) == [0, 1, 2]
    for here in (range(2, CLIENTS), range(7, CLIENTS), ()):  # a quorum, none, nobody
        again = decide(part, {k: THREE[k] for k in here}, first.facts, index=20)
        assert noisy(again)[:2] == [0, 1]
        assert torch.equal(again.facts["probability"][:2], first.facts["probability"][:2])


def test_who_has_ever_answered_is_a_fact() -> None:
    first = decide(Detect(), {k: each for k, each in NOBODY.items() if k not in (2, 5)})
    assert first.facts["answered"].logical_not().nonzero().flatten().tolist() == [2, 5]
    later = decide(Detect(), {k: NOBODY[k] for k in (0, 2)}, first.facts, index=12)
    assert later.facts["answered"].logical_not().nonzero().flatten().tolist() == [5]


def test_high_losses_of_shifted_clients_are_no_noise() -> None:
    shifted = {k: answer(2.0, k, features=3.0) if k < 3 else answer(0.5, k) for k in range(CLIENTS)}
    decided = decide(Detect(), shifted)
    assert noisy(decided) == [] and decided.verdict["explained_by_shift"] == [0, 1, 2]
    assert decided.verdict["reading"] == "shift"


def test_both() -> None:
    answers = THREE | {9: answer(0.6, 9, features=3.0)}
    decided = decide(Detect(), answers)
    assert noisy(decided) == [0, 1, 2] and decided.verdict["reading"] == "both"


def test_asked_again_a_status_changes_only_after_patience() -> None:
    part = Detect(patience=2)
    first = decide(part, THREE)
    second = decide(part, NOBODY, first.facts, 12)
    third = decide(part, NOBODY, second.facts, 14)
    assert [noisy(each) for each in (first, second, third)] == [[0, 1, 2], [0, 1, 2], []]


def test_confusions_may_travel_with_noise() -> None:
    client_context = replace(client((300, 60, 40, 0, 0)), secret=b"a")
    plain, noised = (Detect(joint_noise=each).answer(client_context)[0] for each in (0.0, 2.0))
    away = noised["confusion/joint"] - plain["confusion/joint"]
    assert 1.0 < float(away.std()) < 3.0  # 25 draws of deviation 2
    assert all(torch.equal(plain[n].nan_to_num(), noised[n].nan_to_num()) for n in plain if "joint" not in n)
    negative = {k: each | {"confusion/joint": each["confusion/joint"] - 1.0} for k, each in THREE.items()}
    rates = decide(Detect(), negative).verdict["evidence"]["rate"]
    assert all(0 <= rate <= 1 for rate in rates) and min(rates[:3]) > 0.3


def test_other_facts_stay() -> None:
    assert torch.equal(decide(Detect(), THREE, {"other": torch.ones(2)}).facts["other"], torch.ones(2))


def test_few_clients_and_no_answers_are_insufficient_not_errors() -> None:
    few = decide(Detect(), dict(list(THREE.items())[:2]))
    assert few.verdict["judgment"]["verdict"] == "insufficient" and noisy(few) == []
    assert "too few" in few.verdict["judgment"]["warnings"][-1]
    assert noisy(decide(Detect(), {})) == [] and noisy(decide(Detect(), {k: {} for k in range(CLIENTS)})) == []


def test_few_clients_are_named_but_trained_alike() -> None:
    # Losses of 0.1 against ln 3 = 1.0986 leave 0.09 of guessing; 0.4 is then at least
    # 0.862 * 0.4 - 0.091 * 0.091 - 1.63 * 0.4 * 0.091 = 0.277.
    answers = {k: answer(0.1, k, contradicted=0.4 if k == 1 else 0.0) for k in range(4)}
    few = decide(Detect(), answers)
    assert few.verdict["judgment"]["verdict"] == "likely"
    assert few.verdict["judgment"]["status"] == ["clean", "suspect", "clean", "clean", *["unknown"] * (CLIENTS - 4)]
    assert noisy(few) == [] and not few.facts["probability"].any()


@pytest.mark.parametrize(
    ("part", "clients", "begins"),
    [
        (Detect(), 6, ""),
        (Detect(gate=False), 2, ""),
        (Detect(), 5, "with 5 clients the detection can only name suspects"),
        (Detect(), 2, "2 clients are too few to say whose labels are wrong, which takes 3"),
        (Detect(epsilon=8.0), 5, "with epsilon it takes 6 clients"),
    ],
)
def test_too_few_clients_are_known_before_training(part: Detect, clients: int, begins: str) -> None:
    said = part.shortage(clients)
    assert said.startswith(begins) and bool(said) == bool(begins)


def test_a_class_without_samples_is_dropped_and_noted() -> None:
    answers = {k: dict(each) for k, each in THREE.items()}
    for each in answers.values():
        each["cells/mean"] = torch.cat((each["cells/mean"][:2], torch.tensor([math.nan]).double()))
        each["cells/count"] = torch.tensor([50.0, 50.0, 0.0]).double()
    decided = decide(Detect(), answers)
    assert noisy(decided) == [0, 1, 2]
    assert any("class 2" in each for each in decided.verdict["judgment"]["warnings"])


def test_privacy_adds_up_over_detections_and_only_cells_travel() -> None:
    part = Detect(epsilon=1.0)
    reports, _ = part.answer(replace(client((30, 60, 10, 0, 0)), secret=b"a"))
    assert set(reports) == {"cells/mean", "cells/se", "cells/count"}
    first = decide(part, NOBODY)
    second = decide(part, NOBODY, first.facts, 12)
    assert first.verdict["privacy"]["epsilon"] == pytest.approx(1.0)
    assert 1.0 < second.verdict["privacy"]["epsilon"] < 2.0


# what a client measures ----------------------------------------------------------------------------------------------


def seen(y: list[int], p: list[list[float]], losses: list[float] | None = None) -> measures.SampleMeasures:
    probabilities = torch.tensor(p)
    given = -probabilities[range(len(y)), y].log() if losses is None else torch.tensor(losses)
    return measures.SampleMeasures(torch.tensor(y), probabilities, given.double(), torch.zeros(len(y), 2))


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
    client_context = client((4, 2, 0), x=torch.zeros(6, 3))
    found = measures.look(client_context)
    assert torch.allclose(found.losses, torch.full((6,), math.log(3)).double())
    assert found.features.shape == (6, measures.DIRECTIONS)


def test_indicators_may_be_measured_on_varied_samples_the_same_ones_whenever_it_is_asked() -> None:
    client_context = client((4, 2, 0), x=torch.zeros(6, 3))
    plain, varied, again = (measures.look(replace(client_context), each).losses for each in (False, True, True))
    assert (varied != plain).any() and torch.equal(varied, again)
    reports = [Detect(view=view).answer(replace(client_context))[0]["cells/mean"] for view in ("plain", "varied")]
    assert reports[0][:2].tolist() == pytest.approx([math.log(3)] * 2)
    assert reports[1][0] == pytest.approx(float(varied[:4].mean()))


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
    one = measures.SampleMeasures(
        torch.tensor([1, 1]), torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.zeros(2), torch.eye(2)
    )
    other = replace(one, y=torch.tensor([0, 0]))
    reports = measures.feature_means(one, 2)
    assert torch.equal(reports["mean"], torch.eye(2).double())
    assert torch.equal(reports["mean"], measures.feature_means(other, 2)["mean"])


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
    client_context = replace(client((30, 60, 10, 0, 0)), secret=b"a")
    turns = [replace(client_context, purpose=(turn,)) for turn in range(300)]
    draws = [measures.private_cells(found, 2, 5.0, 2.0, turn.add_noise) for turn in turns]
    means = np.array([float(each["mean"][0]) for each in draws])
    # the noise of the sum and of the count: 5/400 * 2 * sqrt(1 + (1/5)^2)
    assert means.std() == pytest.approx(5 / 400 * 2 * math.sqrt(1.04), rel=0.15)
    assert means.mean() == pytest.approx(1.0, abs=0.01)
    # a count of 1 seems at least 8 with the chance of z >= 3.5: 0.0002
    assert np.mean([bool(each["mean"][1].isnan()) for each in draws]) > 0.99
    assert np.mean([float(each["se"][0]) for each in draws]) > means.std()


def test_privacy_noise_comes_from_the_sites_secret_and_never_from_the_seed() -> None:
    part, client_context = Detect(epsilon=10.0), client((30, 60, 10, 0, 0))
    scratch, again, others = (
        part.answer(replace(client_context, secret=s))[0]["cells/mean"] for s in (b"a", b"a", b"b")
    )
    assert torch.equal(scratch[:2], again[:2]) and not torch.equal(scratch[:2], others[:2])
