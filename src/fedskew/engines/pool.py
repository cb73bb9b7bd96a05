"""Worker processes with one thread each: the default engine.

Workers are forked, so they inherit the data and a user's own module. Weights, sums and memories pass through shared
memory. The main process hands out blocks, the longest first, and adds their sums in order. It also has the clients'
states. So the death of a worker loses nothing: a new worker gets its block, and returns the same bits.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from joblib import cpu_count
from torch import Tensor

from fedskew.core import devices
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, ClientState, Spec, Tree
from fedskew.engines.arena import Arena, Place, within_limits
from fedskew.engines.deaths import Deaths
from fedskew.engines.packing import pack, unpack
from fedskew.runtime import evaluate
from fedskew.runtime.accumulate import Replies, ask_block, blocks, collect
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import TEST, Scoring
from fedskew.runtime.store import Store

#: the errors of a pipe whose other end is gone
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)
_PR_SET_PDEATHSIG = 1
CANNOT_FORK = (
    "engine 'pool' forks this process, which has trained a network while PyTorch knows a GPU; its forks cannot train. "
    "Use --engine inline, or hide the GPU before you start: export CUDA_VISIBLE_DEVICES="
)


def succeeds_in_fork(work: Callable[[], None]) -> bool:
    """Do work in a fork of this process, which it leaves as it is; return whether it ended without an error."""
    with within_limits():
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    with suppress(BaseException):
        torch.set_num_threads(1)  # a fork has none of the other threads of this process, and would wait for them
        work()
        os._exit(0)
    os._exit(1)


class Pool:
    """As many workers as there are cores, or devices that are no CPU, or `workers`. They take the devices in turn."""

    scores_at_clients = False

    def __init__(
        self,
        context: RunContext,
        store: Store,
        workers: int | None = None,
        on: tuple[str, ...] = (devices.CPU,),
        deterministic: bool = True,
    ) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError("engine 'pool' cannot fork processes on this system. Use --engine inline.")
        self.context, self.store = context, store
        self._common = Arena()
        self._workers: list[_Worker] = []
        count = workers or (cpu_count() if on == (devices.CPU,) else len(on))
        self._places = [_Place(devices.of_worker(on, number), count, deterministic) for number in range(count)]
        try:
            for place in self._places:
                self._start(place)
        except BaseException:
            self.close()
            raise

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        cut = blocks(sent)
        shared = _Shared(self._common)
        samples = self.context.shards.sizes()
        sizes = [int(samples[[each.client for each in block]].sum()) for block in cut]

        def message(number: int) -> tuple[Any, Sequence[Tensor]]:
            (block, tensors), (states, own) = pack(cut[number]), pack(self.store.states_of(cut[number]))
            return (block, shared.places(tensors), states), own

        return collect(sent, self._run("ask", len(cut), message, sizes), self.store.put)

    def score(self, spec: Spec, weights: Tree, scoring: Scoring = TEST) -> dict[str, Any]:
        pieces = evaluate.slices(self.context, scoring)
        where = dict(zip(weights, _Shared(self._common).places(weights.values()), strict=True))

        def message(number: int) -> tuple[Any, Sequence[Tensor]]:
            return (spec, where, pieces[number], scoring), ()

        return evaluate.scores(list(self._run("score", len(pieces), message, [1] * len(pieces))))

    def confirm(self, seen: dict[int, int]) -> None:
        self.store.confirm(seen)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _start(self, place: _Place) -> _Worker:
        worker = _Worker(self.context, place, self._common, [other.pipe for other in self._workers])
        self._workers.append(worker)
        return worker

    def _replace(self, dead: _Worker) -> _Worker:
        self._workers.remove(dead)
        dead.close()
        return self._start(dead.place)

    def _run(
        self, kind: str, tasks: int, message: Callable[[int], tuple[Any, Sequence[Tensor]]], sizes: Sequence[int]
    ) -> Iterator[Any]:
        """Hand out tasks, the longest first; yield their results in the order of the tasks."""
        waiting = sorted(range(tasks), key=lambda number: (sizes[number], -number))
        deaths = Deaths("workers")
        busy: dict[Connection, tuple[_Worker, int]] = {}
        idle, done, following = list(self._workers), {}, 0
        while following < tasks:
            while idle and waiting:
                worker, number = idle.pop(), waiting.pop()
                worker.send(kind, *message(number))
                busy[worker.pipe] = (worker, number)
            for pipe in wait(list(busy)):
                worker, number = busy.pop(pipe)  # type: ignore[call-overload]
                try:
                    done[number] = worker.receive()
                except _Died as death:
                    deaths.add(number, death)
                    worker = self._replace(worker)
                    waiting.append(number)
                idle.append(worker)
            while following in done:
                yield done.pop(following)
                following += 1


class _Shared:
    """The tensors of one request that all workers read: each is written once, before the first task that needs it."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._places, self._end = arena, dict[int, Place](), 0

    def places(self, tensors: Iterable[Tensor]) -> list[Place]:
        """Return where the tensors lie."""
        tensors = list(tensors)
        new = {id(t): t for t in tensors if id(t) not in self._places}
        self._places |= zip(new, self._arena.write(new.values(), self._end), strict=True)
        self._end = self._arena.end
        return [self._places[id(t)] for t in tensors]


class _Died(Exception):
    """A worker ended before it answered."""


@dataclass(frozen=True)
class _Place:
    """Where a worker computes, and how many there are."""

    device: str
    workers: int
    deterministic: bool


class _Worker:
    """One process, and the pipe and memory shared with it."""

    def __init__(self, context: RunContext, place: _Place, common: Arena, others: list[Connection]) -> None:
        self.place, self._to, self._from = place, Arena(), Arena()
        arenas = (common, self._to, self._from)
        fork = multiprocessing.get_context("fork")
        with within_limits():
            self.pipe, far = multiprocessing.Pipe()
            self.process = fork.Process(
                target=_serve, args=(context, place, far, arenas, [self.pipe, *others]), daemon=True
            )
            self.process.start()
        far.close()

    def send(self, kind: str, head: Any, tensors: Sequence[Tensor]) -> None:
        places = self._to.write(tensors)
        with within_limits(), suppress(*_GONE):  # `receive` will notice a death
            self.pipe.send((kind, head, places))

    def receive(self) -> Any:
        """Return the answer; raise `_Died` if there will be none."""
        with within_limits():
            try:
                outcome, head, places = self.pipe.recv()
            except (EOFError, OSError) as error:
                # an error without a number: the pipe ended in the middle of an answer
                if not isinstance(error, _GONE) and error.errno is not None:
                    raise
                self.process.kill()  # if it lives, it is of no use without a pipe
                self.process.join()
                raise _Died(f"exit code {self.process.exitcode}") from None
        if outcome == "mistake":
            raise UserError(head)
        if outcome == "error":
            raise RuntimeError(f"a worker failed:\n{head}")
        return unpack(head, [t.clone() for t in self._from.read(places)])

    def close(self) -> None:
        self.pipe.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(
    context: RunContext,
    place: _Place,
    pipe: Connection,
    arenas: tuple[Arena, Arena, Arena],
    others: list[Connection],
) -> None:
    """Serve requests until the main process closes its end of the pipe, or ends."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_main()
    # a replacement is forked while a progress bar, with its own thread, may have replaced both
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    devices.start(place.device, place.deterministic)
    common, to, back = arenas
    while True:
        try:
            kind, head, at = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            with devices.memory(place.device, place.workers):
                context = context.on(place.device)
                answer = (_ask if kind == "ask" else _score)(context, head, common, to.read(at))
            data, tensors = pack(answer)
            reply: tuple[str, bytes | str, list[Place]] = ("done", data, back.write(tensors))
        except UserError as mistake:
            reply = ("mistake", str(mistake), [])
        except Exception as error:
            reply = ("error", traceback.format_exc(), [])
            if "fork-based multiprocessing" in str(error):
                reply = ("mistake", CANNOT_FORK, [])
        try:
            pipe.send(reply)
        except OSError:
            return


def _end_with_main() -> None:
    """Have Linux kill a worker with its main process; else it would hold locks to the end of its block."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _ask(context: RunContext, head: Any, common: Arena, tensors: list[Tensor]) -> Any:
    block, places, states = head
    sent, client_states = unpack(block, common.read(places)), unpack(states, tensors)
    return ask_block(context, sent, lambda client: client_states.get(client, ClientState()))


def _score(context: RunContext, head: Any, common: Arena, tensors: list[Tensor]) -> Any:
    spec, where, piece, scoring = head
    weights = dict(zip(where, common.read(where.values()), strict=True))
    return evaluate.score_slice(context, spec, weights, piece, scoring)
