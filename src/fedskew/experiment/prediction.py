"""Use the model of a run: probabilities of the classes for new samples, after the run's own preprocessing."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.config import consent
from fedskew.config.schema import RunConfig
from fedskew.core import atomic_io, devices
from fedskew.core.errors import UserError
from fedskew.core.types import Spec
from fedskew.core.wording import number_of
from fedskew.data.custom import new_samples, own
from fedskew.data.custom.new_samples import NewSamples
from fedskew.data.preprocessing import saved
from fedskew.data.transforms import augment
from fedskew.experiment import views
from fedskew.models import registry as networks
from fedskew.models import weights
from fedskew.models.net import Net
from fedskew.record import reader, run_dir
from fedskew.runtime.context import one_thread

if TYPE_CHECKING:
    import pandas

_BATCH = 500


@dataclass(frozen=True, repr=False)
class PredictedSamples:
    """What a model says about samples.

    Attributes:
        samples: The name of each sample: a file, the line of a table, or a number.
        classes: The names of the classes.
        probabilities: For each sample, the probability of each class: float64 [samples, classes].
        notes: Sentences about samples that are unlike those of the training.
    """

    samples: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: np.ndarray = field(compare=False)
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The likeliest class of each sample."""
        return [self.classes[place] for place in self.probabilities.argmax(1).tolist()]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per sample: its name, the predicted class, and the probability of each class."""
        columns = [f"p({name})" for name in self.classes]
        return [
            {"sample": sample, "predicted": label} | dict(zip(columns, values, strict=True))
            for sample, label, values in zip(self.samples, self.labels, self.probabilities.tolist(), strict=True)
        ]

    def to_csv(self) -> str:
        """Return the rows as CSV, with six digits behind the point."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["sample", "predicted", *(f"p({name})" for name in self.classes)])
        for sample, label, values in zip(self.samples, self.labels, self.probabilities.tolist(), strict=True):
            writer.writerow([sample, label, *(f"{value:.6f}" for value in values)])
        return text.getvalue()

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a row per sample; pandas must be installed."""
        return views.data_frame(self.rows())

    def save(self, path: str | Path) -> None:
        """Write the rows as a CSV file."""
        atomic_io.save(Path(path), self.to_csv())

    def __repr__(self) -> str:
        return f"PredictedSamples of {number_of(len(self.samples), 'sample')}: {', '.join(self.classes)}"

    def __len__(self) -> int:
        return len(self.samples)


def predict(
    folder: Path,
    data: Any,
    *,
    module: nn.Module | None = None,
    decimal: str = "",
    missing: str = "",
    allow_code: consent.Consent = False,
) -> PredictedSamples:
    """Return what the model of a run says about new samples; `decimal` and `missing` default to the run's."""
    config = run_dir.load_config(folder)
    consent.check(config, folder / run_dir.CONFIG, allow_code)
    kept = saved.load(folder)
    said = {"decimal": decimal, "missing": missing}
    options = {name: value or str(config.data.options.get(name, "")) for name, value in said.items()}
    found = new_samples.read(data, kept, own.notation(**options))
    with one_thread():
        net = Net(
            _network(folder, config, kept, module), devices.named(config.engine.device)[0], config.engine.precision
        )
        model, _ = weights.fitted(weights.read(run_dir.model_of(folder)), net)
        logits = _logits(net, model, config, kept, found)
    if not logits.isfinite().all():
        raise UserError(f"the model of '{folder}' gives outputs that are not finite. Name a run that did not diverge.")
    return PredictedSamples(found.names, kept.labels, logits.softmax(1).numpy(), found.notes)


def _network(folder: Path, config: RunConfig, kept: saved.Preprocessing, module: nn.Module | None) -> nn.Module:
    """Build the run's network, or adapt the module that is given for it."""
    if module is not None:
        return networks.adapt(module, config.model.head, classes=len(kept.labels))
    recorded = reader.read(folder).header.model
    if recorded is None:
        raise UserError(f"the record of '{folder}' does not name a network. Restore it, or train the run again.")
    named = config.model.name
    if named == "auto" and recorded.name not in networks.known():
        raise UserError(
            f"the network of '{folder}' was a Python object, {recorded.name}. Give the same object: predict(..., "
            "model=module)."
        )
    spec = Spec(recorded.name, recorded.args)
    return networks.build(spec, len(kept.labels), kept.shape, config.seed, agreed=spec)


def _logits(net: Net, model: Any, config: RunConfig, kept: saved.Preprocessing, found: NewSamples) -> Tensor:
    """Evaluate the network as scores do; float64 [samples, classes]."""
    view = augment.view(config.data.augment, kept.mean, kept.std)
    model = {name: devices.put(tensor, net.device) for name, tensor in model.items()}
    batches = (view.eval(devices.put(some, net.device)) for some in found.x.split(_BATCH))
    return torch.cat([net.frozen(model, x).logits.cpu().double() for x in batches])
