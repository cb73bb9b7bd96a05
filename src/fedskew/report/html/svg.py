"""Pictures that stand inside a page and take its colours: dots as SVG, large tables as images with one pixel a cell.

Names and a scale stand beside each of them, and the numbers in a table that can be unfolded.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence

import numpy as np

from fedskew.names import printable
from fedskew.report.escaped import name as isolated
from fedskew.report.escaped import plain, sentence
from fedskew.report.pictures import _rounded

FEW_CLIENTS, FEW_CLASSES = 40, 30
#: A table has all its counts up to so many, else a line for each of so many clients.
MOST_CELLS, MOST_LINES = 4000, 100
#: blue, of which a cell has as much as its count says; it stands on light and dark grounds
BLUE = (47, 129, 199)
FAINTEST = 0.2
CELL = 22
LETTERS = 18

Counts = Sequence[Sequence[int]]


def partition(counts: Counts, labels: Sequence[str], called: Sequence[str] = ()) -> str:
    """Who holds what: dots while they can be told apart, else a heat map; `called` are the names of clients."""
    clients, classes = len(counts), len(counts[0])
    names, sites = _named(labels, classes), _named(called, clients)
    if clients <= FEW_CLIENTS and classes <= FEW_CLASSES:
        picture = dots(counts, names, sites)
    else:
        said = f"{clients:,} clients across, {classes:,} classes down; the more samples, the stronger"
        # a client is a pixel wide at least, or some would not be seen
        size = max(clients, min(780, max(360, 9 * clients))), min(640, max(140, 14 * classes))
        picture = _grid(np.asarray(counts).T, names, sites, ("class", "client"), "samples", said, size)
    return _scrolled("wide", picture) + _numbers(counts, names, sites)


def confusion(table: Counts, labels: Sequence[str]) -> str:
    """What was taken for what, of more classes than a table of numbers has room for."""
    names, side = _named(labels, len(table)), min(640, max(360, 7 * len(table)))
    said = "Confusion: true classes down, what they were taken for across; the more often, the stronger"
    return _grid(np.asarray(table), names, names, ("true class", "taken for"), "times", said, (side, side))


def dots(counts: Counts, labels: Sequence[str], called: Sequence[str] = ()) -> str:
    """One dot for each client and class; its area is the number of samples."""
    clients, classes = len(counts), len(counts[0])
    names, sites = _named(labels, classes), _named(called, clients)
    longest = max(map(len, sites))
    upright = longest > len(str(FEW_CLIENTS))  # names of sites do not fit side by side
    left, below = 14 + _wide(max(map(len, names))), 20 + (_wide(longest) if upright else 14)
    right, height = left + CELL * clients + 6, max(CELL * classes + below, 5 * CELL)
    most = max((n for row in counts for n in row), default=1) or 1
    marks = []
    for c, name in enumerate(names):
        y = CELL * c + CELL / 2
        marks.append(f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{plain(name[:LETTERS])}</text>')
        marks.append(f'<path class="rule" d="M{left} {y:g}H{right - 4}"/>')
    for k, row in enumerate(counts):
        x = left + CELL * k + CELL / 2
        if upright:
            marks.append(_turned(x + 4, CELL * classes + 4, sites[k]))
        elif clients <= 20 or k % 5 == 0:
            at = f'x="{x:g}" y="{CELL * classes + below - 18}"'
            marks.append(f'<text {at} text-anchor="middle">{plain(sites[k])}</text>')
        marks += [
            f'<circle cx="{x:g}" cy="{CELL * c + CELL / 2:g}" r="{_radius(n / most):.1f}">'
            f"<title>client {plain(sites[k])}, class {plain(names[c])}: {n:,} samples</title></circle>"
            for c, n in enumerate(row)
            if n
        ]
    middle, bottom = left + CELL * clients / 2, CELL * classes + below - 3
    marks.append(f'<text x="{middle:g}" y="{bottom}" text-anchor="middle">client</text>')
    marks.append(f'<text x="{right + 12}" y="14">samples</text>')
    for place, n in enumerate(dict.fromkeys(_rounded(share * most) for share in (1.0, 0.25, 0.05)), 1):
        y = CELL * (place + 0.5)
        marks.append(f'<circle class="key" cx="{right + 22}" cy="{y:g}" r="{_radius(n / most):.1f}"/>')
        marks.append(f'<text x="{right + 38}" y="{y + 4:g}">{n:,}</text>')
    return _svg(right + 90, height, "Samples of each client and class", marks)


def _grid(
    table: np.ndarray,
    down: Sequence[str],
    across: Sequence[str],
    ways: tuple[str, str],
    what: str,
    said: str,
    size: tuple[int, int],
) -> str:
    """A heat map with names beside it, of many every so many, and the scale of its colours below."""
    (rows, columns), (wide, high) = table.shape, size
    left, top = 32 + _wide(max(map(len, down))), 4
    longest = max(map(len, across))
    upright = longest > len(f"{len(across)}")
    below = top + high + 12 + (_wide(longest) if upright else 8)
    href = f'href="{heat(table)}" preserveAspectRatio="none"'
    marks = [f'<image x="{left}" y="{top}" width="{wide}" height="{high}" {href}/>']
    marks.append(f'<path class="rule" fill="none" d="M{left} {top}h{wide}v{high}h-{wide}z"/>')
    for row in range(0, rows, _every(rows, high, 12)):
        y = top + high * (row + 0.5) / rows
        marks.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{plain(down[row][:LETTERS])}</text>')
    for column in range(0, columns, _every(columns, wide, 12 if upright else 6 + 7 * longest)):
        x = left + wide * (column + 0.5) / columns
        if upright:
            marks.append(_turned(x + 4, top + high + 6, across[column]))
        else:
            marks.append(f'<text x="{x:.1f}" y="{top + high + 14}" text-anchor="middle">{plain(across[column])}</text>')
    marks.append(f'<text x="{left + wide / 2:g}" y="{below + 12}" text-anchor="middle">{ways[1]}</text>')
    marks.append(
        f'<text transform="translate(11 {top + high / 2:g}) rotate(-90)" text-anchor="middle">{ways[0]}</text>'
    )
    most = max(int(table.max(initial=0)), 1)
    marks.append(f'<text x="{left}" y="{below + 36}">{what}</text>')
    for place, n in enumerate(sorted({most, *(10**power for power in range(7) if 10**power <= most)})):
        x, strength = left + 56 + 76 * place, float(_strength(np.array(n), most))
        swatch = f'width="14" height="14" fill="rgb{BLUE}" fill-opacity="{strength:.2f}"'
        marks.append(f'<rect x="{x}" y="{below + 25}" {swatch}/><text x="{x + 19}" y="{below + 36}">{n:,}</text>')
    return _svg(max(left + wide + 8, left + 56 + 76 * 8), below + 44, said, marks)


def _numbers(counts: Counts, names: Sequence[str], sites: Sequence[str]) -> str:
    """The counts for those who cannot hover, folded away; of very many, what each client has most of."""
    if len(counts) * len(names) <= MOST_CELLS:
        heading, rows = ["client", *names], [[site, *map(_count, row)] for site, row in zip(sites, counts, strict=True)]
        note = ""
    else:
        heading = ["client", "samples", "classes", "most of"]
        rows = list(_summaries(counts[:MOST_LINES], names, sites))
        left_out = len(counts) - len(rows)
        note = f"{left_out:,} more clients are left out; " if left_out > 0 else ""
        note = f'<p class="soft">{note}<code>fedskew partition --json</code> prints every count.</p>'
    head = "".join(f'<th scope="col">{isolated(name)}</th>' for name in heading)
    body = "".join(
        f'<tr><th scope="row">{isolated(row[0])}</th>{"".join(f"<td>{sentence(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<details><summary>The same in numbers</summary>{_scrolled('wide tall', table)}{note}</details>"


def _scrolled(kind: str, inside: str) -> str:
    """What may be wider than a page, and can be moved with the keyboard too."""
    return (
        f'<div class="{kind}" tabindex="0" role="region" aria-label="Samples of each client and class">{inside}</div>'
    )


def _summaries(counts: Counts, names: Sequence[str], sites: Sequence[str]) -> Iterator[list[str]]:
    for site, row in zip(sites, counts, strict=False):
        first = sorted((c for c, n in enumerate(row) if n), key=lambda c: -row[c])[:3]
        told = ", ".join(f"{names[c]} ({row[c]:,})" for c in first)
        yield [site, f"{sum(row):,}", f"{sum(n > 0 for n in row):,}", told or "nothing"]


def heat(table: Counts | np.ndarray) -> str:
    """A table of counts as an image: the more, the bluer, on a logarithmic scale; nothing where there is nothing."""
    from PIL import Image

    counts = np.asarray(table, dtype=np.float64)
    image = Image.fromarray(np.round(255 * _strength(counts, counts.max(initial=1))).astype(np.uint8))
    image.putpalette(BLUE * 256)  # 256 times the same, each as opaque as its number
    drawn = io.BytesIO()
    image.save(drawn, "PNG", transparency=bytes(range(256)))
    return "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode()


def _strength(counts: np.ndarray, most: float) -> np.ndarray:
    return np.where(counts > 0, FAINTEST + (1 - FAINTEST) * np.log1p(counts) / np.log1p(most), 0)


def _radius(share: float) -> float:
    return max(1.2, 10.5 * share**0.5)


def _every(count: int, room: int, least: int) -> int:
    """Of so many names every so many, so that they do not stand on each other."""
    wanted = count * least / room
    return next(s for power in range(9) for s in (10**power, 2 * 10**power, 5 * 10**power) if s >= wanted)


def _named(names: Sequence[str], count: int) -> Sequence[str]:
    return list(map(printable, names)) if len(names) == count else [str(number) for number in range(count)]


def _count(count: int) -> str:
    return f"{count:,}" if count else "·"


def _turned(x: float, y: float, text: str) -> str:
    turned = f'transform="translate({x:g} {y:g}) rotate(-90)" text-anchor="end"'
    return f"<text {turned}>{plain(text[:LETTERS])}</text>"


def _wide(letters: int) -> int:
    return round(6.2 * min(LETTERS, letters))


def _svg(width: float, height: float, said: str, marks: Sequence[str]) -> str:
    return (
        f'<svg class="dots" role="img" aria-label="{plain(said)}" '
        f'viewBox="0 0 {width:g} {height:g}" style="width:{width:g}px">{"".join(marks)}</svg>'
    )
