"""What final models predict for the test samples, so that models can be compared sample by sample."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core import atomic_io

#: arrays of a value for each sample that not all runs have
OPTIONAL = ("sites", "groups", "rows")


@dataclass(frozen=True)
class FinalPredictions:
    """The predicted class of each test sample, by one model or by a model of each client.

    Attributes:
        labels: The classes, int [samples].
        predicted: The predicted classes, int [models, samples]; -1 without a prediction.
        sites: The client that each sample belongs to; None if all clients share the samples.
        groups: The patient of each sample, where it is known.
        samples: A digest of samples and labels: equal in runs that were scored on the same ones.
        rows: The row of each test sample in the data set, if each seed draws other ones.
    """

    labels: np.ndarray
    predicted: np.ndarray
    sites: np.ndarray | None
    groups: np.ndarray | None
    samples: str
    rows: np.ndarray | None = None

    def of(self, client: int) -> np.ndarray:
        """Return the predictions of the model that a client uses."""
        row: np.ndarray = self.predicted[client if len(self.predicted) > 1 else 0]
        return row

    def save(self, path: Path) -> None:
        """Write everything as a compressed file of numpy arrays."""
        arrays: dict[str, Any] = {name: getattr(self, name).astype(np.int16) for name in ("labels", "predicted")}
        arrays |= {name: array for name in OPTIONAL if (array := getattr(self, name)) is not None}
        written = io.BytesIO()
        np.savez_compressed(written, samples=np.array(self.samples), **arrays)
        atomic_io.write(path, written.getvalue())


def read(path: Path) -> FinalPredictions | None:
    """Read predictions; None if there are none, or the file is damaged."""
    try:
        with np.load(path) as found:
            labels, predicted = (found[name].astype(np.int64) for name in ("labels", "predicted"))
            more = {name: found.get(name) for name in OPTIONAL}
            made = FinalPredictions(labels, predicted, **more, samples=str(found["samples"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    fits = all(array is None or array.shape == labels.shape for array in more.values())
    return made if fits and predicted.ndim == 2 and predicted.shape[1:] == labels.shape else None
