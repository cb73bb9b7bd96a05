from __future__ import annotations

from fedskew.core.wording import number_of


def test_one_is_singular() -> None:
    assert [number_of(n, "round") for n in (0, 1, 2, 1200)] == ["0 rounds", "1 round", "2 rounds", "1,200 rounds"]
