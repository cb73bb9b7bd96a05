"""A tiny federation for the battery and others: few digits, 4 clients with strong skew, a small network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedskew import api
from fedskew.config.schema import RunConfig
from fedskew.core import tree
from fedskew.core.types import Arrays, Broadcast, ServerState, Tree
from fedskew.data import sources
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.experiment.callbacks import Callback, Run
from fedskew.experiment.preparation.prepare import RunInputs, prepare
from fedskew.parts import views
from fedskew.parts.part import Part
from fedskew.parts.stages import Method
from fedskew.runtime import server
from fedskew.runtime.accumulate import Replies
from fedskew.runtime.context import RunContext, one_thread
from fedskew.runtime.loop import Engine, RoundDone, rounds
from fedskew.runtime.store import Store
from tests.engines import wire

ROUNDS = 3


@functools.cache
def digits(samples: int = 200) -> sources.Source:
    """So many training digits and 60 test digits."""
    whole = sources.load("digits")
    x, y = whole.train.x[:samples], whole.train.y[:samples]
    return sources.from_arrays(x, y, whole.test.x[:60], whole.test.y[:60], mean=whole.mean, std=whole.std)


def config(method: str = "fedavg", **options: Any) -> RunConfig:
    defaults: dict[str, Any] = {
        "partition": "dirichlet:0.3",
        "clients": 4,
        "clients_per_round": 3,
        "rounds": ROUNDS,
        "local_epochs": 2,
        "batch_size": 16,
        "model": "tiny",
        "engine": "inline",
        "lr": 0.05,
        "settings": ["partition.min_size=5"],
    }
    return api.configure(method=method, **(defaults | options))


def inputs(method: Method | None = None) -> RunInputs:
    return RunInputs(source=digits(), method=method)


def each_round(function: Callable[[dict[str, Any]], object]) -> Callback:
    """Call a function with the metrics of every round."""

    class EachRound(Callback):
        def on_round(self, round: int, metrics: dict[str, Any]) -> None:
            function(metrics)

    return EachRound()


class Starts(Callback):
    """Note the name and the configuration of every run that starts."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.configs: list[RunConfig] = []

    def on_start(self, run: Run) -> None:
        self.names.append(run.name)
        self.configs.append(run.config)


def finish(
    wanted: RunConfig, method: Method | None = None, *, engine: str | None = None, **options: Any
) -> experiment.Result:
    """Run to the end, by the configuration's engine or by the one named; 'wire' is a test double."""
    config, given = wire.use(wanted, engine or wanted.engine.name, inputs(method))
    return experiment.run(config, inputs=given, **options)


def site_of(wanted: RunConfig, method: Method | None = None) -> tuple[RunContext, ServerState]:
    context, _, spec = prepare(wanted, inputs(method))
    return context, server.begin(spec, context.net(spec).initial())


def final_state(context: RunContext, state: ServerState, engine: Engine) -> ServerState:
    """Run the loop to its end under an engine made by hand."""
    with one_thread():
        for event in rounds(context, engine, state):
            if isinstance(event, RoundDone):
                state = event.state
    return state


def memory_digest(state: ServerState) -> str:
    """Of everything the server remembers."""
    flat: Tree = {f"{key}>{name}": t for key, each in state.memory.items() for name, t in each.items()}
    return tree.digest(flat | {f"facts>{name}": t for name, t in state.facts.items()})


class Backwards(Inline):
    """Asks the last block first, with the global generators disturbed; folds in order all the same."""

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        parts = []
        for each in reversed(sent):
            torch.manual_seed(each.client + 99)
            parts.append(super().ask([each]))
        replies = Replies()
        for part in reversed(parts):
            replies.absorb(part)
        return replies


class Unasked(Inline):
    """Never asks the clients whose replies would get lost, and counts them."""

    skipped = 0

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        asked = [each for each in sent if not self.context.loses(each)]
        self.skipped += len(sent) - len(asked)
        return super().ask(asked)


HOOKS = (
    "init_server", "send", "accumulate", "merge", "init_client", "begin", "finish", "batch", "loss", "observe", "take",
    "adjust", "rate", "start", "effective_steps", "weight", "weights", "accumulate_weighted", "result", "move",
    "report", "weights_for", "model", "carry", "pick", "answer", "decide", "protect",
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
        for part in (*stage.parts, *stage.setups):
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
    elif depth > 4 or isinstance(value, views.Accumulator):
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item, depth + 1)
    elif (
        isinstance(
            value,
            views.ClientContext
            | views.ServerContext
            | views.LocalTraining
            | views.ForwardPass
            | views.Batch
            | Arrays
            | Broadcast,
        )
        or type(value).__module__ == "fedskew.core.types"
    ):
        yield from tensors_in(vars(value), depth + 1)


def store() -> Store:
    return Store()
