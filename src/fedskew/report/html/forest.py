"""A forest plot that stands inside a page: what each site gains, with its interval, around the line of no gain.

Positions are percentages, so that the picture is as wide as the screen and its letters keep their size.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedskew.report.html.escaped import plain
from fedskew.report.plots.forest import SHOWN, DrawnDifference, marks_at, spans
from fedskew.report.versus_local import SiteDifference, points

#: height of a row, of its text, and the space above the first row
ROW, TEXT, TOP = 36, 13, 22
MARGIN = 3.0
LETTERS = 24
STYLES = {"helps": "helps", "hurts": "hurts"}
SIDES = ("alone is better", "federated is better")
CAPTION = "Bold: all test samples of a site. Below it: those of one class. Bars are 95 % intervals, in points."
CEILING = "The diamond is where a model trained on all data in one place would be."


def forest(rows: Sequence[SiteDifference | DrawnDifference], sides: tuple[str, str] = SIDES, shown: str = SHOWN) -> str:
    """Draw a line for each row: a dot at the difference, a bar for its interval, a diamond where all data would be.

    `sides` are what it means to be left and right of zero, and `shown` is the picture in words.
    """
    low, high = spans(rows)

    def x(value: float) -> str:
        return f"{MARGIN + (100 - 2 * MARGIN) * (value - low) / (high - low):.2f}%"

    bottom = TOP + ROW * len(rows)
    drawn = [_text("0", 12, f"← {sides[0]}", "start"), _text("100%", 12, f"{sides[1]} →", "end")]
    for mark in marks_at(low, high):
        kind = "zero" if mark == 0 else "rule"
        drawn.append(f'<line class="{kind}" x1="{x(mark)}" x2="{x(mark)}" y1="{TOP}" y2="{bottom}"/>')
        drawn.append(_text(x(mark), bottom + 15, f"{100 * mark:+g}".replace("-", "−").replace("+0", "0"), "middle"))
    for number, row in enumerate(rows):
        y, style = TOP + ROW * number + TEXT, STYLES.get(row.verdict, "unclear")
        name = row.site if row.label is None else f"class {row.label}"
        site = "site" if row.label is None else ""
        drawn.append(_text("0" if site else "14", y, name[:LETTERS], "start", site))
        drawn.append(_text("100%", y, f"{points(row.difference)}: {row.verdict}", "end", f"{style} {site}".strip()))
        middle = y + 11
        if row.low is not None and row.high is not None:
            hint = f"{name}: {points(row.difference)} points, {points(row.low)} to {points(row.high)}"
            drawn.append(
                f'<line class="{style}" x1="{x(row.low)}" x2="{x(row.high)}" y1="{middle}" y2="{middle}"/>'
                f'<circle class="{style}" cx="{x(row.difference)}" cy="{middle}" r="{5 if site else 3.5}">'
                f"<title>{plain(hint)}</title></circle>"
            )
        if row.ceiling is not None and site:
            diamond = f'<path class="ceiling" d="M0 {middle - 6}l6 6l-6 6l-6 -6z"/>'
            drawn.append(f'<svg x="{x(row.ceiling)}" overflow="visible">{diamond}</svg>')
    return (
        f'<svg class="dots forest" role="img" aria-label="{shown}" style="height:{bottom + 22}px">'
        f"{''.join(drawn)}</svg>"
    )


def _text(x: str, y: float, text: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y:g}" text-anchor="{anchor}"{style}>{plain(text)}</text>'
