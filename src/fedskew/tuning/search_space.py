"""What a sweep tries: grids and ranges of method parameters and settings -> trials, as many for each method."""

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
from fedskew import seeds
from fedskew.config import RunConfig
from fedskew.errors import UserError, nearest
from fedskew.face import FLAGS
from fedskew.methods import registry
from fedskew.methods.registry import Entry

#: How to learn may be varied; what is learned, and how it is scored, may not.
TUNABLE = ("local.", "model.", "rounds", "per_round", "data.augment", "engine.precision")

Pieces = list[tuple[Entry, dict[str, Any]]]


@dataclass(frozen=True)
class Range:
    """Everything between two numbers, drawn evenly or evenly in the logarithm."""

    low: float
    high: float
    log: bool

    def draw(self, rng: np.random.Generator, whole: bool) -> float:
        """One number, to four digits so that it can be written down."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        drawn = rng.uniform(low, high)
        drawn = math.exp(drawn) if self.log else drawn
        return round(drawn) if whole else min(max(float(f"{drawn:.4g}"), self.low), self.high)


@dataclass(frozen=True)
class Axis:
    """One thing that is varied: a parameter of the method's piece number `piece`, or the setting `name`."""

    name: str
    piece: int | None
    values: Sequence[Any] | Range
    whole: bool

    @property
    def size(self) -> float:
        if not isinstance(self.values, Range):
            return len(self.values)
        return int(self.values.high) - int(self.values.low) + 1 if self.whole else math.inf

    def draw(self, rng: np.random.Generator) -> Any:
        if isinstance(self.values, Range):
            return self.values.draw(rng, self.whole)
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True)
class Trial:
    """One choice of everything that is varied, and the configuration that it makes.

    Its name is the method with all parameters given, and the settings that were varied.
    """

    name: str
    values: dict[str, Any]
    config: RunConfig


def trials(
    methods: Sequence[str], grid: Sequence[str], base: RunConfig, random: int | None = None
) -> dict[str, list[Trial]]:
    """The trials of each method: its whole grid, or `random` draws from it. All have equally many."""
    built = [registry.build(each).expression for each in methods]
    for each, expression in zip(methods, built, strict=True):
        if built.count(expression) > 1:
            raise UserError(f"method '{each}' is to be tuned twice; name it once")
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
                f"methods '{tried_by[trial.name]}' and '{each}' would both try {trial.name}; name one of them"
            )
    sizes = {each: len(some) for each, some in found.items()}
    few, many = min(sizes, key=lambda each: sizes[each]), max(sizes, key=lambda each: sizes[each])
    if sizes[few] != sizes[many]:
        raise UserError(
            f"method '{few}' would have {_counted(sizes[few])} and '{many}' {sizes[many]}; give all the same number, "
            f"for example with --grid {registry.parse(few)[0][0].name}.lr=... or --random"
        )
    return found


def _choices(method: str, axes: Sequence[Axis], base: RunConfig, random: int | None) -> Iterator[tuple[Any, ...]]:
    size = math.prod(axis.size for axis in axes)
    if random is None:
        for axis in axes:
            if isinstance(axis.values, Range):
                low, high = f"{axis.values.low:g}", f"{axis.values.high:g}"
                raise UserError(f"grid '{axis.name}={low}..{high}' is a range, which is drawn from: say --random N")
        yield from itertools.product(*(axis.values for axis in axes if not isinstance(axis.values, Range)))
        return
    if not 1 <= random <= 10_000:
        raise UserError(f"--random is {random}; it should be a number of trials from 1 to 10,000")
    rng, drawn = seeds.numpy_generator(base.seed, "sweep", method), dict[tuple[Any, ...], None]()
    in_vain = 0
    while len(drawn) < random <= size:
        choice = tuple(axis.draw(rng) for axis in axes)
        in_vain = in_vain + 1 if choice in drawn else 0
        drawn[choice] = None
        if in_vain == 1000 and math.isinf(size):  # few numbers of four digits lie in a narrow range
            size = len(drawn)
    if random > size:
        raise UserError(f"--random is {random}, but the grid of method '{method}' has {_counted(size)}; ask for fewer")
    yield from drawn


def _counted(trials: float) -> str:
    return "1 trial" if trials == 1 else f"{trials} trials"


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
        *sections, name = axis.name.split(".")
        table = settings
        for section in sections:
            table = table[section]
        table[name] = chosen[axis.name] = value
        varied.append(f"{axis.name}={value}")
    settings["method"] = registry.written(given)
    registry.build(settings["method"])  # a value that a method refuses is found before the first run
    return Trial(", ".join([settings["method"], *varied]), chosen, configuration.from_dict(settings, "sweep"))


# ---- reading ``fedlmd.beta=0.5,1,2`` and ``mu=1e-4..1:log`` ---------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    text: str
    name: str
    values: tuple[Any, ...] | Range


def _parse(text: str) -> _Grid:
    name, _, values = (piece.strip() for piece in text.partition("="))
    if not name or not values.strip(", "):
        raise UserError(f"grid '{text}' has no values; write name=value,value or name=low..high, for example mu=0.1,1")
    if match := re.fullmatch(r"([^,]+?)\.\.([^,:]+)(?::(\w+))?", values):
        return _Grid(text, name, _range(text, *match.groups()))
    found = tuple(_value(each.strip()) for each in values.split(","))
    if "" in found:
        raise UserError(f"grid '{text}' has an empty place between its commas; leave it out")
    for number, each in enumerate(found):
        if each in found[:number]:
            raise UserError(f"grid '{text}' names {each} twice; once is enough")
    return _Grid(text, name, found)


def _range(text: str, low: str, high: str, scale: str | None) -> Range:
    ends = [_value(low), _value(high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends) or ends[0] >= ends[1]:
        raise UserError(f"grid '{text}' should go from a number to a larger one, for example mu=0.1..1")
    if any(isinstance(end, int) and abs(end) >= 2**63 for end in ends):
        raise UserError(f"grid '{text}' has an end of more than 63 bits; bring the ends nearer")
    if not ends[1] - ends[0] < 2**63:
        raise UserError(f"grid '{text}' is wider than 63 bits; bring the ends nearer")
    if scale not in (None, "log"):
        raise UserError(f"grid '{text}' ends in ':{scale}'; only ':log' may stand there")
    if scale and ends[0] <= 0:
        raise UserError(
            f"grid '{text}' begins at {ends[0]}, which has no logarithm; begin above 0, or leave out ':log'"
        )
    return Range(ends[0], ends[1], scale is not None)


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
    """The axes of each method. A plain name is a parameter if one of the methods has it, and else a setting."""
    if not grids:
        raise UserError("there is nothing to vary; say --grid name=value,value, for example --grid lr=0.01,0.1")
    axes: dict[str, list[Axis]] = {method: [] for method in pieces}
    for grid in grids:
        owner, _, rest = grid.name.partition(".")
        qualified = bool(rest) and owner in registry.known(aliases=True)
        name = rest if qualified else grid.name
        meant = [each for each in pieces if not qualified or _owned(pieces[each], owner)]
        if not meant:
            tuned = ", ".join(pieces)
            raise UserError(f"grid '{grid.text}' is for method '{owner}', which is not tuned here; tuned are {tuned}")
        having = {each: _places(pieces[each], name, owner if qualified else None) for each in meant}
        if not any(having.values()):
            name = _setting(grid, name, [entry for each in meant for entry, _ in pieces[each]])
        for method, places in having.items():
            if len(places) > 1:
                said = " or ".join(f"{pieces[method][place][0].name}.{name}" for place in places)
                raise UserError(f"grid '{grid.text}' could mean several parameters of '{method}'; say {said}")
            if any(having.values()) and not places:
                continue
            axis = _axis(grid, name, pieces[method], places[0] if places else None, base)
            if any((axis.name, axis.piece) == (other.name, other.piece) for other in axes[method]):
                raise UserError(f"grid '{grid.text}' varies '{name}' of method '{method}' a second time; say it once")
            axes[method].append(axis)
    return axes


def _axis(grid: _Grid, name: str, pieces: Pieces, piece: int | None, base: RunConfig) -> Axis:
    values: Sequence[Any] | Range = grid.values
    ends = (values.low, values.high) if isinstance(values, Range) else ()
    integers = bool(ends) and all(isinstance(end, int) for end in ends)
    whole = integers and (_is_whole(base, name) if piece is None else _takes_whole(pieces[piece][0], name))
    if isinstance(values, Range) and whole and not values.log:
        values = range(int(values.low), int(values.high) + 1)
    return Axis(name, piece, values, whole)


def _is_whole(base: RunConfig, setting: str) -> bool:
    now = dict(_leaves(base.model_dump())).get(setting)
    return now is None or type(now) is int  # without a value there are per_round, and arguments of networks


def _takes_whole(entry: Entry, parameter: str) -> bool:
    hint = get_type_hints(inspect.unwrap(entry.build)).get(parameter, type(entry.defaults[parameter]))
    kinds = get_args(hint) or (hint,)
    return int in kinds and float not in kinds


def _places(pieces: Pieces, name: str, owner: str | None) -> list[int]:
    """Which pieces of a method have the parameter."""
    return [n for n, (e, _) in enumerate(pieces) if name in e.defaults and (owner is None or owner in _called(e))]


def _owned(pieces: Pieces, owner: str) -> bool:
    return any(owner in _called(entry) for entry, _ in pieces)


def _called(entry: Entry) -> set[str]:
    name = entry.alias_of or entry.name
    return {each for each in registry.known(aliases=True) if name in (each, registry.entry(each).alias_of)}


def _setting(grid: _Grid, name: str, entries: Sequence[Entry]) -> str:
    """The key of the configuration that a name stands for."""
    key = FLAGS.get(name, name)
    if key in _keys() or key.startswith("model.args."):
        if not key.startswith(TUNABLE):
            raise UserError(
                f"grid '{grid.text}' would vary the task or its scoring; '{name}' is the same for all trials"
            )
        return key
    parameters = {each for entry in entries for each in entry.defaults}
    short = {flag for flag, key in FLAGS.items() if key.startswith(TUNABLE)}
    known = nearest(name, parameters | short | {each for each in _keys() if each.startswith(TUNABLE)})
    among = ", ".join(dict.fromkeys(entry.name for entry in entries))
    raise UserError(f"grid '{grid.text}': '{name}' is neither a parameter of {among} nor a setting{known}")


def _keys() -> set[str]:
    return {name for name, _ in _leaves(RunConfig().model_dump())}


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
