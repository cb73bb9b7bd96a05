"""Check what a coordinator sends to a site: configuration, networks, questions. All else is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, Round, Spec
from fedskew.federation.rules import Rules
from fedskew.methods import registry
from fedskew.models.registry import construct
from fedskew.parts.stages import Method, Plan, check_federated
from fedskew.runtime.evaluate import Scoring


class Refused(UserError):
    """A site refuses a message. The coordinator receives the text, so it must not name anything of the site's own."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason[:LONGEST])


#: most characters of a reason: it goes into the site's log, whose size a coordinator must not control
LONGEST = 1000

#: keys of a configuration that may hold text; any other text could name a file of the site
WORDS = frozenset(
    {
        *("method", "data.name", "data.augment", "partition.name", "local.optimizer", "cohort.replay", "stop.metric"),
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
        "local.train",
        "attack.kind",  # 'none', or refused
        "model.weights",  # a file of the coordinator's; nothing here reads it
    }
)
OPTIONS, ARGUMENTS = "data.options.", "model.args."
#: data sets that are the content of a path, and so not common to all sites
OF_A_PATH = ("own", "npz")

#: largest value of a number by its name; LARGEST is for all others
LARGEST = 1_000_000
LIMITS = {"seed": 2**64, "clients": 100_000, "epochs": 1000, "clusters": 1000, "size": 2048, "length": 10_000}
#: most parameters of a network: 4 GB
PARAMETERS = 1_000_000_000


def check_config(config: RunConfig, rules: Rules, node: Mapping[str, Any], given: bool) -> None:
    """Refuse a configuration that opens files, runs code or needs resources that this site did not allow.

    Args:
        config: The coordinator's configuration.
        rules: The coordinator's rules.
        node: The site's own settings.
        given: Whether the site's own app provides the data.
    """
    own = given or rules.own_data
    if own and config.noise.kind != "none":
        raise Refused(f"noise.kind is '{config.noise.kind}', and must be 'none' where sites have data of their own")
    if own and config.data.limit is not None:
        raise Refused(f"data.limit is {config.data.limit}, and must be left out where sites have data of their own")
    if own and config.data.imbalance is not None:
        raise Refused("data.imbalance is set, and must be left out where sites have data of their own")
    if not own and "data" in node:
        raise Refused("run config 'own-data' is false, and must be true: this site has data of its own")
    if not own and config.data.name in OF_A_PATH:
        raise Refused(f"data.name is '{config.data.name}', and must be a data set that all sites have")
    for key, value in _leaves(config.model_dump()):
        if own and key == "data.dir":  # the coordinator's, for its test data; nothing here reads it
            continue
        if isinstance(value, str):
            _check_text(key, value, own, node)
        _check_number(key, value)
    try:
        check_federated(registry.build(config.method))
        config.attack.check_simulated()
    except UserError as reason:
        raise Refused(str(reason)) from None
    for method, arguments in registry.parse(config.method):
        for key, value in _leaves(arguments, f"{method.name}."):
            _check_number(key, value)


def networks_of(method: Method, spec: Spec, classes: int, shape: tuple[int, ...]) -> list[Spec]:
    """Return the configuration's network and what the method's setups make of it; refuse one that is too large."""
    specs = [spec]
    for setup in (setup for stage in method.stages for setup in stage.setups):
        specs.append(setup.rewritten(specs[-1]))
    for each in specs if ":" not in spec.name else ():  # the site's own code need not know the device "meta"
        with torch.device("meta"):  # where tensors have a shape only
            size = sum(parameter.numel() for parameter in construct(each, classes, shape).parameters())
        if size > PARAMETERS:
            raise Refused(f"network '{each.name}' has {size} parameters, and at this site at most {PARAMETERS}")
    return specs


def only(specs: list[Spec], build: Callable[[Spec], nn.Module]) -> Callable[[Spec], nn.Module]:
    """Build only these networks: every message names one, and only the configuration's are allowed."""

    def guarded(spec: Spec) -> nn.Module:
        if spec not in specs:
            raise Refused(f"the network must be one of the configuration's, and is {spec!r:.200}")
        return build(specs[specs.index(spec)])

    return guarded


def check_broadcast(sent: Any, client: int, config: RunConfig) -> Broadcast:
    """Refuse a message for another site, and a question that the configuration does not ask."""
    if not isinstance(sent, Broadcast) or sent.client != client or not type(sent.turn) is type(sent.seen) is int:
        raise Refused(f"the message is no broadcast to site {client}")
    if sent.score and not config.evaluate.clients:
        raise Refused("scores of this site's model are asked for, but evaluate.clients is false")
    return sent


def question(sent: Broadcast, plan: Plan) -> str:
    """Return the name of the setup that asks, or "" for a round of training; refuse a question of no method."""
    stages, here = plan.method.stages, sent.round
    if not isinstance(here, Round) or type(here.stage) is not int or not 0 <= here.stage < len(stages):
        raise Refused(f"the message is for stage {brief(getattr(here, 'stage', None))}, which the method does not have")
    _check_round(here, plan)
    if sent.setup is None:
        return ""
    setups = stages[here.stage].setups
    if type(sent.setup) is not int or not 0 <= sent.setup < len(setups):
        raise Refused(f"the message asks question {brief(sent.setup)}, which the method does not have")
    return setups[sent.setup].name


def _check_round(here: Round, plan: Plan) -> None:
    """Refuse a round outside the plan: learning rates and draws depend on its numbers."""
    most = plan.rounds + sum(stage.rounds or 0 for stage in plan.method.stages if not stage.counted)
    bounds = {"index": most, "counted": plan.rounds, "within": most}
    for name, bound in bounds.items():
        number = getattr(here, name)
        if type(number) is not int or not 0 <= number <= bound:
            raise Refused(f"the message is for round {brief(number)} ({name}), which the run does not have")


def brief(value: Any, most: int = 40) -> str:
    """Show a coordinator's value in few characters, however long an integer is."""
    if isinstance(value, int) and abs(value) >= 10**most:
        return f"an integer of more than {most} digits"
    return f"{value!r:.{most}}"


def check_scoring(rules: Rules, scoring: Scoring, has_validation: bool) -> None:
    """Refuse to score a model on data that the rules or the configuration do not use for it."""
    if scoring.on == "validation" and not has_validation:
        raise Refused("scores on samples held back are asked for, but the configuration holds none back")
    if scoring.on == "test" and rules.score != "sites":
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
            raise Refused(f"network '{value}' is code that this site does not allow; node config 'model' must name it")
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
