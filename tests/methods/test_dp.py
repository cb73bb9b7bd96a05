from __future__ import annotations

import math
from typing import Any

import pytest

from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.experiment import run as experiment
from fedskew.methods import registry
from fedskew.parts.stages import seen_singly
from fedskew.report import load
from fedskew.report.html import page
from tests.contract import harness
from tests.experiment.test_privacy import delta_of


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSKEW_SECRET", "one")


def ended(method: str, **options: Any) -> experiment.Result:
    return harness.finish(harness.config(method, **({"rounds": 2, "local_epochs": 1} | options)))


def test_a_covered_run_ends_with_a_figure_and_keeps_its_losses_to_itself() -> None:
    finished = ended("fedlmd+moon+dp(sigma=5.0)")
    assert all("loss" not in line and line["channels"] == [] for line in finished.rounds)
    assert [len(line["clients_asked"]) for line in finished.rounds] == [3, 3]
    # of four clients three are asked, twice: somebody both times, with ratio 5/2
    assert delta_of(finished.end["privacy"]["epsilon"], 2.5 / math.sqrt(2)) == pytest.approx(1e-5, rel=1e-6)
    assert "for all data of a client" in finished.end["privacy"]["statement"]


@pytest.mark.parametrize(
    ("method", "options", "channels"),
    [
        ("scaffold+dp", {}, "ControlVariate"),
        ("fednova+dp", {}, "Aggregate"),
        ("rhfl+dp", {}, "Aggregate"),
        ("fpl+fedcurv+dp", {}, "Curvature, Prototypes"),
        ("fedavg+dp", {"evaluate_clients": True}, "scores of client models"),
        ("fednoro(warmup=1)+dp", {}, "Detect"),
        ("fedavg+dp(sigma=0)", {}, "weights and buffers"),
    ],
)
def test_an_uncovered_channel_is_named(method: str, options: dict[str, Any], channels: str) -> None:
    finished = ended(method, **options)
    assert finished.end["privacy"]["epsilon"] is None
    assert finished.end["privacy"]["statement"] == f"no figure: these channels are not covered: {channels}"


def test_a_method_without_it_claims_nothing() -> None:
    finished = ended("fedavg")
    assert "privacy" not in finished.end
    assert all("loss" in line and "channels" not in line and "clients_asked" not in line for line in finished.rounds)


def test_the_bits_are_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = ended("dp(sigma=0.1)").weights, ended("dp(sigma=0.1)").weights
    monkeypatch.setenv("FEDSKEW_SECRET", "another")
    other = ended("dp(sigma=0.1)").weights
    assert first is not None and again is not None and other is not None
    assert tree.equal(first, again) and not tree.equal(first, other)
    assert tree.equal(ended("dp(sigma=0)").weights or {}, ended("dp(sigma=0)").weights or {})


def test_a_resumed_run_counts_the_rounds_before(tmp_path: Any) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            raise KeyboardInterrupt

    whole = ended("dp", rounds=3)
    with pytest.raises(KeyboardInterrupt):
        harness.finish(
            harness.config("dp", rounds=3, local_epochs=1), out=tmp_path / "run", callbacks=[harness.each_round(stop)]
        )
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert resumed.end["privacy"] == whole.end["privacy"]
    written = load.read([tmp_path / "run"])
    for text in (page.markdown(written), page.html(written)):
        assert text.count(whole.end["privacy"]["statement"]) == 1


def test_noise_without_a_clip_is_refused() -> None:
    with pytest.raises(UserError) as finished:
        registry.build("fedavg+dp(clip=None)")
    assert str(finished.value) == "method 'dp': sigma is 1.0, in units of clip, but clip is None. Give clip a number."


@pytest.mark.parametrize("wrong", ["dp(clip=0)", "dp(sigma=-1)", "dp(delta=0)", "dp(delta=1)"])
def test_senseless_values_are_refused(wrong: str) -> None:
    with pytest.raises(UserError, match="method 'dp'"):
        registry.build(wrong)


def test_two_seals_are_one_too_many() -> None:
    with pytest.raises(UserError, match="both bring their own privacy"):
        registry.build("dp(sigma=1)+fedavg+dp(sigma=2)")


def test_who_rules_out_secure_aggregation() -> None:
    expected = {
        "fedavg+dp": [],
        "scaffold+fedexp": [],
        "fpl": ["Prototypes"],
        "fednoro(distance=None)": ["Detect"],
        "fednoro": ["Detect", "DistanceAware"],
        "fedconcat": ["ClusterByLabels"],
        "rhfl": ["Confidence"],
    }
    assert {name: seen_singly(registry.build(name)) for name in expected} == expected
