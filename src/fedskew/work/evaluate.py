"""Scores of a model on the test data, and of a client's model after its local work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import functional, tree
from fedskew.errors import required
from fedskew.types import Broadcast, Shard, Spec, Tree
from fedskew.work.site import Site


def slices(site: Site) -> list[tuple[int, int]]:
    """The test data in pieces that do not depend on the number of workers."""
    total, size = len(site.test), site.score_batch
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def score_slice(site: Site, spec: Spec, weights: Tree, piece: tuple[int, int]) -> Tree:
    """Confusion matrix [true, predicted], undecided samples [true] and summed loss over one piece of the test data."""
    classes = site.plan.task.classes
    net, y = site.net(spec), site.test.y[slice(*piece)]
    if site.device != "cpu":
        weights = {name: t.to(net.device) for name, t in weights.items()}
    logits = net.frozen(weights, site.view.eval(site.test.x[slice(*piece)].to(net.device))).logits.cpu()
    guess = _guess(logits)
    decided = guess >= 0
    pairs = (y * classes + guess)[decided]
    confusion = torch.bincount(pairs, minlength=classes * classes).view(classes, classes)
    undecided = torch.bincount(y[~decided], minlength=classes)
    loss = F.cross_entropy(logits, y, reduction="sum").double()
    return {"confusion": confusion, "undecided": undecided, "loss": loss}


def scores(pieces: Sequence[Tree]) -> dict[str, Any]:
    """Accuracy, balanced accuracy, loss, per-class recall, prediction histogram and confusion, from all pieces.

    A sample whose logits are no numbers has no prediction: it is wrong, and in no cell of the confusion. `undecided`
    counts such samples, where there are any.
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
    return found | ({"undecided": undecided} if undecided else {})


def recalls(pieces: Sequence[Tree]) -> Tensor:
    """Per-class recall; NaN for a class the test data does not have."""
    confusion = torch.stack([piece["confusion"] for piece in pieces]).sum(0)
    held = confusion.sum(1)
    for piece in pieces:
        held += piece.get("undecided", 0)
    return confusion.diag().double() / held.double()


def _guess(logits: Tensor) -> Tensor:
    """The likeliest class; -1 where that is not known, because a logit is NaN or the highest is not finite."""
    return torch.where(logits.amax(1).isfinite(), logits.argmax(1), -1)


def memorisation(site: Site, spec: Spec, weights: Tree) -> dict[str, float | None]:
    """Accuracy on the noisy clients' training samples against observed and true labels; and on the flipped ones alone.

    None where there is no such sample.
    """
    ledger, net = required(site.ledger, "the ledger of wrong labels"), site.net(spec)
    touched = np.repeat(ledger.noisy, np.diff(ledger.offsets))
    rows = torch.from_numpy(touched.nonzero()[0])
    weights = {name: t.to(net.device) for name, t in weights.items()}
    guess = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), site.score_batch):
        some = slice(start, start + site.score_batch)
        x = site.view.eval(site.x[site.shards.index[rows[some]]].to(net.device))
        guess[some] = _guess(net.frozen(weights, x).logits).cpu()
    wrong = ledger.flipped[touched]
    found = {"observed": guess == ledger.observed[touched], "true": guess == ledger.true[touched]}
    found |= {f"flipped_{name}": right[wrong] for name, right in found.items()}
    return {name: float(right.mean()) if len(right) else None for name, right in found.items()}


def client_scores(site: Site, sent: Broadcast, shard: Shard, weights: Tree) -> dict[str, float]:
    """A client model's accuracy on its majority, minority and vacant classes, and how far it went."""
    pieces = [score_slice(site, sent.spec, weights, piece) for piece in slices(site)]
    recall = recalls(pieces)
    vacant = shard.counts == 0
    majority = functional.majority_labels(shard.counts)
    groups = {"majority": majority, "minority": ~majority & ~vacant, "vacant": vacant}
    found = {name: recall[group & ~recall.isnan()] for name, group in groups.items()}
    found["all"] = recall[~recall.isnan()]
    change = {name: weights[name] - sent.weights[name] for name in site.net(sent.spec).parameters}
    out = {f"accuracy_{name}": float(r.mean()) for name, r in found.items() if len(r)}
    out |= {f"recall_{c}": float(r) for c, r in enumerate(recall)}
    return out | {"drift": float(tree.dot(change, change))}
