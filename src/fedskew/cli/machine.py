"""What a federation's commands need of a machine."""

from __future__ import annotations

import importlib.util
import sys

from fedskew.errors import UserError


def check_machine() -> None:
    """Refuse a machine that cannot take part, before anything else is imported."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"a federation needs Linux at every end, and this is '{sys.platform}'")
    if importlib.util.find_spec("flwr") is None:
        raise UserError(
            "a federation needs Flower, which is not installed; install fedskew with its extra 'flower', from the "
            "source that you had it from"
        )
