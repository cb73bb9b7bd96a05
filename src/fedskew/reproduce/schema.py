"""What a file of presets may say, checked when it is read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fedskew.config.section import Section
from fedskew.core.errors import UserError

Scale = Literal["paper", "small", "smoke"]
SCALES: tuple[Scale, ...] = ("paper", "small", "smoke")
Origin = Literal["paper", "code", "assumed"]
#: a whole or partial configuration, in the shape of a run's own
Settings = dict[str, Any]

Shows = Literal[
    "accuracy",  # best accuracy, last, and the rounds to FedAvg's best
    "balanced",  # the same of balanced accuracy
    "curves",  # accuracy over the rounds
    "sweep",  # best accuracy over tasks or over the values of one key
    "prefixes",  # best accuracy among the first rounds
    "histograms",  # labels seen and labels predicted, round by round
    "classwise",  # recall of one client's model before and after its local update
    "aggregation",  # recall of the client models and of their average
    "confusion",  # of one client's model after its local update
    "drift",  # how differently client models went
    "domains",  # accuracy on each domain's test data
    "detection",  # how well indicators find noisy clients
    "warmups",  # the same over the rounds of warm-up
    "partition",  # who holds what, as a picture
    "counts",  # who holds what, as a table
    "hyper",  # the hyper-parameters
    "printed",  # nothing to compute
]
#: What needs no training.
STATIC: tuple[Shows, ...] = ("partition", "counts", "hyper", "printed")


class Base(Section):
    protocol: str
    deviations: list[str] = Field(default_factory=list)
    paper: Settings
    small: Settings
    smoke: Settings


class PresetTask(Section):
    """Data and partition; `like` names a task whose settings, methods' own included, hold where this one has none.

    `stands_for` names the paper's task that one of our own stands in for, at every scale; such a task, and those like
    it, has a `protocol` of its own.
    """

    like: str | None = None
    stands_for: str | None = None
    protocol: str | None = None
    paper: Settings = Field(default_factory=dict)
    small: Settings = Field(default_factory=dict)
    smoke: Settings = Field(default_factory=dict)
    deviations: list[str] = Field(default_factory=list)


class Hyper(Section):
    """A method with its hyper-parameters, and where each comes from.

    `at` has others for tasks whose names begin so, and for those that are like them. `rounds`, `epochs` and
    `weight_decay`, if among them, are the run's; at smaller scales they hold only if they are said there.
    `deviations` are from the paper; where they are in the schedule, printed numbers are not `comparable`. Without
    `evaluate_clients` client models are not scored even where the task asks for it.
    """

    is_: str | None = Field(default=None, alias="is")
    usual: Settings = Field(default_factory=dict)
    source: dict[str, Origin] = Field(default_factory=dict)
    ledger: list[str] = Field(default_factory=list)
    at: dict[str, Settings] = Field(default_factory=dict)
    small: Settings = Field(default_factory=dict)
    smoke: Settings = Field(default_factory=dict)
    evaluate_clients: bool = True
    comparable: bool = True
    deviations: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _every_value_has_a_source(self) -> Hyper:
        named = {name for values in (self.usual, *self.at.values()) for name in values}
        if unmatched := sorted(named ^ set(self.source)):
            raise UserError(f"hyper-parameters {unmatched} have a value or a source but not both. Give each both.")
        if unknown := sorted({*self.small, *self.smoke} - named):
            raise UserError(f"hyper-parameters {unknown} have no value at the paper's scale. Give each one.")
        return self


class Sweep(Section):
    """One key over several values: of the configuration, or ``method.NAME``.

    `same` names the method whose run is that of a value.
    """

    key: str
    same: dict[str, str] = Field(default_factory=dict)
    paper: list[Any]
    small: list[Any] | None = None
    smoke: list[Any] | None = None

    def values(self, scale: Scale) -> list[Any]:
        return getattr(self, scale) or self.paper


class Start(Section):
    """The trained model that every run of a preset begins with."""

    method: str
    task: str


class RequestedRun(Section):
    """A preset as it is written: ``{task}`` in its id stands for one preset each, ``{paper}`` for one per paper.

    `rows` are those that a table reads off its runs, with the run of each, where rows are not the runs themselves.
    `only` names the methods of a task that has not all of them.
    """

    id: str
    shows: Shows = "accuracy"
    tasks: list[str] = Field(default_factory=list)
    methods: list[str] = Field(default_factory=list)
    papers: dict[str, list[str]] = Field(default_factory=dict)
    figures: dict[str, str] = Field(default_factory=dict)
    also: list[str] = Field(default_factory=list)
    rows: dict[str, str] = Field(default_factory=dict)
    only: dict[str, list[str]] = Field(default_factory=dict)
    seeds: int = Field(default=1, ge=1)
    sweep: Sweep | None = None
    prefixes: list[int] = Field(default_factory=list)
    first_rounds: int | None = None
    start: Start | None = None
    client: int | None = None
    paper: Settings = Field(default_factory=dict)
    note: str = ""


class PresetFile(Section):
    paper: str
    base: Base
    tasks: dict[str, PresetTask]
    methods: dict[str, Hyper]
    presets: list[RequestedRun]
