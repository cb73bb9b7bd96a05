"""Run the coordinator's app: our loop over rounds, with an engine that asks sites through Flower's Grid."""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedskew.config.schema import RunConfig
from fedskew.core import atomic_io
from fedskew.core.errors import InvalidData, UserError
from fedskew.core.types import Broadcast, ClientState, Spec, Tree, Update
from fedskew.data.sources import Source
from fedskew.experiment import run as experiment
from fedskew.experiment.callbacks import Callback
from fedskew.experiment.run import Result
from fedskew.experiment.scoring import DETAILED
from fedskew.federation import preparation
from fedskew.federation.rules import RULES, Rules, absolute_folder, parse_config, parse_rules
from fedskew.federation.score_table import TABLE, from_table
from fedskew.federation.transport.messages import Packer, pack, unpack
from fedskew.federation.transport.messenger import Answers, Messenger
from fedskew.federation.transport.polling import pause
from fedskew.methods import registry
from fedskew.record import run_dir
from fedskew.record.schema import RoundLine
from fedskew.runtime import evaluate
from fedskew.runtime.accumulate import Replies, ask_block, blocks
from fedskew.runtime.client import SCORES
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import TEST, Scoring
from fedskew.runtime.validate import UpdateValidator

log = logging.getLogger("fedskew")

RUN_ID = "run_id"
#: rules that change numbers, so a run must keep them
FIXED_RULES = ("own_data", "mean", "std", "score", "max_norm", "names")
STAND_IN = "stand-in.safetensors"
#: most test samples of one site, so that sums over sites do not overflow
MOST_SCORED = 2**40


class FederatedEngine:
    """Ask sites through Flower. Clients' states stay at the sites."""

    def __init__(self, context: RunContext, messenger: Messenger, rules: Rules, out: Path) -> None:
        self.context, self.messenger, self.rules, self.run = context, messenger, rules, _run_id(out)
        messenger.kind = preparation.kind_of(context)
        self._late: list[int] = []
        self._scoring = 0.0
        _write_rules(out, rules)
        self.validator = UpdateValidator(context, rules.max_norm, out / STAND_IN)

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        """Send broadcasts, validate the updates, and sum them up."""
        if not sent:
            return Replies()
        if sent[0].evaluate:
            return self._evaluated(sent)
        to = {each.client: each for each in sent}
        kind = "train" if sent[0].setup is None else "query"
        packer = Packer(run=self.run)
        answered = self.messenger.ask(kind, to, lambda client: packer.pack(to[client]), unpack, self._time_to_train())
        self._late = answered.late
        good, refused = self.validator.filter(to, answered.answers)
        replies = Replies(lost=answered.lost | refused, late=answered.late, answered=sorted(good))
        self.messenger.check_quorum(len(good), len(to), replies.lost)
        for block in blocks(sent):
            summed, _ = ask_block(
                self.context,
                [each for each in block if each.client in good],
                lambda _: ClientState(),
                lambda _, each, client_state: (good[each.client], client_state),
            )
            replies.absorb(summed)
        return replies

    @property
    def scores_at_clients(self) -> bool:
        return self.rules.score == "sites"

    def score(self, spec: Spec, weights: Tree, scoring: Scoring = TEST) -> dict[str, Any]:
        """Evaluate weights on the server's test data, or on the sites' test or validation samples."""
        if self.rules.score == "server" and scoring.on == "test":
            slices = evaluate.slices(self.context)
            return evaluate.scores(
                [evaluate.score_slice(self.context, spec, weights, each, scoring) for each in slices]
            )
        line = self._counts(spec, weights, scoring)
        return line | self._details(spec, weights, scoring) if scoring.detailed else line

    def _details(self, spec: Spec, weights: Tree, scoring: Scoring) -> dict[str, Any]:
        """Return the sites' own scores."""
        question = pack((spec, weights), run=self.run, detailed="yes", on=scoring.on)
        clients = range(self.context.plan.task.clients)
        try:
            answered = self.messenger.ask("evaluate", clients, lambda _: question, self._read_table)
        except UserError as error:  # such as approvals of an earlier version: the run does not need them
            log.warning("the sites' detailed scores are missing: %s", error)
            return {}
        classes, tables = self.context.plan.task.classes, sorted(answered.answers.items())
        return {"details": [from_table(table, classes, client) for client, table in tables]}

    def _read_table(self, content: Any) -> Tensor:
        try:
            table: Tensor = unpack(content)[TABLE]
            from_table(table, self.context.plan.task.classes, 0)
        except UserError:
            raise
        except Exception:  # content from a stranger may fail in any way
            raise InvalidData("scores must be a table of numbers") from None
        return table

    def _counts(self, spec: Spec, weights: Tree, scoring: Scoring) -> dict[str, Any]:
        """Return the sums of the sites' counts, and the counts."""
        words = {"on": scoring.on} if scoring.on == "validation" else {}
        question = pack((spec, weights), run=self.run, **words)
        answered = self._ask_for_scores(range(self.context.plan.task.clients), lambda _: question)
        answers = {client: answered.answers[client] for client in sorted(answered.answers)}
        line: dict[str, Any] = {
            "scored_by": "clients",
            "scored": {str(client): evaluate.client_counts(each) for client, each in answers.items()},
        }
        if answered.lost:
            line["scored_lost"] = {str(client): why for client, why in answered.lost.items()}
        if scoring.metric is not None:
            line |= _weighted_mean(answers.values(), scoring.metric)
        line |= {"late": self._late + answered.late} if answered.late else {}
        return evaluate.scores(list(answers.values())) | line

    def _evaluated(self, sent: Sequence[Broadcast]) -> Replies:
        """Let every site evaluate the weights that it would use; the personal ones are nowhere else."""
        # probabilities never leave; so the last question repeats the one before, which an approval counts once
        to = {each.client: replace(each, evaluate="counts") for each in sent}
        packer = Packer(run=self.run)
        answered = self._ask_for_scores(to, lambda client: packer.pack(to[client]))
        scored = sorted(answered.answers)
        updates = [Update(client, 0, 0, {}, {}, {SCORES: answered.answers[client]}, {}) for client in scored]
        return Replies(updates=updates, lost=answered.lost, late=self._late + answered.late)

    def _ask_for_scores(self, clients: Iterable[int], question: Callable[[int], RecordDict]) -> Answers:
        began = time.monotonic()
        answered = self.messenger.ask("evaluate", clients, question, self._read_scores)
        if not answered.lost:
            self._scoring = max(self._scoring, time.monotonic() - began)
        return answered

    def _time_to_train(self) -> float:
        """Return the deadline minus the time for scoring: a round ends with it, and sites must wake up for it."""
        deadline = self.rules.deadline
        scoring = self._scoring + pause(deadline) if self.rules.score == "sites" else 0.0
        return deadline - min(scoring, deadline / 2)

    def _read_scores(self, content: Any) -> Tree:
        scores, classes = unpack(content), self.context.plan.task.classes
        try:
            confusion, loss = scores["confusion"], scores["loss"]
            good = (
                confusion.shape == (classes, classes)
                and confusion.dtype == torch.int64
                and bool((confusion >= 0).all())
                and 0 < float(confusion.double().sum()) <= MOST_SCORED
            )
            if good and loss.shape == () and loss.dtype == torch.float64 and bool(loss.isfinite() and loss >= 0):
                more = {name: t for name, t in scores.items() if name in DETAILED}
                if all(t.shape == () and bool(((t >= 0) & (t <= 1)) | t.isnan()) for t in more.values()):
                    return {"confusion": confusion, "loss": loss} | more
        except Exception:  # content from a stranger may fail in any way
            pass
        raise InvalidData(f"scores must be a confusion matrix of 1 to {MOST_SCORED} samples and a loss of at least 0")

    def confirm(self, seen: dict[int, int]) -> None:
        """Do nothing: sites learn it from their next broadcast."""

    def close(self) -> None:
        """Do nothing: Flower owns the connections."""


def _weighted_mean(answers: Iterable[Tree], metric: str) -> dict[str, float]:
    """Return the mean of the sites' values, weighted by their samples; a site with one class only has no AUROC."""
    known = [(float(each["confusion"].sum()), float(each[metric])) for each in answers if metric in each]
    known = [(samples, value) for samples, value in known if not math.isnan(value)]
    if not known:
        return {}
    return {metric: sum(samples * value for samples, value in known) / sum(samples for samples, _ in known)}


def federate(
    grid: Grid,
    config: RunConfig,
    out: Path,
    rules: Rules = Rules(),  # noqa: B008  (frozen)
    *,
    source: Source | None = None,
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Train with the sites of a Flower federation, or continue such a run to the same weights.

    Args:
        grid: Flower's connection to the nodes.
        config: The configuration of the run.
        out: The run folder. If it holds a part of this run, the run continues there.
        rules: Deadline, quorum and the other decisions of the coordinator.
        source: The coordinator's data. Without it, the configuration or the sites decide.
        callbacks: Called at the start, after each round, and at the end.

    Returns:
        The finished run.

    Raises:
        UserError: If `out` holds another run, or too few sites answer.
    """
    resumed = (out / run_dir.CONFIG).exists()
    if resumed and experiment.resumed_config(out, config.rounds, allow_code=True) != config:
        raise UserError(f"'{out}' holds a run with another configuration. Choose another 'out'.")
    if resumed:
        _check_rules(out, rules)
    if rules.names and len(rules.names) != config.partition.clients:
        raise UserError(
            f"run config 'names' has {len(rules.names)} sites, but 'config' has partition.clients = "
            f"{config.partition.clients}. Set both to the same number."
        )
    if rules.score == "server" and any(stage.has_own_models for stage in registry.build(config.method).stages):
        raise UserError(
            f"run config 'score' is 'server', but with '{config.method}' weights stay at the sites, so only they can "
            "score. Set it to 'sites'."
        )
    messenger = Messenger(grid, config.partition.clients, rules, len(preparation.class_names(config)) or None)
    inputs = preparation.prepare_server(config, rules, source, messenger.wait_for_kind)
    inputs = replace(inputs, engine=lambda context: FederatedEngine(context, messenger, rules, out))
    if resumed:
        return experiment.resume(out, inputs=inputs, callbacks=callbacks, rounds=config.rounds, allow_code=True)
    return experiment.run(config, out, inputs=inputs, callbacks=callbacks)


def _run_id(out: Path) -> str:
    """Return our id of the run, which stays when the run continues under another number of Flower's."""
    path = out / RUN_ID
    if not path.exists():
        atomic_io.write(path, secrets.token_hex(16))
    return path.read_text()


def _write_rules(out: Path, rules: Rules) -> None:
    if not (out / RULES).exists():
        atomic_io.write(out / RULES, json.dumps({name: getattr(rules, name) for name in FIXED_RULES}))


def _check_rules(out: Path, rules: Rules) -> None:
    """Refuse to continue a run with other rules: its numbers would belong to neither."""
    before = json.loads((out / RULES).read_text()) if (out / RULES).exists() else {}
    for name, value in before.items():
        value = tuple(value) if isinstance(value, list) else value
        if getattr(rules, name) != value:
            key = name.replace("_", "-")
            raise UserError(
                f"rule '{key}' is {getattr(rules, name)!r}, but the run in '{out}' started with {value!r}. Set it "
                "back, or start another run."
            )


class RoundLog(Callback):
    """Log one line for each round."""

    def on_round(self, round: int, metrics: RoundLine) -> None:
        shown = (metrics.get(key) for key in ("replies", "asked", "accuracy"))
        log.info("round %s: %s of %s sites, accuracy %s", round, *shown)


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app that fedskew submits; the run configuration holds everything."""
    values = context.run_config

    result = federate(
        grid, parse_config(values), absolute_folder(values, "out"), parse_rules(values), callbacks=[RoundLog()]
    )
    log.info("weights_sha256 %s", result.end["weights_sha256"])
