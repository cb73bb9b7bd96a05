"""Pictures that stand inside a page and take its colours: dots as SVG, large tables as images with one pixel a cell."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np

FEW_CLIENTS, FEW_CLASSES = 40, 30
#: blue, of which a cell has as much as its count says; it stands on light and dark grounds
BLUE = (47, 129, 199)
FAINTEST = 0.2
CELL = 22


def partition(counts: Sequence[Sequence[int]], labels: Sequence[str], called: Sequence[str] = ()) -> str:
    """Who holds what: dots while they can be told apart, else a heat map; `called` are the names of clients."""
    if len(counts) <= FEW_CLIENTS and len(counts[0]) <= FEW_CLASSES:
        return dots(counts, labels, called)
    said = f"{len(counts):,} clients across, {len(counts[0]):,} classes down; the more samples, the stronger"
    return f'<img class="heat" alt="{said}" src="{heat(np.asarray(counts).T.tolist())}"><p class="soft">{said}.</p>'


def dots(counts: Sequence[Sequence[int]], labels: Sequence[str], called: Sequence[str] = ()) -> str:
    """One dot for each client and class; its area is the number of samples."""
    clients, classes = len(counts), len(counts[0])
    names = labels if len(labels) == classes else [str(c) for c in range(classes)]
    sites = called if len(called) == clients else [str(k) for k in range(clients)]
    longest = max(map(len, sites))
    upright = longest > len(str(FEW_CLIENTS))  # names of sites do not fit side by side
    left, below = 14 + _wide(max(map(len, names))), 20 + (_wide(longest) if upright else 14)
    width, height = left + CELL * clients + 6, CELL * classes + below
    most = max((n for row in counts for n in row), default=1) or 1
    marks = []
    for c, name in enumerate(names):
        y = CELL * c + CELL / 2
        marks.append(f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{escape(name[:18])}</text>')
        marks.append(f'<path class="rule" d="M{left} {y:g}H{width - 4}"/>')
    for k, row in enumerate(counts):
        x = left + CELL * k + CELL / 2
        if upright:
            place = f"{x + 4:g} {CELL * classes + 4}"
            turned = f'transform="translate({place}) rotate(-90)" text-anchor="end"'
            marks.append(f"<text {turned}>{escape(sites[k][:18])}</text>")
        elif clients <= 20 or k % 5 == 0:
            marks.append(f'<text x="{x:g}" y="{height - 18}" text-anchor="middle">{escape(sites[k])}</text>')
        marks += [
            f'<circle cx="{x:g}" cy="{CELL * c + CELL / 2:g}" r="{max(1.2, 10.5 * (n / most) ** 0.5):.1f}">'
            f"<title>client {escape(sites[k])}, class {escape(names[c])}: {n:,} samples</title></circle>"
            for c, n in enumerate(row)
            if n
        ]
    marks.append(f'<text x="{left + CELL * clients / 2:g}" y="{height - 3}" text-anchor="middle">client</text>')
    return (
        f'<svg class="dots" role="img" aria-label="Samples of each client and class" '
        f'viewBox="0 0 {width} {height}" style="width:{width}px">{"".join(marks)}</svg>'
    )


def _wide(letters: int) -> int:
    return round(6.2 * min(18, letters))


def heat(table: Sequence[Sequence[int]]) -> str:
    """A table of counts as an image: the more, the bluer, on a logarithmic scale; nothing where there is nothing."""
    from PIL import Image

    counts = np.asarray(table, dtype=np.float64)
    most = np.log1p(max(counts.max(initial=0), 1))
    strength = np.where(counts > 0, FAINTEST + (1 - FAINTEST) * np.log1p(counts) / most, 0)
    pixels = np.empty((*counts.shape, 4), np.uint8)
    pixels[..., :3], pixels[..., 3] = BLUE, np.round(255 * strength)
    drawn = io.BytesIO()
    Image.fromarray(pixels).save(drawn, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode()
