"""The section of a configuration that says whose labels are wrong, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from fedskew.errors import UserError, nearest

NoiseKind = Literal[
    "none", "h_idn", "symmetric", "uniform", "pairflip", "asymmetric", "transition", "idn", "pdn", "human"
]

#: The fields each way of choosing noisy clients has a use for, and those that each kind of noise has.
WHO_USES: dict[str, set[str]] = {
    "exact": {"rho", "low", "high", "legacy"},
    "bernoulli": {"rho", "low", "high"},
    "ramp": {"rho", "low", "high"},
    "explicit": {"rates"},
}
NOISE_USES: dict[str, set[str]] = {
    "none": set(),
    "h_idn": {"scope", "soft_labels", "annotator"},
    "symmetric": {"scope", "count"},
    "uniform": {"scope"},
    "pairflip": {"scope", "count", "direction"},
    "asymmetric": {"scope", "count", "mapping"},
    "transition": {"matrix", "mode"},
    "idn": {"scope", "soft_labels", "annotator"},
    "pdn": {"scope"},
    "human": {"labels", "key"},
}
#: Kinds that bring their own rate: noisy clients have it, and nothing between it and none.
RATELESS = ("transition", "human")
_NOISE_NEEDS: dict[str, Any] = {
    "rho": 0.4,
    "rates": [0.0, 0.5],
    "mapping": "cifar10",
    "matrix": "matrix.csv",
    "labels": "CIFAR-10_human.pt",
}


#: Larger counts overflow inside torch, or never end.
MOST = 1_000_000_000
Count = Annotated[int, Field(ge=1, le=MOST)]
#: What every TOML reader can read back.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _mapping(value: Any) -> str | list[int]:
    if type(value) is str or (isinstance(value, list) and all(type(item) is int for item in value)):
        return value
    raise ValueError("should be a name, or a list of classes")


class Annotator(Section):
    epochs: Count = 10
    #: In folds; 0 means that annotators judge the samples they learned from.
    crossfit: int = Field(default=0, ge=0, le=MOST)
    share: Literal["client", "global"] = "client"

    @model_validator(mode="after")
    def _folds(self) -> Annotator:
        if self.crossfit == 1:
            raise UserError("key 'noise.annotator.crossfit' is 1; it should be 0, or a number of folds from 2 on")
        return self


Share = Annotated[float, Field(ge=0, le=1)]


class Noise(Section):
    kind: NoiseKind = "none"
    who: Literal["exact", "bernoulli", "ramp", "explicit"] = "exact"
    rho: Share | None = None
    low: Share | None = None
    high: Share | None = None
    rates: list[Share] | None = None
    #: None means the run's.
    seed: Seed | None = None
    scope: Literal["global", "local"] = "global"
    count: Literal["exact", "coin"] = "exact"
    direction: Literal[1, -1] = 1
    mapping: Annotated[str | list[int] | None, PlainValidator(lambda v: v if v is None else _mapping(v))] = None
    matrix: str | None = None
    mode: Literal["iid", "quota"] = "iid"
    soft_labels: str | None = None
    labels: str | None = None
    key: str | None = None
    annotator: Annotator = Annotator()
    legacy: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """(eta^l, eta^u): what is not set is FedNoRo's milder setting, or FedCorr's tau = 0.5 to 1."""
        if self.kind in RATELESS:
            return 1.0, 1.0
        low, high = (0.5, 1.0) if self.who == "bernoulli" else (0.3, 0.5)
        return low if self.low is None else self.low, high if self.high is None else self.high

    @staticmethod
    def parse(text: str) -> dict[str, Any]:
        """The fields that ``"symmetric:0.4"`` stands for; those that this kind has no use for get their defaults."""
        kind, colon, number = text.partition(":")
        if kind not in NOISE_USES:
            raise UserError(f"noise '{kind}' is unknown{nearest(kind, NOISE_USES)}")
        used = set().union(*WHO_USES.values(), NOISE_USES[kind], {"who", "seed"}) if kind != "none" else set()
        values = Noise().model_dump()
        fields = {name: value for name, value in values.items() if name not in used} | {"kind": kind}
        if kind in RATELESS:
            fields |= {"low": None, "high": None}
        if not colon:
            return fields
        if kind == "none":
            raise UserError(f"noise '{text}' should be 'none': it takes no parameter")
        try:
            return fields | {"who": values["who"], "rates": None, "rho": float(number)}
        except ValueError:
            raise UserError(f"noise '{text}' should be '{kind}:rho', for example '{kind}:0.4'") from None

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Noise:
        used = {"kind"}
        if self.kind != "none":
            used |= {"who", "seed"} | WHO_USES[self.who] | NOISE_USES[self.kind]
        if self.kind in RATELESS:
            used -= {"low", "high"}
        if self.soft_labels is not None:
            used -= {"annotator"}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in used and name in _NOISE_NEEDS and value is None:
                example = _NOISE_NEEDS[name]
                raise UserError(f"key 'noise.{name}' is not set; noise '{self.kind}' needs it, for example {example!r}")
            if name not in used and value != field.default:
                shown = "set" if isinstance(value, Section) else repr(value)
                raise UserError(
                    f"key 'noise.{name}' is {shown}; noise '{self.kind}' has no use for it here, leave it out"
                )
        low, high = self.bounds
        if low > high:
            raise UserError(f"key 'noise.low' is {low}, above 'noise.high', which is {high}; it should not be")
        if self.kind in RATELESS and not {0, 1}.issuperset(self.rates or ()):
            raise UserError(
                f"key 'noise.rates' is {self.rates}; noise '{self.kind}' knows only 0 and 1, clean and noisy"
            )
        return self
