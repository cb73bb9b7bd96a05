"""A site's suspicious labels, ranked for relabelling at home, and the corrections taken back; nothing of it travels."""

from __future__ import annotations

import csv
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew import consent, experiment, names, record
from fedskew.data import files
from fedskew.data.sources import Source
from fedskew.errors import UserError, nearest
from fedskew.models import weights
from fedskew.parts.measures import Seen, confident_joint
from fedskew.types import Shard, Spec, Tree
from fedskew.work.annotate import Shelf
from fedskew.work.site import Site, one_thread

#: how far the stopping rule looks ahead
AHEAD = 50
#: the column of a work list that is left empty, to be filled in where a label is wrong
CORRECTED = "corrected"


@dataclass(frozen=True)
class Suspect:
    """One sample of the site: what it is labelled, and what the model makes of that.

    `row` numbers it among the training samples; `probability` is the model's of the observed label, `confidence` that
    of the label it suggests, `margin` their difference; `error` is the probability that the observed label is wrong.
    """

    rank: int
    row: int
    label: int
    suggested: int
    loss: float
    probability: float
    margin: float
    confidence: float
    error: float
    #: wrong labels to be expected among this sample and those behind it, 50 in all
    expected_errors_next_50: float


def rank(site: Site, spec: Spec, model: Tree, client: int) -> list[Suspect]:
    """All samples of a client, the most suspicious first: by `error_probabilities`."""
    shard = site.shards.shard(client, site.x)
    if not len(shard):
        return []
    with one_thread():
        logits = _logits(site, spec, model, shard)
    if not logits.isfinite().all():
        raise UserError(f"the weights give numbers for client {client} that are not finite; take those of another run")
    p = logits.softmax(1)
    observed, (confidence, suggested) = p.gather(1, shard.y[:, None])[:, 0], p.max(1)
    error = error_probabilities(p, shard.y)
    order = error.argsort(descending=True, stable=True)
    columns = (
        shard.index,
        shard.y,
        suggested,
        F.cross_entropy(logits, shard.y, reduction="none"),
        observed,
        confidence - observed,
        confidence,
        error,
    )
    rows = zip(*(column[order].tolist() for column in columns), _ahead(error[order]).tolist(), strict=True)
    return [Suspect(place, *row) for place, row in enumerate(rows, 1)]


def _logits(site: Site, spec: Spec, model: Tree, shard: Shard) -> Tensor:
    """Of plain evaluation, whatever training adjusts; float64 [n, classes]."""
    net = site.net(spec)
    model = {name: t.to(net.device) for name, t in model.items()}
    batches = (site.view.eval(shard.x[rows].to(net.device)) for rows in shard.index.split(site.score_batch))
    return torch.cat([net.frozen(model, x).logits.cpu().double() for x in batches])


def error_probabilities(p: Tensor, y: Tensor) -> Tensor:
    """How probably each of the labels y [n] is wrong, given the model's probabilities p [n, C].

    A low p of the label alone says little: the model may be unsure of a whole class, a rare one above all, which would
    then fill the top of the list at the cleanest of sites. So the site's own habits come in, by confident learning:
    with its joint counts, which hold every class against the mean confidence of the samples labelled so, T[c, y] is the
    share of the samples believed to be c that are labelled y here. By Bayes, the label is then wrong with probability

        1 - p[y] T[y, y] / sum_c p[c] T[c, y].

    Small counts are smoothed: each row of T has C more samples, spread like the site's overall share of errors, which
    itself has one more sample, half of it wrong.
    """
    classes = p.shape[1]
    seen = Seen(y, p, losses=p.new_empty(0), features=p.new_empty(0))
    joint = confident_joint(seen, classes)["joint"].T.to(p)
    wrong = (joint.sum() - joint.trace() + 0.5) / (joint.sum() + 1)
    usual = (wrong / max(classes - 1, 1)).expand(classes, classes).clone().fill_diagonal_(float(1 - wrong))
    transition = (joint + classes * usual) / (joint.sum(1, keepdim=True) + classes)
    weighed = p * transition.T[y]
    return 1 - weighed.gather(1, y[:, None])[:, 0] / weighed.sum(1)


def _ahead(error: Tensor) -> Tensor:
    """The sum of each entry and those behind it, AHEAD in all or as many as there are."""
    sums = F.pad(error.cumsum(0), (1, 0))
    end = (torch.arange(len(error)) + AHEAD).clamp(max=len(error))
    return sums[end] - sums[:-1]


def precision_at(order: Sequence[int], flipped: Sequence[bool] | np.ndarray, n: int) -> float:
    """Share of wrong labels among the first n of `order`, whose entries number `flipped`; NaN if it is empty."""
    first = order[:n]
    return sum(bool(flipped[each]) for each in first) / len(first) if first else math.nan


def check(site: Site, client: int, suspects: Sequence[Suspect], n: int = AHEAD) -> float:
    """In simulation: the list's precision at n against the ledger."""
    if site.ledger is None:
        raise UserError("noise.kind is 'none', so there is no ledger of wrong labels to check the work list against")
    mine = slice(*site.ledger.offsets[client : client + 2])
    place = {row: at for at, row in enumerate(site.shards.index[mine].tolist())}
    return precision_at([place[each.row] for each in suspects], site.ledger.flipped[mine], n)


def client_names(folder: Path, source: Source) -> list[str]:
    """What the clients of a run are called."""
    partition = experiment.begun(folder, allow_code=True).partition  # for which no network is built
    return names.of_clients(partition.name, partition.clients, source.site_names)


def open_run(folder: Path, allow_code: consent.Consent = False) -> tuple[Site, Source, Spec]:
    """The data and the network of a run, from its configuration; they must be those it was begun with.

    A network ``module:function`` needs `allow_code`: True, or a list of the modules.
    """
    config = experiment.begun(folder, allow_code=allow_code)
    site, source, spec = experiment.prepare(config, experiment.Given(shelf=Shelf(folder)))
    header = record.read(folder).header if (folder / record.NAME).exists() else {"shards": site.shards.digest}
    if header.get("shards") != site.shards.digest or not record.same_files(header, source.checksums):
        raise UserError(f"the data are not those that the run in '{folder}' began with; give it the same again")
    return site, source, spec


def load_weights(site: Site, spec: Spec, path: Path) -> Tree:
    """The weights of a model, which must fit the network."""
    model, with_head = weights.fitted(weights.read(path), site.net(spec))
    if not with_head:
        raise UserError(f"the weights in '{path}' have no head for the run's {site.plan.task.classes} classes")
    return model


def corrected_labels(shard: Shard, path: Path, source: Source) -> Tensor:
    """The client's labels with the corrections of a CSV file: a column label, or corrected, beside what names samples.

    The latter is a work list, where an empty cell leaves the label as it is. Labels go by name, else by number. Of the
    columns that name samples (`_naming`) any will do; where there are several, they must name the same one.
    """
    labels, said = source.labels, dict[int, int]()
    named = {name: [values[row] for row in shard.index.tolist()] for name, values in _naming(source).items()}
    used, corrections = _read_corrections(path, list(named))
    places: dict[tuple[str, ...], list[int]] = {}
    for place, key in enumerate(zip(*(named[name] for name in used), strict=True)):
        places.setdefault(key, []).append(place)
    for line, key, text in corrections:
        where, sample = f"'{path}', line {line}", " ".join(f"{n} '{k}'" for n, k in zip(used, key, strict=True))
        there = places.get(key, [])
        if not there:
            raise UserError(f"{where}: {sample} is no sample of this client; correct only its own")
        if len(there) > 1:
            raise UserError(f"{where}: {sample} is {len(there)} of its samples; name {' and '.join(named)}")
        label = _class_of(text, labels, where)
        if said.setdefault(there[0], label) != label:
            raise UserError(
                f"{where}: {sample} is to be '{labels[label]}', but an earlier line says "
                f"'{labels[said[there[0]]]}'; leave one of them"
            )
    y = shard.y.clone()
    for place, label in said.items():
        y[place] = label
    return y


def _naming(source: Source) -> dict[str, Sequence[str]]:
    """How its owner knows a training sample, by column: the file and the line it is from, or else its number."""
    known = {"path": source.paths, "line": ["" if line is None else str(line) for line in source.lines]}
    found = {name: values for name, values in known.items() if values}
    return found or {"row": list(map(str, range(len(source.train))))}


def _read_corrections(path: Path, naming: Sequence[str]) -> tuple[list[str], list[tuple[int, tuple[str, ...], str]]]:
    """Which of the columns `naming` there are, and of every correction its line, their cells and the label."""
    heading, rows = files.headed(path)
    column, used = CORRECTED if CORRECTED in heading else "label", [name for name in naming if name in heading]
    if not used or column not in heading:
        has = ", ".join(heading) or "none"
        wanted = f"the column {' or '.join(naming)}, and label or {CORRECTED}"
        raise UserError(f"'{path}' must have {wanted}; it has {has}")
    found = []
    for line, row in rows:
        if len(row) > len(heading):
            raise UserError(f"'{path}', line {line} has {len(row)} cells, and the heading has {len(heading)}")
        cells = dict(zip_longest(heading, row, fillvalue=""))
        if cells[column] or column != CORRECTED:
            found.append((line, tuple(cells[name] for name in used), cells[column]))
    return used, found


def _class_of(text: str, labels: Sequence[str], where: str) -> int:
    if text in labels:
        return labels.index(text)
    if any(name.isdecimal() for name in labels):  # a number would be taken for a name, or a name for a number
        raise UserError(f"{where}: label '{text}' is unknown{nearest(text, labels)}")
    if text.isdecimal() and int(text) < len(labels):
        return int(text)
    raise UserError(f"{where}: label '{text}' is unknown{nearest(text, labels)}, or a number 0..{len(labels) - 1}")


def save_suspects(path: Path, run: Path, suspects: Iterable[Suspect], source: Source) -> None:
    """The work list as CSV: a Suspect's fields, the names of both labels, and an empty column for the corrected one.

    A row's number is of use where nothing else names a sample; a user's own table counts its rows otherwise.
    """
    naming, labels = _naming(source), source.labels
    measured = [field.name for field in fields(Suspect)][4:]
    heading = ["rank", *naming, "label", "label_name", "suggested", "suggested_name", *measured, CORRECTED]
    rows = []
    for each in suspects:
        named = (values[each.row] for values in naming.values())
        chosen = (each.label, labels[each.label], each.suggested, labels[each.suggested])
        rows.append([each.rank, *named, *chosen, *(f"{value:.6g}" for value in astuple(each)[4:]), ""])
    save_privately(path, run, [heading, *rows])


def save_labels(path: Path, run: Path, shard: Shard, y: Tensor) -> None:
    """All labels of a client as CSV, with the columns row and label (numbers): what noise 'human' reads."""
    save_privately(path, run, [["row", "label"], *zip(shard.index.tolist(), y.tolist(), strict=True)])


def check_outside(path: Path, run: Path) -> Path:
    """Where a file really lies, which must not be in the run folder: that is what gets shared."""
    where = path.resolve()
    if where.is_relative_to(run.resolve()):
        raise UserError(
            f"'{path}' is inside the run folder '{run}', which others may see; choose a place outside of it"
        )
    return where


def save_privately(path: Path, run: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write CSV that only its owner may read, whole or not at all, and never into the run folder."""
    where = check_outside(path, run)
    try:
        if where.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        descriptor, draft = tempfile.mkstemp(dir=where.parent, prefix=f".{where.name}.")  # made with mode 600
        try:
            with open(descriptor, "w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
            os.replace(draft, where)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}; choose another --out") from None
