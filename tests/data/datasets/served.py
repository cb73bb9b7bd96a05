"""A web server on this machine, with ranges, that can misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """`ranges` holds the Range header of each request for a file, `sent` counts bytes of content."""

    files: Mapping[str, bytes]
    break_after: list[int]
    codes: list[int]
    with_ranges: bool
    shifted: int
    hold: bool
    endless: bool
    elsewhere: str

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.released = threading.Event()
        self.ranges: list[str | None] = []
        self.sent = 0

    def url(self, name: str = "") -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers["Range"]
        server.ranges.append(asked)
        content = server.files.get(self.path.removeprefix("/"))
        code = server.codes.pop(0) if server.codes else 404 if content is None else 200
        if code != 200 or content is None:
            self.send_error(code)
            return
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.with_ranges else 0
        if begin and begin >= len(content):
            self.send_error(416)
            return
        if server.elsewhere:
            self.send_response(302)
            self.send_header("Location", server.elsewhere)
            self.end_headers()
            return
        if server.endless:
            self._send_for_ever(content)
            return
        body = content[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body) + server.hold))
        if begin:
            first = begin + server.shifted
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        body = body[: server.break_after.pop(0)] if server.break_after else body
        self.wfile.write(body)
        server.sent += len(body)
        if server.hold:
            server.released.wait(60)

    def _send_for_ever(self, content: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # the client has left
            while not self.server.released.is_set():
                self.wfile.write(content)
                self.server.sent += len(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(
    files: Mapping[str, bytes],
    *,
    break_after: Sequence[int] = (),
    codes: Sequence[int] = (),
    ranges: bool = True,
    shifted: int = 0,
    hold: bool = False,
    endless: bool = False,
    elsewhere: str = "",
) -> Iterator[Server]:
    """Serve files; the first answers break off after so many bytes, or are these codes; on hold, a last byte is due.

    An `endless` server names no length and sends a file again and again; `elsewhere` is where all are sent on to.
    """
    with Server() as server:
        server.files, server.break_after, server.codes = files, list(break_after), list(codes)
        server.with_ranges, server.shifted, server.hold = ranges, shifted, hold
        server.endless, server.elsewhere = endless, elsewhere
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()
