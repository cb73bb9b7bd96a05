"""How pictures look and how they are written: colors that color-blind readers can tell apart, names as they are."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedskew.core import atomic_io
from fedskew.core.client_names import printable
from fedskew.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Okabe and Ito's palette without its yellow, which is too pale for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GROUP_COLORS = ("#0072B2", "#E69F00", "#D55E00")
#: what tells groups of classes apart without colors
GROUP_HATCHES = ("", "///", "xxx")
INK, FAINT = "#333333", "#DDDDDD"
#: the date that a format would have, left out
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
#: inches of a column of a paper, and the points of its letters
COLUMN, SMALL = 3.3, 8
#: dots can be told apart up to so many clients and classes
FEW_CLIENTS, FEW_CLASSES = 40, 30


def look(number: int) -> dict[str, Any]:
    """Return how the line of that number is drawn; 28 lines differ even without colors."""
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": STYLES[number % len(STYLES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": points(4.5),
    }


def group_look(number: int) -> dict[str, Any]:
    """Return how the bars of a group of classes are drawn."""
    return {"facecolor": GROUP_COLORS[number], "hatch": GROUP_HATCHES[number], "edgecolor": "white", "linewidth": 0}


def figure(width: float, height: float) -> Figure:
    """Make an empty figure, in inches, that writes every name as it is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class PlainFigure(Figure):
        """A figure in which dollars are dollars, and control characters are escapes."""

        def savefig(self, *args: Any, **options: Any) -> None:
            from matplotlib.ticker import FuncFormatter

            for axis in (each for axes in self.axes for each in (axes.xaxis, axes.yaxis)):
                formatter = axis.get_major_formatter()
                if isinstance(formatter, FuncFormatter):  # what set_xticks and set_yticks make of names
                    formatter.func = _printable(formatter.func)
            super().savefig(*args, **options)

        def draw(self, renderer: Any) -> None:
            from matplotlib import rc_context
            from matplotlib.text import Text

            with rc_context({"text.parse_math": False}):
                for text in self.findobj(Text):  # also those that drawing itself makes
                    text.set_parse_math(False)
                    text.set_text(printable(text.get_text(), lines=True))
                super().draw(renderer)

    made = PlainFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def paper() -> AbstractContextManager[None]:
    """Draw and write pictures as a column of a paper has them, with smaller letters and lines."""
    from matplotlib import rc_context

    return rc_context({"font.size": SMALL})


def points(size: float) -> float:
    """Return the size of letters or lines: as given, but smaller in a paper."""
    from matplotlib import rcParams

    return float(size * rcParams["font.size"] / 10)


def wrapped(text: str) -> str:
    """Return a title in lines as wide as a column of a paper."""
    return fill(text, 50)


def _printable(named: Callable[..., str]) -> Callable[..., str]:
    return lambda *place: printable(named(*place), lines=True)


def clean(axes: Any) -> None:
    """Draw two spines, a faint grid, and no ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)


def heat_map(
    figure: Figure, axes: Axes, table: Any, bar: str = "", *, spines: bool = True, norm: Any = None, **options: Any
) -> AxesImage:
    """Draw a table in blues, with a color bar of that name beside it if it has one; masked cells are left white.

    Further options are those of `imshow`.
    """
    image = axes.imshow(table, norm=norm, **{"cmap": "Blues", "aspect": "auto", "interpolation": "nearest"} | options)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set(visible=spines, color=FAINT)
    if bar:
        scale = figure.colorbar(image, ax=axes, pad=0.02)
        scale.set_label(bar, color=INK)
        scale.ax.tick_params(colors=INK, which="both", length=0)
        scale.outline.set_visible(False)
    return image


def name_classes(
    axes: Axes, way: str, classes: int, labels: Sequence[str] = (), *, most: int = 50, **look: Any
) -> None:
    """Write classes' names along an axis; of more than `most`, every so many."""
    names = list(labels) if len(labels) == classes else list(map(str, range(classes)))
    every = step(classes, most)
    look = {"fontsize": 9 if classes <= 20 else 7} | look
    (axes.set_xticks if way == "x" else axes.set_yticks)(range(0, classes, every), names[::every], **look)


def name_clients(axes: Axes, clients: int, called: Sequence[str]) -> None:
    """Write clients' names below an axis, upright unless they are numbers; of very many, every so many."""
    names = list(called) if len(called) == clients else list(map(str, range(clients)))
    every = step(clients, 25)
    upright = not all(name.isdecimal() for name in names)
    axes.set_xticks(range(0, clients, every), names[::every], rotation=90 if upright else 0)
    axes.set_xlabel("client")


def step(count: int, most: int) -> int:
    """Return the round step at which at most so many of all names stand along an axis."""
    return next(s for power in range(9) for s in (10**power, 2 * 10**power, 5 * 10**power) if count <= most * s)


def fits_dots(counts: Sequence[Sequence[int]]) -> bool:
    """Return whether dots of so many clients and classes can be told apart."""
    return len(counts) <= FEW_CLIENTS and len(counts[0]) <= FEW_CLASSES


def two_digits(count: float) -> int:
    """Round to two digits, and to one at least."""
    whole = max(1, round(count))
    return round(whole, min(0, 2 - len(str(whole))))


def save(figure: Figure, path: Path) -> None:
    """Write a picture: PNG, SVG or PDF by the ending of its name."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise UserError(f"picture '{path}' has no known ending. End its name in .png, .svg or .pdf.")
    atomic_io.save(path, encoded(figure, path.suffix.removeprefix(".")))


def encoded(figure: Figure, kind: str, letters: str = "none") -> bytes:
    """Return a picture as PNG, SVG or PDF, with its fonts; text stays text unless `letters` of SVG are a path."""
    from matplotlib import rc_context

    drawn = io.BytesIO()
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": letters, "svg.hashsalt": "fedskew"}):
        figure.savefig(drawn, format=kind, dpi=160, metadata=_UNDATED.get(kind))
    return _renumbered(drawn.getvalue()) if kind == "svg" else drawn.getvalue()


def _renumbered(svg: bytes) -> bytes:
    """Number what is named after its place in memory, so that the same records give the same picture."""
    for number, name in enumerate(re.findall(rb'<clipPath id="(\w+)"', svg)):
        svg = svg.replace(name, b"clip%d" % number)
    return svg


def save_small(figure: Figure, path: Path) -> None:
    """Write a PNG of few colors, half as large, for a page of many pictures."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    Image.open(drawn).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


def inline(figure: Figure) -> str:
    """Return a picture as an address that can stand inside a page."""
    return "data:image/svg+xml;base64," + base64.b64encode(encoded(figure, "svg", "path")).decode()
