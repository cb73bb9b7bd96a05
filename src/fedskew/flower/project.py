"""A Flower project for `flwr run`: nothing but our two apps by name, and the run's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HEAD = """\
[project]
name = "federation"
version = "1.0.0"
description = "A federation of fedskew"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedskew"

[tool.flwr.app.components]
serverapp = "fedskew.flower.server:app"
clientapp = "fedskew.flower.client:app"

[tool.flwr.app.config]
"""


def write(folder: Path, run_config: Mapping[str, Any]) -> None:
    """Lay down the project; without dependencies, for what Flower would install is not what was tested."""
    folder.mkdir(parents=True, exist_ok=True)
    # JSON's numbers, strings and booleans are TOML's.
    lines = [f"{key} = {json.dumps(value)}" for key, value in run_config.items()]
    (folder / "pyproject.toml").write_text(_HEAD + "\n".join(lines) + "\n")
