"""End every command with one sentence and an exit code, never with a traceback."""

from __future__ import annotations

import errno
import sys
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from fedskew.cli.screen import STDOUT, prepare_log, prepare_streams
from fedskew.core.client_names import printable
from fedskew.core.errors import UserError, did_you_mean

#: what the system refuses, and what to do about it; other system errors are bugs and keep their traceback
_REFUSED = {
    errno.ENOSPC: "Make room, and try again",
    errno.EDQUOT: "Make room, and try again",
    errno.EFBIG: "Raise the limit with ulimit -f, and try again",
    errno.EMFILE: "Raise the limit with ulimit -n, and try again",
    errno.ENFILE: "Close other programs, and try again",
    errno.ENOMEM: "Close other programs, or take fewer --workers",
    errno.EIO: "Check the disk",
    errno.EACCES: "Choose another folder, or change its permissions",
    errno.EPERM: "Choose another folder, or change its permissions",
    errno.EROFS: "Choose another folder",
}


class Sentence(click.ClickException):
    """The sentence a command ends with."""

    def format_message(self) -> str:
        return printable(self.message)


class Mistake(Sentence):
    """The user can correct this."""

    exit_code = 2


class Different(Sentence):
    """A computation does not repeat what was stored."""

    exit_code = 1


class Interrupted(Sentence):
    """Ctrl-C; the message says how to continue."""

    exit_code = 130

    def show(self, file: Any = None) -> None:
        click.echo(f"\n{self.format_message()}", err=True)


class Group(click.Group):
    """A group whose commands end with a sentence in place of a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        prepare_streams()
        prepare_log()
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # as click ends when it meets one
            sys.exit(1)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            Mistake(_refusal(error)).show()
            sys.exit(Mistake.exit_code)
        except MemoryError as error:
            Mistake(f"not enough memory{f' ({error})' if str(error) else ''}. {_REFUSED[errno.ENOMEM]}").show()
            sys.exit(Mistake.exit_code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)  # in the order they were added: what one does first comes first

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None:
            ctx.fail(f"there is no command '{cmd_name}'{did_you_mean(cmd_name, self.list_commands(ctx))}")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise Mistake(str(error)) from None
        except NoArgsIsHelpError:
            raise
        except click.NoSuchOption as error:
            raise Mistake(_no_option(error)) from None
        except click.UsageError as error:
            raise Mistake(error.format_message()) from None
        except KeyboardInterrupt:
            raise Interrupted("Interrupted") from None


def _no_option(error: click.NoSuchOption) -> str:
    alike = " or ".join(f"'{each}'" for each in error.possibilities or ())
    fix = f"Did you mean {alike}?" if alike else "Type --help after the command to see all."
    return f"there is no option '{error.option_name}'. {fix}"


def _refusal(error: OSError) -> str:
    if error.filename == STDOUT:
        return f"cannot write to {STDOUT}: {error.strerror}. {_REFUSED[error.errno or 0]}"
    what = "the system refuses" if error.filename is None else f"cannot use '{error.filename}'"
    return f"{what}: {error.strerror}. {_REFUSED[error.errno or 0]}"
