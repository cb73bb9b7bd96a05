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
from fedskew.flower import guard, sites
from fedskew.flower.memory import Memory, secret
from fedskew.flower.messages import HEAD, pack, unpack, word
from fedskew.flower.settings import Rules, configured, folder, rules
from fedskew.work import evaluate
from fedskew.work.client import visit
from fedskew.work.site import Site, one_thread

log = logging.getLogger("fedskew")

#: Flower's code for "the app raised an exception"
RAISED = 2
MEMORY = Path.home() / ".fedskew" / "sites"

ABOUT = "about"


@dataclass(frozen=True)
class Agreed:
    """What this site takes part in: a configuration that it accepts, and the coordinator's rules."""

    site: Site
    config: RunConfig
    rules: Rules


#: a process that outlives a message reads its data once
_agreed: dict[str, Agreed] = {}


def client_app(source: Callable[[Context], Source] | None = None) -> ClientApp:
    """A ClientApp; `source` gives this site's data where neither its own node nor our configuration names it."""
    made = ClientApp()

    def answering(work: Callable[[Agreed, RecordDict, Context], RecordDict]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                with one_thread():
                    content = work(_agree(context, source), message.content, context)
            except Exception:  # its text may name a path or a patient, and Flower would send it to the coordinator
                log.exception("the coordinator's message could not be answered")
                return Message(Error(RAISED, "the site could not answer; its own log says why"), reply_to=message)
            return Message(content, reply_to=message)

        return answer

    made.train()(answering(_work))
    made.query()(answering(_work))
    made.evaluate()(answering(_score))
    made.query(ABOUT)(answering(_about))
    return made


def _agree(context: Context, source: Callable[[Context], Source] | None) -> Agreed:
    key = repr([sorted(context.run_config.items()), sorted(context.node_config.items())])
    if key not in _agreed:
        _agreed.clear()
        config, told = configured(context.run_config), rules(context.run_config, strict=False)
        site = sites.at_site(config, told, context.node_config, None if source is None else source(context))
        site = replace(site, secret=secret(folder(context.node_config, "memory", MEMORY)))
        _agreed[key] = Agreed(site, config, told)
    return _agreed[key]


def _client(site: Site, context: Context) -> int:
    return sites.number(context.node_config, site.plan.task.clients)


def _work(agreed: Agreed, content: RecordDict, context: Context) -> RecordDict:
    """Train, or answer an entry's question. The memory is on the disk before the reply is on its way."""
    client = _client(agreed.site, context)
    sent = guard.check_broadcast(unpack(content), client, agreed.config)
    memory = Memory(folder(context.node_config, "memory", MEMORY), str(word(content, "run")), client)
    update, keep = visit(agreed.site, sent, memory.after(sent.seen))
    memory.save(sent.turn, sent.seen, keep)
    return pack(update)


def _score(agreed: Agreed, content: RecordDict, context: Context) -> RecordDict:
    """The confusion matrix and the loss on the site's own test data: two tensors."""
    del context
    guard.check_scoring(agreed.rules)
    site, (spec, weights) = agreed.site, unpack(content)
    pieces = [evaluate.score_slice(site, spec, weights, piece) for piece in evaluate.slices(site)]
    return pack({name: sum(piece[name] for piece in pieces) for name in ("confusion", "loss")})


def _about(agreed: Agreed, content: RecordDict, context: Context) -> RecordDict:
    """Who this is, and whether it can take part: the kind of its samples, none of them."""
    del content
    about: dict[str, Any] = {"site": _client(agreed.site, context)} | asdict(sites.kind(agreed.site))
    return RecordDict({HEAD: ConfigRecord(about | {"shape": list(about["shape"])})})


app = client_app()
