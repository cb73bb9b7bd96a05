"""Whole records whose fields are not what we write: read up to there, with a note, and never a traceback."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedskew.core import atomic_io
from fedskew.detection.judge import JudgeOptions
from fedskew.record import reader, schema
from fedskew.report import detection, load
from fedskew.report.html import detection_page, detection_words, page
from tests.commands import succeed
from tests.report import detected, fakes

CLIENT = {"client": 0, "accuracy_all": 0.5, "accuracy_vacant": 0.25, "recall": [0.5, "nan", 1.0]}
ROUND = {
    "kind": "round", "round": 1, "counted": True, "stage": 0, "lr": 0.1, "asked": 2, "replies": 1, "examples": 8,
    "steps": 2, "loss": 0.7, "up": 10, "down": 20, "lost": {"1": "too late"}, "late": [1], "clients": [CLIENT],
    "drift_diversity": 1.0, "client_all": 0.5, "client_majority": 0.5, "client_minority": None, "client_vacant": 0.25,
    "accuracy": 0.5, "balanced_accuracy": 0.5, "test_loss": 0.9, "recall": [0.5, "nan", 1.0], "predicted": [1, 2, 3],
    "seconds": 0.5,
}  # fmt: skip
END = {
    "kind": "end", "best": 0.5, "best_round": 1, "last": 0.5, "last10": 0.5, "seconds": 1.0, "weights_sha256": "5eed",
    "confusion": [[1, 0, 0], [0, 1, 1], [0, 0, 1]], "privacy": {"epsilon": None, "delta": 1e-5, "statement": "none"},
}  # fmt: skip
#: what is looked at again of a judgment in a record
READ = ((), ("options",), ("verdict",))


def whole() -> list[dict[str, Any]]:
    """A record with everything in it that a report looks at."""
    rates = [0.4 if client in (1, 4) else 0.0 for client in range(10)]
    noise = {"kind": "symmetric", "noisy": [1, 4], "target": rates, "realized": rates, "flips": [[0]]}
    header = {"kind": "header", "schema": reader.SCHEMA, **fakes.header("fednoro", 0), "noise": noise}
    setup_line = {"kind": "setup", **detected.setup_line(detected.cells([1, 4]), round=1)}
    setup_line["verdict"]["judgment"]["options"] |= {"simulations": 9, "seeds": 2}
    return [header, setup_line, ROUND, END]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a value; of lists, which are of one kind, the first only."""
    keys = list(value) if isinstance(value, dict) else [0] if isinstance(value, list) and value else []
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    made = copy.deepcopy(value)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return made


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / reader.NAME).write_bytes(b"".join(atomic_io.with_checksum(json.dumps(line)) + b"\n" for line in lines))
    return folder


def _stated(run: reader.RunRecord) -> None:
    """What is said of a detection, without its picture, which takes long."""
    if detection.setups(run):
        found = detection.detect(run)
        assert detection_words.headline(found) and detection_words.decided(found.shown)
        assert len([detection_page.row(found, client) for client in found.shown.clients]) == 10
        detection_words.warnings(found)


@pytest.mark.parametrize("number", range(4), ids=["header", "setup", "round", "end"])
def test_whatever_a_field_is_replaced_by_a_page_is_made(number: int, tmp_path: Path) -> None:
    lines, drawn, refused = whole(), 0, 0
    for path in places(lines[number]):
        if path in (("kind",), ("schema",)) or (path[:2] == ("verdict", "judgment") and path[2:3] not in READ):
            continue
        for new in ("word", None, ...) if number == 1 else ("word", -1.5, 10**400, [], {}, None, ...):
            made = changed(lines, (number, *path), new)
            run = write(tmp_path / "run", made if number == 1 else [made[0], *made[2:]])
            found = reader.read(run)
            if found.note is not None:
                assert "is malformed at line" in found.note
                refused += 1
                continue
            drawn += 1
            try:
                _stated(found) if number == 1 else page.html(load.read([run]))
            except Exception as error:
                pytest.fail(f"{path} is {new!r}: {error!r}")
    assert drawn >= 5 and refused > 30


@pytest.mark.parametrize(
    ("number", "path", "new"),
    [
        (1, ("config", "local"), ...),
        (1, ("stages",), 2),
        (1, ("stages",), [["Detect"]]),
        (1, ("counts",), [["<img src=x onerror=1>", 1]]),
        (1, ("counts",), [[1, 2, 3], [4, 5]]),
        (1, ("config",), [1]),
        (1, ("data", "labels"), [1, 2]),
        (2, ("verdict", "cells", "se"), []),
        (3, ("accuracy",), "0.5"),
        (3, ("seconds",), "half"),
        (3, ("recall",), "half"),
        (3, ("up",), 1.5),
        (3, ("counted",), 1),
        (4, ("confusion",), [[1, 2]]),
    ],
)
def test_a_field_of_another_type_ends_the_reading(number: int, path: tuple[str, ...], new: Any, tmp_path: Path) -> None:
    assert reader.read(write(tmp_path / "run", whole())).note is None
    found = reader.read(write(tmp_path / "run", changed(whole(), (number - 1, *path), new)))
    assert found.note is not None and f"malformed at line {number}; read up to there" in found.note


def test_the_report_says_what_it_could_not_read(tmp_path: Path) -> None:
    write(tmp_path / "run", changed(whole(), (2, "seconds"), "half"))
    succeed("report", tmp_path / "run", "-o", tmp_path / "page.html")
    assert "malformed at line 3; read up to there" in (tmp_path / "page.html").read_text()


def test_a_class_that_is_called_like_a_number_keeps_its_name(tmp_path: Path) -> None:
    header = changed(whole()[0], ("data", "labels"), ["inf", "nan", "c"])
    read = reader.read(write(tmp_path / "run", [header, ROUND]))
    assert read.header["data"]["labels"] == ["inf", "nan", "c"]


def test_the_options_of_a_detection_are_those_that_there_are() -> None:
    assert set(schema.RecordedOptions.__annotations__) == {field.name for field in fields(JudgeOptions)}


def test_looking_at_every_field_costs_little(tmp_path: Path) -> None:
    clients = [CLIENT | {"client": k, "recall": [0.5] * 10} for k in range(10)]
    many = [ROUND | {"round": index + 1, "recall": [0.5] * 100, "clients": clients} for index in range(200)]
    run = write(tmp_path / "run", [whole()[0], *many])
    lines = (run / reader.NAME).read_bytes().splitlines()
    assert len(reader.read(run).rounds) == 200
    # so many times what Python needs for its JSON: 50 such runs are to be read in a part of 10 s
    assert seconds(lambda: reader.read(run)) < 10 * seconds(lambda: [json.loads(line) for line in lines])


def seconds(work: Callable[[], object]) -> float:
    """The least of ten times, because the garbage of the tests before may be collected in some."""

    def once() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return min(once() for _ in range(10))
