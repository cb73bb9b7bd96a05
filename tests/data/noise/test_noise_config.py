"""The noise section: what each kind needs, what it has no use for, and the short form."""

from __future__ import annotations

import tomllib
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew import config, face
from fedskew.config import RunConfig
from fedskew.errors import UserError
from fedskew.sections import NOISE_USES, RATELESS, WHO_USES, Annotator, Noise, NoiseKind

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
def noises(draw: st.DrawFn) -> Noise:
    kind, who = draw(st.sampled_from(get_args(NoiseKind))), draw(st.sampled_from(sorted(WHO_USES)))
    if kind == "none":
        return Noise()
    used = (WHO_USES[who] | NOISE_USES[kind]) & VALUES.keys()
    fields = {name: draw(VALUES[name]) for name in sorted(used)}
    if who != "explicit" and kind not in RATELESS:
        fields["low"], fields["high"] = sorted((draw(share), draw(share)))
    if "annotator" in NOISE_USES[kind] and fields["soft_labels"] is None:
        fields["annotator"] = Annotator(
            epochs=draw(st.integers(1, 99)),
            crossfit=draw(st.sampled_from([0, 2, 5])),
            share=draw(st.sampled_from(["client", "global"])),
        )
    return Noise(kind=kind, who=who, seed=draw(st.none() | st.integers(-(2**63), 2**63 - 1)), **fields)


@given(noises())
def test_toml_round_trip(noise: Noise) -> None:
    made = RunConfig(noise=noise)
    again = config.from_dict(tomllib.loads(config.dumps(made)))
    assert again == made
    assert config.dumps(again) == config.dumps(made)


def test_the_default_is_no_noise_and_reads_back() -> None:
    made = config.from_dict(tomllib.loads(config.dumps(RunConfig())))
    assert made == RunConfig()
    assert made.noise.kind == "none"
    assert set(NOISE_USES) == set(get_args(NoiseKind))


def test_bounds_that_are_not_set() -> None:
    assert Noise(kind="symmetric", rho=0.4).bounds == (0.3, 0.5)
    assert Noise(kind="symmetric", who="bernoulli", rho=0.4).bounds == (0.5, 1.0)
    assert Noise(kind="symmetric", rho=0.4, low=0.1).bounds == (0.1, 0.5)
    assert Noise(kind="human", rho=0.4, labels="x").bounds == (1.0, 1.0)


@pytest.mark.parametrize(
    ("noise", "sentence"),
    [
        ({"kind": "symetric"}, "key 'noise.kind' is 'symetric'; did you mean 'symmetric'?"),
        ({"kind": "symmetric"}, "key 'noise.rho' is not set; noise 'symmetric' needs it, for example 0.4"),
        ({"rho": 0.4}, "key 'noise.rho' is 0.4; noise 'none' has no use for it here, leave it out"),
        (
            {"kind": "symmetric", "rho": 1.5},
            "key 'noise.rho' is 1.5; it should be less than or equal to 1",
        ),
        (
            {"kind": "symmetric", "rho": 0.5, "low": -0.1},
            "key 'noise.low' is -0.1; it should be greater than or equal to 0",
        ),
        (
            {"kind": "symmetric", "rho": 0.5, "low": 0.7, "high": 0.6},
            "key 'noise.low' is 0.7, above 'noise.high', which is 0.6; it should not be",
        ),
        (
            {"kind": "symmetric", "who": "explicit", "rates": [0.0, 1.5]},
            "key 'noise.rates.1' is 1.5; it should be less than or equal to 1",
        ),
        (
            {"kind": "symmetric", "who": "explicit", "rates": [0.0, 0.5]},
            "key 'noise.rates' has 2 numbers; it should have one for each of 10 clients",
        ),
        (
            {"kind": "symmetric", "who": "explicit"},
            "key 'noise.rates' is not set; noise 'symmetric' needs it, for example [0.0, 0.5]",
        ),
        (
            {"kind": "symmetric", "who": "explicit", "rates": [0.0] * 10, "rho": 0.4},
            "key 'noise.rho' is 0.4; noise 'symmetric' has no use for it here, leave it out",
        ),
        (
            {"kind": "uniform", "rho": 0.5, "mapping": "mnist"},
            "key 'noise.mapping' is 'mnist'; noise 'uniform' has no use for it here, leave it out",
        ),
        (
            {"kind": "asymmetric", "rho": 0.5},
            "key 'noise.mapping' is not set; noise 'asymmetric' needs it, for example 'cifar10'",
        ),
        (
            {"kind": "asymmetric", "rho": 0.5, "mapping": [0.5]},
            "key 'noise.mapping' is [0.5]; it should be a name, or a list of classes",
        ),
        ({"kind": "pairflip", "rho": 0.5, "direction": 2}, "key 'noise.direction' is 2; known: -1, 1"),
        (
            {"kind": "transition", "rho": 0.5, "matrix": "t.csv", "low": 0.5},
            "key 'noise.low' is 0.5; noise 'transition' has no use for it here, leave it out",
        ),
        (
            {"kind": "human", "who": "explicit", "labels": "x.pt", "rates": [0.5] + [0.0] * 9},
            f"key 'noise.rates' is {[0.5] + [0.0] * 9}; noise 'human' knows only 0 and 1, clean and noisy",
        ),
        (
            {"kind": "h_idn", "rho": 0.5, "soft_labels": "x.csv", "annotator": {"epochs": 3}},
            "key 'noise.annotator' is set; noise 'h_idn' has no use for it here, leave it out",
        ),
        (
            {"kind": "h_idn", "rho": 0.5, "annotator": {"crossfit": 1}},
            "key 'noise.annotator.crossfit' is 1; it should be 0, or a number of folds from 2 on",
        ),
        (
            {"kind": "h_idn", "rho": 0.5, "annotator": {"share": "all"}},
            "key 'noise.annotator.share' is 'all'; known: client, global",
        ),
    ],
)
def test_one_sentence_for_each_mistake(noise: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        config.from_dict({"noise": noise})
    assert str(raised.value) == f"config {sentence}"


def test_memorisation_needs_noise() -> None:
    with pytest.raises(UserError, match=r"'evaluate\.memorisation' is true; without noise"):
        config.from_dict({"evaluate": {"memorisation": True}})
    noisy = {"kind": "symmetric", "rho": 0.5}
    assert config.from_dict({"evaluate": {"memorisation": True}, "noise": noisy}).evaluate.memorisation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("symmetric:0.4", {"kind": "symmetric", "rho": 0.4}),
        ("h_idn:1", {"kind": "h_idn", "rho": 1.0}),
        ("none", {"kind": "none"}),
    ],
)
def test_shorthand(text: str, expected: dict[str, Any]) -> None:
    made = face.configure(noise=text).noise
    assert made == Noise(**expected)


def test_shorthand_over_a_configuration_forgets_what_no_longer_fits() -> None:
    before = config.from_dict(
        {"noise": {"kind": "pairflip", "direction": -1, "scope": "local", "rho": 0.2, "low": 0.1, "seed": 7}}
    )
    after = face.configure(before, noise="h_idn:0.6").noise
    assert after == Noise(kind="h_idn", scope="local", rho=0.6, low=0.1, seed=7)
    assert face.configure(before, noise="none").noise == Noise()
    human = face.configure(before, noise="human", settings=["noise.labels=x.pt"]).noise
    assert human == Noise(kind="human", rho=0.2, seed=7, labels="x.pt")
    explicit = config.from_dict({"noise": {"kind": "symmetric", "who": "explicit", "rates": [1.0] * 10}})
    assert face.configure(explicit, noise="uniform").noise.rates == [1.0] * 10
    assert face.configure(explicit, noise="uniform:0.5").noise == Noise(kind="uniform", rho=0.5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("symetric:0.4", "noise 'symetric' is unknown; did you mean 'symmetric'?"),
        ("symmetric:x", "noise 'symmetric:x' should be 'symmetric:rho', for example 'symmetric:0.4'"),
        ("symmetric:", "noise 'symmetric:' should be 'symmetric:rho', for example 'symmetric:0.4'"),
        ("none:0.4", "noise 'none:0.4' should be 'none': it takes no parameter"),
    ],
)
def test_shorthand_mistakes(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        Noise.parse(text)
    assert str(raised.value) == sentence
