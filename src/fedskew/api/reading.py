"""The Python API to use what a run left: load, detect, predict and review."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedskew.config.consent import Consent
from fedskew.core import client_names
from fedskew.core.errors import UserError
from fedskew.record import reader

if TYPE_CHECKING:
    from torch import nn

    from fedskew.experiment.prediction import PredictedSamples
    from fedskew.label_review import Suspect
    from fedskew.report.detection import Detection


def load(folder: str | Path) -> reader.RunRecord:
    """Read the record of a run, finished or not.

    Args:
        folder: The run folder, or its record file.

    Returns:
        The record: `header`, `rounds`, `setups`, and `end`, which is None before the run has ended.

    Raises:
        UserError: If there is no record.

    Examples:
        >>> import fedskew, tempfile
        >>> quick = {"clients": 3, "rounds": 1, "local_epochs": 1, "engine": "inline"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fedskew.run("fedavg", out=folder, **quick)
        ...     record = fedskew.load(folder)
        >>> len(record.rounds)
        1
    """
    return reader.read(folder)


def detect(
    folder: str | Path,
    *,
    seeds: int | None = None,
    covariance: Literal["full", "diag"] | None = None,
    component: Literal["sum", "norm"] | None = None,
    level: float | None = None,
    exclude: Sequence[str] = (),
    indicator: Literal["cells", "raw cells", "loss", "confidence", "certainty", "lid"] = "cells",
    detection: int | None = None,
    out: str | Path | None = None,
) -> Detection:
    """Detect clients with noisy labels again, from the record of a run and without training.

    Args:
        folder: The folder of a run whose method detects noisy clients, such as fednoro.
        seeds: Number of mixture fits that vote. Default: as in the run.
        covariance: Covariance of the mixture. Default: as in the run.
        component: By what the noisy component is larger: its sum or its norm. Default: as in the run.
        level: Level of the test against chance. Default: as in the run.
        exclude: Classes to leave out, by name or number. Default: none.
        indicator: What single fits use: losses per class, normalized or "raw cells", or one number per client.
            Default: "cells".
        detection: Which detection of the run to show, from 1 on. Default: the last.
        out: Folder for the page and the JSON file. Default: nothing is written.

    Returns:
        All detections of the run; `shown.noisy` are the noisy clients of the one that is shown.

    Raises:
        UserError: If the run has no detection, or a value is not valid.

    Examples:
        >>> import fedskew, tempfile
        >>> quick = {"clients": 8, "rounds": 3, "local_epochs": 1, "engine": "inline", "partition": "iid"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fedskew.run("fednoro(warmup=2)", noise="symmetric:0.5", out=folder, **quick)
        ...     found = fedskew.detect(folder)
        >>> found.shown.noisy
        []
    """
    from fedskew.report import detection as report
    from fedskew.report.html import detection_page

    chosen = {"seeds": seeds, "covariance": covariance, "component": component, "level": level}
    options = {name: value for name, value in chosen.items() if value is not None}
    found = report.detect(reader.read(folder), options, exclude, indicator, detection)
    if out is not None:
        detection_page.write(Path(out), found)
    return found


def predict(
    folder: str | Path,
    data: Any,
    *,
    model: nn.Module | None = None,
    decimal: str = "",
    missing: str = "",
    allow_code: Consent = False,
) -> PredictedSamples:
    """Predict the classes of new samples with the model of a run, after the run's own preprocessing.

    Args:
        folder: The run folder. Its best weights are used if it has some, else its last ones.
        data: A path or several: images, folders of images, a CSV file, arrays; or one array or tensor of samples.
        model: The network, if the run was given a Python object as its network. Default: none.
        decimal: The decimal mark of tables, "comma" or "point". Default: as in the run.
        missing: Cells of tables that mean no value, with commas. Default: as in the run.
        allow_code: Run the network "module:function" that the folder names: True, or a list of modules. Default: False.

    Returns:
        The predicted class and the probability of each class, for every sample.

    Raises:
        UserError: If there is no such run or file, or the samples are others than those of the training.

    Examples:
        >>> import fedskew, tempfile, torch
        >>> quick = {"clients": 3, "rounds": 1, "local_epochs": 1, "engine": "inline"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fedskew.run("fedavg", out=folder, **quick)
        ...     found = fedskew.predict(folder, torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
        >>> found.probabilities.shape
        (2, 10)
    """
    from fedskew.experiment import prediction

    return prediction.predict(Path(folder), data, module=model, decimal=decimal, missing=missing, allow_code=allow_code)


def review(
    folder: str | Path,
    client: str | int,
    *,
    weights: str | Path | None = None,
    top: int | None = None,
    out: str | Path | None = None,
    allow_code: Consent = False,
) -> list[Suspect]:
    """List the samples of one client whose labels are probably wrong, the most suspicious first.

    Args:
        folder: The run folder. The data must be at hand: this is for a site, about its own samples.
        client: The site's name, or its number in the run.
        weights: The model that judges: a file, or a run folder. Default: the last model of the run.
        top: How many samples to list. Default: all.
        out: CSV file to write, outside of the run folder and readable by its owner only. Default: none.
        allow_code: Run the network "module:function" that the folder names: True, or a list of modules. Default: False.

    Returns:
        The samples, each with its label, the suggested label and the probability that the label is wrong.

    Raises:
        UserError: If the run or the client does not exist, or the data are others than the run's.

    Examples:
        >>> import fedskew, tempfile
        >>> quick = {"clients": 3, "rounds": 1, "local_epochs": 1, "engine": "inline"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fedskew.run("fedavg", out=folder, **quick)
        ...     suspects = fedskew.review(folder, 0, top=5)
        >>> [each.rank for each in suspects]
        [1, 2, 3, 4, 5]
    """
    from fedskew import label_review

    run = Path(folder)
    if top is not None and top < 1:
        raise UserError(f"top is {top}. Give 1 or more.")
    if out is not None:
        label_review.check_outside(Path(out), run)
    site, source, spec = label_review.open_run(run, allow_code)
    number = client_names.client_called(str(client), label_review.client_names(run, source))
    found = label_review.rank(site, spec, label_review.load_weights(site, spec, Path(weights or run)), number)[:top]
    if out is not None:
        label_review.save_suspects(Path(out), run, found, source)
    return found
