"""A site's suspicious images on one page, to be judged with the keyboard; it is opened from disk and sends nothing."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from fedskew.report.html import templates
from fedskew.report.tables import probability


@dataclass(frozen=True)
class Sample:
    """One sample: the cells that name it in a file of corrections, both labels, and its image, uint8 [C, H, W]."""

    rank: int
    key: Mapping[str, str]
    label: str
    suggested: str
    wrong: float
    image: np.ndarray
    test: bool = False

    @property
    def error(self) -> str:
        return probability(self.wrong).replace(" ", "\u00a0")

    @property
    def picture(self) -> str:
        """Return the image as a data URI."""
        from PIL import Image

        layers = self.image[0] if len(self.image) == 1 else self.image.transpose(1, 2, 0)
        drawn = io.BytesIO()
        Image.fromarray(layers).save(drawn, "PNG")
        return "data:image/png;base64," + base64.b64encode(drawn.getvalue()).decode()


def html(whose: str, samples: Sequence[Sample], labels: Sequence[str], command: str) -> str:
    """Return the page; what it saves is what ``fedskew review --apply`` reads, and `command`, which comes next."""
    return templates.render(
        "review.html.j2",
        title=f"Labels of {whose} to review",
        command=command,
        samples=samples,
        labels=labels,
        own_style=Markup(templates.text("review.css")),
        own_script=Markup(templates.text("review.js")),
    )
