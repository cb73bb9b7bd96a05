"""A federation of three nodes with TLS and keys ends with the same bits as inline; and so does plain Flower."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew import config as configuration
from fedskew.federation.transport import project
from fedskew.record import reader
from tests.federation.transport.processes import Federation, PlainFlower, config_of, inline, rounds, wait_for

pytestmark = pytest.mark.timeout(900)

QUICK = ["moon", "fednoro(warmup=1)", "fedconcat(encoder_rounds=1, clusters=2)"]
SLOW = ["fedavg", "scaffold", "fedlmd", "fedvls", "fpl", "fedcurv"]


@pytest.mark.parametrize("method", [*QUICK, *(pytest.param(method, marks=pytest.mark.slow) for method in SLOW)])
def test_parity(federation: Federation, method: str) -> None:
    config = config_of(method)
    run = federation.finish(federation.submit(method.partition("(")[0], config))
    assert run.end is not None and run.end["weights_sha256"] == inline(config)
    assert [line["replies"] for line in run.rounds] == [3, 3]


@pytest.mark.slow
def test_plain_flower_runs_it_too_and_nothing_is_left_running(tmp_path: Path) -> None:
    config, out = config_of("fedavg", rounds=1, clients=2), tmp_path / "run"
    made = PlainFlower(tmp_path, sites=2)
    try:
        app = tmp_path / "app"
        given = project.write(app, {"config": configuration.dumps(config), "out": str(out)})
        made.flwr("run", ".", "--run-config", given, cwd=app)
        wait_for(lambda: rounds(out) and reader.read(out).end)
        assert len(made.running()) >= 3
    finally:
        made.close()
    end = reader.read(out).end
    assert end is not None and end["weights_sha256"] == inline(config)
    assert not made.running()
