from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.errors import UserError
from fedskew.methods import combine, registry
from tests.contract import harness
from tests.contract.methods import SMALL

PAGE = Path(__file__).parents[2] / "docs" / "combinations.md"


def test_every_pair_either_combines_in_both_orders_alike_or_is_refused_in_one_sentence() -> None:
    pairs = combine.combinations()
    known = registry.known()
    assert len(pairs) == len(known) * (len(known) - 1) // 2
    for (a, b), refusal in pairs.items():
        if refusal is None:
            assert registry.build(f"{a}+{b}").stages == registry.build(f"{b}+{a}").stages
        else:
            assert "\n" not in refusal and a in refusal and b in refusal
            with pytest.raises(UserError):
                registry.build(f"{b}+{a}")


def test_the_combinations_of_the_papers_work_and_the_senseless_ones_do_not() -> None:
    pairs = combine.combinations()
    for pair in (("fedlmd", "fedprox"), ("fedavgm", "fedlmd"), ("fedexp", "fedvls"), ("fedvls", "fpl")):
        assert pairs[pair] is None
    for pair in (("fedlc", "fedvls"), ("fedavgm", "fedexp"), ("fedgf", "fedsam"), ("fedconcat", "scaffold")):
        assert pairs[pair]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == combine.page(), "run `make docs`"


@pytest.mark.slow
def test_every_pair_that_combines_trains() -> None:
    for pair in (pair for pair, refusal in combine.combinations().items() if refusal is None):
        expression = "+".join(SMALL.get(name, name) for name in pair)
        assert harness.finish(harness.config(expression, rounds=2, epochs=1)).accuracy
