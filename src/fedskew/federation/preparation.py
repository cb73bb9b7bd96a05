"""From a configuration's text to what one end of a federation works with: its own data, the common plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedskew import experiment, resolve
from fedskew.config import RunConfig
from fedskew.data.shards import Shards
from fedskew.data.sources import Source, load
from fedskew.errors import UserError
from fedskew.experiment import Given
from fedskew.flower import guard
from fedskew.flower.settings import Rules
from fedskew.methods import registry
from fedskew.types import Arrays, Spec
from fedskew.work.site import Site

#: what an invitation says of data, and a site of a federation has in its node config
OF_INVITATION = ("classes", "size")


@dataclass(frozen=True)
class Kind:
    """What all sites' data must have in common."""

    classes: int
    shape: tuple[int, ...]
    dtype: str


def kind(site: Site) -> Kind:
    return Kind(site.plan.task.classes, site.plan.task.shape, str(site.x.dtype).removeprefix("torch."))


def class_names(config: RunConfig) -> tuple[str, ...]:
    """The classes that a coordinator names; none if it leaves that to the sites' data."""
    text = str(config.data.options.get("classes", ""))
    return tuple(name.strip() for name in text.split(",")) if text else ()


def blank(kind: Kind, names: tuple[str, ...] = ()) -> Source:
    """Data of a kind without any content, for a coordinator that has none but the names of the classes."""
    x = torch.zeros(1, *kind.shape, dtype=getattr(torch, kind.dtype))
    empty = Arrays(x, torch.zeros(1, dtype=torch.int64))
    names = names or tuple(map(str, range(kind.classes)))
    mean = (0.0,) * len(x[0]) if x.dtype == torch.uint8 else ()
    return Source("sites' own", empty, empty, kind.classes, names, mean, tuple(1.0 for _ in mean), {})


def own_kind(node: Mapping[str, Any]) -> Kind:
    """The kind of a site's own data, read with nothing but its own words."""
    options = {key: node[key] for key in OF_INVITATION if key in node}
    source = load("own", Path(str(node["data"])), **options, vacant=True)
    x = source.train.x
    return Kind(source.classes, tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))


def number(node: Mapping[str, Any], clients: int = guard.LIMITS["clients"], names: Sequence[str] = ()) -> int:
    """Which client a node is: by its name where the run has names, for the sites of a federation change over time."""
    if names and "name" in node:
        if node["name"] not in names:
            raise UserError(f"this run is for the sites {', '.join(names)}; '{node['name']}' is none of them")
        return names.index(node["name"])
    found = node.get("site", node.get("partition-id"))
    if type(found) is not int or not 0 <= found < clients:
        raise UserError(f"node config 'site' is {found!r}, and must be a whole number from 0 to {clients - 1}")
    return found


def own_source(config: RunConfig, rules: Rules, node: Mapping[str, Any]) -> Source:
    """A site's own data. Where it lies the site says, never the coordinator."""
    path = node.get("data")
    if not isinstance(path, str):
        raise UserError("node config has no 'data': the path of this site's own folder or CSV")
    return normalised(load("own", Path(path), **config.data.options | {"vacant": True}), rules)


def normalised(source: Source, rules: Rules) -> Source:
    """The same for all: a site's own mean would be another input to the common network."""
    if not source.mean:
        return source
    channels = len(source.mean)
    return replace(source, mean=(rules.mean,) * channels, std=(rules.std,) * channels)


def at_site(config: RunConfig, rules: Rules, node: Mapping[str, Any], source: Source | None = None) -> Site:
    """What a client works with."""
    return prepared(config, rules, node, source)[0]


def prepared(
    config: RunConfig, rules: Rules, node: Mapping[str, Any], source: Source | None = None
) -> tuple[Site, Spec]:
    """What a client works with, and its network. With data of its own it holds all of it, the others nothing."""
    guard.check_config(config, rules, node, given=source is not None)
    client, held = number(node, config.partition.clients, rules.names), None
    if source is None and not rules.own_data:
        source = experiment.load_source(config)
    else:
        source = source or own_source(config, rules, node)
        held = _held(source, config.partition.clients, client)
    method, spec = registry.build(config.method), resolve.spec(config, source)
    accepted = guard.networks_of(method, spec, source.classes, tuple(source.train.x.shape[1:]))
    site, _, _ = experiment.prepare(config, Given(source, method=method, held=held))
    return replace(site, build=guard.only(accepted, site.build)), spec


def at_server(config: RunConfig, rules: Rules, source: Source | None, meet: Callable[[], Kind]) -> Given:
    """What the coordinator works with: where sites have data of their own, it holds test data only, or none."""
    if source is None and not rules.own_data:
        return Given()
    if source is None:
        none = rules.score == "sites" and config.data.dir is None
        loaded = blank(meet(), class_names(config)) if none else experiment.load_source(config)
        source = replace(normalised(loaded, rules), site_names=rules.names or loaded.site_names)
    return Given(source, held=_held(source, config.partition.clients, None))


def _held(source: Source, clients: int, client: int | None) -> Shards:
    rows = 0 if client is None else len(source.train)
    after = [rows if client is not None and each > client else 0 for each in range(clients + 1)]
    return Shards(torch.arange(rows), source.train.y[:rows], torch.tensor(after), source.classes)
