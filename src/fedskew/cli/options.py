"""The options that commands share. Values are checked by the configuration, which knows what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _setting(flag: str, help: str, default: str, type: type = str, **extra: Any) -> Callable[[Command], Command]:
    """An option without a value of its own: left out, the configuration file or its default holds."""
    return click.option(flag, type=type, default=None, show_default=default, help=help, **extra)


_configuration = _together(
    click.option("--config", type=click.Path(path_type=Path), help="A TOML file; options win over it."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key, e.g. local.momentum=0."),
)

task = _together(
    _setting("--dataset", "What to learn from; see 'fedskew data list'.", "digits"),
    _setting("--data-dir", "Folder of data files; or set FEDSKEW_DATA.", "none"),
    _setting("--partition", "iid, dirichlet:ALPHA, sharding:S, quantity:S, labels:K, ...", "dirichlet:0.5"),
    _setting("--clients", "Number of clients.", "10", int),
    _setting("--seed", "All randomness follows from it.", "0", int),
    _configuration,
)

training = _together(
    task,
    _setting("--rounds", "Number of rounds.", "20", int),
    _setting("--per-round", "Clients asked in each round.", "everyone", int),
    _setting("--epochs", "Local epochs.", "5", int),
    _setting("--batch", "Samples in a batch.", "50", int),
    _setting("--lr", "Local learning rate.", "0.01", float),
    _setting("--model", "A network's name, or your own as module:function.", "auto"),
    _setting("--augment", "What is done to training images.", "none"),
    _setting("--target", "Count the rounds to this accuracy, 0 to 1.", "none", float),
    _setting("--engine", "pool, inline or wire; all give the same bits.", "pool"),
    _setting("--workers", "Processes of the pool.", "one per core", int),
    _setting("--device", "Where networks run.", "cpu"),
    _setting("--precision", "float32 or bf16.", "float32"),
    click.option("--score-clients", is_flag=True, default=None, help="Score the client models after local work, too."),
)

output = _together(
    click.option("--out", type=click.Path(path_type=Path), help="Folder to write to; left out, a new one in runs/."),
    click.option("--force", is_flag=True, help="Replace what is in that folder."),
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
