"""A tiny federation for the battery: 200 digits, 4 clients with strong skew, a small network with batch norm."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedskew import experiment, face, tree
from fedskew.config import RunConfig
from fedskew.data import sources
from fedskew.engines.inline import Inline
from fedskew.parts import views
from fedskew.parts.protocol import Part
from fedskew.parts.stages import Method
from fedskew.types import Arrays, Broadcast, State, Tree
from fedskew.work import server
from fedskew.work.gather import Gathered
from fedskew.work.loop import Done, Engine, rounds
from fedskew.work.site import Site, one_thread
from fedskew.work.store import Store

ROUNDS = 3


@functools.cache
def digits() -> sources.Source:
    """200 training digits and 60 test digits."""
    whole = sources.load("digits")
    return sources.from_arrays(
        whole.train.x[:200], whole.train.y[:200], whole.test.x[:60], whole.test.y[:60], mean=whole.mean, std=whole.std
    )


def config(method: str = "fedavg", **options: Any) -> RunConfig:
    defaults: dict[str, Any] = {
        "partition": "dirichlet:0.3",
        "clients": 4,
        "per_round": 3,
        "rounds": ROUNDS,
        "epochs": 2,
        "batch": 16,
        "model": "tiny",
        "engine": "inline",
        "lr": 0.05,
        "settings": ["partition.min_size=5"],
    }
    return face.configure(method=method, **(defaults | options))


def given(method: Method | None = None) -> experiment.Given:
    return experiment.Given(source=digits(), method=method)


def finish(wanted: RunConfig, method: Method | None = None, **options: Any) -> experiment.Result:
    return experiment.run(wanted, given=given(method), **options)


def site_of(wanted: RunConfig, method: Method | None = None) -> tuple[Site, State]:
    site, _, spec = experiment.prepare(wanted, given(method))
    return site, server.begin(spec, site.net(spec).initial())


def final_state(site: Site, state: State, engine: Engine) -> State:
    """Run the loop to its end under an engine made by hand."""
    with one_thread():
        for event in rounds(site, engine, state):
            if isinstance(event, Done):
                state = event.state
    return state


def memory_digest(state: State) -> str:
    """Of everything the server remembers."""
    flat: Tree = {f"{key}>{name}": t for key, each in state.memory.items() for name, t in each.items()}
    return tree.digest(flat | {f"facts>{name}": t for name, t in state.facts.items()})


class Backwards(Inline):
    """Asks the last block first, with the global generators disturbed; folds in order all the same."""

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        parts = []
        for each in reversed(sent):
            torch.manual_seed(each.client + 99)
            parts.append(super().ask([each]))
        gathered = Gathered()
        for part in reversed(parts):
            gathered.absorb(part)
        return gathered


class Unasked(Inline):
    """Never asks the clients whose replies would get lost, and counts them."""

    skipped = 0

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        asked = [each for each in sent if not self.site.loses(each)]
        self.skipped += len(sent) - len(asked)
        return super().ask(asked)


HOOKS = (
    "init_server", "send", "lift", "merge", "init_client", "begin", "finish", "batch", "loss", "observe", "take",
    "adjust", "rate", "start", "effective_steps", "weight", "weights", "gather", "result", "move", "report",
    "weights_for", "model", "carry", "pick", "ask", "settle", "seal",
)  # fmt: skip


def parts_of(method: Method) -> list[Part]:
    """Every part of a method, the ones inside servers too."""
    found: list[Part] = []

    def walk(part: Any) -> None:
        if isinstance(part, Part):
            found.append(part)
            for value in vars(part).values():
                walk(value)

    for stage in method.stages:
        for part in (*stage.parts, *stage.entries):
            walk(part)
    return found


@contextmanager
def wrapped_hooks(
    parts: Sequence[Part], wrapper: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Wrap every hook of these parts' classes for a while."""
    replaced = []
    for cls in {type(part) for part in parts}:
        for hook in HOOKS:
            if hook in vars(cls) and callable(vars(cls)[hook]):
                replaced.append((cls, hook, vars(cls)[hook]))
                setattr(cls, hook, wrapper(f"{cls.__name__}.{hook}", vars(cls)[hook]))
    try:
        yield
    finally:
        for cls, hook, original in replaced:
            setattr(cls, hook, original)


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor reachable from a hook's argument, sums (which hooks are meant to fill) excepted."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 4 or isinstance(value, views.Sums):
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item, depth + 1)
    elif (
        isinstance(value, views.Local | views.Desk | views.Run | views.Pass | views.Batch | Arrays | Broadcast)
        or type(value).__module__ == "fedskew.types"
    ):
        yield from tensors_in(vars(value), depth + 1)


def store() -> Store:
    return Store()
