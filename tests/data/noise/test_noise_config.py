"""The noise section: what each kind needs, what it does not use, and the short form."""

from __future__ import annotations

import tomllib
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew import api
from fedskew import config as configuration
from fedskew.config.noise import NOISE_USES, RATELESS, WHO_USES, AnnotatorConfig, NoiseConfig, NoiseKind
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError

share = st.floats(0, 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "rho": share,
    "rates": st.lists(st.sampled_from([0.0, 1.0]), min_size=10, max_size=10),
    "scope": st.sampled_from(["global", "local"]),
    "count": st.sampled_from(["exact", "coin"]),
    "direction": st.sampled_from([1, -1]),
    "mapping": st.text() | st.lists(st.integers()),
    "matrix": st.text(),
    "mode": st.sampled_from(["iid", "quota"]),
    "soft_labels": st.none() | st.text(),
    "labels": st.text(),
    "key": st.none() | st.text(),
    "legacy": st.booleans(),
}


@st.composite
def noises(draw: st.DrawFn) -> NoiseConfig:
    kind, who = draw(st.sampled_from(get_args(NoiseKind))), draw(st.sampled_from(sorted(WHO_USES)))
    if kind == "none":
        return NoiseConfig()
    used = (WHO_USES[who] | NOISE_USES[kind]) & VALUES.keys()
    fields = {name: draw(VALUES[name]) for name in sorted(used)}
    if who != "explicit" and kind not in RATELESS:
        fields["low"], fields["high"] = sorted((draw(share), draw(share)))
    if "annotator" in NOISE_USES[kind] and fields["soft_labels"] is None:
        fields["annotator"] = AnnotatorConfig(
            epochs=draw(st.integers(1, 99)),
            crossfit=draw(st.sampled_from([0, 2, 5])),
            share=draw(st.sampled_from(["client", "global"])),
        )
    return NoiseConfig(kind=kind, who=who, seed=draw(st.none() | st.integers(-(2**63), 2**63 - 1)), **fields)


@given(noises())
def test_toml_round_trip(noise: NoiseConfig) -> None:
    made = RunConfig(noise=noise)
    again = configuration.from_dict(tomllib.loads(configuration.dumps(made)))
    assert again == made
    assert configuration.dumps(again) == configuration.dumps(made)


def test_the_default_is_no_noise_and_reads_back() -> None:
    made = configuration.from_dict(tomllib.loads(configuration.dumps(RunConfig())))
    assert made == RunConfig()
    assert made.noise.kind == "none"
    assert set(NOISE_USES) == set(get_args(NoiseKind))


def test_bounds_that_are_not_set() -> None:
    assert NoiseConfig(kind="symmetric", rho=0.4).bounds == (0.3, 0.5)
    assert NoiseConfig(kind="symmetric", who="bernoulli", rho=0.4).bounds == (0.5, 1.0)
    assert NoiseConfig(kind="symmetric", rho=0.4, low=0.1).bounds == (0.1, 0.5)
    assert NoiseConfig(kind="human", rho=0.4, labels="x").bounds == (1.0, 1.0)


@pytest.mark.parametrize(
    ("noise", "sentence"),
    [
        (
            {"kind": "symetric"},
            "noise.kind is 'symetric', but must be none, h_idn, symmetric, uniform, pairflip, asymmetric, transition, "
            "idn, pdn or human. Type, for example, noise.kind=symmetric.",
        ),
        (
            {"kind": "symmetric"},
            "noise 'symmetric' needs noise.rho, which is not set. Type, for example, --set noise.rho=0.4.",
        ),
        ({"rho": 0.4}, "noise 'none' does not use noise.rho here. Remove it: --set noise.rho=none."),
        (
            {"kind": "symmetric", "rho": 1.5},
            "noise.rho is 1.5, but must be at most 1. Type, for example, noise.rho=1.0.",
        ),
        (
            {"kind": "symmetric", "rho": 0.5, "low": -0.1},
            "noise.low is -0.1, but must be at least 0.",
        ),
        (
            {"kind": "symmetric", "rho": 0.5, "low": 0.7, "high": 0.6},
            "noise.low is 0.7, above noise.high, 0.6. Type --set noise.low=0.6.",
        ),
        (
            {"kind": "symmetric", "who": "explicit", "rates": [0.0, 1.5]},
            "noise.rates.1 is 1.5, but must be at most 1.",
        ),
        (
            {"kind": "symmetric", "who": "explicit", "rates": [0.0, 0.5]},
            "noise.rates has 2 numbers for 10 clients. Give one number for each client.",
        ),
        (
            {"kind": "symmetric", "who": "explicit"},
            "noise 'symmetric' needs noise.rates, which is not set. Type, for example, --set noise.rates=[0.0,0.5].",
        ),
        (
            {"kind": "symmetric", "who": "explicit", "rates": [0.0] * 10, "rho": 0.4},
            "noise 'symmetric' does not use noise.rho here. Remove it: --set noise.rho=none.",
        ),
        (
            {"kind": "uniform", "rho": 0.5, "mapping": "mnist"},
            "noise 'uniform' does not use noise.mapping here. Remove it: --set noise.mapping=none.",
        ),
        (
            {"kind": "asymmetric", "rho": 0.5},
            "noise 'asymmetric' needs noise.mapping, which is not set. Type, for example, --set noise.mapping=cifar10.",
        ),
        (
            {"kind": "asymmetric", "rho": 0.5, "mapping": [0.5]},
            "noise.mapping is [0.5], but must be a name, or a list of classes.",
        ),
        (
            {"kind": "pairflip", "rho": 0.5, "direction": 2},
            "noise.direction is 2, but must be 1 or -1. Type, for example, noise.direction=1.",
        ),
        (
            {"kind": "transition", "rho": 0.5, "matrix": "t.csv", "low": 0.5},
            "noise 'transition' does not use noise.low here. Remove it: --set noise.low=none.",
        ),
        (
            {"kind": "human", "who": "explicit", "labels": "x.pt", "rates": [0.5] + [0.0] * 9},
            f"noise.rates is {[0.5] + [0.0] * 9}, but noise 'human' has only clean clients, 0, and noisy ones, 1. "
            f"Type --set noise.rates={[0] * 10}.",
        ),
        (
            {"kind": "h_idn", "rho": 0.5, "soft_labels": "x.csv", "annotator": {"epochs": 3}},
            "noise 'h_idn' does not use noise.annotator here. Remove it: --set noise.annotator=none.",
        ),
        (
            {"kind": "h_idn", "rho": 0.5, "annotator": {"crossfit": 1}},
            "noise.annotator.crossfit is 1, but must be 0 or at least 2. Type --set noise.annotator.crossfit=2.",
        ),
        (
            {"kind": "h_idn", "rho": 0.5, "annotator": {"share": "all"}},
            "noise.annotator.share is 'all', but must be client or global. "
            "Type, for example, noise.annotator.share=client.",
        ),
    ],
)
def test_one_sentence_for_each_mistake(noise: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        configuration.from_dict({"noise": noise})
    assert str(raised.value) == f"{sentence}"


def test_memorization_needs_noise() -> None:
    with pytest.raises(UserError, match=r"evaluate\.memorization is true, but the labels have no noise"):
        configuration.from_dict({"evaluate": {"memorization": True}})
    noisy = {"kind": "symmetric", "rho": 0.5}
    assert configuration.from_dict({"evaluate": {"memorization": True}, "noise": noisy}).evaluate.memorization


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("symmetric:0.4", {"kind": "symmetric", "rho": 0.4}),
        ("h_idn:1", {"kind": "h_idn", "rho": 1.0}),
        ("none", {"kind": "none"}),
    ],
)
def test_shorthand(text: str, expected: dict[str, Any]) -> None:
    made = api.configure(noise=text).noise
    assert made == NoiseConfig(**expected)


def test_shorthand_over_a_configuration_forgets_what_no_longer_fits() -> None:
    before = configuration.from_dict(
        {"noise": {"kind": "pairflip", "direction": -1, "scope": "local", "rho": 0.2, "low": 0.1, "seed": 7}}
    )
    after = api.configure(before, noise="h_idn:0.6").noise
    assert after == NoiseConfig(kind="h_idn", scope="local", rho=0.6, low=0.1, seed=7)
    assert api.configure(before, noise="none").noise == NoiseConfig()
    human = api.configure(before, noise="human", settings=["noise.labels=x.pt"]).noise
    assert human == NoiseConfig(kind="human", rho=0.2, seed=7, labels="x.pt")
    explicit = configuration.from_dict({"noise": {"kind": "symmetric", "who": "explicit", "rates": [1.0] * 10}})
    assert api.configure(explicit, noise="uniform").noise.rates == [1.0] * 10
    assert api.configure(explicit, noise="uniform:0.5").noise == NoiseConfig(kind="uniform", rho=0.5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("symetric:0.4", "noise 'symetric' is unknown. Did you mean 'symmetric'?"),
        ("symmetric:x", "noise 'symmetric:x' has no valid rho. Type, for example, --noise symmetric:0.4."),
        ("symmetric:", "noise 'symmetric:' has no valid rho. Type, for example, --noise symmetric:0.4."),
        ("none:0.4", "noise 'none' takes no parameter, but got '0.4'. Type --noise none."),
    ],
)
def test_shorthand_mistakes(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        NoiseConfig.parse(text)
    assert str(raised.value) == sentence
