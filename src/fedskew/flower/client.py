"""The client's end: a broadcast in, an update out; data, memory and mistakes stay at home."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedskew.data.sources import Source
from fedskew.errors import UserError
from fedskew.flower import sites
from fedskew.flower.memory import Memory, secret
from fedskew.flower.messages import HEAD, pack, unpack, word
from fedskew.flower.settings import configured, folder, rules
from fedskew.types import Broadcast
from fedskew.work import evaluate
from fedskew.work.client import visit
from fedskew.work.site import Site, one_thread

log = logging.getLogger("fedskew")

#: Flower's code for "the app raised an exception"
RAISED = 2
MEMORY = Path.home() / ".fedskew" / "sites"

ABOUT = "about"

#: a process that outlives a message reads its data once
_sites: dict[str, Site] = {}


def client_app(source: Callable[[Context], Source] | None = None) -> ClientApp:
    """A ClientApp; `source` gives this site's data where neither its own node nor our configuration names it."""
    made = ClientApp()

    def answering(work: Callable[[Site, RecordDict, Context], RecordDict]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                with one_thread():
                    content = work(_site(context, source), message.content, context)
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


def _site(context: Context, source: Callable[[Context], Source] | None) -> Site:
    key = repr([sorted(context.run_config.items()), sorted(context.node_config.items())])
    if key not in _sites:
        _sites.clear()
        own = None if source is None else source(context)
        site = sites.at_site(
            configured(context.run_config), rules(context.run_config, strict=False), context.node_config, own
        )
        _sites[key] = replace(site, secret=secret(folder(context.node_config, "memory", MEMORY)))
    return _sites[key]


def _client(site: Site, context: Context) -> int:
    return sites.number(context.node_config, site.plan.task.clients)


def _work(site: Site, content: RecordDict, context: Context) -> RecordDict:
    """Train, or answer an entry's question. The memory is on the disk before the reply is on its way."""
    sent, client = unpack(content), _client(site, context)
    if not isinstance(sent, Broadcast) or sent.client != client:
        raise UserError(f"the message is no broadcast to site {client}")
    memory = Memory(folder(context.node_config, "memory", MEMORY), str(word(content, "run")), client)
    update, keep = visit(site, sent, memory.after(sent.seen))
    memory.save(sent.turn, sent.seen, keep)
    return pack(update)


def _score(site: Site, content: RecordDict, context: Context) -> RecordDict:
    """The confusion matrix and the loss on the site's own test data: two tensors."""
    del context
    spec, weights = unpack(content)
    pieces = [evaluate.score_slice(site, spec, weights, piece) for piece in evaluate.slices(site)]
    return pack({name: sum(piece[name] for piece in pieces) for name in pieces[0]})


def _about(site: Site, content: RecordDict, context: Context) -> RecordDict:
    """Who this is, and whether it can take part: the kind of its samples, none of them."""
    del content
    about: dict[str, Any] = {"site": _client(site, context)} | asdict(sites.kind(site))
    return RecordDict({HEAD: ConfigRecord(about | {"shape": list(about["shape"])})})


app = client_app()
