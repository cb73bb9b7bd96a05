"""From clean shards to those with wrong labels, and the ledger that remembers the true ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew import tree
from fedskew.data import noise, noise_files
from fedskew.data.ledger import Ledger
from fedskew.data.shards import Shards
from fedskew.data.sources import Source
from fedskew.sections import Noise
from fedskew.types import Spec
from fedskew.work import annotate
from fedskew.work.annotate import OpenEngine, Shelf, Tell
from fedskew.work.site import Site


def mislabel(
    site: Site, source: Source, spec: Spec, wanted: Noise, seed: int, shelf: Shelf, engine: OpenEngine, tell: Tell
) -> tuple[Shards, Ledger]:
    """The shards with labels as observed, and the ledger; `site` has the clean ones, and builds annotators."""
    shards = site.shards
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
        options["matrix"] = noise_files.matrix(Path(wanted.matrix), source.classes, len(shards))
        options["mode"] = wanted.mode
    if wanted.labels is not None:
        said = noise_files.human_labels(Path(wanted.labels), wanted.key, source.train.y.numpy(), source.classes)
        options["labels"] = said[index]
    if wanted.soft_labels is not None:
        given = noise_files.soft_labels(Path(wanted.soft_labels), len(source.train), source.classes)
        options["soft"] = given[index]
    elif wanted.kind in ("h_idn", "idn") and eta.any():
        key, options["soft"] = _trained(site, source, spec, wanted, eta > 0, seed, shelf, engine, tell)
    if wanted.kind == "pdn":
        options["features"] = lambda rows: site.view.eval(site.x[shards.index[rows]]).flatten(1).double().numpy()
    ledger = noise.draw(wanted.kind, y, offsets, source.classes, eta, seed, **options)
    return replace(shards, y=torch.from_numpy(ledger.observed)), replace(ledger, soft_labels=key)


def _trained(
    site: Site,
    source: Source,
    spec: Spec,
    wanted: Noise,
    noisy: np.ndarray,
    seed: int,
    shelf: Shelf,
    engine: OpenEngine,
    tell: Tell,
) -> tuple[str, np.ndarray]:
    """(key, soft labels) of annotators for the noisy clients; idn always has one annotator for all."""
    annotator = wanted.annotator.model_copy(update={"share": "global"}) if wanted.kind == "idn" else wanted.annotator
    key = annotate.key_of(
        checksums=source.checksums,
        shards=site.shards.digest,
        weights=tree.digest(site.net(spec).initial()),
        model=[spec.name, spec.args],
        view=repr(site.view),
        precision=site.precision,
        annotator=annotator.model_dump(),
        noisy=[] if annotator.share == "global" else np.flatnonzero(noisy).tolist(),
        seed=seed,
    )
    return key, shelf.get(key, lambda: annotate.soft_labels(site, spec, annotator, noisy, seed, engine, tell))
