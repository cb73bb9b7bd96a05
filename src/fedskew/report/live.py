"""The report of running runs: served to this machine only, and updated.

The page asks for news with a cursor that says what it has. The answer comes as soon as there is more: new rounds, and
the panels that they change. The server keeps no state per page, so reloads, kills and resumed runs need no special
care.
"""

from __future__ import annotations

import json
import secrets
import shlex
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs

from fedskew.core.errors import UserError
from fedskew.record import reader, run_lock
from fedskew.report import load, tables
from fedskew.report.html import page
from fedskew.report.load import LoadedRun

#: seconds between two looks at the records, and seconds after which a question is answered even without news
POLL_SECONDS, LONG_POLL_SECONDS = 0.5, 20.0
#: a run is stalled when nothing came for so many seconds, and for so many times its slowest recent round
PATIENCE, SLOWER = 30.0, 5.0

State = Literal["starting", "running", "stalled", "dead", "finished"]


def state(each: LoadedRun, quiet: float) -> State:
    """Return the state of a run whose record has not changed for some seconds."""
    if each.run.end is not None:
        return "finished"
    if run_lock.is_locked(_file(each.path).parent) is False:
        return "dead"
    if not each.run.rounds:  # so how long a round takes is unknown
        return "starting"
    slowest = max(line.get("seconds", 0.0) for line in each.run.rounds[-5:])
    return "running" if quiet <= max(PATIENCE, SLOWER * slowest) else "stalled"


@dataclass(frozen=True)
class Snapshot:
    """The page at one moment; `sums[r][n]` is a checksum of the first n rounds of run r."""

    loaded: list[LoadedRun]
    drawn: page.RenderedPage
    states: str
    sums: list[list[int]]
    layout: int

    @property
    def panels(self) -> dict[str, str]:
        """The panels that change with time, without the frame of the curves."""
        return {"state": self.states} | {name: html for name, html in self.drawn.panels.items() if name != "curves"}

    @property
    def cursor(self) -> str:
        """What a page that shows this snapshot sends as its cursor."""
        has = {"layout": self.layout, "rows": [[len(each) - 1, each[-1]] for each in self.sums]}
        return _compact(has | {"panels": {name: _sum(html) for name, html in self.panels.items()}})

    def news(self, cursor: str) -> dict[str, Any] | None:
        """Return what a page with that cursor lacks; None if nothing."""
        if cursor == self.cursor:
            return None
        has = json.loads(cursor)
        if has["layout"] != self.layout:
            return {"reload": True}
        rows = []
        for run, sums, (count, known) in zip(self.drawn.curves["runs"], self.sums, has["rows"], strict=True):
            start = count if count < len(sums) and sums[count] == known else 0
            rows.append({"from": start, "rows": run["rows"][start:]})
        changed = {name: html for name, html in self.panels.items() if has["panels"].get(name) != _sum(html)}
        return {"cursor": self.cursor, "rows": rows, "panels": changed}


@dataclass
class Watched:
    """Watch records, and draw them again when they change."""

    paths: Sequence[Path]
    _seen: Snapshot | None = None
    _stamps: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> Snapshot:
        with self._lock:
            try:
                stamps = {path: _stamp(_file(path)) for path in load.folders(self.paths)}
                if self._seen is None or stamps != self._stamps:
                    self._seen, self._stamps = self._draw(load.read(self.paths)), stamps
                else:
                    self._seen = self._with_states(self._seen)
            except (UserError, OSError):  # a run that starts again removes its folder for a moment
                if self._seen is None:
                    raise
            return self._seen

    def _draw(self, loaded: list[LoadedRun]) -> Snapshot:
        before = self._seen
        reuse = page.unchanged(before.loaded, loaded) if before else []
        drawn = page.draw(loaded, before.drawn if before else None, reuse)
        sums = [
            list(accumulate(run["rows"], lambda sofar, row: zlib.crc32(_compact(row).encode(), sofar), initial=0))
            for run in drawn.curves["runs"]
        ]
        who = [(run["group"], run["seed"]) for run in drawn.curves["runs"]]
        layout = _sum(_compact([drawn.title, drawn.curves["metrics"], drawn.curves["groups"], who]))
        return Snapshot(loaded, drawn, _states(loaded), sums, layout)

    def _with_states(self, seen: Snapshot) -> Snapshot:
        return Snapshot(seen.loaded, seen.drawn, _states(seen.loaded), seen.sums, seen.layout)


def _states(loaded: Sequence[LoadedRun]) -> str:
    states: list[dict[str, str]] = []
    for each in loaded:
        changed = _stamp(_file(each.path))[0] / 1e9
        now = state(each, time.time() - changed)
        spent = tables.duration(tables.seconds(each.run))
        says = f"{each.done} in {spent}"
        since = time.strftime("%H:%M:%S", time.localtime(changed))
        resume = shlex.join(("fedskew", "resume", str(each.path)))
        after = {
            "stalled": f"; its process is alive, but has written nothing since {since}",
            "dead": f"; its process ended at {since} or later; continue with: {resume}",
        }
        states.append({"state": now, "name": each.title, "says": says + after.get(now, "")})
    return page.state_panel(states)


class PageServer(ThreadingHTTPServer):
    """Serve the page to this machine, at an address with a secret token."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int = 0) -> None:
        self.watched, self.token = watched, secrets.token_urlsafe(16)
        watched.look()  # raises an error for wrong paths
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"port {port} cannot be used: {error}. Choose another --port, or 0 for a free one."
            ) from None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10  # seconds to send a request

    def do_GET(self) -> None:
        # another site's name may resolve to this machine (DNS rebinding); its requests name that site as their host
        if self.headers.get("Host", "").partition(":")[0] not in ("127.0.0.1", "localhost"):
            return self._answer(403, "text/plain", "This address is for the same machine only.\n")
        path, _, query = self.path.partition("?")
        token, *rest = path.removeprefix("/").split("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()) or rest not in ([""], ["news"]):
            return self._answer(
                404, "text/plain", "There is no page here; open the address that was printed at the start.\n"
            )
        if rest == [""]:
            seen = self.server.watched.look()
            return self._answer(200, "text/html", page.assemble(seen.drawn, "news", seen.cursor, seen.states))
        try:
            news = self._wait(parse_qs(query)["cursor"][0])
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
            return self._answer(400, "text/plain", "The cursor is invalid; reload the page.\n")
        return self._answer(200, "application/json", _compact(news))

    def _wait(self, cursor: str) -> dict[str, Any]:
        deadline = time.monotonic() + LONG_POLL_SECONDS
        while (news := self.server.watched.look().news(cursor)) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return news or {"cursor": cursor, "rows": [], "panels": {}}

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode(errors="backslashreplace")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # the browser closed the connection
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Log nothing: the run may show its progress in the same terminal."""


def _file(path: Path) -> Path:
    return path / reader.NAME if path.is_dir() else path


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, -1)
    return found.st_mtime_ns, found.st_size


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _sum(text: str) -> int:
    return zlib.crc32(text.encode(errors="backslashreplace"))
