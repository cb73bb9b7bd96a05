"""Features and logits are the inputs (`looking`), so that centroids can be followed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.core.types import Broadcast, Round, Spec, Tree, Update
from fedskew.parts.terms.centroids import CentroidCrossEntropy, CentroidJudgment
from fedskew.parts.views import Accumulator, Batch, ClientContext, ForwardPass
from tests.parts.terms import looking
from tests.parts.terms.looking import client, run, server_context

PART = CentroidCrossEntropy(T_pl=4, forget=0.5, gradual=3, lam_cen=1.0, lam_e=0.0)
AXES = torch.eye(2)


def at_round(t: int, x: Tensor, y: Tensor, classes: int = 2, centroids: Tensor | None = None) -> ClientContext:
    extras = {} if centroids is None else {"centroids": centroids}
    client_context = client((0,) * classes, x=x, y=y, extras=extras, of=looking.net(x.shape[1], classes))
    return replace(client_context, round=Round(t, t, t, 0))


def passed(client_context: ClientContext, x: Tensor, y: Tensor, index: Tensor | None = None) -> ForwardPass:
    batch = Batch(x, y, torch.arange(len(y)) if index is None else index)
    return ForwardPass(batch, client_context.net, client_context.net.prepare(tree.clone(client_context.weights)), {})


def judgment(part: CentroidCrossEntropy, client_context: ClientContext) -> CentroidJudgment:
    made = part.begin(client_context)
    assert made is not None
    return made


def ce(margin: float) -> float:
    """Of two classes, where the target's logit is above the other's by `margin`."""
    return math.log1p(math.exp(-margin))


# ---- how a round begins ----------------------------------------------------------------------------------------------

X, Y = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0, 2])


def test_at_first_centroids_are_the_clients_own_means() -> None:
    scratch = judgment(PART, at_round(0, X, Y, 3))
    assert scratch.centroids.tolist() == [[2, 0], [0, 0], [0, 5]]
    assert scratch.pseudo is None and scratch.r == 0 and scratch.lam_cen == 0


def test_later_they_are_those_received() -> None:
    received = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 2.0]])  # class 1 is nobody's, and not this client's either
    scratch = judgment(PART, at_round(3, X, Y, 3, received))
    assert scratch.centroids is received and scratch.pseudo is None


def test_a_class_without_a_centroid_takes_the_own_mean() -> None:
    received = torch.tensor([[1.0, 1.0], [4.0, 0.0], [0.0, 0.0]])
    scratch = judgment(PART, at_round(3, X, Y, 3, received))
    assert scratch.centroids.tolist() == [[1, 1], [4, 0], [0, 5]]
    assert received.tolist() == [[1, 1], [4, 0], [0, 0]]


def test_pseudo_labels_are_the_received_models_and_begin_at_T_pl() -> None:
    received = torch.ones(3, 2)
    y = torch.tensor([1, 0, 0])
    assert judgment(PART, at_round(3, X, y, 3, received)).pseudo is None
    late = judgment(PART, at_round(4, X, y, 3, received))
    assert late.pseudo is not None and late.pseudo.tolist() == [0, 0, 1]  # argmax of the inputs, whatever y
    assert torch.equal(late.centroids, received)


@pytest.mark.parametrize(
    ("t", "r", "lam_cen"), [(0, 0.0, 0.0), (1, 0.25, 0.25), (2, 0.5, 0.5), (4, 0.5, 1.0), (9, 0.5, 1.0)]
)
def test_ramps(t: int, r: float, lam_cen: float) -> None:
    scratch = judgment(PART, at_round(t, X, Y, 3, torch.ones(3, 2)))
    assert (scratch.r, scratch.lam_cen) == (r, lam_cen)


def test_default_forgetting_is_a_linspace_of_ten_points() -> None:
    part = replace(PART, forget=0.2, gradual=10)
    rates = [judgment(part, at_round(t, X, Y, 3, torch.ones(3, 2))).r for t in range(12)]
    assert rates == pytest.approx([*torch.linspace(0, 0.2, 10).tolist(), 0.2, 0.2])


def test_a_client_without_samples_does_not_fall() -> None:
    assert PART.begin(at_round(0, torch.zeros(0, 2), torch.zeros(0).long())) is None


# ---- the loss --------------------------------------------------------------------------------------------------------

# losses ce(2), ce(1), ce(-3), ce(-2): with r = 1/2 the first two are kept
FOUR, LABELS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1, 1, 0])


def loss(
    part: CentroidCrossEntropy, client_context: ClientContext, x: Tensor, y: Tensor, index: Tensor | None = None
) -> float:
    return part.loss(passed(client_context, x, y, index), judgment(part, client_context)).item()


def test_loss_by_hand() -> None:
    client_context = at_round(2, FOUR, LABELS, centroids=AXES)
    # both kept samples are most similar to their class's centroid: |(2, 0) - (1, 0)|^2 = 1, |(0, 1) - (0, 1)|^2 = 0,
    # summed and not averaged, times lam_cen(2) = 1/2
    fit, pull = (ce(2) + ce(1)) / 2, 0.5 * (1 + 0)
    assert loss(PART, client_context, FOUR, LABELS) == pytest.approx(fit + pull, rel=1e-5)

    def entropy(margin: float) -> float:
        p = 1 / (1 + math.exp(-margin))
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    doubtful = 0.8 * (entropy(2) + entropy(1)) / 2
    assert loss(replace(PART, lam_e=0.8), client_context, FOUR, LABELS) == pytest.approx(
        fit + pull + doubtful, rel=1e-5
    )


def test_doubted_labels_give_way_from_T_pl_on() -> None:
    keep_all = replace(PART, forget=0.0, lam_cen=0.0)
    for t, expected in (
        (3, (ce(2) + ce(1) + ce(-3) + ce(-2)) / 4),
        # samples 2 and 3 are most similar to the other class's centroid; the received model says 0 and 1
        (4, (ce(2) + ce(1) + ce(3) + ce(2)) / 4),
    ):
        client_context = at_round(t, FOUR, LABELS, centroids=AXES)
        assert loss(keep_all, client_context, FOUR, LABELS) == pytest.approx(expected, rel=1e-5)


def test_a_label_that_the_centroids_confirm_stays_whatever_the_model_says() -> None:
    swapped = AXES.flip(0)  # the centroid of class 1 lies where the model says class 0
    client_context = at_round(4, FOUR, LABELS, centroids=swapped)
    # samples 2 and 3 are confirmed and keep their labels, 0 and 1 get the pseudo-labels they have anyway
    expected = (ce(2) + ce(1) + ce(-3) + ce(-2)) / 4
    assert loss(replace(PART, forget=0.0, lam_cen=0.0), client_context, FOUR, LABELS) == pytest.approx(
        expected, rel=1e-5
    )


def test_only_confirmed_labels_are_pulled() -> None:
    client_context = at_round(4, FOUR, LABELS, centroids=AXES)
    part = replace(PART, forget=0.0)
    pull = loss(part, client_context, FOUR, LABELS) - loss(replace(part, lam_cen=0.0), client_context, FOUR, LABELS)
    assert pull == pytest.approx(1.0, rel=1e-5)


def test_pseudo_labels_are_found_by_the_positions_in_the_shard() -> None:
    # the batch is a varied view of samples 3 and 2; the received model says 1 and 0 on the samples themselves
    client_context = at_round(4, FOUR, LABELS, centroids=AXES)
    x, y = torch.tensor([[0.5, 2.0], [2.0, 0.5]]), torch.tensor([0, 1])
    part = replace(PART, forget=0.0, lam_cen=0.0)
    assert loss(part, client_context, x, y, torch.tensor([3, 2])) == pytest.approx(ce(1.5), rel=1e-5)
    assert loss(part, client_context, x, y, torch.tensor([2, 3])) == pytest.approx(ce(-1.5), rel=1e-5)


def test_a_class_without_a_centroid_is_never_the_most_similar() -> None:
    # the sample points away from the one known centroid: cos < 0, while a row of zeros has cos 0
    x, known = torch.tensor([[-1.0, 0.1]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    part = replace(PART, T_pl=0, forget=0.0)
    out = passed(at_round(0, x, torch.tensor([0])), x, torch.tensor([0]))
    scratch = CentroidJudgment(known, torch.tensor([1]), 0.0, 1.0)
    # label 0 is confirmed: it stays (margin -1.1) and is pulled by 2^2 + 0.1^2
    assert part.loss(out, scratch).item() == pytest.approx(ce(-1.1) + 4.01, rel=1e-5)
    # label 1 is not, even though no centroid speaks against it
    out = passed(at_round(0, x, torch.tensor([1])), x, torch.tensor([1]))
    assert part.loss(out, replace(scratch, pseudo=torch.tensor([0]))).item() == pytest.approx(ce(-1.1), rel=1e-5)
    # and with no centroid at all nothing is confirmed, class 0 no more than others: the pseudo-label 1 is taken
    out = passed(at_round(0, x, torch.tensor([0])), x, torch.tensor([0]))
    assert part.loss(out, replace(scratch, centroids=torch.zeros(2, 2))).item() == pytest.approx(ce(1.1), rel=1e-5)


def pulls(part: CentroidCrossEntropy) -> dict[str, Tensor]:
    client_context = at_round(4, FOUR, LABELS, centroids=AXES)
    out = passed(client_context, FOUR, LABELS)
    value = part.loss(out, judgment(part, client_context))
    grads = torch.autograd.grad(value, list(out.weights.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(out.weights, grads, strict=True))


def test_the_pull_has_a_gradient_only_if_features_are_not_detached() -> None:
    part = replace(PART, forget=0.0)
    without = pulls(replace(part, lam_cen=0.0))
    assert all(torch.equal(pulls(part)[name], grad) for name, grad in without.items())
    trained = pulls(replace(part, detach_features=False))
    # d |W x - c|^2 / d W = 2 (W x - c) x' for x = (2, 0), c = (1, 0): 4 in the upper left
    more = trained["trunk.weight"] - without["trunk.weight"]
    assert torch.allclose(more, torch.tensor([[4.0, 0.0], [0.0, 0.0]]), atol=1e-5)
    assert torch.equal(trained["head.weight"], without["head.weight"])


# ---- how centroids move ----------------------------------------------------------------------------------------------


def test_centroids_move_with_the_mean_of_the_batch_by_their_similarity() -> None:
    x, y = torch.tensor([[1.2, 0.8], [0.0, 0.8]]), torch.tensor([0, 0])
    scratch = CentroidJudgment(AXES, None, 0.0, 0.0)
    PART.observe(passed(at_round(0, x, y), x, y), scratch)
    # the batch's mean is (.6, .8), s = cos = .6: .64 (1, 0) + .36 (.6, .8); class 1 is not in the batch
    assert scratch.centroids[0].tolist() == pytest.approx([0.64 + 0.216, 0.288], rel=1e-5)
    assert scratch.centroids[1].tolist() == [0, 1]
    assert torch.equal(AXES, torch.eye(2)) and not scratch.centroids.requires_grad


def test_only_samples_of_small_loss_move_them() -> None:
    scratch = CentroidJudgment(AXES, None, 0.5, 0.0)
    PART.observe(passed(at_round(0, FOUR, LABELS), FOUR, LABELS), scratch)
    # kept are (2, 0) of class 0 and (0, 1) of class 1, both with s = 1
    assert torch.allclose(scratch.centroids, torch.tensor([[2.0, 0.0], [0.0, 1.0]]))


def test_the_loss_moves_nothing() -> None:
    client_context = at_round(2, FOUR, LABELS, centroids=AXES)
    scratch = judgment(PART, client_context)
    out = passed(client_context, FOUR, LABELS)
    assert (
        torch.equal(PART.loss(out, scratch), PART.loss(out, scratch))
        and scratch.centroids is client_context.extras["centroids"]
    )


# ---- what travels ----------------------------------------------------------------------------------------------------


def test_counts_leave_a_client_only_for_classes_without_a_centroid() -> None:
    for received, counts in ((None, [2, 0, 1]), (torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), [0, 0, 1])):
        client_context = at_round(1, X, Y, 3, received)
        up, kept = PART.finish(client_context, judgment(PART, client_context), run(client_context.weights))
        assert up["counts"].tolist() == counts and kept == {}
        assert up["centroids"].shape == (3, 2)


def merged(sent: Tensor | None, *uploads: tuple[Any, list[int]]) -> Tensor:
    memory: Tree = {} if sent is None else {"centroids": sent}
    sums = Accumulator()
    for number, (c, counts) in enumerate(uploads):
        extra = {"centroids": torch.tensor(c), "counts": torch.tensor(counts)}
        update = Update(number, 1, 1, {}, {}, {PART.name: extra}, {})
        below = Broadcast(number, 3, -1, Round(3, 3, 3, 0), Spec("net"), {}, {PART.name: memory})
        PART.accumulate(update, below, sums)
    after = PART.merge(server_context(looking.net(2, 3), 3, memory), sums)
    assert set(after) == {"centroids"} and after["centroids"].dtype == torch.float32
    assert PART.send(server_context(looking.net(2, 3), 3, after), 0) is after
    return after["centroids"]


def test_the_first_merge_is_weighted_by_counts() -> None:
    first = merged(None, ([[1.0, 0.0], [0.0, 0.0]], [1, 0]), ([[5.0, 4.0], [0.0, 0.0]], [3, 0]))
    # (1 (1, 0) + 3 (5, 4)) / 4; a class nobody has stays without a centroid instead of 0 / 0
    assert first.tolist() == [[4, 3], [0, 0]]


def test_later_merges_are_weighted_by_similarity() -> None:
    sent = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [1.0, 0.0]])
    after = merged(
        sent,
        ([[0.6, 0.8], [0.0, 3.0], [5.0, 0.0], [-1.0, 0.0]], [0, 0, 1, 0]),
        ([[-1.0, 0.0], [3.0, 0.0], [1.0, 0.0], [0.0, 3.0]], [0, 0, 3, 0]),
        ([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0], [-2.0, 1.0]], [0, 0, 0, 0]),
    )
    # class 0: cosines .6, -1 (counts as 0), 1: (.6 (.6, .8) + (2, 0)) / 1.6
    assert after[0].tolist() == pytest.approx([2.36 / 1.6, 0.48 / 1.6], rel=1e-5)
    # class 1: cosines 1, 0, 1: the mean of (0, 3) and (0, 1)
    assert after[1].tolist() == pytest.approx([0, 2])
    # class 2 had none: by counts, (1 (5, 0) + 3 (1, 0)) / 4
    assert after[2].tolist() == pytest.approx([2, 0])
    # class 3: no cosine is above 0, so it stays
    assert after[3].tolist() == [1, 0]
