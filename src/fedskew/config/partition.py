"""The section of a configuration that divides the samples among clients."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from fedskew.config.section import MOST, Count, Section, Seed, setting
from fedskew.core.errors import UserError, did_you_mean

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


class PartitionConfig(Section):
    name: PartitionName = setting("dirichlet", "How samples are divided among the clients; see Partitions below.")
    clients: Count = setting(
        10, "Number of clients.", keyword="clients", synonyms=("num_clients", "n_clients", "num_parties")
    )
    alpha: float | None = setting(
        None,
        "Concentration of the Dirichlet distribution; smaller is more skewed.",
        gt=0,
        synonyms=("dirichlet_alpha",),
    )
    s: Count | None = setting(None, "In sharding, runs of samples per client; in quantity, classes per client.")
    k: Count | None = setting(None, "In labels, classes per client.")
    min_size: int = setting(
        10,
        "Smallest number of samples of a client; dirichlet and bernoulli_dirichlet draw again until it is reached.",
        ge=0,
        le=MOST,
    )
    legacy: bool = setting(False, "Draw as the authors' published code does, with its random streams.")
    paired: bool = setting(True, "In quantity, clients share whole sets of classes; false draws the sets at random.")
    upper: float = setting(
        2.0, "In quantity, the largest amount of a class that a holder but the last may get, in even shares.", gt=0
    )
    p: float = setting(0.9, "In bernoulli_dirichlet, the chance that a client may hold a class.", gt=0, le=1)
    seed: Seed | None = setting(None, "Seed of the partition.", unset="the run's seed")
    lists: str | None = setting(
        None, "In explicit, the JSON file with the sample numbers of each client.", is_path=True
    )

    @staticmethod
    def parse(text: str) -> dict[str, Any]:
        """Return the fields that ``"dirichlet:0.05"`` stands for; parameters of other partitions are None."""
        name, colon, number = text.partition(":")
        if name not in PARTITION_NEEDS:
            hint = "" if name.isidentifier() else " (a parameter follows a colon, as in dirichlet:0.5)"
            raise UserError(f"partition '{name}' is unknown{hint}{did_you_mean(name, PARTITION_NEEDS)}")
        needed = PARTITION_NEEDS[name]
        fields: dict[str, Any] = {"name": name, **dict.fromkeys(_EXAMPLES)}
        if colon and needed is None:
            raise UserError(f"partition '{name}' takes no parameter, but got '{number}'. Type --partition {name}.")
        if colon and needed is not None:
            example = _EXAMPLES[needed]
            try:
                fields[needed] = type(example)(number)
            except ValueError:
                raise UserError(
                    f"partition '{text}' has no valid {needed}. Type, for example, --partition {name}:{example}."
                ) from None
        return fields

    def __str__(self) -> str:
        """``dirichlet:0.5``, which `parse` reads."""
        needed = PARTITION_NEEDS[self.name]
        return self.name if needed is None else f"{self.name}:{getattr(self, needed)}"

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> PartitionConfig:
        needed = PARTITION_NEEDS[self.name]
        for field, example in _EXAMPLES.items():
            value = getattr(self, field)
            if field == needed and value is None:
                raise UserError(
                    f"partition '{self.name}' needs partition.{field}, which is not set. "
                    f"Type, for example, --partition {self.name}:{example}."
                )
            if field != needed and value is not None:
                raise UserError(
                    f"partition '{self.name}' does not use partition.{field}, which is {value!r}. "
                    f"Remove it: --set partition.{field}=none."
                )
        return self
