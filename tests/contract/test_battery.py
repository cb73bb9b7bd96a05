"""The twelve promises of the house, for every registered method."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch

from fedskew.core import codec
from fedskew.core.types import ServerState
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.methods import registry
from fedskew.parts.part import Part
from fedskew.parts.stages import Stage
from fedskew.runtime.store import Store
from tests.contract import harness
from tests.contract.methods import EVERY, LIMITS, LONELY

every_method = pytest.mark.parametrize("method", EVERY)


@pytest.fixture(scope="module")
def plain() -> dict[str, experiment.Result]:
    """Each method once, inline."""
    return {}


def reference(plain: dict[str, experiment.Result], method: str) -> experiment.Result:
    if method not in plain:
        plain[method] = harness.finish(harness.config(method))
    return plain[method]


@functools.cache
def alone(method: str) -> tuple[ServerState, Store]:
    """What the loop by itself ends with, inline; global generators are disturbed before."""
    torch.manual_seed(5)
    context, state = harness.site_of(harness.config(method))
    store = harness.store()
    return harness.final_state(context, state, Inline(context, store)), store


@every_method
def test_1_parts_are_frozen_and_plain(method: str) -> None:
    built = registry.build(method)
    for part in harness.parts_of(built):
        assert dataclasses.is_dataclass(part) and part.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert dataclasses.replace(part) == part
        for field in dataclasses.fields(part):
            assert isinstance(getattr(part, field.name), bool | int | float | str | tuple | Part | None)
    assert registry.build(built.expression) == built


@every_method
def test_2_only_trees_of_ordinary_tensors_persist(method: str) -> None:
    state, store = alone(method)
    assert harness.memory_digest(codec.from_bytes(codec.to_bytes(state))) == harness.memory_digest(state)
    for client in range(4):
        codec.to_bytes(store.get(client))


@every_method
def test_3_hooks_do_not_write_into_what_they_are_handed(method: str) -> None:
    built = registry.build(method)

    def guard(name: str, hook: Any) -> Any:
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = list(harness.tensors_in([*args, *kwargs.values()]))
            before = [t._version for t in tensors]
            given = hook(self, *args, **kwargs)
            changed = [t for t, version in zip(tensors, before, strict=True) if t._version != version]
            assert not changed, f"{name} wrote into what it was handed"
            return given

        return guarded

    with harness.wrapped_hooks(harness.parts_of(built), guard):
        harness.finish(harness.config(method))


@every_method
def test_4_and_6_neither_the_order_of_clients_nor_global_randomness_matters(method: str) -> None:
    context, state = harness.site_of(harness.config(method))
    engine = harness.Backwards(context, harness.store())
    ended = harness.final_state(context, state, engine)
    assert harness.memory_digest(ended) == harness.memory_digest(alone(method)[0])


@every_method
@pytest.mark.parametrize("engine", ["pool", "wire"])
def test_5_every_engine_gives_the_same_bits(method: str, engine: str, plain: Any) -> None:
    ended = harness.finish(harness.config(method, workers=2), engine=engine)
    assert ended.end["weights_sha256"] == reference(plain, method).end["weights_sha256"]
    assert ended.accuracy == reference(plain, method).accuracy


@every_method
def test_7_a_lost_reply_is_as_if_the_client_had_not_been_asked(method: str) -> None:
    drop = 0.85 if registry.build(method).pooled else 0.4  # of one client's few replies, too, some must get lost
    lossy = harness.config(method, settings=["partition.min_size=5", f"engine.drop={drop}"], rounds=4)
    context, state = harness.site_of(lossy)
    lost = harness.final_state(context, state, Inline(context, harness.store()))
    other, start = harness.site_of(lossy)
    engine = harness.Unasked(other, harness.store())
    unasked = harness.final_state(other, start, engine)
    assert harness.memory_digest(lost) == harness.memory_digest(unasked)
    assert lost.seen == unasked.seen
    assert engine.skipped > 0


@every_method
def test_8_a_run_stopped_and_resumed_gives_the_same_bits(method: str, plain: Any, tmp_path: Any) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.finish(harness.config(method), out=tmp_path / "run", callbacks=[harness.each_round(stop)])
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert resumed.end["weights_sha256"] == reference(plain, method).end["weights_sha256"]
    assert resumed.accuracy == reference(plain, method).accuracy


@every_method
def test_9_tensors_are_made_only_like_inputs(method: str) -> None:
    built = registry.build(method)

    def on_meta(name: str, hook: Any) -> Any:
        del name

        def elsewhere(self: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.device("meta"):
                return hook(self, *args, **kwargs)

        return elsewhere

    with harness.wrapped_hooks(harness.parts_of(built), on_meta):
        harness.finish(harness.config(method, rounds=2))


@pytest.mark.parametrize(("limit", "same"), LIMITS.items())
def test_10_weight_zero_is_the_plain_method(limit: str, same: str, plain: Any) -> None:
    assert reference(plain, limit).end["weights_sha256"] == reference(plain, same).end["weights_sha256"]


@pytest.mark.parametrize(("limit", "same"), LONELY.items())
def test_10_one_client_alone_is_the_plain_method(limit: str, same: str) -> None:
    alone = {"clients": 1, "clients_per_round": 1, "partition": "iid"}
    ended = [harness.finish(harness.config(method, **alone)) for method in (limit, same)]
    assert ended[0].end["weights_sha256"] == ended[1].end["weights_sha256"]


def _has_one_stage(method: str) -> bool:
    """Memory does not survive a setup that replaces the network, not even from one equal stage to the next."""
    stages = registry.build(method).stages
    return len(stages) == 1 and not any(setup.replaces_network for setup in stages[0].setups)


@pytest.mark.parametrize("method", filter(_has_one_stage, EVERY))
def test_10_two_equal_stages_are_one(method: str, plain: Any) -> None:
    (stage,) = registry.build(method).stages
    cut = (dataclasses.replace(stage, rounds=1), stage)
    ended = harness.finish(harness.config(method), dataclasses.replace(registry.build(method), stages=cut))
    assert ended.end["weights_sha256"] == reference(plain, method).end["weights_sha256"]


@every_method
def test_11_names_are_unique(method: str) -> None:
    for stage in registry.build(method).stages:
        assert isinstance(stage, Stage)
        names = [part.name for part in (*stage.parts, *stage.setups)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("method", registry.known())
def test_12_the_card_says_its_paper(method: str) -> None:
    card = registry.build(method).card
    for field in dataclasses.fields(card):
        value = getattr(card, field.name)
        assert value or field.name in ("deviations", "symbols"), f"{method}: the card has no {field.name}"
    assert str(card.year) in card.paper
    for parameter in registry.entry(method).defaults:
        assert parameter in card.symbols or parameter in " ".join(card.deviations), f"{parameter} is not explained"
