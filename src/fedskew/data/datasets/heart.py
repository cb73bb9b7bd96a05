"""Read the heart disease databases of UCI: patients of four hospitals, in tables with missing values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedskew.core import seeds
from fedskew.core.errors import UserError
from fedskew.core.types import Arrays
from fedskew.data import files
from fedskew.data.options import integer
from fedskew.data.preprocessing import columns, table
from fedskew.data.sources import Source

#: the hospitals, with their patients by diagnosis as UCI has them
_HOSPITALS = {
    "cleveland": ("Cleveland", (164, 55, 36, 35, 13)),
    "hungarian": ("Budapest", (188, 106, 0, 0, 0)),
    "switzerland": ("Zurich-Basel", (8, 48, 32, 30, 5)),
    "va": ("Long Beach", (51, 56, 41, 42, 10)),
}
_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
#: codes without an order
_CODES = ("cp", "restecg", "slope", "thal")
#: a pressure or cholesterol of 0 was not measured
_NEVER_ZERO = ("trestbps", "chol")
_TEST_SHARE = 0.2


def heart_disease(folder: Path | None, *, seed: int | None = None, binary: bool = False, verify: bool = True) -> Source:
    """Read ``processed.cleveland.data``, ``.hungarian.``, ``.switzerland.`` and ``.va.``: 13 features and a diagnosis.

    The four hospitals are the clients. The diagnosis is 0 (healthy) to 4; Budapest has only 0 and 1. `binary` makes
    it healthy or ill. A fifth of each hospital's patients, stratified by diagnosis, is for testing; it is drawn by
    `seed`, and anew for each seed of a run unless you set it.

    Chest pain, resting ECG, slope and thal are categories; the rest are numbers, scaled with mean and deviation of the
    training patients. A missing number becomes their mean, a missing category none of the known ones, and a column
    with many missing values has an indicator. A pressure or cholesterol of 0 counts as missing.

    Files whose patients per diagnosis differ from UCI's are refused; set `verify` to false to read them as they are.
    """
    drawn_by = 0 if seed is None else integer(seed, "seed", "data set 'heart-disease'", least=-(2**63))
    paths = [files.find_file("heart-disease", folder, f"processed.{name}.data") for name in _HOSPITALS]
    rows = [
        _rows(path, counts if verify else None) for path, (_, counts) in zip(paths, _HOSPITALS.values(), strict=True)
    ]
    y = np.concatenate([diagnoses for _, diagnoses in rows])
    site = np.repeat(np.arange(len(rows)), [len(diagnoses) for _, diagnoses in rows])
    cells = dict(zip(_COLUMNS, zip(*(row for lines, _ in rows for row in lines), strict=True), strict=True))
    read = {name: columns.words(found) if name in _CODES else columns.numbers(found) for name, found in cells.items()}
    for name in _NEVER_ZERO:
        read[name][read[name] == 0] = np.nan
    test = _for_testing(site * 5 + y, drawn_by)
    encoder = table.fit(table.summarize({name: values[~test] for name, values in read.items()}), scale=True)
    x, labels = torch.from_numpy(encoder.encode(read)), ("healthy", *(("ill",) if binary else tuple("1234")))
    y = np.minimum(y, len(labels) - 1)
    train, testing = (Arrays(x[chosen], torch.from_numpy(y[chosen])) for chosen in (~test, test))
    return Source(
        name="heart-disease",
        train=train,
        test=replace(testing, sites=torch.from_numpy(site[test]), rows=torch.from_numpy(np.flatnonzero(test))),
        classes=len(labels),
        labels=labels,
        mean=(),
        std=(),
        checksums={path.name: files.check_md5(path, files.read(path), None) for path in paths},
        sites=torch.from_numpy(site[~test]),
        site_names=tuple(name for name, _ in _HOSPITALS.values()),
        encoder=encoder,
    )


def _rows(path: Path, official: tuple[int, ...] | None) -> tuple[list[list[str]], np.ndarray]:
    """Return the cells of each patient, and the diagnoses."""
    lines, y = [], []
    for place, row in enumerate(files.table(path), 1):
        cell = [each.strip() for each in row]
        try:
            diagnosis = int(cell[13])
            columns.numbers(cell)
        except (ValueError, IndexError):
            diagnosis = -1
        if len(cell) != 14 or not 0 <= diagnosis < 5:
            raise UserError(
                f"'{path}', row {place} is '{','.join(row)[:60]}'. Fetch the file again: a row has 13 numbers or ?, "
                "then a diagnosis from 0 to 4."
            )
        lines.append(cell[:13])
        y.append(diagnosis)
    counts = tuple(np.bincount(y, minlength=5).tolist()) if y else ()
    if official is not None and counts != official:
        raise UserError(
            f"'{path}' has {counts} patients by diagnosis, and UCI's file {official}. Fetch it again, or read it as it "
            "is with --set data.options.verify=false."
        )
    return lines, np.array(y, dtype=np.int64)


def _for_testing(strata: np.ndarray, seed: int) -> np.ndarray:
    """Choose a fifth of each stratum, rounded, so that every seed has as many test samples."""
    rng = seeds.numpy_generator(seed, "heart-disease", "test")
    chosen = np.zeros(len(strata), dtype=bool)
    for stratum in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == stratum))
        chosen[members[: round(_TEST_SHARE * len(members))]] = True
    return chosen
