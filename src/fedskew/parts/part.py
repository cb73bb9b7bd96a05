"""The base class of all parts: which hooks a method can fill, and when each one runs.

One round, in this order:

    server, once        cohort.pick
    server, per client  server.weights_for, then send of every part
    client              begin of every part
      per batch         inputs.batch, base.loss + terms.loss, gradient.take, corrections.adjust, optimizer.step,
                        terms.observe
    client              finish of every part, then privacy.protect
    server, per update  accumulate of every part (float64 sums, in client order)
    server, once        server.merge, then merge of every other part
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from fedskew.core import tree
from fedskew.core.types import Broadcast, Task, Tree, Update
from fedskew.parts.views import Accumulator, ClientContext, LocalTraining, ServerContext

Message = TypeVar("Message", Update, Broadcast)


class Part:
    """A frozen dataclass whose fields are hyperparameters and nothing else.

    Hooks never modify their arguments. They draw random numbers only from `rng`, and create tensors only like the
    tensors they receive.
    """

    #: namespace of the part's messages and memory; it enters the seeds. A renamed class keeps its first name here.
    name: ClassVar[str] = "Part"
    #: facts that an earlier setup must provide, and facts that this part provides
    requires: ClassVar[frozenset[str]] = frozenset()
    provides: ClassVar[frozenset[str]] = frozenset()
    #: what `merge` needs of single updates: nothing, this part's extras, or extras and weights
    needs_individual_updates: Literal["", "extras", "weights"] = ""
    #: divides by effective steps, which some optimizers do not define
    needs_effective_steps: ClassVar[bool] = False
    #: works only if all clients receive the same model
    needs_single_model: ClassVar[bool] = False
    #: works only if all trained parameters travel, so not beside personal weights
    needs_shared_parameters: ClassVar[bool] = False
    #: uploaded tensors with one row per class of the client; an integer tensor among them lists these classes
    variable_rows: ClassVar[frozenset[str]] = frozenset()
    #: uploaded tensors that hold NaN where the client has no value
    allows_nan: ClassVar[frozenset[str]] = frozenset()
    #: hooks that do nothing but pass on what the inner parts do
    passes_on: ClassVar[frozenset[str]] = frozenset()
    #: depends on the number of rounds, so that a longer run is another run from the start
    depends_on_total_rounds: bool = False

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    # On the server.
    def init_server(self, model: Tree, task: Task) -> Tree:
        """Return the server memory with which the part enters a stage."""
        return {}

    def send(self, ctx: ServerContext, client: int) -> Tree:
        """Return what one client receives beside the weights."""
        return {}

    def accumulate(self, update: Update, sent: Broadcast, sums: Accumulator) -> None:
        """Add to the sums what `merge` needs of one update."""

    def merge(self, ctx: ServerContext, sums: Accumulator) -> Tree:
        """Return the server memory after the round."""
        return ctx.memory

    def check(self, update: Update, training: LocalTraining) -> None:
        """Raise InvalidData for extras that no honest client sends; their names, shapes and dtypes are right already.

        `training` has the number of steps and of effective steps that the update must come from.
        """

    # On a client.
    def init_client(self, model: Tree, task: Task) -> Tree:
        """Return the memory of a client that meets the part for the first time."""
        return {}

    def begin(self, ctx: ClientContext) -> Any:
        """Return the scratch object of this round; the other hooks receive it as `scratch`."""
        return None

    def finish(self, ctx: ClientContext, scratch: Any, training: LocalTraining) -> tuple[Tree, Tree]:
        """Return (what the client uploads, its memory after the round)."""
        return {}, ctx.memory

    # Parts made of other parts.
    @property
    def inside(self) -> Mapping[str, Part]:
        """Return the inner parts by the prefix of their messages and memory."""
        return {}

    def within(self, message: Message, prefix: str) -> Message:
        """Return a message as an inner part sees it: only its own extras, under its own name."""
        own = message.extras.get(self.name, {})
        seen = object.__new__(type(message))  # as `replace` does, in a tenth of the time: this runs for every update
        vars(seen).update(vars(message), extras={self.inside[prefix].name: tree.pick(own, prefix)})
        return seen


def with_inner_parts(part: Part) -> Iterator[Part]:
    """Yield a part and, recursively, its inner parts."""
    yield part
    for each in part.inside.values():
        yield from with_inner_parts(each)


def check_extras(part: Part, update: Update, training: LocalTraining) -> None:
    """Let a part and its inner parts check their extras."""
    part.check(update, training)
    for prefix, inner in part.inside.items():
        check_extras(inner, part.within(update, prefix), training)


def overrides(part: Part, hook: str) -> bool:
    """Return whether a part fills a hook, or passes it on to an inner part that does; others need not be called."""
    if hook in part.passes_on:
        return any(overrides(inner, hook) for inner in part.inside.values())
    return getattr(type(part), hook) is not getattr(Part, hook)
