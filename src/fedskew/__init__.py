"""fedskew: federated learning when clients' labels are skewed or wrong.

Train a method on data whose labels are skewed, and read what came out:

    import fedskew

    result = fedskew.run("fedvls", dataset="digits", partition="dirichlet:0.1", rounds=5)
    print(result.summary())

`compare` trains several methods, `sweep` tunes them, `detect` finds clients with wrong labels.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedskew import data, functional, label_review, methods, models, parts, record, tuning
    from fedskew.api import compare, configure, detect, load, predict, resume, retrain, review, run, sweep, verify
    from fedskew.config.schema import RunConfig
    from fedskew.core.errors import UserError
    from fedskew.experiment.callbacks import Callback, StopRun
    from fedskew.experiment.comparison import Comparison
    from fedskew.experiment.recorder import Result

__version__ = "0.2.0"

#: where each name is looked up when it is first used: reading records and printing help need no torch
_HOMES = {
    **dict.fromkeys(
        ("compare", "configure", "detect", "load", "predict", "resume", "retrain", "review", "run", "sweep", "verify"),
        "api",
    ),
    **dict.fromkeys(("Callback", "StopRun"), "experiment.callbacks"),
    "Comparison": "experiment.comparison",
    "Result": "experiment.recorder",
    "RunConfig": "config.schema",
    "UserError": "core.errors",
    **dict.fromkeys(("data", "functional", "label_review", "methods", "models", "parts", "record", "tuning"), ""),
}

__all__ = [
    "Callback", "Comparison", "Result", "RunConfig", "StopRun", "UserError", "__version__", "compare", "configure",
    "data", "detect", "functional", "label_review", "load", "methods", "models", "parts", "predict", "record", "resume",
    "retrain", "review", "run", "sweep", "tuning", "verify",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker that sees this function takes every name for one of the package

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'fedskew' has no attribute '{name}'")
        home = _HOMES[name]
        return (
            getattr(importlib.import_module(f"fedskew.{home}"), name)
            if home
            else importlib.import_module(f"fedskew.{name}")
        )


def __dir__() -> list[str]:
    return sorted(__all__)
