"""What clients are called: by the names of their sites where these are the clients, else by number; how it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedskew.errors import UserError, nearest

#: control characters, ends of lines and paragraphs, bidirectional controls, and bytes of file names that are no text
_UNSEEN_BUT_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN = re.compile(rf"{_UNSEEN_BUT_LINES.pattern}|[\t\n]")


def of_clients(partition: str, clients: int, sites: Sequence[str]) -> list[str]:
    """The names of all clients; `sites` are those the data names, which another partition deals out anew."""
    return list(sites) if partition == "natural" and len(sites) == clients else list(map(str, range(clients)))


def client_called(text: str, names: Sequence[str]) -> int:
    """A client by its name, or by its number unless names are numbers themselves."""
    if text in names:
        return names.index(text)
    if names == list(map(str, range(len(names)))):
        raise UserError(f"client {text} does not exist; clients are 0..{len(names) - 1}")
    if text.isdecimal() and int(text) < len(names) and not any(name.isdecimal() for name in names):
        return int(text)
    raise UserError(f"client '{text}' does not exist{nearest(text, names)}")


def printable(text: str, *, lines: bool = False) -> str:
    """A text with visible escapes for what would steer a terminal or turn a line round; `lines` may be kept."""
    return (_UNSEEN_BUT_LINES if lines else _UNSEEN).sub(lambda found: ascii(found[0])[1:-1], text)
