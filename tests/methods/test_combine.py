from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.core.errors import UserError
from fedskew.methods import combine, registry
from fedskew.parts.servers.distance import DistanceAware
from fedskew.parts.servers.weigh import Uniform
from tests.contract import harness
from tests.contract.methods import SMALL

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "combinations.md"


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


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("local+krum", "all weights stay at the clients, so the server has nothing to weigh, reduce or move"),
        ("local+fedadam", "all weights stay at the clients, so the server has nothing to weigh, reduce or move"),
        ("fednova+local", "all weights stay at the clients, so the server has nothing to weigh, reduce or move"),
        ("local+ccvr", "'local' leaves all weights at the clients, and the closing stage of 'ccvr' starts from"),
        ("finetuned+local", "'local' leaves all weights at the clients, and the closing stage of 'finetuned'"),
        ("centralized+rfa", "all samples in one place, but GeometricMedian compares the updates of several clients"),
        ("fedmedian+centralized", "all samples in one place, but Median compares the updates of several clients"),
        ("centralized+local", "all samples in one place, but clients have weights of their own"),
        ("centralized+fedper", "all samples in one place, but clients have weights of their own"),
        ("ditto+centralized", "all samples in one place, but its local work has phases for each client"),
    ],
)
def test_what_would_do_nothing_is_refused(pair: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        registry.build(pair)
    assert sentence in str(error.value) and "Drop one of" in str(error.value)


def test_what_does_something_alone_or_in_one_place_stays() -> None:
    for expression in ("local+prox", "local+fedsam", "centralized+fedadam", "centralized+prox+ccvr", "finetuned+krum"):
        registry.build(expression)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == combine.page(), "run `make docs`"


@pytest.mark.parametrize(
    "expression", ["fedadam+fedlmd", "fedbn+fedvls", "rfa+fednoro(warmup=1)", "lora(rank=2)+fedprox"]
)
def test_combinations_that_make_sense_train(expression: str) -> None:
    assert harness.finish(harness.config(expression, rounds=2, local_epochs=1)).accuracy


def test_a_geometric_median_starts_from_the_weights_of_another_method() -> None:
    first = {registry.build(m).stages[-1].server.weigh.first for m in ("rfa+fednoro", "fednoro+rfa")}  # type: ignore[attr-defined]
    assert first == {DistanceAware()}
    both = registry.build("rfa+scaffold+fedlmd").stages[0]
    assert both.server.weigh.first == Uniform() and both == registry.build("fedlmd+rfa+scaffold").stages[0]  # type: ignore[attr-defined]
    for expression in ("rfa+krum", "rfa+rhfl", "rfa+scaffold+fednoro"):
        with pytest.raises(UserError, match="both bring their own weigh"):
            registry.build(expression)


@pytest.mark.slow
def test_every_pair_that_combines_trains() -> None:
    for pair in (pair for pair, refusal in combine.combinations().items() if refusal is None):
        expression = "+".join(SMALL.get(name, name) for name in pair)
        assert harness.finish(harness.config(expression, rounds=2, local_epochs=1)).accuracy
