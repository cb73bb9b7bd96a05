"""What is known before the first round to limit what a run can show: said at once, not after the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from fedskew.config.schema import RunConfig
from fedskew.core.types import Task
from fedskew.methods import registry
from fedskew.parts import compose
from fedskew.parts.stages import Method, Plan
from fedskew.runtime.context import RunContext

#: the fact that a setup provides which looks for wrong labels
_LOOKS_FOR_WRONG_LABELS = "noisy"
#: classes that are named one by one
_NAMED = 5


def of(config: RunConfig, context: RunContext, labels: Sequence[str]) -> list[str]:
    """Return sentences; `labels` are the names of the classes."""
    plan = context.plan
    return _sentences(_of_plan(plan), _of_labels(context, labels), _of_test_labels(config, plan.method))


def of_method(config: RunConfig) -> list[str]:
    """Return what is known without data: of each method of a comparison, or of a federation's sites."""
    method, task = registry.build(config.method), Task(1, (1,), config.partition.clients)
    plan = compose.plan(method, task, seed=config.seed, rounds=config.rounds)
    return _sentences(_of_plan(plan), _of_test_labels(config, method))


def _sentences(*found: Iterator[str]) -> list[str]:
    return [f"{text[0].upper()}{text[1:]}." for text in chain(*found)]


def _of_plan(plan: Plan) -> Iterator[str]:
    """Say which stages have no round, and which setups have too few clients."""
    yield from _unreached(plan)
    yield from _few_clients(plan)


def _unreached(plan: Plan) -> Iterator[str]:
    before, stages = 0, plan.method.stages
    for number, stage in enumerate(stages):
        if number and before >= plan.rounds and stage.counted and stage.rounds != 0:
            opening = ", ".join(setup.name for setup in stage.setups)
            starting = f", which begins with {opening}" if opening else ""
            place = f"stage {number + 1} of {len(stages)}{starting}"
            yield (
                f"method {plan.method.expression}: --rounds {plan.rounds} ends before {place}; give --rounds "
                f"{before + 1} or more"
            )
            return
        before += (stage.rounds or 0) if stage.counted else 0


def _few_clients(plan: Plan) -> Iterator[str]:
    for setup in dict.fromkeys(setup for stage in plan.method.stages for setup in stage.setups):
        if shortage := setup.shortage(plan.task.clients):
            yield f"method {plan.method.expression}: {shortage}"


def _of_labels(context: RunContext, labels: Sequence[str]) -> Iterator[str]:
    trained, tested = (torch.bincount(y, minlength=len(labels)) for y in (context.shards.y, context.test.y))
    for count, samples, means in (
        (trained, "training", "there is nothing to tell apart"),
        (tested, "test", "the accuracy is that of one class"),
    ):
        there = count.nonzero().flatten().tolist()
        if len(there) == 1:
            yield f"all {samples} samples have the label '{labels[there[0]]}', so {means}"
            return
    if absent := [labels[c] for c in (trained == 0).nonzero().flatten().tolist()]:
        yield f"no client has a training sample of {_named(absent)}, so the model cannot learn {_it(absent)}"
    if untested := [labels[c] for c in ((tested == 0) & (trained > 0)).nonzero().flatten().tolist()]:
        yield f"no test sample is of {_named(untested)}, so no score covers {_it(untested)}"


def _of_test_labels(config: RunConfig, method: Method) -> Iterator[str]:
    looks = any(_LOOKS_FOR_WRONG_LABELS in setup.provides for stage in method.stages for setup in stage.setups)
    if config.evaluate.validation is not None and (looks or config.noise.kind != "none"):
        yield (
            "the validation samples keep the labels that clients gave them; wrong ones among these count as right in "
            "every score"
        )
    elif looks and config.data.name == "own":
        yield (
            "the test samples come from the same records as the training samples; wrong labels among them count as "
            "right in every score"
        )


def _named(classes: Sequence[str]) -> str:
    more = f" and {len(classes) - _NAMED} more" if len(classes) > _NAMED else ""
    return f"{'class' if len(classes) == 1 else 'classes'} {', '.join(classes[:_NAMED])}{more}"


def _it(classes: Sequence[str]) -> str:
    return "it" if len(classes) == 1 else "them"
