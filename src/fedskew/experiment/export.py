"""Export a run's model for others: weights, card, network, metadata of its data, and ONNX if it is asked for."""

from __future__ import annotations

import importlib
import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes

from fedskew import config as configuration
from fedskew.config import consent
from fedskew.core import atomic_io, tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree
from fedskew.data import croissant, registry
from fedskew.models import registry as networks
from fedskew.models import weights
from fedskew.record import run_dir
from fedskew.record.schema import HeaderLine
from fedskew.report import load
from fedskew.report.publishing import model_card

MODEL, CARD, NETWORK, DATA, ONNX = "model.safetensors", "README.md", "config.json", "croissant.json", "model.onnx"


def export(
    folder: Path, out: Path, citation: str, *, onnx: bool = False, allow_code: consent.Consent = False
) -> list[Path]:
    """Write the files of a finished run's model to the folder `out`, and return their paths.

    Args:
        folder: The folder of a run.
        out: A folder that is new, empty, or has an earlier export.
        citation: BibTeX of what the run used.
        onnx: Write the network and its weights as ONNX, too.
        allow_code: Build a network ``module:function`` for ONNX: True, or a list of the modules.
    """
    (loaded,) = load.read([folder])
    header, model = loaded.run.header, weights.read(folder).tensors
    if loaded.run.end is None or loaded.run.end.weights_sha256 != tree.digest(model):
        raise UserError(f"the run in '{folder}' is not finished. Type: fedskew resume {folder}")
    _check_free(out)
    made: dict[str, str | bytes] = {
        MODEL: safetensors_bytes({name: each.contiguous() for name, each in model.items()}, {"format": "pt"}),
        CARD: model_card.page(loaded, citation),
        NETWORK: _json(_network(header)),
        DATA: _json(_metadata(header, citation)),
    }
    if onnx:
        consent.check(configuration.from_dict(header.config), folder / run_dir.CONFIG, allow_code)
        made[ONNX] = _onnx(header, model)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to '{out}': {error.strerror}. Name another folder with --out.") from None
    for name, content in made.items():
        atomic_io.save(out / name, content)
    return [out / name for name in made]


def _check_free(out: Path) -> None:
    """Refuse a folder with anything but an earlier export, which is replaced."""
    ours = {MODEL, CARD, NETWORK, DATA, ONNX}
    if out.is_dir() and (others := sorted({*os.listdir(out)} - ours)):
        raise UserError(f"'{out}' has other files, such as '{others[0]}'. Name a new folder with --out.")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _network(header: HeaderLine) -> dict[str, Any]:
    """Return what is needed to build the network again, and to prepare its inputs."""
    data, model = header["data"], header["model"]
    return {
        "network": {"name": model["name"], "args": model["args"]},
        "classes": data["labels"],
        "input": {"shape": data.shape, "mean": data.mean, "std": data.std},
        "method": header["method"],
        "fedskew": header["versions"].get("fedskew"),
    }


def _metadata(header: HeaderLine, citation: str) -> dict[str, Any]:
    data, known = header["data"], registry.datasets()
    info = known.get(header.config["data"]["name"]) if data["name"] in known else None
    return croissant.metadata(info, data["name"], header.checksums, data["labels"], citation)


def _onnx(header: HeaderLine, model: Tree) -> bytes:
    """Return the network as ONNX: batches of prepared samples in, logits out."""
    _extra("onnx")
    _extra("onnxscript")
    data, recorded = header["data"], header["model"]
    if not data.shape:
        raise UserError("the record does not say the shape of samples, as an older fedskew wrote it. Leave out --onnx.")
    spec = Spec(recorded["name"], recorded["args"])
    network = networks.build(spec, len(data["labels"]), tuple(data.shape), seed=0)
    module = network.wrapped if isinstance(network, networks.Adapted) else network
    try:
        module.load_state_dict(model)
    except RuntimeError:
        raise UserError(
            f"the weights do not fit the network '{spec.name}', which the method replaced. Leave out --onnx."
        ) from None
    kind = torch.int64 if "vocab" in spec.args else torch.float32
    samples = torch.zeros(2, *data.shape, dtype=kind)
    try:
        with _quiet():
            made = torch.onnx.export(
                module.eval(), (samples,), input_names=["samples"], output_names=["logits"], dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
            )  # fmt: skip
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
        raise UserError(f"torch cannot write the network '{spec.name}' as ONNX ({why}). Leave out --onnx.") from None
    return made.model_proto.SerializeToString()  # type: ignore[union-attr]


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's remarks about packages that it does not need here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def _extra(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError:
        raise UserError(f"--onnx needs {name}, which is not installed. Type: pip install 'fedskew[onnx]'") from None
