"""Ray: the bits of every other engine on a cluster of two, after any death; clear errors; closed to other machines.

The cluster is two `ray start` processes on loopback addresses. What needs it is slow: `make test-ray`.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedskew import api
from fedskew.core.errors import UserError
from fedskew.experiment import run as experiment
from fedskew.methods import registry
from fedskew.parts import compose
from tests.contract import harness

#: a process learns it when it imports Ray, and for good
TOKEN = secrets.token_urlsafe(32)

#: a network that takes its process with it, once or always, where FEDSKEW_MORTAL is set
MORTAL = """
import os
import signal
from pathlib import Path

from torch import nn

class Mortal(nn.Sequential):
    def forward(self, x):
        self.seen = getattr(self, "seen", 0) + self.training
        if self.training and self.seen == self.last and os.environ.get("FEDSKEW_MORTAL"):
            try:
                Path(__file__).with_name("died").open("x").close()
            except FileExistsError:
                if self.once:
                    return super().forward(x)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)

def _made(classes, shape, last, once):
    network = Mortal(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
    network.last, network.once = last, once
    return network

def once(classes, shape):
    return _made(classes, shape, 20, True)

def always(classes, shape):
    return _made(classes, shape, 1, False)
"""


@dataclass
class Cluster:
    """Two machines, as far as Ray knows; the second reads its data from a file of its own."""

    address: str
    modules: Path
    here: Path
    there: Path
    processes: list[int]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with _two_machines() as made:
        yield made


@contextmanager
def _two_machines() -> Iterator[Cluster]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # not tmp_path: the names of Ray's sockets must be short
    made = Cluster(f"127.0.0.2:{port}", folder / "modules", folder / "here.npz", folder / "there.npz", [])
    made.modules.mkdir()
    (made.modules / "mortal.py").write_text(MORTAL)
    started: list[subprocess.Popen[bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        # Ray's ports are open to other machines as soon as it has an address, so a word is asked for there.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.syspath_prepend(str(made.modules))

        def start(data: Path, *options: str) -> None:
            paths = os.pathsep.join([str(made.modules), os.environ.get("PYTHONPATH", "")])
            more = {"FEDSKEW_DATA": str(data), "FEDSKEW_MORTAL": "1", "PYTHONPATH": paths}
            command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1", *options]
            with (folder / f"{len(started)}.log").open("wb") as log:
                started.append(subprocess.Popen(command, env=os.environ | more, stdout=log, stderr=log))
            made.processes.append(started[-1].pid)

        try:
            at = ["--head", f"--port={port}", "--node-ip-address=127.0.0.2", "--include-dashboard=false"]
            start(made.here, *at, f"--temp-dir={folder / 'ray'}")
            _until(lambda: socket.create_connection(("127.0.0.2", port)).close())
            start(made.there, f"--address={made.address}", "--node-ip-address=127.0.0.3")
            _until(lambda: _count_machines(made.address))
            yield made
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait(60)
            shutil.rmtree(folder, ignore_errors=True)


def _until(works: Any) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            works()
            return
        except (OSError, RuntimeError, AssertionError):
            assert time.monotonic() < deadline
            time.sleep(0.2)


def _count_machines(address: str) -> None:
    import ray

    ray.init(address, log_to_driver=False, logging_level="ERROR")
    try:
        assert sum(node["Alive"] for node in ray.nodes()) == 2
    finally:
        ray.shutdown()


def _same_on(cluster: Cluster, method: str, **options: Any) -> None:
    here, there = (
        harness.finish(harness.config(method, engine=engine, address=address, **options))
        for engine, address in (("inline", None), ("ray", cluster.address))
    )
    assert here.end["weights_sha256"] == there.end["weights_sha256"]
    assert here.accuracy == there.accuracy


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "scaffold",
        "moon",
        "fedlmd",
        "fedvls",
        "fpl",
        "fedcurv",
        "fedconcat(encoder_rounds=1)",
        "fednoro(warmup=1, redetect=1)",
    ],
)
def test_two_machines_end_with_the_same_bits(cluster: Cluster, method: str) -> None:
    _same_on(cluster, method, rounds=2)


@pytest.mark.slow
def test_lost_replies_are_rolled_back(cluster: Cluster) -> None:
    _same_on(cluster, "scaffold", settings=["partition.min_size=5", "engine.drop=0.4"], rounds=4)


@pytest.mark.slow
def test_one_actor_ends_with_the_same_bits(cluster: Cluster) -> None:
    _same_on(
        cluster,
        "scaffold+avgm",
        clients=12,
        clients_per_round=9,
        rounds=2,
        workers=1,
        settings=["partition.min_size=1"],
    )


@pytest.mark.slow
def test_trained_noise_is_not_trained_again_elsewhere(cluster: Cluster) -> None:
    noise = ["partition.min_size=5", "noise.kind=h_idn", "noise.rho=0.5", "noise.annotator.epochs=1"]
    _same_on(cluster, "fedavg", settings=noise, rounds=1)


@pytest.mark.slow
def test_an_actor_that_dies_in_a_round_changes_nothing(cluster: Cluster) -> None:
    # Three of four clients with 200 samples, 2 epochs of batches of 16: some 20 steps a round for two actors together,
    # so an actor takes its twentieth step in the second round or later, when clients have memories.
    died = cluster.modules / "died"
    died.unlink(missing_ok=True)
    _same_on(cluster, "scaffold", model="mortal:once", rounds=4)
    assert died.exists()


@pytest.mark.slow
def test_a_block_that_kills_every_actor_ends_the_run(cluster: Cluster) -> None:
    with pytest.raises(UserError, match=r"^3 actors died of the same work.*fewer --workers\.$"):
        harness.finish(harness.config(engine="ray", address=cluster.address, model="mortal:always"))


@pytest.mark.slow
def test_a_machine_that_dies_changes_nothing() -> None:
    def kill_the_second(line: dict[str, Any]) -> None:
        if line["round"] == first:
            for process in _tree(cluster.processes[1]):
                killed.append(process)
                os.kill(process, signal.SIGKILL)

    killed: list[int] = []
    here = harness.finish(harness.config("scaffold", rounds=4))
    first = here.rounds[0]["round"]
    with _two_machines() as cluster:
        wanted = harness.config("scaffold", rounds=4, engine="ray", address=cluster.address)
        there = harness.finish(wanted, callbacks=[harness.each_round(kill_the_second)])
    assert len(killed) >= 3  # ray start, its raylet, our actor
    assert here.end["weights_sha256"] == there.end["weights_sha256"]


def _write(path: Path, brighter: int = 0) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 200, (120, 8, 8), dtype=np.uint8) + np.uint8(brighter)
    y = np.arange(120) % 3
    np.savez(path, x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])


def _own(cluster: Cluster, engine: str) -> experiment.Result:
    address = cluster.address if engine == "ray" else None
    return experiment.run(
        harness.config(dataset="own", engine=engine, address=address, partition="iid", rounds=2, settings=[])
    )


@pytest.mark.slow
def test_another_machine_reads_the_data_by_itself(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSKEW_DATA", str(cluster.here))
    _write(cluster.here)
    _write(cluster.there)
    assert _own(cluster, "ray").end["weights_sha256"] == _own(cluster, "inline").end["weights_sha256"]
    _write(cluster.there, brighter=1)  # the same labels and so the same shards, but other images
    with pytest.raises(UserError, match=r"^on machine 127\.0\.0\.3: data set '\w+' differs from the one"):
        _own(cluster, "ray")
    cluster.there.unlink()
    with pytest.raises(UserError, match=r"^on machine 127\.0\.0\.3: .*there\.npz"):
        _own(cluster, "ray")


@pytest.mark.slow
def test_more_actors_than_there_are_cpus_are_refused(cluster: Cluster) -> None:
    with pytest.raises(UserError, match=r"^--workers is 3, but the Ray cluster has 2 CPUs\. Use fewer --workers\.$"):
        harness.finish(harness.config(engine="ray", address=cluster.address, workers=3))


@pytest.mark.slow
def test_ten_thousand_clients_with_a_cohort_of_a_thousand(cluster: Cluster, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "method": "scaffold", "dataset": "synthetic", "partition": "iid", "clients": 10_000, "clients_per_round": 1_000,
        "rounds": 2, "local_epochs": 1, "batch_size": 10, "model": "mlp",
        "settings": ["data.options.samples=100000", "model.args.hidden=[8]", "evaluate.every=2"],
    }  # fmt: skip
    there = api.run(**options, engine="ray", address=cluster.address, out=tmp_path / "ray")
    here = api.run(**options, engine="pool", workers=2, out=tmp_path / "pool")
    assert there.end["weights_sha256"] == here.end["weights_sha256"]
    for name, ended in (("ray", there), ("pool", here)):
        print(f"{name}: {ended.rounds[1]['seconds']:.1f} s for the second round of 1,000 clients")


@pytest.mark.slow
def test_without_an_address_no_other_machine_can_reach_it(cluster: Cluster) -> None:
    listening: list[set[str]] = []
    harness.finish(
        harness.config(engine="ray", workers=1, rounds=1),
        callbacks=[harness.each_round(lambda metrics: listening.append(_listening(cluster)))],
    )
    assert listening == [{"127.0.0.1"}]


def _listening(cluster: Cluster) -> set[str]:
    """The addresses at which this process and those below it listen, but for the cluster that was there before."""
    processes = set(_tree(os.getpid())).difference(*map(_tree, cluster.processes))
    sockets = {os.readlink(f) for process in processes for f in _open_files(process) if os.path.lexists(f)}
    found = set()
    for table, digits in (("tcp", 8), ("tcp6", 32)):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                word = bytes.fromhex(fields[1][:digits])[-4:]  # little-endian; mapped addresses end in that of IPv4
                found.add(".".join(map(str, reversed(word))))
    return found


def _tree(process: int) -> list[int]:
    below = [int(c) for t in Path(f"/proc/{process}/task").glob("*/children") for c in t.read_text().split()]
    return [process, *(each for child in below for each in _tree(child))]


def _open_files(process: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:  # it has ended meanwhile
        return []


@pytest.mark.slow
def test_nobody_at_the_address(cluster: Cluster) -> None:
    with pytest.raises(UserError, match=r"^no Ray cluster answers at --address 127.0.0.4:9 .*host:port"):
        harness.finish(harness.config(engine="ray", address="127.0.0.4:9"))


def test_without_ray_a_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # what Python takes for: not to be found
    with pytest.raises(UserError, match=r"^engine 'ray' needs a package .*: pip install 'fedskew\[ray\]'$"):
        harness.finish(harness.config(engine="ray"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_module_handed_over_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UserError, match=r"^engine 'ray' builds networks by name.*model='module:function'\.$"):
        api.run(model=module, data=harness.digits(), engine="ray")


def test_a_method_without_a_name_is_refused() -> None:
    unknown = compose.method(terms=registry.build("fedprox").stages[0].terms)
    with pytest.raises(UserError, match=r"^engine 'ray' builds methods by name"):
        harness.finish(harness.config(engine="ray"), unknown)
