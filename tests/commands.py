"""The command line, called in this process."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from fedskew.cli import main


def fedskew(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def succeed(*arguments: str | Path) -> str:
    result = fedskew(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def complaint(*arguments: str | Path) -> str:
    """The one sentence that wrong arguments end in."""
    result = fedskew(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line
