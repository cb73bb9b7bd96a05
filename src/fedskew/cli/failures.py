"""One sentence for every mistake, and the exit code that goes with it."""

from __future__ import annotations

from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from fedskew.errors import UserError
from fedskew.names import printable


class Sentence(click.ClickException):
    """What a command ends in."""

    def format_message(self) -> str:
        return printable(self.message)


class Mistake(Sentence):
    """Something the user can mend."""

    exit_code = 2


class Different(Sentence):
    """What was computed again is not what was stored."""

    exit_code = 1


class Interrupted(Sentence):
    """Ctrl-C; the message says how to go on."""

    exit_code = 130

    def show(self, file: Any = None) -> None:
        click.echo(f"\n{self.format_message()}", err=True)


class Group(click.Group):
    """A group whose commands end in one sentence where others would end in a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)  # in the order they were added: what one does first comes first

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise Mistake(str(error)) from None
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise Mistake(error.format_message()) from None
        except KeyboardInterrupt:
            raise Interrupted("Interrupted.") from None
