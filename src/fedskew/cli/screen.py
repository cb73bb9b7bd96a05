"""Lines and tables on the screen."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fedskew.names import printable

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str = "", *, err: bool = False, lines: bool = False) -> None:
    """Print one line, or with `lines` several. Names in it cannot steer the terminal; nothing else may print text."""
    click.echo(printable(text, lines=lines), err=err)


def console() -> Console:
    """Standard output, as wide as the terminal or COLUMNS says; wide enough for any table when neither does."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else 180, highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value))


def rounds_from_one(end: Mapping[str, Any]) -> dict[str, int]:
    """The record has indices of rounds; whoever reads what a command says counts from 1."""
    return {key: end[key] + 1 for key in ("best_round", "reached") if end.get(key) is not None}


def print_table(
    heading: Sequence[str], cells: Iterable[Sequence[str]], *, left: int = 1, lines: bool = False, whole: bool = False
) -> None:
    """A table whose first `left` columns are text and the others numbers; names in the first are `whole` if so said."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_lines=lines, pad_edge=False)
    for number, name in enumerate(map(printable, heading)):
        unbroken = whole and number == 0
        table.add_column(name, justify="left" if number < left else "right", overflow="fold", no_wrap=unbroken)
    for row in cells:
        table.add_row(*map(printable, row))
    console().print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """Names and values below each other."""
    widest = max(map(len, facts))
    for name, value in facts.items():
        echo(f"{name:<{widest}}  {value}")
