"""Checks of what a user passes by name, so that a wrong word or number ends in one sentence."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from fedskew.errors import UserError, nearest


def check_names(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    """Refuse options that `function` does not take by keyword only, and miss none that it needs."""
    wanted = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for name in options:
        if name not in wanted:
            raise UserError(f"{where} has no option '{name}'{nearest(name, wanted) if wanted else '; it takes none'}")
    for name, parameter in wanted.items():
        if parameter.default is parameter.empty and name not in options:
            raise UserError(f"{where} needs the option '{name}'")


def check_kinds(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    """Refuse other things than true or false, or a whole number, for options with such defaults."""
    for name, value in options.items():
        default = inspect.signature(function).parameters[name].default
        if isinstance(default, bool) and not isinstance(value, bool):
            raise UserError(f"{where}: {name} is {value!r} and must be true or false")
        if type(default) is int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UserError(f"{where}: {name} is {value!r} and must be a whole number")


def whole(value: Any, name: str, where: str, least: int = 1) -> int:
    """`value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UserError(f"{where}: {name} is {value!r} and must be a whole number of at least {least}")
    return int(value)


def positive(value: Any, name: str, where: str) -> float:
    """`value` as a finite float above zero."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 < number < math.inf:
        raise UserError(f"{where}: {name} is {value!r} and must be a number above 0")
    return number
