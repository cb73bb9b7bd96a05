"""Nobody waits for a site that is gone; it is taken back when it returns, and the record says when it was missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo

from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.experiment.run import Result
from fedskew.federation.coordinator.server_app import federate
from fedskew.federation.rules import Rules, parse_rules
from fedskew.federation.site.client_app import client_app
from fedskew.federation.transport import messenger
from tests.federation import made
from tests.federation.transport.loopback import Loopback, Node, node

NAMES = ("north", "south", "east")


@pytest.fixture(autouse=True)
def soon(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messenger, "GRACE", 0.3)


def config_of(rounds: int, clients: int = 3) -> RunConfig:
    return configuration.from_dict(
        {
            "rounds": rounds,
            "data": {"name": "own", "options": {"classes": made.CLASSES}},
            "partition": {"name": "natural", "clients": clients},
            "model": {"name": "mlp"},
            "local": {"epochs": 1, "batch_size": 16},
            "engine": {"name": "inline"},
        }
    )


def sites(folder: Path, config: RunConfig, names: tuple[str, ...] = NAMES) -> dict[int, Node]:
    """Sites with tables of their own, which also test the model; node 100 is north."""
    values = {"config": configuration.dumps(config), "own-data": True, "score": "sites", "names": ",".join(names)}
    return {
        100 + n: node(
            client_app(),
            values,
            site=n,
            name=name,
            data=str(made.table(folder / f"{name}.csv", n)),
            memory=str(folder / f"memory-{name}"),
        )
        for n, name in enumerate(NAMES)
    }


class Named(Loopback):
    """Nodes that were registered with names."""

    def get_nodes(self) -> list[NodeInfo]:
        names = dict(zip(range(100, 103), NAMES, strict=True)) | {200: "south"}
        return [
            NodeInfo(node_id=each, last_activated_at=self.since[each], name=names.get(each, ""))
            for each in list(self.nodes)
        ]


def run(folder: Path, grid: Loopback, config: RunConfig, **more: Any) -> Result:
    return federate(grid, config, folder / "out", Rules(own_data=True, score="sites", **more))


def in_rounds(grid: Loopback, change: Any) -> Any:
    """Call `change` with the number of a round, from 1, when north is asked to train in it."""
    inner = grid.nodes[100]

    def north(message: Message) -> Message | None:
        if message.metadata.message_type == "train":
            change(grid.sent.count((100, "train")))
        return inner(message)

    grid.nodes[100] = north


def test_a_site_that_is_not_connected_is_skipped_until_it_returns(tmp_path: Path) -> None:
    """East leaves in the second round and is back in the fourth; the deadline of an hour is waited for by nobody."""
    config = config_of(6)
    grid = Named(sites(tmp_path, config))
    east = grid.nodes[102]

    def change(number: int) -> None:
        if number == 2:
            del grid.nodes[102]
        if number == 4:
            grid.nodes[102], grid.since[102] = east, "2026-01-02"

    in_rounds(grid, change)
    result = run(tmp_path, grid, config, names=NAMES)
    gone = {"2": "not connected"}
    assert [line.get("lost", {}) for line in result.rounds] == [{}, gone, gone, gone, {}, {}]
    assert [line.get("scored_lost", {}) for line in result.rounds] == [{}, gone, gone, {}, {}, {}]
    assert [line["answered"] for line in result.rounds] == [[0, 1, 2], *[[0, 1]] * 3, [0, 1, 2], [0, 1, 2]]
    assert all(line["seconds"] < 5 for line in result.rounds)
    assert result.header["data"]["sites"] == list(NAMES)


def test_a_dead_site_that_seems_connected_costs_one_deadline_and_no_second_one(tmp_path: Path) -> None:
    """Flower believes for a minute that a killed node is there: it is asked once, and then not until it is back."""
    config = config_of(6)
    grid = Named(sites(tmp_path, config))
    east = grid.nodes[102]

    def change(number: int) -> None:
        if number == 2:
            grid.nodes[102] = lambda message: None
        if number == 4:
            grid.nodes[102], grid.since[102] = east, "2026-01-02"

    in_rounds(grid, change)
    deadline = 2.0
    rounds = run(tmp_path, grid, config, sites={100: 0, 101: 1, 102: 2}, deadline=deadline).rounds
    reasons = [line.get("lost", {}).get("2", "") for line in rounds]
    owes = "no reply yet to an earlier request"
    assert reasons[1].startswith("no reply within 1.") and [reasons[0], *reasons[2:]] == ["", owes, owes, "", ""]
    assert deadline / 2 < rounds[1]["seconds"] <= deadline
    full = max(line["seconds"] for line in rounds if not line.get("lost"))
    assert all(line["seconds"] < full + 1 for line in rounds[2:4])
    assert grid.sent.count((102, "train")) == 4


def test_without_the_silent_site_there_is_no_quorum_so_it_is_asked_and_waited_for(tmp_path: Path) -> None:
    """South failed to answer the first training and is asked the second, because north alone is too few."""
    config = config_of(2)
    grid = Named(sites(tmp_path, config))
    south, asked = grid.nodes[101], 0

    def late(message: Message) -> Message | None:
        nonlocal asked
        asked += message.metadata.message_type == "train"
        return None if asked == 1 and message.metadata.message_type == "train" else south(message)

    def change(number: int) -> None:
        if number == 2:
            del grid.nodes[102]

    grid.nodes[101] = late
    in_rounds(grid, change)
    first, second = run(tmp_path, grid, config, names=NAMES, deadline=1.0).rounds
    assert list(first["lost"]) == ["1"] and second["answered"] == [0, 1] and list(second["lost"]) == ["2"]


def test_a_site_with_a_new_key_is_taken_back_by_its_name(tmp_path: Path) -> None:
    """South's node 101 is removed in the second round; node 200, registered for south, comes during the third."""
    config = config_of(4)
    grid = Named(sites(tmp_path, config))
    south = grid.nodes[101]

    def change(number: int) -> None:
        if number == 2:
            del grid.nodes[101]
        if number == 3:
            grid.nodes[200], grid.since[200] = south, "2026-01-02"

    in_rounds(grid, change)
    rounds = run(tmp_path, grid, config, names=NAMES).rounds
    assert [list(line.get("lost", {})) for line in rounds] == [[], ["1"], ["1"], []]
    assert (200, "train") in grid.sent


def test_a_node_without_one_of_the_names_takes_no_part(tmp_path: Path) -> None:
    config = config_of(1)
    grid = Named(sites(tmp_path, config))
    grid.nodes[300], grid.since[300] = grid.nodes[101], "2026-01-01"
    assert run(tmp_path, grid, config, names=NAMES).rounds[0]["replies"] == 3
    assert not [kind for to, kind in grid.sent if to == 300]


def test_later_runs_have_fewer_sites_and_other_numbers(tmp_path: Path) -> None:
    """Without north, south is client 0 and east client 1, whatever numbers they joined with."""
    config, names = config_of(1, clients=2), NAMES[1:]
    grid = Named(sites(tmp_path, config, names))
    result = run(tmp_path, grid, config, names=names)
    assert result.rounds[0]["answered"] == [0, 1] and {to for to, _ in grid.sent} == {101, 102}
    with pytest.raises(UserError, match=r"'names' has 3 sites, but 'config' has partition.clients = 2"):
        run(tmp_path / "other", grid, config, names=NAMES)


def test_why_a_site_takes_no_part_is_in_the_record(tmp_path: Path) -> None:
    """East's table has another number of columns: the run does not wait for it, and says why."""
    config = config_of(2)
    grid = Named(sites(tmp_path, config))
    (tmp_path / "east.csv").write_text("x,label\n" + "".join(f"{n},benign\n{-n},malignant\n" for n in range(20)))
    for line in run(tmp_path, grid, config, names=NAMES).rounds:
        assert line["lost"]["2"].startswith("takes no part: its data is DataKind(classes=2, shape=(1,)")


def test_a_run_whose_sites_mostly_take_no_part_ends_with_their_reasons(tmp_path: Path) -> None:
    """As where the coordinator has another version than two of three sites."""
    config = config_of(1)
    grid = Named(sites(tmp_path, config))
    for number in (100, 102):
        grid.nodes[number] = lambda message: Message(Error(7, "the site refused: it is version 2"), reply_to=message)
    with pytest.raises(UserError, match=r"1 of 3 sites .* 2 must \(site 0: takes no part: .* it is version 2; site 2"):
        run(tmp_path, grid, config, names=NAMES)


@pytest.mark.parametrize("text", ["north,,east", "north,north"])
def test_names_are_different_and_not_empty(text: str) -> None:
    with pytest.raises(UserError, match=r"run config 'names' is '.*'. Write different names"):
        parse_rules({"names": text})
