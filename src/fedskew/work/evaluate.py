"""Scores of a model on the test data, and of a client's model after its local work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional, tree
from fedskew.types import Broadcast, Shard, Spec, Tree
from fedskew.work.site import Site


def slices(site: Site) -> list[tuple[int, int]]:
    """The test data in pieces that do not depend on the number of workers."""
    total, size = len(site.test), site.score_batch
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def score_slice(site: Site, spec: Spec, weights: Tree, piece: tuple[int, int]) -> Tree:
    """Confusion matrix [true, predicted] and summed loss over one piece of the test data."""
    classes = site.plan.task.classes
    net, y = site.net(spec), site.test.y[slice(*piece)]
    if site.device != "cpu":
        weights = {name: t.to(net.device) for name, t in weights.items()}
    logits = net.frozen(weights, site.view.eval(site.test.x[slice(*piece)].to(net.device))).logits.cpu()
    pairs = y * classes + logits.argmax(1)
    confusion = torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
    return {"confusion": confusion, "loss": F.cross_entropy(logits, y, reduction="sum").double()}


def scores(pieces: Sequence[Tree]) -> dict[str, Any]:
    """Accuracy, balanced accuracy, loss, per-class recall, prediction histogram and confusion, from all pieces."""
    confusion = torch.stack([piece["confusion"] for piece in pieces]).sum(0)
    total = int(confusion.sum())
    recall = recalls(confusion)
    return {
        "accuracy": int(confusion.diag().sum()) / total,
        "balanced_accuracy": float(recall[~recall.isnan()].mean()),
        "test_loss": float(torch.stack([piece["loss"] for piece in pieces]).sum()) / total,
        "recall": recall.tolist(),
        "predicted": confusion.sum(0).tolist(),
        "confusion": confusion.tolist(),
    }


def recalls(confusion: Tensor) -> Tensor:
    """Per-class recall; NaN for a class the test data does not have."""
    return confusion.diag().double() / confusion.sum(1).double()


def memorisation(site: Site, spec: Spec, weights: Tree) -> dict[str, float | None]:
    """Accuracy on the noisy clients' training samples against observed and true labels; and on the flipped ones alone.

    None where there is no such sample.
    """
    ledger, net = site.ledger, site.net(spec)
    assert ledger is not None
    touched = np.repeat(ledger.noisy, np.diff(ledger.offsets))
    rows = torch.from_numpy(touched.nonzero()[0])
    weights = {name: t.to(net.device) for name, t in weights.items()}
    guess = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), site.score_batch):
        some = slice(start, start + site.score_batch)
        x = site.view.eval(site.x[site.shards.index[rows[some]]].to(net.device))
        guess[some] = net.frozen(weights, x).logits.argmax(1).cpu()
    wrong = ledger.flipped[touched]
    found = {"observed": guess == ledger.observed[touched], "true": guess == ledger.true[touched]}
    found |= {f"flipped_{name}": right[wrong] for name, right in found.items()}
    return {name: float(right.mean()) if len(right) else None for name, right in found.items()}


def client_scores(site: Site, sent: Broadcast, shard: Shard, weights: Tree) -> dict[str, float]:
    """A client model's accuracy on its majority, minority and vacant classes, and how far it went."""
    pieces = [score_slice(site, sent.spec, weights, piece) for piece in slices(site)]
    recall = recalls(torch.stack([piece["confusion"] for piece in pieces]).sum(0))
    vacant = shard.counts == 0
    majority = functional.majority_labels(shard.counts)
    groups = {"majority": majority, "minority": ~majority & ~vacant, "vacant": vacant}
    found = {name: recall[group & ~recall.isnan()] for name, group in groups.items()}
    found["all"] = recall[~recall.isnan()]
    change = {name: weights[name] - sent.weights[name] for name in site.net(sent.spec).parameters}
    out = {f"accuracy_{name}": float(r.mean()) for name, r in found.items() if len(r)}
    out |= {f"recall_{c}": float(r) for c, r in enumerate(recall)}
    return out | {"drift": float(tree.dot(change, change))}
