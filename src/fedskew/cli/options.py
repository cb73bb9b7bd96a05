"""The options that commands share. Those that set keys of the configuration are made from its schema."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fedskew.config.keys import Key

Command = Callable[..., Any]


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def setting(flag: str, help: str, default: str, type: type = str) -> Callable[[Command], Command]:
    """Add an option that sets nothing if it is left out; help shows the `default` that holds then."""
    return click.option(flag, type=type, default=None, help=f"{help}  [{default}]")


def _agreed(context: click.Context, option: click.Parameter, allowed: bool) -> bool | tuple[str, ...]:
    """Return True for all code that a file names, or the modules that --import names."""
    del option
    return allowed or context.find_root().params["modules"]


_ALLOW_CODE: dict[str, Any] = {
    "is_flag": True,
    "callback": _agreed,
    "help": "Run the code that a file names: a network module:function, or the address of a Ray cluster.",
}
allow_code = click.option("--allow-code", **_ALLOW_CODE)


class _Flags(click.Command):
    """A command with flags for keys of the configuration, made when they are needed: the schema is slow to import."""

    #: the keywords that have a flag; None is all but the method
    keywords: tuple[str, ...] | None = ()
    #: what help shows as the default of all of them
    unset: str | None = None

    @cached_property
    def _made(self) -> list[click.Parameter]:
        from fedskew.config.keys import KEYWORDS

        chosen = self.keywords if self.keywords is not None else [each for each in KEYWORDS if each != "method"]
        return [self._flag(KEYWORDS[each]) for each in chosen]

    def _flag(self, key: Key) -> click.Parameter:
        if key.type is bool:
            return click.Option([key.flag, str(key.keyword)], is_flag=True, default=None, help=key.help)
        shown = self.unset or key.shown_default
        return click.Option([key.flag, str(key.keyword)], type=key.type, help=f"{key.help}  [{shown}]")

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*self._made, *super().get_params(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from fedskew.config.keys import meant

            own = {each.name for each in self._made}
            for key in meant(error.option_name.lstrip("-").replace("-", "_"), resembling=False)[:1]:
                typed = key.flag if key.keyword in own else f"--set {key.name}=VALUE"
                if key.keyword in own or "settings" in own:
                    raise click.UsageError(f"there is no option '{error.option_name}'. Type {typed}.") from None
            raise


class _Settings(_Flags):
    """A command that sets any key: with --set, and with bare words KEY=VALUE."""

    @cached_property
    def _made(self) -> list[click.Parameter]:
        help = "Set any key of docs/reference/configuration.md; a bare KEY=VALUE does the same."
        setting = click.Option(["--set", "settings"], multiple=True, metavar="KEY=VALUE", help=help)
        takes_methods = any(each.name == "methods" for each in self.params)
        words = [] if takes_methods else [click.Argument(["words"], nargs=-1, metavar="[KEY=VALUE]...")]
        return [*super()._made, setting, *words]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        # arguments are read in this order, and bare words come last
        return sorted(super().get_params(ctx), key=lambda each: each.name == "words")

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return pieces if "[KEY=VALUE]..." in pieces else [*pieces, "[KEY=VALUE]..."]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        given = [*(ctx.params.get("methods") or ()), *(ctx.params.pop("words", None) or ())]
        if any(each.name == "method" for each in self.params) and _is_setting(ctx.params["method"] or ""):
            given, ctx.params["method"] = [ctx.params["method"], *given], None
        others = tuple(each for each in given if not _is_setting(each))
        ctx.params["settings"] = (*ctx.params["settings"], *filter(_is_setting, given))
        if "methods" in ctx.params:
            ctx.params["methods"] = others
            if not others:
                raise click.UsageError(f"Missing argument 'METHOD...'. Type, for example, {ctx.command_path} fedavg.")
        elif others:
            raise click.UsageError(
                f"'{others[0]}' is not a setting. Type key=value, for example local.lr=0.1, or --method {others[0]}."
            )
        return rest


def _is_setting(word: str) -> bool:
    return re.match(r"[A-Za-z_][\w.-]*\s*=", word) is not None


class TaskCommand(_Settings):
    """A command that takes a configuration: flags for the data, --config, and any key."""

    keywords: tuple[str, ...] | None = ("dataset", "data_dir", "partition", "clients", "seed", "skip_bad")

    @cached_property
    def _made(self) -> list[click.Parameter]:
        return [
            click.Option(["--data"], help="Your own data: a CSV file, a folder, or arrays (docs/how-to/own-data.md)."),
            *super()._made,
            click.Option(["--config"], type=click.Path(path_type=Path), help="TOML file to start from; options win."),
        ]


class TrainingCommand(TaskCommand):
    """A command that takes a configuration: flags for all keywords but the method."""

    keywords = None

    @cached_property
    def _made(self) -> list[click.Parameter]:
        return [*super()._made, click.Option(["--allow-code"], **_ALLOW_CODE)]


class RunCommand(TrainingCommand):
    """A command that takes a configuration, with the method."""

    @cached_property
    def _made(self) -> list[click.Parameter]:
        from fedskew.config.keys import KEYWORDS

        return [self._flag(KEYWORDS["method"]), *super()._made]


def flags(*keywords: str, unset: str | None = None, settings: bool = False) -> type[click.Command]:
    """Return a kind of command that has the flags of these keywords, and with `settings` sets any key.

    Help shows `unset` as their default, or else that of the configuration.
    """
    return type("Flags", (_Settings if settings else _Flags,), {"keywords": keywords, "unset": unset})


output = _together(
    click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.  [a new one in runs/]"),
    click.option("--force", is_flag=True, help="Replace the run in that folder."),
)

track = setting("--track", "Log to tensorboard, mlflow or wandb, too.", "none")

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
