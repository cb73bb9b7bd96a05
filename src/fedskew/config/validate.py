"""Checked configurations out of plain values; every mistake gives an error that says what to type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from fedskew.config import keys
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError, did_you_mean, similar

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def from_dict(values: Mapping[str, Any], source: str = "") -> RunConfig:
    """Check `values` and fill in the defaults; an error names the `source`, for example a file."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    raise UserError(f"{source}: {_complaint(first)}" if source else _complaint(first))


#: pydantic's words, and ours
_WORDS = {
    "Input should": "must",
    "should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
}


def _complaint(error: ErrorDetails) -> str:
    """Say what pydantic found: the key, the value, and what to type."""
    kind, loc, value = error["type"], error["loc"], error["input"]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return str(cause)
    place = ".".join(map(str, loc))
    if kind == "extra_forbidden":
        return unknown_key(place, value)
    key, example = keys.of(place), keys.of(place).default
    right = str(cause) if cause else error["msg"]
    if kind == "literal_error":
        allowed = get_args(key.annotation)
        right = f"must be {', '.join(map(str, allowed[:-1]))} or {allowed[-1]}"
        example = next(iter(similar(str(value), map(str, allowed))), example)
    elif kind in ("model_type", "dict_type"):
        right = f"must be a section of keys and values. Type {_inside(place, value)}"
    for word, ours in _WORDS.items():
        right = right.replace(word, ours)
    example = error.get("ctx", {}).get("le") if example is None else example
    shown = repr(value) if len(repr(value)) <= 100 else f"{repr(value)[:40]}..."
    fix = f" Type, for example, {typed(place, example)}." if place in keys.KEYS and example not in (None, {}) else ""
    return f"{place} is {shown}, but {right}.{fix}"


def _inside(section: str, value: Any) -> str:
    """Return what to type in place of ``partition=iid``: a flag for the section, its name, or any key in it."""
    if (flag := keys.of(section).keyword) and isinstance(value, str):
        return f"--{flag} {value}"
    return typed(f"{section}.name", value) if f"{section}.name" in keys.KEYS else f"{section}.KEY=VALUE"


def unknown_key(name: str, value: Any) -> str:
    """Say that there is no such key, and how to type the right one."""
    section = name.rpartition(".")[0]
    sections = {key.rpartition(".")[0] for key in keys.KEYS} - {""}
    if isinstance(value, dict) or (section and section not in sections):
        return f"there is no section '{section or name}'{did_you_mean(section or name, sections)}"
    if found := keys.meant(name):
        return f"there is no key '{name}'. Type {' or '.join(typed(key.name, fitting(key, value)) for key in found)}."
    inside = ", ".join(key for key in keys.KEYS if section and key.startswith(f"{section}."))
    listed = f"The keys of '{section}' are {inside}." if section else ""
    return f"there is no key '{name}'. {listed or 'See docs/reference/configuration.md for all keys.'}"


def fitting(key: keys.Key, value: Any) -> Any:
    """Return the value if it is of the key's type, else what stands for one that is."""
    if key.type is bool:
        return value if isinstance(value, bool) else True
    if key.type is str:
        return value if isinstance(value, str) else "VALUE"
    return "VALUE" if isinstance(value, bool | str) or (key.type is int and isinstance(value, float)) else value


def typed(name: str, value: Any) -> str:
    """Return how to type a key with a value: ``local.lr=0.1 (or --lr 0.1)``."""
    key = keys.KEYS[name]
    shown = str(value).lower() if isinstance(value, bool) else value
    flag = "" if key.keyword is None else f" (or {key.flag}{'' if key.type is bool else f' {shown}'})"
    return f"{name}={shown}{flag}"
