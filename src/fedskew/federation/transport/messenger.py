"""Letters to sites through Flower's Grid: who is there, what is on its way, who is late."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedskew.errors import UserError
from fedskew.flower.client import ABOUT
from fedskew.flower.messages import pack, word
from fedskew.flower.pace import pause
from fedskew.flower.settings import Rules
from fedskew.flower.sites import Kind

log = logging.getLogger("fedskew")

#: Flower's codes for letters that nobody will answer any more: the node or its process is gone, or the letter expired
GONE = frozenset({3, 4, 5, 8})

#: what samples may be made of, and how many numbers one of each class may have: memory is taken for them
DTYPES = frozenset({"uint8", "float32", "int64"})
LARGEST = 2**28
#: letters of what a site says of itself
LONGEST = 300

NOT_CONNECTED = "not connected"
#: seconds that a site which has left is waited for: it may only be restarting
GRACE = 60.0

#: a node, and since when it has been there: one that was restarted has lost its letters
Node = tuple[int, str]


def _brief(text: str | None) -> str:
    """What a site wrote, as one short line that a terminal can be shown."""
    text = text or ""
    line = "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST])
    return line if len(text) <= LONGEST else f"{line}..."


@dataclass
class Heard:
    """Answers by client; why others are lost; whose answers to an earlier turn came in meanwhile."""

    answers: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)


class Post:
    """Knows which node is which client, and sends again what a node that went away did not answer.

    Nobody waits for a client that is not connected, nor for one that owes an answer to an earlier turn: it is asked
    again when it comes back, or when that answer comes in.
    """

    def __init__(self, grid: Grid, clients: int, rules: Rules, classes: int | None = None) -> None:
        self.grid, self.clients, self.rules, self.classes = grid, clients, rules, classes
        self.kind: Kind | None = None
        self._clients: dict[int, Node] = {}
        self._asked: dict[Node, str] = {}
        self._claims: dict[Node, Message] = {}
        self._overdue: dict[str, int] = {}
        self._silent: set[int] = set()
        self._refused: dict[Node, str] = {}
        self._places = dict(rules.sites)
        self._seen = dict.fromkeys(range(clients), time.monotonic())

    def meet(self) -> Kind:
        """Wait until a quorum have data of one kind, whoever came first: all must have that."""
        began, need = time.monotonic(), self._quorum(self.clients)
        kinds = Counter[Kind]()
        while max(kinds.values(), default=0) < need:
            time.sleep(pause(time.monotonic() - began))
            self._look()
            said = dict(self._claim(*each) for each in self._claims.items())
            if len(said) != kinds.total():
                log.info(
                    "%d of %d sites are here; %d with data of one kind are waited for", len(said), self.clients, need
                )
            kinds = Counter(said.values())
        self.kind = kinds.most_common(1)[0][0]
        return self.kind

    def exchange(
        self,
        kind: str,
        clients: Iterable[int],
        letter: Callable[[int], RecordDict],
        read: Callable[[RecordDict], Any],
        within: float | None = None,
    ) -> Heard:
        """Ask all `clients`; ends when all have answered, or when the quorum has and nobody else can be expected to.

        After `within` seconds, by default the deadline, nobody is.
        """
        wanted, heard = list(clients), Heard()
        within = self.rules.deadline if within is None else within
        need = self._quorum(len(wanted))
        on_the_way: dict[str, int] = {}
        sent_to: dict[int, Node] = {}
        began = time.monotonic()

        def waiting() -> list[int]:
            return [c for c in wanted if c not in heard.answers and c not in heard.lost]

        while open_ := waiting():
            late = time.monotonic() - began >= within
            self._look()
            enough = len(heard.answers) + sum(map(self._may_answer, open_)) >= need
            willing = [c for c in open_ if c in self._clients and not (enough and c in self._silent)]
            due = [c for c in willing if sent_to.get(c) != self._clients[c]]
            for client, identity in zip(due, self._push(kind, due, letter), strict=True):
                on_the_way[identity], sent_to[client] = client, self._clients[client]
            for reply in self._pull([*on_the_way, *self._overdue]):
                identity = reply.metadata.reply_to_message_id
                if identity in self._overdue:
                    heard.late += self._come_in(self._overdue.pop(identity), reply)
                    continue
                if identity not in on_the_way:  # the letter that a reply says it answers was written by the site
                    log.warning("a reply to no letter of ours is passed over")
                    continue
                client = on_the_way.pop(identity)
                self._silent.discard(client)
                if not reply.has_error():
                    self._open(heard, client, reply.content, read)
                elif reply.error.code in GONE:
                    self._forget(client)
                    sent_to.pop(client, None)
                else:
                    heard.lost[client] = f"error at the site: {_brief(reply.error.reason)}"
            open_ = waiting()
            if open_ and len(heard.answers) >= need and (late or not any(map(self._may_answer, open_))):
                heard.lost |= {client: self._why(client, within) for client in open_}
                self._silent |= set(open_)
                self._overdue |= on_the_way
            elif open_:
                left = began + within - time.monotonic()
                time.sleep(min(pause(time.monotonic() - began), left if left > 0 else math.inf))
        self.check_quorum(len(heard.answers), len(wanted), heard.lost)
        return heard

    def _come_in(self, client: int, reply: Message) -> list[int]:
        """An answer to an earlier turn: whose it is, unless it is an error. Its sender can be asked again."""
        if not reply.has_error() or reply.error.code not in GONE:
            self._silent.discard(client)
        elif client in self._silent:
            self._forget(client)
        return [] if reply.has_error() else [client]

    def _may_answer(self, client: int) -> bool:
        """Whether a client is there and owes nothing, or may be there in a moment."""
        if client in self._silent or self._refusal(client):
            return False
        return self._is_here(client) or time.monotonic() - self._seen[client] < GRACE

    def _is_here(self, client: int) -> bool:
        """Whether it is connected, or a node is that has not said yet who it is, and may be this one."""
        unknown = (node for node, asked in self._asked.items() if asked)
        return client in self._clients or any(self._places.get(node[0], client) == client for node in unknown)

    def _why(self, client: int, waited: float) -> str:
        """Why there is no answer, where nobody waits any longer."""
        if refusal := self._refusal(client):
            return refusal
        if not self._is_here(client):
            return NOT_CONNECTED
        owes = client in self._silent
        return "no reply yet to an earlier request" if owes else f"no reply within {waited:.3g} s"

    def _refusal(self, client: int) -> str:
        """Why the node that is this client takes no part, as far as that is known."""
        return next((why for node, why in self._refused.items() if self._places.get(node[0]) == client), "")

    def check_quorum(self, usable: int, asked: int, lost: Mapping[int, str]) -> None:
        """Stop where too few answers can be used."""
        need = self._quorum(asked)
        if usable < need:
            reasons = "; ".join(f"site {client}: {why}" for client, why in sorted(lost.items()))
            raise UserError(f"{usable} of {asked} sites gave a usable answer, and {need} must ({reasons})")

    def _quorum(self, asked: int) -> int:
        return math.ceil(self.rules.quorum * asked - 1e-9)  # 0.28 of 25 is 7

    def _open(self, heard: Heard, client: int, content: RecordDict, read: Callable[[RecordDict], Any]) -> None:
        try:
            heard.answers[client] = read(content)
        except UserError as mistake:
            heard.lost[client] = f"refused: {_brief(str(mistake))}"

    def _push(self, kind: str, clients: list[int], letter: Callable[[int], RecordDict]) -> list[str]:
        return self._send([Message(letter(client), self._clients[client][0], kind) for client in clients])

    def _send(self, letters: list[Message]) -> list[str]:
        identities = list(self.grid.push_messages(letters)) if letters else []
        if len(identities) != len(letters) or not all(identities):
            raise RuntimeError("Flower did not take a message; the SuperLink's log says why")
        return identities

    def _pull(self, identities: list[str]) -> list[Message]:
        return list(self.grid.pull_messages(identities)) if identities else []

    def _look(self) -> None:
        """See who came and who went; who is new is asked who it is."""
        infos = list(self.grid.get_nodes())
        here: set[Node] = {(node.node_id, node.last_activated_at) for node in infos}
        if self.rules.names:
            self._places = {i.node_id: self.rules.names.index(i.name) for i in infos if i.name in self.rules.names}
        if self.rules.names or self.rules.sites:
            here = {node for node in here if node[0] in self._places}
        self._clients = {client: node for client, node in self._clients.items() if node in here}
        self._seen |= dict.fromkeys(self._clients, time.monotonic())
        self._refused = {node: why for node, why in self._refused.items() if node in here}
        self._asked = {node: identity for node, identity in self._asked.items() if node in here}
        new = sorted(here - self._asked.keys())
        self._silent -= {client for node in new if (client := self._places.get(node[0])) is not None}
        questions = [Message(pack(None), node[0], f"query.{ABOUT}") for node in new]
        self._asked |= dict(zip(new, self._send(questions), strict=True))
        waiting = {identity: node for node, identity in self._asked.items() if identity}
        for reply in self._pull(list(waiting)):
            if (node := waiting.get(reply.metadata.reply_to_message_id)) is not None:
                self._asked[node], self._claims[node] = "", reply
        self._claims = {
            node: reply for node, reply in self._claims.items() if node in here and self._waits(node, reply)
        }
        refused = {client: why for client in range(self.clients) if (why := self._refusal(client))}
        if refused:  # to wait for the others may be to wait for ever
            self.check_quorum(self.clients - len(refused), self.clients, refused)

    def _waits(self, node: Node, reply: Message) -> bool:
        """Whether a node must wait for its place, because another one, perhaps its dead former self, still has it."""
        try:
            return not self._enter(node, reply)
        except Exception as reason:  # made by a stranger, it may fail in any way
            log.warning("node %s takes no part: %s", node[0], reason)
            self._refused[node] = f"takes no part: {_brief(str(reason))}"
            return False

    def _enter(self, node: Node, reply: Message) -> bool:
        """Give a node the place that it says is its own, unless that is taken, or nobody knows yet what to have."""
        client, kind = self._claim(node, reply)
        if kind != (self.kind or kind):
            raise UserError(f"its data is {kind}, and must be {self.kind}")
        if self.kind is None or client in self._clients:
            return False
        self._clients[client] = node
        self._silent.discard(client)
        log.info("site %d is here", client)
        return True

    def _claim(self, node: Node, reply: Message) -> tuple[int, Kind]:
        """Which site a node says to be, and with what data, if it can be."""
        if reply.has_error():
            raise UserError(str(reply.error.reason))
        client = word(reply.content, "site")
        if type(client) is not int or not 0 <= client < self.clients:
            raise UserError(f"it says to be site {client!r}, and sites are 0..{self.clients - 1}")
        if self._places.get(node[0], client) != client:
            raise UserError(f"it says to be site {client}, and is {self._places[node[0]]}")
        kind = _kind(*(word(reply.content, name) for name in ("classes", "shape", "dtype")))
        if kind.classes != (self.classes or kind.classes):
            raise UserError(f"its data has {kind.classes} classes, and must have {self.classes}")
        return client, kind

    def _forget(self, client: int) -> None:
        """Its node is gone, or soon will be seen to be: whoever comes in its place is asked again who it is."""
        node = self._clients.pop(client, None)
        if node is not None:
            self._asked.pop(node, None)


def _kind(classes: Any, shape: Any, dtype: Any) -> Kind:
    """The kind of data that a site says it has, if there can be such data."""
    sizes = [classes, *shape] if isinstance(shape, list) and shape else []
    if not sizes or not all(type(size) is int and size > 0 for size in sizes) or dtype not in DTYPES:
        raise UserError(f"its data is said to be {classes!r} classes of {dtype!r} {shape!r}, and cannot be")
    if math.prod(sizes) > LARGEST:
        raise UserError(f"a sample {shape} of each of {classes} classes is more than {LARGEST} numbers")
    return Kind(classes, tuple(shape), dtype)
