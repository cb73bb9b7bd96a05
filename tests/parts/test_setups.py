from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree
from fedskew.models import Classifier, build
from fedskew.models.net import Net
from fedskew.parts.protocol import SetupResult
from fedskew.parts.setups import ClusterByLabels, Concatenate, kmeans
from tests.parts.by_hand import Federation, server_context, stage


def clustered(answers: dict[int, Tree], k: int = 2, clients: int = 6, cap: float | None = None) -> SetupResult:
    return ClusterByLabels(k, cap).decide(server_context(clients=clients), Spec("x"), {}, answers)


def said(*rows: list[float]) -> dict[int, Tree]:
    return {client: {"p": torch.tensor(row)} for client, row in enumerate(rows)}


def groups(cluster: Tensor) -> set[frozenset[int]]:
    numbers = cluster.tolist()
    return {frozenset(i for i, j in enumerate(numbers) if j == n) for n in numbers}


A, B, C = [0.9, 0.1, 0.0], [0.0, 0.2, 0.8], [0.0, 1.0, 0.0]


def test_clients_of_like_labels_come_together() -> None:
    decided = clustered(said(A, B, A, B, A, B))
    assert groups(decided.facts["cluster"]) == {frozenset({0, 2, 4}), frozenset({1, 3, 5})}
    assert decided.facts["cluster"].dtype == torch.int64
    assert decided.verdict == {"sizes": [3, 3]}


def test_proportions_are_asked_for() -> None:
    federation = Federation([(1, 0), (3, 2), (0, 1)], stage(setups=(ClusterByLabels(2),)), start=0.0)
    state = next(federation.states())
    cluster = state.facts["cluster"]
    assert cluster[0] != cluster[1] and cluster.shape == (3,)


def test_a_silent_client_and_one_without_samples_go_where_the_average_client_would() -> None:
    # the mean of the four that have samples is (.675, .125, .2), nearer to A
    answers = said(A, B, A, A) | {5: {"p": torch.zeros(3)}}
    cluster = clustered(answers).facts["cluster"]
    assert groups(cluster) == {frozenset({0, 2, 3, 4, 5}), frozenset({1})}


def test_few_answers_or_none_are_legal() -> None:
    assert clustered({}).facts["cluster"].tolist() == [0] * 6
    assert len(groups(clustered(said(A)).facts["cluster"])) == 1
    assert len(groups(clustered(said(A, A, A)).facts["cluster"])) == 1


def test_more_clusters_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match="3 clients cannot make 4 clusters"):
        clustered(said(A, B, C), k=4, clients=3)


def test_a_cap_bounds_the_clusters() -> None:
    answers = said(A, A, A, A, A, B)
    assert sorted(clustered(answers).verdict["sizes"]) == [1, 5]
    # floor(1.4 * 6 / 2) = 4; and never less than every client needs
    assert sorted(clustered(answers, cap=1.4).verdict["sizes"]) == [2, 4]
    assert sorted(clustered(answers, cap=0.1).verdict["sizes"]) == [3, 3]


def test_k_means_finds_clear_groups_whatever_the_seeds() -> None:
    centers = torch.eye(5, dtype=torch.float64)
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        points = centers.repeat(8, 1) + 0.05 * torch.randn(40, 5, generator=rng, dtype=torch.float64)
        owner, found = kmeans(points, 5, rng, room=40)
        assert Counter(owner.tolist()) == dict.fromkeys(range(5), 8)
        assert all(len(set(owner[j::5].tolist())) == 1 for j in range(5))
        assert torch.allclose(found[owner[:5]], torch.stack([points[j::5].mean(0) for j in range(5)]))


def test_k_means_leaves_no_cluster_empty_where_points_differ() -> None:
    points = torch.tensor([[0.0], [0.0], [0.0], [0.0], [0.0], [1.0], [5.0]], dtype=torch.float64)
    for seed in range(20):
        owner, _ = kmeans(points, 3, torch.Generator().manual_seed(seed), room=7, restarts=1)
        assert len(set(owner.tolist())) == 3


def test_k_means_depends_on_its_generator_alone() -> None:
    points = torch.rand(30, 4, dtype=torch.float64)
    first, second = (kmeans(points, 4, torch.Generator().manual_seed(3), room=30) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


# ---- concatenation --------------------------------------------------------------------------------------------------

TINY = Spec("tiny")


def tiny(seed: int) -> Classifier:
    return build(TINY, 5, (1, 8, 8), seed)


def concatenated(modules: list[Classifier], spec: Spec, head: Any) -> tuple[SetupResult, Classifier]:
    bundle = {f"{j}|{name}": t for j, module in enumerate(modules) for name, t in module.state_dict().items()}
    place = replace(server_context(), net=Net(modules[0]))
    decided = Concatenate(len(modules), head).decide(place, spec, bundle, {})
    whole = build(decided.spec, 5, (1, 8, 8), seed=9)
    whole.load_state_dict(decided.model)
    return decided, whole.eval()


def test_joined_heads_give_the_sum_of_the_logits() -> None:
    modules = [tiny(0).eval(), tiny(1).eval()]
    _, whole = concatenated(modules, TINY, "joined")
    x = torch.randn(4, 1, 8, 8)
    assert torch.allclose(whole(x), modules[0](x) + modules[1](x), atol=1e-6)


def test_a_fresh_head_is_initialized_as_in_torch_and_bodies_stay() -> None:
    modules = [tiny(0).eval(), tiny(1).eval()]
    decided, whole = concatenated(modules, TINY, "fresh")
    bound = 32**-0.5
    for name in ("head.weight", "head.bias"):
        assert 0.5 * bound < float(decided.model[name].abs().max()) <= bound
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(whole.features(x)[:, 16:], modules[1].features(x))
    again, _ = concatenated(modules, TINY, "fresh")
    assert tree.equal(decided.model, again.model)


def test_a_head_may_have_another_name_and_no_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_head.py").write_text(
        "from torch import nn\n"
        "def make(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Linear(7, classes, bias=False))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = Spec("odd_head:make")
    modules = [build(spec, 5, (1, 8, 8), seed) for seed in (0, 1)]
    assert Net(modules[0]).head == "3"
    _, whole = concatenated(modules, spec, "joined")
    x = torch.randn(4, 1, 8, 8)
    assert torch.allclose(whole(x), modules[0](x) + modules[1](x), atol=1e-6)
