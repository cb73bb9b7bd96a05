"""Whose samples count in SCAFFOLD's two means, by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fedskew.methods import registry
from fedskew.parts.protocol import Cohort
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.views import ServerContext
from fedskew.reproduce.presets import find
from fedskew.reproduce.schema import SCALES
from tests.parts.by_hand import Federation, Parabola, b

# lr 1/2, two steps, one sample against three.  Round 1, all variates 0: client 0: 4 -> 2 -> 1, client 1: 4 -> 3 -> 2.5
#   c_0 = (4 - 1)/(2 * 1/2) = 3, c_1 = (4 - 2.5)/1 = 1.5
#   uniform: b = 1.75, c = (3 + 1.5)/2 = 2.25
#   mixed:   b = (1 + 3 * 2.5)/4 = 2.125, c = 2.25
#   samples: b = 2.125, c = 2/2 (3 + 3 * 1.5)/4 = 1.875
# Round 2, client 0 has the gradient b - 3 + c and client 1 b - 2 - 1.5 + c:
#   uniform: 1.75 -> 1.25 -> 1 and 1.75 -> 1.5 -> 1.375, b = 1.1875
#   mixed:   2.125 -> 1.4375 -> 1.09375 and 2.125 -> 1.6875 -> 1.46875, b = (1.09375 + 3 * 1.46875)/4 = 1.375
#   samples: 2.125 -> 1.625 -> 1.375 and 2.125 -> 1.875 -> 1.75, b = (1.375 + 3 * 1.75)/4 = 1.65625
BY_HAND = {"uniform": ([1.75, 1.1875], 2.25), "mixed": ([2.125, 1.375], 2.25), "samples": ([2.125, 1.65625], 1.875)}


@dataclass(frozen=True)
class FirstTwo(Cohort):
    def pick(self, ctx: ServerContext) -> list[int]:
        del ctx
        return [0, 1]


def federation(weights: str, *others: tuple[int, int]) -> Federation:
    """The first two clients are asked."""
    (stage,) = registry.build(f"scaffold(weights={weights!r})").stages
    stage = replace(stage, base=Parabola(), cohort=FirstTwo())
    return Federation([(1, 0), (3, 2), *others], stage, start=4.0, epochs=2)


def variate_of(each: Federation) -> float:
    """The server's, after a round."""
    return float(b(next(each.states()).memory["ControlVariate@0"]))


@pytest.mark.parametrize("weights", BY_HAND)
def test_one_sample_against_three(weights: str) -> None:
    models, variate = BY_HAND[weights]
    assert federation(weights).iterates(2) == models
    assert variate_of(federation(weights)) == variate


def test_two_of_three_clients_move_the_server_by_their_share() -> None:
    """By samples 2/3 (3 + 3 * 1.5)/4 = 1.25, plain 2/3 (3 + 1.5)/2 = 1.5, whatever the third one holds."""
    assert variate_of(federation("samples", (5, 2))) == 1.25
    assert variate_of(federation("mixed", (5, 2))) == 1.5


@pytest.mark.parametrize("weights", BY_HAND)
def test_batch_norm_s_statistics_have_the_weights_of_the_parameters(weights: str) -> None:
    (stage,) = registry.build(f"scaffold(weights={weights!r})").stages
    assert isinstance(stage.server, Aggregate) and stage.server.statistics == "weights"


def test_plain_means_are_the_default_and_fedlmd_s_tables_run_the_code_s() -> None:
    assert registry.build("scaffold") == registry.build("scaffold(weights='uniform')")
    (preset, _), *_ = find("fedlmd/table3/cifar10-lda-0.1")
    for scale in SCALES:
        (cell,) = preset.cells(scale, ["scaffold"])
        assert cell.config.method == "scaffold(weights='mixed')"
