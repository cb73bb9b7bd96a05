"""Rank a site's suspicious labels for review, and apply the corrections. Nothing of it leaves the site."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.config import consent
from fedskew.core import atomic_io
from fedskew.core import client_names as names
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree
from fedskew.data import corrections
from fedskew.data.corrections import CORRECTED, SPLIT, TEST, TRAIN
from fedskew.data.custom import corrected
from fedskew.data.sources import Source
from fedskew.experiment import run as experiment
from fedskew.experiment.preparation.annotators import SoftLabelCache
from fedskew.models import weights
from fedskew.parts.measures import SampleMeasures, confident_joint
from fedskew.record import reader
from fedskew.record.schema import HeaderLine
from fedskew.runtime.context import RunContext, one_thread

#: how many samples the stopping rule looks at
LOOKAHEAD = 50


@dataclass(frozen=True)
class Suspect:
    """One sample of the site: its observed label, and the label that the model suggests.

    `row` is its number among the training or the test samples, as `split` says. `probability` is the model's
    probability of the observed label, `confidence` that of the suggested label, `margin` their difference. `error` is
    the probability that the observed label is wrong.
    """

    rank: int
    split: str
    row: int
    label: int
    suggested: int
    loss: float
    probability: float
    margin: float
    confidence: float
    error: float
    #: wrong labels to expect among this sample and the 49 after it
    expected_errors_next_50: float


def samples_of(context: RunContext, client: int | None) -> dict[str, Tensor]:
    """Return the numbers of a client's training and test samples; of no client, the test samples that all share."""
    test, nothing = context.test, torch.zeros(0, dtype=torch.int64)
    if client is None:
        if test.sites is not None:
            raise UserError("every test sample belongs to a site, whose list has it. Type --client instead of --test.")
        return {TRAIN: nothing, TEST: torch.arange(len(test))}
    own = nothing if test.sites is None else (test.sites == client).nonzero().flatten()
    return {TRAIN: context.shards.shard(client, context.x).index, TEST: own}


def labels_of(context: RunContext, client: int | None) -> dict[str, Tensor]:
    """Return the observed labels of these samples."""
    test = context.test.y[samples_of(context, client)[TEST]]
    return {TRAIN: context.shards.y[:0] if client is None else context.shards.shard(client, context.x).y, TEST: test}


def rank(context: RunContext, spec: Spec, weights: Tree, client: int | None) -> list[Suspect]:
    """Rank the samples of a client by `error_probabilities`, the most suspicious first.

    Args:
        context: The data and settings of the run, from `open_run`.
        spec: The network of the run, from `open_run`.
        weights: The model to rank with, from `load_weights`.
        client: The client's number; None for the test samples that all clients share.

    Returns:
        One entry for every sample of the client, its own test samples among them.

    Raises:
        UserError: The model's outputs are not finite.
    """
    rows = samples_of(context, client)
    y, row = (torch.cat([each[TRAIN], each[TEST]]) for each in (labels_of(context, client), rows))
    if not len(y):
        return []
    with one_thread():
        logits = torch.cat([
            _logits(context, spec, weights, x, rows[part])
            for part, x in ((TRAIN, context.x), (TEST, context.test.x))
            if len(rows[part])
        ])  # fmt: skip
    if not logits.isfinite().all():
        whose = "the test samples" if client is None else f"client {client}"
        raise UserError(f"the weights give outputs for {whose} that are not finite. Name others with --weights FILE.")
    logits = logits + _prior(context, y, logits)
    p = logits.softmax(1)
    observed, (confidence, suggested) = p.gather(1, y[:, None])[:, 0], p.max(1)
    error = error_probabilities(p, y)
    order = error.argsort(descending=True, stable=True)
    loss = F.cross_entropy(logits, y, reduction="none")
    columns = (row, y, suggested, loss, observed, confidence - observed, confidence, error)
    found = zip(*(column[order].tolist() for column in columns), _expected_errors(error[order]).tolist(), strict=True)
    split = [TRAIN if place < len(rows[TRAIN]) else TEST for place in order.tolist()]
    return [Suspect(at, part, *each) for at, (part, each) in enumerate(zip(split, found, strict=True), 1)]


def _logits(context: RunContext, spec: Spec, weights: Tree, x: Tensor, rows: Tensor) -> Tensor:
    """Evaluate the network without what training adjusts; float64 [n, classes]."""
    net = context.net(spec)
    weights = {name: t.to(net.device) for name, t in weights.items()}
    batches = (context.view.eval(x[some].to(net.device)) for some in rows.split(context.score_batch))
    return torch.cat([net.frozen(weights, batch).logits.cpu().double() for batch in batches])


def _prior(context: RunContext, y: Tensor, logits: Tensor) -> Tensor:
    """Return what training added to the logits: tau log pi, pi the shares of the classes among these labels.

    Without it, a model that was trained with logit adjustment believes rare classes to be as frequent as the others.
    """
    tau = context.plan.method.stages[-1].base.prior_shift
    counts = y.bincount(minlength=logits.shape[1]).to(logits)
    return tau * (counts.clamp(min=1) / len(y)).log()


def error_probabilities(p: Tensor, y: Tensor) -> Tensor:
    """Estimate how probably each of the labels y [n] is wrong, given the model's probabilities p [n, C].

    A low probability of the label says little by itself: the model may be unsure of a whole class, most often a rare
    one. So the estimate also uses the site's own confusions, by confident learning: T[c, y] is the share of the samples
    believed to be c that are labeled y here. A sample is believed to be c if its probability of c exceeds the mean
    confidence of the samples labeled c. By Bayes, the label is wrong with probability

        1 - p[y] T[y, y] / sum_c p[c] T[c, y].

    Small counts are smoothed: each row of T gets C more samples, spread like the site's overall share of errors. That
    share gets one more sample, half of it wrong.
    """
    classes = p.shape[1]
    seen = SampleMeasures(y, p, losses=p.new_empty(0), features=p.new_empty(0))
    joint = confident_joint(seen, classes)["joint"].T.to(p)
    wrong = (joint.sum() - joint.trace() + 0.5) / (joint.sum() + 1)
    usual = (wrong / max(classes - 1, 1)).expand(classes, classes).clone().fill_diagonal_(float(1 - wrong))
    transition = (joint + classes * usual) / (joint.sum(1, keepdim=True) + classes)
    weighed = p * transition.T[y]
    return 1 - weighed.gather(1, y[:, None])[:, 0] / weighed.sum(1)


def _expected_errors(error: Tensor) -> Tensor:
    """Sum each entry and those after it, up to LOOKAHEAD in all."""
    sums = F.pad(error.cumsum(0), (1, 0))
    end = (torch.arange(len(error)) + LOOKAHEAD).clamp(max=len(error))
    return sums[end] - sums[:-1]


def precision_at(order: Sequence[int], flipped: Sequence[bool] | np.ndarray, n: int) -> float:
    """Return the share of wrong labels among the first n of `order`, whose entries index `flipped`; NaN if empty."""
    first = order[:n]
    return sum(bool(flipped[each]) for each in first) / len(first) if first else math.nan


def measure_precision(
    context: RunContext, client: int | None, suspects: Sequence[Suspect], n: int = LOOKAHEAD
) -> float:
    """Return the share of the first n suspects that are really wrong. Only simulated noise has true labels.

    It is in training labels only: those of test samples are as the data set has them.
    """
    if context.ledger is None:
        raise UserError("noise.kind is 'none', so the true labels are unknown. Leave out --check.")
    rows = slice(0, 0) if client is None else slice(*context.ledger.offsets[client : client + 2])
    place = {row: at for at, row in enumerate(context.shards.index[rows].tolist())}
    flipped = np.append(context.ledger.flipped[rows], False)
    return precision_at([place[each.row] if each.split == TRAIN else -1 for each in suspects], flipped, n)


def client_names(folder: Path, source: Source) -> list[str]:
    """Return the names of a run's clients."""
    partition = experiment.resumed_config(folder, allow_code=True).partition  # no network is built
    return names.of_clients(partition.name, partition.clients, source.site_names)


def open_run(folder: Path, allow_code: consent.Consent = False) -> tuple[RunContext, Source, Spec]:
    """Read the data of a run again and build its network; held-back samples are among those of their clients again.

    Args:
        folder: The run folder.
        allow_code: Allow a network ``module:function``: True, or a list of the modules.

    Returns:
        The context of the run, its data set, and its network.

    Raises:
        UserError: The data are not those of the run, or its code is not allowed.
    """
    config = experiment.resumed_config(folder, allow_code=allow_code)
    inputs = experiment.RunInputs(soft_labels=SoftLabelCache(folder))
    context, source, spec = experiment.prepare(config, inputs)
    started = (folder / reader.NAME).exists()
    header = reader.read(folder).header if started else HeaderLine(shards=context.shards.digest)
    if header.shards != context.shards.digest or not reader.same_files(header, source.checksums):
        raise UserError(
            f"the data differ from those of the run in '{folder}'. Restore the data that it was started with."
        )
    if config.evaluate.validation is not None:
        evaluate = config.evaluate.model_copy(update={"validation": None, "test": True})
        stop = config.stop.model_copy(update={"patience": None})
        whole = config.model_copy(update={"evaluate": evaluate, "stop": stop})
        context, source, spec = experiment.prepare(whole, inputs)
    return context, source, spec


def load_weights(context: RunContext, spec: Spec, path: Path) -> Tree:
    """Read the weights of a model from a file or a run folder; they must fit the network."""
    model, with_head = weights.fitted(weights.read(path), context.net(spec))
    if not with_head:
        classes = context.plan.task.classes
        raise UserError(f"the weights in '{path}' have no head for the run's {classes} classes. Name others.")
    return model


def save_suspects(path: Path, run: Path, suspects: Iterable[Suspect], source: Source) -> None:
    """Write the review list: each suspect's fields, the names of both labels, and an empty column for corrections.

    Args:
        path: The CSV file to write, outside of the run folder. Only its owner may read it.
        run: The run folder.
        suspects: What to list.
        source: The data set.
    """
    names, labels = corrections.sample_names(source), source.labels
    measured = [field.name for field in fields(Suspect)][5:]
    heading = ["rank", SPLIT, *names[TRAIN], "label", "label_name", "suggested", "suggested_name", *measured, CORRECTED]
    rows = []
    for each in suspects:
        named = (values[each.row] for values in names[each.split].values())
        chosen = (each.label, labels[each.label], each.suggested, labels[each.suggested])
        measures = (f"{value:.6g}" for value in astuple(each)[5:])
        rows.append([each.rank, each.split, *named, *chosen, *measures, ""])
    _save_table(path, run, [heading, *rows])


def save_corrected(
    out: Path | None, run: Path, context: RunContext, client: int | None, source: Source, path: Path
) -> tuple[Path, list[tuple[int, int]]]:
    """Apply the corrections of a client in a CSV file, and write the corrected labels.

    The user's own table or folder is written once more as CSV, beside the original unless `out` says where, and with
    the column split, so that the same samples are for testing. For other data, `out` gets the columns row and label of
    the client's training samples, which noise 'human' reads.

    Args:
        out: The CSV file to write, outside of the run folder. Only its owner may read it.
        run: The run folder.
        context: The data and settings of the run, from `open_run`.
        client: The client's number; None for the test samples that all clients share.
        source: The data set of the run, from `open_run`.
        path: The corrections, as `fedskew.data.corrections.read` reads them.

    Returns:
        The file that was written, and the label before and after of each sample of the client.

    Raises:
        UserError: A line names no sample of this client or no class, or two lines disagree.
    """
    rows = {part: each.tolist() for part, each in samples_of(context, client).items()}
    found = corrections.read(path, source, {part: set(each) for part, each in rows.items()})
    pairs = [
        (label, found[part].get(row, label))
        for part in (TRAIN, TEST)
        for row, label in zip(rows[part], labels_of(context, client)[part].tolist(), strict=True)
    ]
    data = experiment.resumed_config(run, allow_code=True).data  # no network is built
    own = Path(data.dir) if data.name == "own" and data.dir is not None else None
    if own is not None and corrected.can_be_table(own):
        where = check_outside(out or corrected.beside(own), run)
        if out is None and where.exists():
            raise UserError(
                f"'{where}' exists, perhaps with other corrections. Move it away, or name a file with --out."
            )
        whole = experiment.load_source(experiment.resumed_config(run, allow_code=True), limit=False)
        together = corrections.read_all([*map(Path, data.corrections or ()), path], whole)
        atomic_io.save(where, corrected.content(own, whole, together, where), private=True)
        return where, pairs
    if out is None:
        raise UserError(
            f"data set '{source.name}' is no table or folder of yours. Type, for example, --out labels.csv."
        )
    now = [after for _, after in pairs][: len(rows[TRAIN])]
    _save_table(out, run, [["row", "label"], *zip(rows[TRAIN], now, strict=True)])
    return out, pairs


def check_outside(path: Path, run: Path) -> Path:
    """Resolve a path, and refuse one inside the run folder, which may be shared."""
    where = path.resolve()
    if where.is_relative_to(run.resolve()):
        raise UserError(f"'{path}' is inside the run folder '{run}', which others may see. Choose a path outside it.")
    return where


def _save_table(path: Path, run: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write CSV that only its owner may read, and never into the run folder."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    atomic_io.save(check_outside(path, run), table.getvalue(), private=True)
