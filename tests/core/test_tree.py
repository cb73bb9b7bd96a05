from __future__ import annotations

import pytest
import torch

from fedskew.core import tree


def test_the_norm_is_that_of_all_entries_together() -> None:
    # 1 + 4 + 4 + 16 = 25; counters have one too
    mixed = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([[2]]), "c": torch.tensor(-4.0, dtype=torch.float16)}
    assert float(tree.norm(mixed)) == 5.0
    assert float(tree.norm({})) == float(tree.norm({"a": torch.zeros(0)})) == 0.0
    assert tree.norm(mixed).dtype == torch.float64
    # in float32 a million ones more would be lost beside 1e16
    large = {"a": torch.tensor([1e8]), "b": torch.ones(1_000_000)}
    assert float(tree.norm(large)) == pytest.approx((1e16 + 1e6) ** 0.5, rel=1e-15)
