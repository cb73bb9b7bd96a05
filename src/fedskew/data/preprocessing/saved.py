"""What a run keeps of its preprocessing, as JSON: how to make network inputs, and what the classes are called."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.data.preprocessing.encoder import Encoder, from_dict

NAME = "preprocessing.json"


@dataclass(frozen=True)
class Preprocessing:
    """How new samples become inputs of a run's network.

    Attributes:
        labels: The names of the classes.
        shape: The shape of one sample.
        dtype: uint8 for images, int64 for token ids, float32 for features.
        mean: Per channel of images, on the 0..1 scale.
        std: Likewise.
        encoder: What makes samples out of tables or texts; None for other data.
    """

    labels: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    encoder: Encoder | None = None

    @property
    def is_image(self) -> bool:
        """Whether samples are images."""
        return self.dtype == "uint8"

    def save(self, folder: Path) -> None:
        """Write it into a run folder."""
        values = asdict(self) | {"encoder": self.encoder and self.encoder.as_dict()}
        atomic_io.write(folder / NAME, json.dumps(values, ensure_ascii=False, indent=1) + "\n")


def load(folder: Path) -> Preprocessing:
    """Read what a run has kept."""
    path = folder / NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        encoder = values.pop("encoder")
        dtype = values.pop("dtype")
        lists = {name: tuple(each) for name, each in values.items()}
        return Preprocessing(dtype=dtype, encoder=encoder and from_dict(encoder), **lists)
    except FileNotFoundError:
        raise UserError(
            f"'{folder}' has no {NAME}: it is no run, or one of an older version. Train it again."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"'{path}' is damaged ({error}). Restore it, or train the run again.") from None
