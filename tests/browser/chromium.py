"""A headless Chromium, driven through the two pipes of its DevTools protocol; the standard library is enough."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any

#: seconds; only a hang is of interest, and a busy machine may need many for a start
PATIENCE = 120.0


class Browser:
    """Commands go in at descriptor 3, answers and events come out at 4, each ended by a zero byte."""

    def __init__(self) -> None:
        program = shutil.which("chromium")
        assert program, "these tests need Chromium: apt-get install chromium"
        self._folder = tempfile.mkdtemp(prefix="fedskew-browser-")
        ours_out, theirs_in = _pipe()[::-1]
        theirs_out, ours_in = _pipe()[::-1]

        def idle() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self._folder}", "--disable-background-networking"]
        self._process = subprocess.Popen(
            [program, *flags, "about:blank"], preexec_fn=idle, pass_fds=(3, 4), stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = ours_out, ours_in
        self._rest, self._number = b"", 0
        self._shown: str | None = None
        self.events: list[dict[str, Any]] = []

    def page(self, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A new tab in place of the one before, because what is not in front is neither drawn nor hears the mouse."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        if self._shown is not None:
            self.call("Target.closeTarget", targetId=self._shown)
        self._shown = target
        return Page(self, session, width, height, dark)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, event: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for an event that may have come already."""
        while not any(map(event, self.events)):
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select([self._in], [], [], PATIENCE)[0], "Chromium does not answer"
            found = os.read(self._in, 1 << 20)
            assert found, "Chromium has gone"
            self._rest += found
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._folder, ignore_errors=True)


class Page:
    """A tab: what it shows, what it complained about, what it asked the network for."""

    def __init__(self, browser: Browser, session: str, width: int, height: int, dark: bool) -> None:
        self._browser, self._session, self.width = browser, session, width
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Page.bringToFront")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def open(self, address: str) -> None:
        """Go to a page and wait until it is loaded; until then a script might still see the page before."""
        loader = self.call("Page.navigate", url=address)["loaderId"]
        loaded = {"name": "load", "loaderId": loader}
        self._browser.wait_for(
            lambda event: event["method"] == "Page.lifecycleEvent" and loaded.items() <= event["params"].items()
        )

    def read(self, script: str) -> Any:
        """The value of an expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        return self.read(f"document.querySelector({json.dumps(selector)}).innerText")

    def until(self, script: str, seconds: float = PATIENCE) -> None:
        """Wait for an expression to be true."""
        deadline = time.monotonic() + seconds
        while not self.read(f"!!({script})"):
            assert time.monotonic() < deadline, script
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        self._mouse("mouseMoved", *self._middle(selector))
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, *self._middle(selector), button="left", clickCount=1)

    def hover(self, selector: str, across: float) -> None:
        """Point into an element, at a share of its width."""
        self._mouse("mouseMoved", *self._middle(selector, across))

    def drag(self, selector: str, start: float, end: float) -> None:
        self._mouse("mouseMoved", *self._middle(selector, start))
        self._mouse("mousePressed", *self._middle(selector, start), button="left", clickCount=1)
        self._mouse("mouseMoved", *self._middle(selector, end), button="left", buttons=1)
        self._mouse("mouseReleased", *self._middle(selector, end), button="left", clickCount=1)

    def touch(self, selector: str, across: float, *moves: tuple[float, float]) -> None:
        """Put a finger on an element, move it by so many pixels to the right and down, again and again, and lift it."""
        x, y = self._middle(selector, across)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        for right, down in moves:
            x, y = x + right, y + down
            self.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        """What is written by a key is given to whatever has the focus."""
        written = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **written)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def print(self) -> None:
        """Look as on paper."""
        self.call("Emulation.setEmulatedMedia", media="print")

    def _middle(self, selector: str, across: float = 0.5) -> tuple[float, float]:
        quoted = json.dumps(selector)
        self.read(f"document.querySelector({quoted}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.read(f"document.querySelector({quoted}).getBoundingClientRect().toJSON()")
        return box["x"] + across * box["width"], box["y"] + box["height"] / 2

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        image = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(image))

    @property
    def complaints(self) -> list[str]:
        """Errors in the console, and exceptions that nobody caught."""
        self.read("0")
        return [
            json.dumps(each["params"])
            for each in self._own_events()
            if each["method"] == "Runtime.exceptionThrown"
            or (each["method"] == "Runtime.consoleAPICalled" and each["params"]["type"] in ("error", "warning"))
            or (each["method"] == "Log.entryAdded" and each["params"]["entry"]["level"] in ("error", "warning"))
        ]

    @property
    def requests(self) -> list[str]:
        """Every address that was asked for."""
        self.read("0")
        return [e["params"]["request"]["url"] for e in self._own_events() if e["method"] == "Network.requestWillBeSent"]

    def _own_events(self) -> list[dict[str, Any]]:
        return [each for each in self._browser.events if each.get("sessionId") == self._session]


def _pipe() -> tuple[int, int]:
    """Reading and writing end, above the numbers that Chromium wants for its own."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high[0], high[1]
