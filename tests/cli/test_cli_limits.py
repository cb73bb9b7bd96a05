"""What the machine refuses: streams that are closed or full, disks without room, limits. Real processes and files."""

from __future__ import annotations

import ast
import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fedskew"
RUN = "run --rounds 1 --local-epochs 1 --engine inline --out run"


def shell(
    command: str, folder: Path, streams: str = "", *, python: str = "", most_bytes: int | None = None
) -> subprocess.CompletedProcess[str]:
    """``fedskew command streams`` as a shell runs it, in a folder."""

    def limit() -> None:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    line = f"exec {shlex.quote(sys.executable)} {python} -m fedskew {command} {streams}"
    environment = os.environ | {"FEDSKEW_CACHE": str(folder / "cache"), "PYTHONPATH": str(SOURCE.parent)}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, preexec_fn=limit
    )


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
@pytest.mark.parametrize("command", ["--help", "methods --json"])
def test_a_full_standard_output_gets_a_sentence(command: str, tmp_path: Path) -> None:
    said = one_sentence(shell(command, tmp_path, "> /dev/full"))
    assert said == "Error: cannot write to standard output: No space left on device. Make room, and try again"


def test_a_reader_who_has_seen_enough_hears_nothing(tmp_path: Path) -> None:
    done = shell("--help", tmp_path, "> >(true); wait; sleep 0.1")
    assert not done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_unread_messages_do_not_end_a_run_or_reach_its_files(tmp_path: Path) -> None:
    full = shell(f"{RUN} --json", tmp_path, "2> /dev/full")
    assert full.returncode == 0
    assert shell(f"{RUN} --force", tmp_path, "<&- >&- 2>&-").returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    assert lines[-1]["weights_sha256"] == json.loads(full.stdout)["weights_sha256"]


@pytest.mark.parametrize("most_bytes", [1000, 40_000])
def test_a_file_that_may_not_grow_gets_a_sentence(most_bytes: int, tmp_path: Path) -> None:
    said = one_sentence(shell(RUN, tmp_path, most_bytes=most_bytes))
    assert "run folder 'run': File too large" in said


def test_soft_labels_that_find_no_room_get_a_sentence(tmp_path: Path) -> None:
    noise = "--noise h_idn:0.5 --set noise.annotator.epochs=1"
    said = one_sentence(shell(f"{RUN} {noise}", tmp_path, most_bytes=1000))
    assert "cannot write the annotators' soft labels into" in said and "File too large. Make room" in said
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("error", ["EIO", "EBADF"])
def test_what_the_system_refuses_gets_a_sentence_and_a_mistake_in_code_a_traceback(error: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import errno, os\nfrom fedskew.methods import index\n\n\ndef fail(*_):\n"
        f"    raise OSError(errno.{error}, os.strerror(errno.{error}), 'a.csv')\n\n\n"
        "index.known = fail\n"
    )
    done = shell("--import broken methods", tmp_path)
    if error == "EIO":
        assert one_sentence(done) == "Error: cannot use 'a.csv': Input/output error. Check the disk"
    else:
        assert done.returncode == 1 and "Traceback" in done.stderr


def test_no_assertion_checks_anything() -> None:
    """``python -O`` leaves them out."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert not found


@pytest.mark.slow  # it compiles torch anew
def test_wrong_input_is_refused_under_python_O(tmp_path: Path) -> None:
    said = one_sentence(shell("run --method 'fedprox(0.5)'", tmp_path, python="-O"))
    assert "cannot read the parameters of 'fedprox(0.5)'. Type them as name=value" in said
