"""Mistakes in a user's own network: one sentence, and the folder is free for the corrected command."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedskew
from fedskew.core.errors import UserError
from tests.commands import complaint, succeed

QUICK = ["--engine", "inline", "--rounds", "1", "--clients", "2", "--local-epochs", "1"]

MODULE = """
from torch import nn


def build(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def wrong(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(32, classes))


class Tall(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(x.flatten(1).view(3, 5))


class Merged(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(x.flatten(1)).sum(0)


class Strange(nn.Module):
    def __init__(self, classes, training_fails=False, detached=False, most=1000, varied_fails=False):
        super().__init__()
        self.head = nn.Linear(64, classes)
        self.training_fails, self.detached, self.most, self.varied_fails = training_fails, detached, most, varied_fails

    def forward(self, x):
        if self.training and self.training_fails:
            raise RuntimeError("not today")
        if len(x) > self.most:
            raise RuntimeError("too many")
        if self.varied_fails and (x != x[:1]).any():
            raise IndexError("index out of range in self")
        out = self.head(x.flatten(1))
        return out.detach() if self.detached else out


def boom():
    raise RuntimeError("no weights here\\nand more")


def nothing():
    return None


class Narrow(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes).bfloat16()

    def forward(self, x):
        return self.head(x.flatten(1).bfloat16())


def headless():
    return nn.Flatten()


def eleven():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 11))
"""


@pytest.fixture(autouse=True)
def _mymodel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymodel.py").write_text(MODULE)
    (tmp_path / "mybroken.py").write_text("def build(:\n")
    (tmp_path / "mynames.py").write_text("unknown_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mymodel", "mybroken", "mynames"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("network", "more", "expected"),
    [
        ("mymodel:biuld", [], "Did you mean 'build'"),
        ("mymodle:build", [], "No module named 'mymodle'"),
        ("mybroken:build", [], "'mybroken:build' cannot be imported: SyntaxError: "),
        ("mynames:build", [], "NameError: name 'unknown_name' is not defined ("),
        ("mymodel:build", ["--head", "2"], "has no linear layer '2'"),
        ("mymodel:headless", [], "has no linear layer"),
        ("mymodel:nothing", [], "is a NoneType. Return a torch.nn.Module"),
        ("mymodel:eleven", [], "gives 11 outputs for 10 classes. Give it 10 outputs."),
        ("mymodel:boom", [], "network 'mymodel:boom' cannot be built: RuntimeError: no weights here ("),
        ("mymodel:wrong", [], "network 'mymodel:wrong' does not work on samples of shape [1, 8, 8]: RuntimeError: "),
        ("mymodel:Tall", [], "mymodel.py, line 19)"),
        ("mymodel:Narrow", [], "has weights in bfloat16, such as 'head.weight'. Use float32"),
        ("mymodel:Merged", [], "gives logits of shape [10] for 2 samples. Return [2, 10] for 10 classes"),
        ("mymodel:Strange", ["--set", "model.args.training_fails=true"], "shape [1, 8, 8]: RuntimeError: not today ("),
        ("mymodel:Strange", ["--set", "model.args.most=3"], "RuntimeError: too many ("),
        ("mymodel:Strange", ["--set", "model.args.detached=true"], "cannot be trained: its logits have no gradient"),
        ("mlp", ["--head", "nope"], "mlp has no linear layer 'nope'. Known: head, trunk.1"),
        ("auto", ["--head", "trunk.1"], "network 'mlp' gives 200 outputs for 10 classes. Give it 10 outputs."),
        ("resnt", [], "no network is called 'resnt'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_leaves_no_folder(network: str, more: list[str], expected: str) -> None:
    assert expected in complaint("run", *QUICK, "--model", network, *more, "--out", "h3")
    assert not Path("h3").exists()


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_an_error_that_only_real_samples_cause_is_one_sentence_too(engine: str) -> None:
    strange = ["--model", "mymodel:Strange", "--set", "model.args.varied_fails=true"]
    said = complaint("run", *QUICK, "--engine", engine, *strange, "--out", "h3")
    assert "'mymodel:Strange' does not work on samples of shape [1, 8, 8]: IndexError: index out of range" in said


def test_the_head_of_a_built_in_network_may_be_named() -> None:
    options = {"model": "mlp", "rounds": 1, "clients": 2, "local_epochs": 1, "engine": "inline"}
    named, usual = (fedskew.run(head=head, **options) for head in ("head", None))
    assert named.end["weights_sha256"] == usual.end["weights_sha256"]


def test_annotators_find_the_mistake_before_they_are_trained() -> None:
    noisy = ["--noise", "h_idn:0.5", "--model", "mymodel:wrong"]
    assert "'mymodel:wrong' does not work on samples" in complaint("run", *QUICK, *noisy, "--out", "h3")


def test_the_corrected_command_finds_its_folder_free_and_an_older_run_is_kept() -> None:
    complaint("run", *QUICK, "--model", "mymodel:wrong", "--out", "h3")
    succeed("run", *QUICK, "--model", "mymodel:build", "--out", "h3")
    before = Path("h3/record.jsonl").read_bytes()
    complaint("run", *QUICK, "--model", "mymodel:wrong", "--out", "h3", "--force")
    assert Path("h3/record.jsonl").read_bytes() == before


def test_a_module_handed_over_in_python_is_named_by_its_class_and_its_own_error_is_the_cause() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.flatten(1))

    with pytest.raises(UserError, match=r"network 'Own' does not work on samples of shape \[1, 8, 8\]") as raised:
        fedskew.run(model=Own(), rounds=1, clients=2, engine="inline")
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_the_record_has_the_class_of_a_module_and_the_digests_of_label_files(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    matrix = tmp_path / "matrix.csv"
    matrix.write_text("\n".join(",".join("1" if i == j else "0" for j in range(10)) for i in range(10)))
    settings = [f"noise.matrix={matrix}", "noise.kind=transition", "noise.rho=0.5"]
    result = fedskew.run(model=module, settings=settings, rounds=1, local_epochs=1, engine="inline")
    assert result.header["model"]["name"] == "Sequential"
    assert result.header["files"] == {"noise.matrix": hashlib.sha256(matrix.read_bytes()).hexdigest()}
    assert result.header["config"]["noise"]["matrix"] == "matrix.csv"


class Parts(nn.Module):
    """A frozen layer, a batch norm that stays as it is, a buffer that is assigned anew; the head is written first."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(8, 10)
        self.norm = nn.BatchNorm1d(64)
        self.body = nn.Linear(64, 8)
        self.body.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(64))
        self.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))

    def train(self, mode: bool = True) -> Parts:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.training:
            self.seen = 0.5 * self.seen + 0.5 * x.mean(0)
        return self.answer(self.body(self.norm(x)).relu())


@pytest.mark.parametrize("method", ["fedavg", "fedsam", "moon"])
@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_what_is_frozen_stays_and_what_is_assigned_is_kept(method: str, engine: str) -> None:
    torch.manual_seed(0)
    module = Parts()
    result = fedskew.run(method, model=module, rounds=2, local_epochs=1, clients=3, engine=engine)
    first, last = module.state_dict(), result.weights
    assert last is not None
    moved = {name for name in first if not torch.equal(first[name], last[name])}
    assert moved == {"answer.weight", "answer.bias", "norm.weight", "norm.bias", "seen"}


def test_a_network_that_is_all_frozen_cannot_be_trained() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False)
    with pytest.raises(UserError, match="all its parameters are frozen"):
        fedskew.run(model=module, rounds=1, engine="inline")


def test_complex_numbers_are_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UserError, match="has complex numbers, such as 'phase'"):
        fedskew.run(model=module, rounds=1, engine="inline")


def test_a_network_whose_layers_share_weights_takes_its_own_state(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.answer = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.answer(self.two(self.one(x.flatten(1)).relu()))

    first, other = Tied(), Tied()
    torch.save(first.state_dict(), tmp_path / "w.pt")
    result = fedskew.run(model=other, weights=str(tmp_path / "w.pt"), rounds=0, engine="inline")
    assert result.weights is not None and torch.equal(result.weights["one.weight"], first.one.weight)
    assert "two.weight" not in result.weights and result.header["model"]["head_from_file"]
