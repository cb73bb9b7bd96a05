"""The coordinator refuses nonsense in a node's number, answers and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedskew.core.errors import UserError
from fedskew.core.types import ClientState
from fedskew.federation.coordinator.server_app import FederatedEngine
from fedskew.federation.rules import Rules
from fedskew.federation.transport.messages import HEAD, pack, unpack
from fedskew.federation.transport.messenger import LONGEST, Messenger, _brief
from fedskew.runtime import server
from fedskew.runtime.client import visit
from fedskew.runtime.context import one_thread
from tests.contract import harness
from tests.federation.transport.loopback import Loopback, Node

ABOUT = {"classes": 10, "shape": [1, 8, 8], "dtype": "uint8"}


def node(site: int, work: Callable[[Message], RecordDict] = lambda _: RecordDict(), **about: Any) -> Node:
    def answer(message: Message) -> Message:
        if message.metadata.message_type == "query.about":
            said = ConfigRecord({"site": site, **ABOUT, **about})
            return Message(RecordDict({HEAD: said}), reply_to=message)
        return Message(work(message), reply_to=message)

    return answer


@pytest.mark.parametrize(
    "about",
    [
        {"shape": 3},
        {"shape": []},
        {"shape": [1, -8, 8]},
        {"shape": [1, 2**20, 2**20]},
        {"classes": "ten"},
        {"classes": 2**40},
        {"dtype": "Generator"},
        {"dtype": 7},
    ],
    ids=str,
)
def test_a_node_whose_data_cannot_be_takes_no_part(about: Mapping[str, Any]) -> None:
    """A coordinator without data takes sites' word for what it is, and memory for it."""
    grid = Loopback({300: node(0, **about)})
    post = Messenger(grid, 2, Rules())
    post._update_nodes()
    assert post.kind is None and not post._claims
    grid.nodes[301], grid.since[301] = node(0), "2026-01-02"
    assert post.wait_for_kind().shape == (1, 8, 8)


def test_what_a_quorum_have_is_what_all_must_have(caplog: pytest.LogCaptureFixture) -> None:
    """Site 0, which is there first, has larger images than the others; of four sites two of a kind are waited for."""
    caplog.set_level("INFO", "fedskew")
    grid = Loopback({300: node(0, shape=[1, 9, 9])})
    post = Messenger(grid, 4, Rules())
    post._update_nodes()
    for site in (1, 2):
        grid.nodes[300 + site], grid.since[300 + site] = node(site), "2026-01-02"
    assert post.wait_for_kind().shape == (1, 8, 8)
    post._update_nodes()
    assert sorted(post._clients) == [1, 2]
    assert "3 of 4 sites are connected; 2 with equal data are needed" in caplog.messages


def test_a_site_has_as_many_classes_as_the_coordinator_names(caplog: pytest.LogCaptureFixture) -> None:
    post = Messenger(Loopback({300: node(0, classes=7), 301: node(1)}), 2, Rules(quorum=0.5), classes=10)
    assert post.wait_for_kind().classes == 10
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ["node 300 takes no part: its data has 7 classes, and must have 10"]


@pytest.mark.parametrize("honest", [0, 1, 2])
def test_refused_answers_are_no_quorum(honest: int, tmp_path: Path) -> None:
    """Of four sites half must give a usable answer; the others send what is no update."""
    site, state = harness.site_of(harness.config("fedavg", clients_per_round=4))

    def work(message: Message) -> RecordDict:
        sent = unpack(message.content)
        return pack(visit(site, sent, ClientState())[0] if sent.client < honest else ClientState())

    inside = server.init_memory(site, replace(state, round=replace(state.round, stage=0)), server.carried(site, state))
    sent = server.broadcasts(site, inside, range(4), score=False)
    post = Messenger(Loopback({client: node(client, work) for client in range(4)}), 4, Rules())
    with one_thread():
        engine = FederatedEngine(site, post, Rules(), tmp_path)
        if honest == 2:
            assert [update.client for update in engine.ask(sent).updates] == [0, 1]
            return
        with pytest.raises(
            UserError,
            match=f"{honest} of 4 sites gave a usable answer, and 2 must .*site 3: refused: it is a ClientState",
        ):
            engine.ask(sent)


@pytest.mark.parametrize(
    "confusion, loss",
    [
        (torch.full((10, 10), 2**62), 1.0),
        (torch.full((10, 10), 2**39), 1.0),
        (torch.zeros(10, 10, dtype=torch.int64), 1.0),
        (torch.eye(10, dtype=torch.int64), -1.0),
    ],
    ids=["wraps around", "too many", "no sample", "negative loss"],
)
def test_scores_that_cannot_be_are_left_out(confusion: torch.Tensor, loss: float, tmp_path: Path) -> None:
    """Each honest site has ten samples, all right, and a summed loss of 5: of three sites 30 samples and 15."""
    site, state = harness.site_of(harness.config("fedavg"))
    right = {"confusion": torch.eye(10, dtype=torch.int64), "loss": torch.tensor(5.0, dtype=torch.float64)}
    wrong = {"confusion": confusion, "loss": torch.tensor(loss, dtype=torch.float64)}
    nodes = {client: node(client, lambda _: pack(right)) for client in range(3)}
    grid = Loopback({**nodes, 3: node(3, lambda _: pack(wrong))})
    rules = Rules(score="sites")
    engine = FederatedEngine(site, Messenger(grid, 4, rules), rules, tmp_path)
    scores = engine.score(state.spec, server.carried(site, state))
    assert scores["accuracy"] == 1.0 and scores["test_loss"] == 15 / 30
    assert sum(map(sum, scores["confusion"])) == 30
    assert list(scores["scored_lost"]) == ["3"] and scores["scored_lost"]["3"].startswith("refused: scores must be ")


def test_what_a_site_says_of_itself_is_short_and_can_be_shown() -> None:
    assert _brief("no\x1b[2J memory\n left") == "no [2J memory  left"
    assert _brief(None) == "" and len(_brief("x" * 10**6)) == LONGEST + 3


def test_a_quorum_is_a_number_of_sites() -> None:
    """0.28 * 25 is 7.000000000000001 in floating point."""
    asked = Messenger(None, 25, Rules(quorum=0.28))  # type: ignore[arg-type]
    assert [asked._quorum(sites) for sites in (25, 24, 1)] == [7, 7, 1]
