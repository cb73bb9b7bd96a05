"""Scores of a model on the test data, and of a client's model after local training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional
from fedskew.core import devices, tree
from fedskew.core.errors import required
from fedskew.core.types import Arrays, Broadcast, Shard, Spec, Tree
from fedskew.runtime.context import RunContext


@dataclass(frozen=True)
class Scoring:
    """On what to score a model, and what is wanted beside counts: all scores, or one metric that chooses a model."""

    on: Literal["test", "validation"] = "test"
    detailed: bool = False
    metric: str | None = None


TEST = Scoring()


def samples(context: RunContext, scoring: Scoring = TEST) -> Arrays:
    """Return the samples to score on."""
    return context.test if scoring.on == "test" else required(context.validation, "the validation samples")


def slices(context: RunContext, scoring: Scoring = TEST) -> list[tuple[int, int]]:
    """Cut the samples into pieces that do not depend on the number of workers."""
    total, size = len(samples(context, scoring)), context.score_batch
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def score_slice(
    context: RunContext,
    spec: Spec,
    weights: Tree,
    piece: tuple[int, int],
    scoring: Scoring = TEST,
    client: int | None = None,
) -> Tree:
    """Return confusion [true, predicted], undecided samples [true] and summed loss on a piece of the samples.

    Count those that belong to `client`, if it is given and they belong to any; probabilities are always of all.
    """
    classes, data = context.plan.task.classes, samples(context, scoring)
    net, y = context.net(spec), data.y[slice(*piece)]
    if context.device != devices.CPU:
        weights = {name: devices.put(t, net.device) for name, t in weights.items()}
    logits = net.frozen(weights, context.view.eval(devices.put(data.x[slice(*piece)], net.device))).logits.cpu()
    found: Tree = {"probabilities": logits.double().softmax(1)} if scoring.detailed or scoring.metric else {}
    if client is not None and data.sites is not None:
        own = data.sites[slice(*piece)] == client
        logits, y = logits[own], y[own]
    guess = _guess(logits)
    decided = guess >= 0
    pairs = (y * classes + guess)[decided]
    confusion = torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
    undecided = torch.bincount(y[~decided], minlength=classes)
    loss = F.cross_entropy(logits, y, reduction="sum").double()
    return found | {"confusion": confusion, "undecided": undecided, "loss": loss}


def scores(pieces: Sequence[Tree]) -> dict[str, Any]:
    """Return accuracy, balanced accuracy, loss, recall per class, prediction histogram and confusion of all pieces.

    A sample whose logits are no numbers has no prediction: it counts as wrong, and the confusion does not have it.
    `undecided` counts such samples, if there are any. Probabilities are added if they were asked for.
    """
    confusion = torch.stack([piece["confusion"] for piece in pieces]).sum(0)
    recall, undecided = recalls(pieces), sum(int(piece["undecided"].sum()) for piece in pieces if "undecided" in piece)
    total = int(confusion.sum()) + undecided
    found = {
        "accuracy": int(confusion.diag().sum()) / total,
        "balanced_accuracy": float(recall[~recall.isnan()].mean()),
        "test_loss": float(torch.stack([piece["loss"] for piece in pieces]).sum()) / total,
        "recall": recall.tolist(),
        "predicted": confusion.sum(0).tolist(),
        "confusion": confusion.tolist(),
    }
    if "probabilities" in pieces[0]:
        found["probabilities"] = torch.cat([piece["probabilities"] for piece in pieces]).numpy()
    return found | ({"undecided": undecided} if undecided else {})


def global_scores(context: RunContext, spec: Spec, weights: Tree) -> dict[str, Any]:
    """Return the scores of the global model that go beside those of the clients' own models."""

    def of(client: int | None) -> list[Tree]:
        return [score_slice(context, spec, weights, piece, client=client) for piece in slices(context)]

    whole = scores(of(None))
    found = {f"global_{name}": whole[name] for name in ("accuracy", "balanced_accuracy", "recall")}
    if context.test.sites is None:
        return found
    counted = {}
    for client in range(context.plan.task.clients):
        pieces = of(client)
        total = {name: torch.stack([piece[name] for piece in pieces]).sum(0) for name in pieces[0]}
        if total["confusion"].any():
            counted[str(client)] = client_counts(total)
    return found | {"global_scored": counted}


def recalls(pieces: Sequence[Tree]) -> Tensor:
    """Return the recall per class; NaN for classes without test samples."""
    confusion = torch.stack([piece["confusion"] for piece in pieces]).sum(0)
    samples = confusion.sum(1)
    for piece in pieces:
        samples += piece.get("undecided", 0)
    return confusion.diag().double() / samples.double()


def client_counts(counted: Tree) -> dict[str, Any]:
    """Return what a round's line has of one client's scores, so that rounds can be compared on common clients."""
    confusion, undecided = counted["confusion"], counted.get("undecided", 0)
    return {
        "right": confusion.diag().tolist(),
        "held": (confusion.sum(1) + undecided).tolist(),
        "predicted": confusion.sum(0).tolist(),
        "loss": float(counted["loss"]),
    }


def _guess(logits: Tensor) -> Tensor:
    """Return the likeliest class; -1 where a logit is NaN or the largest is not finite."""
    return torch.where(logits.amax(1).isfinite(), logits.argmax(1), -1)


def memorization(context: RunContext, spec: Spec, weights: Tree) -> dict[str, float | None]:
    """Return the accuracy on the noisy clients' training samples for observed and true labels, and on the wrong ones.

    A value is None if there is no such sample.
    """
    ledger, net = required(context.ledger, "the ledger of wrong labels"), context.net(spec)
    touched = np.repeat(ledger.noisy, np.diff(ledger.offsets))
    rows = torch.from_numpy(touched.nonzero()[0])
    weights = {name: devices.put(t, net.device) for name, t in weights.items()}
    guess = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), context.score_batch):
        some = slice(start, start + context.score_batch)
        x = context.view.eval(devices.rows(context.x, context.shards.index[rows[some]], net.device))
        guess[some] = _guess(net.frozen(weights, x).logits).cpu()
    wrong = ledger.flipped[touched]
    found = {"observed": guess == ledger.observed[touched], "true": guess == ledger.true[touched]}
    found |= {f"flipped_{name}": right[wrong] for name, right in found.items()}
    return {name: float(right.mean()) if len(right) else None for name, right in found.items()}


def client_scores(context: RunContext, sent: Broadcast, shard: Shard, weights: Tree) -> dict[str, float]:
    """Return a client model's accuracy on its majority, minority and vacant classes, and its squared drift."""
    pieces = [score_slice(context, sent.spec, weights, piece) for piece in slices(context)]
    recall = recalls(pieces)
    vacant = shard.counts == 0
    majority = functional.majority_labels(shard.counts)
    groups = {"majority": majority, "minority": ~majority & ~vacant, "vacant": vacant}
    found = {name: recall[group & ~recall.isnan()] for name, group in groups.items()}
    found["all"] = recall[~recall.isnan()]
    change = {name: weights[name] - sent.weights[name] for name in context.net(sent.spec).parameters}
    out = {f"accuracy_{name}": float(r.mean()) for name, r in found.items() if len(r)}
    out |= {f"recall_{c}": float(r) for c, r in enumerate(recall)}
    return out | {"drift": float(tree.dot(change, change))}
