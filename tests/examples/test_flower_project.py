"""The Flower project trains: in this process, and with Flower's own processes by `flwr run`."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is an extra: pip install fedskew[flower]")

from flwr.app import Context, Message, RecordDict

from tests.federation.transport.loopback import Loopback, node
from tests.federation.transport.processes import Processes, free_port, wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
PROJECT = EXAMPLES / "flower-project"
CONFIG: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


class InOneProcess(Loopback):
    """Answer a strategy, which waits for all replies."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def accuracies(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"round \d+: accuracy ([\d.]+)", text)]


@pytest.fixture()
def apps(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PROJECT)
    from skewed_digits import client_app, server_app

    yield client_app.app, server_app.app
    for name in [name for name in sys.modules if name.startswith("skewed_digits")]:
        del sys.modules[name]


@pytest.mark.parametrize("loss", ["plain", "calibrated"])
def test_the_apps_train_in_one_process(apps: Any, capsys: pytest.CaptureFixture[str], loss: str) -> None:
    """Five clients, ten rounds; guessing is right in a tenth of the cases."""
    client, server = apps
    torch.manual_seed(0)
    config = CONFIG["config"] | {"loss": loss}
    numbers = {"partition-id": 0, "num-partitions": config["clients"]}
    nodes = {n: node(client, config, **numbers | {"partition-id": n}) for n in range(config["clients"])}
    server(InOneProcess(nodes), Context(1, 0, {}, RecordDict(), config))
    found = accuracies(capsys.readouterr().out)
    assert len(found) == 1 + config["rounds"] and found[0] < 0.3 and found[-1] > 0.5


def test_the_project_names_its_apps_and_every_key_it_reads() -> None:
    for kind, place in CONFIG["components"].items():
        path, _, name = place.partition(":")
        assert kind in ("serverapp", "clientapp") and name == "app"
        assert (PROJECT / f"{path.replace('.', '/')}.py").exists()
    texts = "".join(path.read_text() for path in (PROJECT / "skewed_digits").glob("*.py"))
    assert set(re.findall(r'config\["([\w-]+)"\]', texts)) - {"partition-id"} == set(CONFIG["config"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_flower_s_own_processes_run_it(tmp_path: Path) -> None:
    """A SuperLink, two SuperNodes and `flwr run`, as the page types it; only ports and rounds are others."""
    page = (EXAMPLES / "README.md").read_text()
    made = Processes(tmp_path, "insecure = true")
    ports = {"8000": str(made.address.port), "8001": str(free_port()), "8002": str(free_port())}
    (lines,) = re.findall(r"```sh\n(flower-superlink .*?)```", page, re.S)
    typed = [shlex.split(re.sub(r"\b800\d\b", lambda port: ports[port[0]], line)) for line in lines.splitlines()]
    try:
        made.start("link", *typed[0])
        wait_for(lambda: b"Uvicorn running" in made.log("link").read_bytes())
        for number, (program, *words) in enumerate(typed[1:-1]):
            made.start(f"node{number}", program, *words)
        program, *words = typed[-1]
        assert program == "flwr"
        said = made.flwr(*words[:-1], f"{words[-1]} rounds=2", cwd=EXAMPLES.parent)
    finally:
        made.close()
    found = accuracies(said)
    assert len(found) == 3 and found[-1] > 0.3
