"""What a federation on Flower adds to a round's local work: fedskew's engine beside plain Flower, on this machine.

Plain Flower is `benchmarks/plain-flower`, on SuperNodes as they are started by default; fedskew runs FedAvg with one
local step per site, in its own processes that stay. Both have a database, TLS on loopback, and no node keys.
They take turns: a federation is started, does its rounds (the first is a warm-up), and is ended before the other's.
What FILE already holds is not measured again, so that an interrupted benchmark goes on.

    python benchmarks/federation.py [--nodes 2 5 10] [--weights small large] [--rounds 5] [--turns 2] [--out FILE]

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

from fedskew import config as configuration
from fedskew import evidence, experiment, face, record
from fedskew.config import RunConfig
from fedskew.engines.inline import Inline
from fedskew.flower import project
from fedskew.types import Broadcast
from fedskew.work.gather import Gathered
from fedskew.work.site import Site
from fedskew.work.store import Store

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
HIDDEN = {"small": [14], "large": [3280, 3280]}
NODES = {"small": (2, 5, 10), "large": (2, 5)}
SAMPLES = 10
PATIENCE = 900


@dataclass
class Cell:
    """Seconds that each round took beside its local work, and what was taken off fedskew's for that."""

    nodes: int
    weights: str
    bytes: int
    local: float
    plain: list[float] = field(default_factory=list)
    fedskew: list[float] = field(default_factory=list)


class Federation:
    """A SuperLink with TLS and whatever else is started; `folder` holds the logs."""

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
        """Seconds of the rounds after the first, once they are done; nobody may miss one."""
        told = 0

        def done() -> list[float]:
            nonlocal told
            lines = read()
            for line in lines[told:]:
                tell(f"  round {told} of {rounds - 1}: {line['seconds']:.2f} s, {line['replies']} replies")
                told += 1
                if line["replies"] != nodes:
                    raise RuntimeError(f"round {told - 1} had {line['replies']} replies, and {nodes} are needed")
            return [line["seconds"] for line in lines[1:]] if len(lines) == rounds else []

        return list(self.wait(done))

    def close(self) -> None:
        """End all processes and whatever they started."""
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
        """Processes that have this folder in their environment; Flower puts some of them into sessions of their own."""
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
    """Rounds of plain Flower: nothing is trained, so all of it is Flower's."""
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
    """Rounds of fedskew, local work and all."""
    with federation() as made:
        allowed, secret, runs = (made.folder / name for name in ("allowed", "secret", "runs"))
        allowed.write_text(project.digest() + "\n")
        secret.write_bytes(secrets.token_bytes(32))
        secret.chmod(0o600)
        apart = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        made.link("python", "-m", "fedskew.flower.link", *apart)
        executor = ["-m", "fedskew.flower.executor"]
        common = ["--address", made.address, "--allow", str(allowed), "--ca", str(made.certificate)]
        made.start("office", "python", *executor, "coordinator", *common, "--secret", str(secret), "--runs", str(runs))
        for node in range(nodes):
            told = made.folder / f"node{node}.toml"
            told.write_text(f'site = {node}\nmemory = "{made.folder / "memory"}"\n')
            made.start(f"node{node}", "python", *executor, "site", *common, "--node-config", str(told))
        out, app = made.folder / "run", runs / "app"
        given = project.write(app, {"config": configuration.dumps(config), "out": str(out)})
        made.submit(app, str(given))

        def read() -> list[dict[str, Any]]:
            return record.read(out).rounds if (out / record.NAME).exists() else []

        return made.follow(read, config.rounds, nodes)


class Watched(Inline):
    """Keeps what the clients of each round took."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, Store())
        self.clients: list[list[float]] = []

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        gathered = super().ask(sent)
        self.clients.append([update.metrics["seconds"] for update in gathered.updates])
        return gathered


def local_work(config: RunConfig) -> tuple[int, float]:
    """Bytes of the weights; a round's seconds in one process, as if one client per core had worked at once."""
    watched: list[Watched] = []

    def engine(site: Site) -> Watched:
        watched.append(Watched(site))
        return watched[0]

    with tempfile.TemporaryDirectory() as folder:
        result = experiment.run(config, Path(folder) / "run", given=experiment.Given(engine=engine))
    found = []
    for line, clients in list(zip(result.rounds, watched[0].clients, strict=True))[1:]:
        at_once = math.ceil(len(clients) / (os.cpu_count() or 1)) * max(clients)
        found.append(line["seconds"] - sum(clients) + min(at_once, sum(clients)))
    return 4 * result.header["model"]["parameters"], statistics.median(found)


def job(nodes: int, weights: str, rounds: int) -> RunConfig:
    """FedAvg, one step per site and round."""
    return face.configure(
        method="fedavg", dataset="synthetic", partition="iid", clients=nodes, rounds=rounds + 1, epochs=1,
        batch=SAMPLES, model="mlp", engine="inline",
        settings=[
            f"data.options.samples={SAMPLES * nodes}", f"model.args.hidden={HIDDEN[weights]}",
            f"evaluate.every={rounds + 1}",
        ],
    )  # fmt: skip


def measure(nodes: int, weights: str, rounds: int, turns: int) -> Cell:
    config = job(nodes, weights, rounds)
    cell = Cell(nodes, weights, *local_work(config))
    for turn in range(turns):
        for side in ("plain", "fedskew") if turn % 2 == 0 else ("fedskew", "plain"):
            tell(f"{nodes} nodes, {weights} weights, turn {turn + 1} of {turns}: {side} ...")
            if side == "plain":
                cell.plain += plain(nodes, config)
            else:
                cell.fedskew += [taken - cell.local for taken in fedskew(nodes, config)]
    tell(row(asdict(cell)))
    return cell


def tell(text: str) -> None:
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
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes are ended then, too
    found = {
        "machine": evidence.hardware(),
        "versions": evidence.versions() | {"flwr": metadata.version("flwr")},
    }
    cells: list[dict[str, Any]] = []
    if asked.out.exists():
        cells = json.loads(asked.out.read_text())["cells"]
    there = {(cell["nodes"], cell["weights"]) for cell in cells}
    wanted = [(nodes, weights) for weights in asked.weights for nodes in asked.nodes if nodes in NODES[weights]]
    for nodes, weights in wanted:
        if (nodes, weights) not in there:
            moment = {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load": os.getloadavg()}
            cells.append(moment | asdict(measure(nodes, weights, asked.rounds, asked.turns)))
            asked.out.write_text(json.dumps(found | {"cells": cells}, indent=1) + "\n")
    print("\n| nodes | weights | plain Flower adds | fedskew adds | local work taken off |\n|---|---|---|---|---|")
    print("\n".join(map(row, cells)))


if __name__ == "__main__":
    main()
