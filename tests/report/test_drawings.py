from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from fedskew.report import drawings


def pixels(address: str) -> np.ndarray:
    kind, content = address.split(",", 1)
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_a_heat_map_has_one_pixel_a_cell_and_nothing_where_nothing_is() -> None:
    drawn = pixels(drawings.heat([[0, 1, 99], [3, 0, 0]]))
    assert drawn.shape == (2, 3, 4)
    # 0.2 + 0.8 log(1 + n) / log(100): 0.3204 for one sample, 0.4408 for three, 1 for the most
    assert drawn[..., 3].tolist() == [[0, 82, 255], [112, 0, 0]]


def test_a_heat_map_of_nothing_is_empty() -> None:
    assert not pixels(drawings.heat([[0, 0]]))[..., 3].any()


def test_dots_have_areas_like_their_counts() -> None:
    drawn = drawings.dots([[16, 4], [0, 1]], ["<a>", "b"])
    assert [float(r) for r in re.findall(r' r="([\d.]+)"', drawn)] == pytest.approx([10.5, 5.25, 2.625], abs=0.06)
    assert "client 0, class &lt;a&gt;: 16 samples" in drawn and "<a>" not in drawn


@pytest.mark.parametrize(("clients", "classes", "kind"), [(40, 30, "<svg"), (41, 3, "<img"), (3, 31, "<img")])
def test_many_cells_become_an_image(clients: int, classes: int, kind: str) -> None:
    assert drawings.partition([[1] * classes] * clients, []).startswith(kind)
