from __future__ import annotations

import pytest

from fedskew.experiment import run as experiment
from fedskew.methods import registry
from tests.contract import harness


def ended(expression: str, **options: object) -> experiment.Result:
    return harness.finish(harness.config(expression, rounds=2, **options))


def test_without_vacant_classes_lam_changes_nothing() -> None:
    # 200 digits dealt to two clients at random: both have all ten classes
    everywhere = {"partition": "iid", "clients": 2, "clients_per_round": 2}
    ends = {ended(f"fedvls(lam={lam})", **everywhere).end["weights_sha256"] for lam in (0, 0.1, 50)}
    assert len(ends) == 1
    skewed = {ended(f"fedvls(lam={lam})").end["weights_sha256"] for lam in (0, 0.1, 50)}
    assert len(skewed) == 3


def test_edge_6_with_one_class_per_client_weights_stay_finite() -> None:
    result = ended("fedvls", partition="labels:1", clients=10, clients_per_round=10)
    assert result.weights is not None and all(t.isfinite().all() for t in result.weights.values())


@pytest.mark.parametrize("choice", ["form='paper'", "statistics='batch'", "gamma=0", "lam=0"])
def test_every_choice_matters(choice: str) -> None:
    assert ended(f"fedvls({choice})").end["weights_sha256"] != ended("fedvls").end["weights_sha256"]


def test_feded_is_fedvls_by_another_name() -> None:
    old, new = registry.build("feded(lam=0.5)"), registry.build("fedvls(lam=0.5)")
    assert old.stages == new.stages and old.card.paper != new.card.paper
