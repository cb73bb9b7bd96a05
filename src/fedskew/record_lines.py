"""What the lines of a record are made of, so that whoever reads one may rely on it.

Fields may be missing, because older versions did not write them, and unknown ones are passed over.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

_lenient = with_config(ConfigDict(extra="allow", strict=True))


def _even(rows: list[list[Any]]) -> list[list[Any]]:
    if len({len(row) for row in rows}) > 1 or not all(rows):
        raise ValueError("rows of different lengths, or of none")
    return rows


def _square(rows: list[list[Any]]) -> list[list[Any]]:
    if any(len(row) != len(rows) for row in rows):
        raise ValueError("not as many columns as rows")
    return rows


Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
#: what is not finite is spelled out
Number = Annotated[float | Literal["nan", "inf", "-inf"], Field(union_mode="left_to_right")]
Maybe = Annotated[float | Literal["nan", "inf", "-inf"] | None, Field(union_mode="left_to_right")]
Counts = Annotated[list[list[Count]], AfterValidator(_even)]
Square = Annotated[list[list[Count]], AfterValidator(_square)]
Numbers = Annotated[list[list[Maybe]], AfterValidator(_even)]


@_lenient
class _Named(TypedDict):
    name: str


@_lenient
class _Partition(TypedDict):
    name: str
    clients: Count


@_lenient
class _Local(TypedDict):
    epochs: Count
    batch: Count
    optimiser: str
    lr: Number
    momentum: Number
    weight_decay: Number


@_lenient
class _Engine(TypedDict):
    precision: str


@_lenient
class _Evaluate(TypedDict, total=False):
    target: Annotated[float, Field(ge=0, le=1)] | None


@_lenient
class _NoiseKind(TypedDict, total=False):
    kind: str


@_lenient
class _Config(TypedDict):
    method: str
    seed: Whole
    rounds: Count
    per_round: Count | None
    data: _Named
    partition: _Partition
    local: _Local
    engine: _Engine
    evaluate: NotRequired[_Evaluate]
    noise: NotRequired[_NoiseKind]


@_lenient
class _Network(TypedDict):
    name: str
    parameters: Count


@_lenient
class _Data(TypedDict):
    name: str
    train: Count
    test: Count
    labels: list[str]
    sites: NotRequired[list[str]]
    notes: NotRequired[list[str]]


@_lenient
class _Noise(TypedDict):
    kind: str
    noisy: list[Count]
    target: NotRequired[list[Number]]
    realised: NotRequired[list[Number]]
    flips: NotRequired[Square]


@_lenient
class Header(TypedDict, total=False):
    schema: int
    config: _Config
    command: list[str]
    method: str
    card: str
    stages: list[str]
    model: _Network
    data: _Data
    checksums: dict[str, str]
    files: dict[str, str]
    shards: str
    noise: _Noise | None
    counts: Counts | None
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    started: str


@_lenient
class _Client(TypedDict, total=False):
    client: Required[Count]
    accuracy_all: Number
    accuracy_majority: Number
    accuracy_minority: Number
    accuracy_vacant: Number
    recall: list[Number]


@_lenient
class _SiteScores(TypedDict):
    right: list[Count]
    held: list[Count]
    predicted: list[Count]
    loss: Number


def _same_classes(sites: dict[str, _SiteScores]) -> dict[str, _SiteScores]:
    lengths = {len(row) for each in sites.values() for row in (each["right"], each["held"], each["predicted"])}
    if len(lengths) != 1 or not all(sum(each["held"]) for each in sites.values()):
        raise ValueError("not one number for each class, or no sample")
    return sites


@_lenient
class Round(TypedDict, total=False):
    round: Required[Count]
    counted: bool
    stage: Count
    lr: Maybe
    asked: Count
    replies: Count
    examples: Count
    steps: Count
    loss: Maybe
    up: Count
    down: Count
    lost: dict[str, str]
    late: list[Count]
    answered: list[Count]
    clients_asked: list[Count]
    shares: dict[str, Number]
    alerts: list[str]
    channels: list[str]
    clients: list[_Client]
    drift_diversity: Maybe
    client_majority: Maybe
    client_minority: Maybe
    client_vacant: Maybe
    client_all: Maybe
    accuracy: Maybe
    balanced_accuracy: Maybe
    test_loss: Maybe
    recall: list[Number] | None
    predicted: list[Count]
    undecided: Count
    scored: Annotated[dict[Annotated[str, Field(pattern=r"^\d+$")], _SiteScores], AfterValidator(_same_classes)]
    scored_lost: dict[str, str]
    memorisation: dict[str, Maybe]
    seconds: Number


@_lenient
class _Cells(TypedDict):
    mean: Numbers
    se: Numbers
    count: Counts


@with_config(ConfigDict(extra="forbid", strict=True))
class DetectionOptions(TypedDict):
    seeds: Count
    covariance: Literal["full", "diag"]
    level: Number
    min_count: Count
    suspect: Number
    noisy: Number
    exclude: list[Count]
    simulations: Count
    component: NotRequired[Literal["sum", "norm"]]


@_lenient
class _Judgement(TypedDict):
    verdict: str
    options: DetectionOptions


@with_config(ConfigDict(extra="forbid", strict=True))
class _Evidence(TypedDict):
    distance: list[Maybe]
    contradicted: list[Maybe]
    rate: list[Maybe]
    rate_se: list[Maybe]
    confusions: list[list[Annotated[list[Number], Field(min_length=3, max_length=3)]]]


def _same_clients(found: _Detection) -> _Detection:
    cells, evidence = found["cells"], found["evidence"]
    shapes = {(len(table), len(table[0]) if table else 0) for table in (cells["mean"], cells["se"], cells["count"])}
    told = (evidence["distance"], evidence["contradicted"], evidence["rate"], evidence["rate_se"])
    lengths = {len(each) for each in (cells["mean"], found["age"], *told, evidence["confusions"])}
    if len(shapes) > 1 or len(lengths) > 1 or (0, 0) in shapes:
        raise ValueError("not one entry for each client")
    (clients, classes) = shapes.pop()
    mistaken = [label for client in evidence["confusions"] for pair in client for label in pair[:2]]
    if any(client >= clients for client in found["noisy"]) or any(label not in range(classes) for label in mistaken):
        raise ValueError("a client or a class that there is not")
    return found


@_lenient
class _Detection(TypedDict):
    judgement: _Judgement
    cells: _Cells
    age: list[Whole]
    scalars: dict[Annotated[str, Field(pattern=r"^\d+$")], dict[str, Maybe]]
    evidence: _Evidence
    noisy: list[Count]
    reading: str


def _judged(door: Door) -> Door:
    if "judgement" in door.get("verdict", {}):
        if "answers" not in door:
            raise ValueError("a detection without answers")
        _adapter("detection").validate_python(door["verdict"])
    return door


@_lenient
class Door(TypedDict, total=False):
    round: Required[Count]
    part: str
    answers: Count
    verdict: dict[str, Any]
    lost: dict[str, str]


@_lenient
class _Claim(TypedDict):
    statement: str


@_lenient
class End(TypedDict, total=False):
    best: Maybe
    best_round: Count | None
    last: Maybe
    last10: Maybe
    best_balanced: Maybe
    last_balanced: Maybe
    best_balanced_last_stage: Number
    target: Number
    reached: Count | None
    rounds: Count
    seconds: Number
    weights_sha256: str | None
    privacy: _Claim
    confusion: Square
    scored_lost: dict[str, str]
    memorisation: dict[str, Maybe]


@_lenient
class Extended(TypedDict):
    rounds: Count


_KINDS: dict[str, Any] = {
    "header": Header,
    "round": Round,
    "door": Annotated[Door, AfterValidator(_judged)],
    "end": End,
    "extended": Extended,
    "detection": Annotated[_Detection, AfterValidator(_same_clients)],
}


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])


def sound(line: dict[str, Any]) -> bool:
    """Whether the fields of a line have the types that we write; lines of a kind that we do not know may have any."""
    kind = line["kind"]
    if kind not in ("header", "round", "door", "end", "extended"):
        return True
    try:
        _adapter(kind).validate_python(line)
    except ValidationError:
        return False
    return True
