"""What a hostile coordinator does not get from a site: code run, other files read, more answers than were agreed on."""

from __future__ import annotations

import csv
import multiprocessing
import os
import re
import secrets
import signal
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedskew import config as configuration
from fedskew.config.section import Section
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, ClientState, Round, Spec, Tree
from fedskew.federation.rules import Rules, parse_config, parse_rules
from fedskew.federation.site import guard
from fedskew.federation.site.client_app import client_app
from fedskew.federation.site.memory import RUNS, Memory, secret
from fedskew.federation.transport.messages import pack, unpack
from tests.contract import harness
from tests.federation import made
from tests.federation.transport import tiny
from tests.federation.transport.loopback import Loopback, Node, node, traveled

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "flower.md").read_text()
RUN = "0123456789abcdef" * 2
SHARED = 'rounds = 1\n[partition]\nname = "iid"\nclients = 1\n[local]\nepochs = 1\n[model]\nname = "mlp"\n'
OWN = SHARED + '[data.options]\nclasses = "a,b"\n'


@pytest.fixture(autouse=True)
def _flower() -> None:
    """Messages need to know who makes them."""
    Loopback({})


def table(path: Path, value: float = 1.0) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["u", "v", "label"], *([value, row, "ab"[row % 2]] for row in range(20))])
    return path


def broadcast(spec: Spec, weights: Tree, **more: Any) -> Broadcast:
    return replace(Broadcast(0, 0, -1, Round(0, 0, 0, 0), spec, weights, {}), **more)


def asked(site: Node, kind: str, content: Any, run: str = RUN) -> Message:
    reply = site(traveled(Message(pack(content, run=run), 1, kind)))
    assert reply is not None
    return reply


# ---- no code ---------------------------------------------------------------------------------------------------------


def app_with_data() -> ClientApp:
    return client_app(lambda context: harness.digits())


@pytest.mark.parametrize("wrapped", ["", "concat"])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("data", ["shared", "own", "app"])
def test_no_message_runs_code_that_a_site_did_not_agree_to(data: str, kind: str, wrapped: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run_config = {"config": OWN if data == "own" else SHARED, "own-data": data == "own", "score": "sites"}
    node_config = {"data": str(table(tmp_path / "own.csv"))} if data == "own" else {}
    app = app_with_data() if data == "app" else client_app()
    site = node(app, run_config, site=0, memory=str(tmp_path / "memory"), **node_config)
    code = Spec("subprocess:getoutput", {"cmd": f"touch {mark}"})
    body = {"name": code.name, "args": code.args}
    spec = Spec(wrapped, {"body": body, "k": 1}) if wrapped else code
    assert asked(site, kind, (spec, {}) if kind == "evaluate" else broadcast(spec, {})).has_error()
    assert not mark.exists()

    source = harness.digits() if data == "app" else None
    here = made.at_site(parse_config(run_config), parse_rules(run_config), {"site": 0, **node_config}, source)
    honest = Spec("mlp")
    weights = here.net(honest).initial()
    assert not asked(site, kind, (honest, weights) if kind == "evaluate" else broadcast(honest, weights)).has_error()


@pytest.mark.parametrize("own", [False, True])
def test_no_configuration_runs_code_that_a_site_did_not_agree_to(own: bool, tmp_path: Path) -> None:
    """The network would be built before the first message, for the annotators of the noise."""
    mark = tmp_path / "mark"
    text = (
        f'[partition]\nname = "iid"\nclients = 1\n[model]\nname = "subprocess:getoutput"\nargs.cmd = "touch {mark}"\n'
    )
    if not own:
        text += '[noise]\nkind = "idn"\nrho = 1.0\nannotator.epochs = 1\n'
    node_config = {"site": 0} | ({"data": str(table(tmp_path / "own.csv"))} if own else {})
    with pytest.raises(UserError, match="'subprocess:getoutput' is code that this site does not allow"):
        made.at_site(parse_config({"config": text}), Rules(own_data=own), node_config)
    assert not mark.exists()


def test_agreed_code_is_run_and_no_other(tmp_path: Path) -> None:
    named = "fedskew.models.small:mlp"
    config = parse_config({"config": SHARED.replace('"mlp"', f'"{named}"')})
    site = made.at_site(config, Rules(), {"site": 0, "model": named})
    assert site.net(Spec(named)).parameters
    for other in ("fedskew.models.small:mlp3", "os:system"):
        with pytest.raises(UserError, match="must be one of the configuration's"):
            site.net(Spec(other))
    within = configuration.override(config, ["model.args.hidden=['os:system']"])
    with pytest.raises(UserError, match="'os:system' is code"):
        made.at_site(within, Rules(), {"site": 0, "model": named})


def test_a_coordinator_does_not_choose_which_samples_a_site_uses(tmp_path: Path) -> None:
    config = parse_config({"config": OWN + "[data]\nlimit = 10\n"})
    with pytest.raises(UserError, match=r"data\.limit is 10, and must be left out"):
        made.at_site(config, Rules(own_data=True), {"site": 0, "data": str(table(tmp_path / "own.csv"))})


# ---- no files --------------------------------------------------------------------------------------------------------


def test_a_coordinator_cannot_point_at_other_data_than_the_sites_own(tmp_path: Path) -> None:
    agreed, other = table(tmp_path / "agreed.csv", 1), table(tmp_path / "other.csv", 7777)
    text = OWN + f'[data]\nname = "own"\ndir = "{other}"\n'
    at = {"site": 0, "data": str(agreed)}
    with pytest.raises(UserError, match="'own-data' is false, and must be true"):
        made.at_site(parse_config({"config": text}), Rules(), at)
    # With own-data it is the coordinator's own path, for its test data.
    x = made.at_site(parse_config({"config": text}), Rules(own_data=True), at).x
    assert x[:, 0].tolist() == [1.0] * len(x)


@pytest.mark.parametrize(
    "lines, sentence",
    [
        (["data.name=own"], "data.name is 'own', and must be a data set that all sites have"),
        (["data.name=npz"], "data.name is 'npz', and must be"),
        (["data.dir=/etc"], "data.dir is '/etc', and must not be set"),
        (
            ["data.name=medmnist", "data.options.file=/etc/x.npz"],
            "data.options.file is '/etc/x.npz', and must be a name",
        ),
        (["data.name=ag-news", "data.options.train=../x.csv"], "data.options.train is '../x.csv', and must be a name"),
        (["noise.kind=human", "noise.rho=1.0", "noise.labels=x.pt"], "noise.labels is 'x.pt', and must not be set"),
        (["noise.kind=transition", "noise.rho=1.0", "noise.matrix=x.csv"], "noise.matrix is 'x.csv'"),
        (["noise.kind=idn", "noise.rho=1.0", "noise.soft_labels=x"], "noise.soft_labels is 'x'"),
        (['data.corrections=["x.csv"]'], "data.corrections is 'x.csv', and must not be set"),
        (["partition.name=explicit", "partition.lists=x.json"], "partition.lists is 'x.json', and must not be set"),
    ],
)
def test_a_coordinator_names_no_files_of_a_site(lines: list[str], sentence: str) -> None:
    values = parse_config({"config": SHARED}).model_dump()
    configuration.assign(values, lines)
    with pytest.raises(UserError) as caught:
        made.at_site(configuration.from_dict(values), Rules(), {"site": 0})
    assert str(caught.value).startswith(sentence)


def test_every_text_of_a_configuration_is_either_accepted_or_refused_by_name() -> None:
    """A section that gets a new field must say here what it is: the fields with text that are refused today."""

    def texts(section: Any, at: str = "") -> set[str]:
        found = set()
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                found |= texts(field.annotation, f"{at}{name}.")
            elif "str" in str(field.annotation) or "Literal" in str(field.annotation):
                found.add(f"{at}{name}")
        return found

    refused = {"data.dir", "partition.lists", "engine.address", "noise.matrix", "noise.soft_labels", "noise.labels"}
    refused |= {"noise.key", "data.corrections"}
    looked_into = {"data.options", "model.args", "noise.direction"}
    assert texts(configuration.RunConfig) - looked_into - refused == guard.WORDS


def test_a_file_of_the_common_data_folder_may_be_named() -> None:
    config = parse_config({"config": SHARED + '[data]\nname = "medmnist"\noptions.file = "bloodmnist.npz"\n'})
    guard.check_config(config, Rules(), {"site": 0}, given=False)


# ---- no more than was agreed on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [False, True])
def test_scores_of_a_sites_model_leave_it_only_if_the_configuration_says_so(clients: bool, tmp_path: Path) -> None:
    config = configuration.override(tiny.config_of("fedavg"), [f"evaluate.clients={str(clients).lower()}"])
    weights, spec = start(config)
    reply = asked(tiny.nodes(config, tmp_path)[100], "train", broadcast(spec, weights, score=True))
    assert reply.has_error() is not clients
    assert not clients or "recall_0" in unpack(reply.content).metrics


@pytest.mark.parametrize("score", ["server", "sites"])
def test_scores_on_a_sites_test_data_leave_it_only_if_they_count(score: str, tmp_path: Path) -> None:
    config = tiny.config_of("fedavg")
    text = {"config": configuration.dumps(config), "score": score}
    site = node(client_app(tiny.source_of(config)), text, site=0, memory=str(tmp_path))
    weights, spec = start(config)
    assert asked(site, "evaluate", (spec, weights)).has_error() is (score == "server")


def start(config: configuration.RunConfig) -> tuple[Tree, Spec]:
    site, state = harness.site_of(config)
    return site.net(state.spec).initial(), state.spec


def test_a_site_trains_the_network_of_its_configuration_and_what_its_method_makes_of_it(tmp_path: Path) -> None:
    config = tiny.config_of("moon(head=4)")
    site, state = harness.site_of(config)
    own = {"name": state.spec.name, "args": state.spec.args}
    for spec, good in {
        "its own": (state.spec, True),
        "projected as the method does": (Spec("projected", {"body": own, "width": 4, "hidden": 1.0}), True),
        "another network": (Spec("mlp"), False),
        "another width": (Spec("projected", {"body": own, "width": 5, "hidden": 1.0}), False),
        "another hidden layer": (Spec("projected", {"body": own, "width": 4, "hidden": 0.5}), False),
        "projected twice": (
            Spec("projected", {"body": {"name": "projected", "args": {"body": own, "width": 4}}, "width": 4}),
            False,
        ),
        "what another method makes": (Spec("concat", {"body": own, "k": 2}), False),
    }.values():
        message = broadcast(spec, site.net(spec).initial())
        assert asked(tiny.nodes(config, tmp_path)[100], "train", message).has_error() is not good


@pytest.mark.parametrize("turn", ["/../../x", True, 1.0, None])
def test_a_turn_is_a_number(turn: Any, tmp_path: Path) -> None:
    config = tiny.config_of("fedavg")
    weights, spec = start(config)
    assert asked(tiny.nodes(config, tmp_path)[100], "train", broadcast(spec, weights, turn=turn)).has_error()
    assert not list((tmp_path / "memory-0").glob("*/*"))


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("local.epochs=1001", "local.epochs is 1001, and at this site at most 1000"),
        ("partition.clients=1000000", "partition.clients is 1000000, and at this site at most 100000"),
        ("data.options.size=4000", "data.options.size is 4000, and at this site at most 2048"),
        ("data.options.size='64x4000'", "data.options.size is '64x4000', and at this site at most 2048"),
        ("evaluate.batch_size=10000000", "evaluate.batch_size is 10000000, and at this site at most 1000000"),
        ("method=fedprox(mu=1e9)", "fedprox.mu is 1000000000.0, and at this site at most 1000000"),
        ("model.args.hidden=[5, 10000000]", "model.args.hidden is 10000000, and at this site at most 1000000"),
        # 64 pixels and 10 classes: 65 * 10**6, then (10**6 + 1) * 10**6, then (10**6 + 1) * 10
        (
            "model.args.hidden=[1000000, 1000000]",
            "network 'mlp' has 1000076000010 parameters, and at this site at most",
        ),
    ],
)
def test_absurd_sizes_are_one_sentence(line: str, sentence: str) -> None:
    config = configuration.override(parse_config({"config": SHARED}), [line])
    with pytest.raises(UserError) as caught:
        made.at_site(config, Rules(), {"site": 0})
    assert str(caught.value).startswith(sentence)


# ---- memory and secret -----------------------------------------------------------------------------------------------


def test_invented_runs_fill_no_disk(tmp_path: Path) -> None:
    """The run that was gone on with longest ago is forgotten first; an honest one that goes on stays."""
    honest = Memory(tmp_path, RUN, 0)
    secret(tmp_path)
    for number in range(RUNS + 5):
        made = Memory(tmp_path, f"{number:032x}", 0)
        made.save(0, -1, ClientState())
        os.utime(made.folder, (number, number))
        honest.save(number, number - 1, ClientState())
        os.utime(honest.folder, (number, number + 0.5))
    left = {path.name for path in tmp_path.iterdir()}
    # the last of RUNS + 5 came when there were RUNS folders, one of them the honest one's
    assert left == {"secret", RUN, *(f"{number:032x}" for number in range(6, RUNS + 5))}


def test_a_run_folder_is_private_and_a_failed_message_leaves_none(tmp_path: Path) -> None:
    config = tiny.config_of("fedavg")
    weights, spec = start(config)
    site, memory = tiny.nodes(config, tmp_path)[100], tmp_path / "memory-0"
    assert asked(site, "train", broadcast(spec, {}), run="f" * 32).has_error()
    assert not asked(site, "train", broadcast(spec, weights)).has_error()
    folders = [memory, *(path for path in memory.rglob("*") if path.is_dir())]
    assert {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in folders} == {
        "memory-0": 0o700,
        f"memory-0/{RUN}": 0o700,
        f"memory-0/{RUN}/site-0": 0o700,
    }


def in_a_process(work: Any, *given: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=work, args=given)
    process.start()
    return process


def test_a_kill_while_the_secret_is_made_leaves_no_other_secret_than_a_whole_one(tmp_path: Path) -> None:
    def die(length: int) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    def live() -> None:
        vars(secrets).update(token_bytes=die)
        secret(tmp_path)

    killed = in_a_process(live)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    first = secret(tmp_path)
    assert len(first) == 32 and secret(tmp_path) == first


def test_who_comes_while_the_secret_is_made_works_with_the_same(tmp_path: Path) -> None:
    fork, draw = multiprocessing.get_context("fork"), secrets.token_bytes
    started, go, results = fork.Event(), fork.Event(), fork.SimpleQueue()

    def wait(length: int) -> bytes:
        started.set()
        go.wait()
        return draw(length)

    def live() -> None:
        vars(secrets).update(token_bytes=wait)
        results.put(secret(tmp_path))

    slow = in_a_process(live)
    started.wait()
    scratch = secret(tmp_path)
    go.set()
    assert results.get() == scratch and len(scratch) == 32
    slow.join()
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    "content, mode, sentence",
    [
        (b"", 0o600, "has 0 bytes instead of 32"),
        (b"x" * 31, 0o600, "has 31 bytes"),
        (b"x" * 32, 0o644, "has mode 644 instead of 600"),
        (b"x" * 32, 0o620, "has mode 620"),
    ],
)
def test_a_secret_that_is_none_is_refused(content: bytes, mode: int, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(UserError, match=sentence):
        secret(tmp_path)


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_project_on_the_page_is_taken_as_it_is_printed(tmp_path: Path) -> None:
    (printed,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    run_config = tomllib.loads(printed)["tool"]["flwr"]["app"]["config"]
    config = parse_config(run_config)
    own = table(tmp_path / "own.csv")
    named = dict(zip("ab", str(config.data.options["classes"]).split(","), strict=True))
    own.write_text(re.sub(r"\b([ab])\r?$", lambda found: named[found[1]], own.read_text(), flags=re.MULTILINE))
    site = made.at_site(config, parse_rules(run_config), {"site": 4, "data": str(own)})
    assert site.plan.task.clients == 5 and len(site.shards.shard(4, site.x)) == 16
