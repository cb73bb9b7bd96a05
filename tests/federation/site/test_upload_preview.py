"""What `dry-run` tells a site, with its invitation, is what leaves it in a federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedskew import config as configuration
from fedskew.experiment.run import Result
from fedskew.experiment.upload_preview import Leaf, leaves
from fedskew.federation import folders
from fedskew.federation.coordinator import training
from fedskew.federation.coordinator.server_app import federate
from fedskew.federation.rules import parse_rules
from fedskew.federation.site.client_app import client_app
from fedskew.federation.transport.messages import unpack
from tests.commands import complaint, succeed
from tests.federation import made
from tests.federation.transport.loopback import Loopback, Node, node

WORDS = ("--model", "mlp", "--rounds", "2", "--batch-size", "8", "--local-epochs", "1")


def one_class(path: Path) -> Path:
    """A site that has seen no malignant sample, and few others."""
    path.write_text("x,y,label\n" + "".join(f"{n / 10},{-n},benign\n" for n in range(8)))
    return path


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.coordinator(tmp_path_factory.mktemp("federation") / "coordinator")


def listening(inner: Node, received: list[Any]) -> Node:
    """A node, and what it answered to the coordinator's questions but for scores and who it is."""

    def answer(message: Message) -> Message | None:
        reply = inner(message)
        if reply is not None and message.metadata.message_type in ("train", "query"):
            received.append(unpack(reply.content))
        return reply

    return answer


@pytest.mark.parametrize("method", ["fedvls", "fpl", "fednoro(warmup=1)"])
def test_the_list_is_what_leaves_each_site_tensor_for_tensor(method: str, coordinator: Path, tmp_path: Path) -> None:
    data = [made.table(tmp_path / "0.csv", 0), made.table(tmp_path / "1.csv", 1), one_class(tmp_path / "2.csv")]
    config = training.configure(
        folders.open_coordinator(coordinator),
        method=method,
        model="mlp",
        rounds=2,
        batch_size=8,
        local_epochs=1,
        settings=(),
    )
    values = {"config": configuration.dumps(config), "own-data": True, "score": "sites"}
    sent: list[list[Any]] = [[] for _ in data]
    nodes = {
        n: listening(node(client_app(), values, site=n, data=str(path), memory=str(tmp_path / f"m{n}")), sent[n])
        for n, path in enumerate(data)
    }
    federate(Loopback(nodes), config, tmp_path / "out", parse_rules(values))
    for number, path in enumerate(data):
        invitation = coordinator / "invitations" / f"{made.SITES[number]}.zip"
        asked = ("--invitation", invitation, "--data", path, "--clients", "3", "--site", str(number), *WORDS, "--json")
        said = json.loads(succeed("federation", "dry-run", method, *asked))
        assert sent[number]
        for update, turn in zip(sent[number], said, strict=True):
            assert [Leaf(**leaf | {"shape": tuple(leaf["shape"])}) for leaf in turn["leaves"]] == list(leaves(update))
            assert turn["metrics"] == list(update.metrics)


def test_a_federation_starts_from_a_file_that_only_the_coordinator_reads(
    coordinator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(out: str, rounds: int, **asked: Any) -> Result:
        config = training.configure(
            folders.open_coordinator(coordinator),
            method="fedavg",
            model="mlp",
            rounds=rounds,
            batch_size=8,
            local_epochs=1,
            **asked,
        )
        values = {"config": configuration.dumps(config), "own-data": True, "score": "sites"}
        nodes = {
            n: node(client_app(), values, site=n, data=str(path), memory=str(tmp_path / out / f"m{n}"))
            for n, path in enumerate(data)
        }
        return federate(Loopback(nodes), config, tmp_path / out, parse_rules(values))

    data = [made.table(tmp_path / f"{n}.csv", n) for n in range(3)]
    first = trained("first", 1)
    monkeypatch.chdir(tmp_path)
    again = trained("again", 0, weights="first")
    assert again.end["weights_sha256"] == first.end["weights_sha256"]
    assert again.config.model.weights == str(tmp_path / "first")
    onwards = trained("onwards", 1, weights="first")
    assert onwards.end["weights_sha256"] not in (first.end["weights_sha256"], trained("fresh", 1).end["weights_sha256"])


def test_the_head_has_all_classes_of_the_federation(coordinator: Path, tmp_path: Path) -> None:
    """At a site that holds one of two, and eight samples: less than ten sites could share."""
    asked = (
        "--invitation",
        coordinator / "invitations" / "east.zip",
        "--data",
        one_class(tmp_path / "own.csv"),
        *WORDS,
    )
    turns = json.loads(succeed("federation", "dry-run", "fedavg", *asked, "--json"))
    shapes = {leaf["name"]: leaf["shape"] for leaf in turns[0]["leaves"]}
    assert shapes["head.weight"][0] == 2 and [turn["round"] for turn in turns] == [1, 2]
    assert "(rounds 1, 2)" in succeed("federation", "dry-run", "fedavg", *asked)


def test_an_invitation_is_for_data_that_the_site_holds_as_a_whole(coordinator: Path, tmp_path: Path) -> None:
    invitation, data = coordinator / "invitations" / "east.zip", made.table(tmp_path / "own.csv", 0)
    alone = ("federation", "dry-run", "fedavg", "--invitation", invitation)
    assert "applies to your own data. Add --data." in complaint(*alone, "--dataset", "digits")
    said = complaint(*alone, "--data", data, "--partition", "iid")
    assert "--partition is 'iid', but a site has all of its --data" in said
    assert "none.zip' does not exist" in complaint(
        "federation", "dry-run", "fedavg", "--invitation", "none.zip", "--data", data
    )
