"""Actors of a Ray cluster: simulation on several machines.

An actor gets the same blocks as a worker of the pool. The driver has the clients' states. So the death of an actor
loses nothing: another one gets its block, and returns the same bits. Each machine has the data once in shared memory,
and its actors map them.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it every start warns of a coming change

import numpy as np
import ray
import torch
from joblib import cpu_count
from ray._private import ray_constants
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from fedskew.core import devices
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, ClientState, Spec, Tree
from fedskew.engines.deaths import Deaths
from fedskew.engines.packing import pack, unpack
from fedskew.runtime import evaluate
from fedskew.runtime.accumulate import Replies, ask_block, blocks, collect
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import TEST, Scoring
from fedskew.runtime.store import Store

LOOPBACK = "127.0.0.1"


class Actors:
    """An actor per CPU of the cluster, or as many as asked for.

    `make` builds the run's context from data. `read` loads the data on another machine; without it they travel there.
    """

    scores_at_clients = False

    def __init__(
        self,
        context: RunContext,
        store: Store,
        data: Any,
        make: Callable[[Any], RunContext],
        read: Callable[[], Any] | None = None,
        workers: int | None = None,
        address: str | None = None,
        device: str = devices.CPU,
        deterministic: bool = True,
    ) -> None:
        self.context, self.store = context, store
        self._make, self._deterministic, self._gpus = make, deterministic, 0.0
        self._slots: list[_Slot] = []
        self._idle: list[_Slot] = []
        #: the pending results: the number of a block, or None for an actor that starts
        self._busy: dict[Any, tuple[_Slot, int | None]] = {}
        self._ours = _connect(address, workers)
        try:
            _pass_tensors()
            self._slots = _slots(data, read, workers)
            if device != devices.CPU:
                self._gpus = _gpus_of_an_actor(len(self._slots))
            for slot in self._slots:
                self._start(slot)
            deaths = Deaths("actors")
            while self._busy:  # wait for all: a machine that cannot take part must not go unnoticed in a short run
                self._first(deaths)
        except BaseException:
            self.close()
            raise

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        cut = blocks(sent)
        flat = [pack(block) for block in cut]
        uses = Counter(id(t) for _, tensors in flat for t in tensors)
        # Tensors of several blocks travel once to each machine, the others with their block.
        common = {id(t): t for _, tensors in flat for t in tensors if uses[id(t)] > 1}
        numbers = {key: number for number, key in enumerate(common)}
        published = ray.put(list(common.values()))
        samples = self.context.shards.sizes()
        sizes = [int(samples[[each.client for each in block]].sum()) for block in cut]

        def call(actor: Any, number: int) -> Any:
            data, tensors = flat[number]
            own = [numbers.get(id(t), t) for t in tensors]
            return actor.ask.remote(data, own, published, self.store.states_of(cut[number]))

        answers = (unpack(data, [t.clone() for t in tensors]) for data, tensors in self._run(len(cut), call, sizes))
        return collect(sent, answers, self.store.put)

    def score(self, spec: Spec, weights: Tree, scoring: Scoring = TEST) -> dict[str, Any]:
        pieces, published = evaluate.slices(self.context, scoring), ray.put(weights)

        def call(actor: Any, number: int) -> Any:
            return actor.score.remote(spec, published, pieces[number], scoring)

        return evaluate.scores(list(self._run(len(pieces), call, [1] * len(pieces))))

    def confirm(self, seen: dict[int, int]) -> None:
        self.store.confirm(seen)

    def close(self) -> None:
        for slot in self._slots:
            if slot.actor is not None:
                ray.kill(slot.actor)
        ray.util.deregister_serializer(Tensor)
        if self._ours:
            ray.shutdown()

    def _start(self, slot: _Slot) -> None:
        """Start a new actor in a slot."""
        options = {"num_cpus": 1, "num_gpus": self._gpus, "scheduling_strategy": _near(slot.node)}
        slot.actor = ray.remote(_Actor).options(**options).remote()
        # Ray shows an actor its own GPU only, as number 0
        place = ("cuda:0" if self._gpus else devices.CPU, len(self._slots), self._deterministic)
        self._busy[slot.actor.open.remote(self._make, slot.data, self.context.secret, place)] = (slot, None)

    def _run(self, tasks: int, call: Callable[[Any, int], Any], sizes: Sequence[int]) -> Iterator[Any]:
        """Hand out tasks, the longest first; yield their results in the order of the tasks."""
        waiting = sorted(range(tasks), key=lambda number: (sizes[number], -number))
        deaths = Deaths("actors")
        done: dict[int, Any] = {}
        following = 0
        while following < tasks:
            while self._idle and waiting:
                slot, number = self._idle.pop(), waiting.pop()
                self._busy[call(slot.actor, number)] = (slot, number)
            asked, answer = self._first(deaths)
            if asked is not None and answer is None:
                waiting.append(asked)
            elif asked is not None:
                done[asked] = answer
            while following in done:
                yield done.pop(following)
                following += 1

    def _first(self, deaths: Deaths) -> tuple[int | None, Any]:
        """Wait for the first pending result; return (task, answer) and replace a dead actor.

        The task is None for an actor that has started; the answer is None if the actor died.
        """
        reference = ray.wait(list(self._busy))[0][0]
        slot, asked = self._busy.pop(reference)
        try:
            answer = _result(reference)
        except (RayActorError, ObjectLostError) as error:
            deaths.add(asked, str(error).partition("\n")[0])
            self._start(slot)
            return asked, None
        self._idle.append(slot)
        return asked, answer


@dataclass
class _Slot:
    """A place for an actor: a machine, and the data in its memory."""

    node: str
    data: Any
    actor: Any = None


class _Actor:
    """A process of the cluster with the run's context."""

    def open(self, make: Callable[[Any], RunContext], data: Any, secret: bytes, place: tuple[str, int, bool]) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        _pass_tensors()
        self.device, self.workers, deterministic = place
        devices.start(self.device, deterministic)
        with devices.memory(self.device, self.workers):
            self.context = replace(_here(make, data), secret=secret).on(self.device)

    def ask(
        self, data: bytes, own: list[int | Tensor], common: list[Tensor], client_states: dict[int, ClientState]
    ) -> tuple[bytes, list[Tensor]]:
        sent = unpack(data, [common[t] if isinstance(t, int) else t for t in own])
        with devices.memory(self.device, self.workers):
            answer = ask_block(self.context, sent, lambda client: client_states.get(client, ClientState()))
        return pack(answer)

    def score(self, spec: Spec, weights: Tree, piece: tuple[int, int], scoring: Scoring) -> Tree:
        with devices.memory(self.device, self.workers):
            return evaluate.score_slice(self.context, spec, weights, piece, scoring)


def _connect(address: str | None, workers: int | None) -> bool:
    """Join the cluster at an address, or start a local one; return whether this process must shut it down."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        host, _, port = address.rpartition(":")
        try:
            # Ray itself would try for minutes.
            socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"no Ray cluster answers at --address {address} ({str(error).splitlines()[0]}). Give the "
                "host:port that 'ray start --head' printed."
            ) from None
        return True
    clusters, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False  # Ray's way to say: loopback
    try:
        ray.init("local", num_cpus=workers or cpu_count(), include_dashboard=False, **quiet)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
    if ray.util.get_node_ip_address() != LOOPBACK:
        ray.shutdown()
        raise UserError(
            f"Ray {ray.__version__} listens to other machines although it should not. Start it with 'ray start "
            "--head', and give --address HOST:PORT."
        )
    return True


def _slots(data: Any, read: Callable[[], Any] | None, workers: int | None) -> list[_Slot]:
    """Return one slot per CPU, or the first `workers`, taking the machines in turn."""
    here, own = ray.get_runtime_context().get_node_id(), ray.put(data)
    places: list[tuple[int, _Slot]] = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        name, copy = node["NodeID"], own
        if read is not None and name != here:
            copy = ray.remote(_fetched).options(num_cpus=0, scheduling_strategy=_near(name)).remote(read)
        places += [(at, _Slot(name, copy)) for at in range(int(node["Resources"].get("CPU", 0)))]
    if workers is not None and workers > len(places):
        raise UserError(f"--workers is {workers}, but the Ray cluster has {len(places)} CPUs. Use fewer --workers.")
    return [slot for _, slot in sorted(places, key=lambda place: place[0])][:workers]


def _gpus_of_an_actor(actors: int) -> float:
    """Return the share of a GPU that each actor gets."""
    there = ray.cluster_resources().get("GPU", 0)
    if not there:
        raise UserError("engine.device is 'cuda', but the Ray cluster has no GPU. Type --device cpu.")
    return min(1.0, there / actors)


def _near(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=True)


def _fetched(read: Callable[[], Any]) -> Any:
    """Read the data on the machine where this runs; the result stays in its shared memory."""
    _pass_tensors()
    return _here(read)


def _here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; a UserError names the machine."""
    try:
        return function(*arguments)
    except UserError as mistake:
        raise UserError(f"on machine {ray.util.get_node_ip_address()}: {mistake}") from None


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayTaskError as failure:
        if isinstance(failure.cause, UserError):
            raise UserError(str(failure.cause)) from None
        raise RuntimeError(f"an actor failed:\n{failure}") from None


def _pass_tensors() -> None:
    """Pass tensors as arrays, which Ray does not copy: processes of a machine map the same memory."""
    ray.util.register_serializer(Tensor, serializer=_array, deserializer=_tensor)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tensor is read-only, and nothing writes to it
        return torch.from_numpy(array)
