"""Weights that were trained elsewhere: by name, by order, with another head, and what is wrong with a file."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedskew.errors import UserError
from fedskew.models import weights
from fedskew.models.net import Net
from fedskew.models.registry import build
from fedskew.types import Spec, Tree


class Block(nn.Module):
    """A basic block of ResNet-18 as the usual library names its layers."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()


class Elsewhere(nn.Module):
    """ResNet-18 for large images and a thousand classes, written by another hand."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for stage in range(1, 5):
            first = Block(widths[stage - 1], widths[stage], 1 if stage == 1 else 2)
            setattr(self, f"layer{stage}", nn.Sequential(first, Block(widths[stage], widths[stage], 1)))
        self.fc = nn.Linear(512, 1000)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        out = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for stage in range(1, 5):
            out = getattr(self, f"layer{stage}")(out)
        return out.mean((2, 3))


def net(name: str = "resnet8", classes: int = 4, size: int = 16) -> Net:
    return Net(build(Spec(name, {}), classes, (3, size, size), seed=0))


def moved(initial: Tree) -> Tree:
    return {name: t + 1 for name, t in initial.items()}


def test_a_file_goes_by_names_and_its_head_comes_along(tmp_path: Path) -> None:
    ours = net()
    save_file(moved(ours.initial()), tmp_path / "w.safetensors")
    model, with_head = weights.fitted(weights.read(tmp_path / "w.safetensors"), ours.initial(), ours.head, "w")
    assert with_head
    assert all(torch.equal(model[name], t) for name, t in moved(ours.initial()).items())
    assert list(model) == list(ours.initial())


def test_a_head_for_other_classes_stays_as_it_was() -> None:
    ours, theirs = net(classes=4), net(classes=7)
    model, with_head = weights.fitted(moved(theirs.initial()), ours.initial(), ours.head, "w")
    assert not with_head
    assert torch.equal(model["head.weight"], ours.initial()["head.weight"])
    assert torch.equal(model["head.bias"], ours.initial()["head.bias"])
    assert torch.equal(model["trunk.0.weight"], theirs.initial()["trunk.0.weight"] + 1)


@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize("inside", [None, "state_dict"])
def test_a_network_by_another_hand_goes_by_order_and_gives_the_same_features(
    tmp_path: Path, counters: bool, inside: str | None
) -> None:
    torch.manual_seed(0)
    theirs = Elsewhere()
    for module in theirs.modules():  # statistics that are told apart from fresh ones, and from each other
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    state = OrderedDict((name, t) for name, t in theirs.state_dict().items() if counters or "num_batches" not in name)
    torch.save(state if inside is None else {inside: state, "epoch": 90}, tmp_path / "w.pth")
    ours = net("resnet18-imagenet", size=64)
    model, with_head = weights.fitted(weights.read(tmp_path / "w.pth"), ours.initial(), ours.head, "w")
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        wanted = theirs.eval().features(x)
    assert not with_head
    assert torch.allclose(ours.frozen(model, x).features, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda tree: {n: t for n, t in tree.items() if n != "trunk.0.weight"}, "'trunk.0.weight' is missing in the"),
        (lambda tree: tree | {"trunk.0.weight": torch.zeros(2, 2)}, r"'trunk.0.weight' is \[2, 2\] in the file and"),
        (lambda tree: tree | {"trunk.1.running_mean": torch.full((16,), torch.nan)}, "are not all finite: 'trunk.1.ru"),
        (lambda tree: {f"x.{n}": t[None] for n, t in tree.items()}, "'trunk.0.weight' is missing in the file"),
        (lambda tree: {f"x.{n}": t for n, t in list(tree.items())[:9]}, "'trunk.0.weight' is missing in the file"),
    ],
)
def test_what_does_not_fit_is_named(change: object, sentence: str) -> None:
    ours = net()
    with pytest.raises(UserError, match=sentence):
        weights.fitted(change(ours.initial()), ours.initial(), ours.head, "w")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("w.safetensors", b"nonsense", "damaged or no file of weights"),
        ("w.pth", b"nonsense", "damaged or no file of weights"),
        ("w.pth", b"", "damaged or no file of weights"),
        ("w.pth", None, "damaged or no file of weights"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence) as raised:
        weights.read(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("held", [[torch.zeros(2)], {"epoch": 3}, {}])
def test_a_file_without_named_tensors_is_refused(tmp_path: Path, held: object) -> None:
    torch.save(held, tmp_path / "w.pt")
    with pytest.raises(UserError, match="holds no tensors by name"):
        weights.read(tmp_path / "w.pt")


def test_code_in_a_file_is_not_executed(tmp_path: Path) -> None:
    torch.save(Elsewhere(), tmp_path / "w.pt")
    with pytest.raises(UserError, match="damaged or no file of weights"):
        weights.read(tmp_path / "w.pt")
