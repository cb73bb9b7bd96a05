"""Hold the command group of federations, and what its commands share."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from fedskew.cli.failures import Group
from fedskew.core.errors import UserError

FILE = click.Path(path_type=Path, dir_okay=False)
in_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


def check_machine() -> None:
    """Refuse a machine that cannot take part, before anything else is imported."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"a federation does not run on '{sys.platform}'. Use Linux at coordinator and every site.")
    if importlib.util.find_spec("flwr") is None:
        raise UserError(
            "a federation needs Flower, which is not installed. Install fedskew with its extra 'flower', from the same "
            "source as before."
        )


class _FlowerCommand(click.Command):
    """A command that needs Linux and Flower."""

    def invoke(self, ctx: click.Context) -> Any:
        check_machine()
        return super().invoke(ctx)


class _FederationGroup(Group):
    command_class = _FlowerCommand


@click.group(cls=_FederationGroup)
def federation() -> None:
    """Train across organizations: each keeps its data."""


def typed(path: Path) -> str:
    """Return a path as a shell takes it."""
    return shlex.quote(str(path))
