from __future__ import annotations

import json
import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.record import reader, scores
from fedskew.record.reader import RunRecord
from fedskew.record.schema import EndLine, HeaderLine, RoundLine, SetupLine
from fedskew.record.writer import LineWriter, encode

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats()
    | st.text().filter(lambda text: text not in ("nan", "inf", "-inf")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def write_example(path: Path) -> list[int]:
    """A small run; gives the offset after each line."""
    writer = LineWriter.create(path, HeaderLine(**{"name": "zoë", "seed": 1}))
    offsets = [writer.offset]
    for number in range(1, 4):
        writer.write(RoundLine(round=number, accuracy=0.4 + number / 10, loss=math.nan))
        offsets.append(writer.offset)
    writer.write(SetupLine(round=3, part="x"))
    offsets.append(writer.offset)
    writer.write(EndLine(best=0.7))
    offsets.append(writer.offset)
    writer.close()
    return offsets


def test_lines_come_back_by_kind(tmp_path: Path) -> None:
    offsets = write_example(tmp_path / reader.NAME)
    run = reader.read(tmp_path)
    assert dict(run.header) == {"name": "zoë", "seed": 1}
    assert [line.round for line in run.rounds] == [1, 2, 3]
    assert math.isnan(run.rounds[0]["loss"]) and math.isnan(run.rounds[0].loss or 0)
    assert run.setups == [SetupLine(round=3, part="x")]
    assert run.end == EndLine(best=0.7)
    assert run.note is None
    assert offsets[-1] == (tmp_path / reader.NAME).stat().st_size


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_changed_byte_ends_the_reading_at_its_line(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        path = Path(name) / reader.NAME
        offsets = write_example(path)
        content = bytearray(path.read_bytes())
        at, other = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
        content[at] ^= other
        path.write_bytes(content)
        run = reader.read(path)
        lines = [line for line in (run.header, *run.rounds, *run.setups, run.end) if line]
        assert run.note is not None and len(lines) == sum(offset <= at for offset in offsets)


def test_a_line_without_a_checksum_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / reader.NAME
    write_example(tmp_path / "new.jsonl")
    header, first, *others = (tmp_path / "new.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(header + first + b'{"kind":"round","round":2,"accuracy":0.9}\n' + b"".join(others))
    found = reader.read(path)
    assert len(found.rounds) == 1 and found.note is not None and "malformed at line 3" in found.note


def test_a_file_cut_anywhere_reads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / reader.NAME
    offsets = write_example(path)
    content = path.read_bytes()
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        run = reader.read(path)
        lines = [line for line in (run.header, *run.rounds, *run.setups, run.end) if line]
        assert len(lines) == sum(offset <= size for offset in offsets)
        assert (run.note is None) == (size in offsets)


@pytest.mark.parametrize(
    "bad",
    [
        b"{",
        b"",
        b"[]",
        b"3",
        b"{}",
        b'{"kind":3}',
        b'{"kind":"round"}',
        b'{"kind":"round","round":"1"}',
        b'{"kind":"round","round":0}',
        b'{"kind":"header","schema":3}',
        b"\xff\xfe",
        b"[" * 10**5,
    ],
)
def test_a_malformed_line_ends_the_reading(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / reader.NAME
    offsets = write_example(path)
    content = path.read_bytes()
    path.write_bytes(content[: offsets[1]] + bad + b"\n" + content[offsets[1] :])
    run = reader.read(path)
    assert len(run.rounds) == 1
    assert run.note is not None and "malformed at line 3" in run.note


def test_a_file_that_is_no_record_reads_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    for content in (b"", b"hello", b"hello\n", b'{"kind":"round","round":0}\n'):
        path.write_bytes(content)
        run = reader.read(path)
        assert run == RunRecord(note=run.note)
        assert run.note is not None and "line 1" in run.note


def test_unknown_kinds_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / reader.NAME
    weather = atomic_io.with_checksum('{"kind":"weather","sunny":true}') + b"\n"
    path.write_bytes(encode(HeaderLine()) + weather + encode(RoundLine(round=1)))
    run = reader.read(tmp_path)
    assert len(run.rounds) == 1 and run.note is None


def test_appending_cuts_what_the_checkpoint_does_not_cover(tmp_path: Path) -> None:
    path = tmp_path / reader.NAME
    offsets = write_example(path)
    whole = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b'{"kind":"rou')
    writer = LineWriter.append_to(path, offsets[1])
    assert writer.offset == offsets[1]
    for number in (2, 3):
        writer.write(RoundLine(round=number, accuracy=0.4 + number / 10, loss=math.nan))
    writer.write(SetupLine(round=3, part="x"))
    writer.write(EndLine(best=0.7))
    assert writer.offset == offsets[-1]
    writer.close()
    assert path.read_bytes() == whole


def test_a_line_is_written_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LineWriter.create(tmp_path / reader.NAME, HeaderLine())
    pieces: list[bytes] = []
    real = os.write

    def watched(descriptor: int, data: memoryview) -> int:
        pieces.append(bytes(data))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    writer.write(RoundLine(round=1, note="x" * 10**5))
    assert len(pieces) == 1 and pieces[0].endswith(b"}\n")


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:5]))
    offsets = write_example(tmp_path / reader.NAME)
    assert reader.read(tmp_path).end is not None
    assert offsets[-1] == (tmp_path / reader.NAME).stat().st_size


@given(st.dictionaries(st.text().filter(lambda name: name not in ("kind", "round")), values, max_size=4))
def test_any_json_value_comes_back_and_the_file_is_strict_json(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("record") / reader.NAME
    writer = LineWriter.create(path, HeaderLine())
    writer.write(RoundLine(round=1, **fields))
    writer.close()
    line = reader.read(path).rounds[0]
    assert repr(dict(line.items())) == repr({"round": 1, **fields})

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for text in path.read_text().splitlines():
        json.loads(text, parse_constant=refuse)


def test_user_errors(tmp_path: Path) -> None:
    path = tmp_path / reader.NAME
    with pytest.raises(UserError, match="cannot be read: No such file"):
        reader.read(tmp_path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        reader.read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="cannot be created: No such file"):
        LineWriter.create(tmp_path / "nowhere" / reader.NAME, HeaderLine())
    with pytest.raises(UserError, match="cannot be continued: No such file"):
        LineWriter.append_to(path, 0)
    LineWriter.create(path, HeaderLine()).close()
    with pytest.raises(UserError, match="cannot be created: File exists"):
        LineWriter.create(path, HeaderLine())
    with pytest.raises(UserError, match="Restore a copy of at least 9999"):
        LineWriter.append_to(path, 9999)
    for schema in ("1", "2", "4", "null"):
        path.write_text(f'{{"kind":"header","schema":{schema}}}\n')
        with pytest.raises(UserError, match=r"this version of fedskew reads schema 3\. Read it with the version"):
            reader.read(path)


def test_summary_counts_only_counted_and_evaluated_rounds() -> None:
    rounds = [RoundLine(round=20, accuracy=0.99, counted=False)]
    rounds += [RoundLine(round=number, accuracy=number / 100, counted=True) for number in range(1, 13)]
    rounds += [RoundLine(round=13, loss=1.0), RoundLine(round=14, accuracy=0.12), RoundLine(round=15, accuracy=None)]
    summary = scores.summary(rounds)
    assert (summary["best"], summary["best_round"], summary["last"]) == (0.12, 12, 0.12)
    # (0.04 + 0.05 + ... + 0.12 + 0.12) / 10
    assert summary["last10"] == pytest.approx(0.084)
    assert scores.first_reaching(rounds, 0.05) == 5
    assert scores.first_reaching(rounds, 0.5) is None


def test_what_is_not_a_number_is_best_only_if_nothing_else_is_there() -> None:
    nan = float("nan")
    rounds = [RoundLine(round=number, accuracy=share) for number, share in enumerate([nan, 0.5, 0.25], 1)]
    summary = scores.summary(rounds)
    assert (summary["best"], summary["best_round"], summary["last"]) == (0.5, 2, 0.25)
    lost = scores.summary(rounds[:1])
    assert lost["best_round"] is None and lost["best"] is not None and math.isnan(lost["best"])
    assert (
        scores.summary([RoundLine(round=1, accuracy=0.5, balanced_accuracy=0.25)], "balanced_accuracy")["best"] == 0.25
    )


def test_summary_of_nothing() -> None:
    assert scores.summary([]) == {"best": None, "best_round": None, "last": None, "last10": None}
