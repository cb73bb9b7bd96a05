"""The global model and the clients' own ones, where a run has both: what each client gets from either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedskew.record.schema import SiteScores
from fedskew.report.blocks import Block, Paragraph, Table
from fedskew.report.load import LoadedRun
from fedskew.report.tables import RunLike, percent

MOST_CLIENTS = 100
TEXT = (
    "Accuracy of the global model and of each client's own on test samples like the client's: where clients share "
    "them, each class counts as its share of the client's training samples."
)


@dataclass(frozen=True)
class TwoScores:
    """A client's two accuracies; None where no test sample is like its own."""

    client: int
    shared: float | None
    own: float | None


def scores(run: RunLike) -> list[TwoScores]:
    """Return both accuracies of every client after the last round that has them."""
    line = next((line for line in reversed(run.rounds) if line.get("global_recall") and line.get("scored")), None)
    if line is None or line.scored is None:
        return []
    counts, of_sites = run.header.get("counts") or [], line.get("global_scored") or {}
    found = []
    for name, own in sorted(line.scored.items(), key=lambda each: int(each[0])):
        if name in of_sites:
            found.append(TwoScores(int(name), _plain(of_sites[name]), _plain(own)))
            continue
        tested = own["held"]
        shares = counts[int(name)] if int(name) < len(counts) else [1] * len(tested)
        recall = [right / max(number, 1) for right, number in zip(own.right, tested, strict=True)]
        weights = [share if number else 0 for share, number in zip(shares, tested, strict=True)]
        found.append(TwoScores(int(name), _weighted(line.global_recall or [], weights), _weighted(recall, weights)))
    return found


def _plain(counted: SiteScores) -> float:
    return sum(counted["right"]) / sum(counted["held"])


def _weighted(recall: Sequence[float], weights: Sequence[int]) -> float | None:
    total = sum(weights)
    return sum(w * r for w, r in zip(weights, recall, strict=True) if w) / total if total else None


def table(each: LoadedRun) -> Iterator[Block]:
    """Show both accuracies of a run's clients; nothing for a run with one model."""
    found = scores(each.run)
    if not found:
        return
    names = each.clients
    rows = [
        [names[one.client] if one.client < len(names) else str(one.client), percent(one.shared), percent(one.own)]
        for one in found[:MOST_CLIENTS]
    ]
    left = len(found) - len(rows)
    yield Paragraph(TEXT, "soft")
    yield Table(["client", "global model, %", "own model, %"], rows, f"{left:,} more are left out." if left else "")
