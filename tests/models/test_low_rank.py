"""Low-rank adapters: the sum by hand, an unchanged start, and networks of others."""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import asdict
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models import build
from fedskew.models.low_rank import LowRank
from fedskew.models.net import Net
from fedskew.parts.adapters import TRAINED, LowRankAdapters
from tests.parts.terms.looking import server_context


def two_layers(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(OrderedDict(first=nn.Linear(shape[0], 5), act=nn.ReLU(), last=nn.Linear(5, classes)))


def encoder(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """PyTorch's own encoder layer, whose fast path reads the weights of its linear layers."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(shape[-1], 2, 8, batch_first=True)
            self.head = nn.Linear(shape[-1], classes)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x).mean(1))

    return Encoder()


def adapted(spec: Spec, shape: tuple[int, ...], **args: float) -> Net:
    return Net(build(Spec("low-rank", {"body": asdict(spec), **args}), 3, shape, seed=0))


def test_a_layer_adds_the_product_by_hand() -> None:
    """W = (1, 2), b = 3, D = (1, -1), U = 2, scale 0.5. For x = (4, 1): 4 + 2 + 3 = 9, D x = 3, 0.5 * 2 * 3 = 3: 12."""
    layer = nn.Linear(2, 1)
    layer.weight.data, layer.bias.data = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
    made = LowRank(layer, 1, 0.5)
    assert made(torch.tensor([[4.0, 1.0]])).item() == 9
    made.lora_down.data, made.lora_up.data = torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0]])
    assert made(torch.tensor([[4.0, 1.0]])).item() == 12


@pytest.mark.parametrize(
    ("spec", "shape"), [(Spec("mlp", {"hidden": [4, 4]}), (5,)), (Spec("tests.models.test_low_rank:two_layers"), (5,))]
)
def test_it_starts_as_the_network_was(spec: Spec, shape: tuple[int, ...]) -> None:
    plain, x = Net(build(spec, 3, shape, seed=4)), torch.rand(7, *shape)
    model = plain.initial()
    decided = LowRankAdapters(2, 4.0).decide(server_context(plain, 3), spec, model, {})
    net = Net(build(decided.spec, 3, shape, seed=9))
    before, after = plain.frozen(model, x), net.frozen(decided.model, x)
    assert torch.equal(before.logits, after.logits) and torch.equal(before.features, after.features)
    assert tree.equal(model, tree.only(decided.model, model))
    trained = net.trainable(TRAINED)
    assert {name.rpartition(".")[2] for name in trained} == {"lora_down", "lora_up", "weight", "bias"}
    assert {name for name in trained if "lora" not in name} == net.select("head")
    assert LowRankAdapters(2, 4.0).rewritten(decided.spec) == decided.spec


def test_the_product_is_scaled_by_alpha_over_rank() -> None:
    """Adapters of ones add 3 / 2 * 2 * the sum of the inputs to every output of the hidden layer."""
    made = build(Spec("low-rank", {"body": asdict(Spec("mlp", {"hidden": [1]})), "rank": 2, "alpha": 3.0}), 3, (4,), 0)
    (layer,) = (each for each in made.modules() if isinstance(each, LowRank))
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    before = layer(x).item()
    layer.lora_down.data.fill_(1.0)
    layer.lora_up.data.fill_(1.0)
    assert layer(x).item() - before == pytest.approx(30.0)


def test_sizes_of_adapters() -> None:
    """Of mlp 6 -> 4 -> 4, rank 2: 2 * 6 + 4 * 2 = 20 numbers in the first layer, 2 * 4 + 4 * 2 = 16 in the second."""
    net = adapted(Spec("mlp", {"hidden": [4, 4]}), (6,), rank=2)
    model = net.initial()
    assert sum(model[name].numel() for name in net.select("adapters")) == 36
    assert net.select("adapters,head") | net.select("!adapters,head") == net.select("all")


def test_the_encoder_of_pytorch_heeds_its_adapters_in_evaluation() -> None:
    net = adapted(Spec("tests.models.test_low_rank:encoder"), (3, 4))
    g = torch.Generator().manual_seed(0)
    model, x = net.initial(), torch.rand(2, 3, 4, generator=g)
    assert {n.rpartition(".")[0] for n in net.select("adapters")} == {"layer.linear1", "layer.linear2"}
    # random ones: the layer norm behind them takes away what is the same for all features
    moved = model | {n: torch.rand(model[n].shape, generator=g) for n in net.select("adapters")}
    assert not torch.allclose(net.frozen(model, x).logits, net.frozen(moved, x).logits)


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(UserError, match="has no linear layer beside its head, so it cannot have adapters"):
        adapted(Spec("mlp", {"hidden": []}), (6,))
    with pytest.raises(UserError, match="'rank' of network 'low-rank' is 0"):
        adapted(Spec("mlp"), (6,), rank=0)


@pytest.mark.parametrize("found", [None, ModuleType("timm")], ids=["nothing", "a folder of that name"])
def test_timm_is_one_sentence_where_it_is_missing(found: ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", found)
    with pytest.raises(UserError, match=r"needs the packages timm and torchvision, which cannot be imported here"):
        build(Spec("timm:resnet18"), 4, (3, 32, 32), seed=0)


def test_networks_of_timm_train_where_it_is_installed() -> None:
    try:
        import timm  # noqa: F401
    except Exception as error:
        pytest.skip(f"timm cannot be imported here: {error}")
    net = Net(build(Spec("timm:resnet18"), 4, (3, 32, 32), seed=0))
    assert net.head == "fc" and net.live(torch.rand(2, 3, 32, 32)).logits.shape == (2, 4)
    with pytest.raises(UserError, match="timm has no network 'resnet1'"):
        build(Spec("timm:resnet1"), 4, (3, 32, 32), seed=0)
