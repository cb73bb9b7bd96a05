"""The table of all keys in the reference: ``python -m fedskew.config.page docs/reference/configuration.md``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from fedskew.config.keys import KEYS, KEYWORDS, Key
from fedskew.core import atomic_io

BEGIN, END = "<!-- keys: written by python -m fedskew.config.page -->\n", "<!-- end of keys -->\n"


def table() -> str:
    """Return the table of all keys, with flag, default and meaning."""
    rows = ["| key | flag, keyword | default | meaning |", "|---|---|---|---|", *map(_row, KEYS.values())]
    for section in (each for each in KEYWORDS.values() if each.name not in KEYS):
        first = next(number for number, row in enumerate(rows) if row.startswith(f"| `{section.name}."))
        rows.insert(first, f"| `{section.name}` | `{section.flag}` |  | {_linked(section.help)} |")
    return "\n".join(rows) + "\n"


def _row(key: Key) -> str:
    default = "–" if key.default is None else f"`{json.dumps(key.default)}`"
    unset = f" Not set: {key.unset}." if key.default is None and key.unset != "none" else ""
    return f"| `{key.name}` | {f'`{key.flag}`' if key.keyword else ''} | {default} | {_linked(key.help + unset)} |"


def _linked(text: str) -> str:
    """Make links of the pages that a help text names."""
    text = text.replace("docs/reference/configuration.md", "below")
    text = re.sub(r"docs/([\w-]+)/([\w-]+)(\.md)?", _link, text)
    return text.replace("|", "\\|")


def _link(named: re.Match[str]) -> str:
    """Link to a page, or to the first page of a folder, from the page in docs/reference."""
    folder = "" if named[1] == "reference" else f"../{named[1]}/"
    return f"[{named[2]}]({folder}{named[2]}{named[3] or '/README.md'})"


def written(page: str) -> str:
    """Return the page with a new table."""
    return page[: page.index(BEGIN) + len(BEGIN)] + table() + page[page.index(END) :]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    atomic_io.save(path, written(path.read_text(encoding="utf-8")))
