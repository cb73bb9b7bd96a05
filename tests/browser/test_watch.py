"""A real run watched in a real browser, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedskew.record import reader, run_lock
from fedskew.report import live
from tests.browser.chromium import PATIENCE, Browser

ROUNDS = 40
STATE = "document.querySelector('#state b')?.textContent"
SPOKEN = "document.querySelector('[aria-live=polite]').textContent"
LAST = "+document.querySelector('#state li').textContent.match(/: (\\d+) of/)[1]"

# Loads everything once; then each line is a command for a child that can be killed alone.
NURSERY = """
import json, os, sys
import fedskew.experiment
from fedskew.cli import main
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        main(json.loads(line))
    print(child, flush=True)
    os.waitpid(child, 0)
"""


@pytest.fixture
def nursery() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY], stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield process
        process.kill()


def begin(nursery: subprocess.Popen[str], *arguments: str | Path | int) -> int:
    """Start a command, and give its process."""
    assert nursery.stdin and nursery.stdout
    print(json.dumps([*map(str, arguments)]), file=nursery.stdin, flush=True)
    while not (line := nursery.stdout.readline().strip()).isdigit():
        assert nursery.poll() is None, line
    return int(line)


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_is_followed_through_kill_and_resume(
    browser: Browser, nursery: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LONG_POLL_SECONDS", 2.0)
    folder = tmp_path / "run"
    # of a tenth of a second or more, so that what is left after the kill takes longer than a few looks of the page
    rounds = ("--engine", "inline", "--clients", 4, "--clients-per-round", 2, "--local-epochs", 10, "--rounds", ROUNDS)
    running = begin(nursery, "run", "--out", folder, *rounds)
    wait_for((folder / reader.NAME).exists)
    os.kill(running, signal.SIGSTOP)  # else a busy machine may open the page after the last round
    with live.PageServer(live.Watched([folder])) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        page = browser.page()
        try:
            page.open(server.address)
            os.kill(running, signal.SIGCONT)
            page.until(f"{STATE} === 'running' && {LAST} >= 2 && document.querySelector('#chart .line')")
            page.read("window.mark = 1")  # which a reload would take away
            said, shown = page.read(SPOKEN), page.read(LAST)
            page.until(f"{LAST} > {shown}")
            assert page.read(SPOKEN) == said, "rounds are not read aloud"
            os.kill(running, signal.SIGKILL)
            page.until(f"{STATE} === 'dead'")
            assert "dead fedavg, seed 0: " in page.read(SPOKEN)
            assert 2 <= page.read(LAST) < ROUNDS, "killed too late to be resumed"
            running = begin(nursery, "resume", folder)
            wait_for(lambda: run_lock.is_locked(folder))
            os.kill(running, signal.SIGSTOP)
            page.until(f"{STATE} === 'running'")
            os.kill(running, signal.SIGCONT)
            page.until(f"{STATE} === 'finished'")
            assert "finished fedavg, seed 0: " in page.read(SPOKEN)

            found = reader.read(folder)
            page.hover("#chart", 0.999)
            tip = page.text("#tip").split()
            assert tip[:2] == ["round", str(ROUNDS)]
            assert tip[-2:] == [f"{100 * found.rounds[-1]['accuracy']:.2f}", "%"]
            assert f"{100 * max(line['accuracy'] for line in found.rounds):.2f}" in page.text("#verdict")
            assert page.read("window.mark") == 1
            assert page.complaints == []
            assert all(each.startswith((server.address, "data:")) for each in page.requests)
        finally:
            server.shutdown()
            thread.join()
    page.until(f"{STATE} === 'lost'")
    assert "fedskew watch does not answer" in page.read(SPOKEN)
