"""Tables for a paper: LaTeX with booktabs, from the same blocks as the page's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedskew import __version__
from fedskew.core.client_names import printable
from fedskew.report import breakdowns, standings, verdict
from fedskew.report.blocks import Table, TableCell
from fedskew.report.load import LoadedRun
from fedskew.report.standings import TaskStandings

#: what LaTeX reads as a command, or sets as another sign
_COMMANDS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "`": r"\textasciigrave{}", '"': r"\char34{}", "'": r"\char39{}", "[": "{[}", "]": "{]}",
    "\0": "{}",
}  # fmt: skip
#: what every LaTeX sets, beside ASCII and the letters of Western Europe
_SIGNS = {
    "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "·": r"$\cdot$", "×": r"$\times$", "÷": r"$\div$",
    "…": r"\ldots{}", "°": r"$^\circ$", "µ": r"$\mu$", "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\rightarrow$",
}  # fmt: skip
#: letters that only some encodings of fonts have
_RARE = "ÐðÞþ"

_HEAD = rf"""% fedskew {__version__}: \input this file after \usepackage{{booktabs,tabularx}}, or compile it alone.
\expandafter\ifx\csname @nodocument\endcsname\relax\else
\documentclass{{article}}
\usepackage{{booktabs,tabularx}}
\def\fedskewalone{{}}
\begin{{document}}
\fi
"""
_TAIL = r"""\ifdefined\fedskewalone
\end{document}
\fi
"""
_VACANT = "Accuracy in \\% of client models after local training, over the last ten rounds"


def document(runs: Sequence[LoadedRun]) -> str:
    """Return the tables of all tasks: the methods' standings by each measure, and client models if they were scored."""
    return "\n".join([_HEAD, *(table for task in standings.tasks(runs) for table in _tables(task)), _TAIL])


def _tables(task: TaskStandings) -> list[str]:
    about = f"{escape(task.title)}."
    made = [
        _float(
            verdict.standings(task, [measure]),
            f"{measure.capitalize()} accuracy in \\% on {about} {escape(verdict.says(task, measure))}",
            " ".join([verdict.FOOTNOTE, *verdict.cautions(task)]),
        )
        for measure in task.measures
    ]
    clients = breakdowns.vacant_table(task)
    return [*made, _float(clients, f"{_VACANT}, on {about}")] if isinstance(clients, Table) else made


def _float(block: Table, caption: str, more: str = "") -> str:
    columns = "@{}>{\\raggedright\\arraybackslash}X" + "r" * (len(block.heading) - 1) + "@{}"
    rows = [" & ".join([_name(row[0]), *map(_cell, row[1:])]) for row in block.rows]
    note = " ".join(filter(None, (more, block.note)))
    lines = [
        r"\begin{table*}[tbp]",
        rf"\caption{{{caption}}}",
        r"\footnotesize\setlength{\tabcolsep}{4pt}%",
        rf"\begin{{tabularx}}{{\linewidth}}{{{columns}}}",
        r"\toprule",
        rf"{' & '.join(map(escape, block.heading))} \\",
        r"\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabularx}",
        *([rf"\par\smallskip {escape(note)}"] if note else []),
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _cell(cell: TableCell | str) -> str:
    text = escape(str(cell))
    return rf"\textbf{{{text}}}" if isinstance(cell, TableCell) and cell.bold else text


def _name(cell: TableCell | str) -> str:
    """Return a method's name, which may break after its signs."""
    return re.sub(r"([+(,])", r"\1\\allowbreak{}", _cell(cell))


def escape(text: str) -> str:
    """Return text as LaTeX sets it; a sign that pdflatex may not have becomes its number."""
    return "".join(map(_sign, re.sub("-(?=-)", "-\0", printable(text))))


def _sign(sign: str) -> str:
    if sign in _COMMANDS or sign in _SIGNS:
        return _COMMANDS.get(sign) or _SIGNS[sign]
    plain = " " <= sign <= "~" or ("À" <= sign <= "ÿ" and sign not in _RARE)
    return sign if plain else f"U+{ord(sign):04X}"
