"""The Flower project in docs/how-to/flower.md runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedskew.federation.rules import parse_rules
from tests.federation.transport.loopback import Loopback, node

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "flower.md").read_text()
CONFIG = """
method = "fedavg+prox"
rounds = 2
[partition]
clients = 3
name = "iid"
[model]
name = "mlp"
[local]
lr = 0.1
"""


def read(site: int | str) -> tuple[np.ndarray, ...]:
    """Two classes that one feature tells apart."""
    rng = np.random.default_rng(sum(map(ord, str(site))))
    y = np.arange(60) % 2
    x = (rng.normal(size=(60, 4)) + 4 * y[:, None]).astype(np.float32)
    return x[:40], y[:40], x[40:], y[40:]


@pytest.fixture()
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    module = ModuleType("my_project")
    module.__dict__.update(read=read, OUT=str(tmp_path / "out"))
    monkeypatch.setitem(sys.modules, "my_project", module)
    apps: list[dict[str, Any]] = []
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        apps.append({})
        exec(block, apps[-1])
    return apps


def test_a_project_of_ones_own(project: list[dict[str, Any]], tmp_path: Path, capsys: Any) -> None:
    client, server = project
    run_config = {"config": CONFIG, "my-own-key": 1}
    nodes = {n: node(client["app"], run_config, site=n, memory=str(tmp_path / f"m{n}")) for n in range(3)}
    server["app"](Loopback(nodes), Context(1, 0, {}, RecordDict(), run_config))
    assert float(capsys.readouterr().out.split()[-1]) > 0.9


def test_the_apps_that_projects_name_are_there() -> None:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from fedskew.federation.coordinator import server_app as server
    from fedskew.federation.site import client_app as client
    from fedskew.federation.transport import project

    assert isinstance(client.app, ClientApp) and isinstance(server.app, ServerApp)
    for line in (
        'serverapp = "fedskew.federation.coordinator.server_app:app"',
        'clientapp = "fedskew.federation.site.client_app:app"',
    ):
        assert line in PAGE and line in project.text()


def test_every_key_is_on_the_page() -> None:
    keys = re.findall(r"^\| `([a-z-]+)`(?:, `([a-z-]+)`)?", PAGE.split("| node config")[0], re.MULTILINE)
    named = {key for pair in keys for key in pair if key} - {"config", "out"}
    assert {key.replace("-", "_") for key in named} == set(vars(parse_rules({})))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_script_of_the_page_trains_three_sites(tmp_path: Path) -> None:
    """With real processes, from `init` to a report; a busy machine must not fail it."""
    script = Path(__file__).parents[2] / "scripts" / "federation_end_to_end.py"
    words = [sys.executable, str(script), str(tmp_path / "here"), "--method", "fedavg", "--rounds", "2"]
    said = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    report = Path(said.splitlines()[-1].removeprefix("The report: "))
    assert report.name == "report.html" and "fedavg" in report.read_text()
