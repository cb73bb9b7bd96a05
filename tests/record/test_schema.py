"""The models of the record: what the page says of them, and what reading costs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from pydantic import BaseModel

from fedskew.record import reader, schema
from fedskew.record.schema import EndLine, HeaderLine, RoundLine, SetupLine
from fedskew.record.writer import encode

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "record.md"


@pytest.mark.parametrize("line", [HeaderLine, RoundLine, SetupLine, schema.ExtendedLine, EndLine])
def test_the_page_has_every_field_of_every_line(line: type[BaseModel]) -> None:
    kind = line.kind  # type: ignore[attr-defined]
    section = re.split(r"^##+ ", PAGE.read_text().split(f"\n### {kind}\n")[1], flags=re.M)[0]
    cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(line.model_fields)


def test_fields_are_read_as_attributes_and_by_name() -> None:
    line = RoundLine(round=3, loss=0.5, temperature=2.0)  # type: ignore[call-arg]
    assert (line.loss, line["loss"], line.get("loss"), line["temperature"]) == (0.5, 0.5, 0.5, 2.0)
    assert line.accuracy is None and line.get("accuracy") is None and "accuracy" not in line
    with pytest.raises(KeyError):
        line["accuracy"]
    assert dict(line) == dict(line.items()) == {"round": 3, "loss": 0.5, "temperature": 2.0}
    assert (line | {"loss": 0.25}).loss == 0.25 and line.loss == 0.5
    assert repr(line) == "RoundLine(round=3, loss=0.5, temperature=2.0)"
    assert not HeaderLine() and HeaderLine(method="fedavg")


def test_lines_of_the_wrong_type_are_not_written() -> None:
    for wrong in ({"round": 0}, {"round": "1"}, {"round": 1, "loss": "low"}, {"round": 1, "scored": None}):
        with pytest.raises(ValueError, match="validation error"):
            RoundLine(**wrong)  # type: ignore[arg-type]


def test_a_hundred_records_of_two_hundred_rounds_load_quickly(tmp_path: Path) -> None:
    recall = [0.5] * 10
    lines = [RoundLine(round=n, accuracy=0.5, recall=recall, predicted=[7] * 10, seconds=1.0) for n in range(1, 201)]
    (tmp_path / reader.NAME).write_bytes(b"".join(map(encode, [HeaderLine(), *lines, EndLine(best=0.5)])))
    began = time.process_time()
    for _ in range(100):
        assert len(reader.read(tmp_path).rounds) == 200
    assert time.process_time() - began < 10
