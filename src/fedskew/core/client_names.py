"""The names of clients: those of their sites if clients are sites, numbers otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedskew.core.errors import UserError, did_you_mean

#: control characters, ends of lines and paragraphs, bidirectional controls, and undecodable bytes of file names
_INVISIBLE_IN_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_INVISIBLE = re.compile(rf"{_INVISIBLE_IN_TEXT.pattern}|[\t\n]")


def of_clients(partition: str, clients: int, sites: Sequence[str]) -> list[str]:
    """Return the names of all clients. `sites` are the data set's; only the partition natural uses them."""
    return list(sites) if partition == "natural" and len(sites) == clients else list(map(str, range(clients)))


def client_called(text: str, names: Sequence[str]) -> int:
    """Return the number of a client by its name, or by its number unless names are numbers themselves."""
    if text in names:
        return names.index(text)
    if names == list(map(str, range(len(names)))):
        raise UserError(f"client {text} does not exist. Choose one of 0..{len(names) - 1}.")
    if text.isdecimal() and int(text) < len(names) and not any(name.isdecimal() for name in names):
        return int(text)
    raise UserError(f"client '{text}' does not exist{did_you_mean(text, names)}")


def printable(text: str, *, lines: bool = False) -> str:
    """Escape characters that would control a terminal or reverse a line; `lines` leaves line ends and tabs."""
    return (_INVISIBLE_IN_TEXT if lines else _INVISIBLE).sub(lambda found: ascii(found[0])[1:-1], text)
