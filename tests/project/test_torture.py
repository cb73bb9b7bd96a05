"""scripts/torture.py on fedskew in a very small form; and on toys, to show that it finds what it looks for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def torture(*words: str | Path) -> tuple[int, str, dict[str, int]]:
    """(exit code, summary, how often what was not as promised)."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, timeout=280)
    found = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", done.stdout.partition("\n")[0])}
    assert "trials" in found, done.stderr
    return done.returncode, done.stdout, found


def toy(name: str, share: float, only: str = "") -> tuple[int, str, dict[str, int]]:
    return torture(Path(__file__).with_name("torture_toy.py"), name, str(share), only)


@pytest.mark.parametrize(
    "run", ["scaffold on pool", *(pytest.param(name, marks=pytest.mark.slow) for name in ("scaffold", "long fedavg"))]
)
def test_a_run_survives_every_fault_in_the_very_small_form(run: str) -> None:
    """`make torture`, which CI runs, too, makes more trials, and of more runs."""
    code, summary, found = torture(ROOT / "scripts" / "torture.py", "--share", "0.001", "--runs", run)
    assert code == 0, summary
    assert found["trials"] > 8


def test_a_safe_program_is_called_safe() -> None:
    code, summary, found = toy("safe", 0.02)
    assert code == 0, summary
    assert found["trials"] > 20


@pytest.mark.parametrize(
    ("name", "share", "only", "result"),
    [
        ("in_place", 1.0, "kill", "lost"),
        ("unsynced", 1.0, "power cut", "lost"),
        ("unlocked", 0.05, "two resumes", "lost"),
        ("unchecked", 0.4, "damaged", "lost"),
        ("rude", 0.1, "EIO", "traceback"),
        ("stuck", 0.3, "EIO once", "hang"),
    ],
)
def test_an_unsafe_program_is_found_out(name: str, share: float, only: str, result: str) -> None:
    code, summary, found = toy(name, share, only)
    assert code == 1, summary
    assert found[result] >= 1, summary
    assert sum(found.values()) == found["trials"] + found[result], summary  # and nothing else is held against it
