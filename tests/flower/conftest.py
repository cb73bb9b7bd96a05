from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.flower.processes import Federation

pytest.importorskip("flwr", reason="Flower is an extra: pip install fedskew[flower]")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody is far away in these tests."""
    from fedskew.flower import pace

    monkeypatch.setattr(pace, "QUICK", 0.002)
    yield


@pytest.fixture(scope="package")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """One for all: a test leaves it as it found it."""
    from tests.flower.processes import Federation

    made = Federation(tmp_path_factory.mktemp("federation").resolve())
    try:
        yield made
    finally:
        made.close()
