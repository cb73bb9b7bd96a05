"""Federations of real processes on loopback, all of them ended at the end."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.experiment import run as experiment
from fedskew.federation import folders as folder
from fedskew.federation import processes as kept
from fedskew.federation.coordinator.superlink_client import SuperLinkClient, check_server
from fedskew.federation.folders import Address
from fedskew.federation.security import certificates
from fedskew.federation.transport import project
from fedskew.record import reader, run_lock

BIN = Path(sys.executable).parent
SITES = ("site0", "site1", "site2")


def config_of(method: str, rounds: int = 2, clients: int = 3, model: Mapping[str, Any] = {"name": "tiny"}) -> RunConfig:
    return configuration.from_dict(
        {
            "method": method,
            "rounds": rounds,
            "partition": {"name": "dirichlet", "alpha": 0.5, "clients": clients},
            "model": dict(model),
            "local": {"epochs": 1, "batch_size": 64},
            "engine": {"name": "inline"},
        }
    )


def inline(config: RunConfig) -> str:
    """The hash of the weights that a run ends with in this process."""
    digest = experiment.run(config).end["weights_sha256"]
    assert isinstance(digest, str)
    return digest


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def wait_for(what: Callable[[], Any], seconds: float = 800, look: float = 0.1) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(look)
    raise TimeoutError(f"not within {seconds} s")


def rounds(out: Path) -> int:
    """How many rounds a run's record has."""
    return len(reader.read(out).rounds) if (out / reader.NAME).exists() else 0


class Processes:
    """`folder` holds logs and Flower's files; `trust` is how Flower's commands know the SuperLink."""

    def __init__(self, folder: Path, trust: str) -> None:
        self.folder, self.address, self.canary = folder, Address("127.0.0.1", free_port()), folder / "canary"
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.canary.mkdir(parents=True)
        self.environment = kept.environment(folder) | {
            "OMP_NUM_THREADS": "1",
            "CANARY": str(self.canary),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        home = Path(self.environment["FLWR_HOME"])
        home.mkdir()
        known = f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "{self.address}"\n{trust}\n'
        (home / "config.toml").write_text(known)

    def start(self, name: str, program: str, *words: object) -> None:
        with self.log(name).open("ab") as log:
            self.started[name] = subprocess.Popen(
                [str(BIN / program), *map(str, words)],
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def stop(self, name: str, sign: int = signal.SIGTERM) -> None:
        """A process and whatever it started."""
        process = self.started.pop(name)
        os.killpg(process.pid, sign)
        process.wait(60)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def flwr(self, *words: object, cwd: Path | None = None) -> str:
        command = [str(BIN / "flwr"), *map(str, words)]
        return subprocess.run(
            command, env=self.environment, cwd=cwd, check=True, capture_output=True, timeout=240, text=True
        ).stdout

    def running(self) -> list[str]:
        """Commands of all processes that know of this folder."""
        found = []
        for setup in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"FLWR_HOME={self.folder}/".encode() in (setup / "environ").read_bytes():
                    found.append((setup / "cmdline").read_text())
        return found

    def close(self) -> None:
        for name in list(self.started):
            self.stop(name, signal.SIGKILL)
        wait_for(lambda: not self.running(), seconds=60)


class PlainFlower(Processes):
    """Flower's own processes, with neither encryption nor keys."""

    def __init__(self, folder: Path, sites: int) -> None:
        super().__init__(folder, "insecure = true")
        where = ("--host", self.address.host, "--port", self.address.port, "--database", folder / "state.db")
        self.start("link", "flower-superlink", "--insecure", *where)
        wait_for(lambda: b"Uvicorn running" in self.log("link").read_bytes())
        for site in range(sites):
            here = ("--superlink", self.address, "--host", "127.0.0.1", "--port", free_port())
            words = f"site={site} memory='{folder / f'memory{site}'}'"
            self.start(f"node{site}", "flower-supernode", "--insecure", *here, "--node-config", words)


class Federation(Processes):
    """What `fedskew federation start` starts: TLS, a key for each site, and executors that take nobody's code."""

    def __init__(self, at: Path) -> None:
        self.ca = at / certificates.CA
        super().__init__(at, f'root-certificates = "{self.ca}"')
        self.allow, self.secret, self.submitted = at / folder.ALLOWED, at / "secret", at / "submitted"
        certificates.make_authority(at, "test")
        certificates.make_server(at, [self.address.host])
        folder.write_allow_list(at, project.digest())
        self.secret.write_bytes(secrets.token_bytes(32))
        self.submitted.mkdir()
        self.numbers: dict[Path, int] = {}
        self.start_link()
        self.start_coordinator()
        for number, name in enumerate(SITES):
            self.admit(name)
            self.start_site(name, number)
        wait_for(lambda: self.connected() >= set(SITES), look=0.5)

    def start_link(self, *program: object) -> None:
        made = (self.folder / name for name in (certificates.SERVER, certificates.SERVER_KEY))
        tls = ("--ssl-ca-certfile", self.ca, *sum(zip(("--ssl-certfile", "--ssl-keyfile"), made, strict=True), ()))
        outside = ("--isolation", "process", "--superexec-auth-secret-file", self.secret, "--enable-supernode-auth")
        where = ("--host", self.address.host, "--port", self.address.port, "--database", self.folder / "state.db")
        self.start(
            "link", "python", *(program or ("-m", "fedskew.federation.transport.superlink")), *tls, *outside, *where
        )
        wait_for(self._answers)

    def _answers(self) -> bool:
        try:
            check_server(self.address, self.ca)
        except UserError:
            return False
        return True

    def start_coordinator(self) -> None:
        own = ("--secret", self.secret, "--runs", self.submitted)
        self.start(
            "coordinator", "python", "-m", "fedskew.federation.transport.executor", "coordinator", *self._known(), *own
        )

    def _known(self) -> tuple[object, ...]:
        return ("--address", self.address, "--ca", self.ca, "--allow", self.allow)

    def admit(self, name: str) -> None:
        """Give a site its key, and register it."""
        (self.folder / name).mkdir()
        certificates.make_site_key(self.folder / name, name)
        with self.link() as link:
            link.register(self._key(name), name)

    def start_site(
        self, name: str, number: int, program: Sequence[object] = ("-m", "fedskew.federation.transport.executor")
    ) -> None:
        words = f"site={number} memory='{self.memory(name)}'"
        own = ("--key", self.folder / name / certificates.KEY, "--node-config", words)
        self.start(name, "python", *program, "site", *self._known(), *own)

    def memory(self, name: str) -> Path:
        return self.folder / name / "memory"

    def link(self) -> AbstractContextManager[SuperLinkClient]:
        return SuperLinkClient.connect(self.address, self.ca)

    def connected(self) -> set[str]:
        """The sites that Flower believes to be there."""
        with self.link() as link:
            here = {node.key for node in link.nodes() if node.connected}
        admitted = (path.parent.name for path in self.folder.glob(f"*/{certificates.PUBLIC_KEY}"))
        return {name for name in admitted if self._key(name) in here}

    def _key(self, name: str) -> bytes:
        return certificates.pem(certificates.public_key(str(self.folder / name / certificates.PUBLIC_KEY)))

    def submit(self, name: str, config: RunConfig, sites: Sequence[str] = SITES, **rules: Any) -> Path:
        """Start a run with these sites, from its beginning or from where it was left; its folder."""
        out = self.folder / "runs" / name
        with self.link() as link:
            nodes = {node.key: node.id for node in link.nodes()}
            numbered = ",".join(f"{nodes[self._key(site)]}:{number}" for number, site in enumerate(sites))
            words = {"config": configuration.dumps(config), "out": str(out), "sites": numbered} | rules
            project.write(self.submitted / name, words)
            self.numbers[out] = link.submit(words)
        return out

    def finish(self, out: Path) -> reader.RunRecord:
        """The record, once the run has ended. Flower, who has enough to do, is asked only while nobody writes it."""
        path = out / reader.NAME
        with self.link() as link:

            def ended() -> reader.RunRecord | None:
                how = None if run_lock.is_locked(out) else link.outcome(self.numbers[out])
                run = reader.read(out) if path.exists() else reader.RunRecord()
                assert how is None or run.end is not None, how
                return run if run.end is not None else None

            found = wait_for(ended, look=0.5)
        assert isinstance(found, reader.RunRecord)
        return found

    def submit_canary(self) -> int:
        """A stranger's app, submitted by nothing but `flwr run`; Flower's number of the run."""
        app = self.folder / "app-canary"
        given = project.write(app, {})
        text = (app / project.FILE).read_text()
        text = text.replace("fedskew.federation.coordinator.server_app:app", "canary:server").replace(
            "fedskew.federation.site.client_app", "canary"
        )
        (app / project.FILE).write_text(text)
        (app / "canary.py").write_text(Path(__file__).with_name("canary.py").read_text())
        return int(json.loads(self.flwr("run", app, "loop", "--run-config", given, "--format", "json"))["run-id"])

    def how_ended(self, run: int) -> str:
        """What Flower says of a run that has ended."""
        with self.link() as link:
            return str(wait_for(lambda: link.outcome(run), 400, look=0.5))

    def sung(self) -> list[str]:
        """What the canary left, wherever it was run."""
        return sorted(each.name.partition("-")[0] for each in self.canary.iterdir())


def server_process(out: Path) -> int:
    """The process that writes a run's record."""
    for setup in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(out / reader.NAME) in {os.readlink(each) for each in (setup / "fd").iterdir()}:
                return int(setup.name)
    raise ProcessLookupError(out)
