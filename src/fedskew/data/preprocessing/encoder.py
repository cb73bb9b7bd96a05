"""An encoder of tables or texts, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedskew.data.preprocessing.table import TableEncoder
from fedskew.data.preprocessing.text import TextEncoder

Encoder = TableEncoder | TextEncoder


def from_dict(values: Mapping[str, Any]) -> Encoder:
    """Return the encoder that `as_dict` described."""
    return TextEncoder.from_dict(values) if "words" in values else TableEncoder.from_dict(values)
