"""Worker processes with one thread each: the default engine.

Workers are forked, so they inherit the data and a user's own module; weights, sums and memories pass through shared
memory. The main process deals out blocks, the longest first, and folds their sums in order. What clients keep stays
there, so the death of a worker loses nothing: its block is asked again in a new one, with the same bits.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from joblib import cpu_count
from torch import Tensor

from fedskew import codec
from fedskew.engines.arena import Arena, Place, within_limits
from fedskew.engines.deaths import Deaths
from fedskew.errors import UserError
from fedskew.types import Broadcast, Keep, Spec, Tree
from fedskew.work import evaluate
from fedskew.work.gather import Gathered, ask_block, blocks, collect, packed, unpacked
from fedskew.work.site import Site
from fedskew.work.store import Store

#: what a pipe says whose other end is gone
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)
_PR_SET_PDEATHSIG = 1


class Pool:
    """As many workers as there are cores, or as asked for."""

    def __init__(self, site: Site, store: Store, workers: int | None = None) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError("engine 'pool' needs a system that can fork processes, which this one cannot; use 'inline'")
        self.site, self.store = site, store
        self._common = Arena()
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers or cpu_count()):
                self._start()
        except BaseException:
            self.close()
            raise

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        cut = blocks(sent)
        tables = [_Table(block) for block in cut]
        places = self._publish([t for table in tables for t in table.tensors])
        samples = self.site.shards.sizes()
        sizes = [int(samples[[each.client for each in block]].sum()) for block in cut]

        def message(number: int) -> tuple[Any, Sequence[Tensor]]:
            keeps = {each.client: self.store.get(each.client) for each in cut[number]}
            head, tensors = codec.flatten({client: keep for client, keep in keeps.items() if keep != Keep()})
            table = tables[number]
            return (table.heads, table.weights, [places[id(t)] for t in table.tensors], head), tensors

        return collect(sent, map(unpacked, self._run("ask", len(cut), message, sizes)), self.store.put)

    def score(self, spec: Spec, weights: Tree) -> dict[str, Any]:
        pieces = evaluate.slices(self.site)
        places = self._publish(weights.values())
        where = {name: places[id(t)] for name, t in weights.items()}

        def message(number: int) -> tuple[Any, Sequence[Tensor]]:
            return (codec.flatten(spec)[0], where, pieces[number]), ()

        return evaluate.scores(list(self._run("score", len(pieces), message, [1] * len(pieces))))

    def settle(self, seen: dict[int, int]) -> None:
        self.store.settle(seen)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _start(self) -> _Worker:
        worker = _Worker(self.site, self._common, [other.pipe for other in self._workers])
        self._workers.append(worker)
        return worker

    def _replace(self, dead: _Worker) -> _Worker:
        self._workers.remove(dead)
        dead.close()
        return self._start()

    def _publish(self, tensors: Any) -> dict[int, Place]:
        """Lay down once, for all workers to read, every tensor that occurs."""
        different = {id(t): t for t in tensors}
        return dict(zip(different, self._common.write(different.values()), strict=True))

    def _run(
        self, kind: str, tasks: int, message: Callable[[int], tuple[Any, Sequence[Tensor]]], sizes: Sequence[int]
    ) -> Iterator[Any]:
        """Deal tasks out, the longest first; yields their results in the tasks' own order."""
        waiting = sorted(range(tasks), key=lambda number: (sizes[number], -number))
        deaths = Deaths("workers")
        busy: dict[Connection, tuple[_Worker, int]] = {}
        idle, done, following = list(self._workers), {}, 0
        while following < tasks:
            while idle and waiting:
                worker, number = idle.pop(), waiting.pop()
                worker.tell(kind, *message(number))
                busy[worker.pipe] = (worker, number)
            for pipe in wait(list(busy)):
                worker, number = busy.pop(pipe)  # type: ignore[call-overload]
                try:
                    done[number] = worker.hear()
                except _Died as death:
                    deaths.add(number, death)
                    worker = self._replace(worker)
                    waiting.append(number)
                idle.append(worker)
            while following in done:
                yield done.pop(following)
                following += 1


class _Table:
    """The broadcasts of a block as plain heads; equal weights are named once."""

    def __init__(self, block: Sequence[Broadcast]) -> None:
        self.heads: list[tuple[Any, list[int], int]] = []
        self.weights: list[list[tuple[str, int]]] = []
        self.tensors: list[Tensor] = []
        known: dict[tuple[int, ...], int] = {}
        for sent in block:
            same = tuple(map(id, sent.weights.values()))
            if same not in known:
                known[same] = len(self.weights)
                self.weights.append([(name, self._number(t)) for name, t in sent.weights.items()])
            head, tensors = codec.flatten(replace(sent, weights={}))
            self.heads.append((head, [self._number(t) for t in tensors], known[same]))

    def _number(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


class _Died(Exception):
    """A worker ended before it answered."""


class _Worker:
    """One process and the pipe and memory shared with it."""

    def __init__(self, site: Site, common: Arena, others: list[Connection]) -> None:
        self._to, self._from = Arena(), Arena()
        arenas = (common, self._to, self._from)
        context = multiprocessing.get_context("fork")
        with within_limits():
            self.pipe, far = multiprocessing.Pipe()
            self.process = context.Process(target=_serve, args=(site, far, arenas, [self.pipe, *others]), daemon=True)
            self.process.start()
        far.close()

    def tell(self, kind: str, head: Any, tensors: Sequence[Tensor]) -> None:
        places = self._to.write(tensors)
        with within_limits(), suppress(*_GONE):  # of a death `hear` will know
            self.pipe.send((kind, head, places))

    def hear(self) -> Any:
        """The answer; raises `_Died` if there will be none."""
        with within_limits():
            try:
                outcome, head, places = self.pipe.recv()
            except (EOFError, OSError) as error:
                # without a number: the pipe ended in the middle of an answer
                if not isinstance(error, _GONE) and error.errno is not None:
                    raise
                self.process.kill()  # without a pipe it is of no use, should it live
                self.process.join()
                raise _Died(f"exit code {self.process.exitcode}") from None
        if outcome == "mistake":
            raise UserError(head)
        if outcome == "error":
            raise RuntimeError(f"a worker failed:\n{head}")
        return codec.rebuild(head, [t.clone() for t in self._from.read(places)])

    def close(self) -> None:
        self.pipe.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()


def _serve(site: Site, pipe: Connection, arenas: tuple[Arena, Arena, Arena], others: list[Connection]) -> None:
    """A worker's life: it ends when the main process closes its end of the pipe, or is gone."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_main()
    # a worker that replaces another is forked while a progress bar, with a thread of its own, stands in their place
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    common, to, back = arenas
    while True:
        try:
            kind, head, places = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (_ask if kind == "ask" else _score)(site, head, common, to.read(places))
            plain, tensors = codec.flatten(answer)
            reply = ("done", plain, back.write(tensors))
        except UserError as mistake:
            reply = ("mistake", str(mistake), [])
        except Exception:
            reply = ("error", traceback.format_exc(), [])
        try:
            pipe.send(reply)
        except OSError:
            return


def _end_with_main() -> None:
    """Have Linux end a worker as soon as its main process is killed: to the end of its block it would hold locks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _ask(site: Site, head: Any, common: Arena, tensors: list[Tensor]) -> Any:
    heads, weights, places, keeps_head = head
    shared = common.read(places)
    trees = [{name: shared[number] for name, number in each} for each in weights]
    sent = [
        replace(codec.rebuild(each, [shared[n] for n in numbers]), weights=trees[which])
        for each, numbers, which in heads
    ]
    keeps = codec.rebuild(keeps_head, tensors)
    return packed(*ask_block(site, sent, lambda client: keeps.get(client, Keep())))


def _score(site: Site, head: Any, common: Arena, tensors: list[Tensor]) -> Any:
    del tensors
    spec, where, piece = head
    weights = dict(zip(where, common.read(where.values()), strict=True))
    return evaluate.score_slice(site, codec.rebuild(spec, []), weights, piece)
