"""Check options that a user passes by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from fedskew.core.errors import UserError, did_you_mean


def check_names(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    """Refuse options that are no keyword-only parameters of `function`, and require those without a default."""
    wanted = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}
    for name in options:
        if name not in wanted:
            raise UserError(f"{where} has no option '{name}'{did_you_mean(name, wanted) if wanted else '. Remove it.'}")
    for name, parameter in wanted.items():
        if parameter.default is parameter.empty and name not in options:
            raise UserError(f"{where} needs the option '{name}'. Set it to a value.")


def check_types(function: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    """Refuse values that are no bool or int where the default is one."""
    for name, value in options.items():
        default = inspect.signature(function).parameters[name].default
        if isinstance(default, bool) and not isinstance(value, bool):
            raise UserError(f"{where}: {name} is {value!r}. Give true or false.")
        if type(default) is int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise UserError(f"{where}: {name} is {value!r}. Give an integer.")


def integer(value: Any, name: str, where: str, least: int = 1) -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UserError(f"{where}: {name} is {value!r}. Give an integer of at least {least}.")
    return int(value)


def positive(value: Any, name: str, where: str) -> float:
    """Return `value` as a finite float above zero."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 < number < math.inf:
        raise UserError(f"{where}: {name} is {value!r}. Give a number above 0.")
    return number
