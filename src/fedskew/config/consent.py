"""Run code that a file names only with consent: a configuration must not be a program."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError

#: True allows everything that a file names; a list allows its modules, networks ``module:function`` and addresses
Consent = bool | Collection[str]

_WHAT_HAPPENS = {
    "model.name": "which runs Python code of the module '{0}'",
    "engine.address": "which joins a Ray cluster that can run code here",
}


def code_in(config: RunConfig) -> dict[str, str]:
    """Return the settings that run code from outside of fedskew, by key."""
    found = {"model.name": config.model.name} if ":" in config.model.name else {}
    return found | ({"engine.address": config.engine.address} if config.engine.address is not None else {})


def check(config: RunConfig, file: str | Path, allowed: Consent, typed: Collection[str] = ()) -> None:
    """Refuse code that `file` names, unless it is allowed, or its key was `typed` beside the file."""
    for key, value in code_in(config).items():
        module = value.partition(":")[0]
        agreed = allowed if isinstance(allowed, bool) else not {value, module}.isdisjoint(allowed)
        if not agreed and key not in typed:
            raise UserError(
                f"'{file}' sets {key} to '{value}', {_WHAT_HAPPENS[key].format(module)}. Read the file; if you trust "
                "it, add --allow-code (in Python: allow_code=True)."
            )
