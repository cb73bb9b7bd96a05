"""Pictures that stand inside a page and take its colors: dots as SVG, heat maps as images with one pixel a cell."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from math import log1p

from fedskew.core.client_names import printable
from fedskew.report.blocks import Block, Fold, Picture, Table
from fedskew.report.html.escaped import plain
from fedskew.report.plots.style import FEW_CLIENTS, fits_dots, two_digits

#: a table has all its counts up to so many, otherwise a line for each of so many clients
MOST_CELLS, MOST_LINES = 4000, 100
SHOWN = "Samples of each client and class"
#: blue, of which a cell has as much as its count says; it stands on light and dark grounds
BLUE = (47, 129, 199)
FAINTEST = 0.2
CELL = 22
LETTERS = 18

Counts = Sequence[Sequence[int]]


def partition(counts: Counts, labels: Sequence[str], clients: Sequence[str] = ()) -> list[Block]:
    """Show the samples of each client and class: as dots while they fit, otherwise as a heat map; and in numbers."""
    names, sites = _named(labels, len(counts[0])), _named(clients, len(counts))
    if fits_dots(counts):
        picture = dots(counts, names, sites)
    else:
        label = f"{len(sites):,} clients across, {len(names):,} classes down; the more samples, the darker"
        # a client is at least one pixel wide, or some would not be seen
        size = max(len(sites), min(780, max(360, 9 * len(sites)))), min(640, max(140, 14 * len(names)))
        picture = heat_map(list(zip(*counts, strict=True)), names, sites, ("class", "client"), "samples", label, size)
    return [Picture(picture, SHOWN), Fold("The same in numbers", [numbers(counts, names, sites)])]


def confusion(table: Counts, labels: Sequence[str]) -> str:
    """Draw a confusion matrix of more classes than a table of numbers has room for."""
    names, side = _named(labels, len(table)), min(640, max(360, 7 * len(table)))
    label = "Confusion matrix: true classes down, predicted classes across; the more often, the darker"
    return heat_map(table, names, names, ("true class", "predicted"), "times", label, (side, side))


def dots(counts: Counts, names: Sequence[str], sites: Sequence[str]) -> str:
    """Draw one dot for each client and class; its area is the number of samples."""
    clients, classes = len(counts), len(counts[0])
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
    for place, n in enumerate(dict.fromkeys(two_digits(share * most) for share in (1.0, 0.25, 0.05)), 1):
        y = CELL * (place + 0.5)
        marks.append(f'<circle class="key" cx="{right + 22}" cy="{y:g}" r="{_radius(n / most):.1f}"/>')
        marks.append(f'<text x="{right + 38}" y="{y + 4:g}">{n:,}</text>')
    return _svg(right + 90, height, SHOWN, marks)


def heat_map(
    table: Counts,
    down: Sequence[str],
    across: Sequence[str],
    ways: tuple[str, str],
    what: str,
    label: str,
    size: tuple[int, int],
) -> str:
    """Draw a heat map with names beside it, of many every so many, and the scale of its colors below."""
    rows, columns, (wide, high) = len(table), len(table[0]), size
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
    most = max(1, *map(max, table))
    marks.append(f'<text x="{left}" y="{below + 36}">{what}</text>')
    for place, n in enumerate(sorted({most, *(10**power for power in range(7) if 10**power <= most)})):
        x, strength = left + 56 + 76 * place, _strength(n, most)
        swatch = f'width="14" height="14" fill="rgb{BLUE}" fill-opacity="{strength:.2f}"'
        marks.append(f'<rect x="{x}" y="{below + 25}" {swatch}/><text x="{x + 19}" y="{below + 36}">{n:,}</text>')
    return _svg(max(left + wide + 8, left + 56 + 76 * 8), below + 44, label, marks)


def numbers(counts: Counts, names: Sequence[str], sites: Sequence[str]) -> Table:
    """Return the counts as a table; for very many, the largest classes of the first clients."""
    if len(counts) * len(names) <= MOST_CELLS:
        cells = [[site, *(f"{n:,}" if n else "·" for n in row)] for site, row in zip(sites, counts, strict=True)]
        return Table(["client", *names], cells, kind="tall")
    left_out = max(0, len(counts) - MOST_LINES)
    note = f"{left_out:,} more clients are left out; " if left_out else ""
    return Table(
        ["client", "samples", "classes", "largest classes"],
        [_summary(site, row, names) for site, row in zip(sites[:MOST_LINES], counts, strict=False)],
        f"{note}'fedskew partition --json' prints every count.",
        kind="tall",
    )


def _summary(site: str, row: Sequence[int], names: Sequence[str]) -> list[str]:
    largest = sorted((c for c, n in enumerate(row) if n), key=lambda c: -row[c])[:3]
    words = ", ".join(f"{names[c]} ({row[c]:,})" for c in largest)
    return [site, f"{sum(row):,}", f"{sum(n > 0 for n in row):,}", words or "nothing"]


def heat(table: Counts) -> str:
    """Return counts as an image, one pixel a cell, on a logarithmic scale; zero is transparent."""
    from PIL import Image

    most = max(1, *map(max, table))
    image = Image.new("P", (len(table[0]), len(table)))
    image.putdata([round(255 * _strength(n, most)) for row in table for n in row])
    image.putpalette(BLUE * 256)  # 256 times the same, each as opaque as its number
    drawn = io.BytesIO()
    image.save(drawn, "PNG", transparency=bytes(range(256)))
    return "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode()


def _strength(count: int, most: int) -> float:
    return FAINTEST + (1 - FAINTEST) * log1p(count) / log1p(most) if count else 0.0


def _radius(share: float) -> float:
    return max(1.2, 10.5 * share**0.5)


def _every(count: int, room: int, least: int) -> int:
    """Return the step at which names do not overlap."""
    wanted = count * least / room
    return next(s for power in range(9) for s in (10**power, 2 * 10**power, 5 * 10**power) if s >= wanted)


def _named(names: Sequence[str], count: int) -> Sequence[str]:
    return list(map(printable, names)) if len(names) == count else [str(number) for number in range(count)]


def _turned(x: float, y: float, text: str) -> str:
    turned = f'transform="translate({x:g} {y:g}) rotate(-90)" text-anchor="end"'
    return f"<text {turned}>{plain(text[:LETTERS])}</text>"


def _wide(letters: int) -> int:
    return round(6.2 * min(LETTERS, letters))


def _svg(width: float, height: float, label: str, marks: Sequence[str]) -> str:
    return (
        f'<svg class="dots" role="img" aria-label="{plain(label)}" '
        f'viewBox="0 0 {width:g} {height:g}" style="width:{width:g}px">{"".join(marks)}</svg>'
    )
