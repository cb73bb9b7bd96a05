"""Turn a configuration's text into the data, network and plan that a site or the coordinator works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedskew.config.schema import RunConfig
from fedskew.core import devices
from fedskew.core.errors import UserError
from fedskew.core.types import Arrays, Spec
from fedskew.data.custom import features
from fedskew.data.shards import Shards
from fedskew.data.sources import Source, load
from fedskew.experiment import run as experiment
from fedskew.experiment.preparation import resolve
from fedskew.experiment.run import RunInputs
from fedskew.federation.rules import Rules
from fedskew.federation.site import guard
from fedskew.methods import registry
from fedskew.parts.stages import check_federated
from fedskew.runtime.context import RunContext

#: data settings of an invitation, which a site has in its node config
INVITATION_KEYS = ("classes", "size", "encoder")
#: how a site writes numbers in its table, which is its own affair
NOTATION_KEYS = ("decimal", "missing")


@dataclass(frozen=True)
class DataKind:
    """What the data of all sites must have in common."""

    classes: int
    shape: tuple[int, ...]
    dtype: str


def kind_of(context: RunContext) -> DataKind:
    """Return the kind of a run's data."""
    return DataKind(context.plan.task.classes, context.plan.task.shape, str(context.x.dtype).removeprefix("torch."))


def class_names(config: RunConfig) -> tuple[str, ...]:
    """Return the classes that a coordinator names; none if the sites' data decide."""
    text = str(config.data.options.get("classes", ""))
    return tuple(name.strip() for name in text.split(",")) if text else ()


def placeholder(kind: DataKind, names: tuple[str, ...] = ()) -> Source:
    """Return data of a kind without samples, for a coordinator that has none."""
    x = torch.zeros(1, *kind.shape, dtype=getattr(torch, kind.dtype))
    empty = Arrays(x, torch.zeros(1, dtype=torch.int64))
    names = names or tuple(map(str, range(kind.classes)))
    mean = (0.0,) * len(x[0]) if x.dtype == torch.uint8 else ()
    return Source("sites' own", empty, empty, kind.classes, names, mean, tuple(1.0 for _ in mean), {})


def own_kind(node: Mapping[str, Any]) -> DataKind:
    """Return the kind of a site's own data, read with the site's own settings only."""
    options = {key: node[key] for key in (*INVITATION_KEYS, *NOTATION_KEYS) if key in node}
    source = load("own", Path(str(node["data"])), **options, vacant=True)
    x = source.train.x
    return DataKind(source.classes, tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))


def client_number(node: Mapping[str, Any], clients: int = guard.LIMITS["clients"], names: Sequence[str] = ()) -> int:
    """Return a node's client number: by its name where the run has names, because sites come and go."""
    if names and "name" in node:
        if node["name"] not in names:
            raise UserError(f"node config 'name' is '{node['name']}', not in this run. Choose {' or '.join(names)}.")
        return names.index(node["name"])
    found = node.get("site", node.get("partition-id"))
    if type(found) is not int or not 0 <= found < clients:
        raise UserError(f"node config 'site' is {found!r}. Set it to an integer from 0 to {clients - 1}.")
    return found


def own_source(config: RunConfig, rules: Rules, node: Mapping[str, Any]) -> Source:
    """Read a site's own data. The site alone decides where it is."""
    path = node.get("data")
    if not isinstance(path, str):
        raise UserError("node config has no 'data'. Set it to the path of this site's folder or file.")
    notation = {key: node[key] for key in NOTATION_KEYS if key in node}
    return normalized(load("own", Path(path), **config.data.options | notation | {"vacant": True}), rules)


def normalized(source: Source, rules: Rules) -> Source:
    """Give images the common normalization: with a mean of its own, a site would feed the network other inputs."""
    if not source.mean:
        return source
    channels = len(source.mean)
    return replace(source, mean=(rules.mean,) * channels, std=(rules.std,) * channels)


def prepare_site(
    config: RunConfig, rules: Rules, node: Mapping[str, Any], source: Source | None = None
) -> tuple[RunContext, Spec]:
    """Return a client's context and network. If sites have data of their own, the client has all of it."""
    guard.check_config(config, rules, node, given=source is not None)
    client, shards = client_number(node, config.partition.clients, rules.names), None
    if source is None and not rules.own_data:
        source = experiment.load_source(config)
    else:
        source = source or own_source(config, rules, node)
        shards = _shards(source, config.partition.clients, client)
    method, spec = registry.build(config.method), resolve.spec(config, source)
    accepted = guard.networks_of(method, spec, source.classes, tuple(source.train.x.shape[1:]))
    context, _, _ = experiment.prepare(config, RunInputs(source, method=method, shards=shards))
    device, *_ = devices.named(config.engine.device)
    devices.start(device, deterministic=not config.engine.fast)
    return replace(context, build=guard.only(accepted, context.build)).on(device), spec


def prepare_server(
    config: RunConfig, rules: Rules, source: Source | None, wait_for_kind: Callable[[], DataKind]
) -> RunInputs:
    """Return the coordinator's inputs. If sites have data of their own, it has test data only, or none."""
    check_federated(registry.build(config.method))
    config.attack.check_simulated()
    if source is None and not rules.own_data:
        return RunInputs()
    if source is None:
        none = rules.score == "sites" and config.data.dir is None
        loaded = placeholder(wait_for_kind(), class_names(config)) if none else experiment.load_source(config)
        encoder = features.agreed(str(config.data.options.get("encoder", "")))
        source = replace(normalized(loaded, rules), site_names=rules.names or loaded.site_names, encoder=encoder)
    return RunInputs(source, shards=_shards(source, config.partition.clients, None))


def _shards(source: Source, clients: int, client: int | None) -> Shards:
    """Give all rows to `client`, or to nobody."""
    rows = 0 if client is None else len(source.train)
    after = [rows if client is not None and each > client else 0 for each in range(clients + 1)]
    return Shards(torch.arange(rows), source.train.y[:rows], torch.tensor(after), source.classes)
