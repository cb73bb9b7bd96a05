"""What all sections of the configuration share: their base class, number types, and the meaning of a key."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

#: Larger counts overflow inside torch, or never end.
MOST = 1_000_000_000
Count = Annotated[int, Field(ge=1, le=MOST)]
#: What every TOML reader can read back.
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def setting(
    default: Any, help: str, *, ge: Any = None, gt: Any = None, le: Any = None, lt: Any = None, **meaning: Any
) -> Any:
    """Declare a key: its default, its help text, its bounds, and its `meaning`, the fields of `keys.Key`.

    A section passes its meaning on to the keys inside it.
    """
    bounds = {name: value for name, value in (("ge", ge), ("gt", gt), ("le", le), ("lt", lt)) if value is not None}
    return Field(default, description=help, json_schema_extra={"meaning": meaning}, **bounds)


def _scalar(value: Any) -> bool | int | float | str:
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError("should be a whole number of at most 64 bits")
    if type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError("should be a finite number, a string, true or false")


def _scalar_or_list(value: Any) -> bool | int | float | str | list[bool | int | float | str]:
    return [_scalar(item) for item in value] if isinstance(value, list) else _scalar(value)


Scalar = Annotated[bool | int | float | str, PlainValidator(_scalar)]
ScalarOrList = Annotated[bool | int | float | str | list[bool | int | float | str], PlainValidator(_scalar_or_list)]
