"""Who executes what a SuperLink asks for: a process that stays, and that takes nobody's code.

    python -m fedskew.flower.executor site --address HOST:PORT --allow FILE --node-config FILE [--ca FILE] [--key FILE]
    python -m fedskew.flower.executor coordinator --address HOST:PORT --allow FILE --secret FILE --runs DIR [--ca FILE]

Flower's open build lets everybody who reaches a SuperLink submit an app. So the bytes of an app's bundle are hashed as
they arrive, and a bundle that is not on one's own list is answered with an error and neither opened nor kept. Of one
that is on the list only the run's configuration is read: what runs is the fedskew that is installed here. And since
everybody has our bundle, a coordinator takes a run only if its configuration lies in a folder of the coordinator's own.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedskew.errors import UserError, required
from fedskew.flower import executor_flwr as flower
from fedskew.flower import project
from fedskew.flower.executor_flwr import RAISED, Asked, Fab, Link, Node, Run, Runtime, Task
from fedskew.flower.pace import IDLE, pause

log = logging.getLogger("fedskew")

#: seconds between signs of life; Flower gives a task up after 60
BEAT = 15.0
#: a ServerApp that was killed is started again, but not one that is killed whenever it is started
LIVES = 4


def allowed(file: Path) -> set[str]:
    """The hashes on an allow-list: one per line, with comments after `#`."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise UserError(f"allow-list '{file}' cannot be read: {error.strerror}") from None
    found = set()
    for number, line in enumerate(lines, 1):
        word = line.partition("#")[0].strip().lower()
        if word and not re.fullmatch(r"[0-9a-f]{64}", word):
            raise UserError(f"line {number} of allow-list '{file}' is '{word}', and must be a SHA-256 in hexadecimal")
        found.add(word)
    return found - {""}


def check(bundle: Fab, allow: Path, run: Run) -> None:
    """Refuse a bundle whose bytes are not on the list, whatever hash it is said to have."""
    digest = hashlib.sha256(bundle.content).hexdigest()
    if digest not in allowed(allow):
        # the bundle is not opened, so its version is what the SuperLink says
        said = run.fab_version if re.fullmatch(r"[\w.+-]{1,40}", run.fab_version) else "unknown"
        raise UserError(
            f"app {digest} is not on the allow-list: it is version {said}, and here is {project.version()}. Install "
            "the same version of both at the coordinator and at every site."
        )


class Site:
    """Answers a node's messages with our ClientApp, which stays in this process with its data."""

    def __init__(self, app: ClientApp, settings: dict[str, Any], allow: Path) -> None:
        self.app, self.settings, self.allow = app, settings, allow
        self._contexts: dict[int, Context] = {}
        self._states: dict[int, RecordDict] = {}

    def serve(self, node: Node) -> None:
        worked = time.monotonic()
        while True:
            try:
                asked = node.receive()
                if asked is not None:
                    began = time.monotonic()
                    node.reply(self.answer(node, asked), time.monotonic() - began)
                    worked = time.monotonic()
            except flower.RunNotRunning:
                log.info("the run of a message has ended meanwhile")
            time.sleep(pause(time.monotonic() - worked))

    def answer(self, node: Node, asked: Asked) -> Message:
        from fedskew.flower import exchange  # here, because only a site needs it

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
        except Exception:  # a message made by a stranger may fail in any way
            log.exception("a message of run %d could not be read", context.run_id)
            exchange.begin(self.settings, asked.head.metadata.message_type).fail()
            return Message(Error(RAISED, "the site could not read the message"), reply_to=asked.head)

    def _context(self, node: Node, asked: Asked) -> Context:
        run_id = asked.head.metadata.run_id
        if run_id not in self._contexts:
            run, bundle = node.bundle(asked)
            check(bundle, self.allow, run)
            state = self._states.setdefault(run.series_id, RecordDict())
            config = flower.run_config(bundle, run)
            self._contexts[run_id] = Context(run_id, node.id, self.settings, state, config, series_id=run.series_id)
        return self._contexts[run_id]


def site(link: Link, key: Path | None, settings: dict[str, Any], allow: Path) -> NoReturn:
    from fedskew.flower.client import app

    allowed(allow)
    served = Site(app, settings, allow)
    while True:
        with flower.connected(link, key) as node:
            log.info("node %d is connected to %s", node.id, link.address)
            served.serve(node)
        log.warning("the connection to %s was lost; connecting again", link.address)
        time.sleep(IDLE)


class Running:
    """A ServerApp in a process of its own: it may die, and is started again to go on after its last round."""

    def __init__(self, task: Task, task_id: int, context: Context, run: Run) -> None:
        self.task, self._given, self._lives = task, (task_id, context, run), LIVES
        self._beaten = time.monotonic()
        self._start()

    def _start(self) -> None:
        self._process = multiprocessing.get_context("spawn").Process(
            target=serve_run, args=(self.task.link, self.task.token, *self._given), daemon=True
        )
        self._process.start()

    def goes_on(self) -> bool:
        """See to it; whether there is still something to see to."""
        if self._process.is_alive():
            return self._is_wanted()
        if self._process.exitcode == 0:
            return False
        self._lives -= 1
        if self._lives <= 0:
            self.task.end(f"the ServerApp died {LIVES} times")
            return False
        log.warning("a ServerApp died (%s); it is started again", self._process.exitcode)
        self._start()
        return True

    def _is_wanted(self) -> bool:
        if time.monotonic() - self._beaten < BEAT:
            return True
        self._beaten = time.monotonic()
        if not self.task.beat():
            log.info("Flower wants a run no longer")
            self.stop()
            return False
        return True

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


def serve_run(link: Link, token: str, task_id: int, context: Context, run: Run) -> None:
    """A run from its beginning, or from where an earlier process left it, to its end."""
    _begin_log()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    from fedskew.flower.server import app

    failure = ""
    try:
        app(flower.grid_of(task_id, context, run, link, token), context)
    except (KeyboardInterrupt, flower.RunNotRunning):
        return
    except UserError as mistake:
        log.error("run %d failed: %s", run.run_id, mistake)
        failure = str(mistake)
    except Exception as error:  # whoever may look at Flower's list of runs may read this, so no more than its kind
        log.exception("run %d failed", run.run_id)
        failure = f"{type(error).__name__}; the coordinator's log says why"
    _patiently(lambda: Task(link, token).end(failure))


def _die_with_parent() -> None:
    required(multiprocessing.parent_process(), "the parent process").join()
    os._exit(1)


def _patiently(act: Callable[[], None]) -> None:
    """Whatever the SuperLink's state: it may be restarting."""
    while True:
        try:
            return act()
        except httpx.TransportError:
            time.sleep(IDLE)


def taken(task: Task, allow: Path, runs: Path) -> list[Running]:
    """A task, if it is one of ours; else it is ended at once with the reason."""
    try:
        task_id, context, run, bundle = task.pull()
    except httpx.HTTPStatusError as error:
        log.warning("a task could not be taken: %s", error)
        task.end("the coordinator runs nothing but ServerApps")
        return []
    try:
        check(bundle, allow, run)
        if not any(_configuration(file) == run.override_config for file in runs.glob("*.toml")):
            raise UserError("its configuration is none of the coordinator's own")
        context.run_config = flower.run_config(bundle, run)
    except UserError as reason:
        log.warning("refused run %d: %s", run.run_id, reason)
        task.end(f"the coordinator refused: {reason}")
        return []
    log.info("run %d begins", run.run_id)
    return [Running(task, task_id, context, run)]


def _configuration(file: Path) -> dict[str, Any] | None:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        log.warning("'%s' is no run configuration: %s", file, error)
        return None


def coordinator(link: Link, secret: Path, allow: Path, runs: Path) -> NoReturn:
    allowed(allow)
    runtime, trouble, worked = Runtime(link, _secret(secret)), "", time.monotonic()
    running: list[Running] = []
    try:
        while True:
            try:
                running = [each for each in running if each.goes_on()]
                if task := runtime.acquire():
                    worked = time.monotonic()
                    running += taken(task, allow, runs)
                trouble = ""
            except httpx.HTTPError as error:
                if str(error) != trouble:
                    log.warning("the SuperLink at %s does not answer: %s", link.address, error)
                trouble = str(error)
            time.sleep(pause(time.monotonic() - worked))
    finally:
        for each in running:
            each.stop()
            with suppress(httpx.HTTPError):
                each.task.end("the coordinator was stopped")


def _secret(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"--secret '{file}' cannot be read: {error.strerror}") from None


def _begin_log() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fedskew.flower.executor", description=__doc__.partition("\n")[0])
    roles = parser.add_subparsers(dest="role", required=True)
    for role in ("site", "coordinator"):
        of = roles.add_parser(role)
        of.add_argument("--address", required=True, help="the SuperLink's, HOST:PORT")
        of.add_argument("--allow", type=Path, required=True, help="hashes of the apps that may be run, one per line")
        of.add_argument("--ca", type=Path, help="the certificate to know the SuperLink by; without, no encryption")
        if role == "site":
            of.add_argument(
                "--node-config", required=True, help="a .toml, or 'key=value ...': site, data, memory, model"
            )
            of.add_argument("--key", type=Path, help="this site's private key")
        else:
            of.add_argument("--secret", type=Path, required=True, help="the SuperLink's --superexec-auth-secret-file")
            of.add_argument("--runs", type=Path, required=True, help="configurations of runs that may be begun, *.toml")
    given = parser.parse_args(arguments)
    _begin_log()
    sys.path.append("")  # a site's own network may lie where it is started, but takes no other module's place
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    link = Link(given.address, given.ca)
    try:
        if given.role == "site":
            site(link, given.key, flower.node_config(given.node_config), given.allow)
        coordinator(link, given.secret, given.allow, given.runs)
    except UserError as mistake:
        log.error("%s", mistake)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
