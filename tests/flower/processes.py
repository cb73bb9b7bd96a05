"""A SuperLink and its SuperNodes as real processes on loopback, all of them ended at the end."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew import record
from fedskew.config import RunConfig
from fedskew.flower import project

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def wait_for(what: Callable[[], Any], seconds: float = 800) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.3)
    raise TimeoutError(f"not within {seconds} s")


class Federation:
    """`folder` holds logs, memories and runs. Apps are run by Flower's own processes, or by our `executors`."""

    def __init__(self, folder: Path, nodes: int = 3, executors: bool = False) -> None:
        self.folder, self.address, self.executors = folder, f"127.0.0.1:{free_port()}", executors
        self.allow, self.secret, self.canary = folder / "allow", folder / "secret", folder / "canary"
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "home"
        home.mkdir(parents=True)
        self.canary.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "{self.address}"\ninsecure = true\n'
        )
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "CANARY": str(self.canary),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.allow.write_text(project.digest())
        self.secret.write_bytes(secrets.token_bytes(32))
        host, port = self.address.split(":")
        where = ["--host", host, "--port", port, "--database", str(folder / "state.db")]
        if executors:
            outside = ["--isolation", "process", "--superexec-auth-secret-file", str(self.secret)]
            self.start("link", ["python", "-m", "fedskew.flower.link", "--insecure", *where, *outside])
        else:
            self.start("link", ["flower-superlink", "--insecure", *where])
        wait_for(lambda: b"Uvicorn running" in (folder / "link.log").read_bytes())
        if executors:
            self.coordinator()
        for site in range(nodes):
            self.node(site)

    def start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def node(self, site: int, **more: str) -> None:
        config = {"site": str(site), "memory": f"'{self.folder / 'memory'}'"} | more
        words = " ".join(f"{key}={value}" for key, value in config.items())
        if self.executors:
            self.executor(f"node{site}", "site", "--node-config", words)
            return
        address = ["--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port())]
        self.start(f"node{site}", ["flower-supernode", "--insecure", *address, "--node-config", words])

    def executor(self, name: str, role: str, *more: str) -> None:
        common = ["--address", self.address, "--allow", str(self.allow)]
        self.start(name, ["python", "-m", "fedskew.flower.executor", role, *common, *more])

    def coordinator(self) -> None:
        self.executor("coordinator", "coordinator", "--secret", str(self.secret), "--runs", str(self.folder))

    def stop(self, name: str, sign: int = signal.SIGKILL) -> None:
        """The process and whatever it started."""
        process = self.started.pop(name)
        os.killpg(process.pid, sign)
        process.wait(30)

    def submit(self, name: str, config: RunConfig, client: Path | None = None, **rules: Any) -> Path:
        """Start a run as `flwr run` does, perhaps with another app for clients; its folder."""
        app, out = self.folder / f"app-{name}", self.folder / f"run-{name}"
        given = project.write(app, {"config": configuration.dumps(config), "out": str(out)} | rules)
        if client is not None:
            text = (app / "pyproject.toml").read_text()
            (app / "pyproject.toml").write_text(text.replace("fedskew.flower.client", client.stem))
            (app / client.name).write_text(client.read_text())
        self.flwr("run", str(app), "loop", "--run-config", str(given))
        return out

    def flwr(self, *words: str) -> str:
        command = [str(BIN / "flwr"), *words]
        return subprocess.run(
            command, env=self.environment, check=True, capture_output=True, timeout=240, text=True
        ).stdout

    def submit_canary(self) -> str:
        """A stranger's app, submitted by nothing but `flwr run`; Flower's number of the run."""
        app = self.folder / "app-canary"
        given = project.write(app, {})
        text = (app / project.FILE).read_text()
        text = text.replace("fedskew.flower.server:app", "canary:server").replace("fedskew.flower.client", "canary")
        (app / project.FILE).write_text(text)
        (app / "canary.py").write_text(Path(__file__).with_name("canary.py").read_text())
        return str(
            json.loads(self.flwr("run", str(app), "loop", "--run-config", str(given), "--format", "json"))["run-id"]
        )

    def status(self, run: str) -> str:
        """What Flower says of a run."""
        return str(json.loads(self.flwr("list", "loop", "--run-id", run, "--format", "json"))["runs"][0])

    def sung(self) -> list[str]:
        """What the canary left, wherever it was run."""
        return sorted(each.name.partition("-")[0] for each in self.canary.iterdir())

    def finish(self, out: Path) -> record.Run:
        """The record, once the run has ended."""

        def ended() -> record.Run | None:
            if not (out / record.NAME).exists():
                return None
            run = record.read(out)
            return run if run.end is not None else None

        found = wait_for(ended)
        assert isinstance(found, record.Run)
        return found

    def rounds(self, out: Path) -> int:
        return len(record.read(out).rounds) if (out / record.NAME).exists() else 0

    def server_process(self, out: Path) -> int:
        """The process that writes a run's record."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                opened = {os.readlink(each) for each in (entry / "fd").iterdir()}
            except OSError:
                continue
            if str(out / record.NAME) in opened:
                return int(entry.name)
        raise ProcessLookupError(out)

    def close(self) -> None:
        for name in list(self.started):
            self.stop(name)
