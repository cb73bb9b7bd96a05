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

from fedskew import api
from fedskew.config.schema import RunConfig
from fedskew.core import seeds
from fedskew.core.errors import UserError
from fedskew.core.progress import listening
from fedskew.core.types import Broadcast, ClientState, Round
from fedskew.data import sources
from fedskew.data.noise.flips import floor
from fedskew.data.noise.ledger import Ledger
from fedskew.experiment import run as experiment
from fedskew.experiment.preparation import annotators
from fedskew.experiment.preparation.annotators import SoftLabelCache
from fedskew.experiment.preparation.prepare import RunInputs, _annotator_engine, prepare
from fedskew.parts.part import Part
from fedskew.record import reader
from fedskew.runtime import client, evaluate, server
from fedskew.runtime.context import RunContext

TINY = {"model": "mlp", "clients": 4, "rounds": 2, "local_epochs": 1, "engine": "inline", "partition": "dirichlet:1.0"}


@functools.cache
def digits() -> sources.Source:
    whole = sources.load("digits")
    return sources.from_arrays(
        whole.train.x[:200], whole.train.y[:200], whole.test.x[:60], whole.test.y[:60], mean=whole.mean, std=whole.std
    )


def config(noise: str = "h_idn:0.5", *settings: str, **options: Any) -> RunConfig:
    return api.configure(noise=noise, settings=["partition.min_size=5", *settings], **(TINY | options))


def trained(*settings: str, noise: str = "h_idn:0.5", **options: Any) -> RunConfig:
    return config(noise, "noise.annotator.epochs=2", *settings, **options)


def inputs() -> RunInputs:
    return RunInputs(source=digits())


def prepared(wanted: RunConfig) -> tuple[RunContext, Ledger]:
    context, _, _ = prepare(wanted, inputs())
    assert context.ledger is not None
    return context, context.ledger


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
def test_trained_annotators_give_the_asked_noise(settings: tuple[str, ...]) -> None:
    context, ledger = prepared(trained(*settings))
    assert ledger.noisy.sum() == 2
    for k in range(4):
        rows = slice(*ledger.offsets[k : k + 2])
        wrong = int(ledger.flipped[rows].sum())
        assert wrong == (floor(ledger.target[k] * len(ledger.true[rows])) if ledger.noisy[k] else 0)
    assert (ledger.true == digits().train.y[context.shards.index].numpy()).all()
    assert (context.shards.y.numpy() == ledger.observed).all()
    again, _ = prepared(trained(*settings))
    assert again.shards.digest == context.shards.digest


def softly(wanted: RunConfig, noisy: list[int]) -> np.ndarray:
    """The soft labels that these clients' annotators give."""
    context, _, spec = prepare(api.configure(wanted, noise="none"), inputs())
    mask = np.isin(np.arange(4), noisy)
    open_engine = functools.partial(_annotator_engine, wanted)
    return annotators.soft_labels(context, spec, wanted.noise.annotator, mask, 0, open_engine)


@pytest.mark.parametrize("settings", [(), ("noise.annotator.crossfit=2",)])
def test_an_annotator_does_not_depend_on_the_other_noisy_clients(settings: tuple[str, ...]) -> None:
    wanted = trained(*settings)
    context, _ = prepared(wanted)
    alone, together = softly(wanted, [1]), softly(wanted, [0, 1, 3])
    scratch = slice(*context.shards.offsets[1:3].tolist())
    assert (alone[scratch] == together[scratch]).all()
    assert np.allclose(together[scratch].sum(1), 1)
    assert not alone[: scratch.start].any() and not alone[scratch.stop :].any()
    assert together[: scratch.start].any()


def test_an_annotator_is_the_run_of_its_client_alone() -> None:
    """One epoch of the one loop over batches by hand: the same network, optimizer, seed and client number."""
    wanted = config("h_idn:0.5", "noise.annotator.epochs=1")
    found = softly(wanted, [2])
    context, _, spec = prepare(
        api.configure(
            wanted,
            noise="none",
            optimizer="adam",
            lr=3e-4,
            weight_decay=5e-4,
            batch_size=16,
            local_epochs=1,
            method="fedavg",
        ),
        inputs(),
    )
    context = replace(context, plan=replace(context.plan, seed=seeds.key(0, "annotators")))
    sent = Broadcast(2, 0, -1, Round(0, 0, 0, 0), spec, context.net(spec).initial(), {})
    update, _ = client.visit(context, sent, ClientState())
    shard = context.shard(2, {})
    x = context.view.eval(context.x[shard.index])
    expected = context.net(spec).frozen(update.weights | update.buffers, x).logits.double().softmax(1)
    start, end = context.shards.offsets[2:4].tolist()
    assert np.allclose(found[start:end], expected.numpy(), atol=1e-6)


def test_crossfit_judges_only_what_was_not_learned_from() -> None:
    context, _, _ = prepare(api.configure(trained(), noise="none"), inputs())
    wanted = trained("noise.annotator.crossfit=3").noise.annotator
    splits = annotators._splits(context.shards, wanted, np.array([False, True, False, True]), 0)
    assert sorted(splits) == [3, 4, 5, 9, 10, 11]
    judged = torch.cat([split.labels for split in splits.values()])
    offsets = context.shards.offsets.tolist()
    assert sorted(judged.tolist()) == [*range(offsets[1], offsets[2]), *range(offsets[3], offsets[4])]
    for number, split in splits.items():
        owner = number // 3
        together = sorted([*split.learns.tolist(), *split.labels.tolist()])
        assert together == list(range(offsets[owner], offsets[owner + 1]))


def test_the_noise_seed_alone_decides_the_noise() -> None:
    fixed = ("noise.seed=5", "partition.seed=5")
    one, other = prepared(trained(*fixed, seed=1))[0], prepared(trained(*fixed, seed=2))[0]
    assert one.shards.digest == other.shards.digest
    assert prepared(trained("noise.seed=6", "partition.seed=5", seed=1))[0].shards.digest != one.shards.digest


def test_every_engine_makes_the_same_noise() -> None:
    digests = {prepared(trained(engine=name))[0].shards.digest for name in ("inline", "pool")}
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
    wanted = api.configure(config(partition=f"explicit:{tmp_path}/lists.json"), settings=rates)
    reported: list[int] = []
    with (
        pytest.raises(UserError, match=r"client 1 has 1 samples\. Set fewer clients: a noisy one needs 2"),
        listening(lambda task, done, total, unit: reported.append(done)),
    ):
        prepare(wanted, inputs())
    assert not reported


# ---- the cache ------------------------------------------------------------------------------------------------------


def test_soft_labels_are_made_once(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(1)
        return np.array([[0.25, 0.75]])

    cache = SoftLabelCache(tmp_path / "a")
    assert cache.get("k", make).tolist() == cache.get("k", make).tolist() == [[0.25, 0.75]]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["soft-labels-k.safetensors"]
    assert SoftLabelCache(None, tmp_path / "a").get("k", make).tolist() == [[0.25, 0.75]]
    assert len(made) == 1
    SoftLabelCache(tmp_path / "a").get("another", make)
    assert len(made) == 2


def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "soft-labels-k.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"soft-labels-k.safetensors' is damaged .* Remove it"):
        SoftLabelCache(tmp_path).get("k", lambda: np.zeros((1, 2)))


def test_the_environment_names_a_folder_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "cache"))
    reported: list[tuple[int, int]] = []

    def note(task: str, done: int, total: int, unit: str) -> None:
        if task == "annotators":
            reported.append((done, total))

    with listening(note):
        context, _, _ = prepare(trained(), inputs())
        assert reported == [(1, 2), (2, 2)]
        again, _, _ = prepare(trained(method="fedprox"), inputs())
        assert len(reported) == 2 and again.shards.digest == context.shards.digest
        prepare(trained("noise.annotator.epochs=1"), inputs())
        assert len(reported) == 3  # other annotators are another key


def test_compare_trains_annotators_once(tmp_path: Path) -> None:
    x, y = digits().train, digits().test
    api.compare(
        ["fedavg", "fedprox"], data=(x.x, x.y, y.x, y.y), out=tmp_path / "both", noise="h_idn:0.5",
        settings=["noise.annotator.epochs=1", "partition.min_size=5"], **TINY,
    )  # fmt: skip
    (kept,) = (tmp_path / "both").glob("soft-labels-*")
    inside = [path.name for path in (tmp_path / "both").glob("*/soft-labels-*")]
    assert inside == [kept.name, kept.name]


# ---- whole runs -----------------------------------------------------------------------------------------------------


def test_resume_gives_the_same_bits_without_training_again(tmp_path: Path) -> None:
    whole = experiment.run(trained(rounds=3), inputs=inputs())
    experiment.run(trained(rounds=2), tmp_path / "run", inputs=inputs())
    (kept,) = (tmp_path / "run").glob("soft-labels-*")
    before = kept.stat().st_mtime_ns
    longer = experiment.resume(tmp_path / "run", inputs=inputs(), rounds=3)
    assert longer.end["weights_sha256"] == whole.end["weights_sha256"]
    assert kept.stat().st_mtime_ns == before
    # The cached file is used, not made again: other soft labels give other labels.
    context, ledger = prepared(trained(rounds=3))
    other = torch.full((len(ledger.true), 10), 0.1, dtype=torch.float64)
    save_file({"soft_labels": other}, kept)
    with pytest.raises(UserError, match="the data are not those that the run"):
        experiment.resume(tmp_path / "run", inputs=inputs(), rounds=4)
    assert context.shards.digest == whole.header["shards"]


def test_the_record_has_the_noise_and_what_was_memorized(tmp_path: Path) -> None:
    wanted = config("symmetric:0.5", "evaluate.memorization=true", rounds=12, lr=0.05)
    done = experiment.run(wanted, tmp_path / "run", inputs=inputs())
    read = reader.read(tmp_path / "run")
    _, ledger = prepared(wanted)
    assert read.header.noise is not None and read.header.noise.model_dump(exclude_defaults=True) == ledger.summary()
    assert read.end is not None and read.end["memorization"] == done.rounds[-1]["memorization"]
    assert set(read.end["memorization"]) == {"observed", "true", "flipped_observed", "flipped_true"}
    balanced = [line["balanced_accuracy"] for line in done.rounds]
    assert done.end["best_balanced"] == max(balanced)
    assert done.end["last_balanced"] == pytest.approx(sum(balanced[-10:]) / 10)


def test_a_record_without_noise_says_nothing_of_it() -> None:
    done = experiment.run(config("none"), inputs=inputs())
    assert done.header["noise"] is None
    assert "memorization" not in done.end and "memorization" not in done.rounds[-1]


def test_no_noisy_client_is_the_clean_run() -> None:
    clean, noisy = (experiment.run(config(noise), inputs=inputs()) for noise in ("none", "symmetric:0.1"))
    assert noisy.header["noise"]["noisy"] == []
    assert noisy.end["weights_sha256"] == clean.end["weights_sha256"]
    assert noisy.header["shards"] == clean.header["shards"]
    assert noisy.end["memorization"] == dict.fromkeys(noisy.end["memorization"])


def test_memorization_by_hand() -> None:
    """A network that says class 3 to everything: right wherever 3 was observed, and where 3 is true."""
    context, ledger = prepared(config("symmetric:0.5"))
    _, _, spec = prepare(config("none"), inputs())
    weights = {name: torch.zeros_like(t) for name, t in context.net(spec).initial().items()}
    weights["head.bias"][3] = 1.0
    rows = np.repeat(ledger.noisy, np.diff(ledger.offsets))
    true, observed = ledger.true[rows], ledger.observed[rows]
    wrong = true != observed
    assert evaluate.memorization(context, spec, weights) == pytest.approx(
        {
            "observed": (observed == 3).mean(),
            "true": (true == 3).mean(),
            "flipped_observed": (observed[wrong] == 3).mean(),
            "flipped_true": (true[wrong] == 3).mean(),
        }
    )
    assert wrong.sum() > 10 and (observed[wrong] == 3).any() and (true[wrong] == 3).any()


# ---- the ledger is out of reach -------------------------------------------------------------------------------------


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
    context, ledger = prepared(config("symmetric:0.5", method="fedprox"))
    _, _, spec = prepare(config("none"), inputs())
    assert len(secrets(context, ledger)) > 1  # the search finds what is there
    noisy = int(np.flatnonzero(ledger.noisy)[0])
    state = server.begin(spec, context.net(spec).initial())
    state = server.init_memory(context, replace(state, round=Round(0, 0, 0, 0)), server.carried(context, state))
    (sent,) = server.broadcasts(context, state, [noisy], score=False)
    shard = context.shard(noisy, {})
    parts: list[Part] = list(context.plan.method.stages[0].parts)
    views: list[Any] = [shard, sent]
    for part in parts:
        views.append(client._client_context(context, sent, ClientState(), shard, context.net(spec), part))
        views.append(server.server_context(context, state, part))
    assert len(views) > 8
    assert not secrets(views, ledger)
