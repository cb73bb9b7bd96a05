"""The types of a record's fields, and the base of all models that hold them."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
RoundNumber = Annotated[int, Field(ge=1, lt=2**63)]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
#: the key of a client, which JSON needs as text
ClientKey = Annotated[str, Field(pattern=r"^\d+$")]


def _rectangular(rows: list[list[Any]]) -> list[list[Any]]:
    if len({len(row) for row in rows}) > 1 or not all(rows):
        raise ValueError("rows of different lengths, or empty rows")
    return rows


def _square(rows: list[list[Any]]) -> list[list[Any]]:
    if any(len(row) != len(rows) for row in rows):
        raise ValueError("not as many columns as rows")
    return rows


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("null")
    return value


#: None where the record does not have the field; null is malformed
NotNull = AfterValidator(_not_null)
Counts = Annotated[list[list[Count]], AfterValidator(_rectangular)]
Square = Annotated[list[list[Count]], AfterValidator(_square)]
Numbers = Annotated[list[list[float | None]], AfterValidator(_rectangular)]


class Fields(BaseModel):
    """A part of the record whose fields can also be read by name; it is false if it has none."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    def keys(self) -> KeysView[str]:
        """Return the names of the fields that the record has."""
        has = self.__pydantic_fields_set__
        return {name: None for name in (*self.__dict__, *(self.__pydantic_extra__ or ())) if name in has}.keys()

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields that the record has."""
        return ((name, self[name]) for name in self.keys())

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or `default` where the record does not have it."""
        return self[name] if name in self.__pydantic_fields_set__ else default

    def __getitem__(self, name: str) -> Any:
        if name not in self.__pydantic_fields_set__:
            raise KeyError(name)
        return self.__dict__[name] if name in self.__dict__ else (self.__pydantic_extra__ or {})[name]

    def __contains__(self, name: str) -> bool:
        return name in self.__pydantic_fields_set__

    def __or__(self, changed: Mapping[str, Any]) -> Self:
        return self.model_copy(update=dict(changed))

    def __bool__(self) -> bool:
        return bool(self.__pydantic_fields_set__)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        return self.items()

    def as_json(self) -> dict[str, Any]:
        """Return the fields that the record has, as dictionaries and lists."""
        return self.model_dump(exclude_unset=True)
