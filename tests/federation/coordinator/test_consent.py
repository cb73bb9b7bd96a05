"""A federation with a network of its own: the coordinator agrees on the command line, each site in its own file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fedskew import config as configuration
from fedskew.core.errors import UserError
from fedskew.federation import folders
from fedskew.federation.coordinator import training
from fedskew.federation.coordinator.server_app import federate
from fedskew.federation.rules import parse_rules
from fedskew.federation.site.client_app import client_app
from tests.federation import made
from tests.federation.transport.loopback import Loopback, node

MODULE = """
import math

from torch import nn


def build(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
"""


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> folders.CoordinatorFolder:
    """The coordinator's folder, whose file names a network of its own."""
    (tmp_path / "ournet.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("ournet", None)
    file = made.coordinator(tmp_path / "coordinator") / folders.FEDERATION
    file.write_text(file.read_text().replace('name = "auto"', 'name = "ournet:build"'))
    return folders.open_coordinator(file.parent)


def test_the_federations_file_needs_consent(coordinator: folders.CoordinatorFolder) -> None:
    for wrong in ({}, {"allow_code": False}, {"allow_code": ("os",)}, {"settings": ("local.lr=0.1",)}):
        with pytest.raises(UserError, match=r"federation\.toml' sets model\.name to 'ournet:build'.* add --allow-code"):
            training.configure(coordinator, **wrong)
    assert "ournet" not in sys.modules
    for right in ({"allow_code": True}, {"allow_code": ("ournet",)}, {"model": "ournet:build"}):
        assert training.configure(coordinator, **right).model.name == "ournet:build"


def test_it_trains_and_goes_on_where_all_agree(coordinator: folders.CoordinatorFolder, tmp_path: Path) -> None:
    data = [made.table(tmp_path / f"{n}.csv", n) for n in range(3)]

    def trained(out: str, rounds: int) -> dict[str, Any]:
        config = training.configure(coordinator, rounds=rounds, batch_size=8, local_epochs=1, allow_code=True)
        values = {"config": configuration.dumps(config), "own-data": True, "score": "sites"}
        agreed = {"model": "ournet:build"}
        nodes = {
            n: node(client_app(), values, site=n, data=str(path), memory=str(tmp_path / out / f"m{n}"), **agreed)
            for n, path in enumerate(data)
        }
        return federate(Loopback(nodes), config, tmp_path / out, parse_rules(values)).end

    trained("halved", 1)
    assert trained("halved", 2)["weights_sha256"] == trained("whole", 2)["weights_sha256"]
