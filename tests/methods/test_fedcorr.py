"""FedCorr from end to end, on digits of which two clients have half of their labels wrong."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew import api
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.methods import registry
from fedskew.runtime import server
from fedskew.runtime.client import confirmed
from fedskew.runtime.context import one_thread
from fedskew.runtime.loop import RoundDone, SetupDone, rounds
from tests.contract import harness

CLIENTS, SAMPLES, NOISY = 6, 100, (1, 4)


@functools.cache
def mislabeled() -> tuple[sources.Source, torch.Tensor]:
    """(600 digits as observed, their true labels): in clients 1 and 4 every other label is the next class."""
    whole = sources.load("digits")
    true = whole.train.y[: CLIENTS * SAMPLES]
    observed = true.clone()
    for client in NOISY:
        at = torch.arange(client * SAMPLES, (client + 1) * SAMPLES, 2)
        observed[at] = (true[at] + 1 + torch.arange(len(at)) % 9) % 10
    x, test = whole.train.x[: len(true)], whole.test
    return sources.from_arrays(x, observed, test.x[:200], test.y[:200], mean=whole.mean, std=whole.std), true


@pytest.fixture
def wanted(tmp_path: Path) -> RunConfig:
    lists = tmp_path / "lists.json"
    lists.write_text(json.dumps([list(range(c * SAMPLES, (c + 1) * SAMPLES)) for c in range(CLIENTS)]))
    return api.configure(
        method="fedcorr(finetune=1)",
        partition="explicit",
        clients=CLIENTS,
        rounds=2,
        local_epochs=6,
        batch_size=20,
        lr=0.1,
        model="mlp",
        engine="inline",
        settings=[f"partition.lists={lists}", "model.args.hidden=[64]"],
    )


def test_noisy_clients_are_found_left_out_and_corrected(wanted: RunConfig) -> None:
    source, true = mislabeled()
    context, _, spec = experiment.prepare(wanted, experiment.RunInputs(source=source))
    store = harness.store()
    with one_thread():
        events = list(rounds(context, Inline(context, store), server.begin(spec, context.net(spec).initial())))
    setups = [event for event in events if isinstance(event, SetupDone)]
    lines = [event for event in events if isinstance(event, RoundDone)]
    assert [(setup_line.setup, setup_line.round.index) for setup_line in setups] == [
        *(("JudgeByDimension", 0), ("RelabelWorst", 0), ("DrawOrder", 0)),
        *(("JudgeByDimension", 6), ("RelabelWorst", 6), ("DrawOrder", 6)),
        *(("JudgeByDimension", 12), ("RelabelWorst", 12)),
        ("RelabelAll", 13),
    ]
    # two passes over all clients, one at a time, then a round of the clean ones, then everybody
    visited = [[update.client for update in line.replies.updates] for line in lines]
    for one_pass in (visited[:6], visited[6:12]):
        assert sorted(one_pass) == [[client] for client in range(6)]
    assert visited[:6] != visited[6:12]
    assert visited[12:] == [[0, 2, 3, 5], list(range(6))]
    assert [line.counted for line in lines] == [False] * 12 + [True] * 2
    # the judgment, and the labels before and after
    verdict = setups[6].verdict
    assert verdict["noisy"] == list(NOISY)
    state = lines[-1].state
    states = [confirmed(store.get(client), state.seen[client]) for client in range(CLIENTS)]
    for client, own in enumerate(states):
        assert ("labels" in own.facts) is (client in NOISY)
        if client in NOISY:
            right = own.facts["labels"] == true[client * SAMPLES : (client + 1) * SAMPLES]
            assert int(right.sum()) > 85
    # nothing of the measurements stays behind, and labels and losses never left the clients
    assert set(state.facts) == {"noisy", "mu", "order"}
    assert not any("LocalDimension" in key for own in states for key in own.memory)


def test_the_adjusted_variant_is_fedcorr_with_fedla() -> None:
    assert registry.build("fedcorr-la").stages == registry.build("fedcorr+la").stages


#: so easily convinced that labels change although the network has hardly learned anything
SMALL = "fedcorr(warmup=2, finetune=1, confidence=0.1)"


def small(**options: Any) -> RunConfig:
    return harness.config(SMALL, local_epochs=1, **options)


@functools.cache
def whole() -> experiment.Result:
    return harness.finish(small())


def decided(run: experiment.Result) -> list[tuple[str, int, Any]]:
    return [(setup_line["part"], setup_line["round"], setup_line["verdict"]) for setup_line in run.setups]


@pytest.mark.parametrize("stopped_after", [2, 3, 7, 8, 9])
def test_a_run_stopped_in_any_stage_or_before_any_setup_resumes_to_the_same_bits(
    stopped_after: int, tmp_path: Path
) -> None:
    # four clients: the second pass begins with round 4, the second stage with 8, the third with 9
    def stop(line: dict[str, Any]) -> None:
        if line["round"] == stopped_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.finish(small(), out=tmp_path / "run", callbacks=[harness.each_round(stop)])
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert resumed.end["weights_sha256"] == whole().end["weights_sha256"]
    assert decided(resumed) == decided(whole())
    changed = [verdict["relabeled"] for part, _, verdict in decided(resumed) if part.startswith("Relabel")]
    assert changed[0] == 0 and all(changed[1:])  # the last three setups


def test_no_reply_at_all_is_survived() -> None:
    silent = harness.finish(small(settings=["partition.min_size=5", "engine.drop=0.9999999"]))
    assert [line["replies"] for line in silent.rounds] == [0] * 11
    # nobody was measured, so nobody is noisy and the second stage asks everybody
    assert [line["asked"] for line in silent.rounds] == [1] * 8 + [4] + [3] * 2
    assert all(
        setup_line["verdict"]["noisy"] == [] for setup_line in silent.setups if setup_line["part"] == "JudgeByDimension"
    )


def test_without_rounds_for_clean_clients_the_setups_run_all_the_same() -> None:
    run = harness.finish(harness.config("fedcorr(warmup=1, finetune=0)", local_epochs=1))
    assert [(part, round) for part, round, _ in decided(run)[3:]] == [
        *(("JudgeByDimension", 5), ("RelabelWorst", 5)),
        ("RelabelAll", 5),
    ]


def test_what_leads_nowhere_is_refused() -> None:
    for wrong in ("warmup=0", "k=1", "kappa=1.5", "alpha=0", "losses='both'"):
        with pytest.raises(UserError, match=f"method 'fedcorr': {wrong.split('=')[0]} is"):
            registry.build(f"fedcorr({wrong})")
