"""Run a site's app: a broadcast comes in, an update leaves; data, memory and error texts stay at the site."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedskew.config.schema import RunConfig
from fedskew.core.types import Broadcast, Spec, Tree
from fedskew.data.sources import Source
from fedskew.experiment.scoring import DETAILED, choosing, detailed
from fedskew.federation import preparation
from fedskew.federation.rules import Rules, absolute_folder, parse_config, parse_rules
from fedskew.federation.score_table import TABLE, to_table
from fedskew.federation.site import exchange, guard, statements
from fedskew.federation.site.exchange import Exchange
from fedskew.federation.site.memory import Memory, secret
from fedskew.federation.transport.messages import HEAD, pack, unpack, word
from fedskew.runtime import evaluate
from fedskew.runtime.client import confirmed, visit, with_personal
from fedskew.runtime.context import RunContext, one_thread
from fedskew.runtime.validate import trees

log = logging.getLogger("fedskew")

#: Flower's code for "the app raised an exception"
RAISED = 2
MEMORY = Path.home() / ".fedskew" / "sites"

ABOUT = "about"


@dataclass(frozen=True)
class AcceptedRun:
    """A configuration that this site accepts, and the coordinator's rules."""

    context: RunContext
    spec: Spec
    config: RunConfig
    rules: Rules


#: the last accepted run, so that a process reads its data once
_accepted: dict[str, AcceptedRun] = {}


def client_app(source: Callable[[Context], Source] | None = None) -> ClientApp:
    """Make a ClientApp for a Flower project.

    Args:
        source: Returns this site's data. Without it, the node or the configuration says where the data is.

    Returns:
        An app that trains, answers questions of methods, and scores models.
    """
    app = ClientApp()

    def answering(work: Callable[[RecordDict, SiteRequest], RecordDict]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            content = message.content if message.has_content() else None
            exchanged = Exchange()
            try:
                exchanged = exchange.begin(context.node_config, message.metadata.message_type, content)
                with one_thread():
                    reply = work(message.content, SiteRequest(context, source, exchanged))
            except guard.Refused as reason:
                log.warning("refused: %s", reason)
                exchanged.refuse(str(reason))
                return Message(Error(RAISED, f"the site refused: {reason}"), reply_to=message)
            except Exception:  # its text may name a path or a patient, and Flower would send it to the coordinator
                log.exception("the coordinator's message could not be answered")
                exchanged.fail()
                return Message(Error(RAISED, "the site could not answer; its own log says why"), reply_to=message)
            return Message(reply, reply_to=message)

        return answer

    app.train()(answering(_work))
    app.query()(answering(_work))
    app.evaluate()(answering(_score))
    app.query(ABOUT)(answering(_about))
    return app


@dataclass(frozen=True)
class SiteRequest:
    """A message's surroundings: Flower's context, the project's data, and the log."""

    context: Context
    source: Callable[[Context], Source] | None
    exchange: Exchange

    @property
    def node(self) -> dict[str, Any]:
        """The node config of this site."""
        return self.context.node_config

    @property
    def memory(self) -> Path:
        """The folder of the site's memory."""
        return absolute_folder(self.node, "memory", MEMORY)


def _accept(request: SiteRequest) -> AcceptedRun:
    """Return the run that a message is about, or refuse it."""
    context = request.context
    config, rules = parse_config(context.run_config), parse_rules(context.run_config, strict=False)
    request.exchange.request(method=config.method, rounds=config.rounds)
    request.exchange.check(config, rules)
    key = repr([sorted(context.run_config.items()), sorted(context.node_config.items())])
    if key not in _accepted:
        _accepted.clear()
        source = None if request.source is None else request.source(context)
        prepared, spec = preparation.prepare_site(config, rules, context.node_config, source)
        _accepted[key] = AcceptedRun(replace(prepared, secret=secret(request.memory)), spec, config, rules)
    return _accepted[key]


def _client(accepted: AcceptedRun, request: SiteRequest) -> int:
    return preparation.client_number(request.node, accepted.context.plan.task.clients, accepted.rules.names)


def _work(content: RecordDict, request: SiteRequest) -> RecordDict:
    """Train, or answer a setup's question. The memory is on the disk before the reply is sent."""
    sent = unpack(content)
    request.exchange.request(run=_run(content), **_position(sent))
    accepted = _accept(request)
    client = _client(accepted, request)
    sent = guard.check_broadcast(sent, client, accepted.config)
    question = guard.question(sent, accepted.context.plan)
    request.exchange.permit(statements.label(sent.round.stage, question), accepted.spec, accepted.context.plan)
    memory = Memory(request.memory, str(word(content, "run")), client)
    update, client_state = visit(accepted.context, sent, memory.load(sent.seen))
    numbers = {"client": update.client, "examples": update.examples, "steps": update.steps, **update.metrics}
    request.exchange.release(trees(update), numbers)
    memory.save(sent.turn, sent.seen, client_state)
    return pack(update)


def _score(content: RecordDict, request: SiteRequest) -> RecordDict:
    """Return the confusion matrix and the loss on the site's own samples; or all scores, as one table of numbers."""
    sent = unpack(content)
    request.exchange.request(run=_run(content))
    accepted = _accept(request)
    context, scoring = accepted.context, _scoring(content)
    guard.check_scoring(accepted.rules, scoring, context.validation is not None)
    asked = statements.scored_as(scoring)
    request.exchange.permit(asked, accepted.spec, context.plan)
    spec, weights = _with_own(sent, content, accepted, request) if isinstance(sent, Broadcast) else sent
    if scoring.on == "validation" and not scoring.detailed and accepted.config.stop.metric in DETAILED:
        scoring = replace(scoring, metric=accepted.config.stop.metric)
    slices = [evaluate.score_slice(context, spec, weights, each, scoring) for each in evaluate.slices(context, scoring)]
    scores: dict[str, Any] = {name: sum(each[name] for each in slices) for name in ("confusion", "loss")}
    if scoring.metric is not None:
        value = choosing(context, evaluate.scores(slices)["probabilities"], scoring.metric)
        scores[scoring.metric] = torch.tensor(value, dtype=torch.float64)
    if scoring.detailed:
        together = replace(evaluate.samples(context, scoring), sites=None)
        found = detailed(together, evaluate.scores(slices), scoring.on, "last")
        scores = {TABLE: to_table(found[0])}
    request.exchange.release({asked: scores}, {})
    return pack(scores)


def _with_own(sent: Broadcast, content: RecordDict, accepted: AcceptedRun, request: SiteRequest) -> tuple[Spec, Tree]:
    """Return the weights that this site would use: those sent, and its personal ones from its memory."""
    client, context = _client(accepted, request), accepted.context
    sent = guard.check_broadcast(sent, client, accepted.config)
    guard.question(sent, context.plan)
    memory = Memory(request.memory, str(word(content, "run")), client)
    return sent.spec, with_personal(context, sent, confirmed(memory.load(sent.seen), sent.seen)).weights


def _scoring(content: RecordDict) -> evaluate.Scoring:
    """Return what to score on; the words are not there if a coordinator wants counts on the test data."""
    words = content[HEAD]
    return evaluate.Scoring("validation" if words.get("on") == "validation" else "test", words.get("detailed") == "yes")


def _about(content: RecordDict, request: SiteRequest) -> RecordDict:
    """Return the site's number and the kind of its samples."""
    del content
    try:
        accepted = _accept(request)
        client, kind = _client(accepted, request), preparation.kind_of(accepted.context)
    except guard.Refused:
        if exchange.FOLDER not in request.node:
            raise
        # later messages are refused with the reason; the coordinator would wait for a node that gives no number
        names = parse_rules(request.context.run_config, strict=False).names
        client, kind = preparation.client_number(request.node, names=names), preparation.own_kind(request.node)
    about: dict[str, Any] = {"site": client} | asdict(kind)
    request.exchange.answer("site number, number of classes, shape and type of a sample")
    return RecordDict({HEAD: ConfigRecord(about | {"shape": list(about["shape"])})})


def _run(content: RecordDict) -> str | None:
    """Return our id of the run that a message belongs to."""
    found = content[HEAD].get("run")
    return None if found is None else str(found)


def _position(sent: Any) -> dict[str, Any]:
    """Return round and turn of a broadcast for the log; rounds are counted from 1."""
    if not isinstance(sent, Broadcast):
        return {}
    numbers = {"round": getattr(sent.round, "index", None), "turn": sent.turn}
    return {name: each + (name == "round") for name, each in numbers.items() if type(each) is int}


app = client_app()
