"""The contract every network keeps, finding networks by name, and adapting a user's own."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.models import Classifier, adapt, build, known, network
from fedskew.models.registry import Adapted

#: For each network its arguments, a shape it is made for, and its feature width.
NATURAL: dict[str, tuple[dict[str, Any], tuple[int, ...], int]] = {
    "cnn2": ({}, (1, 8, 8), 512),
    "concat": ({"body": {"name": "tiny", "args": {}}, "k": 3}, (1, 8, 8), 48),
    "fasttext": ({"vocab": 50}, (12,), 32),
    "low-rank": ({"body": {"name": "mlp", "args": {"hidden": [20, 10]}}}, (7,), 10),
    "mlp": ({"hidden": [20, 10]}, (7,), 10),
    "mlp3": ({}, (1, 28, 28), 200),
    "mobilenet": ({}, (3, 32, 32), 1024),
    "mobilenetv2": ({}, (3, 32, 32), 1280),
    "projected": ({"body": {"name": "tiny", "args": {}}, "width": 9}, (1, 8, 8), 9),
    "resnet10": ({}, (3, 32, 32), 512),
    "resnet18": ({}, (3, 16, 16), 512),
    "resnet18-imagenet": ({}, (3, 32, 32), 512),
    "resnet32": ({}, (3, 32, 32), 64),
    "resnet8": ({}, (3, 32, 32), 64),
    "simple-cnn": ({}, (3, 16, 16), 84),
    "tiny": ({}, (1, 8, 8), 16),
    "transformer": ({"vocab": 50}, (12,), 64),
}


def natural(name: str, seed: int = 0) -> Classifier:
    args, shape, _ = NATURAL[name]
    return build(Spec(name, args), classes=5, shape=shape, seed=seed)


def batch(name: str) -> Tensor:
    _, shape, _ = NATURAL[name]
    generator = torch.Generator().manual_seed(1)
    if name in ("fasttext", "transformer"):
        return torch.randint(50, (2, *shape), generator=generator)
    return torch.randn(2, *shape, generator=generator)


def test_every_known_network_is_tried_here() -> None:
    assert set(NATURAL) == set(known())


def test_every_network_says_in_one_line_what_it_is() -> None:
    assert all(line.endswith(".") for line in known().values())


@pytest.mark.parametrize("name", NATURAL)
def test_contract(name: str) -> None:
    net, x = natural(name).eval(), batch(name)
    features = net.features(x)
    assert features.shape == (2, NATURAL[name][2])
    assert isinstance(net.head, nn.Linear)
    assert torch.equal(net(x), net.head(features))
    assert net(x).shape == (2, 5)
    logits, same_features = net.forward_with_features(x)
    assert torch.equal(logits, net(x)) and torch.equal(same_features, features)
    assert torch.equal(net.state_dict()[f"{net.head_name}.weight"], net.head.weight)


@pytest.mark.parametrize("name", NATURAL)
def test_gradients_reach_every_parameter(name: str) -> None:
    net, x = natural(name), batch(name)
    if NATURAL[name][1] == (3, 32, 32):
        x = x[:, :, ::2, ::2]  # these take any size, and small is quick
    net(x).square().sum().backward()
    assert [key for key, p in net.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("name", ["tiny", "concat", "fasttext", "resnet32"])
def test_the_seed_decides_the_initial_weights(name: str) -> None:
    first, second, other = (natural(name, seed).state_dict() for seed in (3, 3, 4))
    assert tree.equal(first, second)
    assert not tree.equal(first, other)


def test_building_neither_reads_nor_moves_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = natural("tiny").state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    assert tree.equal(natural("tiny").state_dict(), first)


def test_initial_weights_do_not_depend_on_the_default_device() -> None:
    with torch.device("meta"):
        assert tree.equal(natural("tiny").state_dict(), natural("tiny").state_dict())


# --- names and arguments


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (Spec("restnet8"), r"no network is called 'restnet8'. Did you mean 'resnet8'\?"),
        (Spec("tiny", {"hiden": 3}), "network 'tiny' has no argument 'hiden'"),
        (Spec("mlp", {"hiden": [3]}), r"'hiden'. Did you mean 'hidden'\?"),
        (Spec("mlp", {"hidden": 3}), "'hidden' of network 'mlp' is 3. Give a list of sizes."),
        (Spec("mlp", {"hidden": [0]}), "'hidden' of network 'mlp' is 0. Give a positive integer."),
        (Spec("tiny", {"classes": 3}), "'classes' of network 'tiny' comes from the data"),
        (Spec("concat", {"k": 2}), "network 'concat' needs the argument 'body'"),
        (Spec("no_such_module_at_all:make"), "cannot be imported: No module named"),
        (Spec("torch:no_such_function"), "module 'torch' has no function 'no_such_function'"),
        (Spec(":make"), "is no 'module:function'"),
    ],
)
def test_mistakes_are_named_in_one_sentence(spec: Spec, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(spec, classes=5, shape=(1, 8, 8), seed=0)


def test_a_name_is_given_once() -> None:
    with pytest.raises(UserError, match="already a network called 'tiny'"):
        network("tiny")(nn.Identity)


# --- a user's own modules


class Nested(nn.Module):
    """Names that are also words of the contract, a head that is not registered last, and a mode used at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.ModuleDict({"out": nn.Linear(4, 5)})
        self.squeeze = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.squeeze(self.features(x).mean(dim=(2, 3)))
        return self.head["out"](F.dropout(pooled, 0.5, self.training))


def sequential() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 5))


def test_a_sequential_is_adapted_at_its_last_linear_layer() -> None:
    module = sequential()
    net, x = adapt(module), torch.randn(3, 1, 8, 8)
    logits, features = net.forward_with_features(x)
    assert net.head is module[3] and net.head_name == "3"
    assert torch.equal(logits, module(x)) and torch.equal(net(x), logits)
    assert torch.equal(features, module[:3](x)) and torch.equal(net.features(x), features)


def test_a_named_head_may_stand_anywhere_and_names_stay_the_users() -> None:
    module = Nested()
    net, x = adapt(module, "head.out").eval(), torch.randn(3, 1, 8, 8)
    logits, features = net.forward_with_features(x)
    assert torch.equal(logits, module.eval()(x))
    assert torch.equal(module.head["out"](features), logits)
    assert list(net.state_dict()) == list(module.state_dict())
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in module.named_parameters()]


def test_an_adapted_module_reads_its_mode_and_weights_from_outside() -> None:
    module = Nested()
    net, x = adapt(module, "head.out"), torch.randn(3, 1, 8, 8)
    net.eval()
    assert torch.equal(net(x), net(x))
    net.train()
    assert not torch.equal(net(x), net(x))
    net.load_state_dict({name: torch.zeros_like(t) for name, t in net.state_dict().items()})
    assert net.eval()(x).abs().sum() == 0


def test_a_copy_of_an_adapted_module_stands_alone() -> None:
    net, x = adapt(sequential()), torch.randn(3, 1, 8, 8)
    twin, before = copy.deepcopy(net), net(x)
    for parameter in twin.parameters():
        parameter.data = torch.zeros_like(parameter)
    assert torch.equal(net(x), before)
    assert twin(x).abs().sum() == 0 and torch.equal(twin.head.weight, torch.zeros(5, 12))


def test_adapting_leaves_no_hook_behind_and_works_within_itself() -> None:
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.inner: list[Classifier] = []

        def forward(self, x: Tensor) -> Tensor:
            if self.inner and len(x) > 1:
                inner_logits, inner_features = self.inner[0].forward_with_features(x[:1])
                assert torch.equal(inner_features, x[:1]) and inner_logits.shape == (1, 2)
            return self.fc(x)

    module = Recursive()
    net = adapt(module)
    module.inner.append(net)
    x = torch.randn(3, 4)
    assert torch.equal(net.features(x), x)
    assert not module.fc._forward_pre_hooks


def test_a_network_that_meets_the_contract_is_used_as_it_is() -> None:
    net = natural("tiny")
    assert adapt(net) is net
    adapted = adapt(sequential())
    assert adapt(adapted) is adapted


def test_a_linear_layer_alone_is_a_network() -> None:
    net, x = adapt(nn.Linear(4, 3)), torch.randn(2, 4)
    assert list(net.state_dict()) == ["head.weight", "head.bias"]
    assert torch.equal(net.features(x), x)


def test_a_linear_layer_called_head_is_the_head() -> None:
    module = nn.Sequential(OrderedDict(head=nn.Linear(4, 3), spare=nn.Linear(3, 3)))
    assert adapt(module).head is module.head


@pytest.mark.parametrize(
    ("module", "head", "sentence"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3)), None, "Sequential has no linear layer"),
        (sequential(), "4", "Sequential has no linear layer '4'. Known: 1, 3"),
    ],
)
def test_a_module_without_the_head_is_refused(module: nn.Module, head: str | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        adapt(module, head)


def test_a_module_that_does_not_use_its_head_as_one_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            return self.used(x), x

    with pytest.raises(UserError, match="'unused' is never called"):
        adapt(Odd())(torch.randn(2, 4))
    with pytest.raises(UserError, match=r"returns a tuple\. Return its logits as one tensor"):
        adapt(Odd(), "used")(torch.randn(2, 4))
    with pytest.raises(UserError, match=r"has shape \[2, 3, 4\]. Flatten it to \[batch, features\]"):
        adapt(nn.Sequential(nn.Linear(4, 5)))(torch.randn(2, 3, 4))


# --- a user's own functions

NETWORKS = """
import math

from torch import nn

def plain(classes, shape, width=6):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Linear(width, classes))

def headed(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.LogSoftmax(dim=1))

def anything(**given):
    assert set(given) == {"classes", "shape", "extra"}
    return plain(given["classes"], given["shape"])

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1000))

def no_module():
    return {}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_networks"


@pytest.mark.parametrize(
    ("function", "args", "width"),
    [
        ("plain", {}, 6),
        ("plain", {"width": 9}, 9),
        ("plain", {"head": "3"}, 6),
        ("headed", {}, 64),
        ("anything", {"extra": 1}, 6),
        ("Net", {}, 64),
    ],
)
def test_a_path_names_a_users_function(own: str, function: str, args: dict[str, Any], width: int) -> None:
    spec = Spec(f"{own}:{function}", args)
    net = build(spec, classes=5, shape=(1, 8, 8), seed=0)
    assert isinstance(net, Adapted)
    logits, features = net.forward_with_features(torch.randn(2, 1, 8, 8))
    assert logits.shape == (2, 5) and features.shape == (2, width)
    assert tree.equal(net.state_dict(), build(spec, classes=5, shape=(1, 8, 8), seed=0).state_dict())


@pytest.mark.parametrize(
    ("function", "args", "sentence"),
    [
        ("plane", {}, r"has no function 'plane'. Did you mean 'plain'\?"),
        ("plain", {"widht": 3}, r"has no argument 'widht'. Did you mean 'width'\?"),
        ("fixed", {}, "gives 1000 outputs for 5 classes. Give it 5 outputs."),
        ("no_module", {}, "is a dict. Return a torch.nn.Module"),
    ],
)
def test_mistakes_in_a_users_function(own: str, function: str, args: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(Spec(f"{own}:{function}", args), classes=5, shape=(1, 8, 8), seed=0)
