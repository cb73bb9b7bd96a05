from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.federation.transport.processes import Federation

pytest.importorskip("flwr", reason="Flower is an extra: pip install fedskew[flower]")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody is far away in these tests."""
    from fedskew.federation.transport import polling

    monkeypatch.setattr(polling, "QUICK", 0.002)
    yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a federation in one process: time passes only while the coordinator waits, so no machine is too slow."""
    from fedskew.experiment import callbacks, recorder
    from fedskew.federation.coordinator import server_app
    from fedskew.federation.transport import messenger

    now = 0.0

    def read() -> float:
        nonlocal now
        now += 1e-6
        return now

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    for module in (messenger, server_app, recorder, callbacks):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=read, perf_counter=read, sleep=sleep))


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """One for all: a test leaves it as it found it."""
    from tests.federation.transport.processes import Federation

    made = Federation(tmp_path_factory.mktemp("federation").resolve())
    try:
        yield made
    finally:
        made.close()
