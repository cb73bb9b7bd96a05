"""FedNoRo from end to end, on digits of which three of eight clients have wrong labels."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew import api
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.methods import registry
from fedskew.parts.servers.aggregate import Aggregate
from fedskew.parts.servers.distance import DistanceAware
from fedskew.record import reader
from fedskew.report.detection import detect
from fedskew.runtime import server
from fedskew.runtime.context import one_thread
from fedskew.runtime.loop import RoundDone, SetupDone, rounds
from tests.contract import harness
from tests.engines import wire

NOISY = [2, 5, 6]
RATES = [0.5 if client in NOISY else 0.0 for client in range(8)]


def wanted(method: str = "fednoro(warmup=3)", noise: str = "symmetric", **options: Any) -> RunConfig:
    settings = ["local.optimizer=adam", "model.args.hidden=[32]"]
    if noise != "none":
        settings += [f"noise.kind={noise}", "noise.who=explicit", f"noise.rates={RATES}"]
    defaults = {"rounds": 5, "local_epochs": 3, "batch_size": 16, "lr": 0.005, "engine": "inline"}
    return api.configure(
        method=method, partition="iid", clients=8, model="mlp", settings=settings, **(defaults | options)
    )


def given() -> experiment.RunInputs:
    return experiment.RunInputs(source=sources.load("digits"))


@functools.cache
def ended(method: str = "fednoro(warmup=3)", **options: Any) -> experiment.Result:
    """What a run without a folder ends with."""
    return experiment.run(wanted(method, **options), inputs=given())


def detection(result: experiment.Result) -> dict[str, Any]:
    verdict: dict[str, Any] = result.setups[-1]["verdict"]
    return verdict


def test_noisy_clients_are_found_with_their_rates_and_confusions() -> None:
    found = detection(ended(noise="pairflip"))
    assert found["noisy"] == NOISY and found["judgment"]["verdict"] == "some" and found["reading"] == "noise"
    for client, rate in enumerate(found["evidence"]["rate"]):
        assert rate == pytest.approx(RATES[client], abs=0.12)
    for client in NOISY:
        assert all((given - true) % 10 == 1 for given, true, _ in found["evidence"]["confusions"][client])


def test_the_record_has_client_weights_and_the_best_of_the_second_stage(tmp_path: Path) -> None:
    result = experiment.run(wanted(rounds=6), tmp_path / "run", inputs=given())
    assert ["shares" in line for line in result.rounds] == [False] * 3 + [True] * 3
    counts = np.array(result.header["counts"]).sum(axis=1)
    for line in result.rounds[3:]:
        shares = np.array([line["shares"][str(client)] for client in range(8)])
        assert shares.sum() == pytest.approx(1)
        ratio = shares / counts
        assert ratio[NOISY].max() < ratio[0] and ratio[NOISY].min() == pytest.approx(ratio[0] / np.e)
    influence = detect(reader.read(tmp_path / "run")).influence
    assert influence[NOISY].max() < 1 < influence[0] == pytest.approx(np.delete(influence, NOISY))
    balanced = [line["balanced_accuracy"] for line in result.rounds]
    assert result.end["best_balanced_last_stage"] == max(balanced[3:])
    assert "best_balanced_last_stage" not in ended("fedla").end


def test_a_clean_federation_stays_fedla_to_the_bit() -> None:
    ours, plain = ended(noise="none"), ended("fedla", noise="none")
    assert detection(ours)["judgment"]["verdict"] != "some"
    assert ours.end["weights_sha256"] == plain.end["weights_sha256"]


def test_every_ablation_is_another_run() -> None:
    methods = [f"fednoro(warmup=3{more})" for more in ("", ", distil=False", ", distance=None", ", drop=True")]
    runs = [ended(each) for each in (*methods, "fedla")]
    assert len({run.end["weights_sha256"] for run in runs}) == 5
    assert len({tuple(run.accuracy[:3]) for run in runs}) == 1  # the warm-up is the same


def test_the_distance_of_the_paper_can_be_had() -> None:
    server = registry.build("fednoro(distance='global_l2', buffers=False)").stages[1].server
    assert isinstance(server, Aggregate) and server.weigh == DistanceAware("global_l2", buffers=False)


def test_dropped_clients_are_not_asked_again() -> None:
    config = wanted("fednoro(warmup=3, drop=True)")
    context, _, spec = experiment.prepare(config, given())
    with one_thread():
        events = list(
            rounds(context, Inline(context, harness.store()), server.begin(spec, context.net(spec).initial()))
        )
    asked = [[update.client for update in event.replies.updates] for event in events if isinstance(event, RoundDone)]
    assert asked == [list(range(8))] * 3 + [[0, 1, 3, 4, 7]] * 2


def test_redetection_runs_the_setup_again() -> None:
    config = wanted("fednoro(warmup=2, redetect=2)", rounds=6)
    context, _, spec = experiment.prepare(config, given())
    with one_thread():
        events = list(
            rounds(context, Inline(context, harness.store()), server.begin(spec, context.net(spec).initial()))
        )
    setups = [event for event in events if isinstance(event, SetupDone)]
    assert [setup_line.round.index for setup_line in setups] == [2, 4]
    assert [setup_line.verdict["noisy"] for setup_line in setups] == [NOISY, NOISY]


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_it_resumes_to_the_same_bits_from_either_stage_and_from_before_the_setup(tmp_path: Path, stop: int) -> None:
    method = "fednoro(warmup=3, redetect=1)"
    whole = ended(method)

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(wanted(method), tmp_path / "part", inputs=given(), callbacks=[harness.each_round(interrupt)])
    resumed = experiment.resume(tmp_path / "part", inputs=given())
    assert resumed.end["weights_sha256"] == whole.end["weights_sha256"]
    assert [setup_line["verdict"] for setup_line in resumed.setups] == [
        setup_line["verdict"] for setup_line in whole.setups
    ]


@pytest.mark.parametrize("engine", ["pool", "wire"])
def test_engines_agree_on_detection_and_bits(engine: str) -> None:
    here = ended()
    config, inputs = wire.use(wanted(), engine, given())
    there = experiment.run(config, inputs=inputs)
    assert here.end["weights_sha256"] == there.end["weights_sha256"]
    assert detection(here) == detection(there)


def test_lost_replies_are_borne(tmp_path: Path) -> None:
    config = api.configure(wanted(), settings=["engine.drop=0.3"])
    ours, again = (experiment.run(config, inputs=given()) for _ in range(2))
    assert ours.end["weights_sha256"] == again.end["weights_sha256"]
    assert ours.setups[0]["answers"] < 8 and set(detection(ours)["noisy"]) <= set(NOISY)


def test_more_rounds_would_be_another_ramp(tmp_path: Path) -> None:
    experiment.run(wanted(rounds=4), tmp_path / "run", inputs=given())
    with pytest.raises(UserError, match=r"RampedDistillation depends on that number"):
        experiment.resume(tmp_path / "run", inputs=given(), rounds=6)
    experiment.run(wanted("fednoro(warmup=3, ramp_end=4)", rounds=4), tmp_path / "fixed", inputs=given())
    longer = experiment.resume(tmp_path / "fixed", inputs=given(), rounds=5)
    whole = ended("fednoro(warmup=3, ramp_end=4)")
    assert longer.end["weights_sha256"] == whole.end["weights_sha256"]


def shifted(tmp_path: Path, noisy: bool) -> dict[str, Any]:
    """Ten clients; the first three have pictures of low contrast, and perhaps three others wrong labels."""
    whole = sources.load("digits")
    x, y = whole.train.x[:1400].clone(), whole.train.y[:1400].clone()
    x[:420] = (x[:420].float() * 0.4 + 80).to(x.dtype)
    for start in (420, 700, 980) if noisy else ():
        y[start : start + 140 : 2] = (y[start : start + 140 : 2] + 3) % 10
    lists = tmp_path / "lists.json"
    lists.write_text(json.dumps([list(range(start, start + 140)) for start in range(0, 1400, 140)]))
    config = api.configure(
        wanted(noise="none"), partition="explicit", clients=10, settings=[f"partition.lists={lists}"]
    )
    source = sources.from_arrays(x, y, whole.test.x, whole.test.y, mean=whole.mean, std=whole.std)
    return detection(experiment.run(config, inputs=experiment.RunInputs(source=source)))


def test_shifted_sites_without_noise_read_shift(tmp_path: Path) -> None:
    found = shifted(tmp_path, noisy=False)
    assert found["reading"] == "shift" and found["noisy"] == []


def test_shifted_sites_beside_noisy_ones_read_both(tmp_path: Path) -> None:
    found = shifted(tmp_path, noisy=True)
    assert found["reading"] == "both" and found["noisy"] == [3, 5, 7]
