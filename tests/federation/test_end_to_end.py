"""From init to report by the commands alone: three sites with data of their own, TLS and keys, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedskew.federation import processes
from fedskew.record import reader
from tests.commands import complaint, succeed
from tests.federation import made
from tests.federation.running import Federation, together
from tests.federation.transport.processes import free_port

pytestmark = pytest.mark.timeout(3600)  # a busy machine must not fail it


TRAINING = ("--rounds", "2", "--lr", "0.1", "--local-epochs", "1", "--batch-size", "8")
FIRST = (*TRAINING, "--target", "0.5", "--json")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    found = Federation(tmp_path_factory.mktemp("federation").resolve(), f"127.0.0.1:{free_port()}")
    made.coordinator(found.coordinator, found.address)
    for name, folder in zip(made.SITES, found.members, strict=True):
        made.site(folder, found.coordinator, name)
        made.approve(folder, "fedavg", *TRAINING)
    for name, folder in list(zip(made.SITES, found.members, strict=True))[:2]:
        succeed("federation", "admit", found.coordinator, name, folder / "key.pub")
    try:
        together("start", [found.coordinator])
        # The third is admitted while the server is up.
        succeed("federation", "admit", found.coordinator, made.SITES[2], found.members[2] / "key.pub")
        said = together("start", found.members)
        assert all(f"is up and connected to {found.address}" in each for each in said)
        yield found
    finally:
        for folder in [*found.members, found.coordinator, found.folder / "stranger"]:
            processes.stop_all(folder)


@pytest.fixture(scope="module")
def trained(federation: Federation) -> Federation:
    """With a finished run; pytest-xdist deals the tests of a module to several workers, in any order."""
    succeed("federation", "run", federation.coordinator, "fedavg", *FIRST)
    return federation


def test_a_run_ends_in_a_report(federation: Federation) -> None:
    """36 test samples, 12 at each site; the classes are far apart, so two rounds suffice for nearly all of them."""
    said = json.loads(succeed("federation", "run", federation.coordinator, "fedavg", *FIRST))
    out = federation.coordinator / "runs" / "fedavg-seed0"
    run = reader.read(out)
    assert [line["replies"] for line in run.rounds] == [3, 3] and run.end is not None
    assert sum(map(sum, run.end["confusion"])) == 36 and run.end["last"] > 0.9
    assert [line["examples"] for line in run.rounds] == [3 * 48, 3 * 48]
    assert said["best_round"] == run.end["best_round"] and said["reached"] == run.end["reached"]
    assert said["last"] == run.end["last"] and said["lost"] == {name: [] for name in made.SITES}
    assert said["report"] == str(out / "report.html") and "malignant" in (out / "report.html").read_text()
    # Again: there is nothing left to do, and it says the same.
    assert json.loads(succeed("federation", "run", federation.coordinator, "fedavg", *FIRST)) == said
    others = complaint("federation", "run", federation.coordinator, "fedavg", *FIRST[:2], "--lr", "0.2")
    assert "holds a run with another configuration. Choose another --name" in others


@pytest.mark.parametrize(
    "method, changed, reason",
    [
        ("scaffold", (), "method is 'scaffold', approved is 'fedavg'"),
        pytest.param("fedavg", ("--model", "mlp3"), "network is 'mlp3', approved is 'mlp'", marks=pytest.mark.slow),
        pytest.param("fedavg", ("--rounds", "3"), "rounds is 3, approved are 2", marks=pytest.mark.slow),
    ],
)
def test_a_site_refuses_what_it_did_not_sign_and_writes_it_down(
    federation: Federation, method: str, changed: tuple[str, ...], reason: str
) -> None:
    """The coordinator's run ends with every site's reason; the log of each site's process has it."""
    name = "".join(filter(str.isalnum, "".join((method, *changed))))
    said = complaint("federation", "run", federation.coordinator, method, *TRAINING, *changed, "--name", name)
    assert "0 of 3 sites gave a usable answer" in said and f"the site refused: {reason}" in said
    for member in federation.members:
        lines = json.loads(succeed("federation", "log", member, "--json"))
        refused = [line for line in lines if line["kind"] == "refusal" and reason in line["reason"]]
        assert refused and {line["method"] for line in refused} == {method}
        assert not any(line["kind"] == "answer" and line.get("run") == refused[-1]["run"] for line in lines)


@pytest.mark.slow
def test_more_rounds_than_a_site_signed_are_refused_in_another_run_too(trained: Federation) -> None:
    """The first run used up the approval; a run with another seed would reveal something new."""
    federation = trained
    again = ("--seed", "5", "--name", "again")
    said = complaint("federation", "run", federation.coordinator, "fedavg", *TRAINING, *again)
    assert "all 2 updates of stage 0 that this site approved ('fedavg') have left" in said
    made.approve(federation.members[0], "fedavg", *TRAINING)
    made.approve(federation.members[1], "fedavg", *TRAINING)
    succeed("federation", "run", federation.coordinator, "fedavg", *TRAINING, *again)
    lost = [line["lost"] for line in reader.read(federation.coordinator / "runs" / "again").rounds]
    assert [list(each) for each in lost] == [["2"], ["2"]] and "have left" in lost[0]["2"]


def test_an_altered_log_is_detected(trained: Federation) -> None:
    south = trained.members[1]
    before = (south / "log.jsonl").read_bytes()
    lines = before.splitlines(keepends=True)
    for altered in (
        before.replace(b"request", b"refusal", 1),
        b"".join([*lines[:3], *lines[4:]]),
        b"".join(lines[:-2]),
        before + lines[-1],
    ):
        (south / "log.jsonl").write_bytes(altered)
        assert "of '" in complaint("federation", "log", south)
    (south / "log.jsonl").write_bytes(before)
    assert "The log is intact" in succeed("federation", "log", south)


def test_status_lists_connected_sites(trained: Federation) -> None:
    federation = trained
    said = json.loads(succeed("federation", "status", federation.coordinator, "--json"))
    assert said["up"] and [each["site"] for each in said["sites"]] == list(made.SITES)
    assert all(each["admitted"] and each["connected"] for each in said["sites"])
    runs = {each["name"]: (each["state"], each["rounds"], each["of"]) for each in said["runs"]}
    assert runs["fedavg-seed0"] == ("finished", 2, 2)
    shown = succeed("federation", "status", federation.coordinator)
    assert f"is up and listens at {federation.address}" in shown and "finished" in shown
    here = json.loads(succeed("federation", "status", federation.members[0], "--json"))
    assert here["up"] and here["site"] == "north" and here["answered"] is not None


def test_starting_twice_or_on_a_taken_port_is_one_sentence(federation: Federation, tmp_path: Path) -> None:
    assert "is already started" in complaint("federation", "start", federation.coordinator)
    other = made.coordinator(tmp_path / "other", federation.address)
    said = complaint("federation", "start", other)
    assert f"the server cannot listen at {federation.address} (Address already in use)" in said


def test_who_is_not_admitted_or_has_another_ca_is_refused(federation: Federation, tmp_path: Path) -> None:
    """A stranger with a copy of east's invitation, and so with its name and number, but without its key."""
    stranger = made.site(federation.folder / "stranger", federation.coordinator, "east")
    assert "its key is not admitted" in complaint("federation", "start", stranger)
    shutil.copy(made.coordinator(tmp_path / "other") / "ca.crt", stranger / "ca.crt")
    said = complaint("federation", "start", stranger)
    assert f"the server at {federation.address} has a certificate that" in said
    assert not processes.running(stranger)


def test_a_server_that_cannot_be_reached_is_one_sentence(federation: Federation, tmp_path: Path) -> None:
    port = free_port()
    coordinator = made.coordinator(tmp_path / "coordinator", f"127.0.0.1:{port}")
    alone = made.site(tmp_path / "north", coordinator, "north")
    said = complaint("federation", "start", alone)
    assert f"the server at 127.0.0.1:{port} cannot be reached (Connection refused)" in said


def test_stopping_ends_everything_also_after_a_crash(federation: Federation) -> None:
    """The supervisor of one site was killed, and its executor is still there."""
    supervisor = json.loads((federation.members[2] / "processes" / "supervisor.json").read_text())["pid"]
    os.kill(supervisor, signal.SIGKILL)
    assert len(federation.running()) >= 3 * 2 + 1  # supervisor and executor, and the server
    said = together("stop", [*federation.members, federation.coordinator])
    assert said[2] == "Stopped: executor.\n" and said[3] == "Stopped: executor, superlink, supervisor.\n"
    assert not federation.running()
    down = json.loads(succeed("federation", "status", federation.coordinator, "--json"))
    assert not down["up"] and {each["connected"] for each in down["sites"]} == {None}
    for folders in ([federation.coordinator], federation.members):  # as it was found
        together("start", folders)
