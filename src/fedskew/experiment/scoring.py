"""Score models in detail: on all samples, on each client's own, and on those held back to choose a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from fedskew.config.schema import RunConfig
from fedskew.core.errors import required
from fedskew.core.types import Arrays, Spec, Tree
from fedskew.metrics import evaluation
from fedskew.metrics.evaluation import Predictions
from fedskew.record.evaluation import Scores
from fedskew.record.schema import ValidationScores
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import Scoring
from fedskew.runtime.loop import Engine

#: what a choice needs probabilities for
DETAILED = ("macro_auroc", "ece")


def of_validation(config: RunConfig, context: RunContext, engine: Engine, spec: Spec, model: Tree) -> ValidationScores:
    """Score a model on the samples that all clients hold back."""
    wanted = config.stop.metric if config.stop.metric in DETAILED else None
    scored = engine.score(spec, model, Scoring("validation", metric=wanted))
    confusion, recall = np.array(scored["confusion"]), np.array(scored["recall"])
    right, predicted, there = confusion.diagonal(), confusion.sum(0), ~np.isnan(recall)
    samples = int(confusion.sum()) + scored.get("undecided", 0)
    labeled = confusion.sum(1)
    if wanted is not None and "probabilities" in scored:
        scored[wanted] = choosing(context, scored["probabilities"], wanted)
    f1 = 2 * right[there] / (labeled + predicted)[there].clip(1)
    fields: dict[str, Any] = {
        "samples": samples,
        "accuracy": scored["accuracy"],
        "balanced_accuracy": scored["balanced_accuracy"],
        "macro_f1": float(f1.mean()),
        "loss": scored["test_loss"],
    }
    fields |= {name: scored[name] for name in (wanted, "scored_by", "scored_lost") if name in scored}
    return ValidationScores(**fields)


def choosing(context: RunContext, probabilities: np.ndarray, metric: str) -> float:
    """Return a metric that needs probabilities, on the samples held back here."""
    labels = required(context.validation, "the validation samples").y.numpy()
    predictions = Predictions(labels, probabilities)
    return predictions.mean_auroc if metric == "macro_auroc" else predictions.calibration_error[0]


def detailed(data: Arrays, scored: dict[str, Any], on: str, model: Literal["last", "best"]) -> list[Scores]:
    """Return all scores of a model, from what an engine scored in detail: together first, then by client."""
    if "probabilities" not in scored:
        return [each | {"on": on, "model": model} for each in scored.get("details", [])]
    found, about = scored["probabilities"], {"on": on, "model": model}
    return list(_local(data, found, about) if found.ndim == 2 else _of_clients(data, found, about))


def _of_clients(data: Arrays, probabilities: np.ndarray, about: dict[str, Any]) -> Iterator[Scores]:
    """Score the clients' own models: each on its own samples or, if clients share them, on all."""
    if data.sites is not None:
        sites = data.sites.numpy()
        own = probabilities[sites.clip(0), np.arange(len(sites))]
        yield from _local(data, np.where((sites >= 0)[:, None], own, np.nan), about)
        return
    groups = None if data.groups is None else data.groups.numpy()
    for client, each in enumerate(probabilities):
        yield evaluation.scores(Predictions(data.y.numpy(), each, groups), **about, client=client)


def _local(data: Arrays, probabilities: np.ndarray, about: dict[str, Any]) -> Iterator[Scores]:
    groups = None if data.groups is None else data.groups.numpy()
    labels = data.y.numpy()
    yield evaluation.scores(Predictions(labels, probabilities, groups), **about)
    if data.sites is None:
        return
    sites = data.sites.numpy()
    for client in np.unique(sites[sites >= 0]).tolist():
        own = sites == client
        people = None if groups is None else groups[own]
        yield evaluation.scores(Predictions(labels[own], probabilities[own], people), **about, client=client)
