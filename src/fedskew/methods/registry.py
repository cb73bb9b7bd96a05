"""Find methods by name, and read expressions: ``fedavg``, ``fedprox(mu=0.5)``, ``fedlmd+prox+avgm``."""

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

from fedskew.core.errors import UserError, did_you_mean
from fedskew.parts import compose
from fedskew.parts.card import Card
from fedskew.parts.stages import Method

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
BelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Chance = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class RegisteredMethod:
    """A registered method: its name, the function that composes it, and the defaults of its parameters."""

    name: str
    build: Callable[..., Method]
    defaults: dict[str, Any]
    alias_of: str | None = None
    baseline: bool = False


_entries: dict[str, RegisteredMethod] = {}


def register(
    name: str, *aliases: str, like: str | None = None, baseline: bool = False
) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Register a function that composes a method, by its name and by aliases for ``a+b``. Its docstring is the card.

    What the docstring leaves out is as in the card of the method `like`. A `baseline` shows what others are worth.
    """

    def known(build: Callable[..., Method]) -> Callable[..., Method]:
        defaults = {p.name: p.default for p in inspect.signature(build).parameters.values()}
        base = None if like is None else _entries[like].build().card
        checked, card = validate_call(build), Card.read(name, build.__doc__, base)

        @functools.wraps(checked)
        def compose_with_card(*given: Any, **named: Any) -> Method:
            return replace(checked(*given, **named), card=card)

        for each in (name, *aliases):
            _entries[each] = RegisteredMethod(
                each, compose_with_card, defaults, None if each == name else name, baseline
            )
        return compose_with_card

    return known


@functools.cache
def _read_all() -> None:
    package = importlib.import_module("fedskew.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"fedskew.methods.{module.name}")


def known(aliases: bool = False) -> list[str]:
    """Return the registered names, sorted."""
    _read_all()
    return sorted(name for name, entry in _entries.items() if aliases or entry.alias_of is None)


def baselines() -> list[str]:
    """Return the methods that show what federated training is worth, sorted."""
    return [name for name in known() if _entries[name].baseline]


def entry(name: str) -> RegisteredMethod:
    """Return the registered method of this name or alias, in any case."""
    _read_all()
    found = _entries.get(name) or {each.lower(): _entries[each] for each in _entries}.get(name.lower())
    if found is None:
        raise UserError(f"there is no method '{name}'{did_you_mean(name, _entries)}")
    return found


def build(expression: str) -> Method:
    """Build the method that an expression names."""
    return functools.reduce(compose.add, (_build_one(found, given) for found, given in parse(expression)))


def parse(expression: str) -> list[tuple[RegisteredMethod, dict[str, Any]]]:
    """Return the methods in an expression, each with its parameters; their values are not checked."""
    return [_parse_one(piece) for piece in _pieces(expression)]


def canonical(expression: str) -> str:
    """Return the expression with its names as they are registered: FedAvg is fedavg."""
    known = ((piece, re.match(r"[\w-]+", piece)) for piece in _pieces(expression))
    return "+".join(entry(name[0]).name + piece[name.end() :] if name else piece for piece, name in known)


def written(pieces: Iterable[tuple[RegisteredMethod, Mapping[str, Any]]]) -> str:
    """Return the expression that `parse` reads back to these pieces."""
    calls = [(found.name, ", ".join(f"{k}={v!r}" for k, v in given.items())) for found, given in pieces]
    return "+".join(f"{name}({arguments})" if arguments else name for name, arguments in calls)


def _pieces(expression: str) -> list[str]:
    """Split at the plus signs outside of brackets."""
    pieces, depth = [""], 0
    for sign in expression:
        depth += (sign == "(") - (sign == ")")
        if sign == "+" and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += sign
    return [piece.strip() for piece in pieces]


def _parse_one(call: str) -> tuple[RegisteredMethod, dict[str, Any]]:
    match = re.fullmatch(r"([A-Za-z][\w-]*)\s*(?:\((.*)\))?", call)
    if match is None:
        raise UserError(f"'{call}' is not a method. Type a name such as fedavg or fedprox(mu=0.5), joined by '+'.")
    found = entry(match[1])
    given = _arguments(call, match[2] or "")
    for parameter in given:
        if parameter not in found.defaults:
            raise UserError(f"method '{found.name}' has no parameter '{parameter}'{_parameters(parameter, found)}")
    return found, given


def _build_one(found: RegisteredMethod, given: Mapping[str, Any]) -> Method:
    try:
        method = found.build(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place, right = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Input should be ")
        raise UserError(f"method '{found.name}': {place} is {first['input']!r}. Make it {right}.") from None
    changed = {k: given[k] for k in found.defaults if k in given and given[k] != found.defaults[k]}
    return replace(method, expression=written([(entry(found.alias_of or found.name), changed)]))


def _parameters(wrong: str, found: RegisteredMethod) -> str:
    return did_you_mean(wrong, found.defaults) if found.defaults else ". Remove it: the method has none."


def _arguments(call: str, text: str) -> dict[str, Any]:
    try:
        parsed = ast.parse(f"f({text})", mode="eval").body
        if not (isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name)):  # as f()() is none
            raise ValueError("more than one call")
        if parsed.args or not all(k.arg for k in parsed.keywords):
            raise ValueError("a parameter without a name")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(
            f"cannot read the parameters of '{call}'. Type them as name=value, for example mu=0.5."
        ) from None
    given: dict[str, Any] = {}
    for name, value in ((str(k.arg), k.value) for k in parsed.keywords):
        if name in given:
            raise UserError(f"'{call}' gives {name} twice. Drop one of them.")
        given[name] = _value(call, name, value)
    return given


def _value(call: str, name: str, written: ast.expr) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, TypeError):  # the latter for what cannot be a key, as in {[]: 1}
        raise UserError(
            f"'{call}': {name} is {ast.unparse(written)}, which is neither a number nor a word in quotes. Type, for "
            f"example, {name}=0.5 or {name}='code'."
        ) from None
