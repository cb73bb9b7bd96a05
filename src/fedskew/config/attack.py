"""The section of a configuration that makes some clients of a simulation hostile or broken."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import model_validator

from fedskew.config.section import MOST, Section, setting
from fedskew.core.errors import UserError, did_you_mean

AttackKind = Literal["none", "label_flip", "sign_flip", "scaled", "random"]

#: what a change is multiplied by if no scale is given; label_flip has none
SCALES = {"sign_flip": 1.0, "scaled": 10.0, "random": 10.0}


class AttackConfig(Section):
    kind: AttackKind = setting("none", "What hostile clients do: none, label_flip, sign_flip, scaled or random.")
    share: float = setting(0.2, "Share of the clients that are hostile.", ge=0, lt=1)
    scale: float | None = setting(
        None,
        "What hostile clients multiply their change by (random: its length).",
        unset="1 (scaled and random: 10)",
        gt=0,
        le=MOST,
    )

    @property
    def factor(self) -> float:
        """Return the scale that holds."""
        return SCALES.get(self.kind, 1.0) if self.scale is None else self.scale

    def __str__(self) -> str:
        """``sign_flip:0.2``, which `parse` reads."""
        return self.kind if self.kind == "none" else f"{self.kind}:{self.share}"

    @staticmethod
    def parse(text: str) -> dict[str, Any]:
        """Return the fields that ``"sign_flip:0.2"`` stands for."""
        kind, colon, number = text.partition(":")
        if kind not in get_args(AttackKind):
            raise UserError(f"attack '{kind}' is unknown{did_you_mean(kind, get_args(AttackKind))}")
        fields = AttackConfig().model_dump() | {"kind": kind}
        if colon and kind == "none":
            raise UserError(f"attack 'none' takes no parameter, but got '{number}'. Type --attack none.")
        try:
            return fields | ({"share": float(number)} if colon else {})
        except ValueError:
            raise UserError(f"attack '{text}' has no valid share. Type, for example, --attack {kind}:0.2.") from None

    @model_validator(mode="after")
    def _scale_fits(self) -> AttackConfig:
        if self.scale is not None and self.kind not in SCALES:
            raise UserError(f"attack '{self.kind}' does not use attack.scale. Remove it: --set attack.scale=none.")
        return self

    def check_simulated(self) -> None:
        """Refuse an attack in a federation."""
        if self.kind != "none":
            raise UserError(
                f"attack.kind is '{self.kind}', but attacks are for simulations only. Remove the attack; "
                "'fedskew run' simulates it."
            )
