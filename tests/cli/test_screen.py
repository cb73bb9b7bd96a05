"""What a terminal is sent: names of classes, sites and files never steer it."""

from __future__ import annotations

import ast
import csv
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.commands import fedskew

CLI = Path(__file__).parents[2] / "src" / "fedskew" / "cli"
#: a red text, a C1 sequence, an override, a title of the window, and a line that says it is another
HOSTILE = ["\x1b[31mred", "\x9b2Jgone", "\u202eevil", "\x1b]0;owned\x07", "a\nError: b"]
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    with open("data.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["x", "y", "label", "site"])
        for row in range(120):
            rows.writerow([row % 7, row % 5, HOSTILE[row % 5], HOSTILE[row // 24]])


QUICK = ["--engine", "inline", "--rounds", "1", "--local-epochs", "1"]
#: a file of that name there is not
LOST = "\x1b[31m\u202elost\n.csv"


@pytest.mark.parametrize(
    "words",
    [
        ["data", "show", "data.csv"],
        ["data", "check", "data.csv"],
        ["partition", "--data", "data.csv"],
        ["noise", "--data", "data.csv", "--noise", "symmetric:0.4"],
        ["run", "--data", "data.csv", *QUICK, "--out", "run\x1b[2J"],
        ["compare", "fedavg", "fedprox", "--data", "data.csv", *QUICK, "--out", "both\x1b[2J"],
        ["data", "check", LOST],
        ["run", "--data", LOST],
        ["run", "--config", LOST],
        ["run", "--model", "mlp\x1b[31m"],
        ["report", LOST],
        ["resume", LOST],
        ["card", "fed\x1b[31m"],
        ["run", "--no-such-option\x1b[31m"],
        ["no-such-command\x1b[31m"],
        ["--no-such-option\x1b[31m"],
    ],
    ids=lambda words: ascii(" ".join(words[:3])),
)
def test_no_command_passes_control_characters_on(words: list[str]) -> None:
    done = fedskew(*words)
    assert isinstance(done.exception, SystemExit | None), done.exception
    assert not UNSAFE.search(done.stdout + done.stderr)
    assert re.search(r"\\x1b|\\u202e|\\x9b", done.stdout + done.stderr)
    assert "Error: b" not in (done.stdout + done.stderr).splitlines()


def on_a_terminal(words: list[str]) -> bytes:
    """What a terminal is sent by a command."""
    main, other = pty.openpty()
    shown = b""
    with subprocess.Popen(words, stdout=other, stderr=other, env={**os.environ, "TERM": "xterm"}), suppress(OSError):
        os.close(other)
        while more := os.read(main, 4096):  # which fails at the end, on Linux
            shown += more
    os.close(main)
    return shown


def test_a_terminal_gets_no_control_characters() -> None:
    """A real one, for which rich has some of its own: elsewhere click takes them away."""
    shown = on_a_terminal([sys.executable, "-m", "fedskew.cli", "data", "show", "data.csv"]).decode()
    for name in HOSTILE:
        assert ascii(name)[1:-1] in shown and name not in shown.replace("\r\n", "\n")


def test_a_report_is_written_as_it_is_and_shown_on_a_terminal_as_escapes() -> None:
    assert fedskew("run", "--data", "data.csv", *QUICK, "--out", "run\x1b[2J").exit_code == 0
    words = [sys.executable, "-m", "fedskew.cli", "report", "run\x1b[2J", "-o", "-", "--format", "csv"]
    piped = subprocess.run(words, capture_output=True, check=True).stdout
    assert b"run\x1b[2J" in piped, "a program gets what the file would have"
    shown = on_a_terminal(words)
    assert b"run\\x1b[2J" in shown and b"\x1b" not in shown


def test_a_bar_shows_escapes() -> None:
    """On a real terminal, where rich draws with control characters of its own."""
    child = (
        "from fedskew.core.progress import report\n"
        "from fedskew.experiment.callbacks.progress import showing\n"
        "with showing():\n"
        "    report('a\\x1b]0;owned\\x07b', 1, 2, 'bytes')\n"
    )
    shown = on_a_terminal([sys.executable, "-c", child])
    assert b"owned" in shown and b"\x1b]0;" not in shown and b"\x07" not in shown


def test_text_goes_to_the_terminal_at_one_place() -> None:
    """By `screen.echo`; `click.echo` is for what has been made printable, and for signs that steer on purpose."""
    elsewhere = [
        (path.name, ast.unparse(node))
        for path in CLI.glob("*.py")
        if path.name != "screen.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print")
        if not any(word.arg == "nl" for word in node.keywords) and "format_message" not in ast.unparse(node)
    ]
    assert elsewhere == []
