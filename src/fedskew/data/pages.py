"""A page about each data set, from what the catalogue and its reader say.

python -m fedskew.data.pages FOLDER
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedskew.data import whereabouts
from fedskew.data.catalogue import READERS
from fedskew.data.whereabouts import Known
from fedskew.errors import required

INDEX = "README"


def pages() -> dict[str, str]:
    """Markdown by name, with an index of all."""
    told = whereabouts.known()
    rows = [(_link(each), each.what, each.licence) for each in told]
    index = f"# Data sets\n\n{_table(('name', 'what it is', 'licence'), rows)}\n"
    index += "\n`fedskew data list` says which are here. Your own data: [own-data.md](../own-data.md).\n"
    index += "\nImage files are decoded once, into a cache from which training maps them: `$FEDSKEW_CACHE`, else\n"
    index += "`$XDG_CACHE_HOME/fedskew`, else `~/.cache/fedskew`. It may be deleted at any time.\n"
    return {INDEX: index} | {each.name: _page(each) for each in told if _has_page(each)}


def _has_page(known: Known) -> bool:
    return known.name in READERS and known.origin is not None


def _link(known: Known) -> str:
    return f"[{known.name}]({known.name}.md)" if _has_page(known) else known.name


def _page(known: Known) -> str:
    facts = [("licence", known.licence), ("comes from", known.comes_from), *_whereabouts(known)]
    read = READERS[known.name].read
    parts = [f"# {known.name}", known.what[0].upper() + known.what[1:] + ".", _table(("", ""), facts)]
    if read.__doc__:
        parts += ["## Files and options", inspect.cleandoc(read.__doc__).replace("``", "`")]
    options = [p for p in inspect.signature(read).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if options:
        defaults = [(f"`{p.name}`", "needed" if p.default is p.empty else f"`{p.default!r}`") for p in options]
        parts += [_table(("option", "default"), defaults)]
        parts += ["In a configuration an option is `data.options.NAME`; in Python, a keyword of `sources.load`."]
    return "\n\n".join(parts) + "\n"


def _whereabouts(known: Known) -> Iterable[tuple[str, str]]:
    origin = required(known.origin, f"the origin of {known.name}")
    if origin.places:
        places = ", ".join(f"`{place}/`" for place in origin.places)
        yield "folder", f"{places} in the data folder, or the data folder itself"
    if origin.files:
        yield "get it", f"`fedskew data get {known.name} --data-dir DIR` ({origin.size / 2**20:.0f} MiB)"
    elif origin.ask:
        yield "get it", origin.ask
    elif origin.parts:
        yield "get it", "see " + ", ".join(f"[{part}]({part}.md)" for part in origin.parts)
    else:
        yield "get it", "it is always here"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / f"{name}.md").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
