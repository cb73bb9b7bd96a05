"""The client's end: a broadcast in, an update out; data, memory and mistakes stay at home."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedskew.config import RunConfig
from fedskew.data.sources import Source
from fedskew.flower import approval, exchange, guard, sites
from fedskew.flower.exchange import Exchange
from fedskew.flower.memory import Memory, secret
from fedskew.flower.messages import HEAD, pack, unpack, word
from fedskew.flower.settings import Rules, configured, folder, rules
from fedskew.types import Broadcast, Spec
from fedskew.work import evaluate
from fedskew.work.client import visit
from fedskew.work.site import Site, one_thread
from fedskew.work.validate import trees

log = logging.getLogger("fedskew")

#: Flower's code for "the app raised an exception"
RAISED = 2
MEMORY = Path.home() / ".fedskew" / "sites"

ABOUT = "about"


@dataclass(frozen=True)
class Agreed:
    """What this site takes part in: a configuration that it accepts, and the coordinator's rules."""

    site: Site
    spec: Spec
    config: RunConfig
    rules: Rules


#: a process that outlives a message reads its data once
_agreed: dict[str, Agreed] = {}


def client_app(source: Callable[[Context], Source] | None = None) -> ClientApp:
    """A ClientApp; `source` gives this site's data where neither its own node nor our configuration names it."""
    made = ClientApp()

    def answering(work: Callable[[RecordDict, Asked], RecordDict]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            said = message.content if message.has_content() else None
            begun = Exchange()
            try:
                begun = exchange.begin(context.node_config, message.metadata.message_type, said)
                with one_thread():
                    content = work(message.content, Asked(context, source, begun))
            except guard.Refused as reason:
                log.warning("refused: %s", reason)
                begun.refuse(str(reason))
                return Message(Error(RAISED, f"the site refused: {reason}"), reply_to=message)
            except Exception:  # its text may name a path or a patient, and Flower would send it to the coordinator
                log.exception("the coordinator's message could not be answered")
                begun.fail()
                return Message(Error(RAISED, "the site could not answer; its own log says why"), reply_to=message)
            return Message(content, reply_to=message)

        return answer

    made.train()(answering(_work))
    made.query()(answering(_work))
    made.evaluate()(answering(_score))
    made.query(ABOUT)(answering(_about))
    return made


@dataclass(frozen=True)
class Asked:
    """Where a message arrived."""

    context: Context
    source: Callable[[Context], Source] | None
    exchange: Exchange

    @property
    def node(self) -> dict[str, Any]:
        return self.context.node_config


def _agree(asked: Asked) -> Agreed:
    context = asked.context
    config, told = configured(context.run_config), rules(context.run_config, strict=False)
    asked.exchange.request(method=config.method, rounds=config.rounds)
    asked.exchange.check(config, told)
    key = repr([sorted(context.run_config.items()), sorted(context.node_config.items())])
    if key not in _agreed:
        _agreed.clear()
        own = None if asked.source is None else asked.source(context)
        site, spec = sites.prepared(config, told, context.node_config, own)
        site = replace(site, secret=secret(folder(context.node_config, "memory", MEMORY)))
        _agreed[key] = Agreed(site, spec, config, told)
    return _agreed[key]


def _client(agreed: Agreed, asked: Asked) -> int:
    return sites.number(asked.node, agreed.site.plan.task.clients, agreed.rules.names)


def _work(content: RecordDict, asked: Asked) -> RecordDict:
    """Train, or answer an entry's question. The memory is on the disk before the reply is on its way."""
    sent = unpack(content)
    asked.exchange.request(run=_run(content), **_where(sent))
    agreed = _agree(asked)
    client = _client(agreed, asked)
    sent = guard.check_broadcast(sent, client, agreed.config)
    question = guard.question(sent, agreed.site.plan)
    asked.exchange.permit(approval.label(sent.round.stage, question), agreed.spec, agreed.site.plan)
    memory = Memory(folder(asked.node, "memory", MEMORY), str(word(content, "run")), client)
    update, keep = visit(agreed.site, sent, memory.after(sent.seen))
    told = {"client": update.client, "examples": update.examples, "steps": update.steps, **update.metrics}
    asked.exchange.release(trees(update), told)
    memory.save(sent.turn, sent.seen, keep)
    return pack(update)


def _score(content: RecordDict, asked: Asked) -> RecordDict:
    """The confusion matrix and the loss on the site's own test data: two tensors."""
    spec, weights = unpack(content)
    asked.exchange.request(run=_run(content))
    agreed = _agree(asked)
    guard.check_scoring(agreed.rules)
    site = agreed.site
    asked.exchange.permit(approval.SCORES, agreed.spec, site.plan)
    pieces = [evaluate.score_slice(site, spec, weights, piece) for piece in evaluate.slices(site)]
    scores: dict[str, Any] = {name: sum(piece[name] for piece in pieces) for name in ("confusion", "loss")}
    asked.exchange.release({approval.SCORES: scores}, {})
    return pack(scores)


def _about(content: RecordDict, asked: Asked) -> RecordDict:
    """Who this is, and whether it can take part: the kind of its samples, none of them."""
    del content
    try:
        agreed = _agree(asked)
        client, kind = _client(agreed, asked), sites.kind(agreed.site)
    except guard.Refused:
        if exchange.FOLDER not in asked.node:
            raise
        # what is asked later is refused with the reason; a node that says nothing would be waited for
        names = rules(asked.context.run_config, strict=False).names
        client, kind = sites.number(asked.node, names=names), sites.own_kind(asked.node)
    about: dict[str, Any] = {"site": client} | asdict(kind)
    asked.exchange.tell("site number, number of classes, shape and type of a sample")
    return RecordDict({HEAD: ConfigRecord(about | {"shape": list(about["shape"])})})


def _run(content: RecordDict) -> str | None:
    """Our id of the run that a message is of."""
    found = content[HEAD].get("run")
    return None if found is None else str(found)


def _where(sent: Any) -> dict[str, Any]:
    """In which round and turn something is asked, for the log; rounds are counted from 1."""
    if not isinstance(sent, Broadcast):
        return {}
    numbers = {"round": getattr(sent.round, "index", None), "turn": sent.turn}
    return {name: each + (name == "round") for name, each in numbers.items() if type(each) is int}


app = client_app()
