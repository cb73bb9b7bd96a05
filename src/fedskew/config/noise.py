"""The section of a configuration that makes labels wrong: at which clients, how many, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PlainValidator, model_validator

from fedskew.config.section import MOST, Count, Section, Seed, Share, setting
from fedskew.core.errors import UserError, did_you_mean

NoiseKind = Literal[
    "none", "h_idn", "symmetric", "uniform", "pairflip", "asymmetric", "transition", "idn", "pdn", "human"
]

#: The fields that each way of choosing noisy clients uses, and those that each kind of noise uses.
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
#: Kinds with a rate of their own: a client has this rate or none.
RATELESS = ("transition", "human")
_NOISE_NEEDS: dict[str, Any] = {
    "rho": 0.4,
    "rates": "[0.0,0.5]",
    "mapping": "cifar10",
    "matrix": "matrix.csv",
    "labels": "CIFAR-10_human.pt",
}


def _mapping(value: Any) -> str | list[int]:
    if type(value) is str or (isinstance(value, list) and all(type(item) is int for item in value)):
        return value
    raise ValueError("should be a name, or a list of classes")


class AnnotatorConfig(Section):
    epochs: Count = setting(10, "Epochs of training of the annotators.")
    crossfit: int = setting(
        0, "Folds of cross-fitting; 0 lets annotators judge the samples they were trained on.", ge=0, le=MOST
    )
    share: Literal["client", "global"] = setting(
        "client", "Data of an annotator: of its client alone, or of all clients (global)."
    )

    @model_validator(mode="after")
    def _folds(self) -> AnnotatorConfig:
        if self.crossfit == 1:
            raise UserError(
                "noise.annotator.crossfit is 1, but must be 0 or at least 2. Type --set noise.annotator.crossfit=2."
            )
        return self


class NoiseConfig(Section):
    kind: NoiseKind = setting("none", "Kind of the noise; see docs/reference/noise.md.", synonyms=("noise_type",))
    who: Literal["exact", "bernoulli", "ramp", "explicit"] = setting("exact", "How the noisy clients are chosen.")
    rho: Share | None = setting(None, "Share of the clients that are noisy.")
    low: Share | None = setting(
        None, "Smallest rate of wrong labels of a noisy client.", unset="0.3 (bernoulli: 0.5)", synonyms=("noise_rate",)
    )
    high: Share | None = setting(
        None, "Largest rate of wrong labels of a noisy client.", unset="0.5 (bernoulli: 1)", synonyms=("noise_rate",)
    )
    rates: list[Share] | None = setting(None, "In explicit, the rate of wrong labels of each client.")
    seed: Seed | None = setting(None, "Seed of the noise.", unset="the run's seed")
    scope: Literal["global", "local"] = setting("global", "Wrong labels are among all classes, or those of the client.")
    count: Literal["exact", "coin"] = setting("exact", "Flip exactly the rate, or each label by a coin.")
    direction: Literal[1, -1] = setting(1, "In pairflip, to the next class (1) or the one before (-1).")
    mapping: Annotated[str | list[int] | None, PlainValidator(lambda v: v if v is None else _mapping(v))] = setting(
        None, "In asymmetric, the wrong class of each class: a name, or a list."
    )
    matrix: str | None = setting(None, "In transition, the file of the transition matrix.", is_path=True)
    mode: Literal["iid", "quota"] = setting("iid", "In transition, draw each label alone, or exact numbers (quota).")
    soft_labels: str | None = setting(
        None, "File of soft labels of h_idn and idn.", unset="annotators are trained", is_path=True
    )
    labels: str | None = setting(None, "In human, the file of the labels that people gave.", is_path=True)
    key: str | None = setting(None, "In human, the name of the labels in that file.")
    annotator: AnnotatorConfig = setting(AnnotatorConfig(), "Training of the annotators of h_idn and idn.")
    legacy: bool = setting(False, "In exact, draw as the authors' published code does.")

    @property
    def bounds(self) -> tuple[float, float]:
        """Return (eta^l, eta^u); by default FedNoRo's milder setting, or FedCorr's tau from 0.5 to 1."""
        if self.kind in RATELESS:
            return 1.0, 1.0
        low, high = (0.5, 1.0) if self.who == "bernoulli" else (0.3, 0.5)
        return low if self.low is None else self.low, high if self.high is None else self.high

    def __str__(self) -> str:
        """``symmetric:0.4``, which `parse` reads."""
        return self.kind if self.rho is None else f"{self.kind}:{self.rho}"

    @staticmethod
    def parse(text: str) -> dict[str, Any]:
        """Return the fields that ``"symmetric:0.4"`` stands for; what this kind does not use gets its default."""
        kind, colon, number = text.partition(":")
        if kind not in NOISE_USES:
            raise UserError(f"noise '{kind}' is unknown{did_you_mean(kind, NOISE_USES)}")
        used = set().union(*WHO_USES.values(), NOISE_USES[kind], {"who", "seed"}) if kind != "none" else set()
        values = NoiseConfig().model_dump()
        fields = {name: value for name, value in values.items() if name not in used} | {"kind": kind}
        if kind in RATELESS:
            fields |= {"low": None, "high": None}
        if not colon:
            return fields
        if kind == "none":
            raise UserError(f"noise 'none' takes no parameter, but got '{number}'. Type --noise none.")
        try:
            return fields | {"who": values["who"], "rates": None, "rho": float(number)}
        except ValueError:
            raise UserError(f"noise '{text}' has no valid rho. Type, for example, --noise {kind}:0.4.") from None

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> NoiseConfig:
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
                raise UserError(
                    f"noise '{self.kind}' needs noise.{name}, which is not set. "
                    f"Type, for example, --set noise.{name}={_NOISE_NEEDS[name]}."
                )
            if name not in used and value != field.default:
                raise UserError(
                    f"noise '{self.kind}' does not use noise.{name} here. Remove it: --set noise.{name}=none."
                )
        low, high = self.bounds
        if low > high:
            raise UserError(f"noise.low is {low}, above noise.high, {high}. Type --set noise.low={high}.")
        if self.kind in RATELESS and not {0, 1}.issuperset(self.rates or ()):
            raise UserError(
                f"noise.rates is {self.rates}, but noise '{self.kind}' has only clean clients, 0, and noisy ones, 1. "
                f"Type --set noise.rates={[round(rate) for rate in self.rates or ()]}."
            )
        return self
