"""What the words of a configuration stand for, here: options, files, a network."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedskew import tree
from fedskew.config import PARTITION_NEEDS, Data, Engine, Partition, RunConfig
from fedskew.data.sources import Source
from fedskew.errors import UserError
from fedskew.models import registry as networks
from fedskew.models import weights
from fedskew.models.net import Net
from fedskew.sections import Noise
from fedskew.types import Spec, Tree


def partition_options(wanted: Partition, seed: int) -> dict[str, Any]:
    """What a partition is given beside labels, clients and its seed."""
    needed = PARTITION_NEEDS[wanted.name]
    options: dict[str, Any] = {} if needed is None else {needed: getattr(wanted, needed)}
    if wanted.name == "explicit":
        path = Path(str(wanted.lists))
        try:
            options["lists"] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"partition.lists: '{path}' is not a JSON file of index lists ({error})") from None
    more = {"dirichlet": ("min_size",), "quantity": ("paired", "upper"), "bernoulli_dirichlet": ("p", "min_size")}
    options |= {key: getattr(wanted, key) for key in more.get(wanted.name, ())}
    if wanted.legacy:
        if not 0 <= seed < 2**32:
            raise UserError(f"partition.legacy is true, and the seed {seed}; numpy's are from 0 to 2**32 - 1")
        options["legacy"] = True
    return options


def data_now(data: Data) -> str | None:
    """The folder of a run's data; none, which is FEDSKEW_DATA's, if that is set and they are gone from their own."""
    return None if data.is_gone and data.name != "own" and os.environ.get("FEDSKEW_DATA") else data.dir


def noise(config: RunConfig) -> Noise:
    """The noise with the files that it names looked up in the data folder, if they are not found as they are named."""
    named = {key: getattr(config.noise, key) for key in ("labels", "soft_labels", "matrix")}
    return config.noise.model_copy(update={key: str(_found(path, config)) for key, path in named.items() if path})


def _found(path: str, config: RunConfig) -> Path:
    """Where a file lies: as it is named, else in the data folder."""
    there = os.path.join(config.data.dir or os.environ.get("FEDSKEW_DATA") or ".", path)
    return Path(there if os.path.exists(there) and not os.path.exists(path) else path)


def digests(config: RunConfig) -> dict[str, str]:
    """Of the files that say who holds what and whose labels are wrong: files of one name may differ."""
    named = {f"noise.{key}": getattr(noise(config), key) for key in ("labels", "soft_labels", "matrix")}
    named["partition.lists"] = config.partition.lists
    return {key: hashlib.sha256(Path(path).read_bytes()).hexdigest() for key, path in named.items() if path}


def check_engine(wanted: Engine) -> None:
    """Refuse an engine that is not installed, and a device that torch cannot use here."""
    if wanted.name == "ray" and importlib.util.find_spec("ray") is None:
        raise UserError("engine 'ray' needs a package that is not installed: pip install 'fedskew[ray]'")
    try:
        torch.empty(0, device=wanted.device)
    except (RuntimeError, AssertionError):
        raise UserError(
            f"engine.device is '{wanted.device}', which torch cannot use here; 'cpu' always works"
        ) from None


def spec(config: RunConfig, source: Source) -> Spec:
    """The network that is meant; for text it is told the vocabulary."""
    name, shape = config.model.name, source.train.x.shape[1:]
    if name == "auto":
        images = "cnn2" if len(shape) == 3 and shape[1] >= 28 else "mlp"
        name = "fasttext" if source.vocab else images
    args = dict(config.model.args) | ({"head": config.model.head} if config.model.head else {})
    if source.vocab and networks.takes(name, "vocab"):
        args = {"vocab": source.vocab} | args
        if isinstance(args["vocab"], int) and args["vocab"] < source.vocab:
            raise UserError(
                f"model.args.vocab is {args['vocab']}, but the data has {source.vocab} tokens; leave it out"
            )
    return Spec(name, args)


def called(spec: Spec, module: nn.Module | None) -> str:
    """The network's name, or the class of the module that was handed over."""
    return spec.name if module is None else type(module).__name__


def weights_file(config: RunConfig) -> weights.File | None:
    """The file that the run is to start from."""
    if config.model.weights is None:
        return None
    path = _found(config.model.weights, config)
    if not path.is_absolute() and not os.path.exists(path):
        raise UserError(f"model.weights is '{path}', and there is no such file here or in the data folder")
    return weights.read(path)


def first_model(file: weights.File | None, net: Net) -> tuple[Tree, dict[str, Any]]:
    """(what the first round starts from, what the record says of it)."""
    if file is None:
        return net.initial(), {}
    model, with_head = weights.fitted(file, net)
    return model, {
        "weights_file": file.sha256,
        "weights_sha256": tree.digest(model),
        "head_from_file": with_head,
    }
