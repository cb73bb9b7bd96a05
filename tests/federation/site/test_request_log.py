"""A site's log: whatever is changed, removed, inserted or cut is detected, and an interrupted write is completed."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.federation.security import certificates
from fedskew.federation.site import request_log
from fedskew.federation.site.request_log import HEAD, LOG, Damaged, RequestLog


def written(folder: Path, lines: int = 6) -> tuple[bytes, bytes]:
    """A log of a site with a key; the bytes of it and of its head."""
    folder.mkdir(exist_ok=True)
    certificates.make_site_key(folder, "north")
    log = RequestLog(folder)
    log.append("approval", name="fedavg", approval="a" * 64)
    for number in range(lines - 1):
        log.append("answer", run="0" * 32, asked="updates of stage 0", said=f"round {number}, \u00e9\n")
    return (folder / LOG).read_bytes(), (folder / HEAD).read_bytes()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    written(folder)
    return folder


def restored(folder: Path, log: bytes, head: bytes) -> None:
    (folder / LOG).write_bytes(log)
    (folder / HEAD).write_bytes(head)


def test_lines_are_numbered_chained_and_for_their_owner_only(site: Path) -> None:
    lines = RequestLog(site).read()
    assert [line["n"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["before"] for line in lines] == ["0" * 64, *(line["hash"] for line in lines[:-1])]
    assert {stat.S_IMODE((site / name).stat().st_mode) for name in (LOG, HEAD)} == {0o600}
    assert {path.name for path in site.iterdir()} == {"key", "key.pub", LOG, HEAD}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_single_byte_change_is_detected(site: Path, data: st.DataObject) -> None:
    log, head = (site / LOG).read_bytes(), (site / HEAD).read_bytes()
    name = data.draw(st.sampled_from([LOG, HEAD]))
    content = bytearray({LOG: log, HEAD: head}[name])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    try:
        (site / name).write_bytes(content)
        with pytest.raises(Damaged) as found:
            RequestLog(site).read()
        line = log[:at].count(b"\n") + 1
        assert name == HEAD or f"line {line} of" in str(found.value)
    finally:
        restored(site, log, head)


@pytest.mark.parametrize(
    "change, line",
    [
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: lines[:-2], 5),
        (lambda lines: lines[:2], 3),
        (lambda lines: [], 1),
        (lambda lines: [*lines[:-2], lines[-2][:-20]], 5),
        (lambda lines: [*lines[:-1], lines[-1][1:-20]], 6),
        (lambda lines: [*lines, lines[-1]], 7),
        (lambda lines: [*lines, b"\n"], 7),
        (lambda lines: [*lines, b"{"], 7),
    ],
)
def test_removed_inserted_and_cut_lines_are_named(change: Callable[..., list[bytes]], line: int, site: Path) -> None:
    log, head = (site / LOG).read_bytes(), (site / HEAD).read_bytes()
    try:
        (site / LOG).write_bytes(b"".join(change(log.splitlines(keepends=True))))
        with pytest.raises(Damaged, match=f"line {line} of '.*{LOG}'"):
            RequestLog(site).read()
    finally:
        restored(site, log, head)


def test_nobody_without_the_sites_key_can_write_it_anew(tmp_path: Path) -> None:
    """A stranger makes a chain that holds, with another key: its end is not signed by this site."""
    written(tmp_path / "site")
    log, head = written(tmp_path / "stranger", 3)
    restored(tmp_path / "site", log, head)
    with pytest.raises(Damaged, match=rf"{HEAD}' is not signed with this site's key"):
        RequestLog(tmp_path / "site").read()
    (tmp_path / "site" / HEAD).unlink()
    with pytest.raises(Damaged, match=rf"{HEAD}' is missing"):
        RequestLog(tmp_path / "site").append("request")


def test_an_older_log_with_a_newer_head_is_detected_and_the_other_way_round(tmp_path: Path) -> None:
    older = written(tmp_path, 3)
    RequestLog(tmp_path).append("request")
    RequestLog(tmp_path).append("request")
    newer = (tmp_path / LOG).read_bytes(), (tmp_path / HEAD).read_bytes()
    for log, head in ((older[0], newer[1]), (newer[0], older[1])):
        restored(tmp_path, log, head)
        with pytest.raises(Damaged):
            RequestLog(tmp_path).append("request")


@pytest.mark.parametrize("reached", [0, 1, 50, -1])
def test_a_line_that_a_killed_process_was_writing_is_completed(reached: int, tmp_path: Path) -> None:
    """The head is written first: of the last line none, some or all but the end are on the disk."""
    log, head = written(tmp_path, 3)
    before, last = log[: log[:-1].rindex(b"\n") + 1], log[log[:-1].rindex(b"\n") + 1 :]
    restored(tmp_path, before + last[:reached], head)
    shown = RequestLog(tmp_path).read()  # looking shows the line, accuses nobody and changes nothing
    assert [(line["n"], line.get("pending", False)) for line in shown] == [(1, False), (2, False), (3, True)]
    assert (tmp_path / LOG).read_bytes() == before + last[:reached]
    RequestLog(tmp_path).append("start")
    assert (tmp_path / LOG).read_bytes().startswith(log)
    assert [line["kind"] for line in RequestLog(tmp_path).read()] == ["approval", "answer", "answer", "start"]


def test_a_log_that_is_missing_beside_approvals_is_damage(tmp_path: Path) -> None:
    written(tmp_path, 2)
    (tmp_path / "approvals").mkdir()
    for name in (LOG, HEAD):
        (tmp_path / name).unlink()
    assert RequestLog(tmp_path).read() == []
    (tmp_path / "approvals" / "fedavg.json").write_text("{}")
    remedy = "stop the site, move 'log.jsonl', 'log.head' and 'approvals' elsewhere, approve again, and start it"
    for look in (RequestLog(tmp_path).read, RequestLog(tmp_path).refresh):
        with pytest.raises(Damaged, match=f"{LOG}' is missing, and 'approvals' is not empty.*{remedy}"):
            look()
    assert not (tmp_path / LOG).exists()


def test_lines_are_read_one_by_one_and_not_kept(tmp_path: Path) -> None:
    """A coordinator can ask without end; what it filled the log with must fit into memory all the same."""
    certificates.make_site_key(tmp_path, "north")
    log = RequestLog(tmp_path)
    for _ in range(40):
        log.append("request", said="x" * 100_000)
    tracemalloc.start()
    RequestLog(tmp_path).refresh()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2e6 < (tmp_path / LOG).stat().st_size


def _taking(folder: Path, name: str) -> None:
    def chosen(usage: request_log.Usage) -> dict[str, str]:
        if len(usage.answers["a" * 64, "updates"]) >= 5:
            raise UserError("used up")
        return {"approval": "a" * 64, "sha256": name + str(len(usage.answers["a" * 64, "updates"]))}

    log = RequestLog(folder)
    for _ in range(10):
        with suppress(UserError):
            log.append("answer", chosen, asked="updates", request=name)


def test_what_is_counted_is_counted_in_the_step_that_writes_it_down(tmp_path: Path) -> None:
    certificates.make_site_key(tmp_path, "north")
    started = [multiprocessing.get_context("fork").Process(target=_taking, args=(tmp_path, name)) for name in "abc"]
    for each in started:
        each.start()
    for each in started:
        each.join()
        assert each.exitcode == 0
    assert len(RequestLog(tmp_path).read()) == 5


def _appending(folder: Path, name: str) -> None:
    log = RequestLog(folder)
    for number in range(20):
        log.append("request", by=name, number=number)


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    certificates.make_site_key(tmp_path, "north")
    started = [multiprocessing.get_context("fork").Process(target=_appending, args=(tmp_path, name)) for name in "abc"]
    for each in started:
        each.start()
    for each in started:
        each.join()
        assert each.exitcode == 0
    lines = RequestLog(tmp_path).read()
    assert len(lines) == 60
    for name in "abc":
        assert [line["number"] for line in lines if line["by"] == name] == list(range(20))


def test_what_cannot_be_written_down_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full for the head, then for the line; afterwards the log is whole."""
    log, _ = written(tmp_path, 2)
    used = RequestLog(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for place, name in ((atomic_io, "write"), (os, "fsync")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with pytest.raises(OSError, match="No space"):
                used.append("answer", said="never")
    used.append("answer", said="now")
    lines = RequestLog(tmp_path).read()
    assert lines[-1]["said"] == "now" and (tmp_path / LOG).read_bytes().startswith(log)


def test_a_new_key_goes_on_with_the_same_log(tmp_path: Path) -> None:
    written(tmp_path, 2)
    old = (tmp_path / "key").read_bytes()
    RequestLog(tmp_path).rekey(partial(certificates.make_site_key, tmp_path, "north"))
    RequestLog(tmp_path).append("start")
    lines = RequestLog(tmp_path).read()
    assert [line["kind"] for line in lines] == ["approval", "answer", "key", "start"]
    assert (tmp_path / "key.pub").read_text().startswith(lines[2]["key"])
    (tmp_path / "key").write_bytes(old)
    with pytest.raises(Damaged, match="is not signed with this site's key"):
        RequestLog(tmp_path).read()


def test_what_a_year_costs(tmp_path: Path) -> None:
    """100 rounds a week: an update and scores in each, and two lines for each of them; as the page says, some 10 MB."""
    certificates.make_site_key(tmp_path, "north")
    log, sha = RequestLog(tmp_path), "f" * 64
    facts = {"asked": "updates of stage 0", "request": sha, "run": "0" * 32, "round": 100, "turn": 100}
    facts |= {"method": "fedlmd+prox", "rounds": 100}
    log.append("request", **facts)
    left = {"left": {"weights": "6 float32"}, "numbers": ["client", "examples", "loss", "seconds", "steps"]}
    log.append("answer", **facts, approval=sha, name="fedlmd-prox", sha256=sha, bytes=164_808, **left)
    a_year = len((tmp_path / LOG).read_bytes()) * 2 * 100 * 52
    assert 5e6 < a_year < 15e6
    assert json.loads((tmp_path / LOG).read_text().splitlines()[1])["bytes"] == 164_808
