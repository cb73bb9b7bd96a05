"""Make the Flower project that fedskew submits: our two apps by name. It never changes, so sites know its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from flwr.cli.build import build_fab_from_files

from fedskew import __version__
from fedskew.core import atomic_io
from fedskew.federation.rules import Rules

FILE = "pyproject.toml"

_HEAD = f"""\
[project]
name = "federation"
version = "{__version__}"
description = "A federation of fedskew"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedskew"

[tool.flwr.app.components]
serverapp = "fedskew.federation.coordinator.server_app:app"
clientapp = "fedskew.federation.site.client_app:app"

[tool.flwr.app.config]
"""


def text() -> str:
    """Return the project file, with a default for every key: Flower refuses a run's value for any other key."""
    defaults = {"config": "", "out": ""} | vars(Rules()) | {"sites": "", "names": ""}
    return _HEAD + _toml({key.replace("_", "-"): value for key, value in defaults.items()})


def write(folder: Path, run_config: Mapping[str, Any]) -> Path:
    """Write the project, and beside it the run configuration for `flwr run --run-config`; return the latter's path."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_io.write(folder / FILE, text())
    beside = folder.with_name(f"{folder.name}.toml")  # Flower packs every .toml inside the folder
    atomic_io.write(beside, _toml(run_config))
    return beside


def version() -> str:
    """Return the versions that must be equal at all ends."""
    return f"fedskew {__version__} with Flower {metadata.version('flwr')}"


def digest() -> str:
    """Return the SHA-256 of the bundle that `flwr run` makes of the project."""
    bundle, _ = build_fab_from_files({FILE: text().encode()})
    return hashlib.sha256(bundle).hexdigest()


def _toml(values: Mapping[str, Any]) -> str:
    """Write TOML: its numbers, strings and booleans are JSON's."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
