from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedskew.report.html import svg, templates


def pixels(address: str) -> np.ndarray:
    kind, content = address.split(",", 1)
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGBA"))


def html(*given: Any) -> str:
    return templates.blocks(svg.partition(*given))


def test_a_heat_map_has_one_pixel_a_cell_and_nothing_where_nothing_is() -> None:
    drawn = pixels(svg.heat([[0, 1, 99], [3, 0, 0]]))
    assert drawn.shape == (2, 3, 4)
    # 0.2 + 0.8 log(1 + n) / log(100): 0.3204 for one sample, 0.4408 for three, 1 for the most
    assert drawn[..., 3].tolist() == [[0, 82, 255], [112, 0, 0]]


def test_a_heat_map_of_nothing_is_empty() -> None:
    assert not pixels(svg.heat([[0, 0]]))[..., 3].any()


def test_dots_have_areas_like_their_counts_and_a_key_of_them() -> None:
    drawn = svg.dots([[16, 4], [0, 1]], ["<a>", "b"], ["0", "1"])
    dots, key = drawn.split(">samples</text>")
    radii = [[float(r) for r in re.findall(r' r="([\d.]+)"', part)] for part in (dots, key)]
    assert radii[0] == pytest.approx([10.5, 5.25, 2.625], abs=0.06)
    assert radii[1] == pytest.approx([10.5, 5.25, 2.625], abs=0.06)  # of 16, 4 and 1 samples
    assert re.findall(r">([\d,]+)</text>", key) == ["16", "4", "1"]
    assert "client 0, class &lt;a&gt;: 16 samples" in drawn and "<a>" not in drawn


@pytest.mark.parametrize(("clients", "classes", "image"), [(40, 30, False), (41, 3, True), (3, 31, True)])
def test_many_cells_become_an_image(clients: int, classes: int, image: bool) -> None:
    drawn = html([[1] * classes] * clients, [])
    assert ("<image " in drawn, "<circle " in drawn) == (image, not image)


def texts(drawn: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def test_a_heat_map_has_names_beside_it_and_a_scale() -> None:
    counts = [[0] * 10 for _ in range(100)]
    counts[7][3] = 1500
    picture, table = html(counts, [f"kind {c}" for c in range(10)]).split("<details>")
    shown = texts(picture)
    assert shown[:10] == [f"kind {c}" for c in range(10)]
    assert shown[10:30] == [str(client) for client in range(0, 100, 5)]
    assert shown[30:] == ["client", "class", "samples", "1", "10", "100", "1,000", "1,500"]
    strengths = [float(each) for each in re.findall(r'fill-opacity="([\d.]+)"', picture)]
    # 0.2 + 0.8 log(1 + n) / log(1501)
    assert strengths == [0.28, 0.46, 0.7, 0.96, 1.0]
    assert "<td>1,500</td>" in table


def test_the_counts_stand_in_a_table_too() -> None:
    drawn = html([[16, 0], [1234, 5]], ["<a>", "b"], ["north", "south"])
    rows = re.findall(r"<tr>(.*?)</tr>", drawn)
    assert [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows] == [
        ["client", "&lt;a&gt;", "b"],
        ["north", "16", "·"],
        ["south", "1,234", "5"],
    ]


def test_a_table_of_very_many_counts_says_what_each_client_has_most_of() -> None:
    counts = [[0] * 200 for _ in range(1000)]
    counts[0][4], counts[0][9], counts[0][5], counts[0][1] = 3, 2000, 7, 1
    drawn = html(counts, [])
    first, second = re.findall(r"<tr>(.*?)</tr>", drawn)[1:3]
    assert re.findall(r"<td>(.*?)</td>", first) == ["2,011", "4", "9 (2,000), 5 (7), 4 (3)"]
    assert re.findall(r"<td>(.*?)</td>", second) == ["0", "0", "nothing"]
    assert drawn.count("<tr>") == 101 and "900 more clients are left out" in drawn
    assert len(drawn) < 100_000


def test_a_large_confusion_has_the_names_of_its_classes() -> None:
    shown = texts(svg.confusion([[1] * 26] * 26, [f"{c:02}" for c in range(26)]))
    assert shown[:26] == [f"{c:02}" for c in range(26)]
    assert shown[26] == "00" and shown[-4:] == ["predicted", "true class", "times", "1"]
