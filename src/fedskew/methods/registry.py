"""Methods by name: ``fedavg``, ``fedprox(mu=0.5)``, ``fedlmd+prox+avgm``."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, ValidationError, validate_call

from fedskew.errors import UserError, nearest
from fedskew.parts import compose
from fedskew.parts.stages import Method

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Chance = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Entry:
    """A registered method: its name, the function that composes it, and that function's parameters with defaults."""

    name: str
    build: Callable[..., Method]
    defaults: dict[str, Any]
    alias_of: str | None = None


_entries: dict[str, Entry] = {}


def register(name: str, *aliases: str) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Make a composing function known by `name` (and by aliases meant for ``a+b``)."""

    def known(build: Callable[..., Method]) -> Callable[..., Method]:
        defaults = {p.name: p.default for p in inspect.signature(build).parameters.values()}
        checked = validate_call(build)
        for each in (name, *aliases):
            _entries[each] = Entry(each, checked, defaults, None if each == name else name)
        return build

    return known


@functools.cache
def _read_all() -> None:
    package = importlib.import_module("fedskew.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fedskew.methods.{module.name}")


def known(aliases: bool = False) -> list[str]:
    """The registered names, sorted."""
    _read_all()
    return sorted(name for name, entry in _entries.items() if aliases or entry.alias_of is None)


def entry(name: str) -> Entry:
    """The registered method of this name or alias."""
    _read_all()
    if name not in _entries:
        raise UserError(f"there is no method '{name}'{nearest(name, _entries)}")
    return _entries[name]


def build(expression: str) -> Method:
    """The method that an expression names."""
    return functools.reduce(compose.add, (_build_one(found, given) for found, given in parse(expression)))


def parse(expression: str) -> list[tuple[Entry, dict[str, Any]]]:
    """The methods in an expression, each with the parameters that it gives; their values are not checked."""
    return [_parse_one(piece) for piece in _pieces(expression)]


def written(pieces: Iterable[tuple[Entry, Mapping[str, Any]]]) -> str:
    """The expression that reads back to these pieces."""
    calls = [(found.name, ", ".join(f"{k}={v!r}" for k, v in given.items())) for found, given in pieces]
    return "+".join(f"{name}({arguments})" if arguments else name for name, arguments in calls)


def _pieces(expression: str) -> list[str]:
    """Split at the plus signs that stand outside brackets."""
    pieces, depth = [""], 0
    for sign in expression:
        depth += (sign == "(") - (sign == ")")
        if sign == "+" and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += sign
    return [piece.strip() for piece in pieces]


def _parse_one(call: str) -> tuple[Entry, dict[str, Any]]:
    match = re.fullmatch(r"([A-Za-z][\w-]*)\s*(?:\((.*)\))?", call)
    if match is None:
        raise UserError(f"'{call}' is not a method; write a name such as fedavg or fedprox(mu=0.5), joined by +")
    found = entry(match[1])
    given = _arguments(call, match[2] or "")
    for parameter in given:
        if parameter not in found.defaults:
            raise UserError(f"method '{found.name}' has no parameter '{parameter}'{_parameters(parameter, found)}")
    return found, given


def _build_one(found: Entry, given: Mapping[str, Any]) -> Method:
    try:
        method = found.build(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place, right = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Input ")
        raise UserError(f"method '{found.name}': {place} is {first['input']!r}; it {right}") from None
    changed = {k: given[k] for k in found.defaults if k in given and given[k] != found.defaults[k]}
    return replace(method, expression=written([(entry(found.alias_of or found.name), changed)]))


def _parameters(wrong: str, found: Entry) -> str:
    return nearest(wrong, found.defaults) if found.defaults else "; it has none"


def _arguments(call: str, text: str) -> dict[str, Any]:
    try:
        parsed = ast.parse(f"f({text})", mode="eval").body
        if not (isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name)):  # as f()() is none
            raise ValueError("more than one call")
        if parsed.args or not all(k.arg for k in parsed.keywords):
            raise ValueError("a parameter without a name")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(
            f"cannot read the parameters of '{call}'; write them as name=value, for example mu=0.5"
        ) from None
    given: dict[str, Any] = {}
    for name, value in ((str(k.arg), k.value) for k in parsed.keywords):
        if name in given:
            raise UserError(f"'{call}' gives {name} twice; say it once")
        given[name] = _value(call, name, value)
    return given


def _value(call: str, name: str, written: ast.expr) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, TypeError):  # the latter for what cannot be a key, as in {[]: 1}
        raise UserError(
            f"'{call}': {name} is {ast.unparse(written)}, which is neither a number nor a word in quotes"
        ) from None
