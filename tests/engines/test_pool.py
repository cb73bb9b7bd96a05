"""Workers: the same bits for any number and after any death, clear errors, nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.engines.arena import Arena
from fedskew.engines.pool import Pool
from fedskew.methods import registry
from fedskew.parts import compose
from fedskew.parts.protocol import Term
from fedskew.parts.views import ClientContext, ForwardPass
from fedskew.runtime.accumulate import blocks
from fedskew.runtime.store import Store
from tests.contract import harness

ROOT = Path(__file__).parents[2]


def test_one_two_and_three_workers_give_the_same_bits() -> None:
    options: dict[str, Any] = {"clients": 12, "clients_per_round": 9, "rounds": 2, "settings": ["partition.min_size=1"]}
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

    def loss(self, out: ForwardPass, scratch: Any) -> torch.Tensor:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "mistake":
            raise UserError("one clear sentence")
        raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("kill", UserError, r"^3 workers died .* \(exit code -9\)\. Resume the run with fewer --workers\.$"),
        ("mistake", UserError, "^one clear sentence$"),
        ("error", RuntimeError, "(?s)ZeroDivisionError: on purpose.*part Fatal"),
    ],
)
def test_an_error_of_a_worker_reaches_the_main_process(how: str, kind: type, words: str) -> None:
    fatal = compose.method(terms=(Fatal(how),))
    with pytest.raises(kind, match=words):
        harness.finish(harness.config(engine="pool", workers=2), fatal)


def test_workers_end_with_the_pool() -> None:
    context, _ = harness.site_of(harness.config())
    pool = Pool(context, harness.store(), 2)
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
    while any(_state(child) not in GONE for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)


#: a worker that is stopped cannot see that the main process is gone
LEFT_ALONE = """
import os, signal
from tests.contract import harness
from fedskew.engines.pool import Pool
from fedskew.runtime.store import Store

site, state = harness.site_of(harness.config())
pool = Pool(site, Store(), 1)
pool.score(state.spec, state.memory["start"])  # so that it has begun
(worker,) = pool._workers
os.kill(worker.process.pid, signal.SIGSTOP)
print(worker.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker ends its block first")
def test_workers_are_killed_with_the_main_process() -> None:
    """Else they would go on to the end of their blocks, and hold the locks that they inherited."""
    with subprocess.Popen([sys.executable, "-c", LEFT_ALONE], cwd=ROOT, stdout=subprocess.PIPE, text=True) as main:
        assert main.stdout is not None
        worker = main.stdout.readline().strip()
    deadline = time.monotonic() + 60
    try:
        while _state(worker) not in GONE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(worker), signal.SIGKILL)


#: nothing is left of a process, or its exit code alone
GONE = ("", "Z", "X")


def _state(process: str) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # which is raised where it ends meanwhile
        return ""


def workers() -> set[int]:
    """The forks of this process; what other tests may have left running, such as a resource tracker, is none."""
    below = {int(c) for t in Path("/proc/self/task").glob("*/children") for c in t.read_text().split()}
    return {process for process in below if _command(process) == _command("self")}


def _command(process: int | str) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


@dataclasses.dataclass(frozen=True)
class Mortal(Term):
    """Takes its process with it, in the second round, if nobody has died yet."""

    died: Path

    def begin(self, ctx: ClientContext) -> bool:
        return ctx.round.index == 1

    def loss(self, out: ForwardPass, scratch: Any) -> torch.Tensor:
        if scratch and not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return out.logits.new_zeros(())


def test_a_block_whose_worker_dies_is_asked_again(tmp_path: Path) -> None:
    died, plain = tmp_path / "died", registry.build("scaffold")
    method = dataclasses.replace(plain, stages=(dataclasses.replace(plain.stages[0], terms=(Mortal(died),)),))
    there = harness.finish(harness.config("scaffold", engine="pool", workers=2), method)
    assert died.exists()
    here = harness.finish(harness.config("scaffold"), method)
    assert there.end["weights_sha256"] == here.end["weights_sha256"]
    assert not workers()


def test_workers_that_are_killed_between_two_rounds_are_replaced() -> None:
    """Each time all of them: the new ones see what is published later, and each other's ends of pipes are closed."""
    killed: set[int] = set()

    def kill(line: dict[str, Any]) -> None:
        for process in workers() - killed:
            os.kill(process, signal.SIGKILL)
            killed.add(process)

    there = harness.finish(
        harness.config("scaffold", engine="pool", workers=2, rounds=4), callbacks=[harness.each_round(kill)]
    )
    here = harness.finish(harness.config("scaffold", rounds=4))
    assert len(killed) >= 6
    assert there.end["weights_sha256"] == here.end["weights_sha256"]
    assert not workers()


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process")
@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
def test_a_worker_that_cannot_share_memory_says_so(limit: str) -> None:
    context, state = harness.site_of(harness.config())
    pool = Pool(context, Store(None), 1)
    try:
        resource.prlimit(pool._workers[0].process.pid, getattr(resource, limit), (8, 8))
        with pytest.raises(
            UserError, match=r"^the system refuses processes, files or memory for the workers: .*--engine inli"
        ):
            pool.score(state.spec, state.memory["start"])
    finally:
        pool.close()


def test_memory_that_the_main_process_cannot_share_is_no_death_of_a_worker() -> None:
    """Which would have to end first, and waits for us."""
    context, _ = harness.site_of(harness.config())
    pool = Pool(context, Store(None), 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(UserError, match=r"File too large\. .* raise the limit that 'ulimit -f' shows\.$"):
            pool._workers[0].send("score", None, [torch.zeros(1000)])
        assert pool._workers[0].process.is_alive()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        pool.close()


#: runs with more and more open files; a child that does not end is ended by its alarm
FEW_FILES = """
import os, resource, signal
from tests.contract import harness
from fedskew.engines.pool import Pool
from fedskew.core.errors import UserError
from fedskew.runtime.store import Store

site, state = harness.site_of(harness.config("scaffold", rounds=2))
for more in range(20):
    child, store = os.fork(), Store()
    if not child:
        signal.alarm(60)
        limit = len(os.listdir("/proc/self/fd")) - 1 + more
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            pool = Pool(site, store, 2)
            harness.final_state(site, state, pool)
            pool.close()
            print("done", flush=True)
        except UserError as error:
            print(error, flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print("status", status, flush=True)
"""


def run_here(program: str) -> list[str]:
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    return ended.stdout.splitlines()


def test_too_few_open_files_end_in_a_sentence_and_never_in_a_hang() -> None:
    said = run_here(FEW_FILES)
    enough = said.index("done")
    assert enough > 8 and set(said[enough:]) == {"done"}
    for sentence in said[:enough]:
        assert sentence.startswith(
            "the system refuses processes, files or memory for the workers: Too many open files. "
        )
        assert sentence.endswith(", or raise the limit that 'ulimit -n' shows.")


NO_FORK = """
import multiprocessing.popen_fork  # now, for another user may not be able to read it
import os, resource
from tests.contract import harness
from fedskew.engines.pool import Pool
from fedskew.core.errors import UserError
from fedskew.runtime.store import Store

site, _ = harness.site_of(harness.config())
if os.getuid() == 0:  # whom no limit holds back
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    Pool(site, Store(), 2)
except UserError as error:
    print(error)
"""


def test_a_system_that_forks_no_more_is_a_sentence() -> None:
    (said,) = run_here(NO_FORK)
    assert said.startswith(
        "the system refuses processes, files or memory for the workers: Resource temporarily unavail"
    )
    assert said.endswith(". Use fewer --workers, or --engine inline, or raise the limit that 'ulimit -u' shows.")


def test_with_workers_this_process_computes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch knows a GPU, its forks could not compute one afterwards."""
    real, here = torch.autograd.grad, os.getpid()

    def grad(*given: Any, **more: Any) -> Any:
        assert os.getpid() != here
        return real(*given, **more)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    options: dict[str, Any] = {"clients": 4, "rounds": 1, "settings": ["noise.kind=symmetric", "noise.rho=0.5"]}
    harness.finish(harness.config("fedavg", engine="pool", workers=2, **options))


def test_a_fork_of_a_process_with_several_threads_does_not_wait_for_them() -> None:
    code = """
import torch
from fedskew.engines.pool import succeeds_in_fork
torch.set_num_threads(2)
large = torch.ones(1 << 20).clone()
assert succeeds_in_fork(lambda: large.clone())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_forks_that_cannot_train_say_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence of PyTorch's engine, which no machine without a GPU says."""

    def refuse(*given: Any, **more: Any) -> Any:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr("fedskew.engines.pool.ask_block", refuse)
    with pytest.raises(UserError, match="Use --engine inline, or hide the GPU"):
        harness.finish(harness.config("fedavg", engine="pool", workers=2, clients=4, rounds=1))
