"""Methods' cards as Markdown pages, generated from the code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.core import atomic_io
from fedskew.report.tables import markdown

if TYPE_CHECKING:
    from fedskew.methods.index import MethodEntry
    from fedskew.parts.card import Card


def reference(card: Card) -> str:
    """Cite the paper by its authors and the year."""
    authors = card.paper.partition(":")[0].removesuffix(" et al.").split(", ")
    several = len(authors) > 2 or "et al." in card.paper.partition(":")[0]
    return f"{authors[0] + ' et al.' if several else ' and '.join(authors)} {card.year}"


def page(entry: MethodEntry) -> str:
    """Return a method's own page."""
    card = entry.card
    also = f"Also known as {', '.join(f'`{name}`' for name in entry.aliases)}.\n" if entry.aliases else ""
    symbols = [[f"`{name}`", meaning, _default(entry, name)] for name, meaning in card.symbols.items()]
    sections = {
        "Equations": f"```text\n{card.equations.replace(';  ', chr(10))}\n```\n",
        "Symbols": markdown(["symbol", "meaning", "default"], symbols, numbers=False) if symbols else "None.\n",
        "Where the defaults come from": f"{card.defaults}\n",
        "Where this differs from the paper or its code": "".join(f"- {text}\n" for text in card.deviations)
        or "It does not differ.\n",
        "Cost": _sentence(card.cost),
        "What travels": _sentence(card.travels),
        "When a reply is lost": _sentence(card.lost_reply),
        "Secure aggregation": _secure(entry),
    }
    use = f"Use when: {card.use_when}.\n\n" if card.use_when else ""
    head = f"# {card.title}\n\n{card.paper}.\n\n{use}On the command line: `{entry.call}`. {also}".rstrip() + "\n"
    return head + "".join(f"\n## {title}\n\n{text}" for title, text in sections.items())


def table(entries: Iterable[MethodEntry]) -> str:
    """Return a table of all methods, each with a link to its page."""
    heading = ["id", "method", "year", "use when", "what travels", "extra cost"]
    rows = [
        [f"[{e.id}]({e.id}.md)", e.card.title, str(e.card.year), e.card.use_when, e.card.travels, e.card.cost]
        for e in entries
    ]
    ledger = "Numbers such as D7 in cards are entries of [the ledger of discrepancies](../ledger.md)."
    generated = "`make docs` generates the cards and this table."
    return f"# Methods\n\n{markdown(heading, rows, numbers=False)}\n{ledger} {generated}\n"


def write(folder: Path, entries: Sequence[MethodEntry]) -> list[Path]:
    """Write ``README.md`` and ``<id>.md`` to a folder, and return their paths."""
    pages = {folder / "README.md": table(entries)}
    pages |= {folder / f"{entry.id}.md": page(entry) for entry in entries}
    for path, text in pages.items():
        atomic_io.save(path, text)
    return list(pages)


def _default(entry: MethodEntry, symbol: str) -> str:
    names = [name.strip() for name in symbol.split(",")]
    return ", ".join(f"`{entry.parameters[name]!r}`" for name in names if name in entry.parameters)


def _secure(entry: MethodEntry) -> str:
    if not entry.individual_parts:
        return "Possible in principle: the server needs only sums over clients. It is not built in.\n"
    return f"Not possible: individual updates are needed by {', '.join(f'`{x}`' for x in entry.individual_parts)}.\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}.\n"
