"""Trials of a sweep, from grids and ranges of method parameters and settings: equally many for each method."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import numpy as np

from fedskew import config as configuration
from fedskew.config import keys
from fedskew.config.overrides import look_up, put
from fedskew.config.schema import RunConfig
from fedskew.core import seeds
from fedskew.core.errors import UserError, did_you_mean
from fedskew.core.wording import number_of
from fedskew.methods import registry
from fedskew.methods.registry import RegisteredMethod

Pieces = list[tuple[RegisteredMethod, dict[str, Any]]]


@dataclass(frozen=True)
class SearchRange:
    """All numbers from `low` to `high`, drawn uniformly, or uniformly in the logarithm."""

    low: float
    high: float
    log: bool

    def draw(self, rng: np.random.Generator, whole: bool) -> float:
        """Draw one number, rounded to four digits so that it can be written down."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        drawn = rng.uniform(low, high)
        drawn = math.exp(drawn) if self.log else drawn
        return round(drawn) if whole else min(max(float(f"{drawn:.4g}"), self.low), self.high)


@dataclass(frozen=True)
class Axis:
    """What one grid varies: a parameter of the method's piece number `piece`, or the setting `name`."""

    name: str
    piece: int | None
    values: Sequence[Any] | SearchRange
    whole: bool

    @property
    def size(self) -> float:
        if not isinstance(self.values, SearchRange):
            return len(self.values)
        return int(self.values.high) - int(self.values.low) + 1 if self.whole else math.inf

    def draw(self, rng: np.random.Generator) -> Any:
        if isinstance(self.values, SearchRange):
            return self.values.draw(rng, self.whole)
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True)
class Trial:
    """One choice of all values, and the configuration with them.

    Its name is the method with all parameters given, and the settings that were varied.
    """

    name: str
    values: dict[str, Any]
    config: RunConfig


def trials(
    methods: Sequence[str], grid: Sequence[str], base: RunConfig, random: int | None = None
) -> dict[str, list[Trial]]:
    """Return the trials of each method: its whole grid, or `random` draws from it. All have equally many."""
    built = [registry.build(each).expression for each in methods]
    for each, expression in zip(methods, built, strict=True):
        if built.count(expression) > 1:
            raise UserError(f"method '{each}' would be tuned twice. Type it once.")
    pieces = {each: registry.parse(each) for each in methods}
    axes = _axes(pieces, [_parse(text) for text in grid], base)
    found = {
        each: [_trial(pieces[each], axes[each], values, base) for values in _choices(each, axes[each], base, random)]
        for each in methods
    }
    tried_by: dict[str, str] = {}
    for each, trial in ((each, trial) for each, some in found.items() for trial in some):
        if tried_by.setdefault(trial.name, each) != each:
            raise UserError(
                f"methods '{tried_by[trial.name]}' and '{each}' would both try {trial.name}. Remove one of them."
            )
    sizes = {each: len(some) for each, some in found.items()}
    few, many = min(sizes, key=lambda each: sizes[each]), max(sizes, key=lambda each: sizes[each])
    if sizes[few] != sizes[many]:
        raise UserError(
            f"method '{few}' would have {number_of(sizes[few], 'trial')} and '{many}' {sizes[many]}. "
            f"Give all the same number, for example with --grid {registry.parse(few)[0][0].name}.lr=... or --random."
        )
    return found


def _choices(method: str, axes: Sequence[Axis], base: RunConfig, random: int | None) -> Iterator[tuple[Any, ...]]:
    size = math.prod(axis.size for axis in axes)
    if random is None:
        for axis in axes:
            if isinstance(axis.values, SearchRange):
                low, high = f"{axis.values.low:g}", f"{axis.values.high:g}"
                raise UserError(
                    f"grid '{axis.name}={low}..{high}' is a range to draw from. Type, for example, --random 10."
                )
        yield from itertools.product(*(axis.values for axis in axes if not isinstance(axis.values, SearchRange)))
        return
    if not 1 <= random <= 10_000:
        raise UserError(f"--random is {random}. Give 1 to 10,000 trials.")
    rng, drawn = seeds.numpy_generator(base.seed, "sweep", method), dict[tuple[Any, ...], None]()
    in_vain = 0
    while len(drawn) < random <= size:
        choice = tuple(axis.draw(rng) for axis in axes)
        in_vain = in_vain + 1 if choice in drawn else 0
        drawn[choice] = None
        if in_vain == 1000 and math.isinf(size):  # few numbers of four digits lie in a narrow range
            size = len(drawn)
    if random > size:
        raise UserError(
            f"--random is {random}, but the grid of method '{method}' has {number_of(size, 'trial')}. "
            "Type a smaller number."
        )
    yield from drawn


def _trial(pieces: Pieces, axes: Sequence[Axis], values: Sequence[Any], base: RunConfig) -> Trial:
    given = [(entry, dict(parameters)) for entry, parameters in pieces]
    settings = base.model_dump()
    chosen, varied = {}, []
    for axis, value in zip(axes, values, strict=True):
        if axis.piece is not None:
            given[axis.piece][1][axis.name] = value
            owner = f"{given[axis.piece][0].name}." if len(given) > 1 else ""
            chosen[owner + axis.name] = value
            continue
        put(settings, axis.name, value)
        chosen[axis.name] = value
        varied.append(f"{axis.name}={value}")
    settings["method"] = registry.written(given)
    registry.build(settings["method"])  # a value that a method refuses is found before the first run
    return Trial(", ".join([settings["method"], *varied]), chosen, configuration.from_dict(settings, "sweep"))


# ---- reading ``fedlmd.beta=0.5,1,2`` and ``mu=1e-4..1:log`` ---------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    text: str
    name: str
    values: tuple[Any, ...] | SearchRange


def _parse(text: str) -> _Grid:
    name, _, values = (piece.strip() for piece in text.partition("="))
    if not name or not values.strip(", "):
        raise UserError(f"grid '{text}' has no values. Type name=value,value or name=low..high, for example mu=0.1,1.")
    if match := re.fullmatch(r"([^,]+?)\.\.([^,:]+)(?::(\w+))?", values):
        return _Grid(text, name, _range(text, *match.groups()))
    found = tuple(_value(each.strip()) for each in values.split(","))
    if "" in found:
        raise UserError(f"grid '{text}' has an empty value. Remove the extra comma.")
    for number, each in enumerate(found):
        if each in found[:number]:
            raise UserError(f"grid '{text}' has {each} twice. Type it once.")
    return _Grid(text, name, found)


def _range(text: str, low: str, high: str, scale: str | None) -> SearchRange:
    ends = [_value(low), _value(high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends) or ends[0] >= ends[1]:
        raise UserError(f"grid '{text}' is not a range from a number to a larger one. Type, for example, mu=0.1..1.")
    if any(isinstance(end, int) and abs(end) >= 2**63 for end in ends):
        raise UserError(f"grid '{text}' has an end of more than 63 bits. Type a smaller number.")
    if not ends[1] - ends[0] < 2**63:
        raise UserError(f"grid '{text}' is wider than 63 bits. Type a smaller range.")
    if scale not in (None, "log"):
        raise UserError(f"grid '{text}' ends in ':{scale}'. Type :log, or nothing.")
    if scale and ends[0] <= 0:
        raise UserError(f"grid '{text}' starts at {ends[0]}, which has no logarithm. Start above 0, or remove :log.")
    return SearchRange(ends[0], ends[1], scale is not None)


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
            return number if math.isfinite(number) else text
        except ValueError:
            continue
        except OverflowError:  # more digits than any number has use for
            return text
    return text


# ---- what the names mean --------------------------------------------------------------------------------------------


def _axes(pieces: Mapping[str, Pieces], grids: Sequence[_Grid], base: RunConfig) -> dict[str, list[Axis]]:
    """Return the axes of each method. A plain name is a parameter if one of the methods has it, or else a setting."""
    if not grids:
        raise UserError("there is nothing to vary. Add --grid name=value,value, for example --grid lr=0.01,0.1.")
    axes: dict[str, list[Axis]] = {method: [] for method in pieces}
    for grid in grids:
        owner, _, rest = grid.name.partition(".")
        # the section local has a namesake among the methods
        qualified = bool(rest) and owner in registry.known(aliases=True) and owner not in RunConfig.model_fields
        name = rest if qualified else grid.name
        meant = [each for each in pieces if not qualified or _owned(pieces[each], owner)]
        if not meant:
            tuned = ", ".join(pieces)
            raise UserError(
                f"grid '{grid.text}' is for method '{owner}', which is not tuned here. Choose one of {tuned}."
            )
        having = {each: _places(pieces[each], name, owner if qualified else None) for each in meant}
        if not any(having.values()):
            name = _setting(grid, name, [entry for each in meant for entry, _ in pieces[each]])
        for method, places in having.items():
            if len(places) > 1:
                said = " or ".join(f"{pieces[method][place][0].name}.{name}" for place in places)
                raise UserError(f"grid '{grid.text}' could mean several parameters of '{method}'. Type {said}.")
            if any(having.values()) and not places:
                continue
            axis = _axis(grid, name, pieces[method], places[0] if places else None, base)
            if any((axis.name, axis.piece) == (other.name, other.piece) for other in axes[method]):
                raise UserError(f"grid '{grid.text}' varies '{name}' of method '{method}' a second time. Type it once.")
            axes[method].append(axis)
    return axes


def _axis(grid: _Grid, name: str, pieces: Pieces, piece: int | None, base: RunConfig) -> Axis:
    values: Sequence[Any] | SearchRange = grid.values
    ends = (values.low, values.high) if isinstance(values, SearchRange) else ()
    integers = bool(ends) and all(isinstance(end, int) for end in ends)
    whole = integers and (_is_whole(base, name) if piece is None else _takes_whole(pieces[piece][0], name))
    if isinstance(values, SearchRange) and whole and not values.log:
        values = range(int(values.low), int(values.high) + 1)
    return Axis(name, piece, values, whole)


def _is_whole(base: RunConfig, setting: str) -> bool:
    now = look_up(base.model_dump(), setting)
    return now is None or type(now) is int  # without a value there are clients_per_round, and arguments of networks


def _takes_whole(entry: RegisteredMethod, parameter: str) -> bool:
    hint = get_type_hints(inspect.unwrap(entry.build)).get(parameter, type(entry.defaults[parameter]))
    kinds = get_args(hint) or (hint,)
    return int in kinds and float not in kinds


def _places(pieces: Pieces, name: str, owner: str | None) -> list[int]:
    """Return the numbers of the pieces of a method that have the parameter."""
    return [n for n, (e, _) in enumerate(pieces) if name in e.defaults and (owner is None or owner in _called(e))]


def _owned(pieces: Pieces, owner: str) -> bool:
    return any(owner in _called(entry) for entry, _ in pieces)


def _called(entry: RegisteredMethod) -> set[str]:
    name = entry.alias_of or entry.name
    return {each for each in registry.known(aliases=True) if name in (each, registry.entry(each).alias_of)}


def _setting(grid: _Grid, name: str, entries: Sequence[RegisteredMethod]) -> str:
    """Return the key of the configuration that a name stands for."""
    key = keys.KEYWORDS[name].name if name in keys.KEYWORDS else name
    if key in keys.KEYS or key.startswith("model.args."):
        if not keys.of(key).tunable:
            raise UserError(
                f"grid '{grid.text}' would vary the data or their scoring. Remove it: all trials must have the "
                f"same '{name}'."
            )
        return key
    parameters = {each for entry in entries for each in entry.defaults}
    tunable = [found for found in keys.KEYS.values() if found.tunable]
    fix = did_you_mean(name, parameters | {each for found in tunable for each in (found.name, found.keyword) if each})
    among = ", ".join(dict.fromkeys(entry.name for entry in entries))
    raise UserError(f"grid '{grid.text}': '{name}' is neither a parameter of {among} nor a setting{fix}")
