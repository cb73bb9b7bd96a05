"""Annotators: networks trained for real on clean labels, whose doubts say which labels go wrong, and to what."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from fedskew import seeds, tree
from fedskew.data.shards import Shards
from fedskew.errors import UserError
from fedskew.parts import compose
from fedskew.parts.protocol import Entry, Settled
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.clusters import PerCluster
from fedskew.parts.stages import Card, Method
from fedskew.parts.views import Desk
from fedskew.sections import Annotator
from fedskew.types import Spec, Tree
from fedskew.work import server
from fedskew.work.loop import Done, Engine, rounds
from fedskew.work.site import Site, one_thread

CARD = Card("annotators", "", 0, "", {}, "", (), "", "", "")

OpenEngine = Callable[[Site], AbstractContextManager[Engine]]
#: called with a sentence on how far it is
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Apart(Entry):
    """Everybody with a model of their own: the fact "cluster" is the number of each client's, int64 [clients]."""

    gives: ClassVar[frozenset[str]] = frozenset({"cluster"})

    owner: tuple[int, ...]

    def settle(self, desk: Desk, spec: Spec, model: Tree, answers: Mapping[int, Tree]) -> Settled:
        del answers
        cluster = torch.tensor(self.owner, device=desk.rng.device)
        return Settled(spec, model, desk.facts | {"cluster": cluster})


@dataclass(frozen=True)
class Pupil:
    """One annotator: the rows of the shards it learns from and those it judges."""

    learns: Tensor
    judges: Tensor


def soft_labels(
    site: Site, spec: Spec, wanted: Annotator, noisy: np.ndarray, seed: int, engine: OpenEngine, tell: Tell
) -> np.ndarray:
    """The annotators' softmax, averaged over their epochs, for the noisy clients' rows of the shards; others are 0.

    Nobody's annotator depends on who else is noisy. `site` has the clean labels.
    """
    pupils = _pupils(site.shards, wanted, noisy, seed)
    numbers = sorted(pupils)
    owner = [0] * (numbers[-1] + 1)
    for at, number in enumerate(numbers):
        owner[number] = at
    empty = torch.empty(0, dtype=torch.int64)
    learns = [pupils[n].learns if n in pupils else empty for n in range(len(owner))]
    stage = compose.stage(
        entries=(Apart(tuple(owner)),), server=PerCluster(Aggregate(), len(numbers)), rounds=wanted.epochs
    )
    # Our choice, as nothing is published: the paper's optimiser for clients, with new moments in every epoch.
    plan = compose.plan(
        Method("annotators", CARD, (stage,)),
        replace(site.plan.task, clients=len(owner)),
        seed=seeds.key(seed, "annotators"),
        rounds=wanted.epochs,
        optimiser="adam",
        lr=3e-4,
        weight_decay=5e-4,
        epochs=1,
        batch=16,
    )
    class_room = replace(site, plan=plan, shards=_only(site.shards, learns), drop=0.0, _nets={})
    judged = torch.zeros(len(site.shards.y), plan.task.classes, dtype=torch.float64)
    with one_thread(), engine(class_room) as opened:
        net = class_room.net(spec)
        for event in rounds(class_room, opened, server.begin(spec, net.initial())):
            if not isinstance(event, Done):
                continue
            models = server.carried(class_room, event.state)
            for at, number in enumerate(numbers):
                _judge(class_room, spec, tree.pick(models, f"{at}|"), pupils[number].judges, site.shards, judged)
            tell(f"annotators: epoch {event.round.index + 1} of {wanted.epochs}")
    return (judged / wanted.epochs).numpy()


def _pupils(shards: Shards, wanted: Annotator, noisy: np.ndarray, seed: int) -> dict[int, Pupil]:
    """By a number that depends on the client and the fold alone, and so does all the randomness of an annotator."""
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
    pupils = {}
    for client, mine, part in zip(clients, rows, fold, strict=True):
        for number in range(folds):
            learns = mine if folds == 1 else mine[part != number]
            if len(judges := mine[part == number]):
                pupils[client * folds + number] = Pupil(learns, judges)
    return pupils


def _only(shards: Shards, rows: list[Tensor]) -> Shards:
    """Shards of other clients, who hold these rows."""
    flat = torch.cat(rows)
    offsets = torch.tensor([0, *(len(each) for each in rows)]).cumsum(0)
    return Shards(shards.index[flat], shards.y[flat], offsets, shards.classes)


def _judge(site: Site, spec: Spec, weights: Tree, rows: Tensor, shards: Shards, judged: Tensor) -> None:
    """Add a network's softmax on these rows."""
    net = site.net(spec)
    weights = {name: t.to(net.device) for name, t in weights.items()}
    for some in rows.split(site.score_batch):
        x = site.view.eval(site.x.index_select(0, shards.index[some]).to(net.device))
        judged[some] += net.frozen(weights, x).logits.cpu().double().softmax(1)


class Shelf:
    """Soft labels by key: in memory, and as files in folders that keep them for later runs."""

    def __init__(self, *folders: Path | None, read: Path | None = None) -> None:
        cache = os.environ.get("FEDSKEW_CACHE")
        self.folders = [folder for folder in (*folders, Path(cache) if cache else None) if folder is not None]
        #: where labels are looked for, too, and nothing is written
        self.read = read
        self._held: dict[str, np.ndarray] = {}

    def get(self, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """What lies here under the key, or what `make` makes, which is then kept."""
        if key not in self._held:
            places = [*self.folders, *([self.read] if self.read is not None else [])]
            found = next((folder for folder in places if (folder / _file(key)).exists()), None)
            self._held[key] = make() if found is None else _load(found / _file(key))
            for folder in self.folders:
                self.save(key, folder)
        return self._held[key]

    def save(self, key: str, folder: Path) -> None:
        """Write to a folder, unless it is there already."""
        path = folder / _file(key)
        if not path.exists():
            content = safetensors_bytes({"soft_labels": torch.from_numpy(self._held[key])})
            draft = folder / f".{path.name}.{os.getpid()}"  # other processes may write the same labels
            try:
                folder.mkdir(parents=True, exist_ok=True)
                draft.write_bytes(content)
                os.replace(draft, path)
            except OSError as error:
                with suppress(OSError):
                    draft.unlink(missing_ok=True)
                raise UserError(
                    f"cannot write the annotators' soft labels into '{folder}': {error.strerror}; make room, or choose "
                    "another folder"
                ) from None


def key_of(**all_that_matters: Any) -> str:
    """A short name for soft labels that were made from exactly this."""
    text = json.dumps(all_that_matters, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file(key: str) -> str:
    return f"soft-labels-{key}.safetensors"


def _load(path: Path) -> np.ndarray:
    try:
        return load_file(path)["soft_labels"].numpy()
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"'{path}' is damaged or holds no soft labels ({error}); remove it to make them anew") from None
