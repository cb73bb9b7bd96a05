"""Execute what a SuperLink asks for in a process that stays, and that runs only the installed fedskew.

    MODULE=fedskew.federation.transport.executor
    python -m $MODULE site --address HOST:PORT --allow FILE --node-config FILE [--ca FILE] [--key FILE]
    python -m $MODULE coordinator --address HOST:PORT --allow FILE --secret FILE --runs DIR [--ca FILE]

Flower's open build lets everybody who reaches a SuperLink submit an app. So the bytes of each bundle are hashed, and a
bundle that is not on the allow-list is refused without being opened or stored. Of an allowed bundle only the run
configuration is read. Since everybody has our bundle, a coordinator accepts a run only if its configuration is in a
folder of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedskew.core.errors import InvalidData, UserError, required
from fedskew.federation.transport import executor_flwr as flower
from fedskew.federation.transport import project
from fedskew.federation.transport.executor_flwr import (
    RAISED,
    Fab,
    LinkSettings,
    Run,
    RunRequest,
    Runtime,
    ServerTask,
    SiteNode,
)
from fedskew.federation.transport.polling import IDLE, QUICK, pause

log = logging.getLogger("fedskew")

#: seconds between heartbeats; Flower gives a task up after 60
HEARTBEAT = 15.0
#: how often a ServerApp that is killed is started
ATTEMPTS = 4


def allowed(file: Path) -> set[str]:
    """Return the hashes on an allow-list: one per line, with comments after `#`."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise UserError(f"allow-list '{file}' cannot be read: {error.strerror}. Name another.") from None
    found = set()
    for number, line in enumerate(lines, 1):
        word = line.partition("#")[0].strip().lower()
        if word and not re.fullmatch(r"[0-9a-f]{64}", word):
            raise UserError(f"line {number} of allow-list '{file}' is '{word}'. Write a SHA-256 in hexadecimal.")
        found.add(word)
    return found - {""}


def check(bundle: Fab, allow: Path, run: Run) -> None:
    """Refuse a bundle whose bytes are not on the list, whatever hash it claims."""
    digest = hashlib.sha256(bundle.content).hexdigest()
    if digest not in allowed(allow):
        # the bundle stays closed, so its version is what the SuperLink states
        stated = run.fab_version if re.fullmatch(r"[\w.+-]{1,40}", run.fab_version) else "unknown"
        raise UserError(
            f"app {digest} is not on the allow-list: it is version {stated}, and here is {project.version()}. Install "
            "the same version of both at the coordinator and at every site."
        )


class SiteExecutor:
    """Answer a node's messages with our ClientApp, which keeps its data in this process."""

    def __init__(self, app: ClientApp, settings: dict[str, Any], allow: Path) -> None:
        self.app, self.settings, self.allow = app, settings, allow
        self._contexts: dict[int, Context] = {}
        self._states: dict[int, RecordDict] = {}

    def serve(self, node: SiteNode) -> None:
        """Answer messages until the connection fails."""
        while True:
            began = time.monotonic()
            try:
                asked = node.receive()
                if asked is None:  # a SuperLink of Flower's own answers at once
                    time.sleep(max(0.0, QUICK - (time.monotonic() - began)))
                    continue
                began = time.monotonic()
                node.reply(self.answer(node, asked), time.monotonic() - began)
            except flower.RunNotRunning:
                log.info("the run of a message has ended meanwhile")

    def answer(self, node: SiteNode, asked: RunRequest) -> Message:
        """Answer one message, or refuse it."""
        from fedskew.federation.site import exchange  # here, because only a site needs it

        try:
            context = self._context(node, asked)
        except UserError as reason:
            log.warning("refused a message of run %d: %s", asked.head.metadata.run_id, reason)
            exchange.begin(self.settings, asked.head.metadata.message_type).refuse(str(reason))
            node.discard(asked)
            return Message(Error(flower.REFUSED, f"the site refused: {reason}"), reply_to=asked.head)
        try:
            return self.app(node.read(asked), context)
        except httpx.HTTPError:
            raise
        except Exception:  # content from a stranger may fail in any way
            log.exception("a message of run %d could not be read", context.run_id)
            exchange.begin(self.settings, asked.head.metadata.message_type).fail()
            return Message(Error(RAISED, "the site could not read the message"), reply_to=asked.head)

    def _context(self, node: SiteNode, asked: RunRequest) -> Context:
        run_id = asked.head.metadata.run_id
        if run_id not in self._contexts:
            run, bundle = node.bundle(asked)
            check(bundle, self.allow, run)
            state = self._states.setdefault(run.series_id, RecordDict())
            config = flower.run_config(bundle, run)
            self._contexts[run_id] = Context(run_id, node.id, self.settings, state, config, series_id=run.series_id)
        return self._contexts[run_id]


def site(link: LinkSettings, key: Path | None, settings: dict[str, Any], allow: Path) -> NoReturn:
    """Answer the coordinator forever, connecting again when the connection is lost."""
    from fedskew.federation.site.client_app import app

    allowed(allow)
    executor = SiteExecutor(app, settings, allow)
    while True:
        with flower.connected(link, key) as node:
            log.info("node %d is connected to %s", node.id, link.address)
            executor.serve(node)
        log.warning("the connection to %s was lost; connecting again", link.address)
        time.sleep(IDLE)


class ServerAppProcess:
    """Run a ServerApp in a process of its own. If it dies, it is started again and continues after its last round."""

    def __init__(self, task: ServerTask, task_id: int, context: Context, run: Run) -> None:
        self.task, self._arguments, self._attempts = task, (task_id, context, run), ATTEMPTS
        self._last_heartbeat = time.monotonic()
        self._start()

    def _start(self) -> None:
        self._process = multiprocessing.get_context("spawn").Process(
            target=serve_run, args=(self.task.link, self.task.token, *self._arguments), daemon=True
        )
        self._process.start()

    def check(self) -> bool:
        """Send heartbeats, and restart the process if it died; return whether the run is still in progress."""
        if self._process.is_alive():
            return self._is_wanted()
        if self._process.exitcode == 0:
            return False
        self._attempts -= 1
        if self._attempts <= 0:
            self.task.end(f"the ServerApp died {ATTEMPTS} times")
            return False
        log.warning("a ServerApp died (%s); it is started again", self._process.exitcode)
        self._start()
        return True

    def _is_wanted(self) -> bool:
        if time.monotonic() - self._last_heartbeat < HEARTBEAT:
            return True
        self._last_heartbeat = time.monotonic()
        if not self.task.heartbeat():
            log.info("Flower has ended a run")
            self.stop()
            return False
        return True

    def stop(self) -> None:
        """Stop the process."""
        self._process.terminate()
        self._process.join()


def serve_run(link: LinkSettings, token: str, task_id: int, context: Context, run: Run) -> None:
    """Run a ServerApp to its end, from its beginning or from where an earlier process stopped."""
    _log_to_stderr()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    from fedskew.federation.coordinator.server_app import app

    failure = ""
    try:
        app(flower.grid_of(task_id, context, run, link, token), context)
    except (KeyboardInterrupt, flower.RunNotRunning):
        return
    except UserError as error:
        log.error("run %d failed: %s", run.run_id, error)
        failure = str(error)
    except Exception as error:  # Flower's list of runs shows this to others, so no more than its type
        log.exception("run %d failed", run.run_id)
        failure = f"{type(error).__name__}; the coordinator's log says why"
    while True:
        with suppress(httpx.TransportError):  # the SuperLink may be restarting
            return ServerTask(link, token).end(failure)
        time.sleep(IDLE)


def _exit_with_parent() -> None:
    required(multiprocessing.parent_process(), "the parent process").join()
    os._exit(1)


def accept(task: ServerTask, allow: Path, runs: Path) -> list[ServerAppProcess]:
    """Start a task if it is one of ours; otherwise end it with the reason."""
    try:
        task_id, context, run, bundle = task.pull()
    except httpx.HTTPStatusError as error:
        log.warning("a task could not be fetched: %s", error)
        task.end("the coordinator runs nothing but ServerApps")
        return []
    try:
        check(bundle, allow, run)
        if not any(_configuration(file) == run.override_config for file in runs.glob("*.toml")):
            raise InvalidData("its configuration is none of the coordinator's own")
        context.run_config = flower.run_config(bundle, run)
    except UserError as reason:
        log.warning("refused run %d: %s", run.run_id, reason)
        task.end(f"the coordinator refused: {reason}")
        return []
    log.info("run %d starts", run.run_id)
    return [ServerAppProcess(task, task_id, context, run)]


def _configuration(file: Path) -> dict[str, Any] | None:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        log.warning("'%s' is not a run configuration: %s", file, error)
        return None


def coordinator(link: LinkSettings, secret: Path, allow: Path, runs: Path) -> NoReturn:
    """Execute the coordinator's own runs forever."""
    allowed(allow)
    try:
        runtime = Runtime(link, secret.read_bytes())
    except OSError as error:
        raise UserError(f"--secret '{secret}' cannot be read: {error.strerror}. Name another file.") from None
    problem, worked = "", time.monotonic()
    running: list[ServerAppProcess] = []
    try:
        while True:
            try:
                running = [each for each in running if each.check()]
                if task := runtime.acquire():
                    worked = time.monotonic()
                    running += accept(task, allow, runs)
                problem = ""
            except httpx.HTTPError as error:
                if str(error) != problem:
                    log.warning("the SuperLink at %s does not answer: %s", link.address, error)
                problem = str(error)
            time.sleep(pause(time.monotonic() - worked))
    finally:
        for each in running:
            each.stop()
            with suppress(httpx.HTTPError):
                each.task.end("the coordinator was stopped")


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fedskew.federation.transport.executor", description=__doc__.partition("\n")[0]
    )
    roles = parser.add_subparsers(dest="role", required=True)
    for role in ("site", "coordinator"):
        options = roles.add_parser(role)
        options.add_argument("--address", required=True, help="HOST:PORT of the SuperLink")
        options.add_argument("--allow", type=Path, required=True, help="file with the hashes of allowed apps")
        options.add_argument("--ca", type=Path, help="CA certificate of the SuperLink; without it, no encryption")
        if role == "site":
            options.add_argument(
                "--node-config", required=True, help="a .toml, or 'key=value ...': site, data, memory, model"
            )
            options.add_argument("--key", type=Path, help="private key of this site")
        else:
            options.add_argument("--secret", type=Path, required=True, help="the SuperLink's secret file")
            options.add_argument("--runs", type=Path, required=True, help="folder with the .toml of allowed runs")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the executor of a site or of the coordinator; return its exit code."""
    options = _parse(arguments)
    _log_to_stderr()
    sys.path.append("")  # a site's own network may lie in the current folder, but hides no other module
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    link = LinkSettings(options.address, options.ca)
    try:
        if options.role == "site":
            site(link, options.key, flower.node_config(options.node_config), options.allow)
        coordinator(link, options.secret, options.allow, options.runs)
    except UserError as error:
        log.error("%s", error)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
