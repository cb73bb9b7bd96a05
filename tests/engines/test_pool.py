"""Workers: the same bits whatever their number, clear words when one dies, nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract import harness

from fedskew.engines.arena import Arena
from fedskew.engines.pool import Pool
from fedskew.errors import UserError
from fedskew.methods import registry
from fedskew.parts import compose
from fedskew.parts.protocol import Term
from fedskew.parts.views import Pass
from fedskew.work.gather import blocks
from fedskew.work.store import Store


def test_one_two_and_three_workers_give_the_same_bits() -> None:
    options: dict[str, Any] = {"clients": 12, "per_round": 9, "rounds": 2, "settings": ["partition.min_size=1"]}
    ended = [
        harness.finish(harness.config("scaffold+avgm", engine="pool", workers=workers, **options)).end["weights_sha256"]
        for workers in (1, 2, 3)
    ]
    ended.append(harness.finish(harness.config("scaffold+avgm", **options)).end["weights_sha256"])
    assert len(set(ended)) == 1


def test_lost_replies_are_rolled_back_in_workers_too() -> None:
    lossy = {"settings": ["partition.min_size=5", "engine.drop=0.4"], "rounds": 5}
    here, there = (harness.finish(harness.config("scaffold", engine=e, **lossy)) for e in ("inline", "pool"))
    assert here.end["weights_sha256"] == there.end["weights_sha256"]
    assert sum(line["asked"] - line["replies"] for line in there.rounds) > 0


def test_blocks_depend_on_the_size_of_the_cohort_only() -> None:
    sizes = {n: {len(block) for block in blocks(range(n))[:-1]} for n in (10, 100, 1000)}  # type: ignore[arg-type]
    assert sizes == {10: {1}, 100: {2}, 1000: {16}}
    assert [i for block in blocks(range(37)) for i in block] == list(range(37))  # type: ignore[arg-type]


def test_an_arena_grows_and_both_sides_see_it() -> None:
    arena = Arena()
    small = arena.write([torch.arange(3)])
    assert arena.read(small)[0].tolist() == [0, 1, 2]
    tensors = [torch.randn(1000, 7), torch.tensor(True), torch.empty(0), torch.randn(5, 4)[:, ::2]]
    for before, after in zip(tensors, arena.read(arena.write(tensors)), strict=True):
        assert torch.equal(before, after) and before.dtype == after.dtype


@dataclasses.dataclass(frozen=True)
class Fatal(Term):
    how: str

    def loss(self, out: Pass, mine: Any) -> torch.Tensor:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "mistake":
            raise UserError("one clear sentence")
        raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("kill", RuntimeError, "exit code -9"),
        ("mistake", UserError, "^one clear sentence$"),
        ("error", RuntimeError, "(?s)ZeroDivisionError: on purpose.*part Fatal"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told_in_the_main_process(how: str, kind: type, words: str) -> None:
    fatal = compose.method(registry.build("fedavg").card, terms=(Fatal(how),))
    with pytest.raises(kind, match=words):
        harness.finish(harness.config(engine="pool", workers=2), fatal)


def test_workers_end_with_the_pool() -> None:
    site, _ = harness.site_of(harness.config())
    pool = Pool(site, harness.store(), 2)
    processes = [worker.process for worker in pool._workers]
    pool.close()
    assert not any(process.is_alive() for process in processes)


def test_workers_end_when_the_main_process_is_killed(tmp_path: Path) -> None:
    program = (
        "from fedskew.cli import main; import sys; "
        "sys.argv = ['fedskew', 'run', '--rounds', '100000', '--workers', '2', '--out', sys.argv[1]]; main()"
    )
    main = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "run")], stderr=subprocess.DEVNULL)
    record = tmp_path / "run" / "record.jsonl"
    deadline = time.monotonic() + 120
    while not (record.exists() and record.read_text().count("\n") > 3):
        assert time.monotonic() < deadline and main.poll() is None
        time.sleep(0.1)
    children = Path(f"/proc/{main.pid}/task/{main.pid}/children").read_text().split()
    assert len(children) == 2
    main.kill()
    main.wait()
    while any(Path(f"/proc/{child}").exists() and _state(child) != "Z" for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _state(process: str) -> str:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_worker_that_was_killed_while_it_had_nothing_to_do_is_said() -> None:
    config = harness.config(engine="pool", workers=1)
    site, state = harness.site_of(config)
    pool = Pool(site, Store(None), 1)
    try:
        (worker,) = pool._workers
        worker.process.kill()
        worker.process.join()
        with pytest.raises(RuntimeError, match="a worker process ended unexpectedly"):
            pool.score(state.spec, state.memory["start"])
    finally:
        pool.close()
