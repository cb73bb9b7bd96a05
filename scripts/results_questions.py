"""Fill results/questions.md with figures from the records: docs/results/README.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from results import Section
from results_tables import SCORES, Row, beside, spread

#: {ID ROW best|last|last10|seeds|printed}
FIGURE = re.compile(r"\{(\S+) (\S+) (best|last|last10|seeds|printed)\}")


def filled(text: str, sections: Sequence[Section], rows_of: Callable[[Section], Sequence[Row]]) -> str:
    """Return the text with a figure in place of each name of one."""
    entries = {entry.preset.id: entry for entry in sections}
    found: dict[str, dict[str, Row]] = {}

    def figure(match: re.Match[str]) -> str:
        name, method, which = match.groups()
        entry = entries[name]
        if name not in found:
            found[name] = {row.cell.row: row for row in rows_of(entry)}
        row = found[name][method]
        if which == "seeds":
            return str(len(row.runs))
        if which == "printed":
            return f"{beside(entry, row).values['best']:.2f}"
        return spread(row.scores(SCORES[entry.preset.shows])[which])

    return FIGURE.sub(figure, text)
