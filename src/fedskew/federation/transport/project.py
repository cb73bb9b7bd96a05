"""The Flower project that fedskew submits: our two apps by name. It is always the same, so a site can know its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from flwr.cli.build import build_fab_from_files

from fedskew import __version__
from fedskew.flower.settings import Rules

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
serverapp = "fedskew.flower.server:app"
clientapp = "fedskew.flower.client:app"

[tool.flwr.app.config]
"""


def text() -> str:
    """Every key of the run configuration with its default, for Flower refuses a run's own value for any other key."""
    defaults = {"config": "", "out": ""} | vars(Rules()) | {"sites": "", "names": ""}
    return _HEAD + _toml({key.replace("_", "-"): value for key, value in defaults.items()})


def write(folder: Path, run_config: Mapping[str, Any]) -> Path:
    """Lay down the project, and beside it the run's configuration for `flwr run --run-config`; the path of that."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(text(), encoding="utf-8")
    beside = folder.with_name(f"{folder.name}.toml")  # Flower packs every .toml that is inside
    beside.write_text(_toml(run_config), encoding="utf-8")
    return beside


def version() -> str:
    """What must be the same at both ends, in words."""
    return f"fedskew {__version__} with Flower {metadata.version('flwr')}"


def digest() -> str:
    """The SHA-256 of the bundle that `flwr run` makes of the project."""
    bundle, _ = build_fab_from_files({FILE: text().encode()})
    return hashlib.sha256(bundle).hexdigest()


def _toml(values: Mapping[str, Any]) -> str:
    """JSON's numbers, strings and booleans are TOML's."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
