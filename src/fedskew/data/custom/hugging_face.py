"""Read data sets of Hugging Face: saved on the disk, or by name from their hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import UserError
from fedskew.data import files
from fedskew.data.custom.rows import TEST, TRAIN, Rows, with_splits


def from_disk(path: Path) -> Rows:
    """Read a data set saved by Hugging Face's save_to_disk, with a column label and images or features."""
    datasets = files.extra("datasets", f"the Hugging Face data set '{path}'")
    return _parts(str(path), datasets.load_from_disk(str(path)), datasets)


def from_hub(name: str, config: str, label: str) -> Rows:
    """Read a data set of Hugging Face's hub, or a local folder that their library loads.

    `label` names the column of labels.
    """
    datasets = files.extra("datasets", f"the Hugging Face data set '{name}'")
    try:
        stored = datasets.load_dataset(name, config or None)
    except Exception as error:  # whatever their library, or the network, raises
        why = str(error).strip().partition("\n")[0].rstrip(".")
        raise UserError(
            f"Hugging Face's library cannot load '{name}' ({why}). Check options name and config, or the network."
        ) from None
    if label != "label":
        if others := [part for part in stored if label not in stored[part].features]:
            raise UserError(f"'{name}', part {others[0]}, has no column '{label}'. Name another by the option label.")
        stored = stored.rename_column(label, "label")
    return _parts(name, stored, datasets)


def _parts(path: str, stored: Any, datasets: Any) -> Rows:
    if not isinstance(stored, datasets.DatasetDict):
        return _rows(path, stored, datasets.Image)
    parts = {name: _rows(path, stored[name], datasets.Image) for name in (TRAIN, TEST) if name in stored}
    if TRAIN not in parts:
        raise UserError(f"'{path}' holds {', '.join(stored)}. Name the training part {TRAIN}.")
    return with_splits(parts) if TEST in parts else parts[TRAIN]


def _rows(path: str, stored: Any, image: type) -> Rows:
    features = stored.features
    if "label" not in features:
        raise UserError(f"'{path}' has no column 'label'. Rename one of {', '.join(features)}.")
    spoken: Callable[[Any], str] = getattr(features["label"], "int2str", str)
    pictures = [name for name, feature in features.items() if isinstance(feature, image)]
    columns = pictures[:1] or [name for name in features if name not in ("label", "site", "patient")]
    try:
        if pictures:
            samples = np.stack([np.asarray(each.convert("RGB")) for each in stored[columns[0]][:]])
        else:
            samples = np.column_stack([np.asarray(stored[name][:], np.float32) for name in columns])
    except ValueError as error:
        raise UserError(f"'{path}': {', '.join(columns)} cannot be one array ({error}). Give all one shape.") from None
    said = [list(map(str, stored[name][:])) if name in features else [] for name in ("site", "patient")]
    return Rows(samples, list(map(spoken, stored["label"][:])), said[0], said[1], [])
