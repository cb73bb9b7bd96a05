"""The command line. What is heavy is imported inside commands, so that help comes at once."""

from __future__ import annotations

import importlib
import sys

import click

from fedskew import __version__
from fedskew.cli.data import data
from fedskew.cli.detection import detect
from fedskew.cli.failures import Group
from fedskew.cli.federation import federation
from fedskew.cli.noise import noise
from fedskew.cli.reproduce import reproduce
from fedskew.cli.showing import card, methods, partition, report
from fedskew.cli.sweep import sweep
from fedskew.cli.track import track
from fedskew.cli.training import compare, resume, run, verify
from fedskew.cli.watch import watch
from fedskew.cli.worklist import worklist
from fedskew.errors import UserError, theirs


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedskew")
@click.option("--import", "modules", multiple=True, metavar="MODULE", help="Of yours, with methods that it registers.")
def main(modules: tuple[str, ...]) -> None:
    """Federated learning when clients' labels are skewed or wrong: train, compare, look."""
    sys.path.append("")  # --model mymodel:build is found where one is, as by python -m
    for name in modules:
        _import(name)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"module '{name}' cannot be imported: {error}") from error
    except Exception as error:
        raise UserError(f"module '{name}' cannot be imported: {theirs(error)}") from error


for command in (
    run,
    compare,
    sweep,
    resume,
    verify,
    reproduce,
    watch,
    report,
    methods,
    card,
    partition,
    noise,
    detect,
    worklist,
    track,
    federation,
    data,
):
    main.add_command(command)
