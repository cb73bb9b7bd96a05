"""The command line. A command's module is imported when the command is used, so that help comes at once."""

from __future__ import annotations

import importlib
import sys

import click

from fedskew import __version__
from fedskew.cli.failures import Group
from fedskew.core.errors import UserError, format_user_exception

#: each command and the module that holds it, in the order in which --help lists them
_COMMANDS = {
    "run": "training",
    "compare": "training",
    "sweep": "sweep",
    "resume": "training",
    "verify": "training",
    "reproduce": "reproduce",
    "watch": "report",
    "report": "report",
    "methods": "methods",
    "card": "methods",
    "cite": "cite",
    "partition": "partition",
    "noise": "partition",
    "detect": "detection",
    "review": "review",
    "retrain": "retraining",
    "predict": "prediction",
    "track": "report",
    "export": "export",
    "doctor": "doctor",
    "bench": "bench",
    "federation": "federation",
    "data": "data",
}


class _LazyGroup(Group):
    """A group that imports the module of a command only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(f"fedskew.cli.{_COMMANDS[cmd_name]}"), cmd_name)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedskew")
@click.option("--import", "modules", multiple=True, metavar="MODULE", help="Import MODULE, to use its methods.")
def main(modules: tuple[str, ...]) -> None:
    """Train, compare and inspect federated learning when clients' labels are skewed or wrong."""
    sys.path.append("")  # so that --model mymodel:build is found in the current folder, as with python -m
    for name in modules:
        _import(name)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"module '{name}' cannot be imported: {error}. Install it, or correct the name.") from error
    except Exception as error:
        raise UserError(f"module '{name}' cannot be imported: {format_user_exception(error)}. Correct it.") from error
