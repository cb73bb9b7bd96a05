"""What clients are called: by the names of their sites where these are the clients, else by number."""

from __future__ import annotations

from collections.abc import Sequence

from fedskew.errors import UserError, nearest


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
