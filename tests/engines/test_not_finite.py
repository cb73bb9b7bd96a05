"""An update that is not finite is left out and recorded, on every engine; if there is no other, the run ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.commands import complaint, fedskew
from tests.contract import harness
from torch import nn

from fedskew import experiment, record
from fedskew.data import sources
from fedskew.engines.inline import Inline
from fedskew.errors import UserError
from fedskew.methods import registry
from fedskew.types import Broadcast, Keep
from fedskew.work.gather import Gathered
from fedskew.work.site import Site
from fedskew.work.store import Store

BAD = 1


def given(**more: Any) -> experiment.Given:
    """Four sites with 20 samples each; those of one of them are finite, and too large for a variance in float32."""
    draw = torch.Generator().manual_seed(3)
    x, y, sites = torch.randn(80, 6, generator=draw), torch.arange(80) % 3, torch.arange(80) // 20
    x[sites == BAD] *= 1e30
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    source = sources.from_arrays(x, y, torch.randn(30, 6, generator=draw), torch.arange(30) % 3, sites=sites)
    return experiment.Given(source=source, module=module, **more)


def config(**options: Any) -> Any:
    defaults = {"partition": "natural", "per_round": None, "settings": [], "model": "mlp"}
    return harness.config("scaffold", **(defaults | options))


class Deaf(Inline):
    """Never hears of the bad client."""

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        return super().ask([each for each in sent if each.client != BAD])


@pytest.fixture(scope="module")
def without() -> experiment.Result:
    return experiment.run(config(), given=given(engine=lambda site: Deaf(site, Store())))


@pytest.mark.parametrize("engine", ["inline", "pool", "wire"])
def test_one_bad_client_is_left_out(engine: str, without: experiment.Result, tmp_path: Path) -> None:
    result = experiment.run(config(engine=engine, workers=2), tmp_path / "run", given=given())
    assert result.weights is not None and all(t.isfinite().all() for t in result.weights.values())
    assert result.end["weights_sha256"] == without.end["weights_sha256"]
    why = "refused: tensor '1.running_var' of its buffers holds a number that is not finite"
    lines = record.read(tmp_path / "run").rounds
    assert [(line["round"], line["stage"], line["lost"]) for line in lines] == [
        (n, 0, {str(BAD): why}) for n in (0, 1, 2)
    ]
    assert [(line["asked"], line["replies"]) for line in lines] == [(4, 3)] * 3


def test_what_a_client_would_keep_of_it_is_forgotten() -> None:
    stores: list[Store] = []

    def engine(site: Site) -> Inline:
        stores.append(Store())
        return Inline(site, stores[-1])

    experiment.run(config(), given=given(engine=engine))
    assert stores[0].get(BAD) == Keep()
    assert stores[0].get(0).memory and stores[0].get(0).pending is None


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_a_learning_rate_that_is_far_too_large_ends_the_first_round(engine: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = complaint(
        *("run", "--engine", engine, "--rounds", "500", "--clients", "2", "--epochs", "1", "--lr", "1e6", "--out", out)
    )
    assert (
        "round 1 (stage 1) has no update that can be used: that of client 0 was refused: its metric 'loss' is not"
        in said
    )
    assert said.count("and 1 more like it. Begin a new run with a smaller --lr") == 1
    assert record.read(out).rounds == []


def test_the_checkpoint_before_stays(tmp_path: Path) -> None:
    """One client in each round: the run ends when it is the bad one's turn, at the first try and at the next."""
    out, wanted = tmp_path / "run", config(per_round=1, rounds=30)
    ends = []
    for go in (lambda: experiment.run(wanted, out, given=given()), lambda: experiment.resume(out, given=given())):
        with pytest.raises(UserError, match="has no update that can be used: that of client 1 was refused: ") as error:
            go()
        ends.append((str(error.value), (out / "checkpoint" / "manifest.json").read_bytes()))
    done = len(record.read(out).rounds)
    assert ends[0] == ends[1] and done > 0
    assert ends[0][0].startswith(f"round {done + 1} (stage 1) ")


def test_what_was_sent_so_is_no_reason() -> None:
    """A network may have a mask of minus infinity, or NaN for what it does not use."""
    module = nn.Sequential(nn.Linear(6, 3))
    module.register_buffer("mask", torch.tensor([0.0, -torch.inf, torch.nan]))
    draw = torch.randn(90, 6)
    source = sources.from_arrays(draw[:60], torch.arange(60) % 3, draw[60:], torch.arange(30) % 3)
    ended = experiment.run(config(partition="iid"), given=experiment.Given(source=source, module=module))
    assert ended.weights is not None and ended.weights["mask"].isnan().tolist() == [False, False, True]
    assert not any("lost" in line for line in ended.rounds)


def test_rounds_in_which_all_replies_are_dropped_go_on() -> None:
    result = harness.finish(harness.config(rounds=6, per_round=1, settings=["partition.min_size=5", "engine.drop=0.6"]))
    assert 0 in [line["replies"] for line in result.rounds] and not any("lost" in line for line in result.rounds)


def test_an_entry_s_answers_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedNoRo asks for losses; those of a class that a client does not have are gaps, and no reason to refuse it."""
    wanted = harness.config("fednoro(warmup=1)", rounds=2)
    result = harness.finish(wanted)
    assert result.doors and not any("lost" in door for door in result.doors)
    entry = next(e for stage in registry.build("fednoro(warmup=1)").stages for e in stage.entries if e.asks)
    honest = type(entry).ask

    def ask(self: Any, local: Any) -> Any:
        told, facts = honest(self, local)
        return ({name: t * torch.inf for name, t in told.items()} if local.shard.client == BAD else told), facts

    monkeypatch.setattr(type(entry), "ask", ask)
    (door, *_) = harness.finish(wanted).doors
    assert list(door["lost"]) == [BAD] and "of its Detect holds a number that is not finite" in door["lost"][BAD]


def test_the_run_says_so_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without batch norm the loss says it: of four clients, the one that holds the large values is left out."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{'ABCD'[i % 4]},{(i % 7) * (1e30 if i % 4 == 1 else 1)},{i % 5},{'yn'[i // 4 % 2]}" for i in range(160)]
    (tmp_path / "mine.csv").write_text("\n".join(["site,a,b,label", *rows]) + "\n")
    ended = fedskew("run", "--data", "mine.csv", "--rounds", "2", "--engine", "inline", "--lr", "1e-3", "--out", "run")
    assert ended.exit_code == 0, ended.output
    assert "2 updates of client B were left out because they were not finite" in ended.stdout


def test_a_method_that_diverges_leaves_the_others_their_table(tmp_path: Path) -> None:
    words = ["compare", "fedavg", "fedprox(mu=1e30)", "--rounds", "2", "--clients", "3", "--engine", "inline"]
    done = fedskew(*words, "--out", tmp_path / "both")
    assert done.exit_code == 0, done.output
    assert (
        "fedprox(mu=1e30), seed 0, is not in the table: round 1 (stage 1) has no update that can be used" in done.stderr
    )
    assert "fedavg" in done.stdout and "fedprox" not in done.stdout
    alone = fedskew("compare", *words[2:], "--out", tmp_path / "one")
    assert alone.exit_code == 2 and "round 1 (stage 1) has no update that can be used" in alone.stderr
