"""Who is noisy, and what every kind of noise promises whatever the setting."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.data.noise.flips import RULES, floor
from fedskew.data.noise.ledger import Ledger
from fedskew.data.noise.noise import check, draw, rates

EXCLUSIVE = ("h_idn", "symmetric", "pairflip", "idn")


# ---- who is noisy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rho", "noisy"),
    [
        (0.2, [1, 9, 16, 17]),
        (0.3, [1, 8, 9, 10, 16, 17]),
        (0.4, [1, 6, 8, 9, 10, 13, 16, 17]),
        (0.6, [1, 3, 4, 6, 8, 9, 10, 12, 13, 15, 16, 17]),
    ],
)
def test_legacy_replays_fednoro(rho: float, noisy: list[int]) -> None:
    eta = rates("exact", 20, 0, rho=rho, low=0.3, high=0.5, legacy=True)
    assert np.flatnonzero(eta).tolist() == noisy
    golden = {1: 0.4058, 6: 0.3040, 8: 0.4556, 9: 0.4740, 10: 0.4957, 13: 0.4561, 16: 0.3287, 17: 0.4889}
    for client in set(noisy) & set(golden):
        assert eta[client] == pytest.approx(golden[client], abs=5e-5)
    other = rates("exact", 20, 0, rho=rho, low=0.5, high=0.7, legacy=True)
    assert np.allclose(other[noisy] - eta[noisy], 0.2)


@given(st.integers(1, 60), st.floats(0, 1), st.integers(0, 10**6))
def test_exact_takes_the_floor_and_is_nested(clients: int, rho: float, seed: int) -> None:
    eta = rates("exact", clients, seed, rho=rho, low=0.3, high=0.5)
    noisy = eta > 0
    assert noisy.sum() == floor(rho * clients)
    assert ((eta[noisy] >= 0.3) & (eta[noisy] <= 0.5)).all()
    more = rates("exact", clients, seed, rho=min(1.0, rho + 0.2), low=0.3, high=0.5)
    assert (more[noisy] == eta[noisy]).all()


def test_exact_guards_against_rounding_and_draws_all_alike() -> None:
    assert (rates("exact", 100, 0, rho=0.29, low=0.1, high=0.1) > 0).sum() == 29
    found = np.array([rates("exact", 10, seed, rho=0.4, low=0.2, high=0.6) for seed in range(600)])
    assert np.allclose((found > 0).mean(0), 0.4, atol=0.08)  # sd 0.02
    assert found[found > 0].mean() == pytest.approx(0.4, abs=0.01)


def test_bernoulli_tosses_a_coin_for_each_client() -> None:
    found = np.array([rates("bernoulli", 10, seed, rho=0.6, low=0.5, high=1.0) for seed in range(400)])
    noisy = found > 0
    assert np.allclose(noisy.mean(0), 0.6, atol=0.1)
    assert noisy.sum(1).var() == pytest.approx(10 * 0.6 * 0.4, rel=0.25)
    assert found[noisy].min() >= 0.5 and found[noisy].mean() == pytest.approx(0.75, abs=0.01)
    wider = rates("bernoulli", 15, 3, rho=0.6, low=0.5, high=1.0)
    assert (wider[:10] == found[3]).all()  # more clients change nobody


def test_ramp_never_reaches_its_end() -> None:
    """floor(0.5 * 8) = 4 clients, steps of (0.6 - 0.2) / 4."""
    assert np.allclose(rates("ramp", 8, 5, rho=0.5, low=0.2, high=0.6), [0.2, 0.3, 0.4, 0.5, 0, 0, 0, 0])
    assert not rates("ramp", 8, 5, rho=0.1, low=0.2, high=0.6).any()


def test_explicit_is_as_given() -> None:
    assert rates("explicit", 3, 0, given=[0, 0.25, 1]).tolist() == [0, 0.25, 1]


# ---- what is promised in every setting ------------------------------------------------------------------------------


def federation(rng: np.random.Generator, clients: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and offsets; everybody has two classes at least, as the local scope needs."""
    sizes = rng.integers(4, 60, clients)
    offsets = np.concatenate(([0], sizes.cumsum()))
    y = rng.integers(0, classes, offsets[-1])
    y[offsets[:-1]], y[offsets[:-1] + 1] = 0, 1
    return y, offsets


def setting(number: int) -> dict[str, Any]:
    """One of 200 settings: every kind in turn, everything else at random."""
    pick, rng = random.Random(number), np.random.default_rng(number)
    kind = sorted(RULES)[number % len(RULES)]
    clients, classes = pick.randint(2, 12), pick.randint(2, 8)
    y, offsets = federation(rng, clients, classes)
    options: dict[str, Any] = {}
    if kind not in ("transition", "human"):
        options["scope"] = pick.choice(["global", "local"])
    if kind in ("symmetric", "pairflip", "asymmetric"):
        options["count"] = pick.choice(["exact", "coin"])
    if kind == "pairflip":
        options["direction"] = pick.choice([1, -1])
    if kind == "asymmetric":
        options["mapping"] = rng.integers(0, classes, classes)
    if kind == "transition":
        shape = (clients, classes) if pick.random() < 0.5 else (classes,)
        options["matrix"] = rng.dirichlet(np.ones(classes), shape)
        options["mode"] = pick.choice(["iid", "quota"])
    if kind == "human":
        options["labels"] = rng.integers(0, classes, len(y))
    if kind in ("h_idn", "idn"):
        options["soft"] = rng.dirichlet(np.full(classes, 0.3), len(y))
    if kind == "pdn":
        x = rng.normal(size=(len(y), 6))
        options["features"] = lambda rows: x[rows]
    who = pick.choice(["exact", "bernoulli", "ramp", "explicit"])
    low, high = sorted((pick.random(), pick.random()))
    eta = rates(who, clients, number, rho=pick.random(), low=low, high=high, given=rng.random(clients).round())
    return {"kind": kind, "y": y, "offsets": offsets, "classes": classes, "eta": eta, "seed": number, **options}


def without_last(given: dict[str, Any]) -> dict[str, Any]:
    """The same federation before its last client joined."""
    end = int(given["offsets"][-2])
    fewer = given | {"y": given["y"][:end], "offsets": given["offsets"][:-1], "eta": given["eta"][:-1]}
    for name in ("soft", "labels"):
        if name in fewer:
            fewer[name] = given[name][:end]
    if "matrix" in fewer and fewer["matrix"].ndim == 3:
        fewer["matrix"] = given["matrix"][:-1]
    return fewer


@pytest.mark.parametrize("number", range(200))
def test_promises(number: int) -> None:
    given = setting(number)
    y, offsets, eta, kind = given["y"], given["offsets"], given["eta"], given["kind"]
    before = y.copy()
    ledger = draw(**given)
    assert (y == before).all() and (ledger.true == before).all()
    assert ((ledger.observed >= 0) & (ledger.observed < given["classes"])).all()
    assert (ledger.noisy == (eta > 0)).all()
    for k in range(len(eta)):
        own, seen = y[offsets[k] : offsets[k + 1]], ledger.observed[offsets[k] : offsets[k + 1]]
        wrong = int((own != seen).sum())
        if eta[k] == 0:
            assert wrong == 0
            continue
        if given.get("scope") == "local":
            assert set(seen) <= set(own)
        if kind in EXCLUSIVE and given.get("count", "exact") == "exact":
            assert wrong == floor(eta[k] * len(own))
        if kind == "asymmetric":
            meant = given["mapping"][own]
            able = (meant != own) & (given["scope"] == "global" or np.isin(meant, own))
            assert (seen[own != seen] == meant[own != seen]).all() and not (seen != own)[~able].any()
            if given["count"] == "exact":
                assert wrong == floor(eta[k] * able.sum())
        if kind == "transition" and given["mode"] == "quota":
            table = given["matrix"] if given["matrix"].ndim == 2 else given["matrix"][k]
            for label in set(own):
                counts = np.bincount(seen[own == label], minlength=given["classes"])
                assert (abs(counts - counts.sum() * table[label]) < 1).all()
        if kind == "human":
            assert (seen == given["labels"][offsets[k] : offsets[k + 1]]).all()
        assert ledger.realized[k] == wrong / len(own)
        assert ledger.flips(k).sum() == wrong and not ledger.flips(k).diagonal().any()
    assert ledger.flips().sum() == ledger.flipped.sum() == sum(ledger.flips(k).sum() for k in range(len(eta)))
    assert (draw(**given).observed == ledger.observed).all()
    fewer = draw(**without_last(given))
    assert (fewer.observed == ledger.observed[: offsets[-2]]).all()


def test_the_settings_cover_everything_and_another_seed_flips_others() -> None:
    seen = [setting(number) for number in range(200)]
    assert {each["kind"] for each in seen} == set(RULES)
    assert {(each["kind"], each.get("scope")) for each in seen if "scope" in each} == {
        (kind, scope) for kind in set(RULES) - {"transition", "human"} for scope in ("global", "local")
    }
    assert sum((each["eta"] > 0).any() for each in seen) > 140
    changed = [
        (draw(**each).observed != draw(**(each | {"seed": -1})).observed).any()
        for each in seen
        if each["kind"] not in ("idn", "human") and (each["eta"] > 0.2).any()
    ]
    assert sum(changed) > 0.8 * len(changed)


def test_clients_with_the_same_labels_do_not_get_the_same_flips() -> None:
    y, offsets = np.tile(np.arange(10), 8), np.array([0, 40, 80])
    observed = draw("symmetric", y, offsets, 10, np.array([0.5, 0.5]), 0).observed
    assert (observed[:40] != observed[40:]).any()


# ---- ledger and mistakes --------------------------------------------------------------------------------------------


def test_ledger_by_hand() -> None:
    """Client 0: one of two wrong (0 -> 2); client 1 has nothing; client 2: two of three (1 -> 0, 1 -> 2)."""
    ledger = Ledger("human", 3, np.array([0, 2, 2, 5]), np.array([0, 1, 1, 1, 2]), np.array([2, 1, 0, 2, 2]),
                    np.array([True, False, True]), np.array([0.5, 0.0, 0.6]))  # fmt: skip
    assert ledger.flipped.tolist() == [True, False, True, True, False]
    assert ledger.realized.tolist() == [0.5, 0.0, 2 / 3]
    assert ledger.flips(0).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert ledger.flips(1).sum() == 0
    assert ledger.flips().tolist() == [[0, 0, 1], [1, 0, 1], [0, 0, 0]]
    assert ledger.summary() == {
        "kind": "human", "noisy": [0, 2], "target": [0.5, 0.0, 0.6], "realized": [0.5, 0.0, 2 / 3],
        "flips": [[0, 0, 1], [1, 0, 1], [0, 0, 0]], "soft_labels": "",
    }  # fmt: skip


def test_the_target_of_a_matrix_is_what_it_promises() -> None:
    """Labels 0, 0, 1 under rows that keep 0.8 and 0.4: 1 - (0.8 + 0.8 + 0.4) / 3 = 1/3."""
    matrix = np.array([[0.8, 0.2], [0.6, 0.4]])
    ledger = draw("transition", np.array([0, 0, 1]), np.array([0, 3]), 2, np.array([1.0]), 0, matrix=matrix)
    assert ledger.target[0] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("y", "classes", "scope", "sentence"),
    [
        ([0], 2, "global", "noise 'symmetric': client 0 has 1 samples. Set fewer clients: a noisy one needs 2."),
        ([0, 0], 1, "global", "noise 'symmetric': the data has 1 class. Use --noise none."),
        (
            [1, 1, 1],
            3,
            "local",
            "noise 'symmetric': client 0 has samples of one class. Use noise.scope=global, or give 2 classes.",
        ),
    ],
)
def test_federations_that_cannot_be_noisy(y: list[int], classes: int, scope: str, sentence: str) -> None:
    labels, offsets = np.array(y), np.array([0, len(y)])
    for refuse in (check, lambda *given: draw(*given[:5], 0, scope=scope)):
        with pytest.raises(UserError) as raised:
            refuse("symmetric", labels, offsets, classes, np.array([0.5]), scope)
        assert str(raised.value) == sentence
    assert not draw("symmetric", labels, offsets, classes, np.array([0.0]), 0, scope=scope).flipped.any()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_numpy_s_seeds_are_all_that_legacy_has(seed: int) -> None:
    with pytest.raises(UserError, match=rf"noise.legacy is true, but the seed is {seed}. Choose a seed from 0"):
        rates("exact", 10, seed, rho=0.4, legacy=True)


def test_labels_of_a_file_need_no_second_sample() -> None:
    """Three clients of one, two and no samples, all of whose labels are those of the file."""
    y, offsets, said = np.array([0, 1, 2]), np.array([0, 1, 3, 3]), np.array([1, 1, 0])
    ledger = draw("human", y, offsets, 3, np.ones(3), 0, labels=said)
    assert ledger.observed.tolist() == [1, 1, 0] and ledger.target.tolist() == [1.0, 0.5, 0.0]
    with pytest.raises(UserError, match=r"client 0 has 1 samples\. Set fewer clients: a noisy one needs 2."):
        draw("symmetric", y, offsets, 3, np.ones(3), 0)
