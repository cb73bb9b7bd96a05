"""Methods' cards as Markdown: generated from the code, so that they cannot drift from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.report.comparison import save_text
from fedskew.report.tables import markdown

if TYPE_CHECKING:
    from fedskew.parts.stages import Card


@dataclass(frozen=True)
class Entry:
    """A method as users see it: its name, its parameters with their defaults, and its card."""

    id: str
    parameters: Mapping[str, Any]
    aliases: Sequence[str]
    card: Card
    #: parts that must see what single clients say
    seen_singly: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        card = self.card
        return {
            "id": self.id,
            "title": card.title,
            "paper": card.paper,
            "year": card.year,
            "parameters": dict(self.parameters),
            "travels": card.travels,
            "cost": card.cost,
            "lost_reply": card.lost_reply,
            "secure_aggregation": not self.seen_singly,
            "aliases": list(self.aliases),
        }

    @property
    def call(self) -> str:
        """How to write it on the command line, with all its defaults."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"{self.id}({given})" if given else self.id


def page(entry: Entry) -> str:
    """A method's own page."""
    card = entry.card
    also = f"Also known as {', '.join(f'`{name}`' for name in entry.aliases)}.\n" if entry.aliases else ""
    symbols = [[f"`{name}`", meaning, _default(entry, name)] for name, meaning in card.symbols.items()]
    sections = {
        "Equations": f"```text\n{card.equations.replace(';  ', chr(10))}\n```\n",
        "Symbols": markdown(["symbol", "meaning", "default"], symbols, numbers=False)
        if symbols
        else "None of its own.\n",
        "Where the defaults come from": f"{card.defaults}\n",
        "Where this differs from the paper or its code": "".join(f"- {text}\n" for text in card.deviations)
        or "Nowhere.\n",
        "Cost": _sentence(card.cost),
        "What travels": _sentence(card.travels),
        "When a reply is lost": _sentence(card.lost_reply),
        "Secure aggregation": _secure(entry),
    }
    head = f"# {card.title}\n\n{card.paper}.\n\nOn the command line: `{entry.call}`. {also}".rstrip() + "\n"
    return head + "".join(f"\n## {title}\n\n{text}" for title, text in sections.items())


def table(entries: Iterable[Entry]) -> str:
    """All methods at a glance, each with a link to its page."""
    rows = [
        [f"[{each.id}](cards/{each.id}.md)", each.card.title, str(each.card.year), each.card.travels, each.card.cost]
        for each in entries
    ]
    lines = markdown(["id", "method", "year", "what travels", "extra cost"], rows, numbers=False)
    ledger = "Numbers such as D7 in cards are entries of [the ledger of discrepancies](ledger.md)."
    return f"# Methods\n\n{lines}\n{ledger} Cards and this table are generated: `make docs`.\n"


def write(folder: Path, entries: Sequence[Entry]) -> list[Path]:
    """Write ``methods.md`` and ``cards/<id>.md``; gives the paths."""
    pages = {folder / "methods.md": table(entries)}
    pages |= {folder / "cards" / f"{entry.id}.md": page(entry) for entry in entries}
    for path, text in pages.items():
        save_text(path, text)
    return list(pages)


def _default(entry: Entry, symbol: str) -> str:
    names = [name.strip() for name in symbol.split(",")]
    return ", ".join(f"`{entry.parameters[name]!r}`" for name in names if name in entry.parameters)


def _secure(entry: Entry) -> str:
    if not entry.seen_singly:
        return "Would be possible: the server needs nothing but sums over clients. It is not built in.\n"
    return f"Not possible: what single clients say is needed by {', '.join(f'`{x}`' for x in entry.seen_singly)}.\n"


def _sentence(text: str) -> str:
    whole = text[:1].upper() + text[1:]
    return f"{whole.rstrip('.')}.\n"
