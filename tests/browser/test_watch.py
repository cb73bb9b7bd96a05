"""A real run watched in a real browser, killed and resumed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from fedskew import record, watch
from tests.browser.chromium import Browser

ROUNDS = 60
STATE = "document.querySelector('#state b')?.textContent"
LAST = "+document.querySelector('#state li').textContent.match(/: (\\d+) of/)[1]"


def fedskew(*arguments: str | Path) -> subprocess.Popen[bytes]:
    words = [str(argument) for argument in arguments]
    return subprocess.Popen([sys.executable, "-m", "fedskew.cli", *words], stdout=-3, stderr=-3)


def test_a_run_is_followed_through_kill_and_resume(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    running = fedskew(
        "run",
        "--out",
        folder,
        "--engine",
        "inline",
        "--clients",
        4,
        "--epochs",
        1,
        "--rounds",
        ROUNDS,
        "--per-round",
        2,
    )
    while not (folder / record.NAME).exists():
        assert running.poll() is None
    with watch.Server(watch.Watched([folder])) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            page = browser.page()
            page.open(server.address)
            page.until(f"{STATE} === 'running' && {LAST} >= 2 && document.querySelector('#chart .line')")
            page.read("window.mark = 1")  # which a reload would take away
            running.kill()
            running.wait()
            page.until(f"{STATE} === 'dead'")
            killed = page.read(LAST)
            assert 2 <= killed < ROUNDS, "killed too late to be resumed"
            running = fedskew("resume", folder)
            page.until(f"{STATE} === 'running'")
            page.until(f"{STATE} === 'finished'")
            assert running.wait() == 0

            found = record.read(folder)
            page.hover("#chart", 0.999)
            shown = page.text("#tip").split()
            assert shown[:2] == ["round", str(ROUNDS)]
            assert shown[-2:] == [f"{100 * found.rounds[-1]['accuracy']:.2f}", "%"]
            assert f"{100 * max(line['accuracy'] for line in found.rounds):.2f}" in page.text("#verdict")
            assert page.read("window.mark") == 1
            assert page.complaints == []
            assert all(each.startswith((server.address, "data:")) for each in page.requests)
        finally:
            running.kill()
            running.wait()
            server.shutdown()
            thread.join()
    page.until(f"{STATE} === 'lost'")
