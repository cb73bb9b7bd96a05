"""Settings such as ``local.lr=0.1``, written over a configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from fedskew.config.schema import RunConfig
from fedskew.config.validate import from_dict
from fedskew.core.errors import UserError


def override(config: RunConfig, assignments: Iterable[str]) -> RunConfig:
    """Apply ``"local.lr=0.1"`` and the like; ``key=none`` puts the default back."""
    values = config.model_dump()
    assign(values, assignments)
    return from_dict(values)


def assign(values: dict[str, Any], assignments: Iterable[str]) -> None:
    """Write ``"local.lr=0.1"`` and the like into nested values, unchecked."""
    for assignment in assignments:
        key, equals, text = (piece.strip() for piece in assignment.partition("="))
        if not equals:
            raise UserError(f"setting '{assignment}' has no value. Type key=value, for example local.lr=0.1.")
        put(values, key, None if text == "none" else _value_of(text))


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Write one value into nested values; None puts the default back."""
    *sections, name = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"there is no key '{key}', because '{section}' is a value. Type {section}=VALUE.")
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def look_up(values: Any, key: str) -> Any:
    """Return the value of a key in nested values; None if it is not there."""
    for name in key.split("."):
        values = values.get(name)
    return values


def _value_of(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:  # also of whole numbers with thousands of digits
        return text
    value = parsed.pop("value")
    return value if not parsed and isinstance(value, bool | int | float | str | list) else text
