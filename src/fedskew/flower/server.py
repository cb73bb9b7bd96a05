"""The coordinator's end: our loop over rounds, with an engine that asks sites through Flower's Grid."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedskew import experiment, run_folder
from fedskew.config import RunConfig
from fedskew.data.sources import Source
from fedskew.errors import UserError
from fedskew.experiment import Progress, Result
from fedskew.flower import sites
from fedskew.flower.messages import pack, unpack
from fedskew.flower.pace import pause
from fedskew.flower.post import Post
from fedskew.flower.settings import RULES, Rules, configured, folder, rules
from fedskew.types import Broadcast, Keep, Spec, Tree
from fedskew.work import evaluate
from fedskew.work.gather import Gathered, ask_block, blocks
from fedskew.work.site import Site
from fedskew.work.validate import Inspector

log = logging.getLogger("fedskew")

RUN_ID = "run_id"
#: rules that change numbers, and not only for whom one waits
LASTING = ("own_data", "mean", "std", "score", "max_norm", "names")
STAND_IN = "stand-in.safetensors"
#: test samples of one site: sums over sites must not wrap around
MOST_SCORED = 2**40


class Federated:
    """Asks sites; keeps nothing of them: their memories are theirs."""

    def __init__(self, site: Site, post: Post, rules: Rules, out: Path) -> None:
        self.site, self.post, self.rules, self.run = site, post, rules, _run_id(out)
        post.kind = sites.kind(site)
        self._late: list[int] = []
        self._scoring = 0.0
        _keep_rules(out, rules)
        self.inspector = Inspector(site, rules.max_norm, out / STAND_IN)

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        if not sent:
            return Gathered()
        to = {each.client: each for each in sent}
        kind = "train" if sent[0].entry is None else "query"
        heard = self.post.exchange(
            kind, to, lambda client: pack(to[client], run=self.run), unpack, self._time_to_train()
        )
        self._late = heard.late
        good, refused = self.inspector.sift(to, heard.answers)
        gathered = Gathered(lost=heard.lost | refused, late=heard.late, answered=sorted(good))
        self.post.check_quorum(len(good), len(to), gathered.lost)
        for block in blocks(sent):
            answered = [each for each in block if each.client in good]
            said, _ = ask_block(self.site, answered, lambda _: Keep(), lambda _, each, keep: (good[each.client], keep))
            gathered.absorb(said)
        return gathered

    def score(self, spec: Spec, weights: Tree) -> dict[str, Any]:
        if self.rules.score == "server":
            pieces = [evaluate.score_slice(self.site, spec, weights, piece) for piece in evaluate.slices(self.site)]
            return evaluate.scores(pieces)
        began, question = time.monotonic(), pack((spec, weights), run=self.run)
        everybody = range(self.site.plan.task.clients)
        heard = self.post.exchange("evaluate", everybody, lambda _: question, self._read_scores)
        if not heard.lost:
            self._scoring = max(self._scoring, time.monotonic() - began)
        answers = {client: heard.answers[client] for client in sorted(heard.answers)}
        told: dict[str, Any] = {
            "scored_by": "clients",
            "scored": {str(c): _site_scores(each) for c, each in answers.items()},
        }
        told |= {"scored_lost": heard.lost} if heard.lost else {}
        told |= {"late": self._late + heard.late} if heard.late else {}
        return evaluate.scores(list(answers.values())) | told

    def _time_to_train(self) -> float:
        """What the deadline leaves for training: a round ends with its scoring, for which sites have to wake up."""
        deadline = self.rules.deadline
        scoring = self._scoring + pause(deadline) if self.rules.score == "sites" else 0.0
        return deadline - min(scoring, deadline / 2)

    def _read_scores(self, content: Any) -> Tree:
        scores, classes = unpack(content), self.site.plan.task.classes
        try:
            confusion, loss = scores["confusion"], scores["loss"]
            good = (
                confusion.shape == (classes, classes)
                and confusion.dtype == torch.int64
                and bool((confusion >= 0).all())
                and 0 < float(confusion.double().sum()) <= MOST_SCORED
            )
            if good and loss.shape == () and loss.dtype == torch.float64 and bool(loss.isfinite() and loss >= 0):
                return {"confusion": confusion, "loss": loss}
        except Exception:  # made by a stranger, it may fail in any way
            pass
        raise UserError(f"scores must be a confusion matrix of 1 to {MOST_SCORED} samples and a loss of at least 0")

    def settle(self, seen: dict[int, int]) -> None:
        """Sites hear it with their next broadcast."""

    def close(self) -> None:
        pass


def _site_scores(answer: Tree) -> dict[str, Any]:
    """What a round's line keeps of one site's answer, so that rounds can be compared on the sites that all have."""
    confusion = answer["confusion"]
    return {
        "right": confusion.diag().tolist(),
        "held": confusion.sum(1).tolist(),
        "predicted": confusion.sum(0).tolist(),
        "loss": float(answer["loss"]),
    }


def federate(
    grid: Grid,
    config: RunConfig,
    out: Path,
    rules: Rules = Rules(),  # noqa: B008  (frozen)
    *,
    source: Source | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a federation to its end; if `out` holds a part of this run, go on from there to the same weights."""
    begun = (out / run_folder.CONFIG).exists()
    if begun and experiment.begun(out, config.rounds, allow_code=True) != config:
        raise UserError(f"'{out}' holds a run with another configuration; choose another 'out'")
    if begun:
        _check_rules(out, rules)
    if rules.names and len(rules.names) != config.partition.clients:
        raise UserError(
            f"run config 'names' has {len(rules.names)} sites, and 'config' has partition.clients = "
            f"{config.partition.clients}; they must be equal"
        )
    post = Post(grid, config.partition.clients, rules, len(sites.class_names(config)) or None)
    given = sites.at_server(config, rules, source, post.meet)
    given = replace(given, engine=lambda site: Federated(site, post, rules, out))
    if begun:
        return experiment.resume(out, given=given, progress=progress, rounds=config.rounds, allow_code=True)
    return experiment.run(config, out, given=given, progress=progress)


def _run_id(out: Path) -> str:
    """Ours, not Flower's: it stays when a run goes on under another of Flower's."""
    path = out / RUN_ID
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.write_text(secrets.token_hex(16))
        draft.replace(path)
    return path.read_text()


def _keep_rules(out: Path, rules: Rules) -> None:
    if not (out / RULES).exists():
        run_folder.write(out / RULES, json.dumps({name: getattr(rules, name) for name in LASTING}))


def _check_rules(out: Path, rules: Rules) -> None:
    """A run that goes on with other rules would be neither of the two."""
    before = json.loads((out / RULES).read_text()) if (out / RULES).exists() else {}
    for name, value in before.items():
        value = tuple(value) if isinstance(value, list) else value
        if getattr(rules, name) != value:
            key = name.replace("_", "-")
            raise UserError(
                f"rule '{key}' is {getattr(rules, name)!r}, and the run in '{out}' began with {value!r}; set it back, "
                "or begin another run"
            )


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The whole app: everything is in the run configuration."""
    given = context.run_config

    def tell(line: dict[str, Any]) -> None:
        heard = (line.get(key) for key in ("replies", "asked", "accuracy"))
        log.info("round %s: %s of %s sites, accuracy %s", line["round"] + 1, *heard)

    result = federate(grid, configured(given), folder(given, "out"), rules(given), progress=tell)
    log.info("weights_sha256 %s", result.end["weights_sha256"])
