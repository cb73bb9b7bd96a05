"""Send messages to sites through Flower's Grid, and know who is connected, who is being asked, and who is late."""

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

from fedskew.core.errors import InvalidData, UserError
from fedskew.federation.preparation import DataKind
from fedskew.federation.rules import Rules
from fedskew.federation.site.client_app import ABOUT
from fedskew.federation.transport.messages import pack, word
from fedskew.federation.transport.polling import pause

log = logging.getLogger("fedskew")

#: Flower's codes for a message that nobody will answer: its node or process is gone, or the message expired
GONE = frozenset({3, 4, 5, 8})

#: types of samples, and the most numbers that one sample of each class may have: the server allocates them
DTYPES = frozenset({"uint8", "float32", "int64"})
LARGEST = 2**28
#: characters of a site's text that are shown
LONGEST = 300

NOT_CONNECTED = "not connected"
#: seconds to wait for a site that disconnected: it may only be restarting
GRACE = 60.0

#: a node, and the time of its last connection: a restarted node has lost its messages
Node = tuple[int, str]


def _brief(text: str | None) -> str:
    """Return a site's text as one short line that a terminal can show."""
    text = text or ""
    line = "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST])
    return line if len(text) <= LONGEST else f"{line}..."


@dataclass
class Answers:
    """The result of asking clients.

    Args:
        answers: The content of each usable answer, by client.
        lost: Why the other clients gave none.
        late: Clients whose answer to an earlier turn arrived meanwhile.
    """

    answers: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)


class Messenger:
    """Know which node is which client, and ask again when a node disconnected before it answered.

    A round waits neither for a client that is not connected nor for one that still owes an earlier answer. Such a
    client is asked again when it reconnects, or when that answer arrives.
    """

    def __init__(self, grid: Grid, clients: int, rules: Rules, classes: int | None = None) -> None:
        self.grid, self.clients, self.rules, self.classes = grid, clients, rules, classes
        self.kind: DataKind | None = None
        #: the node of each connected client
        self._clients: dict[int, Node] = {}
        #: the message that asks each node for its site number; "" once it has answered
        self._asked: dict[Node, str] = {}
        #: answers to it from nodes that are not a client yet
        self._claims: dict[Node, Message] = {}
        #: the client that owes the answer to each message of an earlier turn
        self._overdue: dict[str, int] = {}
        #: clients that owe such an answer
        self._silent: set[int] = set()
        self._refused: dict[Node, str] = {}
        self._places = dict(rules.sites)
        self._last_seen = dict.fromkeys(range(clients), time.monotonic())

    def wait_for_kind(self) -> DataKind:
        """Wait until a quorum of sites has data of the same kind, and require that kind from now on."""
        began, need = time.monotonic(), self._quorum(self.clients)
        kinds = Counter[DataKind]()
        while max(kinds.values(), default=0) < need:
            self._update_nodes()
            self._pull([], time.monotonic() - began)
            claimed = dict(self._claim(*each) for each in self._claims.items())
            if len(claimed) != kinds.total():
                log.info(
                    "%d of %d sites are connected; %d with equal data are needed", len(claimed), self.clients, need
                )
            kinds = Counter(claimed.values())
        self.kind = kinds.most_common(1)[0][0]
        return self.kind

    def ask(
        self,
        kind: str,
        clients: Iterable[int],
        content: Callable[[int], RecordDict],
        read: Callable[[RecordDict], Any],
        within: float | None = None,
    ) -> Answers:
        """Ask clients until all have answered, or until a quorum has and no other answer can be expected.

        Args:
            kind: Flower's type of the message.
            clients: The clients to ask.
            content: Returns the message for a client.
            read: Reads an answer; a UserError from it loses the client for this turn.
            within: Seconds after which no further answer is expected; without it, the deadline.

        Raises:
            UserError: If less than a quorum gives a usable answer.
        """
        wanted, result = list(clients), Answers()
        within = self.rules.deadline if within is None else within
        need = self._quorum(len(wanted))
        pending: dict[str, int] = {}
        sent_to: dict[int, Node] = {}
        replies: list[Message] = []
        began = time.monotonic()

        def waiting() -> list[int]:
            return [c for c in wanted if c not in result.answers and c not in result.lost]

        while missing := waiting():
            if not replies:  # while they come in, nobody needs to look who is there
                self._update_nodes()
            enough = len(result.answers) + sum(map(self._may_answer, missing)) >= need
            connected = [c for c in missing if c in self._clients and not (enough and c in self._silent)]
            due = [c for c in connected if sent_to.get(c) != self._clients[c]]
            for client, identity in zip(due, self._push(kind, due, content), strict=True):
                pending[identity], sent_to[client] = client, self._clients[client]
            waited = time.monotonic() - began
            replies = self._pull([*pending, *self._overdue], waited, within - waited)
            for reply in replies:
                identity = reply.metadata.reply_to_message_id
                if identity in self._overdue:
                    result.late += self._take_late(self._overdue.pop(identity), reply)
                elif identity in pending:
                    self._take(pending.pop(identity), reply, read, result, sent_to)
                else:  # a site chose this id
                    log.warning("ignored a reply to a message that was never sent")
            missing, late = waiting(), time.monotonic() - began >= within
            if missing and len(result.answers) >= need and (late or not any(map(self._may_answer, missing))):
                result.lost |= {client: self._reason(client, within) for client in missing}
                self._silent |= set(missing)
                self._overdue |= pending
        self.check_quorum(len(result.answers), len(wanted), result.lost)
        return result

    def _take(
        self, client: int, reply: Message, read: Callable[[RecordDict], Any], result: Answers, sent_to: dict[int, Node]
    ) -> None:
        """Read a reply to this turn."""
        self._silent.discard(client)
        if not reply.has_error():
            try:
                result.answers[client] = read(reply.content)
            except UserError as error:
                result.lost[client] = f"refused: {_brief(str(error))}"
        elif reply.error.code in GONE:
            self._forget(client)
            sent_to.pop(client, None)
        else:
            result.lost[client] = f"error at the site: {_brief(reply.error.reason)}"

    def _take_late(self, client: int, reply: Message) -> list[int]:
        """Note a reply to an earlier turn: its sender can be asked again. Return the sender, unless it is an error."""
        if not reply.has_error() or reply.error.code not in GONE:
            self._silent.discard(client)
        elif client in self._silent:
            self._forget(client)
        return [] if reply.has_error() else [client]

    def _may_answer(self, client: int) -> bool:
        """Return whether a client is connected and owes nothing, or may connect in a moment."""
        if client in self._silent or self._refusal(client):
            return False
        return self._is_connected(client) or time.monotonic() - self._last_seen[client] < GRACE

    def _is_connected(self, client: int) -> bool:
        """Return whether a client is connected, or a node that has not named its site yet and may be this one."""
        unknown = (node for node, asked in self._asked.items() if asked)
        return client in self._clients or any(self._places.get(node[0], client) == client for node in unknown)

    def _reason(self, client: int, waited: float) -> str:
        """Return why a client has not answered when nobody waits any longer."""
        if refusal := self._refusal(client):
            return refusal
        if not self._is_connected(client):
            return NOT_CONNECTED
        owes = client in self._silent
        return "no reply yet to an earlier request" if owes else f"no reply within {waited:.3g} s"

    def _refusal(self, client: int) -> str:
        """Return why the node of a client was refused; "" if it was not."""
        return next((why for node, why in self._refused.items() if self._places.get(node[0]) == client), "")

    def check_quorum(self, usable: int, asked: int, lost: Mapping[int, str]) -> None:
        """Stop the run if too few answers can be used."""
        need = self._quorum(asked)
        if usable < need:
            reasons = "; ".join(f"site {client}: {why}" for client, why in sorted(lost.items()))
            raise UserError(f"{usable} of {asked} sites gave a usable answer, and {need} must ({reasons}). Check them.")

    def _quorum(self, asked: int) -> int:
        return math.ceil(self.rules.quorum * asked - 1e-9)  # 0.28 of 25 is 7

    def _push(self, kind: str, clients: list[int], content: Callable[[int], RecordDict]) -> list[str]:
        return self._send([Message(content(client), self._clients[client][0], kind) for client in clients])

    def _send(self, messages: list[Message]) -> list[str]:
        identities = list(self.grid.push_messages(messages)) if messages else []
        if len(identities) != len(messages) or not all(identities):
            raise RuntimeError("Flower did not accept a message; see the SuperLink's log")
        return identities

    def _pull(self, identities: list[str], waited: float, left: float = math.inf) -> list[Message]:
        """Return replies to these messages, and note nodes' claims; if there are none, return after a pause."""
        questions = {identity: node for node, identity in self._asked.items() if identity}
        wanted = [*questions, *identities]
        found = list(self.grid.pull_messages(wanted)) if wanted else []
        if not found and not (wanted and getattr(self.grid, "waits", False)):
            time.sleep(min(pause(waited), left if left > 0 else math.inf))
        replies = []
        for reply in found:
            node = questions.get(reply.metadata.reply_to_message_id)
            if node is None:
                replies.append(reply)
            else:
                self._asked[node], self._claims[node] = "", reply
        self._admit_claims()
        return replies

    def _update_nodes(self) -> None:
        """Find the nodes that connected and disconnected, and ask new ones for their site number."""
        infos = list(self.grid.get_nodes())
        present: set[Node] = {(node.node_id, node.last_activated_at) for node in infos}
        if self.rules.names:
            self._places = {i.node_id: self.rules.names.index(i.name) for i in infos if i.name in self.rules.names}
        if self.rules.names or self.rules.sites:
            present = {node for node in present if node[0] in self._places}
        self._clients = {client: node for client, node in self._clients.items() if node in present}
        self._last_seen |= dict.fromkeys(self._clients, time.monotonic())
        self._refused = {node: why for node, why in self._refused.items() if node in present}
        self._asked = {node: identity for node, identity in self._asked.items() if node in present}
        new = sorted(present - self._asked.keys())
        self._silent -= {client for node in new if (client := self._places.get(node[0])) is not None}
        questions = [Message(pack(None), node[0], f"query.{ABOUT}") for node in new]
        self._asked |= dict(zip(new, self._send(questions), strict=True))
        self._claims = {node: reply for node, reply in self._claims.items() if node in present}
        self._admit_claims()

    def _admit_claims(self) -> None:
        self._claims = {node: reply for node, reply in self._claims.items() if self._must_wait(node, reply)}
        refused = {client: why for client in range(self.clients) if (why := self._refusal(client))}
        if refused:  # waiting for the others might never end
            self.check_quorum(self.clients - len(refused), self.clients, refused)

    def _must_wait(self, node: Node, reply: Message) -> bool:
        """Return whether a node must wait for its place, which another node still has, perhaps before its restart."""
        try:
            return not self._admit(node, reply)
        except Exception as reason:  # content from a stranger may fail in any way
            log.warning("node %s takes no part: %s", node[0], reason)
            self._refused[node] = f"takes no part: {_brief(str(reason))}"
            return False

    def _admit(self, node: Node, reply: Message) -> bool:
        """Make a node the client that it claims to be, unless that place is taken or the kind of data is still open."""
        client, kind = self._claim(node, reply)
        if kind != (self.kind or kind):
            raise InvalidData(f"its data is {kind}, and must be {self.kind}")
        if self.kind is None or client in self._clients:
            return False
        self._clients[client] = node
        self._silent.discard(client)
        log.info("site %d is connected", client)
        return True

    def _claim(self, node: Node, reply: Message) -> tuple[int, DataKind]:
        """Return the site that a node claims to be, and its kind of data, if both are possible."""
        if reply.has_error():
            raise InvalidData(str(reply.error.reason))
        client = word(reply.content, "site")
        if type(client) is not int or not 0 <= client < self.clients:
            raise InvalidData(f"it claims to be site {client!r}, and sites are 0..{self.clients - 1}")
        if self._places.get(node[0], client) != client:
            raise InvalidData(f"it claims to be site {client}, and is {self._places[node[0]]}")
        kind = _kind(*(word(reply.content, name) for name in ("classes", "shape", "dtype")))
        if kind.classes != (self.classes or kind.classes):
            raise InvalidData(f"its data has {kind.classes} classes, and must have {self.classes}")
        return client, kind

    def _forget(self, client: int) -> None:
        """Forget a node that is gone. The next node in its place is asked for its site number."""
        node = self._clients.pop(client, None)
        if node is not None:
            self._asked.pop(node, None)


def _kind(classes: Any, shape: Any, dtype: Any) -> DataKind:
    """Return the kind of data that a site states, if such data can exist."""
    sizes = [classes, *shape] if isinstance(shape, list) and shape else []
    if not sizes or not all(type(size) is int and size > 0 for size in sizes) or dtype not in DTYPES:
        raise InvalidData(f"its data cannot be {classes!r} classes of {dtype!r} {shape!r}")
    if math.prod(sizes) > LARGEST:
        raise InvalidData(f"a sample {shape} of each of {classes} classes is more than {LARGEST} numbers")
    return DataKind(classes, tuple(shape), dtype)
