"""Weights that were trained elsewhere: by name, by order, with another head, and what is wrong with a file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree
from fedskew.models import weights
from fedskew.models.net import Net
from fedskew.models.registry import adapt, build


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


def file(tensors: Tree, in_order: bool = True) -> weights.WeightsFile:
    return weights.WeightsFile(Path("w"), tensors, in_order, "")


def test_a_file_goes_by_names_and_its_head_comes_along(tmp_path: Path) -> None:
    ours = net()
    save_file(moved(ours.initial()), tmp_path / "w.safetensors")
    model, with_head = weights.fitted(weights.read(tmp_path / "w.safetensors"), ours)
    assert with_head
    assert all(torch.equal(model[name], t) for name, t in moved(ours.initial()).items())
    assert list(model) == list(ours.initial())


@pytest.mark.parametrize("name", ["w.safetensors", "w.bin", "w.pt"])
def test_files_are_known_by_their_content(tmp_path: Path, name: str) -> None:
    ours = net()
    (torch.save if name == "w.pt" else save_file)(moved(ours.initial()), tmp_path / name)  # type: ignore[operator]
    model, _ = weights.fitted(weights.read(tmp_path / name), ours)
    assert torch.equal(model["head.bias"], ours.initial()["head.bias"] + 1)


def test_a_head_for_other_classes_stays_as_it_was() -> None:
    ours, foreign = net(classes=4), net(classes=7)
    model, with_head = weights.fitted(file(moved(foreign.initial())), ours)
    assert not with_head
    assert torch.equal(model["head.weight"], ours.initial()["head.weight"])
    assert torch.equal(model["head.bias"], ours.initial()["head.bias"])
    assert torch.equal(model["trunk.0.weight"], foreign.initial()["trunk.0.weight"] + 1)


def test_a_wrapper_s_prefix_is_left_aside() -> None:
    ours = net()
    model, with_head = weights.fitted(
        file({f"module.{name}": t for name, t in moved(ours.initial()).items()}, in_order=False), ours
    )
    assert with_head and torch.equal(model["trunk.0.weight"], ours.initial()["trunk.0.weight"] + 1)


def test_a_network_that_is_a_head_only_takes_the_head_or_complains() -> None:
    ours = Net(adapt(nn.Linear(3, 4)))
    model, with_head = weights.fitted(file(moved(ours.initial())), ours)
    assert with_head and torch.equal(model["head.weight"], ours.initial()["head.weight"] + 1)
    with pytest.raises(UserError, match="no head for its classes"):
        weights.fitted(file({"head.weight": torch.zeros(7, 3), "head.bias": torch.zeros(7)}), ours)
    with pytest.raises(UserError, match=r"'trunk' is \[2\] in the file, not missing. Name another file."):
        weights.fitted(file({"trunk": torch.zeros(2)}), ours)


@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize("inside", [(), ("state_dict",), ("model", "state_dict")])
def test_a_network_by_another_hand_goes_by_order_and_gives_the_same_features(
    tmp_path: Path, counters: bool, inside: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    foreign = Elsewhere()
    for module in foreign.modules():  # statistics that are told apart from fresh ones, and from each other
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    assigned: dict[str, Any] = OrderedDict(
        (name, t) for name, t in foreign.state_dict().items() if counters or "num_batches" not in name
    )
    for key in inside:
        assigned = {key: assigned, "epoch": 90}
    torch.save(assigned, tmp_path / "w.pth")
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        wanted = foreign.eval().features(x)
    for classes in (4, 1000):
        ours = net("resnet18-imagenet", classes, size=64)
        model, with_head = weights.fitted(weights.read(tmp_path / "w.pth"), ours)
        assert with_head is (classes == 1000)
        assert torch.allclose(ours.frozen(model, x).features, wanted, atol=1e-4)
        assert with_head is torch.equal(model["head.bias"].sum(), foreign.fc.bias.detach().sum())


def test_the_order_of_a_file_that_is_sorted_by_names_means_nothing() -> None:
    layers = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(12)), nn.Linear(3, 2))
    ours = Net(adapt(layers))
    other = {f"layers.{name}": t for name, t in moved(ours.initial()).items()}
    other = {name.replace("layers.", "blocks.x"): t for name, t in other.items()}
    model, _ = weights.fitted(file(other), ours)
    assert torch.equal(model["10.weight"], ours.initial()["10.weight"] + 1)
    with pytest.raises(UserError, match=r"'0\.weight' is missing in the file"):
        weights.fitted(file(dict(sorted(other.items())), in_order=False), ours)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda tree: {n: t for n, t in tree.items() if n != "trunk.0.weight"}, "'trunk.0.weight' is missing in the"),
        (lambda tree: tree | {"trunk.0.weight": torch.zeros(2, 2)}, r"'trunk.0.weight' is \[2, 2\] in the file, not"),
        (lambda tree: tree | {"more": torch.zeros(2)}, r"'more' is \[2\] in the file, not missing. Name another file."),
        (lambda tree: tree | {"trunk.1.running_mean": torch.full((16,), torch.nan)}, "are not all finite: 'trunk.1.ru"),
        (lambda tree: tree | {"head.bias": torch.full((4,), torch.nan)}, "are not all finite: 'head.bias' is not"),
        (
            lambda tree: tree | {"head.bias": torch.full((4,), 1e300, dtype=torch.float64)},
            "are not all finite: 'head.bias' is not",
        ),
        (lambda tree: tree | {"head.bias": torch.ones(4).int()}, "is of torch.int32. Save it as a plain"),
        (lambda tree: tree | {"head.bias": torch.ones(4) * 1j}, "is of torch.complex64. Save it as a plain"),
        (lambda tree: tree | {"head.bias": torch.ones(4).to_sparse()}, "is of torch.float32. Save it as a plain"),
        (lambda tree: tree | {"head.bias": torch.ones(4, device="meta")}, "as a plain .* tensor of torch.float32"),
        (lambda tree: {f"x.y{n}": t[None] for n, t in tree.items()}, "'trunk.0.weight' is missing in the file"),
        (lambda tree: {f"x.y{n}": t for n, t in list(tree.items())[:9]}, "'trunk.0.weight' is missing in the file"),
    ],
)
def test_what_does_not_fit_is_named(change: Callable[[Tree], Tree], sentence: str) -> None:
    ours = net()
    with pytest.raises(UserError, match=sentence):
        weights.fitted(file(change(ours.initial())), ours)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_brought_to_the_network_s(dtype: torch.dtype) -> None:
    ours = net()
    model, _ = weights.fitted(
        file({n: t.to(dtype) if t.is_floating_point() else t for n, t in ours.initial().items()}), ours
    )
    assert {n: t.dtype for n, t in model.items()} == {n: t.dtype for n, t in ours.initial().items()}


def test_a_buffer_that_is_not_learned_may_be_infinite() -> None:
    module = nn.Sequential(OrderedDict(body=nn.Linear(3, 3), head=nn.Linear(3, 2)))
    module.register_buffer("mask", torch.tensor([-torch.inf]))
    ours = Net(adapt(module))
    assert weights.fitted(file(ours.initial()), ours)[1]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("w.safetensors", b"nonsense", "damaged or no file of weights"),
        ("w.safetensors", b"nonsense{{", "damaged or no file of weights"),
        ("w.pth", b"nonsense", "damaged or no file of weights"),
        ("w.pth", b"", "damaged or no file of weights"),
        ("w.pth", None, "weights '.*w.pth' cannot be read: No such file"),
        ("w" * 300, None, "cannot be read: File name too long"),
        (".", None, "there are no weights in '.*': a run writes them when it ends"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence) as raised:
        weights.read(tmp_path / name)
    assert "\n" not in str(raised.value) and "weights_only" not in str(raised.value)


@pytest.mark.parametrize("assigned", [[torch.zeros(2)], {"epoch": 3}, {}])
def test_a_file_without_named_tensors_is_refused(tmp_path: Path, assigned: object) -> None:
    torch.save(assigned, tmp_path / "w.pt")
    with pytest.raises(UserError, match="holds no tensors by name"):
        weights.read(tmp_path / "w.pt")


def test_code_in_a_file_is_not_executed(tmp_path: Path) -> None:
    torch.save(Elsewhere(), tmp_path / "w.pt")
    with pytest.raises(UserError, match="damaged or no file of weights"):
        weights.read(tmp_path / "w.pt")
