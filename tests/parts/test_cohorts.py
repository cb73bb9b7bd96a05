from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedskew.core.errors import UserError
from fedskew.core.types import Round
from fedskew.parts import compose
from fedskew.parts.cohorts import AtMost, OneByOne
from fedskew.parts.stages import Method
from tests.parts.by_hand import server_context


def test_one_by_one_goes_by_the_order_and_starts_over() -> None:
    at_hand = server_context(facts={"order": torch.tensor([2, 0, 3, 1])})
    picked = [OneByOne().pick(replace(at_hand, round=Round(9, 0, within, 0))) for within in range(6)]
    assert picked == [[2], [0], [3], [1], [2], [0]]


@pytest.mark.parametrize(
    ("mu", "chosen"),
    [
        ([0.0, 0.1, 0.11, 0.05], [0, 1, 3]),  # the bound is included
        ([0.0, 0.0, 0.0, 0.0], [0, 1, 2, 3]),  # nobody noisy: everybody
        ([0.3, 0.2, 0.7, 0.2], [1, 3]),  # nobody within: those with the least
    ],
)
def test_at_most_picks_those_within_the_bound_or_else_the_lowest(mu: list[float], chosen: list[int]) -> None:
    facts = {"mu": torch.tensor(mu, dtype=torch.float64)}
    assert AtMost("mu", 0.1).pick(server_context(facts=facts)) == chosen


def test_at_most_takes_whole_numbers_too() -> None:
    assert AtMost("noisy", 0).pick(server_context(facts={"noisy": torch.tensor([0, 1, 0, 1])})) == [0, 2]


@pytest.mark.parametrize(("cohort", "fact"), [(OneByOne(), "order"), (AtMost("mu", 0.1), "mu")])
def test_the_facts_must_be_established(cohort: OneByOne | AtMost, fact: str) -> None:
    with pytest.raises(UserError, match=f"{cohort.name} needs the fact '{fact}'"):
        Method("made", (compose.stage(cohort=cohort),))
