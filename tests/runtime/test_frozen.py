"""Weights that nobody trains stay at the clients after the first broadcast: no byte of any message has them again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedskew.cli import main
from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, Tree
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.experiment.preparation.prepare import prepare
from fedskew.methods import registry
from fedskew.record import reader
from fedskew.runtime import server
from fedskew.runtime.store import Store
from tests.contract import harness
from tests.runtime.test_personal import Tapped, pieces, tapped

RUNS: dict[str, dict[str, Any]] = {
    "lora(rank=2)": {},
    "lora(rank=2)+fedprox+avgm": {},
    "lora(rank=2)+scaffold": {},
    "lora(rank=2)+rfa": {},
    "fedbabu": {},
    "fedbabu+fedvls": {},
    "fedavg": {"train": "head"},
    "fedlmd": {"train": "trunk.0,head"},
}


def frozen(engine: Tapped, sent: Broadcast) -> Tree:
    """What a client has that nobody trains, from its memory."""
    stage = engine.context.plan.method.stages[0]
    assert stage.frozen_stay and stage.personal is not None
    names = engine.context.net(sent.spec).select(stage.personal.what)
    return tree.only(engine.down[0][0].weights, sorted(names))


@pytest.mark.parametrize("method", RUNS)
def test_frozen_weights_travel_once_to_each_client_and_never_back(method: str) -> None:
    engine, _ = tapped(method, clients_per_round=None, **RUNS[method])
    still = frozen(engine, engine.down[0][0])
    found = [run for _, run in pieces(still)]
    assert len(found) >= 4 and set(still) <= engine.down[0][0].weights.keys()
    met: set[int] = set()
    for sent, data in engine.down:
        assert any(run in data for run in found) == (sent.client not in met)
        met.add(sent.client)
    assert met == {0, 1, 2, 3} and len(engine.down) > 8
    for _, data in engine.up:
        assert not any(run in data for run in found)
        assert not any(name.encode() in data for name in still)


@pytest.mark.parametrize("method", RUNS)
def test_they_never_change(method: str) -> None:
    engine, state = tapped(method, clients_per_round=None, **RUNS[method])
    model, still = server.model_of(engine.context, state), frozen(engine, engine.down[0][0])
    assert model is not None and tree.equal(tree.only(model, still), still)
    if "fedbabu" not in method:  # there the clients fit it at the end
        for client in range(4):
            assert tree.equal(engine.store.get(client).memory["Personal@0"], still)


@pytest.mark.parametrize("method", ["lora(rank=2)", "fedbabu"])
def test_no_log_and_no_report_has_them(method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither do messages to callbacks; the model file alone has the whole network, as it must."""
    with caplog.at_level("DEBUG"):
        done = harness.finish(harness.config(method, clients_per_round=None), out=tmp_path / "run")
    made = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.html")])
    assert made.exit_code == 0, made.output
    engine, _ = tapped(method, clients_per_round=None)
    still = frozen(engine, engine.down[0][0])
    found = [run for _, run in pieces(still)]
    found += [f"{value:.12f}"[:9].encode() for value in still[min(still)].flatten()[:8]]
    written = [(tmp_path / "run" / reader.NAME).read_bytes(), (tmp_path / "report.html").read_bytes()]
    assert done.folder is not None and all(written)
    for data in (*written, caplog.text.encode()):
        assert not any(run in data for run in found)


@pytest.mark.parametrize("method", RUNS)
def test_the_same_bits_on_every_engine_and_after_a_stop(method: str, tmp_path: Path) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    config = harness.config(method, **RUNS[method])
    digests = {harness.finish(config, engine=engine).end.weights_sha256 for engine in ("inline", "pool", "wire")}
    with pytest.raises(KeyboardInterrupt):
        harness.finish(config, out=tmp_path / "run", callbacks=[harness.each_round(stop)])
    done = experiment.resume(tmp_path / "run", inputs=harness.inputs())
    assert digests == {done.end.weights_sha256}


def test_a_network_from_a_file_is_adapted(tmp_path: Path) -> None:
    first = harness.finish(harness.config(), out=tmp_path / "base")
    done = harness.finish(harness.config("lora(rank=2)", weights=tmp_path / "base"))
    assert first.weights is not None and done.weights is not None
    names = [name for name in first.weights if not name.startswith("head.")]
    assert tree.equal(tree.only(done.weights, names), tree.only(first.weights, names))
    assert set(done.weights) - set(first.weights) == {"trunk.5.lora_down", "trunk.5.lora_up"}


def test_scores_are_those_of_the_one_model() -> None:
    line = harness.finish(harness.config("lora(rank=2)")).rounds[-1]
    assert line.accuracy is not None and line.scored is None and line.global_accuracy is None


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("fedper", {"train": "head"}, "'fedper' and '--train head' both bring their own personal"),
        (
            "fedavg",
            {"train": "tail"},
            "'tail' names no weights of network 'tiny' that can be trained",
        ),
        ("fedavg+finetuned", {"train": "head"}, "leaves weights that nobody trains at the clients, and the closing"),
    ],
)
def test_what_cannot_work_is_one_sentence(method: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        prepare(harness.config(method, **options), harness.inputs())
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("pair", ["lora+ccvr", "lora+fedper", "lora+ditto", "lora+fednoro", "lora+fedconcat"])
def test_nonsense_is_refused(pair: str) -> None:
    with pytest.raises(UserError, match="Drop one of"):
        registry.build(pair)


def test_an_engine_without_a_store_gives_every_client_the_network_once() -> None:
    """A client whose first reply is lost receives the network again: the server knows only of replies it absorbed."""
    config = harness.config("lora(rank=2)", rounds=5, settings=["partition.min_size=5", "engine.drop=0.4"])
    ended = []
    for kind in (Inline, harness.Unasked):
        context, state = harness.site_of(config)
        model = server.model_of(context, harness.final_state(context, state, kind(context, Store())))
        assert model is not None
        ended.append(tree.digest(model))
    assert ended[0] == ended[1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora(rank=2)", "fedrep(head_epochs=1)", "ditto", "fedbabu"])
def test_a_killed_process_resumes_to_the_same_bits(method: str, tmp_path: Path) -> None:
    """A real process, killed in the middle with its workers, and resumed by another one."""
    given = ["--method", method, "--dataset", "digits", "--clients", "4", "--rounds", "10", "--model", "tiny"]

    def command(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "fedskew", *words], stdout=subprocess.DEVNULL)

    assert command("run", *given, "--out", str(tmp_path / "whole")).wait() == 0
    killed, record = command("run", *given, "--out", str(tmp_path / "killed")), tmp_path / "killed" / reader.NAME
    while not record.exists() or len(record.read_text().splitlines()) < 4:
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() != 0
    assert command("resume", str(tmp_path / "killed")).wait() == 0
    ends = [reader.read(tmp_path / name).end for name in ("whole", "killed")]
    assert ends[0] is not None and ends[1] is not None
    assert ends[0].weights_sha256 == ends[1].weights_sha256 and ends[0].scores == ends[1].scores
