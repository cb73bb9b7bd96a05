from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.parts.protocol import Term
from fedskew.parts.terms.distillation import DKD, EKD, KD, LMD, NTD, VacantDistillation
from tests.parts.terms import looking
from tests.parts.terms.looking import COUNTS, ZG, Y, Z, client, gradient, identity, look, still, value

TAUGHT = [KD(1, 1), NTD(1, 1), LMD(1, 1), EKD(1, 1), DKD(1, 1, 1, 1), VacantDistillation(1)]
named = pytest.mark.parametrize("term", TAUGHT, ids=lambda term: term.name)

# the teacher is the same network with another bias, so that its logits on the golden sample are ZG
TEACHER = identity(bias=(ZG - Z)[0])


def taught(term: Term, counts: tuple[int, ...] = COUNTS, y: Tensor = Y) -> float:
    return value(term, client(counts, TEACHER), Z, y, weights=identity())


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (KD(1, 1), 1.306468),
        (KD(2, 3), 2 * 1.403420),
        (NTD(1, 1), 1.169946),
        (NTD(1, 3, teacher=False), 0.262280),
        (LMD(1, 1), 1.489433),
        (LMD(2, 3), 2 * 4.735915),
        (LMD(1, 1, teacher=False), 0.814622),
        (EKD(0.1, 1), 0.1602370),
        (VacantDistillation(0.1), 0.0549142),
        (DKD(1, 1, 0, 1), 0.332888),
        (DKD(0.1, 0, 8, 1), 0.8 * 1.169946),
    ],
    ids=str,
)
def test_goldens(term: Term, expected: float) -> None:
    assert taught(term) == pytest.approx(expected, abs=1e-5)


@named
def test_edge_14_a_student_equal_to_its_teacher_is_left_alone_where_both_see_the_same_classes(term: Term) -> None:
    client_context = client(weights=TEACHER)
    grads = gradient(term, client_context, Z, Y)
    if isinstance(term, LMD):  # the student sees majority classes that the teacher does not
        assert value(term, client_context, Z, Y) > 0 and not still(grads)
    else:
        assert value(term, client_context, Z, Y) == pytest.approx(0, abs=1e-6)
        assert all(t.abs().max() < 1e-6 for t in grads.values())


@named
def test_terms_side_by_side_share_one_pass_of_the_teacher(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    client_context = client(weights=TEACHER)
    passes = []
    frozen = client_context.net.frozen
    monkeypatch.setattr(client_context.net, "frozen", lambda *given: passes.append(given) or frozen(*given))
    out = look(client_context, Z, Y)
    for each in (term, KD(1, 1)):
        each.loss(out, each.begin(client_context))
    assert len(passes) == 1


@pytest.mark.parametrize("term", [NTD(1, 1, teacher=False), LMD(1, 1, teacher=False)])
def test_teacher_free_forms_run_no_teacher(term: Term, monkeypatch: pytest.MonkeyPatch) -> None:
    client_context = client(weights=TEACHER)
    monkeypatch.setattr(client_context.net, "frozen", lambda *given: pytest.fail("a teacher was asked"))
    value(term, client_context, Z, Y)


@named
def test_d33_statistics_of_the_teacher_are_the_running_ones_or_the_batch_s(term: Term) -> None:
    net = looking.net(batch_norm=True)
    x, y = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 0, 1, 1, 1, 2])
    weights = net.initial()  # running mean 0 and variance 1, far from the batch's
    client_context = client(weights=weights, of=net)
    kept = tree.digest(weights)
    live = look(client_context, x, y)  # batch norm trains here: the student goes by the batch
    batch = type(term)(**vars(term) | {"statistics": "batch"})
    by_batch, by_running = (float(each.loss(live, each.begin(client_context)).detach()) for each in (batch, term))
    if isinstance(term, LMD):
        assert by_batch != pytest.approx(by_running, rel=1e-3)
    else:
        assert by_batch == pytest.approx(0, abs=1e-6) and by_running > 1e-3
    assert tree.digest(weights) == kept


# FedVLS ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(1, 2, 3, 4, 5), (1, 2, 3, 4, 0)], ids=["edge 1: none", "edge 2: one"])
def test_with_less_than_two_vacant_classes_nothing_is_distilled(counts: tuple[int, ...]) -> None:
    for lam in (0.1, 100.0):
        client_context = client(counts, TEACHER)
        assert value(VacantDistillation(lam), client_context, Z, Y, identity()) == 0
        assert still(gradient(VacantDistillation(lam), client_context, Z, Y, identity()))


def test_vacant_distillation_moves_vacant_logits_only() -> None:
    grads = gradient(VacantDistillation(1.0), client(weights=TEACHER), Z, Y, identity())["head.bias"]
    assert not grads[:3].any() and grads[3:].all()


def test_a_client_with_one_class_has_nothing_to_distil_of_what_exists() -> None:
    assert taught(EKD(1, 1), (0, 9, 0, 0, 0)) == 0


# FedLMD ---------------------------------------------------------------------------------------------------------------


def test_the_target_is_masked_on_both_sides_when_it_is_a_minority_label() -> None:
    # y = 2 is not a majority label of (30, 60, 10, 0, 0), for n/C = 20: A = {3, 4}, B = {0, 1, 3, 4}
    assert taught(LMD(1, 1), y=torch.tensor([2])) == pytest.approx(2.121071, abs=1e-5)


def test_majority_rules_differ() -> None:
    # n/C = 20 makes {0, 1} the majority of (30, 60, 10, 0, 0), n/#present = 33.3 only {1}: A gains class 0
    printed = taught(LMD(1, 1, majority="mean_present"))
    assert printed == pytest.approx(taught(NTD(1, 1)), abs=1e-6)  # with y = 1 nothing but the target is left out


def test_edges_4_and_5_on_a_balanced_client() -> None:
    balanced = (20, 20, 20, 20, 20)
    assert taught(LMD(1, 1), balanced) == taught(NTD(1, 1), balanced)  # no majority: FedNTD
    assert taught(LMD(1, 1, majority="mean_present"), balanced) == 0  # all majority: FedAvg


@pytest.mark.parametrize("teacher", [True, False])
def test_edge_3_a_sample_without_minority_labels_beside_its_own_adds_nothing(teacher: bool) -> None:
    term = LMD(1, 1, teacher)
    # n/C = 20: {0, 1, 2, 3} are majority labels and the target 4 is the only other one
    client_context = client((24, 24, 24, 24, 4), TEACHER)
    assert value(term, client_context, Z, torch.tensor([4]), identity()) == 0
    assert still(gradient(term, client_context, Z, torch.tensor([4]), identity()))
    # beside an ordinary sample it still counts in the mean
    alone = value(term, client_context, Z, Y, identity())
    both = value(term, client_context, Z.repeat(2, 1), torch.tensor([1, 4]), identity())
    assert both == pytest.approx(alone / 2)


@pytest.mark.parametrize("term", [NTD(1, 1), NTD(1, 1, teacher=False), LMD(1, 1), LMD(1, 1, teacher=False)], ids=str)
def test_edge_3_two_classes_leave_nothing_to_distil(term: Term) -> None:
    client_context = client((5, 1), identity(2, 2, torch.tensor([3.0, -3.0])), x=torch.zeros(6, 2))
    assert value(term, client_context, torch.tensor([[1.0, 0.0]]), torch.tensor([1]), identity(2, 2)) == 0
