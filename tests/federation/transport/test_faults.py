"""Faults in a federation with TLS and keys: killed processes resume; late or false replies are left out."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.federation.transport.processes import SITES, Federation, config_of, inline, rounds, server_process, wait_for

pytestmark = pytest.mark.timeout(900)


def test_a_registered_site_that_sends_nonsense_is_refused_round_after_round(federation: Federation) -> None:
    """NaN, a wrong shape, 1e30, a truncated array; an envelope with no message in it, and one for another letter;
    last, times on an envelope that are no numbers, which is not stored, so that it is only missed."""
    federation.admit("hostile")
    federation.start_site("hostile", 2, [Path(__file__).with_name("hostile.py")])
    try:
        wait_for(lambda: "hostile" in federation.connected(), look=0.5)  # or the first round may not wait for it
        config = config_of("fedavg", rounds=7)
        run = federation.finish(federation.submit("hostile", config, [*SITES[:2], "hostile"], deadline=20))
    finally:
        federation.stop("hostile")
    assert [line["replies"] for line in run.rounds] == [2] * 7
    *reasons, first, second, last = [line["lost"]["2"] for line in run.rounds]
    for reason, said in zip(("not finite", "but must be", "the norm of its weights", "damaged"), reasons, strict=True):
        assert said.startswith("refused: ") and reason in said
    assert first == second == "error at the site: its reply is damaged" and last == "no reply within 20 s"


def test_past_the_deadline_a_round_goes_on_without_a_site(federation: Federation) -> None:
    """The quorum of three is two, so however slow the other two are, they are waited for."""
    stuck = federation.started["site2"].pid
    os.kill(stuck, signal.SIGSTOP)
    try:
        run = federation.finish(federation.submit("deadline", config_of("fedavg", rounds=1), deadline=3))
    finally:
        os.kill(stuck, signal.SIGCONT)
    assert run.rounds[0]["replies"] == 2 and run.rounds[0]["lost"] == {"2": "no reply within 3 s"}


@pytest.mark.slow  # it waits for a minute; make test-more runs it
def test_a_site_killed_in_a_round_comes_back_with_its_memory(federation: Federation) -> None:
    """It has done the work of its second round and is killed at once; nobody goes on without it."""
    config = config_of("moon", rounds=6)  # of which the site could do some before the signal comes
    out = federation.submit("site-killed", config)
    wait_for(lambda: (out / "run_id").exists())
    worked = federation.memory("site1") / (out / "run_id").read_text() / "site-1" / "turn-1.safetensors"
    wait_for(worked.exists, look=0.002)
    federation.stop("site1", signal.SIGKILL)
    # Flower gives away the place of a lost node only after a while.
    wait_for(lambda: "site1" not in federation.connected(), look=1)
    assert rounds(out) < 6
    federation.start_site("site1", 1)
    run = federation.finish(out)
    assert run.end is not None and run.end["weights_sha256"] == inline(config)
    assert [line["replies"] for line in run.rounds] == [3] * 6


@pytest.mark.slow
def test_a_server_killed_goes_on_by_itself_to_the_same_weights(federation: Federation) -> None:
    config = config_of("moon", rounds=4)
    out = federation.submit("server-killed", config)
    wait_for(lambda: rounds(out) >= 1, look=0.02)
    os.kill(server_process(out), signal.SIGKILL)
    assert rounds(out) < 4
    run = federation.finish(out)
    assert run.end is not None and run.end["weights_sha256"] == inline(config)
    assert [line["replies"] for line in run.rounds] == [3, 3, 3, 3]
    assert b"it is started again" in federation.log("coordinator").read_bytes()


@pytest.mark.slow
def test_a_superlink_killed_with_its_executor_goes_on_when_the_run_is_submitted_again(federation: Federation) -> None:
    """The sites stay as they are, and find their way back."""
    config = config_of("moon", rounds=4)
    out = federation.submit("link-killed", config)
    wait_for(lambda: rounds(out) >= 1, look=0.02)
    federation.stop("link", signal.SIGKILL)
    federation.stop("coordinator", signal.SIGKILL)
    assert rounds(out) < 4
    federation.start_link()
    federation.start_coordinator()
    assert federation.submit("link-killed", config) == out
    run = federation.finish(out)
    assert run.end is not None and run.end["weights_sha256"] == inline(config)
    assert [line["replies"] for line in run.rounds] == [3, 3, 3, 3]


@pytest.mark.slow
def test_a_superlink_killed_alone_loses_messages_that_are_sent_again(federation: Federation) -> None:
    """Its database says who was asked what; the messages' objects were in its memory."""
    config = config_of("scaffold", rounds=6)
    out = federation.submit("link-alone", config)
    wait_for(lambda: rounds(out) >= 1, look=0.02)
    federation.stop("link", signal.SIGKILL)
    assert rounds(out) < 6
    federation.start_link()
    run = federation.finish(out)
    assert run.end is not None and run.end["weights_sha256"] == inline(config)
    assert [line["replies"] for line in run.rounds] == [3] * 6


@pytest.mark.slow
def test_a_superlink_that_fails_now_and_then_loses_nothing(federation: Federation) -> None:
    federation.stop("link")
    federation.start_link(Path(__file__).with_name("failing_link.py"))
    try:
        config = config_of(
            "scaffold", rounds=4, model={"name": "mlp", "args": {"hidden": [400]}}
        )  # an answer in pieces
        run = federation.finish(federation.submit("link-fails", config))
    finally:
        federation.stop("link")
        federation.start_link()
    assert run.end is not None and run.end["weights_sha256"] == inline(config)
    assert [line["replies"] for line in run.rounds] == [3, 3, 3, 3]
    failed = set(re.findall(r"failed: (\S+)", federation.log("link").read_text()))
    assert {"/v1/fleet/push-messages", "/v1/fleet/push-object"} <= failed
