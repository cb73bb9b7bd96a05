"""Figures that show every name as it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from fedskew.names import printable


class PlainFigure(Figure):
    """A figure in which dollars are dollars: names of classes, sites and methods are never mathematics.

    Control characters in them are shown as escapes: fonts have none, and SVG must not hold them.
    """

    def savefig(self, *args: Any, **options: Any) -> None:
        """As always; names along axes, which every drawing asks for anew, are made printable first."""
        for axis in (each for axes in self.axes for each in (axes.xaxis, axes.yaxis)):
            formatter = axis.get_major_formatter()
            if isinstance(formatter, FuncFormatter):  # what set_xticks and set_yticks make of names
                formatter.func = _printable(formatter.func)
        super().savefig(*args, **options)

    def draw(self, renderer: Any) -> None:
        """Take all texts as they are, those that drawing itself makes too."""
        with rc_context({"text.parse_math": False}):
            for text in self.findobj(Text):
                text.set_parse_math(False)
                text.set_text(printable(text.get_text(), lines=True))
            super().draw(renderer)


def _printable(named: Callable[..., str]) -> Callable[..., str]:
    return lambda *place: printable(named(*place), lines=True)
