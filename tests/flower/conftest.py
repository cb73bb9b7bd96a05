from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install fedskew[flower]")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody is far away in these tests."""
    from fedskew.flower import pace

    monkeypatch.setattr(pace, "QUICK", 0.002)
    yield
