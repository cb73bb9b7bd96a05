from __future__ import annotations

import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.parts.optimizers import Adam
from tests.contract import harness


def test_with_equal_steps_it_is_fedavg() -> None:
    # 200 samples on 4 clients: 50 each, four batches of at most 16, so all a_k are equal
    nova, average = (harness.finish(harness.config(method, partition="iid")) for method in ("fednova", "fedavg"))
    assert nova.weights is not None and average.weights is not None
    for name, weight in nova.weights.items():
        assert torch.allclose(weight, average.weights[name], rtol=0, atol=1e-6), name


def test_with_unequal_steps_it_is_not() -> None:
    nova, average = (harness.finish(harness.config(method)) for method in ("fednova", "fedavg"))
    assert nova.weights is not None and average.weights is not None
    assert not torch.allclose(nova.weights["head.weight"], average.weights["head.weight"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("fednova", "Normalised"),
        ("scaffold", "ControlVariate"),
        ("mofedsam", "GlobalMomentum"),
        ("fedconcat+fednova", "Normalised"),
    ],
)
def test_adam_has_no_effective_steps_and_is_refused(method: str, part: str) -> None:
    wanted = harness.config(method, settings=['local.optimizer="adam"'])
    sentence = f"{part} needs effective steps, which {Adam.__name__} does not define"
    with pytest.raises(UserError, match=sentence) as refused:
        harness.finish(wanted)
    assert "\n" not in str(refused.value)
