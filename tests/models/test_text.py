from __future__ import annotations

import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models import build


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


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="needs sequences of token ids"):
        build(Spec("fasttext"), 4, (3, 32, 32), seed=0)
    with pytest.raises(UserError, match=r"'vocab' of network 'fasttext' is .*\. Give a positive integer"):
        build(Spec("fasttext", {"vocab": 0}), 4, (200,), seed=0)


def test_the_transformer_ignores_padding_and_heeds_order() -> None:
    net = build(Spec("transformer", {"vocab": 9, "width": 8, "heads": 2}), 4, (5,), seed=0).eval()
    with torch.no_grad():
        short, order = net(torch.tensor([[5, 7, 0, 0, 0]])), net(torch.tensor([[7, 5, 0, 0, 0]]))
        assert not torch.allclose(short, order)
        net.embedding.weight[0] = 3.0  # what padding is embedded as makes no difference
        assert torch.allclose(net(torch.tensor([[5, 7, 0, 0, 0]])), short, atol=1e-6)
        assert net(torch.zeros(1, 5, dtype=torch.int64)).isfinite().all()


def test_parameters_of_the_transformer() -> None:
    """Embedding 9 * 8 and places 5 * 8; a block: 2 norms of 16, 4 layers of 8 * 8 + 8, and 8 * 32 + 32 + 32 * 8 + 8;
    the last norm 16, and the head 8 * 4 + 4: 112 + 2 * (32 + 288 + 552) + 52 = 1908.
    """
    net = build(Spec("transformer", {"vocab": 9, "width": 8, "heads": 2}), 4, (5,), seed=0)
    assert sum(p.numel() for p in net.parameters()) == 1908
    with pytest.raises(UserError, match="Give a multiple of its 3 heads"):
        build(Spec("transformer", {"vocab": 9, "width": 8, "heads": 3}), 4, (5,), seed=0)
