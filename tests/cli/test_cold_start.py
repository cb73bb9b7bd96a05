"""The commands that only look something up start quickly: they import no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import succeed

SMALL = ("--clients", "3", "--rounds", "2", "--local-epochs", "1", "--engine", "inline")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds whose labels were judged."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    succeed("run", *SMALL, "--method", "fednoro(warmup=1)", "--noise", "symmetric:0.4", "--out", folder)
    return folder


def imports(*arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import sys; from fedskew.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "print('\\nMODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["methods"],
        ["methods", "--long"],
        ["methods", "--json"],
        ["card", "fedavg"],
        ["data", "list"],
        ["cite", "fedvls", "mnist"],
    ],
    ids=" ".join,
)
def test_looking_something_up_needs_neither_torch_nor_numpy(arguments: list[str]) -> None:
    assert not imports(*arguments) & {"torch", "numpy", "pydantic", "sklearn", "scipy", "matplotlib"}


@pytest.mark.parametrize("command", ["report", "detect"])
def test_reading_a_run_needs_no_torch(command: str, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / ("page.html" if command == "report" else "detection")
    assert "torch" not in imports(command, str(finished), "--out", str(out))


def test_methods_of_your_own_are_listed_when_they_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from fedskew.methods import registry\nfrom fedskew.methods.fedavg import fedavg\n\n\n"
        "def mine():\n    return fedavg()\n\n\nmine.__doc__ = fedavg.__doc__\nregistry.register('mine')(mine)\n"
    )
    monkeypatch.chdir(tmp_path)
    code = "from fedskew.cli import main; main()"
    words = [sys.executable, "-c", code, "--import", "mine", "methods"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "\n mine " in done.stdout and "\n fedavg " in done.stdout


@pytest.mark.parametrize("arguments", [["run", "--method", "fedprx"], ["compare", "fedavg", "dp(clip=1)+fedprx"]])
def test_an_unknown_method_is_refused_without_torch(arguments: list[str]) -> None:
    code = "import sys; sys.modules['torch'] = None; from fedskew.cli import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "Error: there is no method 'fedprx'. Did you mean 'fedprox'?\n")
