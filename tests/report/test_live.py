from __future__ import annotations

import html
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.record import reader, run_lock
from fedskew.record.schema import EndLine, HeaderLine, RoundLine
from fedskew.record.writer import LineWriter
from fedskew.report import live, load
from tests.report import fakes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fakes.write(tmp_path / "run", [0.25, 0.5], end=False)


@pytest.fixture
def server(folder: Path) -> Iterator[live.PageServer]:
    with live.PageServer(live.Watched([folder])) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def append(folder: Path, line: str) -> None:
    with (folder / reader.NAME).open("a") as file:
        file.write(line)


def ask(server: live.PageServer, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    reply = connection.getresponse()
    found = reply.status, reply.read().decode()
    connection.close()
    return found


def round_line(number: int) -> str:
    text = f'{{"kind":"round","round":{number + 1},"accuracy":0.75,"up":10,"down":20,"seconds":0.5}}'
    return atomic_io.with_checksum(text).decode() + "\n"


ROUND = round_line(2)


# ---- what is sent ---------------------------------------------------------------------------------------------------


def test_only_new_rounds_and_panels_that_change_are_sent(folder: Path) -> None:
    watched = live.Watched([folder])
    cursor = watched.look().cursor
    assert watched.look().news(cursor) is None
    append(folder, ROUND)
    news = watched.look().news(cursor)
    assert news is not None
    assert news["rows"] == [{"from": 2, "rows": [[3, 0.75, 0.5, 10, 20]]}]
    assert {"state", "verdict", "cost"} <= set(news["panels"])
    assert not {"curves", "partition", "detection", "again"} & set(news["panels"])
    assert watched.look().news(news["cursor"]) is None


def test_half_a_line_is_no_round_yet(folder: Path) -> None:
    watched = live.Watched([folder])
    cursor = watched.look().cursor
    append(folder, ROUND[:20])
    half = watched.look().news(cursor)
    assert half is not None and half["rows"] == [{"from": 2, "rows": []}]
    assert "ends in the middle of line 4" in half["panels"]["setting"]
    append(folder, ROUND[20:])
    whole = watched.look().news(half["cursor"])
    assert whole is not None and [row[0] for row in whole["rows"][0]["rows"]] == [3]


def test_a_record_cut_back_by_a_resume_is_sent_from_its_beginning(folder: Path) -> None:
    watched, path = live.Watched([folder]), folder / reader.NAME
    cursor = watched.look().cursor
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + round_line(1))
    news = watched.look().news(cursor)
    assert news is not None
    assert news["rows"][0]["from"] == 0
    assert [row[:2] for row in news["rows"][0]["rows"]] == [[1, 0.25], [2, 0.75]]


def test_a_run_that_joins_asks_for_a_reload(tmp_path: Path) -> None:
    fakes.write(tmp_path / "one", [0.5])
    watched = live.Watched([tmp_path])
    cursor = watched.look().cursor
    fakes.write(tmp_path / "two", [0.5], seed=1)
    assert watched.look().news(cursor) == {"reload": True}


def test_a_folder_that_is_away_for_a_moment_changes_nothing(folder: Path) -> None:
    watched = live.Watched([folder])
    cursor = watched.look().cursor
    (folder / reader.NAME).rename(folder / "away")
    assert watched.look().cursor == cursor
    (folder / "away").rename(folder / reader.NAME)
    assert watched.look().cursor == cursor


def test_where_there_is_no_run_one_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no run"):
        live.PageServer(live.Watched([tmp_path]))


# ---- states ---------------------------------------------------------------------------------------------------------


def test_a_run_is_starting_then_running_then_stalled_then_dead_then_finished(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock = run_lock.locked(folder)
    lock.__enter__()
    writer = LineWriter.create(folder / reader.NAME, HeaderLine(**fakes.header("fedavg", 0)))

    def now(quiet: float) -> str:
        (each,) = load.read([folder])
        return live.state(each, quiet)

    # nobody knows yet how long a round takes
    assert [now(quiet) for quiet in (0.0, 31.0, 1e9)] == ["starting"] * 3
    writer.write(RoundLine(round=1, accuracy=0.5, seconds=10.0))
    # the slowest round took 10 s: five times that are waited for
    assert [now(quiet) for quiet in (0.0, 49.0, 51.0)] == ["running", "running", "stalled"]
    lock.__exit__(None, None, None)
    assert now(0.0) == "dead"
    with run_lock.locked(folder):
        assert now(0.0) == "running"
        writer.write(EndLine(seconds=1.0))
        assert now(1e9) == "finished"
    writer.close()


def test_states_are_words(folder: Path) -> None:
    listed = live.Watched([folder]).look().states
    assert "<b>dead</b> fedavg, seed 0: 2 of 3 rounds in 1.0 s" in listed
    assert f"continue with: fedskew resume {folder}</li>" in listed


def test_rounds_beside_those_asked_for_do_not_count(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "run", [0.25] * 5, end=False, counted=False)
    assert "0 of 3 rounds" in live.Watched([folder]).look().states


def test_the_command_to_continue_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "my run", [0.25], end=False)
    listed = html.unescape(live.Watched([folder]).look().states)
    assert f"fedskew resume '{folder}'</li>" in listed


# ---- who is answered ------------------------------------------------------------------------------------------------


def test_the_page_and_its_news_are_at_the_address_with_the_token(server: live.PageServer, folder: Path) -> None:
    code, text = ask(server, f"/{server.token}/")
    assert code == 200 and 'data-live="news"' in text
    cursor = server.watched.look().cursor
    append(folder, ROUND)
    code, text = ask(server, f"/{server.token}/news?cursor={quote(cursor)}")
    assert code == 200 and json.loads(text)["rows"][0]["rows"][0][:2] == [3, 0.75]


def test_a_question_waits_until_there_is_news(server: live.PageServer, folder: Path) -> None:
    cursor = server.watched.look().cursor
    later = threading.Timer(0.3, append, (folder, ROUND))
    began = time.monotonic()
    later.start()
    _, text = ask(server, f"/{server.token}/news?cursor={quote(cursor)}")
    assert time.monotonic() - began >= 0.3
    assert len(json.loads(text)["rows"][0]["rows"]) == 1


def test_without_news_an_empty_answer_comes(server: live.PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LONG_POLL_SECONDS", 0.0)
    cursor = server.watched.look().cursor
    assert json.loads(ask(server, f"/{server.token}/news?cursor={quote(cursor)}")[1]) == {
        "cursor": cursor,
        "rows": [],
        "panels": {},
    }


@pytest.mark.parametrize("path", ["/", "/news", "/wrong/", "/wrong/news?cursor=x", "/{token}", "/{token}/other", "/é/"])
def test_requests_without_the_token_are_refused(server: live.PageServer, path: str) -> None:
    assert ask(server, quote(path.format(token=server.token), safe="/?="))[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "[::1"])
def test_another_name_for_this_machine_is_refused(server: live.PageServer, host: str) -> None:
    assert ask(server, f"/{server.token}/", host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1"])
def test_this_machine_may_be_reached_through_a_tunnel(server: live.PageServer, host: str) -> None:
    assert ask(server, f"/{server.token}/", host)[0] == 200


@pytest.mark.parametrize(
    "query", ["", "?cursor=", "?cursor=x", "?cursor=[]", "?cursor={}", "?cursor=3", "?cursor=" + 20000 * "["]
)
def test_a_cursor_that_is_not_ours_is_refused(server: live.PageServer, query: str) -> None:
    assert ask(server, f"/{server.token}/news{query}")[0] == 400


def test_it_listens_to_this_machine_only_and_tokens_differ(server: live.PageServer, folder: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with live.PageServer(live.Watched([folder])) as other:
        assert other.token != server.token and len(other.token) >= 20
    with pytest.raises(UserError, match=f"port {server.server_port} cannot be used"):
        live.PageServer(live.Watched([folder]), server.server_port)


def test_a_writer_that_is_gone_leaves_no_lock(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        run_lock.locked(tmp_path).__enter__()
        os._exit(0)  # like a kill: nothing is closed in order
    os.waitpid(child, 0)
    assert (tmp_path / run_lock.NAME).exists() and run_lock.is_locked(tmp_path) is False
    assert run_lock.is_locked(tmp_path / "nothing") is False
