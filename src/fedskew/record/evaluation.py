# ruff: noqa: RUF012 (pydantic copies a default)
"""The scores of a model on some samples, with intervals, as the record has them."""

from __future__ import annotations

from typing import Literal

from fedskew.record.fields import Count, Fields


class Estimate(Fields):
    """A metric and its 95 % interval. A mean over classes says over how many: those with enough samples."""

    value: float
    low: float
    high: float
    classes: Count | None = None


class ClassScores(Fields):
    """One class against the rest. A metric is missing if too few samples or patients would stand behind it."""

    samples: Count
    patients: Count | None = None
    sensitivity: Estimate | None = None
    specificity: Estimate | None = None
    auroc: Estimate | None = None


class Scores(Fields):
    """The scores of one model on some samples.

    Attributes:
        on: Whether these are test samples or held-back (validation) samples.
        model: Whose weights: those after the last round, or the chosen ones.
        client: Whose samples; None for all samples together.
        samples: The number of samples, and of patients where they are known.
        least: The fewest samples (or patients) of a class for which its metrics are there.
        ece: The expected calibration error in ten bins of equal width.
        ece_by_chance: What a perfectly calibrated model with these confidences would have on average.
        classes: The scores of each class.
    """

    on: Literal["test", "validation"] = "test"
    model: Literal["last", "best"] = "last"
    client: Count | None = None
    samples: Count
    patients: Count | None = None
    least: Count = 0
    accuracy: Estimate | None = None
    balanced_accuracy: Estimate | None = None
    macro_f1: Estimate | None = None
    macro_auroc: Estimate | None = None
    ece: float | None = None
    ece_by_chance: float | None = None
    classes: list[ClassScores] = []
