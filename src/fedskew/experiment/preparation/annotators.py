"""Train annotators: networks on clean labels, whose softmax decides which labels become wrong, and which ones."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from fedskew.config.noise import AnnotatorConfig
from fedskew.core import atomic_io, devices, progress, seeds, tree
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Tree
from fedskew.data.shards import Shards
from fedskew.parts import compose
from fedskew.parts.protocol import Setup, SetupResult
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.clusters import PerCluster
from fedskew.parts.stages import Method
from fedskew.parts.views import ServerContext
from fedskew.runtime import server
from fedskew.runtime.context import RunContext, one_thread
from fedskew.runtime.loop import Engine, RoundDone, rounds

OpenEngine = Callable[[RunContext], AbstractContextManager[Engine]]


@dataclass(frozen=True)
class Apart(Setup):
    """Give each client a model of its own: the fact "cluster" is its number, int64 [clients]."""

    provides: ClassVar[frozenset[str]] = frozenset({"cluster"})

    owner: tuple[int, ...]

    def decide(self, ctx: ServerContext, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> SetupResult:
        del answers
        cluster = torch.tensor(self.owner, device=ctx.rng.device)
        return SetupResult(spec, model, ctx.facts | {"cluster": cluster})


@dataclass(frozen=True)
class AnnotatorSplit:
    """The rows of the shards that one annotator learns from, and those it labels."""

    learns: Tensor
    labels: Tensor


def soft_labels(
    context: RunContext,
    spec: Spec,
    wanted: AnnotatorConfig,
    noisy: np.ndarray,
    seed: int,
    open_engine: OpenEngine,
) -> np.ndarray:
    """Train annotators, and average their softmax over the epochs.

    The result has a row for each row of the shards; rows of clients that are not noisy are 0. An annotator does not
    depend on which other clients are noisy. `context` has the clean labels.
    """
    splits = _splits(context.shards, wanted, noisy, seed)
    numbers = sorted(splits)
    owner = [0] * (numbers[-1] + 1)
    for at, number in enumerate(numbers):
        owner[number] = at
    empty = torch.empty(0, dtype=torch.int64)
    learns = [splits[n].learns if n in splits else empty for n in range(len(owner))]
    stage = compose.stage(
        setups=(Apart(tuple(owner)),), server=PerCluster(Aggregate(), len(numbers)), rounds=wanted.epochs
    )
    # Nothing is published, so this is our choice: the paper's optimizer for clients, with new moments in every epoch.
    plan = compose.plan(
        Method("annotators", (stage,)),
        replace(context.plan.task, clients=len(owner)),
        seed=seeds.key(seed, "annotators"),
        rounds=wanted.epochs,
        optimizer="adam",
        lr=3e-4,
        weight_decay=5e-4,
        epochs=1,
        batch_size=16,
    )
    training = replace(context, plan=plan, shards=_only(context.shards, learns), drop=0.0, _nets={})
    total = torch.zeros(len(context.shards.y), plan.task.classes, dtype=torch.float64)
    with one_thread(), open_engine(training) as engine:
        net = training.net(spec)
        for event in rounds(training, engine, server.begin(spec, net.initial())):
            if not isinstance(event, RoundDone):
                continue
            models = server.carried(training, event.state)
            for at, number in enumerate(numbers):
                _add_softmax(training, spec, tree.pick(models, f"{at}|"), splits[number].labels, context.shards, total)
            progress.report("annotators", event.round.index + 1, wanted.epochs, "epochs")
    return (total / wanted.epochs).numpy()


def _splits(shards: Shards, wanted: AnnotatorConfig, noisy: np.ndarray, seed: int) -> dict[int, AnnotatorSplit]:
    """Split rows by annotator number: it depends on client and fold alone, as does the annotator's randomness."""
    folds = max(wanted.crossfit, 1)
    clients = range(len(shards)) if wanted.share == "global" else np.flatnonzero(noisy).tolist()
    rows, fold = [], []
    for client in clients:
        start, end = shards.offsets[client : client + 2].tolist()
        rows.append(torch.arange(start, end))
        draw = seeds.generator(seed, "noise", "folds", client)
        fold.append(torch.randperm(end - start, generator=draw) % folds)
    if wanted.share == "global":
        clients, rows, fold = [0], [torch.cat(rows)], [torch.cat(fold)]
    splits = {}
    for client, own, part in zip(clients, rows, fold, strict=True):
        for number in range(folds):
            learns = own if folds == 1 else own[part != number]
            if len(labels := own[part == number]):
                splits[client * folds + number] = AnnotatorSplit(learns, labels)
    return splits


def _only(shards: Shards, rows: list[Tensor]) -> Shards:
    """Make shards of clients with these rows."""
    flat = torch.cat(rows)
    offsets = torch.tensor([0, *(len(each) for each in rows)]).cumsum(0)
    return Shards(shards.index[flat], shards.y[flat], offsets, shards.classes)


def _add_softmax(context: RunContext, spec: Spec, weights: Tree, rows: Tensor, shards: Shards, total: Tensor) -> None:
    """Add a network's softmax on these rows."""
    net = context.net(spec)
    weights = {name: devices.put(t, net.device) for name, t in weights.items()}
    for some in rows.split(context.score_batch):
        x = context.view.eval(devices.rows(context.x, shards.index[some], net.device))
        total[some] += net.frozen(weights, x).logits.cpu().double().softmax(1)


class SoftLabelCache:
    """Cache soft labels by key, in memory and as files for later runs."""

    def __init__(self, *folders: Path | None, read: Path | None = None) -> None:
        cache = os.environ.get("FEDSKEW_CACHE")
        self.folders = [folder for folder in (*folders, Path(cache) if cache else None) if folder is not None]
        #: a folder that is only read
        self.read = read
        self._labels: dict[str, np.ndarray] = {}

    def get(self, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the labels of a key; make and store them if they are missing."""
        if key not in self._labels:
            places = [*self.folders, *([self.read] if self.read is not None else [])]
            found = next((folder for folder in places if (folder / _file(key)).exists()), None)
            self._labels[key] = make() if found is None else _load(found / _file(key))
            for folder in self.folders:
                self.save(key, folder)
        return self._labels[key]

    def save(self, key: str, folder: Path) -> None:
        """Write the labels of a key into a folder, unless they are there."""
        path = folder / _file(key)
        if not path.exists():
            content = safetensors_bytes({"soft_labels": torch.from_numpy(self._labels[key])})
            try:
                folder.mkdir(parents=True, exist_ok=True)
                atomic_io.write(path, content, shared=True)  # other processes may write the same labels
            except OSError as error:
                raise UserError(
                    f"cannot write the annotators' soft labels into '{folder}': {error.strerror}. Make room, or choose "
                    "another folder."
                ) from None


def key_of(**inputs: Any) -> str:
    """Name soft labels by everything they depend on."""
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file(key: str) -> str:
    return f"soft-labels-{key}.safetensors"


def _load(path: Path) -> np.ndarray:
    try:
        return load_file(path)["soft_labels"].numpy()
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(
            f"'{path}' is damaged or has no soft labels ({error}). Remove it, and they are made again."
        ) from None
