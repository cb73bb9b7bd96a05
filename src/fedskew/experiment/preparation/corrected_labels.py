"""Put corrected labels in the place of those that were observed; nothing else of a run changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fedskew.core.wording import number_of
from fedskew.data import corrections
from fedskew.data.corrections import TEST, TRAIN
from fedskew.data.sources import Source
from fedskew.runtime.context import RunContext


def corrected(paths: Sequence[str] | None, context: RunContext, source: Source) -> tuple[RunContext, Source]:
    """Return both with the labels in these files: after the partition and the noise, which therefore stay the same."""
    if not paths:
        return context, source
    found, shards = corrections.read_all(list(map(Path, paths)), source), context.shards
    y = _put(shards.y, shards.index.tolist(), found[TRAIN])
    tested = _put(source.test.y, range(len(source.test)), found[TEST])
    ledger = None if context.ledger is None else replace(context.ledger, observed=y.numpy())
    notes = [
        f"{number_of(len(found[part]), f'{noun} label')} reviewed, {int((old != new).sum()):,} of them changed"
        for part, noun, old, new in ((TRAIN, "training", shards.y, y), (TEST, "test", source.test.y, tested))
        if found[part]
    ]
    context = replace(context, shards=replace(shards, y=y), test=replace(context.test, y=tested), ledger=ledger)
    return context, replace(
        source, test=replace(source.test, y=tested), notes=(*source.notes, "; ".join(notes) or "no label reviewed")
    )


def _put(y: Tensor, rows: Sequence[int], labels: Mapping[int, int]) -> Tensor:
    return y.new_tensor([labels.get(row, label) for row, label in zip(rows, y.tolist(), strict=True)])
