"""Make labels wrong, and keep a ledger of the true ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew.config.noise import NoiseConfig
from fedskew.core import tree
from fedskew.core.types import Spec
from fedskew.data.noise import files, noise
from fedskew.data.noise.ledger import Ledger
from fedskew.data.shards import Shards
from fedskew.data.sources import Source
from fedskew.experiment.preparation import annotators
from fedskew.experiment.preparation.annotators import OpenEngine, SoftLabelCache
from fedskew.runtime.context import RunContext


def mislabel(
    context: RunContext,
    source: Source,
    spec: Spec,
    wanted: NoiseConfig,
    seed: int,
    cache: SoftLabelCache,
    open_engine: OpenEngine,
) -> tuple[Shards, Ledger]:
    """Return shards with the observed labels, and the ledger; `context` has the clean ones and builds annotators."""
    shards = context.shards
    y, offsets, index = shards.y.numpy(), shards.offsets.numpy(), shards.index.numpy()
    low, high = wanted.bounds
    eta = noise.rates(
        wanted.who,
        len(shards),
        seed,
        rho=wanted.rho or 0.0,
        low=low,
        high=high,
        given=wanted.rates,
        legacy=wanted.legacy,
    )
    noise.check(wanted.kind, y, offsets, source.classes, eta, wanted.scope)
    options: dict[str, Any] = {"scope": wanted.scope}
    key = ""
    if wanted.kind in ("symmetric", "pairflip", "asymmetric"):
        options["count"] = wanted.count
    if wanted.kind == "pairflip":
        options["direction"] = wanted.direction
    if wanted.mapping is not None:
        options["mapping"] = noise.mapping(wanted.mapping, source.classes)
    if wanted.matrix is not None:
        options["matrix"] = files.matrix(Path(wanted.matrix), source.classes, len(shards))
        options["mode"] = wanted.mode
    if wanted.labels is not None:
        human = files.human_labels(Path(wanted.labels), wanted.key, source.train.y.numpy(), source.classes)
        options["labels"] = human[index]
    if wanted.soft_labels is not None:
        soft = files.soft_labels(Path(wanted.soft_labels), len(source.train), source.classes)
        options["soft"] = soft[index]
    elif wanted.kind in ("h_idn", "idn") and eta.any():
        key, options["soft"] = _trained(context, source, spec, wanted, eta > 0, seed, cache, open_engine)
    if wanted.kind == "pdn":
        options["features"] = lambda rows: context.view.eval(context.x[shards.index[rows]]).flatten(1).double().numpy()
    ledger = noise.draw(wanted.kind, y, offsets, source.classes, eta, seed, **options)
    return replace(shards, y=torch.from_numpy(ledger.observed)), replace(ledger, soft_labels=key)


def _trained(
    context: RunContext,
    source: Source,
    spec: Spec,
    wanted: NoiseConfig,
    noisy: np.ndarray,
    seed: int,
    cache: SoftLabelCache,
    open_engine: OpenEngine,
) -> tuple[str, np.ndarray]:
    """Return key and soft labels of the noisy clients' annotators; idn has one annotator for all clients."""
    annotator = wanted.annotator.model_copy(update={"share": "global"}) if wanted.kind == "idn" else wanted.annotator
    key = annotators.key_of(
        checksums=source.checksums,
        shards=context.shards.digest,
        weights=tree.digest(context.net(spec).initial()),
        model=[spec.name, spec.args],
        view=repr(context.view),
        precision=context.precision,
        annotator=annotator.model_dump(),
        noisy=[] if annotator.share == "global" else np.flatnonzero(noisy).tolist(),
        seed=seed,
    )
    return key, cache.get(key, lambda: annotators.soft_labels(context, spec, annotator, noisy, seed, open_engine))
