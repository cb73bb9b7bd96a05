"""What a federation's coordinator decides beside our configuration: the keys of Flower's run configuration."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew.config import RunConfig
from fedskew.errors import UserError, nearest

#: a run folder's file of the rules that it keeps
RULES = "rules.json"


@dataclass(frozen=True)
class Rules:
    """`deadline` seconds after a turn began it goes on without the missing, if the share `quorum` has answered.

    An update whose norm is above `max_norm` times the median is refused. With `own_data` every site reads its own
    (node configuration `data`), with images normalised by `mean` and `std`; else each takes its part of a data set
    that all of them have. `score` says whose test data counts: the "server"'s or the "sites"'.
    """

    deadline: float = 3600.0
    quorum: float = 0.5
    max_norm: float = 10.0
    own_data: bool = False
    mean: float = 0.5
    std: float = 0.25
    score: str = "server"
    #: which Flower node is which site; if empty, nodes are believed
    sites: Mapping[int, int] = field(default_factory=dict)
    #: the sites in the order of their numbers, by the names that their nodes are registered with
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        right = {
            "deadline": (self.deadline > 0, "above 0"),
            "quorum": (0 < self.quorum <= 1, "above 0 and at most 1"),
            "max-norm": (self.max_norm > 1, "above 1"),
            "mean": (math.isfinite(self.mean), "a finite number"),
            "std": (0 < self.std < math.inf, "above 0 and finite"),
            "score": (self.score in ("server", "sites"), "'server' or 'sites'"),
        }
        for key, (holds, what) in right.items():
            if not holds:
                raise UserError(f"run config '{key}' is {getattr(self, key.replace('-', '_'))!r}, and must be {what}")


_KEYS = {f.name.replace("_", "-"): f.name for f in fields(Rules)}
_OTHERS = ("config", "out")


def rules(given: Mapping[str, Any], strict: bool = True) -> Rules:
    """The rules in a run configuration; its keys have hyphens, as Flower's have. Unless strict, others may be there."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key in _OTHERS or (key not in _KEYS and not strict):
            continue
        if key not in _KEYS:
            raise UserError(f"run config has no key '{key}'{nearest(key, [*_KEYS, *_OTHERS])}")
        found[_KEYS[key]] = _READ[key](value) if key in _READ else _like(key, value)
    return Rules(**found)


def _like(key: str, value: Any) -> Any:
    default = getattr(Rules(), _KEYS[key])
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise UserError(f"run config '{key}' is {value!r}, and must be of the kind of {default!r}")
    return value


def _sites(text: Any) -> dict[int, int]:
    try:
        pairs = [pair.split(":") for pair in str(text).split(",") if pair.strip()]
        return {int(node): int(site) for node, site in pairs}
    except ValueError:
        raise UserError(f"run config 'sites' is {text!r}, and must be like '1234:0,5678:1' (node:site)") from None


def _names(text: Any) -> tuple[str, ...]:
    names = tuple(name.strip() for name in str(text).split(",")) if str(text).strip() else ()
    if not all(names) or len(set(names)) < len(names):
        raise UserError(f"run config 'names' is {text!r}, and must be different names with commas between them")
    return names


_READ: Mapping[str, Callable[[Any], Any]] = {"sites": _sites, "names": _names}


def configured(given: Mapping[str, Any]) -> RunConfig:
    """Our configuration, which is one text among Flower's. There is no engine to choose: Flower is the engine."""
    text = given.get("config")
    if not isinstance(text, str) or not text.strip():
        raise UserError("run config has no text 'config'; it must hold a configuration of fedskew in TOML")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"run config 'config' is not valid TOML: {error}") from None
    config = configuration.override(configuration.from_dict(values, "run config 'config'"), ["engine.name=inline"])
    if config.checkpoint.every != 1:
        raise UserError(f"key 'checkpoint.every' is {config.checkpoint.every}; in a federation it must be 1")
    return config


def folder(given: Mapping[str, Any], key: str, default: Path | None = None) -> Path:
    """A folder that a run or node configuration names."""
    if key not in given and default is not None:
        return default
    path = Path(str(given.get(key, "")))
    if not path.is_absolute():
        raise UserError(f"'{key}' is '{given.get(key, '')}', and must be the absolute path of a folder")
    return path
