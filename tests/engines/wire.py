"""A test double: an engine whose clients know nothing but bytes, as those of a federation."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace

from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core import codec
from fedskew.core.types import Broadcast, ClientState, Update
from fedskew.engines.inline import Inline
from fedskew.experiment.preparation.prepare import RunInputs, load_source, prepare
from fedskew.runtime.accumulate import simulate
from fedskew.runtime.context import RunContext
from fedskew.runtime.store import Store


class Wire(Inline):
    """Sends every message as bytes to a client whose context `rebuild` makes anew each time."""

    def __init__(self, context: RunContext, store: Store, rebuild: Callable[[], RunContext]) -> None:
        super().__init__(context, store)
        self.rebuild = rebuild

    def visit(self, context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
        del context
        update, new = _remote(self.rebuild(), codec.to_bytes(sent), codec.to_bytes(client_state))
        return codec.from_bytes(update), codec.from_bytes(new)


def _remote(context: RunContext, sent: bytes, client_state: bytes) -> tuple[bytes, bytes]:
    """Visit a client at the other end."""
    update, new = simulate(context, codec.from_bytes(sent), codec.from_bytes(client_state))
    return codec.to_bytes(update), codec.to_bytes(new)


def use(config: RunConfig, engine: str, inputs: RunInputs) -> tuple[RunConfig, RunInputs]:
    """Set the engine of a run by its name, which may also be 'wire'."""
    if engine != "wire":
        return configuration.override(config, [f"engine.name={engine}"]), inputs
    text, data = configuration.dumps(config), inputs.source or load_source(config)
    again = RunInputs(data, inputs.module, soft_labels=inputs.soft_labels)

    def rebuild() -> RunContext:
        return prepare(configuration.from_dict(tomllib.loads(text)), again)[0]

    return config, replace(inputs, engine=lambda context: Wire(context, Store(), rebuild))
