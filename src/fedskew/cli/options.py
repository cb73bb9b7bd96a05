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


def setting(flag: str, help: str, default: str, type: type = str) -> Callable[[Command], Command]:
    """An option without a value of its own: left out, the configuration file or its default holds."""
    return click.option(flag, type=type, default=None, help=f"{help}  [{default}]")


_configuration = _together(
    click.option("--config", type=click.Path(path_type=Path), help="A TOML file; options win over it."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any key, e.g. local.momentum=0."),
)


def _agreed(context: click.Context, option: click.Parameter, allowed: bool) -> bool | tuple[str, ...]:
    """All that a file names, or the modules that --import names."""
    del option
    return allowed or context.find_root().params["modules"]


allow_code = click.option(
    "--allow-code",
    is_flag=True,
    callback=_agreed,
    help="Run the code that a file names: a network module:function, or a Ray cluster's address.",
)

task = _together(
    setting("--data", "Your own: a .csv, a folder, an .npz or .safetensors file.", "none"),
    click.option(
        "--skip-bad", is_flag=True, default=None, help="Leave out images that cannot be read, and count them."
    ),
    setting("--dataset", "What to learn from; see 'fedskew data list'.", "digits"),
    setting("--data-dir", "Folder of data files; or set FEDSKEW_DATA.", "none"),
    setting("--partition", "iid, dirichlet:ALPHA, sharding:S, ...; see docs/configuration.md.", "dirichlet:0.5"),
    setting("--clients", "Number of clients.", "10", int),
    setting("--seed", "All randomness follows from it.", "0", int),
    _configuration,
)

training = _together(
    task,
    setting("--noise", "Wrong labels: KIND:RHO, such as symmetric:0.4, pairflip, h_idn; see docs/noise.md.", "none"),
    setting("--rounds", "Number of rounds.", "20", int),
    setting("--per-round", "Clients asked in each round.", "everyone", int),
    setting("--epochs", "Local epochs.", "5", int),
    setting("--batch", "Samples in a batch.", "50", int),
    setting("--lr", "Local learning rate.", "0.01", float),
    setting("--model", "A network's name, or your own as module:function.", "auto"),
    setting("--head", "The head of your own network, if it is not the last linear layer.", "none"),
    setting("--weights", "Start from these: a .safetensors or .pt file, or a run's folder.", "random"),
    setting("--augment", "Variation of images: standard, medical, or a paper's; see docs/configuration.md.", "none"),
    setting("--target", "Count the rounds to this accuracy, 0 to 1.", "none", float),
    setting("--engine", "pool, inline, wire or ray; all give the same bits.", "pool"),
    setting("--workers", "Processes of the pool, or actors of Ray.", "one per core", int),
    setting("--address", "Of a Ray cluster that is running, host:port; without it one is begun here.", "none"),
    setting("--device", "Where networks run.", "cpu"),
    setting("--precision", "float32, or bf16 (quicker where the processor has instructions for it).", "float32"),
    click.option("--score-clients", is_flag=True, default=None, help="Score the client models after local work, too."),
    allow_code,
)

output = _together(
    click.option("--out", type=click.Path(path_type=Path), help="Folder to write to; left out, a new one in runs/."),
    click.option("--force", is_flag=True, help="Replace what is in that folder."),
)

track = setting("--track", "Show the record's numbers in tensorboard or mlflow, too.", "none")

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
