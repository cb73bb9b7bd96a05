from __future__ import annotations

import pytest
import torch

from fedskew.errors import UserError
from fedskew.models import build
from fedskew.types import Spec


def test_parameter_count() -> None:
    net = build(Spec("fasttext", {"vocab": 98_635}), 4, (200,), seed=0)
    assert sum(p.numel() for p in net.parameters()) == 3_157_508


def test_features_are_the_mean_embedding_through_a_linear_layer() -> None:
    net = build(Spec("fasttext", {"vocab": 9, "width": 3}), 4, (4,), seed=0)
    table = net.embedding.weight
    # Two words and two paddings: the paddings are zero but count in the mean.
    expected = net.hidden((table[5] + table[7]) / 4)
    assert torch.allclose(net.features(torch.tensor([[5, 7, 0, 0]]))[0], expected)
    assert table[0].abs().sum() == 0


def test_padding_is_never_trained() -> None:
    net = build(Spec("fasttext", {"vocab": 9}), 4, (4,), seed=0)
    net(torch.tensor([[5, 7, 0, 0]])).sum().backward()
    assert net.embedding.weight.grad[0].abs().sum() == 0
    assert net.embedding.weight.grad[5].abs().sum() > 0


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="needs sequences of token numbers"):
        build(Spec("fasttext"), 4, (3, 32, 32), seed=0)
    with pytest.raises(UserError, match="'vocab' of network 'fasttext' must be a positive whole number"):
        build(Spec("fasttext", {"vocab": 0}), 4, (200,), seed=0)
