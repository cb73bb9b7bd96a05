"""What a site takes from a coordinator: a configuration, networks, questions. What is not named here, it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fedskew.config import RunConfig
from fedskew.errors import UserError
from fedskew.flower.settings import Rules
from fedskew.methods import registry
from fedskew.models.registry import construct
from fedskew.parts.stages import Method, Plan
from fedskew.types import Broadcast, Round, Spec


class Refused(UserError):
    """A site does not do what it is asked. The coordinator is told why, so the text names nothing of the site's own."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason[:LONGEST])


#: characters of a reason: it goes into the site's log, and a coordinator must not choose how long that gets
LONGEST = 1000

#: keys of a configuration that may hold text; a key that is not here could name a file of the site
WORDS = frozenset(
    {
        *("method", "data.name", "data.augment", "partition.name", "local.optimiser", "cohort.replay"),
        *(
            "noise.kind",
            "noise.who",
            "noise.scope",
            "noise.count",
            "noise.mapping",
            "noise.mode",
            "noise.annotator.share",
        ),
        *("model.name", "model.head", "engine.name", "engine.device", "engine.precision"),
        "model.weights",  # a file of the coordinator's; nothing here reads it
    }
)
OPTIONS, ARGUMENTS = "data.options.", "model.args."
#: data sets that are some path's content, and so no data set that all sites have
OF_A_PATH = ("own", "npz")

#: the most that a number may be, by its name; LARGEST is for the others
LARGEST = 1_000_000
LIMITS = {"seed": 2**64, "clients": 100_000, "epochs": 1000, "clusters": 1000, "size": 2048, "length": 10_000}
#: the most parameters of a network: 4 GB
PARAMETERS = 1_000_000_000


def check_config(config: RunConfig, rules: Rules, node: Mapping[str, Any], given: bool) -> None:
    """Refuse a configuration that opens files, runs code or needs resources to which this site did not agree.

    `given` says that the site's own app brings the data.
    """
    own = given or rules.own_data
    if own and config.noise.kind != "none":
        raise Refused(f"noise.kind is '{config.noise.kind}', and must be 'none' where sites have data of their own")
    if not own and "data" in node:
        raise Refused("run config 'own-data' is false, and must be true: this site takes part with data of its own")
    if not own and config.data.name in OF_A_PATH:
        raise Refused(f"data.name is '{config.data.name}', and must be a data set that all sites have")
    for key, value in _leaves(config.model_dump()):
        if own and key == "data.dir":  # the coordinator's, for its test data; nothing here reads it
            continue
        if isinstance(value, str):
            _check_text(key, value, own, node)
        _check_number(key, value)
    for method, arguments in registry.parse(config.method):
        for key, value in _leaves(arguments, f"{method.name}."):
            _check_number(key, value)


def networks_of(method: Method, spec: Spec, classes: int, shape: tuple[int, ...]) -> list[Spec]:
    """The configuration's network, and what the method's entries make of it; refused if one is too large."""
    specs = [spec]
    for entry in (entry for stage in method.stages for entry in stage.entries):
        specs.append(entry.rewritten(specs[-1]))
    for each in specs if ":" not in spec.name else ():  # the site's own code need not know the device "meta"
        with torch.device("meta"):  # where tensors have a shape only
            size = sum(parameter.numel() for parameter in construct(each, classes, shape).parameters())
        if size > PARAMETERS:
            raise Refused(f"network '{each.name}' has {size} parameters, and at this site at most {PARAMETERS}")
    return specs


def only(specs: list[Spec], build: Callable[[Spec], nn.Module]) -> Callable[[Spec], nn.Module]:
    """Networks come by name with every message; a site builds those of its configuration and no other."""

    def guarded(spec: Spec) -> nn.Module:
        if spec not in specs:
            raise Refused(f"the network must be one of the configuration's, and is {spec!r:.200}")
        return build(specs[specs.index(spec)])

    return guarded


def check_broadcast(sent: Any, client: int, config: RunConfig) -> Broadcast:
    """Refuse what is meant for others, and what the configuration does not ask for."""
    if not isinstance(sent, Broadcast) or sent.client != client or not type(sent.turn) is type(sent.seen) is int:
        raise Refused(f"the message is no broadcast to site {client}")
    if sent.score and not config.evaluate.clients:
        raise Refused("scores of this site's model are asked for, but evaluate.clients is false")
    return sent


def question(sent: Broadcast, plan: Plan) -> str:
    """Return the name of the entry that asks, or "" in a round of training; what the method does not ask is refused."""
    stages, here = plan.method.stages, sent.round
    if not isinstance(here, Round) or type(here.stage) is not int or not 0 <= here.stage < len(stages):
        raise Refused(f"the message is for stage {brief(getattr(here, 'stage', None))}, which the method does not have")
    _check_round(here, plan)
    if sent.entry is None:
        return ""
    entries = stages[here.stage].entries
    if type(sent.entry) is not int or not 0 <= sent.entry < len(entries):
        raise Refused(f"the message asks question {brief(sent.entry)}, which the method does not have")
    return entries[sent.entry].name


def _check_round(here: Round, plan: Plan) -> None:
    """Refuse a round that no run of the plan has: learning rates and draws depend on its numbers."""
    most = plan.rounds + sum(stage.rounds or 0 for stage in plan.method.stages if not stage.counted)
    bounds = {"index": most, "counted": plan.rounds, "within": most}
    for name, bound in bounds.items():
        number = getattr(here, name)
        if type(number) is not int or not 0 <= number <= bound:
            raise Refused(f"the message is for round {brief(number)} ({name}), which the run does not have")


def brief(value: Any, most: int = 40) -> str:
    """Show a value that a coordinator chose in few characters; Python itself does not print integers without end."""
    if isinstance(value, int) and abs(value) >= 10**most:
        return f"an integer of more than {most} digits"
    return f"{value!r:.{most}}"


def check_scoring(rules: Rules) -> None:
    """Refuse to say how good a model is on this site's test data if others' are to be used."""
    if rules.score != "sites":
        raise Refused(f"scores on this site's test data are asked for, but run config 'score' is '{rules.score}'")


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}{name}.")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key.removesuffix("."), value


def _check_text(key: str, value: str, own: bool, node: Mapping[str, Any]) -> None:
    if key == "model.name" or key.startswith(ARGUMENTS):
        if ":" in value and value != node.get("model"):
            raise Refused(
                f"network '{value}' is code that this site did not agree to; node config 'model' must name it"
            )
    elif key.startswith(OPTIONS):
        if not own and re.search(r"[/\\]|\.\.", value):
            raise Refused(f"{key} is '{value}', and must be a name without a path: the site says where data lies")
    elif key not in WORDS:
        raise Refused(f"{key} is '{value}', and must not be set: a coordinator names no files of a site")


def _check_number(key: str, value: Any) -> None:
    most = LIMITS.get(key.rpartition(".")[2], LARGEST)
    sides = map(int, re.findall(r"\d+", str(value))) if key == f"{OPTIONS}size" else (value,)
    for number in sides:
        if isinstance(number, int | float) and not abs(number) <= most:
            raise Refused(f"{key} is {value!r}, and at this site at most {most}")
