from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import norm

from fedskew.core.types import Task, Update
from fedskew.detection.privacy import noise_ratio
from fedskew.experiment import privacy
from fedskew.methods import registry
from fedskew.parts import compose
from fedskew.parts.stages import Plan
from fedskew.record.schema import RoundLine, SetupLine


def plan(method: str, clients: int = 3) -> Plan:
    return compose.plan(registry.build(method), Task(2, (1,), clients), seed=0, rounds=5)


def line(*asked: int, stage: int = 0, channels: tuple[str, ...] = (), replies: int = 1, **more: Any) -> RoundLine:
    shared: dict[str, Any] = {"round": 1, "seconds": 0.0, **more}
    return RoundLine(stage=stage, clients_asked=list(asked), channels=list(channels), replies=replies, **shared)


def setup(part: str) -> SetupLine:
    return SetupLine(round=1, part=part)


def delta_of(epsilon: float, ratio: float) -> float:
    """Of one Gaussian release (Balle and Wang 2018, theorem 8)."""
    half = 1 / (2 * ratio)
    return norm.cdf(half - epsilon * ratio) - math.exp(epsilon) * norm.cdf(-half - epsilon * ratio)


def test_the_client_that_was_asked_most_often_counts() -> None:
    # client 1 twice, the others once; sigma 3: ratio 3/2 each, together 1.5 / sqrt(2)
    claim = privacy.claim(plan("fedavg+dp(sigma=3.0)"), [line(0, 1), line(1, 2)], [])
    assert delta_of(claim["epsilon"], 1.5 / math.sqrt(2)) == pytest.approx(1e-5, rel=1e-6)
    assert claim["delta"] == 1e-5
    assert claim["statement"] == (
        f"epsilon {claim['epsilon']:.4g} at delta 1e-05, for all data of a client exchanged for any other of the same "
        "size, at the client that was asked most; no amplification by sampling"
    )


def test_epsilon_is_what_another_accountant_finds() -> None:
    # sigma 2 is ratio 1; numerical composition of privacy losses, another way to it, has 4.37718
    assert privacy.claim(plan("dp(sigma=2.0)"), [line(0)], [])["epsilon"] == pytest.approx(4.377, abs=1e-3)


def test_more_rounds_cost_more_and_more_noise_or_a_greater_delta_less() -> None:
    def epsilon(method: str, rounds: int) -> float:
        return privacy.claim(plan(method), [line(0)] * rounds, [])["epsilon"]

    assert epsilon("dp(sigma=2.0)", 1) < epsilon("dp(sigma=2.0)", 2) < 2 * epsilon("dp(sigma=2.0)", 1)
    assert epsilon("dp(sigma=4.0)", 4) == pytest.approx(epsilon("dp(sigma=2.0)", 1))
    assert epsilon("dp(sigma=2.0, delta=0.01)", 1) < epsilon("dp(sigma=2.0)", 1)


def test_sampling_is_no_excuse_and_neither_is_a_lost_reply() -> None:
    whole = privacy.claim(plan("dp", clients=1000), [line(5, replies=1), line(5, replies=0)], [])
    assert whole["epsilon"] == privacy.claim(plan("dp", clients=1), [line(0)] * 2, [])["epsilon"]


@pytest.mark.parametrize(
    ("method", "lines", "setups", "why"),
    [
        ("dp", [line(0), line(0, channels=("Zeta", "loss"))], [], "these channels are not covered: Zeta, loss"),
        ("dp(sigma=0)", [line(0)], [], "these channels are not covered: weights and buffers"),
        ("fednoro+dp", [line(0, stage=1)], [setup("Detect")], "these channels are not covered: Detect"),
        ("dp", [line(0, replies=0)], [], "these channels are not covered: replies that all got lost"),
        (
            "dp",
            [line(0, scored_by="clients")],
            [],
            "these channels are not covered: scores on clients' own test data",
        ),
        ("dp", [], [], "no client was asked"),
    ],
)
def test_what_is_not_covered_is_named_and_gives_no_figure(method: str, lines: Any, setups: Any, why: str) -> None:
    claim = privacy.claim(plan(method), lines, setups)
    assert claim == {"epsilon": None, "delta": 1e-5, "statement": f"no figure: {why}"}


def test_one_stage_without_noise_is_enough() -> None:
    both = plan("fednoro(epsilon=1.0)+dp")
    first, second = both.method.stages
    half = replace(both, method=replace(both.method, stages=(replace(first, privacy=None), second)))
    lines = [line(0, stage=0), line(0, stage=1)]
    assert privacy.claim(both, lines, [])["epsilon"] is not None
    assert (
        privacy.claim(half, lines, [])["statement"] == "no figure: these channels are not covered: weights and buffers"
    )


def test_private_answers_of_a_setup_add_up_with_updates_for_one_sample() -> None:
    # every client answers twice and the one asked most has two updates of ratio 1: 1/r^2 = 2 / ratio^2 + 2
    claim = privacy.claim(
        plan("fednoro(epsilon=1.0)+dp(sigma=2.0)"), [line(0), line(0, 1, stage=1)], [setup("Detect")] * 2
    )
    together = 1 / math.sqrt(2 / noise_ratio(1.0, 1e-5) ** 2 + 2)
    assert delta_of(claim["epsilon"], together) == pytest.approx(1e-5, rel=1e-6)
    assert "for one sample of a client" in claim["statement"]


def test_a_setup_that_asks_nothing_costs_nothing() -> None:
    claim = privacy.claim(plan("moon(head=4)+dp"), [line(0)], [setup("ProjectionHead")])
    assert claim["epsilon"] == privacy.claim(plan("dp"), [line(0)], [])["epsilon"]


def test_without_the_library_the_run_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    claim = privacy.claim(plan("dp"), [line(0)], [])
    assert claim["epsilon"] is None
    assert claim["statement"] == ("no figure: dp-accounting is not installed; run: pip install 'fedskew[privacy]'")


def test_channels_are_what_updates_have_beside_weights() -> None:
    def update(**metrics: float) -> Update:
        return Update(0, 1, 1, {}, {}, {}, {"seconds": 1.0, "up": 8.0, "down": 8.0} | metrics)

    assert privacy.channels([]) == privacy.channels([update()]) == []
    assert privacy.channels([update(loss=1.0), update(**{"up/Curvature": 4.0})]) == ["Curvature", "loss"]
    assert privacy.channels([update(accuracy_all=1.0, drift=2.0)]) == ["scores of client models"]
