"""Read the run configuration that a coordinator sends through Flower: the federation's rules and our configuration."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError, did_you_mean

#: the file in a run folder with the rules that must not change
RULES = "rules.json"


@dataclass(frozen=True)
class Rules:
    """Hold the decisions of a coordinator that are not part of a fedskew configuration.

    Args:
        deadline: Seconds after which a turn ends without the missing sites, if a quorum has answered.
        quorum: Share of the sites asked that must answer.
        max_norm: Refuse an update whose norm exceeds the median by this factor.
        own_data: Every site reads its own data (node config `data`). Otherwise each takes its part of one data set.
        mean: Mean with which sites normalize images of their own.
        std: Standard deviation with which sites normalize images of their own.
        score: Whose test data scores the model: the "server"'s or the "sites"'.
        sites: Site number of each Flower node. If empty, nodes state their number themselves.
        names: Names of the sites in the order of their numbers, as their nodes are registered.
    """

    deadline: float = 3600.0
    quorum: float = 0.5
    max_norm: float = 10.0
    own_data: bool = False
    mean: float = 0.5
    std: float = 0.25
    score: str = "server"
    sites: Mapping[int, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks = {
            "deadline": (self.deadline > 0, "a number above 0"),
            "quorum": (0 < self.quorum <= 1, "a number above 0 and at most 1"),
            "max-norm": (self.max_norm > 1, "a number above 1"),
            "mean": (math.isfinite(self.mean), "a finite number"),
            "std": (0 < self.std < math.inf, "a finite number above 0"),
            "score": (self.score in ("server", "sites"), "'server' or 'sites'"),
        }
        for key, (correct, what) in checks.items():
            if not correct:
                raise UserError(f"run config '{key}' is {getattr(self, key.replace('-', '_'))!r}. Give {what}.")


_KEYS = {f.name.replace("_", "-"): f.name for f in fields(Rules)}
_OTHERS = ("config", "out")


def parse_rules(run_config: Mapping[str, Any], strict: bool = True) -> Rules:
    """Read the rules in a run configuration, whose keys have hyphens; unless `strict`, ignore unknown keys."""
    found: dict[str, Any] = {}
    for key, value in run_config.items():
        if key in _KEYS:
            found[_KEYS[key]] = _PARSERS[key](value) if key in _PARSERS else _checked_kind(key, value)
        elif key not in _OTHERS and strict:
            raise UserError(f"run config has no key '{key}'{did_you_mean(key, [*_KEYS, *_OTHERS])}")
    return Rules(**found)


def _checked_kind(key: str, value: Any) -> Any:
    default = getattr(Rules(), _KEYS[key])
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise UserError(f"run config '{key}' is {value!r}. Give a value of the type of {default!r}.")
    return value


def _parse_sites(text: Any) -> dict[int, int]:
    try:
        pairs = [pair.split(":") for pair in str(text).split(",") if pair.strip()]
        return {int(node): int(site) for node, site in pairs}
    except ValueError:
        raise UserError(
            f"run config 'sites' is {text!r}. Write NODE:SITE pairs, for example '1234:0,5678:1'."
        ) from None


def _parse_names(text: Any) -> tuple[str, ...]:
    names = tuple(name.strip() for name in str(text).split(",")) if str(text).strip() else ()
    if not all(names) or len(set(names)) < len(names):
        raise UserError(f"run config 'names' is {text!r}. Write different names with commas between them.")
    return names


_PARSERS: Mapping[str, Callable[[Any], Any]] = {"sites": _parse_sites, "names": _parse_names}


def parse_config(run_config: Mapping[str, Any]) -> RunConfig:
    """Read our configuration, one text in Flower's run configuration. The engine is always Flower."""
    text = run_config.get("config")
    if not isinstance(text, str) or not text.strip():
        raise UserError("run config has no text 'config'. Put a fedskew configuration in TOML there.")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"run config 'config' is not valid TOML: {error}. Correct it.") from None
    config = configuration.override(configuration.from_dict(values, "run config 'config'"), ["engine.name=inline"])
    if config.checkpoint.every != 1:
        raise UserError(f"key 'checkpoint.every' is {config.checkpoint.every}. Set it to 1 in a federation.")
    return config


def absolute_folder(settings: Mapping[str, Any], key: str, default: Path | None = None) -> Path:
    """Read the path of a folder from a run or node configuration."""
    if key not in settings and default is not None:
        return default
    path = Path(str(settings.get(key, "")))
    if not path.is_absolute():
        raise UserError(f"'{key}' is '{settings.get(key, '')}'. Give the absolute path of a folder.")
    return path
