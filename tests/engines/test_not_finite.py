"""An update that is not finite is left out and recorded, on every engine; if there is no other, the run ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, ClientState
from fedskew.data import sources
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.methods import registry
from fedskew.record import reader
from fedskew.runtime.accumulate import Replies
from fedskew.runtime.context import RunContext
from fedskew.runtime.store import Store
from tests.commands import complaint, fedskew
from tests.contract import harness
from tests.engines import wire

BAD = 1


def given(**more: Any) -> experiment.RunInputs:
    """Four sites with 20 samples each; those of one of them are finite, and too large for a variance in float32."""
    draw = torch.Generator().manual_seed(3)
    x, y, sites = torch.randn(80, 6, generator=draw), torch.arange(80) % 3, torch.arange(80) // 20
    x[sites == BAD] *= 1e30
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    source = sources.from_arrays(x, y, torch.randn(30, 6, generator=draw), torch.arange(30) % 3, sites=sites)
    return experiment.RunInputs(source=source, module=module, **more)


def config(**options: Any) -> Any:
    defaults = {"partition": "natural", "clients_per_round": None, "settings": [], "model": "mlp"}
    return harness.config("scaffold", **(defaults | options))


class Deaf(Inline):
    """Never sees the bad client."""

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        return super().ask([each for each in sent if each.client != BAD])


@pytest.fixture(scope="module")
def without() -> experiment.Result:
    return experiment.run(config(), inputs=given(engine=lambda context: Deaf(context, Store())))


@pytest.mark.parametrize("engine", ["inline", "pool", "wire"])
def test_one_bad_client_is_left_out(engine: str, without: experiment.Result, tmp_path: Path) -> None:
    wanted, inputs = wire.use(config(workers=2), engine, given())
    result = experiment.run(wanted, tmp_path / "run", inputs=inputs)
    assert result.weights is not None and all(t.isfinite().all() for t in result.weights.values())
    assert result.end["weights_sha256"] == without.end["weights_sha256"]
    why = "refused: tensor '1.running_var' of its buffers has a number that is not finite"
    lines = reader.read(tmp_path / "run").rounds
    assert [(line["round"], line["stage"], line["lost"]) for line in lines] == [
        (n, 0, {str(BAD): why}) for n in (1, 2, 3)
    ]
    assert [(line["asked"], line["replies"]) for line in lines] == [(4, 3)] * 3


def test_what_a_client_would_keep_of_it_is_forgotten() -> None:
    stores: list[Store] = []

    def engine(context: RunContext) -> Inline:
        stores.append(Store())
        return Inline(context, stores[-1])

    experiment.run(config(), inputs=given(engine=engine))
    assert stores[0].get(BAD) == ClientState()
    assert stores[0].get(0).memory and stores[0].get(0).pending is None


@pytest.mark.parametrize("engine", ["inline", "pool"])
def test_a_learning_rate_that_is_far_too_large_ends_the_first_round(engine: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = complaint(
        *(
            "run",
            "--engine",
            engine,
            "--rounds",
            "500",
            "--clients",
            "2",
            "--local-epochs",
            "1",
            "--lr",
            "1e6",
            "--out",
            out,
        )
    )
    assert "round 1 (stage 1) has no usable update: that of client 0 was refused: its metric 'loss' is not" in said
    assert said.count("(and so were 1 more). Start a new run with a smaller --lr") == 1
    assert reader.read(out).rounds == []


def test_the_checkpoint_before_stays(tmp_path: Path) -> None:
    """One client in each round: the run ends when it is the bad one's turn, at the first try and at the next."""
    out, wanted = tmp_path / "run", config(clients_per_round=1, rounds=30)
    ends = []
    for go in (lambda: experiment.run(wanted, out, inputs=given()), lambda: experiment.resume(out, inputs=given())):
        with pytest.raises(UserError, match="has no usable update: that of client 1 was refused: ") as error:
            go()
        ends.append((str(error.value), (out / "checkpoint" / "manifest.json").read_bytes()))
    done = len(reader.read(out).rounds)
    assert ends[0] == ends[1] and done > 0
    assert ends[0][0].startswith(f"round {done + 1} (stage 1) ")


def test_what_was_sent_so_is_no_reason() -> None:
    """A network may have a mask of minus infinity, or NaN for what it does not use."""
    module = nn.Sequential(nn.Linear(6, 3))
    module.register_buffer("mask", torch.tensor([0.0, -torch.inf, torch.nan]))
    draw = torch.randn(90, 6)
    source = sources.from_arrays(draw[:60], torch.arange(60) % 3, draw[60:], torch.arange(30) % 3)
    ended = experiment.run(config(partition="iid"), inputs=experiment.RunInputs(source=source, module=module))
    assert ended.weights is not None and ended.weights["mask"].isnan().tolist() == [False, False, True]
    assert not any("lost" in line for line in ended.rounds)


def test_rounds_in_which_all_replies_are_dropped_go_on() -> None:
    result = harness.finish(
        harness.config(rounds=6, clients_per_round=1, settings=["partition.min_size=5", "engine.drop=0.6"])
    )
    assert 0 in [line["replies"] for line in result.rounds] and not any("lost" in line for line in result.rounds)


def test_an_entry_s_answers_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedNoRo asks for losses; those of a class that a client does not have are gaps, and no reason to refuse it."""
    wanted = harness.config("fednoro(warmup=1)", rounds=2)
    result = harness.finish(wanted)
    assert result.setups and not any("lost" in setup_line for setup_line in result.setups)
    setup = next(e for stage in registry.build("fednoro(warmup=1)").stages for e in stage.setups if e.asks_clients)
    honest = type(setup).answer

    def answer(self: Any, ctx: Any) -> Any:
        reported, facts = honest(self, ctx)
        return ({name: t * torch.inf for name, t in reported.items()} if ctx.shard.client == BAD else reported), facts

    monkeypatch.setattr(type(setup), "answer", answer)
    (setup_line, *_) = harness.finish(wanted).setups
    assert (
        list(setup_line["lost"]) == [str(BAD)]
        and "of its Detect has a number that is not finite" in setup_line["lost"][str(BAD)]
    )


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
    assert "fedprox(mu=1e30), seed 0, is not in the table: round 1 (stage 1) has no usable update" in done.stderr
    assert "fedavg" in done.stdout and "fedprox" not in done.stdout
    alone = fedskew("compare", *words[2:], "--out", tmp_path / "one")
    assert alone.exit_code == 2 and "round 1 (stage 1) has no usable update" in alone.stderr
