"""Actors of a Ray cluster: simulation over several machines.

An actor is asked the same blocks as a worker of the pool. What clients keep stays with the driver, so the death of an
actor loses nothing: its block is asked again elsewhere, with the same bits. The data lie once in the shared memory of
each machine, and its actors map them.
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
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else every start warns of a coming change

import numpy as np
import ray
import torch
from joblib import cpu_count
from ray._private import ray_constants
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from fedskew import codec
from fedskew.engines.deaths import Deaths
from fedskew.errors import UserError
from fedskew.types import Broadcast, Keep, Spec, Tree
from fedskew.work import evaluate
from fedskew.work.gather import Gathered, ask_block, blocks, collect, packed, unpacked
from fedskew.work.site import Site
from fedskew.work.store import Store

LOOPBACK = "127.0.0.1"


class Actors:
    """An actor per CPU of the cluster, or as many as asked for.

    `make` builds a site out of data; `read` is how another machine gets at the data by itself, and without it the
    driver's travel there.
    """

    def __init__(
        self,
        site: Site,
        store: Store,
        data: Any,
        make: Callable[[Any], Site],
        read: Callable[[], Any] | None = None,
        workers: int | None = None,
        address: str | None = None,
    ) -> None:
        self.site, self.store = site, store
        self._make = make
        self._seats: list[_Seat] = []
        self._idle: list[_Seat] = []
        #: what is awaited: a block's answer, or None for an actor that is getting ready
        self._busy: dict[Any, tuple[_Seat, int | None]] = {}
        self._ours = _connect(address, workers)
        try:
            _pass_tensors()
            self._seats = _seats(data, read, workers)
            for seat in self._seats:
                self._hire(seat)
            deaths = Deaths("actors")
            while self._busy:  # a machine that cannot take part is a mistake, and must not go unnoticed in a short run
                self._first(deaths)
        except BaseException:
            self.close()
            raise

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        cut = blocks(sent)
        flat = [codec.flatten(list(block)) for block in cut]
        uses = Counter(id(t) for _, tensors in flat for t in tensors)
        # What several blocks have in common travels once to each machine, the rest with its block.
        common = {id(t): t for _, tensors in flat for t in tensors if uses[id(t)] > 1}
        numbers = {key: number for number, key in enumerate(common)}
        published = ray.put(list(common.values()))
        samples = self.site.shards.sizes()
        sizes = [int(samples[[each.client for each in block]].sum()) for block in cut]

        def call(actor: Any, number: int) -> Any:
            keeps = {each.client: self.store.get(each.client) for each in cut[number]}
            head, tensors = flat[number]
            own = [numbers.get(id(t), t) for t in tensors]
            return actor.ask.remote(head, own, published, {c: keep for c, keep in keeps.items() if keep != Keep()})

        answers = (
            codec.rebuild(head, [t.clone() for t in tensors]) for head, tensors in self._run(len(cut), call, sizes)
        )
        return collect(sent, map(unpacked, answers), self.store.put)

    def score(self, spec: Spec, weights: Tree) -> dict[str, Any]:
        pieces, published = evaluate.slices(self.site), ray.put(weights)

        def call(actor: Any, number: int) -> Any:
            return actor.score.remote(spec, published, pieces[number])

        return evaluate.scores(list(self._run(len(pieces), call, [1] * len(pieces))))

    def settle(self, seen: dict[int, int]) -> None:
        self.store.settle(seen)

    def close(self) -> None:
        for seat in self._seats:
            if seat.actor is not None:
                ray.kill(seat.actor)
        ray.util.deregister_serializer(Tensor)
        if self._ours:
            ray.shutdown()

    def _hire(self, seat: _Seat) -> None:
        """Put a new actor on a seat; it works as soon as it is ready."""
        seat.actor = ray.remote(_Actor).options(num_cpus=1, scheduling_strategy=_near(seat.node)).remote()
        self._busy[seat.actor.open.remote(self._make, seat.data, self.site.secret)] = (seat, None)

    def _run(self, tasks: int, call: Callable[[Any, int], Any], sizes: Sequence[int]) -> Iterator[Any]:
        """Deal tasks out, the longest first; yields their results in the tasks' own order."""
        waiting = sorted(range(tasks), key=lambda number: (sizes[number], -number))
        deaths = Deaths("actors")
        done: dict[int, Any] = {}
        following = 0
        while following < tasks:
            while self._idle and waiting:
                seat, number = self._idle.pop(), waiting.pop()
                self._busy[call(seat.actor, number)] = (seat, number)
            asked, answer = self._first(deaths)
            if asked is not None and answer is None:
                waiting.append(asked)
            elif asked is not None:
                done[asked] = answer
            while following in done:
                yield done.pop(following)
                following += 1

    def _first(self, deaths: Deaths) -> tuple[int | None, Any]:
        """Whoever is done first: the task, None for an actor that is now ready; and the answer, None if the actor died.

        The dead are replaced.
        """
        reference = ray.wait(list(self._busy))[0][0]
        seat, asked = self._busy.pop(reference)
        try:
            answer = _heard(reference)
        except (RayActorError, ObjectLostError) as error:
            deaths.add(asked, str(error).partition("\n")[0])
            self._hire(seat)
            return asked, None
        self._idle.append(seat)
        return asked, answer


@dataclass
class _Seat:
    """Room for an actor: a machine, and where the data are in its memory."""

    node: str
    data: Any
    actor: Any = None


class _Actor:
    """A process of the cluster that holds a site."""

    def open(self, make: Callable[[Any], Site], data: Any, secret: bytes) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        _pass_tensors()
        self.site = replace(_here(make, data), secret=secret)

    def ask(self, head: Any, own: list[int | Tensor], common: list[Tensor], keeps: dict[int, Keep]) -> Any:
        sent = codec.rebuild(head, [common[t] if isinstance(t, int) else t for t in own])
        return codec.flatten(packed(*ask_block(self.site, sent, lambda client: keeps.get(client, Keep()))))

    def score(self, spec: Spec, weights: Tree, piece: tuple[int, int]) -> Tree:
        return evaluate.score_slice(self.site, spec, weights, piece)


def _connect(address: str | None, workers: int | None) -> bool:
    """Join the cluster at an address, or begin one that nobody else can reach; gives whether it is ours to leave."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        host, _, port = address.rpartition(":")
        try:
            # Ray itself would try for minutes before it says that nobody is there.
            socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"engine.address is '{address}', where no Ray cluster answers ({str(error).splitlines()[0]}); it "
                "should be the host:port that 'ray start --head' printed there"
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
            f"Ray {ray.__version__} listens to other machines although it should not; start it yourself with 'ray "
            "start --head', and give its address"
        )
    return True


def _seats(data: Any, read: Callable[[], Any] | None, workers: int | None) -> list[_Seat]:
    """One per CPU, or the first few of them going round the machines."""
    here, own = ray.get_runtime_context().get_node_id(), ray.put(data)
    places: list[tuple[int, _Seat]] = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        name, lies = node["NodeID"], own
        if read is not None and name != here:
            lies = ray.remote(_fetched).options(num_cpus=0, scheduling_strategy=_near(name)).remote(read)
        places += [(at, _Seat(name, lies)) for at in range(int(node["Resources"].get("CPU", 0)))]
    if workers is not None and workers > len(places):
        raise UserError(f"engine.workers is {workers}, but the Ray cluster has {len(places)} CPUs; ask for fewer")
    return [seat for _, seat in sorted(places, key=lambda place: place[0])][:workers]


def _near(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=True)


def _fetched(read: Callable[[], Any]) -> Any:
    """Read the data on the machine where this runs; what is returned stays in its shared memory."""
    _pass_tensors()
    return _here(read)


def _here(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function; a mistake says on which machine it was found."""
    try:
        return function(*given)
    except UserError as mistake:
        raise UserError(f"on machine {ray.util.get_node_ip_address()}: {mistake}") from None


def _heard(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayTaskError as failure:
        if isinstance(failure.cause, UserError):
            raise UserError(str(failure.cause)) from None
        raise RuntimeError(f"an actor failed:\n{failure}") from None


def _pass_tensors() -> None:
    """Have tensors passed as arrays, which Ray does not copy: processes of a machine map the same memory."""
    ray.util.register_serializer(Tensor, serializer=_array, deserializer=_tensor)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it cannot be written to, and nobody does
        return torch.from_numpy(array)
