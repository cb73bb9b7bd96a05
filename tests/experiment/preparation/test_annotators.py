"""Annotators trained for real, and what becomes of a whole run whose labels they made wrong."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedskew import experiment, face, record, seeds
from fedskew.config import RunConfig
from fedskew.data import sources
from fedskew.data.flips import floor
from fedskew.data.ledger import Ledger
from fedskew.errors import UserError
from fedskew.parts.protocol import Part
from fedskew.types import Broadcast, Keep, Round
from fedskew.work import annotate, client, evaluate, server
from fedskew.work.annotate import Shelf
from fedskew.work.site import Site

TINY = {"model": "mlp", "clients": 4, "rounds": 2, "epochs": 1, "engine": "inline", "partition": "dirichlet:1.0"}


@functools.cache
def digits() -> sources.Source:
    whole = sources.load("digits")
    return sources.from_arrays(
        whole.train.x[:200], whole.train.y[:200], whole.test.x[:60], whole.test.y[:60], mean=whole.mean, std=whole.std
    )


def config(noise: str = "h_idn:0.5", *settings: str, **options: Any) -> RunConfig:
    return face.configure(noise=noise, settings=["partition.min_size=5", *settings], **(TINY | options))


def trained(*settings: str, noise: str = "h_idn:0.5", **options: Any) -> RunConfig:
    return config(noise, "noise.annotator.epochs=2", *settings, **options)


def given() -> experiment.Given:
    return experiment.Given(source=digits())


def prepared(wanted: RunConfig) -> tuple[Site, Ledger]:
    site, _, _ = experiment.prepare(wanted, given())
    assert site.ledger is not None
    return site, site.ledger


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSKEW_CACHE", raising=False)


# ---- annotators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("noise.annotator.crossfit=3", "noise.scope=local"),
        ("noise.annotator.share=global", "noise.low=0.5", "noise.high=0.7"),
    ],
)
def test_trained_annotators_keep_the_promises(settings: tuple[str, ...]) -> None:
    site, ledger = prepared(trained(*settings))
    assert ledger.noisy.sum() == 2
    for k in range(4):
        rows = slice(*ledger.offsets[k : k + 2])
        wrong = int(ledger.flipped[rows].sum())
        assert wrong == (floor(ledger.target[k] * len(ledger.true[rows])) if ledger.noisy[k] else 0)
    assert (ledger.true == digits().train.y[site.shards.index].numpy()).all()
    assert (site.shards.y.numpy() == ledger.observed).all()
    again, _ = prepared(trained(*settings))
    assert again.shards.digest == site.shards.digest


def softly(wanted: RunConfig, noisy: list[int]) -> np.ndarray:
    """The soft labels that these clients' annotators give."""
    site, _, spec = experiment.prepare(face.configure(wanted, noise="none"), given())
    mask = np.isin(np.arange(4), noisy)
    room = functools.partial(experiment._class_room, wanted)
    return annotate.soft_labels(site, spec, wanted.noise.annotator, mask, 0, room, lambda sentence: None)


@pytest.mark.parametrize("settings", [(), ("noise.annotator.crossfit=2",)])
def test_nobodys_annotator_depends_on_who_else_is_noisy(settings: tuple[str, ...]) -> None:
    wanted = trained(*settings)
    site, _ = prepared(wanted)
    alone, together = softly(wanted, [1]), softly(wanted, [0, 1, 3])
    mine = slice(*site.shards.offsets[1:3].tolist())
    assert (alone[mine] == together[mine]).all()
    assert np.allclose(together[mine].sum(1), 1)
    assert not alone[: mine.start].any() and not alone[mine.stop :].any()
    assert together[: mine.start].any()


def test_an_annotator_is_the_run_of_its_client_alone() -> None:
    """One epoch of the one loop over batches by hand: the same network, optimiser, seed and client number."""
    wanted = config("h_idn:0.5", "noise.annotator.epochs=1")
    found = softly(wanted, [2])
    site, _, spec = experiment.prepare(
        face.configure(
            wanted, noise="none", optimiser="adam", lr=3e-4, weight_decay=5e-4, batch=16, epochs=1, method="fedavg"
        ),
        given(),
    )
    site = replace(site, plan=replace(site.plan, seed=seeds.key(0, "annotators")))
    sent = Broadcast(2, 0, -1, Round(0, 0, 0, 0), spec, site.net(spec).initial(), {})
    update, _ = client.visit(site, sent, Keep())
    shard = site.shard(2, {})
    x = site.view.eval(site.x[shard.index])
    expected = site.net(spec).frozen(update.weights | update.buffers, x).logits.double().softmax(1)
    start, end = site.shards.offsets[2:4].tolist()
    assert np.allclose(found[start:end], expected.numpy(), atol=1e-6)


def test_crossfit_judges_only_what_was_not_learned_from() -> None:
    site, _, _ = experiment.prepare(face.configure(trained(), noise="none"), given())
    wanted = trained("noise.annotator.crossfit=3").noise.annotator
    pupils = annotate._pupils(site.shards, wanted, np.array([False, True, False, True]), 0)
    assert sorted(pupils) == [3, 4, 5, 9, 10, 11]
    judged = torch.cat([pupil.judges for pupil in pupils.values()])
    offsets = site.shards.offsets.tolist()
    assert sorted(judged.tolist()) == [*range(offsets[1], offsets[2]), *range(offsets[3], offsets[4])]
    for number, pupil in pupils.items():
        owner = number // 3
        together = sorted([*pupil.learns.tolist(), *pupil.judges.tolist()])
        assert together == list(range(offsets[owner], offsets[owner + 1]))


def test_the_noise_seed_alone_decides_the_noise() -> None:
    fixed = ("noise.seed=5", "partition.seed=5")
    one, other = prepared(trained(*fixed, seed=1))[0], prepared(trained(*fixed, seed=2))[0]
    assert one.shards.digest == other.shards.digest
    assert prepared(trained("noise.seed=6", "partition.seed=5", seed=1))[0].shards.digest != one.shards.digest


def test_every_engine_makes_the_same_noise() -> None:
    digests = {prepared(trained(engine=name))[0].shards.digest for name in ("inline", "pool", "wire")}
    assert len(digests) == 1


def test_idn_has_one_annotator_for_all_and_flips_the_doubtful() -> None:
    wanted = trained(noise="idn:0.5")
    _, ledger = prepared(wanted)
    shared = trained("noise.annotator.share=global", noise="idn:0.5")
    assert (prepared(shared)[1].observed == ledger.observed).all()
    for k in np.flatnonzero(ledger.noisy):
        assert ledger.flips(k).sum() == floor(ledger.target[k] * np.diff(ledger.offsets)[k])


def test_a_client_too_small_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "lists.json").write_text("[[0, 1, 2, 3], [4], [5, 6], [7, 8]]")
    rates = ["noise.who=explicit", "noise.rho=none", "noise.rates=[0, 1, 0, 0]"]
    wanted = face.configure(config(partition=f"explicit:{tmp_path}/lists.json"), settings=rates)
    told: list[str] = []
    with pytest.raises(UserError, match="client 1 has 1 samples; a noisy client must have 2 or more"):
        experiment.prepare(wanted, given(), told.append)
    assert not told


# ---- the shelf ------------------------------------------------------------------------------------------------------


def test_soft_labels_are_made_once(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(1)
        return np.array([[0.25, 0.75]])

    shelf = Shelf(tmp_path / "a")
    assert shelf.get("k", make).tolist() == shelf.get("k", make).tolist() == [[0.25, 0.75]]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["soft-labels-k.safetensors"]
    assert Shelf(None, tmp_path / "a").get("k", make).tolist() == [[0.25, 0.75]]
    assert len(made) == 1
    Shelf(tmp_path / "a").get("another", make)
    assert len(made) == 2


def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "soft-labels-k.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"soft-labels-k.safetensors' is damaged .* remove it to make them anew"):
        Shelf(tmp_path).get("k", lambda: np.zeros((1, 2)))


def test_the_environment_names_a_folder_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "cache"))
    told: list[str] = []
    site, _, _ = experiment.prepare(trained(), given(), told.append)
    assert told == ["annotators: epoch 1 of 2", "annotators: epoch 2 of 2"]
    again, _, _ = experiment.prepare(trained(method="fedprox"), given(), told.append)
    assert len(told) == 2 and again.shards.digest == site.shards.digest
    experiment.prepare(trained("noise.annotator.epochs=1"), given(), told.append)
    assert len(told) == 3  # other annotators are another key


def test_compare_trains_annotators_once(tmp_path: Path) -> None:
    x, y = digits().train, digits().test
    face.compare(
        ["fedavg", "fedprox"], data=(x.x, x.y, y.x, y.y), out=tmp_path / "both", noise="h_idn:0.5",
        settings=["noise.annotator.epochs=1", "partition.min_size=5"], **TINY,
    )  # fmt: skip
    (kept,) = (tmp_path / "both").glob("soft-labels-*")
    inside = [path.name for path in (tmp_path / "both").glob("*/soft-labels-*")]
    assert inside == [kept.name, kept.name]


# ---- whole runs -----------------------------------------------------------------------------------------------------


def test_resume_gives_the_same_bits_without_training_again(tmp_path: Path) -> None:
    whole = experiment.run(trained(rounds=3), given=given())
    experiment.run(trained(rounds=2), tmp_path / "run", given=given())
    (kept,) = (tmp_path / "run").glob("soft-labels-*")
    before = kept.stat().st_mtime_ns
    longer = experiment.resume(tmp_path / "run", given=given(), rounds=3)
    assert longer.end["weights_sha256"] == whole.end["weights_sha256"]
    assert kept.stat().st_mtime_ns == before
    # What is on the shelf is used, and not made again: with other soft labels the labels are others.
    site, ledger = prepared(trained(rounds=3))
    other = torch.full((len(ledger.true), 10), 0.1, dtype=torch.float64)
    save_file({"soft_labels": other}, kept)
    with pytest.raises(UserError, match="the data are not those that the run"):
        experiment.resume(tmp_path / "run", given=given(), rounds=4)
    assert site.shards.digest == whole.header["shards"]


def test_the_record_tells_the_noise_and_what_was_memorised(tmp_path: Path) -> None:
    wanted = config("symmetric:0.5", "evaluate.memorisation=true", rounds=12, lr=0.05)
    done = experiment.run(wanted, tmp_path / "run", given=given())
    read = record.read(tmp_path / "run")
    _, ledger = prepared(wanted)
    assert read.header["noise"] == ledger.summary()
    assert read.end is not None and read.end["memorisation"] == done.rounds[-1]["memorisation"]
    assert set(read.end["memorisation"]) == {"observed", "true", "flipped_observed", "flipped_true"}
    balanced = [line["balanced_accuracy"] for line in done.rounds]
    assert done.end["best_balanced"] == max(balanced)
    assert done.end["last_balanced"] == pytest.approx(sum(balanced[-10:]) / 10)


def test_without_noise_nothing_is_said_of_it() -> None:
    done = experiment.run(config("none"), given=given())
    assert done.header["noise"] is None
    assert "memorisation" not in done.end and "memorisation" not in done.rounds[-1]


def test_nobody_noisy_is_the_clean_run() -> None:
    clean, noisy = (experiment.run(config(noise), given=given()) for noise in ("none", "symmetric:0.1"))
    assert noisy.header["noise"]["noisy"] == []
    assert noisy.end["weights_sha256"] == clean.end["weights_sha256"]
    assert noisy.header["shards"] == clean.header["shards"]
    assert noisy.end["memorisation"] == dict.fromkeys(noisy.end["memorisation"])


def test_memorisation_by_hand() -> None:
    """A network that says class 3 to everything: right wherever 3 was observed, and where 3 is true."""
    site, ledger = prepared(config("symmetric:0.5"))
    _, _, spec = experiment.prepare(config("none"), given())
    weights = {name: torch.zeros_like(t) for name, t in site.net(spec).initial().items()}
    weights["head.bias"][3] = 1.0
    rows = np.repeat(ledger.noisy, np.diff(ledger.offsets))
    true, observed = ledger.true[rows], ledger.observed[rows]
    wrong = true != observed
    assert evaluate.memorisation(site, spec, weights) == pytest.approx(
        {
            "observed": (observed == 3).mean(),
            "true": (true == 3).mean(),
            "flipped_observed": (observed[wrong] == 3).mean(),
            "flipped_true": (true[wrong] == 3).mean(),
        }
    )
    assert wrong.sum() > 10 and (observed[wrong] == 3).any() and (true[wrong] == 3).any()


# ---- nobody can reach the ledger ------------------------------------------------------------------------------------


def reachable(value: Any, seen: set[int]) -> Iterator[Any]:
    """Everything that can be got at from an object: fields, items, closures, the objects of bound methods."""
    if id(value) in seen or isinstance(value, str | bytes | int | float | type(None) | type):
        return
    seen.add(id(value))
    yield value
    inside: list[Any] = []
    if isinstance(value, dict):
        inside += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside += value
    elif is_dataclass(value):
        inside += [getattr(value, field.name) for field in fields(value)]
    inside += list(getattr(value, "__dict__", {}).values()) if not callable(value) or is_dataclass(value) else []
    inside += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    inside += [getattr(value, "__self__", None)]
    for each in inside:
        yield from reachable(each, seen)


def secrets(value: Any, ledger: Ledger) -> list[Any]:
    """Ledgers and true labels that can be reached."""
    slices = [ledger.true[slice(*ledger.offsets[k : k + 2])] for k in range(len(ledger.noisy)) if ledger.noisy[k]]
    kept = []
    for each in reachable(value, set()):
        if isinstance(each, Ledger):
            kept.append(each)
        if isinstance(each, torch.Tensor | np.ndarray):
            flat = (each.detach().numpy() if isinstance(each, torch.Tensor) else each).reshape(-1)
            kept += [each for true in (ledger.true, *slices) if len(flat) == len(true) and (flat == true).all()]
    return kept


def test_no_view_shown_to_a_part_has_the_ledger() -> None:
    site, ledger = prepared(config("symmetric:0.5", method="fedprox"))
    _, _, spec = experiment.prepare(config("none"), given())
    assert len(secrets(site, ledger)) > 1  # the search finds what is there
    noisy = int(np.flatnonzero(ledger.noisy)[0])
    state = server.begin(spec, site.net(spec).initial())
    state = server.furnish(site, replace(state, round=Round(0, 0, 0, 0)), server.carried(site, state))
    (sent,) = server.broadcasts(site, state, [noisy], score=False)
    shard = site.shard(noisy, {})
    parts: list[Part] = list(site.plan.method.stages[0].parts)
    views: list[Any] = [shard, sent]
    for part in parts:
        views.append(client._local(site, sent, Keep(), shard, site.net(spec), part))
        views.append(server.desk(site, state, part))
    assert len(views) > 8
    assert not secrets(views, ledger)
