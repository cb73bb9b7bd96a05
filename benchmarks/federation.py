"""Measure what a federation adds to a round's local work: fedskew's engine beside plain Flower, on this machine.

Plain Flower is `benchmarks/plain-flower`, on SuperNodes with their defaults. fedskew runs FedAvg with one local step
per site, in its own processes. Both use a database, TLS on loopback, and no node keys. They take turns: a federation
starts, runs its rounds (the first is a warm-up), and stops before the other one starts. Results that are already in
FILE are not measured again, so an interrupted benchmark continues; `--again` measures a side of them anew.

    python benchmarks/federation.py [--nodes 2 5 10] [--weights small large] [--rounds 5] [--turns 2] [--out FILE]
        [--again plain fedskew]

small  4 kB,  2, 5 and 10 nodes
large  44 MB, 2 and 5 nodes
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from fedskew import api
from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core.types import Broadcast
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.experiment import run_metadata
from fedskew.federation.transport import project
from fedskew.record import reader
from fedskew.runtime.accumulate import Replies
from fedskew.runtime.context import RunContext
from fedskew.runtime.store import Store

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
HIDDEN = {"small": [14], "large": [3280, 3280]}
SIDES = ("plain", "fedskew")
NODES = {"small": (2, 5, 10), "large": (2, 5)}
SAMPLES = 10
PATIENCE = 900


@dataclass
class Cell:
    """Seconds of each round beside its local work, and the local work subtracted from fedskew's; when each side ran."""

    nodes: int
    weights: str
    bytes: int
    local: float
    plain: list[float] = field(default_factory=list)
    fedskew: list[float] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)


class Federation:
    """A SuperLink with TLS, and other processes; `folder` holds the logs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, dict[str, subprocess.Popen[bytes]]()
        self.address, self.certificate = f"127.0.0.1:{free_port()}", folder / "server.pem"
        request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        name = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", str(folder / "server.key"), "-out", str(self.certificate)]
        subprocess.run([*request, *name, *files], check=True, capture_output=True)
        (folder / "config.toml").write_text(
            f'[superlink.here]\naddress = "{self.address}"\nroot-certificates = "{self.certificate}"\n'
        )
        self.environment = os.environ | {
            "FLWR_HOME": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def link(self, *command: str) -> None:
        keys = ["--ssl-ca-certfile", str(self.certificate), "--ssl-certfile", str(self.certificate)]
        keys += ["--ssl-keyfile", str(self.folder / "server.key")]
        host, port = self.address.split(":")
        place = ["--host", host, "--port", port, "--database", str(self.folder / "state.db")]
        self.start("link", *command, *keys, *place)
        self.wait(lambda: b"Uvicorn running" in (self.folder / "link.log").read_bytes())

    def start(self, name: str, program: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [str(BIN / program), *words], stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def submit(self, app: Path, run_config: str) -> None:
        command = [str(BIN / "flwr"), "run", str(app), "here", "--run-config", run_config]
        done = subprocess.run(command, env=self.environment, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"flwr run failed: {done.stdout}{done.stderr}")

    def wait(self, what: Callable[[], Any]) -> Any:
        until = time.monotonic() + PATIENCE
        while not (found := what()):
            ended = [name for name, process in self.started.items() if process.poll() is not None]
            if ended or time.monotonic() > until:
                logs = "".join(f"\n--- {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
                raise RuntimeError(f"{', '.join(ended)} ended{logs}" if ended else f"not within {PATIENCE} s{logs}")
            time.sleep(0.5)
        return found

    def follow(self, read: Callable[[], list[dict[str, Any]]], rounds: int, nodes: int) -> list[float]:
        """Return the seconds of all rounds but the first; every node must answer every round."""
        printed = 0

        def done() -> list[float]:
            nonlocal printed
            lines = read()
            for line in lines[printed:]:
                log(f"  round {printed} of {rounds - 1}: {line['seconds']:.2f} s, {line['replies']} replies")
                printed += 1
                if line["replies"] != nodes:
                    raise RuntimeError(f"round {printed - 1} had {line['replies']} replies, and {nodes} are needed")
            return [line["seconds"] for line in lines[1:]] if len(lines) == rounds else []

        return list(self.wait(done))

    def close(self) -> None:
        """Stop all processes and their children."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self.running():
                with suppress(ProcessLookupError):
                    os.kill(process, sign)
            until = time.monotonic() + 10
            while self.running() and time.monotonic() < until:
                time.sleep(0.2)
        for started in self.started.values():
            started.wait()

    def running(self) -> list[int]:
        """Return processes with this folder in their environment; Flower gives some of them their own sessions."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"FLWR_HOME={self.folder}\0".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@contextmanager
def federation() -> Iterator[Federation]:
    with tempfile.TemporaryDirectory(prefix="federation-") as folder:
        made = Federation(Path(folder))
        try:
            yield made
        finally:
            made.close()


def plain(nodes: int, config: RunConfig) -> list[float]:
    """Measure rounds of plain Flower. Nothing is trained, so all time is Flower's."""
    with federation() as made:
        made.link("flower-superlink")
        for node in range(nodes):
            address = ["--superlink", made.address, "--root-certificates", str(made.certificate)]
            here = ["--host", "127.0.0.1", "--port", str(free_port())]
            made.start(f"node{node}", "flower-supernode", *address, *here)
        out, hidden = made.folder / "rounds.jsonl", str(config.model.args["hidden"]).strip("[]")
        made.submit(HERE / "plain-flower", f'nodes={nodes} rounds={config.rounds} hidden="{hidden}" out="{out}"')

        def read() -> list[dict[str, Any]]:
            return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

        return made.follow(read, config.rounds, nodes)


def fedskew(nodes: int, config: RunConfig) -> list[float]:
    """Measure rounds of fedskew, with local work."""
    with federation() as made:
        allowed, secret, runs = (made.folder / name for name in ("allowed", "secret", "runs"))
        allowed.write_text(project.digest() + "\n")
        secret.write_bytes(secrets.token_bytes(32))
        secret.chmod(0o600)
        apart = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        made.link("python", "-m", "fedskew.federation.transport.superlink", *apart)
        executor = ["-m", "fedskew.federation.transport.executor"]
        common = ["--address", made.address, "--allow", str(allowed), "--ca", str(made.certificate)]
        made.start(
            "coordinator", "python", *executor, "coordinator", *common, "--secret", str(secret), "--runs", str(runs)
        )
        for node in range(nodes):
            printed = made.folder / f"node{node}.toml"
            printed.write_text(f'site = {node}\nmemory = "{made.folder / "memory"}"\n')
            made.start(f"node{node}", "python", *executor, "site", *common, "--node-config", str(printed))
        out, app = made.folder / "run", runs / "app"
        given = project.write(app, {"config": configuration.dumps(config), "out": str(out)})
        made.submit(app, str(given))

        def read() -> list[dict[str, Any]]:
            return reader.read(out).rounds if (out / reader.NAME).exists() else []

        return made.follow(read, config.rounds, nodes)


class Watched(Inline):
    """Record the seconds of each round's clients."""

    def __init__(self, site: RunContext) -> None:
        super().__init__(site, Store())
        self.clients: list[list[float]] = []

    def ask(self, sent: Sequence[Broadcast]) -> Replies:
        gathered = super().ask(sent)
        self.clients.append([update.metrics["seconds"] for update in gathered.updates])
        return gathered


def local_work(config: RunConfig) -> tuple[int, float]:
    """Return bytes of the weights, and a round's seconds in one process as if each client had a core."""
    watched: list[Watched] = []

    def engine(site: RunContext) -> Watched:
        watched.append(Watched(site))
        return watched[0]

    with tempfile.TemporaryDirectory() as folder:
        result = experiment.run(config, Path(folder) / "run", inputs=experiment.RunInputs(engine=engine))
    found = []
    for line, clients in list(zip(result.rounds, watched[0].clients, strict=True))[1:]:
        at_once = math.ceil(len(clients) / (os.cpu_count() or 1)) * max(clients)
        found.append(line["seconds"] - sum(clients) + min(at_once, sum(clients)))
    return 4 * result.header["model"]["parameters"], statistics.median(found)


def job(nodes: int, weights: str, rounds: int) -> RunConfig:
    """Return FedAvg with one step per site and round."""
    return api.configure(
        method="fedavg", dataset="synthetic", partition="iid", clients=nodes, rounds=rounds + 1, local_epochs=1,
        batch_size=SAMPLES, model="mlp", engine="inline",
        settings=[
            f"data.options.samples={SAMPLES * nodes}", f"model.args.hidden={HIDDEN[weights]}",
            f"evaluate.every={rounds + 1}",
        ],
    )  # fmt: skip


def measure(nodes: int, weights: str, rounds: int, turns: int, sides: Sequence[str], before: dict[str, Any]) -> Cell:
    """Measure sides of a cell; those of `before` that are not among them stay."""
    config = job(nodes, weights, rounds)
    cell = Cell(**before) if before else Cell(nodes, weights, *local_work(config))
    if "fedskew" in sides:
        cell.local = local_work(config)[1]
    for side in sides:
        setattr(cell, side, [])
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        commit = run_metadata.versions()["commit"]
        cell.measured[side] = {"started": started, "commit": commit, "load": os.getloadavg()}
    for turn in range(turns):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            log(f"{nodes} nodes, {weights} weights, turn {turn + 1} of {turns}: {side} ...")
            if side == "plain":
                cell.plain += plain(nodes, config)
            else:
                cell.fedskew += [taken - cell.local for taken in fedskew(nodes, config)]
    log(row(asdict(cell)))
    return cell


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def row(cell: dict[str, Any]) -> str:
    def shown(found: list[float]) -> str:
        return f"{statistics.median(found):.2f} s ({min(found):.2f} to {max(found):.2f})"

    size = f"{cell['bytes'] / 1e6:.0f} MB" if cell["bytes"] >= 1e6 else f"{cell['bytes'] / 1e3:.0f} kB"
    sides = f"{shown(cell['plain'])} | {shown(cell['fedskew'])} | {cell['local']:.2f} s"
    return f"| {cell['nodes']} | {size} | {sides} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 5, 10])
    parser.add_argument("--weights", nargs="+", choices=list(HIDDEN), default=list(HIDDEN))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "federation.json")
    parser.add_argument("--again", nargs="+", choices=SIDES, default=[])
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes are ended then, too
    found = {
        "machine": run_metadata.hardware(),
        "versions": {**run_metadata.versions(), "flwr": metadata.version("flwr")},
    }
    del found["versions"]["commit"]  # every measurement has its own
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    if asked.out.exists():
        cells = {(each["weights"], each["nodes"]): each for each in json.loads(asked.out.read_text())["cells"]}
    wanted = [(weights, nodes) for weights in asked.weights for nodes in asked.nodes if nodes in NODES[weights]]
    for weights, nodes in wanted:
        before = cells.get((weights, nodes), {})
        if sides := [side for side in SIDES if side in asked.again or not before.get(side)]:
            cells[weights, nodes] = asdict(measure(nodes, weights, asked.rounds, asked.turns, sides, before))
            asked.out.write_text(json.dumps(found | {"cells": list(cells.values())}, indent=1) + "\n")
    print("\n| nodes | weights | plain Flower adds | fedskew adds | local work taken off |\n|---|---|---|---|---|")
    print("\n".join(map(row, cells.values())))


if __name__ == "__main__":
    main()
