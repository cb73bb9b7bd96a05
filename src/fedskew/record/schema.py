# ruff: noqa: RUF012 (pydantic copies a default)
"""What the lines of a record are made of: these models are what is written and what is read.

A field that was not measured is missing from its line and None here. Diagnostics of a method are fields as well; they
have no type. `line["loss"]`, `"loss" in line` and `line.get("loss")` work with names chosen at run time.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

from fedskew.record.evaluation import Scores
from fedskew.record.fields import ClientKey, Count, Counts, Fields, Integer, NotNull, Numbers, RoundNumber, Square

#: Rounds count from 1 since version 3.
SCHEMA = 3

# ---- header ---------------------------------------------------------------------------------------------------------


class _Named(Fields):
    name: str


class _Partition(Fields):
    name: str
    clients: Count


class _Local(Fields):
    epochs: Count
    batch_size: Count
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float


class _Engine(Fields):
    precision: str


class _Evaluate(Fields):
    target: Annotated[float, Field(ge=0, le=1)] | None = None


class _NoiseKind(Fields):
    kind: str = "none"


class _Config(Fields):
    """The keys of a configuration that reports read."""

    method: str
    seed: Integer
    rounds: Count
    clients_per_round: Count | None
    data: _Named
    partition: _Partition
    local: _Local
    engine: _Engine
    evaluate: _Evaluate = _Evaluate()
    noise: _NoiseKind = _NoiseKind()


def _readable(config: dict[str, Any]) -> dict[str, Any]:
    _Config.model_validate(config)
    return config


class RecordedModel(Fields):
    """The network; `weights_sha256` is the digest of the file that it began with."""

    name: str
    args: dict[str, Any] = {}
    parameters: Count
    weights_sha256: str | None = None


class RecordedData(Fields):
    """The data set: samples, classes, and the sites' names if they have some.

    `shape` is that of one sample; images are scaled to 0..1, and then `mean` is subtracted and divided by `std`.
    """

    name: str
    train: Count
    test: Count
    labels: list[str]
    sites: list[str] = []
    notes: list[str] = []
    shape: list[Count] = []
    mean: list[float] = []
    std: list[float] = []


class RecordedNoise(Fields):
    """The label noise: noisy clients, rates asked for and reached, and flips from class (row) to class (column)."""

    kind: str
    noisy: list[Count]
    target: list[float] = []
    realized: list[float] = []
    flips: Square = []


class HeaderLine(Fields):
    """The first line: what is run, on what data and with what."""

    kind: ClassVar[str] = "header"

    config: Annotated[dict[str, Any], AfterValidator(_readable)] = {}
    command: list[str] = []
    method: Annotated[str | None, NotNull] = None
    card: Annotated[str | None, NotNull] = None
    stages: list[str] = []
    model: Annotated[RecordedModel | None, NotNull] = None
    data: Annotated[RecordedData | None, NotNull] = None
    checksums: dict[str, str] = {}
    files: dict[str, str] = {}
    shards: Annotated[str | None, NotNull] = None
    noise: RecordedNoise | None = None
    hostile: list[Count] = []
    counts: Counts | None = None
    versions: dict[str, str | None] = {}
    hardware: dict[str, Any] = {}
    started: Annotated[str | None, NotNull] = None


# ---- rounds ---------------------------------------------------------------------------------------------------------


class ClientScores(Fields):
    """Scores of one client's model after its local work."""

    client: Count
    accuracy_all: float | None = None
    accuracy_majority: float | None = None
    accuracy_minority: float | None = None
    accuracy_vacant: float | None = None
    recall: list[float] = []


class SiteScores(Fields):
    """What one site counted on its own test data, for each class."""

    right: list[Count]
    held: list[Count]
    predicted: list[Count]
    loss: float


def _same_classes(sites: dict[str, SiteScores]) -> dict[str, SiteScores]:
    lengths = {len(row) for each in sites.values() for row in (each.right, each.held, each.predicted)}
    if len(lengths) != 1 or not all(sum(each.held) for each in sites.values()):
        raise ValueError("not one number for each class, or no sample")
    return sites


_BySite = Annotated[dict[ClientKey, SiteScores], AfterValidator(_same_classes)]


class ValidationScores(Fields):
    """Scores of the global model on the samples that all clients hold back; the first four are always there."""

    samples: Count
    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    loss: float
    macro_auroc: float | None = None
    ece: float | None = None
    scored_by: str | None = None
    scored_lost: dict[str, str] = {}


class ChosenModel(Fields):
    """The round whose model was best on the samples held back, and its value."""

    round: RoundNumber
    metric: str
    value: float


class RoundLine(Fields):
    """One round: who took part, what it cost, and how good the global model is after it."""

    kind: ClassVar[str] = "round"

    round: RoundNumber
    counted: bool = True
    stage: Count = 0
    lr: float | None = None
    asked: Annotated[Count | None, NotNull] = None
    replies: Annotated[Count | None, NotNull] = None
    examples: Annotated[Count | None, NotNull] = None
    steps: Annotated[Count | None, NotNull] = None
    loss: float | None = None
    up: Count = 0
    down: Count = 0
    lost: dict[str, str] = {}
    late: list[Count] = []
    answered: Annotated[list[Count] | None, NotNull] = None
    clients_asked: list[Count] = []
    shares: dict[str, float] = {}
    alerts: list[str] = []
    channels: list[str] = []
    clients: list[ClientScores] = []
    drift_diversity: float | None = None
    client_majority: float | None = None
    client_minority: float | None = None
    client_vacant: float | None = None
    client_all: float | None = None
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    test_loss: float | None = None
    recall: list[float] | None = None
    #: of the classes with many, a medium number of, and few training samples
    recall_many: float | None = None
    recall_medium: float | None = None
    recall_few: float | None = None
    predicted: Annotated[list[Count] | None, NotNull] = None
    undecided: Count = 0
    scored: Annotated[_BySite | None, NotNull] = None
    scored_lost: dict[str, str] = {}
    #: of the global model, where clients have models of their own
    global_accuracy: float | None = None
    global_balanced_accuracy: float | None = None
    global_recall: list[float] | None = None
    global_scored: Annotated[Annotated[dict[ClientKey, SiteScores], AfterValidator(_same_classes)] | None, NotNull] = (
        None
    )
    validation: Annotated[ValidationScores | None, NotNull] = None
    scores: list[Scores] = []
    memorization: Annotated[dict[str, float | None] | None, NotNull] = None
    seconds: float = 0.0


# ---- setups ---------------------------------------------------------------------------------------------------------


class _Cells(Fields):
    mean: Numbers
    se: Numbers
    count: Counts


@with_config(ConfigDict(extra="forbid", strict=True))
class RecordedOptions(TypedDict):
    seeds: Count
    covariance: Literal["full", "diag"]
    level: float
    min_count: Count
    suspect: float
    noisy: float
    exclude: list[Count]
    simulations: Count
    component: NotRequired[Literal["sum", "norm"]]


class _Judgment(Fields):
    verdict: str
    options: RecordedOptions


class _Evidence(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    distance: list[float | None]
    contradicted: list[float | None]
    rate: list[float | None]
    rate_se: list[float | None]
    confusions: list[list[Annotated[list[float], Field(min_length=3, max_length=3)]]]


class _Detection(Fields):
    judgment: _Judgment
    cells: _Cells
    age: list[Integer]
    scalars: dict[ClientKey, dict[str, float | None]]
    evidence: _Evidence
    noisy: list[Count]
    reading: str


def _check_detection(found: _Detection) -> None:
    cells, evidence = found.cells, found.evidence
    shapes = {(len(table), len(table[0]) if table else 0) for table in (cells.mean, cells.se, cells.count)}
    columns = (evidence.distance, evidence.contradicted, evidence.rate, evidence.rate_se)
    lengths = {len(each) for each in (cells.mean, found.age, *columns, evidence.confusions)}
    if len(shapes) > 1 or len(lengths) > 1 or (0, 0) in shapes:
        raise ValueError("not one entry for each client")
    (clients, classes) = shapes.pop()
    labels = [label for client in evidence.confusions for pair in client for label in pair[:2]]
    if any(client >= clients for client in found.noisy) or any(label not in range(classes) for label in labels):
        raise ValueError("a client or a class that does not exist")


class SetupLine(Fields):
    """A question to all clients before a round: who asked, how many answered, what was decided."""

    kind: ClassVar[str] = "setup"

    round: RoundNumber
    part: Annotated[str | None, NotNull] = None
    answers: Annotated[Count | None, NotNull] = None
    verdict: dict[str, Any] | None = None
    lost: dict[str, str] = {}

    @property
    def is_detection(self) -> bool:
        """Whether noisy clients were looked for."""
        return "judgment" in (self.verdict or {})


def _readable_setup(line: SetupLine) -> SetupLine:
    if line.is_detection:
        if line.answers is None:
            raise ValueError("a detection without answers")
        _check_detection(_Detection.model_validate(line.verdict))
    return line


# ---- end ------------------------------------------------------------------------------------------------------------


class _Claim(Fields):
    statement: str


class EndLine(Fields):
    """How the run ended; rounds without a number are those that were never reached."""

    kind: ClassVar[str] = "end"

    best: float | None = None
    best_round: RoundNumber | None = None
    last: float | None = None
    last10: float | None = None
    best_balanced: float | None = None
    last_balanced: float | None = None
    best_balanced_last_stage: Annotated[float | None, NotNull] = None
    target: Annotated[float | None, NotNull] = None
    reached: RoundNumber | None = None
    rounds: Count = 0
    stopped: Annotated[str | None, NotNull] = None
    seconds: float = 0.0
    weights_sha256: str | None = None
    privacy: Annotated[_Claim | None, NotNull] = None
    confusion: Annotated[Square | None, NotNull] = None
    chosen: Annotated[ChosenModel | None, NotNull] = None
    scores: list[Scores] = []
    scored_lost: dict[str, str] = {}
    memorization: Annotated[dict[str, float | None] | None, NotNull] = None


class ExtendedLine(Fields):
    """The run was given more rounds."""

    kind: ClassVar[str] = "extended"

    rounds: Count
    versions: dict[str, str | None] = {}


Line = HeaderLine | RoundLine | SetupLine | EndLine | ExtendedLine

_KINDS: dict[str, Any] = {
    "header": HeaderLine,
    "round": RoundLine,
    "setup": Annotated[SetupLine, AfterValidator(_readable_setup)],
    "end": EndLine,
    "extended": ExtendedLine,
}


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


def is_known(kind: str) -> bool:
    """Whether this version writes lines of this kind; readers skip others."""
    return kind in _KINDS


def parse(kind: str, fields: dict[str, Any]) -> Line | None:
    """Return the line with these fields, or None if their types are not those that fedskew writes."""
    try:
        line: Line = _adapter(kind).validate_python(fields)
    except ValidationError:
        return None
    return line
