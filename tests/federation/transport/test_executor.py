"""A site and a coordinator run only what is on their own list, no matter from which node."""

from __future__ import annotations

import hashlib
import signal
import socket
import ssl
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedskew.core.errors import UserError
from fedskew.federation.transport import executor, polling, project
from fedskew.federation.transport import superlink as link
from fedskew.federation.transport.executor_flwr import SiteNode
from tests.federation.transport.processes import SITES, Federation, config_of

pytestmark = pytest.mark.timeout(900)


def bundle(folder: Path, **run_config: str) -> bytes:
    project.write(folder, run_config)
    return bytes(build_fab_from_disk(folder))


def test_every_run_submits_the_same_bundle_and_everybody_knows_its_hash(tmp_path: Path) -> None:
    first = bundle(tmp_path / "a", config='method = "moon"', out="/x")
    second = bundle(tmp_path / "another", config="rounds = 3\n" * 50)
    assert first == second and hashlib.sha256(first).hexdigest() == project.digest()
    (tmp_path / "a" / "more.py").write_text("")
    assert bundle(tmp_path / "a") != first


def test_what_counts_is_the_hash_of_what_arrived_not_the_one_it_is_said_to_have(tmp_path: Path) -> None:
    good, bad = b"ours", b"theirs"
    digest = hashlib.sha256(good).hexdigest()
    allow = tmp_path / "allow"
    allow.write_text(f"# ours\n\n{digest.upper()}  # of today\n")
    run = Run.create_empty(1)
    executor.check(Fab(digest, good, {}), allow, run)
    executor.check(Fab("whatever it says", good, {}), allow, run)
    with pytest.raises(UserError, match=hashlib.sha256(bad).hexdigest()):
        executor.check(Fab(digest, bad, {}), allow, run)
    allow.write_text("")
    with pytest.raises(UserError, match="is not on the allow-list"):
        executor.check(Fab(digest, good, {}), allow, run)


def test_another_version_is_refused_with_both_versions_named(tmp_path: Path) -> None:
    """What a stranger gives as a version is shown only if it looks like one."""
    allow = tmp_path / "allow"
    allow.write_text("")
    for said, shown in (("0.0.9", "0.0.9"), ("\x1b[31m1.0", "unknown")):
        run = Run.create_empty(1)
        run.fab_version = said
        with pytest.raises(UserError) as caught:
            executor.check(Fab("", b"theirs", {}), allow, run)
        assert f"it is version {shown}, and here is {project.version()}. Install the same version" in str(caught.value)


class Wire:
    """The SuperLink's end of a node's connection, for one question about one run."""

    def __init__(self, bundle: bytes, **values: str) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        question = Message(RecordDict({"head": ConfigRecord({"word": "how many"})}), 7, "query")
        question.metadata.__dict__["_message_id"] = question.object_id
        self.contents = {name: each.deflate() for name, each in get_all_nested_objects(question).items()}
        self.arrived = (remove_content_from_message(question), get_object_tree(question))
        self.run = Run.create_empty(1)
        self.run.fab_hash, self.run.override_config, self.run.series_id = project.digest(), dict(values), 5
        self.bundle, self.read, self.confirmed = bundle, list[str](), list[str]()
        self.replies: list[Message] = []
        self.pushed: dict[str, bytes] = {}

    def node(self) -> SiteNode:
        return SiteNode((7, lambda: self.arrived, self.send, self.run_of, self.fab, self.pull, self.push, self.confirm))

    def run_of(self, run_id: int) -> Run:
        return self.run

    def fab(self, stated: str, run_id: int) -> Fab:
        return Fab(stated, self.bundle, {})

    def pull(self, run_id: int, name: str) -> bytes:
        self.read.append(name)
        return self.contents[name]

    def push(self, run_id: int, session: str, name: str, content: bytes) -> None:
        self.pushed[name] = content

    def confirm(self, run_id: int, name: str) -> None:
        self.confirmed.append(name)

    def send(self, reply: Message, tree: ObjectTree, seconds: float) -> tuple[set[str], str]:
        self.replies.append(reply)
        return {each.object_id for each in iterate_object_tree(tree)}, "session"


def counting() -> ClientApp:
    """Says how often it was asked in this run series, and what the run's `out` is."""
    app = ClientApp()

    @app.query()
    def answer(message: Message, context: Context) -> Message:
        before = context.state.config_records.get("count", ConfigRecord({"n": 0}))
        context.state["count"] = ConfigRecord({"n": before["n"] + 1})
        content = {"n": before["n"] + 1, "out": context.run_config["out"], "asked": message.content["head"]["word"]}
        return Message(RecordDict({"told": ConfigRecord(content)}), reply_to=message)

    return app


def ask(wire: Wire, site: executor.SiteExecutor) -> Message:
    asked = wire.node().receive()
    assert asked is not None
    wire.node().reply(site.answer(wire.node(), asked), 0.0)
    return wire.replies[-1]


def test_an_allowed_run_is_answered_with_its_values_and_its_state(tmp_path: Path) -> None:
    allow = tmp_path / "allow"
    allow.write_text(project.digest())
    site = executor.SiteExecutor(counting(), {}, allow)
    for n in (1, 2):
        wire = Wire(bundle(tmp_path / "app"), out="/x")
        reply = ask(wire, site)
        assert wire.confirmed == [wire.arrived[1].object_id]
        inflated = inflate_object_from_contents(reply.metadata.message_id, wire.pushed)
        assert dict(inflated.content["told"]) == {"n": n, "out": "/x", "asked": "how many"}


def test_of_a_bundle_that_is_not_allowed_nothing_is_opened_and_its_message_not_read(tmp_path: Path) -> None:
    """It says to have our hash, and is not even an archive."""
    allow = tmp_path / "allow"
    allow.write_text(project.digest())
    wire = Wire(b"not a bundle at all")
    reply = ask(wire, executor.SiteExecutor(counting(), {}, allow))
    assert reply.error.code == 7 and "is not on the allow-list" in reply.error.reason
    assert not wire.read and wire.confirmed == [wire.arrived[1].object_id]


def test_a_value_that_no_app_of_ours_has_is_refused(tmp_path: Path) -> None:
    allow = tmp_path / "allow"
    allow.write_text(project.digest())
    reply = ask(Wire(bundle(tmp_path / "app"), nonsense="1"), executor.SiteExecutor(counting(), {}, allow))
    assert reply.error.code == 7 and "nonsense" in reply.error.reason


def test_a_list_that_cannot_be_read_is_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    allow = tmp_path / "allow"
    words = ["site", "--address", "127.0.0.1:1", "--allow", str(allow), "--node-config", "site=0"]
    assert executor.main(words) == 2
    allow.write_text("# a comment\nabc\n")
    assert executor.main(words) == 2
    missing, wrong = (record.message for record in caplog.records)
    assert missing == f"allow-list '{allow}' cannot be read: No such file or directory. Name another."
    assert wrong == f"line 2 of allow-list '{allow}' is 'abc'. Write a SHA-256 in hexadecimal."


def test_who_waits_asks_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "QUICK", 0.4)
    assert [polling.pause(waited) for waited in (0, 4, 20, 60, 1000)] == [0.4, 0.4, 2.0, 3.0, 3.0]


def test_an_address_is_of_this_machine_if_it_is_the_one_that_was_called() -> None:
    assert link.is_local("127.0.0.1", "127.0.0.1") and link.is_local("::1", "::1")
    assert link.is_local("192.0.2.7", "192.0.2.7") and not link.is_local("192.0.2.8", "192.0.2.7")
    assert not link.is_local("192.0.2.8", "127.0.0.1")


def own_address() -> str:
    """One of this machine's addresses that is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(("192.0.2.1", 9))  # nothing is sent
        return str(made.getsockname()[0])


def answered(federation: Federation, path: str, caller: str, length: int = 0) -> int:
    """The status of a request that comes from another address than the one it goes to, and only says to be long."""
    trusting, to = ssl.create_default_context(cafile=federation.ca), federation.address
    called = HTTPSConnection(to.host, to.port, source_address=(caller, 0), context=trusting, timeout=60)
    with closing(called):
        called.putrequest("POST", path)
        called.putheader("Content-Length", str(length))
        called.endheaders()
        return called.getresponse().status


def test_a_coordinator_refuses_a_strangers_app_and_a_strangers_configuration(
    federation: Federation, tmp_path: Path
) -> None:
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs"):
        assert answered(federation, path, own_address()) == 404
        assert answered(federation, path, "127.0.0.1") != 404
    assert answered(federation, "/v1/fleet/pull-messages", own_address()) not in (404, 413)
    assert answered(federation, "/v1/fleet/pull-messages", own_address(), link.LARGEST + 1) == 413

    before = federation.sung()
    assert "is not on the allow-list" in federation.how_ended(federation.submit_canary())
    with federation.link() as superlink:
        ours = superlink.submit({"config": "rounds = 1", "out": str(tmp_path / "stolen")})
    assert "is none of the coordinator's own" in federation.how_ended(ours)
    assert federation.sung() == before and not (tmp_path / "stolen").exists()


@pytest.mark.slow
def test_no_site_runs_a_strangers_app_even_if_the_coordinator_does(federation: Federation) -> None:
    """Flower's own executor runs whatever comes, as a hostile coordinator would: the canary's server asks the sites."""
    federation.stop("coordinator")
    where = ("--runtime-api-address", federation.address, "--root-certificates", federation.ca)
    federation.start(
        "hostile-coordinator", "flower-superexec", *where, "--superexec-auth-secret-file", federation.secret
    )
    try:
        federation.how_ended(federation.submit_canary())
    finally:
        federation.stop("hostile-coordinator", signal.SIGKILL)
        federation.start_coordinator()
    # The server was imported and asked three sites, which replied with the code for a bundle that is not trusted.
    assert federation.sung() == ["error7", "error7", "error7", "imported", "server"]
    for site in SITES:
        assert b"refused a message of run" in federation.log(site).read_bytes()
    run = federation.finish(federation.submit("after-the-canary", config_of("fedavg", rounds=1)))
    assert [line["replies"] for line in run.rounds] == [3]
