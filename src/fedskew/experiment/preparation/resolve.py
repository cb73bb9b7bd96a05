"""Find what a configuration names: options, files, the network."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from fedskew.config.noise import NoiseConfig
from fedskew.config.partition import PARTITION_NEEDS, PartitionConfig
from fedskew.config.schema import DataConfig, EngineConfig, RunConfig
from fedskew.core import devices, tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree
from fedskew.data.sources import Source
from fedskew.models import registry as networks
from fedskew.models import weights
from fedskew.models.net import Net


def partition_options(wanted: PartitionConfig, seed: int) -> dict[str, Any]:
    """Return the options of a partition, beside labels, clients and seed."""
    needed = PARTITION_NEEDS[wanted.name]
    options: dict[str, Any] = {} if needed is None else {needed: getattr(wanted, needed)}
    if wanted.name == "explicit":
        path = Path(str(wanted.lists))
        try:
            options["lists"] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(
                f"partition.lists: '{path}' has no lists of sample numbers ({error}). Save them as JSON."
            ) from None
    more = {"dirichlet": ("min_size",), "quantity": ("paired", "upper"), "bernoulli_dirichlet": ("p", "min_size")}
    options |= {key: getattr(wanted, key) for key in more.get(wanted.name, ())}
    if wanted.legacy:
        if not 0 <= seed < 2**32:
            raise UserError(
                f"partition.legacy needs a seed from 0 to 2**32 - 1, and the seed is {seed}. Type another --seed."
            )
        options["legacy"] = True
    return options


def data_now(data: DataConfig) -> str | None:
    """Return the folder of a run's data; None, which means FEDSKEW_DATA, if the folder no longer exists."""
    return None if data.is_gone and data.name != "own" and os.environ.get("FEDSKEW_DATA") else data.dir


def noise(config: RunConfig) -> NoiseConfig:
    """Return the noise section, with its files looked up in the data folder where they are not found as named."""
    named = {key: getattr(config.noise, key) for key in ("labels", "soft_labels", "matrix")}
    return config.noise.model_copy(update={key: str(_found(path, config)) for key, path in named.items() if path})


def _found(path: str, config: RunConfig) -> Path:
    """Return the path of a file: as it is named, or else in the data folder."""
    there = os.path.join(config.data.dir or os.environ.get("FEDSKEW_DATA") or ".", path)
    return Path(there if os.path.exists(there) and not os.path.exists(path) else path)


def digests(config: RunConfig) -> dict[str, str]:
    """Return the SHA-256 of the files of partition and noise, because files of the same name may differ."""
    named = {f"noise.{key}": getattr(noise(config), key) for key in ("labels", "soft_labels", "matrix")}
    named["partition.lists"] = config.partition.lists
    found = {key: hashlib.sha256(Path(path).read_bytes()).hexdigest() for key, path in named.items() if path}
    if config.data.corrections is not None:
        content = b"".join(Path(path).read_bytes() for path in config.data.corrections)
        found["data.corrections"] = hashlib.sha256(content).hexdigest()
    return found


def check_engine(wanted: EngineConfig) -> None:
    """Refuse an engine that is not installed, a device that is not here, and a precision that nobody has chosen."""
    if wanted.precision == "auto":  # each machine of a federation would choose its own
        raise UserError("engine.precision is 'auto', which depends on the machine. Type --precision float32, or bf16.")
    if wanted.name == "ray" and importlib.util.find_spec("ray") is None:
        raise UserError("engine 'ray' needs a package that is not installed. Type: pip install 'fedskew[ray]'")
    if wanted.name != "ray":  # whose machines have devices of their own
        devices.named(wanted.device)


def spec(config: RunConfig, source: Source) -> Spec:
    """Return the network to build; a network for text gets the size of the vocabulary."""
    name, shape = config.model.name, source.train.x.shape[1:]
    if name == "auto":
        images = "cnn2" if len(shape) == 3 and shape[1] >= 28 else "mlp"
        name = "fasttext" if source.vocab else images
    args = dict(config.model.args) | ({"head": config.model.head} if config.model.head else {})
    if source.vocab and networks.takes(name, "vocab"):
        args = {"vocab": source.vocab} | args
        if isinstance(args["vocab"], int) and args["vocab"] < source.vocab:
            raise UserError(
                f"model.args.vocab is {args['vocab']}, but the data has {source.vocab} tokens. Leave it out."
            )
    return Spec(name, args)


def called(spec: Spec, module: nn.Module | None) -> str:
    """Return the network's name, or the class of the module given in Python."""
    return spec.name if module is None else type(module).__name__


def weights_file(config: RunConfig) -> weights.WeightsFile | None:
    """Return the file of weights that the run starts from."""
    if config.model.weights is None:
        return None
    path = _found(config.model.weights, config)
    if not path.is_absolute() and not os.path.exists(path):
        raise UserError(f"model.weights is '{path}', which is neither here nor in the data folder. Check the path.")
    return weights.read(path)


def first_model(file: weights.WeightsFile | None, net: Net) -> tuple[Tree, dict[str, Any]]:
    """Return the weights before the first round, and what the record says about them."""
    if file is None:
        return net.initial(), {}
    model, with_head = weights.fitted(file, net)
    return model, {"weights_file": file.sha256, "weights_sha256": tree.digest(model), "head_from_file": with_head}
