"""Agree on one encoder among sites: each writes the statistics of its table into a file, one joins them all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.data.preprocessing import table
from fedskew.data.preprocessing.table import ColumnStatistics


def write(path: Path, statistics: Mapping[str, ColumnStatistics]) -> None:
    """Write what a site shares, as JSON that a person can read."""
    columns = {name: asdict(each) for name, each in statistics.items()}
    atomic_io.save(path, json.dumps({"columns": columns}, ensure_ascii=False, indent=1) + "\n")


def agree(paths: Sequence[Path], scale: bool) -> str:
    """Return the encoder that the statistics of all sites determine, as one line of JSON."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("a file is named twice, and its site would count twice. Name each site's file once.")
    encoder = table.fit(table.merge([_read(path) for path in paths]), scale)
    return json.dumps(encoder.as_dict(), ensure_ascii=False)


def _read(path: Path) -> dict[str, ColumnStatistics]:
    try:
        columns = json.loads(path.read_text(encoding="utf-8"))["columns"]
        return {
            str(name): ColumnStatistics(**each | {"categories": tuple(map(str, each["categories"]))})
            for name, each in columns.items()
        }
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be read: {error.strerror}. Name a file that 'data statistics' wrote."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"'{path}' has no statistics. Name a file that 'fedskew data statistics' wrote.") from None
