"""fedskew: federated learning when clients' labels are skewed or wrong."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Names are looked up when first used, so that reading records and printing help need no torch.
_FACE = dict.fromkeys(("run", "compare", "resume", "verify", "load", "configure"), "fedskew.face")
_MODULES = ("functional", "parts", "methods", "record", "data", "models", "worklist", "sweep", "track")

__all__ = ["UserError", "__version__", *_FACE, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(importlib.import_module(_FACE[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"fedskew.{name}")
    if name == "UserError":
        return importlib.import_module("fedskew.errors").UserError
    raise AttributeError(f"module 'fedskew' has no attribute '{name}'")
