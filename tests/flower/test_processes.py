"""A SuperLink and three SuperNodes on loopback: the same bits as inline, whoever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedskew import config as configuration
from fedskew import experiment
from fedskew.config import RunConfig
from tests.flower.processes import Federation, wait_for

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        yield made
    finally:
        made.close()


def config_of(method: str, rounds: int = 2) -> RunConfig:
    return configuration.from_dict(
        {
            "method": method,
            "rounds": rounds,
            "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 3},
            "model": {"name": "tiny"},
            "local": {"epochs": 1, "batch": 64},
            "engine": {"name": "inline"},
        }
    )


def inline(config: RunConfig) -> str:
    digest = experiment.run(config).end["weights_sha256"]
    assert isinstance(digest, str)
    return digest


SLOW = [
    pytest.param(method, marks=pytest.mark.slow)
    for method in (
        "fedavg",
        "scaffold",
        "fedlmd",
        "fedvls",
        "fpl",
        "fedcurv",
        "fedconcat(encoder_rounds=1, clusters=2)",
    )
]


@pytest.mark.parametrize("method", ["fednoro(warmup=1)", *SLOW])
def test_parity(federation: Federation, method: str) -> None:
    config = config_of(method)
    name = method.partition("(")[0]
    run = federation.finish(federation.submit(name, config))
    assert run.end is not None and run.end["weights_sha256"] == inline(config)
    assert not [line for line in run.rounds if "lost" in line]


def test_a_server_killed_goes_on_to_the_same_weights(federation: Federation) -> None:
    """And MOON's memories of the earlier rounds are on the sites' disks."""
    config = config_of("moon", rounds=3)
    out = federation.submit("killed", config)
    wait_for(lambda: federation.rounds(out) >= 1)
    os.kill(federation.server_process(out), signal.SIGKILL)
    before = federation.rounds(out)
    assert before < 3
    federation.submit("killed", config)
    run = federation.finish(out)
    assert run.end is not None and run.end["weights_sha256"] == inline(config)


@pytest.mark.slow
def test_a_node_killed_in_a_round_comes_back_with_its_memory(federation: Federation) -> None:
    """Without keys a node that comes back is another one to Flower; it takes its place when the old one is missed."""
    config = config_of("moon", rounds=3)
    out = federation.submit("restart", config)
    wait_for(lambda: federation.rounds(out) >= 1)
    federation.stop("node1")
    federation.node(1)
    run = federation.finish(out)
    assert run.end is not None and run.end["weights_sha256"] == inline(config)
    assert not [line for line in run.rounds if "lost" in line]


@pytest.mark.slow
def test_a_hostile_site_is_refused_round_after_round(federation: Federation) -> None:
    """NaN, a wrong shape, 1e30, a truncated array."""
    app = Path(__file__).with_name("hostile.py")
    run = federation.finish(federation.submit("hostile", config_of("fedavg", rounds=4), app))
    assert [line["replies"] for line in run.rounds] == [2, 2, 2, 2]
    reasons = [line["lost"]["2"] for line in run.rounds]
    for reason, said in zip(("not finite", "and must be", "the norm of its weights", "damaged"), reasons, strict=True):
        assert said.startswith("refused: ") and reason in said


@pytest.mark.slow
def test_past_the_deadline_a_round_goes_on_without_a_site(federation: Federation) -> None:
    federation.stop("node2")
    try:
        run = federation.finish(federation.submit("deadline", config_of("fedavg", rounds=1), deadline=45))
    finally:
        federation.node(2)
    assert run.rounds[0]["replies"] == 2 and run.rounds[0]["lost"] == {"2": "no reply within 45 s"}


def test_nothing_is_left_running(tmp_path: Path) -> None:
    """Processes know the federation by its folder, which is in their environment."""

    def running() -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"FLWR_HOME={tmp_path}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text())
        return found

    made = Federation(tmp_path, nodes=1)
    assert len(running()) >= 2
    made.close()
    wait_for(lambda: not running(), seconds=30)
