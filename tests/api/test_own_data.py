"""The page on people's own data and models is executed: its commands, its Python, on files as it describes them."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from torch import nn

import fedskew
from fedskew import api
from fedskew.cli import main
from fedskew.core.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "own-data.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.S)
MODULES = {code.split()[1]: code for code in PYTHON if code.startswith("# ")}
SNIPPETS = [code for code in PYTHON if not code.startswith("# ") and "flwr_datasets" not in code]
COMMANDS = re.findall(r"^fedskew .*$", PAGE, re.M)
CLASSES = ("cat", "dog", "owl")


def picture(path: Path, label: int, rng: np.random.Generator) -> None:
    """Noise in which one channel is bright, the label's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 80, (8, 8, 3), np.uint8)
    pixels[..., label] += 150
    Image.fromarray(pixels).save(path)


def table(path: Path, heading: str, rows: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([heading.split(","), *rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the page names."""
    root = tmp_path_factory.mktemp("page")
    for name, code in MODULES.items():
        (root / name).write_text(code)
    rng = np.random.default_rng(5)
    rows = []
    for at in range(72):
        site, label = ("north", "south", "west")[at // 24], at % 3
        picture(root / f"images/{at}.png", label, rng)
        rows.append((f"images/{at}.png", CLASSES[label], site, f"{site[0]}{at // 4}"))
    table(root / "my.csv", "path,label,site,patient", rows)
    for at in range(12):
        picture(root / "photos" / CLASSES[at % 3] / f"{at}.png", at % 3, rng)
        picture(root / "federation" / f"client-0{at % 2}" / CLASSES[at % 3] / f"{at}.png", at % 3, rng)
    for at in range(3):
        picture(root / "federation/test" / CLASSES[at] / "0.png", at, rng)
    (root / "photos/owl/broken.png").write_bytes(b"no image")
    table(root / "table.csv", "age,dose,label,site", [(at, -at, at % 2, "xyz"[at % 3]) for at in range(30)])
    patients = [
        f"{('benign', 'malignant')[at % 2]};{40 + at},5;{'' if at % 7 == 3 else '72,25'};{'I' * (1 + at % 3)}"
        for at in range(30)
    ]
    (root / "patients.csv").write_text("\n".join(["label;age;weight;stage", *patients]))
    mail = [
        ("spam", f"Win a free phone now, number {at}") if at % 2 else ("ham", f"The meeting {at} is at noon")
        for at in range(30)
    ]
    table(root / "mail.csv", "label,text", mail)
    tokens, y = rng.integers(0, 80, (60, 5)), np.arange(60) % 4
    np.savez(root / "texts.npz", x_train=tokens[:40], y_train=y[:40], x_test=tokens[40:], y_test=y[40:])
    return root


@pytest.fixture(autouse=True)
def _in_that_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a shell is: Python alone would not look for modules there."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDSKEW_CACHE", str(folder / ".cache"))
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    yield
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def succeed(*words: str) -> str:
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def complaint(*words: str) -> str:
    done = invoke(*words)
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_is_understood() -> None:
    assert set(MODULES) == {"mymodel.py", "nets.py"}
    assert len(SNIPPETS) == 3 and len(COMMANDS) == 15
    assert COMMANDS[0] == "fedskew run --data my.csv --method fedvls --model mymodel:build --head fc"


#: commands that need what others leave
USE = [command for command in COMMANDS if "runs/patients" in command or "runs/mail" in command]


@pytest.mark.parametrize("command", [command for command in COMMANDS[1:-2] if command not in USE])
def test_commands(command: str) -> None:
    program, *words = shlex.split(command)
    assert program == "fedskew"
    text = succeed(*words, *(["--engine", "inline"] if words[0] not in ("partition", "data") else []))
    if "--skip-bad" in words:
        assert "1 images are left out, which cannot be read or have another size" in text


def test_a_model_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    for command in USE:
        words = shlex.split(command)[1:]
        succeed(*words, *(["--engine", "inline"] if words[0] == "run" else []))
    assert len(Path("predictions.csv").read_text().splitlines()) == 31
    exec(SNIPPETS[-1], {})
    assert capsys.readouterr().out.endswith("(30, 2)\n")


def test_a_run_starts_from_the_weights_of_another() -> None:
    for command in COMMANDS[-2:]:
        succeed(
            *shlex.split(command)[1:], "--engine", "inline", *(["--out", "second"] if "--weights" in command else ())
        )
    first, second = fedskew.load("runs/first"), fedskew.load("second")
    assert first.end is not None
    assert second.header["model"]["weights_sha256"] == first.end["weights_sha256"]


def test_the_first_command_and_its_python_give_the_same_bits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *words = shlex.split(COMMANDS[0])
    end = json.loads(succeed(*words, "--json"))
    monkeypatch.syspath_prepend(folder)
    names: dict[str, Any] = {}
    exec(compile(SNIPPETS[0], "own-data.md", "exec"), names)
    result = names["result"]
    assert result.end["weights_sha256"] == end["weights_sha256"]
    assert result.config.partition.name == "natural" and result.header["data"]["sites"] == ["north", "south", "west"]
    # Of 18 patients with 4 images 20 % are for testing: 4 of them, or 16 images.
    assert (result.header["data"]["train"], result.header["data"]["test"]) == (56, 16)
    assert result.best > 0.6  # the bright channel is the label, which chance finds in a third
    assert "north" in capsys.readouterr().out


def test_the_other_python() -> None:
    names: dict[str, Any] = {}
    exec(compile(SNIPPETS[1], "own-data.md", "exec"), names)
    assert len(names["result"].accuracy) == 2


def test_a_module_itself_with_its_head_by_name() -> None:
    class Answering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.answer = nn.Linear(2, 2)
            self.unused = nn.Linear(2, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.answer(x)

    result = fedskew.run("fedlmd", data="table.csv", model=Answering(), head="answer", rounds=1, engine="inline")
    assert result.header["counts"] == [[4, 4], [4, 4], [4, 4]]


# ---- what it becomes ------------------------------------------------------------------------------------------------


def test_client_folders_are_the_clients() -> None:
    shown = json.loads(succeed("partition", "--data", "federation", "--json"))
    assert (shown["partition"]["name"], shown["partition"]["clients"]) == ("natural", 2)
    # Client 0 has the even ones of 12: 0 2 4 6 8 10, whose classes are 0 2 1 0 2 1; client 1 likewise.
    assert shown["counts"] == [[2, 2, 2], [2, 2, 2]]


def test_another_partition_pools_the_sites_and_keeps_patients_together() -> None:
    shown = json.loads(succeed("partition", "--data", "my.csv", "--partition", "iid", "--clients", "5", "--json"))
    # 14 training patients of 4 images, 3 or 2 for each of 5 clients.
    assert sorted(shown["sizes"]) == [8, 12, 12, 12, 12]


def test_a_file_that_names_a_partition_is_obeyed_and_another_is_not_in_the_way() -> None:
    Path("a.toml").write_text('rounds = 3\n[partition]\nname = "iid"\nclients = 4\n')
    Path("b.toml").write_text("rounds = 3\n")
    assert api.configure("a.toml", data="my.csv").partition.name == "iid"
    assert api.configure("b.toml", data="my.csv").partition.name == "natural"
    assert api.configure("b.toml", data="photos").partition == api.configure().partition


def test_the_record_knows_no_folder_above_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shutil.copy("table.csv", tmp_path)
    words = ["run", "--data", str(path), "--rounds", "2", "--engine", "inline", "--out", "mine"]
    monkeypatch.setattr(sys, "argv", ["fedskew", *words])
    succeed(*words)
    assert str(tmp_path) not in Path("mine/record.jsonl").read_text()
    header = api.load("mine").header
    assert (header["config"]["data"]["dir"], header["command"][2]) == ("table.csv", "table.csv")
    assert all(value.startswith("sha256:") for value in header["checksums"].values())
    succeed("resume", "mine", "--rounds", "3")
    (tmp_path / "table.csv").write_text(Path("table.csv").read_text().replace("29,-29", "29,-30"))
    assert "the data are not those that the run in 'mine' started with" in complaint("resume", "mine", "--rounds", "4")


def test_a_run_goes_on_where_its_data_are_now(tmp_path: Path) -> None:
    words = ["--engine", "inline", "--seed", "3"]
    succeed("run", "--data", shutil.copy("table.csv", tmp_path), "--rounds", "2", "--out", "moved", *words)
    succeed("run", "--data", "table.csv", "--rounds", "3", "--out", "whole", *words)
    (tmp_path / "table.csv").rename(tmp_path / "elsewhere.csv")
    assert "table.csv" in complaint("resume", "moved", "--rounds", "3")
    succeed("resume", "moved", "--rounds", "3", "--data-dir", str(tmp_path / "elsewhere.csv"))
    moved, whole = (api.load(folder).end for folder in ("moved", "whole"))
    assert moved and whole and moved["weights_sha256"] == whole["weights_sha256"]
    assert "workers" in complaint("resume", "moved", "--rounds", "4", "--workers", "0")


def test_the_record_knows_no_folder_of_any_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "ward" / "inner"
    inner.mkdir(parents=True)
    shutil.copy("table.csv", inner)
    lists, out = tmp_path / "ward" / "lists.json", tmp_path / "ward" / "mine"
    lists.write_text(json.dumps([list(range(k, 24, 2)) for k in range(2)]))
    monkeypatch.chdir(inner)
    words = ["run", "--data", "../inner/table.csv", "--rounds", "1", "--engine", "inline", "--out", str(out)]
    words += ["--clients", "2", "--partition", f"explicit:{lists}"]
    monkeypatch.setattr(sys, "argv", ["fedskew", *words])
    succeed(*words)
    written = (out / "record.jsonl").read_text()
    assert "ward" not in written and "inner/" not in written
    header = api.load(out).header
    assert header["config"]["partition"]["lists"] == "lists.json"
    assert header["command"][2] == "table.csv" and header["command"][8] == "mine"
    assert header["command"][-1] == "explicit:lists.json"
    succeed("resume", str(out), "--rounds", "2")


def test_sites_of_a_source_are_the_clients() -> None:
    from fedskew.data.sources import from_arrays

    x, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    source = from_arrays(x, y, x, y, sites=torch.arange(20) // 10)
    options: dict[str, Any] = {"data": source, "rounds": 1, "engine": "inline"}
    assert fedskew.run("fedavg", **options).header["counts"] == [[5, 5], [5, 5]]
    assert fedskew.run("fedavg", partition="iid", clients=4, **options).config.partition.clients == 4
    assert set(fedskew.compare(["fedavg"], **options).results) == {"fedavg"}


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data my.csv --dataset digits", "data 'my.csv' and dataset 'digits' exclude each other"),
        ("--data my.csv --data-dir x", "data 'my.csv' and data-dir 'x' exclude each other"),
        ("--data nowhere", "data 'nowhere' does not exist"),
        ("--data mymodel.py", "data 'mymodel.py' is no folder and no .csv, .tsv, .npz or .safetensors file"),
        ("--data my.csv --clients 5", "clients is 5, but the data has 3 sites. Set clients to 3"),
        ("--dataset digits --partition natural", "partition 'natural' needs sites, and data set 'digits' has none"),
        ("--dataset own", "no path to your own data is given"),
        ("--data photos", "broken.png' cannot be read"),
        ("--data my.csv --set data.options.classes=cat,dog", "label 'owl' ('my.csv', line 4) is no class"),
        ("--data my.csv --set data.options.size=tiny", "size is 'tiny'. Give pixels"),
        ("--data nowhere.csv", "'nowhere.csv' does not exist. Check the path.\n"),
        ("--data nowhere.npz", "'nowhere.npz' does not exist. Check the path.\n"),
        ("--data nowhere.safetensors", "'nowhere.safetensors' does not exist. Check the path.\n"),
        ("--dataset digits --skip-bad", "data set 'digits' has no option 'skip_bad'"),
    ],
)
def test_mistakes_on_the_command_line(words: str, message: str) -> None:
    assert message in complaint("partition", *shlex.split(words))


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = shutil.copy("table.csv", os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv"))
    assert r"caf\udce9.csv" + '" is not in UTF-8. Give the file or folder another name' in complaint(
        "partition", "--data", str(path)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": 3}, "method is 3. Give the name of a method, or a Method"),
        ({"model": nn.Linear}, "model is the class Linear. Give a network's name, 'module:function', or an"),
        ({"model": 3}, "model is 3. Give"),
        ({"data": 5}, "data is 5. Give a path, "),
        ({"data": {"x": [0]}}, r"data is {'x': \[0\]}. Give a path, "),
        ({"config": 5}, "config is 5. Give the path of a TOML file"),
        ({"partition": {"name": "iid"}}, "partition is {'name': 'iid'}. Give text, for example 'dirichlet:0.5'"),
        ({"noise": 0.4}, "noise is 0.4. Give text, for example 'symmetric:0.4'"),
    ],
)
def test_things_of_another_kind(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fedskew.run(**options)


def test_a_comparison_needs_names_and_seeds() -> None:
    for methods in ("fedavg", [], [3]):
        with pytest.raises(UserError, match=r"methods is .*\. Give a list of names"):
            fedskew.compare(methods)  # type: ignore[arg-type]
    for seeds in (0, [], 2.5, "3", [1, 1]):
        with pytest.raises(UserError, match=r"seeds is .*\. Give a number of at least 1, or a list of different seeds"):
            fedskew.compare(["fedavg"], seeds=seeds)  # type: ignore[arg-type]


def test_a_folder_may_be_a_path_in_python() -> None:
    assert api.configure(dataset="mnist", data_dir=Path("a/b")) == api.configure(dataset="mnist", data_dir="a/b")


def test_whole_numbers_are_text_and_the_sentence_says_so() -> None:
    tokens = np.load("texts.npz")["x_train"]
    arrays = (tokens, np.arange(40) % 4, tokens, np.arange(40) % 4)
    with pytest.raises(UserError, match=r"network 'mlp' does not work .*\. Give features as float32"):
        fedskew.run(data=arrays, clients=2, partition="iid", rounds=1, engine="inline")


def test_mistakes_in_python() -> None:
    x, y = torch.zeros(4, 2), torch.arange(4) % 2
    with pytest.raises(UserError, match=r"data has 3 parts\. Give a path"):
        fedskew.run("fedavg", data=(x, y, x))
    with pytest.raises(UserError, match="dataset 'digits' exclude each other"):
        fedskew.run("fedavg", data=(x, y, x, y), dataset="digits")
