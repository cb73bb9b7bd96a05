"""Figures that show every name as it is written."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text


class PlainFigure(Figure):
    """A figure in which dollars are dollars: names of classes, sites and methods are never mathematics."""

    def draw(self, renderer: Any) -> None:
        """Take all texts as they are, those that drawing itself makes too."""
        with rc_context({"text.parse_math": False}):
            for text in self.findobj(Text):
                text.set_parse_math(False)
            super().draw(renderer)
