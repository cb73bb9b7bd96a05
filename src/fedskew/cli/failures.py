"""One sentence for every mistake, and the exit code that goes with it."""

from __future__ import annotations

import errno
import sys
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from fedskew.cli import streams
from fedskew.errors import UserError
from fedskew.names import printable

#: What the machine refuses, and what to do then. Other errors of the system are ours, and keep their traceback.
_REFUSED = {
    errno.ENOSPC: "make room, and try again",
    errno.EDQUOT: "make room, and try again",
    errno.EFBIG: "raise the limit with ulimit -f, and try again",
    errno.EMFILE: "raise the limit with ulimit -n, and try again",
    errno.ENFILE: "close other programs, and try again",
    errno.ENOMEM: "close other programs, or take fewer --workers",
    errno.EIO: "check the disk",
    errno.EACCES: "choose another folder, or change its permissions",
    errno.EPERM: "choose another folder, or change its permissions",
    errno.EROFS: "choose another folder",
}


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

    def main(self, *args: Any, **kwargs: Any) -> Any:
        streams.prepare()
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
            Mistake(f"not enough memory{f' ({error})' if str(error) else ''}; {_REFUSED[errno.ENOMEM]}").show()
            sys.exit(Mistake.exit_code)

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


def _refusal(error: OSError) -> str:
    if error.filename == streams.STDOUT:
        return f"cannot write to {streams.STDOUT}: {error.strerror}; {_REFUSED[error.errno or 0]}"
    what = "the system refuses" if error.filename is None else f"cannot use '{error.filename}'"
    return f"{what}: {error.strerror}; {_REFUSED[error.errno or 0]}"
