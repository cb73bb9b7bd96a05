"""Configurations as TOML files."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedskew.config.schema import RunConfig
from fedskew.config.validate import from_dict
from fedskew.core.errors import UserError


def load(path: str | Path) -> RunConfig:
    """Read a TOML file."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"config file '{path}' is not UTF-8 text. Save it as UTF-8.") from None
    except ValueError as error:  # also of whole numbers with thousands of digits
        raise UserError(f"config file '{path}' is not valid TOML: {error}. Correct it.") from None
    except OSError as error:
        raise UserError(f"config file '{path}' cannot be read: {error.strerror}. Name another file.") from None
    return from_dict(values, f"config file '{path}'")


def dumps(config: RunConfig) -> str:
    """Return the configuration, defaults included, as TOML that reads back to an equal object."""
    return "\n".join(_table((), config.model_dump(exclude_none=True))) + "\n"


def _table(path: tuple[str, ...], values: dict[str, Any]) -> Iterator[str]:
    if path:
        yield f"\n[{'.'.join(map(_key, path))}]"
    for name, value in values.items():
        if not isinstance(value, dict):
            yield f"{_key(name)} = {_value(value)}"
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _table((*path, name), value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    # JSON's scalars and lists are TOML too, but for the one control character that JSON leaves bare.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
