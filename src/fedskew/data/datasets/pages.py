"""A page about each data set, from its description and its reader.

python -m fedskew.data.datasets.pages FOLDER
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedskew.core import atomic_io
from fedskew.data import registry, sources
from fedskew.data.registry import DatasetInfo

INDEX = "README"
INTRODUCTION = """\
# Data sets

`fedskew data list` shows which of these are in your data folder, and `fedskew data get NAME` fetches one:

```sh
fedskew data get mnist --data-dir data
fedskew run --dataset mnist --data-dir data
```

To train on your own files, read [own-data.md](../../how-to/own-data.md).
"""
CACHE = """\
Image files are decoded once, into a cache from which training maps them: `$FEDSKEW_CACHE`, else
`$XDG_CACHE_HOME/fedskew`, else `~/.cache/fedskew`. You may delete it at any time.
"""


def pages() -> dict[str, str]:
    """Return Markdown by name: a page for each data set with a reader of its own, and an index of all."""
    known = registry.known()
    rows = [(_link(info), info.what, info.license) for info in known]
    index = f"{INTRODUCTION}\n{_table(('name', 'what it is', 'license'), rows)}\n\n{CACHE}"
    return {INDEX: index} | {info.name: _page(info) for info in known if _has_page(info)}


def _has_page(info: DatasetInfo) -> bool:
    return bool(info.reader) and not info.yours


def _link(info: DatasetInfo) -> str:
    return f"[{info.name}]({info.name}.md)" if _has_page(info) else info.name


def _page(info: DatasetInfo) -> str:
    facts = [("license", info.license), ("comes from", info.origin), *_how_to_get(info)]
    reader = sources.read_function(info)
    parts = [f"# {info.name}", info.what[0].upper() + info.what[1:] + ".", _table(("", ""), facts)]
    if reader.__doc__:
        parts += ["## Files and options", inspect.cleandoc(reader.__doc__).replace("``", "`")]
    options = [p for p in inspect.signature(reader).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if options:
        defaults = [(f"`{p.name}`", "required" if p.default is p.empty else f"`{p.default!r}`") for p in options]
        parts += [_table(("option", "default"), defaults)]
        parts += ["Set an option with `--set data.options.NAME=VALUE`, or in Python as a keyword of `sources.load`."]
    return "\n\n".join(parts) + "\n"


def _how_to_get(info: DatasetInfo) -> Iterable[tuple[str, str]]:
    if info.folders:
        folders = ", ".join(f"`{folder}/`" for folder in info.folders)
        yield "folder", f"{folders} in the data folder, or the data folder itself"
    if info.files:
        yield "get it", f"`fedskew data get {info.name} --data-dir DIR` ({_bytes(info.size)})"
    elif info.how_to_get:
        yield "get it", info.how_to_get
    elif info.parts:
        yield "get it", "see " + ", ".join(f"[{part}]({part}.md)" for part in info.parts)
    else:
        yield "get it", "it is always here"


def _bytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB" if size >= 2**19 else f"{size / 2**10:.0f} KiB"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows))


def main(folder: Path) -> None:
    """Write all pages to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        atomic_io.save(folder / f"{name}.md", text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
