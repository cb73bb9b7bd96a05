"""The run's configuration: frozen models <-> TOML, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedskew.errors import UserError, nearest
from fedskew.sections import MOST, Count, Noise, Section, Seed

Scalar = bool | int | float | str


def _scalar(value: Any) -> Scalar:
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError("should be a whole number of at most 64 bits")
    if type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError("should be a finite number, a string, true or false")


def _scalar_or_list(value: Any) -> Scalar | list[Scalar]:
    return [_scalar(item) for item in value] if isinstance(value, list) else _scalar(value)


PartitionName = Literal[
    "iid",
    "sharding",
    "dirichlet",
    "dirichlet_client",
    "bernoulli_dirichlet",
    "quantity",
    "labels",
    "natural",
    "explicit",
]

#: The one field each partition needs; the others of these fields must be left out.
PARTITION_NEEDS: dict[str, str | None] = {
    "iid": None,
    "sharding": "s",
    "dirichlet": "alpha",
    "dirichlet_client": "alpha",
    "bernoulli_dirichlet": "alpha",
    "quantity": "s",
    "labels": "k",
    "natural": None,
    "explicit": "lists",
}
_EXAMPLES: dict[str, float | int | str] = {"alpha": 0.5, "s": 2, "k": 2, "lists": "lists.json"}


class Data(Section):
    name: str = "digits"
    dir: str | None = None
    augment: str = "none"
    options: dict[str, Annotated[Scalar, PlainValidator(_scalar)]] = Field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        """Whether there is no such folder, or no longer."""
        return self.dir is not None and not Path(self.dir).exists()


class Partition(Section):
    name: PartitionName = "dirichlet"
    clients: Count = 10
    alpha: float | None = Field(default=None, gt=0)
    s: Count | None = None
    k: Count | None = None
    min_size: int = Field(default=10, ge=0, le=MOST)
    legacy: bool = False
    paired: bool = True
    #: In quantity, the most that a holder of a class but the last may get, in even shares.
    upper: float = Field(default=2.0, gt=0)
    #: Chance that a client may hold a class, in bernoulli_dirichlet.
    p: float = Field(default=0.9, gt=0, le=1)
    seed: Seed | None = None
    lists: str | None = None

    @staticmethod
    def parse(text: str) -> dict[str, Any]:
        """The fields that ``"dirichlet:0.05"`` stands for; the parameters of other partitions are set to None."""
        name, colon, number = text.partition(":")
        if name not in PARTITION_NEEDS:
            raise UserError(f"partition '{name}' is unknown{nearest(name, PARTITION_NEEDS)}")
        needed = PARTITION_NEEDS[name]
        fields: dict[str, Any] = {"name": name, **dict.fromkeys(_EXAMPLES)}
        if colon and needed is None:
            raise UserError(f"partition '{text}' should be '{name}': it takes no parameter")
        if colon and needed is not None:
            example = _EXAMPLES[needed]
            try:
                fields[needed] = type(example)(number)
            except ValueError:
                raise UserError(
                    f"partition '{text}' should be '{name}:{needed}', for example '{name}:{example}'"
                ) from None
        return fields

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Partition:
        needed = PARTITION_NEEDS[self.name]
        for field, example in _EXAMPLES.items():
            value = getattr(self, field)
            if field == needed and value is None:
                raise UserError(
                    f"key 'partition.{field}' is not set; partition '{self.name}' needs it, for example {example!r}"
                )
            if field != needed and value is not None:
                raise UserError(
                    f"key 'partition.{field}' is {value!r}; partition '{self.name}' has no use for it, leave it out"
                )
        return self


class Model(Section):
    name: str = "auto"
    args: dict[str, Annotated[Scalar | list[Scalar], PlainValidator(_scalar_or_list)]] = Field(default_factory=dict)
    head: str | None = None
    #: A file, here or in the data folder, or a run's folder to start from; None: random weights.
    weights: str | None = None


class Local(Section):
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(default=0.01, gt=0)
    lr_decay: float = Field(default=1.0, gt=0, le=1)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-5, ge=0)
    epochs: Count = 5
    batch: Count = 50
    drop_last: bool = False


class Evaluate(Section):
    every: Count = 1
    clients: bool = False
    target: float | None = Field(default=None, ge=0, le=1)
    batch: Count = 500
    #: Accuracy on the noisy clients' observed and true labels in every evaluated round, not at the end only.
    memorisation: bool = False
    #: Share of every client's data that is held back from training, and scored in place of the test data.
    validation: float | None = Field(default=None, gt=0, le=0.5)


class Engine(Section):
    name: Literal["pool", "inline", "wire", "ray"] = "pool"
    workers: int | None = Field(default=None, ge=1, le=10_000)
    #: Of a Ray cluster that runs already; None begins one on this machine.
    address: str | None = None
    device: str = "cpu"
    precision: Literal["float32", "bf16"] = "float32"
    #: Share of replies that get lost on purpose.
    drop: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _address_fits(self) -> Engine:
        if self.address is not None and self.name != "ray":
            raise UserError(f"key 'engine.address' is {self.address!r}; only engine 'ray' has one, leave it out")
        if self.name == "ray" and self.device != "cpu":
            raise UserError(f"key 'engine.device' is {self.device!r}; with engine 'ray' it should be 'cpu'")
        return self


class Checkpoint(Section):
    #: In rounds; 0 means never.
    every: int = Field(default=1, ge=0, le=MOST)
    #: Every so many rounds the state stays, for `fedskew verify`; 0 means that only the last two do.
    keep: int = Field(default=0, ge=0, le=MOST)

    @model_validator(mode="after")
    def _keep_fits(self) -> Checkpoint:
        if self.keep and (not self.every or self.keep % self.every):
            raise UserError(
                f"key 'checkpoint.keep' is {self.keep}; it should be a multiple of 'checkpoint.every', {self.every}"
            )
        return self


class Cohort(Section):
    replay: Literal["seeded", "fedntd"] = "seeded"


class RunConfig(Section):
    method: str = "fedavg"
    seed: Seed = 0
    rounds: int = Field(default=20, ge=0, le=MOST)
    #: None means everyone.
    per_round: Count | None = None
    data: Data = Data()
    partition: Partition = Partition(alpha=0.5)
    noise: Noise = Noise()
    model: Model = Model()
    local: Local = Local()
    evaluate: Evaluate = Evaluate()
    engine: Engine = Engine()
    checkpoint: Checkpoint = Checkpoint()
    cohort: Cohort = Cohort()

    @model_validator(mode="after")
    def _noise_fits(self) -> RunConfig:
        rates, clients = self.noise.rates, self.partition.clients
        if rates is not None and len(rates) != clients:
            raise UserError(
                f"key 'noise.rates' has {len(rates)} numbers; it should have one for each of {clients} clients"
            )
        if self.evaluate.memorisation and self.noise.kind == "none":
            raise UserError(
                "key 'evaluate.memorisation' is true; without noise there is nothing to measure, leave it out"
            )
        return self

    @model_validator(mode="after")
    def _cohort_fits(self) -> RunConfig:
        clients = self.partition.clients
        if self.per_round is not None and self.per_round > clients:
            raise UserError(
                f"key 'per_round' is {self.per_round}; it should be at most {clients}, the value of 'partition.clients'"
            )
        return self


def from_dict(values: Mapping[str, Any], source: str = "config") -> RunConfig:
    """Check `values` and fill in the defaults; `source` is how an error calls where they came from."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    raise UserError(f"{source} {_complaint(first)}")


def load(path: str | Path) -> RunConfig:
    """Read a TOML file."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"config file '{path}' is not text in UTF-8") from None
    except ValueError as error:  # also of whole numbers with thousands of digits
        raise UserError(f"config file '{path}' is not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"config file '{path}' cannot be read: {error.strerror}") from None
    return from_dict(values, f"config file '{path}'")


def dumps(config: RunConfig) -> str:
    """The whole configuration, defaults included, as TOML that reads back to an equal object."""
    return "\n".join(_table((), config.model_dump(exclude_none=True))) + "\n"


def flat(config: RunConfig) -> dict[str, Any]:
    """Every setting by its key, such as ``local.lr``."""
    found: dict[str, Any] = {}
    for name, value in config.model_dump().items():
        found |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return found


def override(config: RunConfig, assignments: Iterable[str]) -> RunConfig:
    """Apply ``"local.lr=0.1"`` and the like; ``key=none`` puts the default back."""
    values = config.model_dump()
    assign(values, assignments)
    return from_dict(values)


def assign(values: dict[str, Any], assignments: Iterable[str]) -> None:
    """Write ``"local.lr=0.1"`` and the like into nested values, unchecked."""
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"override '{assignment}' should be 'key=value', for example 'local.lr=0.1'")
        *sections, name = key.strip().split(".")
        table = values
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise UserError(f"config has no key '{key.strip()}'; '{section}' is a value, not a section")
        if text.strip() == "none":
            table.pop(name, None)
        else:
            table[name] = _value_of(text.strip())


def _value_of(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:  # also of whole numbers with thousands of digits
        return text
    value = parsed.pop("value")
    return value if not parsed and isinstance(value, Scalar | list) else text


def _table(path: tuple[str, ...], values: dict[str, Any]) -> Iterator[str]:
    if path:
        yield f"\n[{'.'.join(map(_toml_key, path))}]"
    for name, value in values.items():
        if not isinstance(value, dict):
            yield f"{_toml_key(name)} = {_toml_value(value)}"
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _table((*path, name), value)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_value(name)


def _toml_value(value: Scalar | list[Scalar]) -> str:
    # JSON's scalars and lists are TOML too, but for the one control character that JSON leaves bare.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _complaint(error: ErrorDetails) -> str:
    """What pydantic found, in our words: the place, the value, and what would be right."""
    kind, loc, value = error["type"], error["loc"], error["input"]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return str(cause)
    place = ".".join(map(str, loc))
    if kind == "extra_forbidden":
        if len(loc) == 1 and (homes := _sections_with(place)):
            return f"has no key '{place}'; did you mean {' or '.join(homes)}?"
        return f"has no key '{place}'{nearest(str(loc[-1]), _section_of(loc).model_fields)}"
    if kind == "literal_error":
        allowed = map(str, get_args(_section_of(loc).model_fields[str(loc[-1])].annotation))
        return f"key '{place}' is {value!r}{nearest(str(value), allowed)}"
    if kind in ("model_type", "dict_type"):
        right = "should be a section of keys and values"
    else:
        right = str(cause) if cause else error["msg"].removeprefix("Input ")
    shown = repr(value)
    return f"key '{place}' is {shown if len(shown) <= 100 else f'{shown[:40]}...'}; it {right}"


def _sections_with(name: str) -> list[str]:
    sections = {key: field.annotation for key, field in RunConfig.model_fields.items()}
    return [
        f"'{key}.{name}'"
        for key, section in sections.items()
        if isinstance(section, type) and issubclass(section, BaseModel) and name in section.model_fields
    ]


def _section_of(loc: tuple[str | int, ...]) -> type[BaseModel]:
    section: Any = RunConfig
    for name in loc[:-1]:
        section = section.model_fields[name].annotation
    return section
