"""Our loop over Flower's messages, node by node in this process: parity, faults, restarts."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedskew import config as configuration
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Update
from fedskew.data.sources import Source
from fedskew.federation.coordinator.server_app import federate
from fedskew.federation.rules import Rules
from fedskew.federation.site.client_app import client_app
from fedskew.federation.transport.messages import HEAD, TENSORS, pack, unpack
from fedskew.methods import registry
from fedskew.record import reader
from tests.contract import harness
from tests.contract.methods import SMALL
from tests.federation import made
from tests.federation.transport import tiny
from tests.federation.transport.loopback import Loopback, Node, node

FEW = ["fedavg", "moon", "fpl", "fednoro", "fedconcat"]
#: noise that protects a site comes from its own secret, so no two runs are alike
SECRET = {"dp"}
#: weights or samples that stay with their clients: test_personal.py
APART = {name for name in registry.known() for stage in registry.build(name).stages if stage.personal is not None}
APART |= {name for name in registry.known() if registry.build(name).pooled}
OTHERS = [name for name in registry.known() if name not in {*FEW, *SECRET, *APART}]


def digest(result: Any) -> str:
    found = result.end["weights_sha256"]
    assert isinstance(found, str)
    return found


def lost(result: Any) -> dict[int, str]:
    return {int(c): why for line in [*result.rounds, *result.setups] for c, why in line.get("lost", {}).items()}


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_the_same_bits_as_inline_though_every_site_has_its_own_data(name: str, tmp_path: Path) -> None:
    config = tiny.config_of(SMALL.get(name, name))
    result = tiny.run(config, tmp_path)
    assert digest(result) == digest(harness.finish(config))
    assert not lost(result)


def test_a_node_restarted_in_the_middle_of_a_round_is_asked_again_and_remembers(tmp_path: Path) -> None:
    """Client 1 does the work of its second round, dies before it replies, and comes back with what is on its disk."""
    config = tiny.config_of("moon", clients_per_round=4)
    inner = tiny.nodes(config, tmp_path)
    grid = Loopback(inner)
    trained = 0

    def dying(message: Message) -> Message | None:
        nonlocal trained
        reply = tiny.nodes(config, tmp_path)[101](message)
        if message.metadata.message_type == "train":
            trained += 1
            if trained == 2:
                grid.since[101] = "2026-01-02"
                return None
        return reply

    grid.nodes = {**inner, 101: dying}
    result = tiny.run(config, tmp_path, grid)
    assert digest(result) == digest(harness.finish(config)) and not lost(result)
    assert trained == config.rounds + 1
    assert grid.sent.count((101, "query.about")) == 2


def test_a_node_that_is_gone_is_waited_for(tmp_path: Path) -> None:
    """Flower says that node 102 is not there; another one comes and is the same site, with the same disk."""
    config = tiny.config_of("moon", clients_per_round=4)
    grid = Loopback(tiny.nodes(config, tmp_path))
    site = grid.nodes[102]

    def gone(message: Message) -> Message:
        if message.metadata.message_type != "train":
            return site(message)  # type: ignore[return-value]
        del grid.nodes[102]
        grid.nodes[200], grid.since[200] = site, "2026-01-02"
        return Message(Error(5, "Node Unavailable"), reply_to=message)

    grid.nodes[102] = gone
    result = tiny.run(config, tmp_path, grid)
    assert digest(result) == digest(harness.finish(config)) and not lost(result)


def test_who_comes_back_under_another_name_waits_until_the_old_one_is_missed(tmp_path: Path) -> None:
    """Without keys a restarted node is a new one to Flower: 200 says to be site 2 while 102 still seems to be there."""
    config = tiny.config_of("moon", clients_per_round=4)
    grid = Loopback(tiny.nodes(config, tmp_path))
    site, looks = grid.nodes[102], 0

    def dead(message: Message) -> Message | None:
        if message.metadata.message_type != "train":
            return site(message)
        grid.nodes[200], grid.since[200] = site, "2026-01-02"
        return None

    def nodes() -> Any:
        nonlocal looks
        looks += 200 in grid.nodes
        if looks == 5:
            grid.nodes.pop(102, None)
        return Loopback.get_nodes(grid)

    grid.nodes[102], grid.get_nodes = dead, nodes  # type: ignore[method-assign]
    result = tiny.run(config, tmp_path, grid)
    assert digest(result) == digest(harness.finish(config)) and not lost(result)
    assert (200, "train") in grid.sent


def test_asked_the_same_turn_twice_a_site_says_the_same(tmp_path: Path) -> None:
    config = tiny.config_of("scaffold", clients_per_round=4)
    nodes = tiny.nodes(config, tmp_path)

    def twice(message: Message) -> Message | None:
        first, second = nodes[100](message), nodes[100](message)
        assert first is not None and second is not None
        if message.metadata.message_type == "train":
            one, two = unpack(first.content), unpack(second.content)
            assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
        return second

    grid = Loopback({**nodes, 100: twice})
    assert digest(tiny.run(config, tmp_path, grid)) == digest(harness.finish(config))


def spoilt(change: Callable[[Update], Any]) -> Callable[[Message], RecordDict]:
    return lambda reply: pack(change(unpack(reply.content)))


def cut(reply: Message) -> RecordDict:
    reply.content[HEAD][TENSORS] = reply.content[HEAD][TENSORS][:-5]
    return reply.content


def first_tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Update], Update]:
    def spoil(update: Update) -> Update:
        name = next(iter(update.weights))
        return replace(update, weights={**update.weights, name: change(update.weights[name])})

    return spoil


HOSTILE: dict[str, tuple[Callable[[Message], RecordDict], str]] = {
    "nan": (spoilt(first_tensor(lambda t: t * torch.nan)), "not finite"),
    "shape": (spoilt(first_tensor(lambda t: t[:1])), "but must be"),
    "1e30": (spoilt(first_tensor(lambda t: t + 1e30)), "the norm of its weights is"),
    "truncated": (cut, "the message is damaged"),
    "nothing": (lambda reply: RecordDict(), "the message is damaged"),
}


THREE_OF_FOUR = tiny.config_of("moon", clients_per_round=4, rounds=2)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights when the fourth site never does its work."""
    folder = tmp_path_factory.mktemp("without")
    nodes = tiny.nodes(THREE_OF_FOUR, folder)
    fourth = nodes[103]

    def idle(message: Message) -> Message | None:
        failed = Message(Error(2, "no"), reply_to=message)
        return failed if message.metadata.message_type == "train" else fourth(message)

    return digest(tiny.run(THREE_OF_FOUR, folder, Loopback({**nodes, 103: idle})))


@pytest.mark.parametrize("spoil, reason", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_reply_is_refused_and_the_round_goes_on_as_without_it(
    spoil: Callable[[Message], RecordDict], reason: str, without: str, tmp_path: Path
) -> None:
    nodes = tiny.nodes(THREE_OF_FOUR, tmp_path)

    def hostile(message: Message) -> Message | None:
        reply = nodes[103](message)
        assert reply is not None
        kind = message.metadata.message_type
        return Message(spoil(reply), reply_to=message) if kind == "train" else reply

    result = tiny.run(THREE_OF_FOUR, tmp_path, Loopback({**nodes, 103: hostile}))
    assert [line["replies"] for line in result.rounds] == [3, 3]
    assert all(list(line["lost"]) == ["3"] and reason in line["lost"]["3"] for line in result.rounds)
    assert '"lost":{"3":"refused: ' in (tmp_path / "out" / reader.NAME).read_text()

    assert digest(result) == without


def test_past_the_deadline_a_round_goes_on_and_a_late_reply_is_noted(clock: None, tmp_path: Path) -> None:
    """Client 2's reply to the first round arrives in the second, in which it is then asked, and answers in time."""
    config = tiny.config_of("fedavg", clients_per_round=4, rounds=2)
    nodes = tiny.nodes(config, tmp_path)
    grid = Loopback(nodes)
    stuck: list[Message] = []

    def slow(message: Message) -> Message | None:
        if message.metadata.message_type == "train" and not stuck:
            stuck.append(message)
            return None
        return nodes[102](message)

    def last(message: Message) -> Message | None:
        if grid.sent.count((103, "train")) == 2:
            early = nodes[102](stuck[0])
            assert early is not None
            grid.replies[stuck[0].metadata.message_id] = early
        return nodes[103](message)

    grid.nodes = {**nodes, 102: slow, 103: last}
    first, second = tiny.run(config, tmp_path, grid, deadline=0.5).rounds
    assert first["lost"] == {"2": "no reply within 0.5 s"} and first["replies"] == 3
    assert second["late"] == [2] and second["replies"] == 4 and "lost" not in second


def test_without_a_quorum_a_run_stops_and_says_why(tmp_path: Path) -> None:
    config = tiny.config_of("fedavg", clients_per_round=4)

    def failing(inner: Node) -> Node:
        def fail(message: Message) -> Message | None:
            about = message.metadata.message_type == "query.about"
            return inner(message) if about else Message(Error(2, "out of memory"), reply_to=message)

        return fail

    nodes = {
        number: failing(inner) if number > 100 else inner for number, inner in tiny.nodes(config, tmp_path).items()
    }
    with pytest.raises(
        UserError, match=r"1 of 4 sites gave a usable answer, and 2 must .*site 1: error at the site: out of memory"
    ):
        tiny.run(config, tmp_path, Loopback(nodes))


@pytest.mark.parametrize(
    "name, messages",
    [
        ("moon", 5),
        ("fednoro(warmup=1, redetect=1)", 10),
        *(
            pytest.param(name, messages, marks=pytest.mark.slow)
            for name in ("fedcorr(warmup=1, finetune=1, confidence=0.1)", "fedconcat(encoder_rounds=1)", "scaffold")
            for messages in (1, 5, 10)
        ),
    ],
)
def test_a_coordinator_that_dies_goes_on_to_the_same_weights(name: str, messages: int, tmp_path: Path) -> None:
    """It dies after so many letters, wherever that is; sites keep their memories, and some turns are asked again."""
    config = tiny.config_of(name, clients_per_round=4)

    class Dying(Loopback):
        def push_messages(self, letters: Any) -> Any:
            for letter in letters:
                if sum(kind != "query.about" for _, kind in self.sent) == messages:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield from super().push_messages([letter])

    def live() -> None:
        tiny.run(config, tmp_path, Dying(tiny.nodes(config, tmp_path)))

    coordinator = multiprocessing.get_context("fork").Process(target=live)
    coordinator.start()
    coordinator.join()
    assert coordinator.exitcode == -signal.SIGKILL
    result = tiny.run(config, tmp_path)
    assert digest(result) == digest(harness.finish(config))


def test_a_folder_with_another_run_is_left_alone(tmp_path: Path) -> None:
    tiny.run(tiny.config_of("fedavg", rounds=1), tmp_path)
    with pytest.raises(UserError, match="holds a run with another configuration"):
        tiny.run(tiny.config_of("fedprox", rounds=1), tmp_path)


def test_a_run_goes_on_only_with_the_rules_that_it_began_with(tmp_path: Path) -> None:
    """Other images or scores would be another run; the sites and the time to wait for may change."""
    config = tiny.config_of("fedavg", rounds=1)
    tiny.run(config, tmp_path, mean=0.25)
    with pytest.raises(UserError, match=r"rule 'mean' is 0.5, but the run in '.*' started with 0.25. Set it back"):
        tiny.run(config, tmp_path)
    tiny.run(config, tmp_path, mean=0.25, deadline=7.0, quorum=1.0)


def test_nobody_takes_the_place_of_another_site(tmp_path: Path) -> None:
    """Nodes 300 and 301 say to be clients 0 and 9; node 302 is not on the coordinator's list."""
    config = tiny.config_of("fedavg", clients_per_round=4, rounds=1)
    nodes, text = tiny.nodes(config, tmp_path), {"config": configuration.dumps(config)}

    def impostor(client: int) -> Node:
        app = ClientApp()

        @app.query("about")
        def about(message: Message, context: Context) -> Message:
            said = ConfigRecord({"site": client, "classes": 10, "shape": [1, 8, 8], "dtype": "uint8"})
            return Message(RecordDict({HEAD: said}), reply_to=message)

        return node(app, text)

    grid = Loopback({**nodes, 300: impostor(0), 301: impostor(9), 302: impostor(1)})
    listed = {100: 0, 101: 1, 102: 2, 103: 3, 300: 3}
    result = tiny.run(config, tmp_path, grid, sites=listed)
    assert digest(result) == digest(harness.finish(config))
    assert not [to for to, kind in grid.sent if to >= 300 and kind == "train"]
    assert (301, "query.about") not in grid.sent and (302, "query.about") not in grid.sent


def test_what_went_wrong_at_a_site_stays_there(tmp_path: Path) -> None:
    def source(context: Context) -> Source:
        raise UserError("patient 'Jane Doe' is at two sites")

    app = client_app(source)
    text = {"config": configuration.dumps(tiny.config_of("fedavg"))}
    Loopback({})
    about = Message(RecordDict(), 1, "query.about")
    reply = node(app, text, site=0, memory=str(tmp_path))(about)
    assert reply is not None and reply.error.reason == "the site could not answer; its own log says why"


def own_folders(folder: Path) -> list[Path]:
    """Three sites with arrays of their own; the third has no sample of class 2."""
    rng = np.random.default_rng(0)
    paths = []
    for site in range(3):
        y = rng.integers(0, 2 if site == 2 else 3, 40)
        x = (rng.normal(size=(40, 6)) + y[:, None]).astype(np.float32)
        paths.append(folder / f"site-{site}.npz")
        np.savez(paths[-1], x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    return paths


def own_run(folder: Path, score: str, **sections: Any) -> Any:
    folder.mkdir()
    paths = own_folders(folder)
    config = configuration.from_dict(
        {
            "rounds": 1,
            "data": {"name": "own", "options": {"classes": "a,b,c"}}
            | ({"dir": str(paths[0])} if score == "server" else {}),
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "mlp"},
            "engine": {"name": "inline"},
        }
        | sections
    )
    text = {"config": configuration.dumps(config), "own-data": True, "score": score}
    app = client_app()
    nodes = {n: node(app, text, site=n, data=str(paths[n]), memory=str(folder / f"m{n}")) for n in range(3)}
    rules = Rules(own_data=True, score=score, deadline=2)
    return federate(Loopback(nodes), config, folder / "out", rules)


def test_sites_read_their_own_data_and_score_on_it(tmp_path: Path) -> None:
    """30 training samples each; 10 test samples at the coordinator, or 10 at each of three sites and none there."""
    here = own_run(tmp_path / "a", "server")
    there = own_run(tmp_path / "b", "sites")
    assert digest(here) == digest(there)
    assert here.rounds[0]["examples"] == there.rounds[0]["examples"] == 90
    assert np.sum(here.end["confusion"]) == 10 and np.sum(there.end["confusion"]) == 30
    assert [each.client for each in here.scores] == [None]
    assert [(each.client, each.samples) for each in there.scores] == [(0, 10), (1, 10), (2, 10)]
    for site, each in zip(there.rounds[0].scored.values(), there.scores, strict=True):
        assert each.accuracy is not None and each.accuracy.value == sum(site.right) / 10


@pytest.mark.parametrize("score", ["server", "sites"])
@pytest.mark.parametrize("metric", ["balanced_accuracy", "macro_auroc"])
def test_sites_hold_back_their_own_samples_and_choose_by_the_sums(score: str, metric: str, tmp_path: Path) -> None:
    found = own_run(
        tmp_path / "a", score, rounds=3, evaluate={"validation": 0.4}, stop={"metric": metric, "patience": 3}
    )
    assert found.rounds[0]["examples"] == 90 - found.rounds[0].validation.samples < 60
    validated = [each for each in found.scores if each.on == "validation"]
    assert [each.client for each in validated] == [0, 1, 2] and {each.model for each in validated} == {"best"}
    assert sum(each.samples for each in validated) == found.rounds[0].validation.samples
    values = [each.validation[metric] for each in found.rounds]
    assert found.end.chosen.value == max(values) and found.end.chosen.metric == metric
    chosen = found.rounds[found.end.chosen.round - 1].validation
    weights = [each.samples for each in validated]
    accuracy = np.average([each.accuracy.value for each in validated], weights=weights)
    assert accuracy == pytest.approx(chosen.accuracy)
    assert (tmp_path / "a" / "out" / "best.safetensors").exists()


@pytest.mark.parametrize("agreed", [False, True])
def test_a_coordinator_names_no_code_that_a_site_did_not_agree_to(agreed: bool, tmp_path: Path) -> None:
    named = "fedskew.models.small:mlp"
    config = configuration.from_dict(
        {"data": {"options": {"classes": "a,b,c"}}, "partition": {"clients": 3, "alpha": 1}}
    )
    node = {"site": 0, "data": str(own_folders(tmp_path)[0])} | ({"model": named} if agreed else {})
    site = made.at_site(config, Rules(own_data=True), node)
    asked = configuration.override(config, [f"model.name={named}"])
    if agreed:
        made.at_site(asked, Rules(own_data=True), node)
        return
    with pytest.raises(UserError, match="code that this site does not allow"):
        made.at_site(asked, Rules(own_data=True), node)
    for spec in (Spec("os:system"), Spec("concat", {"inner": "os:system"})):
        with pytest.raises(
            UserError, match=r"must be one of the configuration's, and is Spec\(name='(os:system|concat)'"
        ):
            site.net(spec)


@pytest.mark.parametrize(
    "node, sentence",
    [
        ({"data": "x"}, "node config 'site' is None. Set it to an integer from 0 to 2"),
        ({"site": 3, "data": "x"}, "node config 'site' is 3"),
        ({"site": 0}, "node config has no 'data'"),
    ],
)
def test_a_node_that_does_not_say_who_it_is_is_one_sentence(node: dict[str, Any], sentence: str) -> None:
    config = configuration.from_dict({"partition": {"clients": 3, "alpha": 1}})
    with pytest.raises(UserError) as caught:
        made.at_site(config, Rules(own_data=True), node)
    assert sentence in str(caught.value)
