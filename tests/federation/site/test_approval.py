"""Only approved content leaves a site; the coordinator gets the reason, and the log has it."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from fedskew import config as configuration
from fedskew.cli import main
from fedskew.config.keys import where
from fedskew.config.schema import RunConfig
from fedskew.config.section import Section
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, Round, Spec
from fedskew.experiment import run as experiment
from fedskew.experiment import upload_preview
from fedskew.experiment.run import Result
from fedskew.federation import folders
from fedskew.federation.coordinator import training
from fedskew.federation.coordinator.server_app import federate
from fedskew.federation.rules import Rules, parse_rules
from fedskew.federation.site import approval as approvals
from fedskew.federation.site import client_app as client
from fedskew.federation.site import exchange, request_log, statements
from fedskew.federation.site.client_app import client_app
from fedskew.federation.site.request_log import RequestLog
from fedskew.federation.site.statements import ApprovedRange, Statement
from fedskew.federation.transport.messages import pack, unpack
from fedskew.methods import registry
from fedskew.runtime import client as work
from tests.commands import complaint, succeed
from tests.contract.methods import SMALL
from tests.federation import made
from tests.federation.transport.loopback import Loopback, Node, node, traveled

TRAINING = {"model": "mlp", "rounds": 2, "batch_size": 8, "local_epochs": 1}
WORDS = tuple(word for key, value in TRAINING.items() for word in (f"--{key.replace('_', '-')}", str(value)))
TODAY = date.today()
SCORED = Rules(score="sites")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coordinator and three sites that have approved nothing."""
    at = tmp_path_factory.mktemp("federation")
    made.coordinator(at / "coordinator")
    for name in made.SITES:
        made.site(at / name, at / "coordinator", name)
    return at


@pytest.fixture(scope="module")
def agreed(federation: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sites' folders after all have approved fedprox with mu up to 0.5."""
    at = tmp_path_factory.mktemp("agreed")
    for name in made.SITES:
        shutil.copytree(federation / name, at / name)
        made.approve(at / name, "prox(mu=0.5)", *WORDS, "--allow", "mu=0..0.5")
    return at


@pytest.fixture
def willing(agreed: Path, tmp_path: Path) -> list[Path]:
    """Copies of them."""
    exchange._logs.clear()
    return [Path(shutil.copytree(agreed / name, tmp_path / name)) for name in made.SITES]


@pytest.fixture
def sites(federation: Path, tmp_path: Path) -> list[Path]:
    """Copies of the sites' folders, which one test uses up."""
    exchange._logs.clear()
    return [Path(shutil.copytree(federation / name, tmp_path / name)) for name in made.SITES]


def run_of(federation: Path, method: str = "fedavg", settings: tuple[str, ...] = (), **changed: Any) -> RunConfig:
    coordinator = folders.open_coordinator(federation / "coordinator")
    return training.configure(coordinator, method=method, settings=settings, **TRAINING | changed)


def nodes_of(sites: list[Path], values: dict[str, Any]) -> dict[int, Node]:
    found = {}
    for number, at in enumerate(sites):
        site = folders.open_site(at)
        here: dict[str, Any] = {"data": site.data, "memory": str(at / "memory"), "federation": str(at)}
        found[number] = node(client_app(), values, site=number, **here | site.data_options)
    return found


def trained(sites: list[Path], config: RunConfig, out: Path, score: str = "sites") -> Result:
    values = {"config": configuration.dumps(config), "own-data": True, "score": score}
    return federate(Loopback(nodes_of(sites, values)), config, out, parse_rules(values))


def log_of(site: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(succeed("federation", "log", site, "--json"))
    return found


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_nothing_leaves_without_an_approval(federation: Path, sites: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError) as ended:
        trained(sites, run_of(federation), tmp_path / "out")
    assert "0 of 3 sites gave a usable answer" in str(ended.value)
    assert "this site has approved nothing. Type there: fedskew federation approve DIR METHOD" in str(ended.value)
    lines = log_of(sites[0])
    assert [(line["kind"], line["asked"]) for line in lines] == [
        ("request", "query.about"),
        ("answer", "query.about"),
        ("request", "train"),
        ("refusal", "train"),
    ]
    assert lines[1]["left"] == "site number, number of classes, shape and type of a sample"
    assert lines[3]["method"] == "fedavg" and lines[3]["round"] == 1 and len(lines[3]["run"]) == 32
    assert "has approved nothing, so it answers nothing" in succeed("federation", "approve", sites[0])


def test_what_was_approved_leaves_and_the_log_says_what(federation: Path, sites: list[Path], tmp_path: Path) -> None:
    for site in sites:
        made.approve(site, "fedavg", *WORDS)
    result = trained(sites, run_of(federation), tmp_path / "out")
    assert [line["replies"] for line in result.rounds] == [3, 3]
    lines = [line for line in log_of(sites[1]) if line["kind"] == "answer" and "approval" in line]
    asked = [(line["asked"], line.get("round")) for line in lines]
    # the last model is scored after its round and at the end: the same answer to the same question
    assert asked == [
        ("updates of stage 0", 1),
        ("scores", None),
        ("updates of stage 0", 2),
        ("scores", None),
        ("scores", None),
        ("detailed scores", None),
    ]
    # 2 x 200 + 200 + 200 x 200 + 200 + 200 x 2 + 2 numbers of 4 bytes; 2 x 2 numbers and a loss, of 8
    assert [line["bytes"] for line in lines[:2]] == [4 * 41_202, 8 * 5]
    assert lines[0]["left"] == {"weights": "6 float32"} and lines[1]["left"] == {"scores": "2 float64/int64"}
    assert len({line["run"] for line in lines}) == 1 and lines[3]["sha256"] == lines[4]["sha256"]
    (shown,) = json.loads(succeed("federation", "approve", sites[1], "--json"))
    assert (shown["state"], shown["left"], shown["of"]) == ("in force", 2, 2)


@pytest.mark.parametrize(
    "changed, settings, reason",
    [
        ({"method": "scaffold"}, (), "method is 'scaffold', approved is 'fedprox'"),
        ({"method": "fedprox+dp(sigma=1.0)"}, (), "method is 'dp+fedprox', approved is 'fedprox'"),
        ({"method": "fedprox(mu=0.6)"}, (), "fedprox.mu is 0.6, approved is 0..0.5"),
        ({"model": "mlp3"}, (), "network is 'mlp3', approved is 'mlp'"),
        ({}, ("model.args.hidden=[5]",), "network is mlp(hidden=[5]), approved is 'mlp'"),
        ({"rounds": 3}, (), "rounds is 3, approved are 2"),
        (
            {"local_epochs": 2, "batch_size": 9},
            (),
            "local.batch_size is 9, approved is 8; local.epochs is 2, approved is 1",
        ),
        ({"lr": 0.2}, (), "local.lr is 0.2, approved is 0.01"),
        ({}, ("local.momentum=0.0",), "local.momentum is 0.0, approved is 0.9"),
        ({}, ("evaluate.clients=true",), "evaluate.clients is True, approved is False"),
        ({}, ("data.options.test=0.5",), "data.options.test is 0.5, approved is not set"),
        ({}, ("data.limit=4",), "data.limit is 4, approved is not set"),
    ],
)
def test_everything_else_is_refused_with_the_reason(
    changed: dict[str, Any],
    settings: tuple[str, ...],
    reason: str,
    federation: Path,
    willing: list[Path],
    tmp_path: Path,
) -> None:
    config = run_of(federation, **{"method": "fedprox(mu=0.25)"} | changed, settings=settings)
    with pytest.raises(UserError) as ended:
        trained(willing, config, tmp_path / "out")
    for number, site in enumerate(willing):
        assert f"site {number}: error at the site: the site refused: {reason}" in str(ended.value)
        (refused,) = [line["reason"] for line in log_of(site) if line["kind"] == "refusal"]
        assert refused.startswith(reason) and not any("approval" in line for line in log_of(site)[1:])


def test_less_than_was_approved_is_answered(federation: Path, willing: list[Path], tmp_path: Path) -> None:
    """A parameter in its range, fewer rounds, scores by the server, another seed, "auto" for the network it means."""
    config = run_of(federation, method="prox(mu=0.1)", rounds=1, seed=7, model="auto")
    trained(willing, config, tmp_path / "out")
    made_of = [line["asked"] for line in log_of(willing[0]) if line["kind"] == "answer"]
    assert made_of == ["query.about", "updates of stage 0", "scores", "scores", "detailed scores"]


FEW = ["fednoro", "fedconcat"]
#: samples of all sites in one place, or batch norm, which the network of these sites does not have
UNFIT = {"centralized", "fedbn"}
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in registry.known() if name not in {*FEW, *UNFIT}]


@pytest.mark.parametrize("name", [*FEW, *OTHERS])
def test_whatever_is_approved_can_be_trained(name: str, federation: Path, sites: list[Path], tmp_path: Path) -> None:
    """The preview names every tensor, question and number that leaves, and how often."""
    method = SMALL.get(name, name)
    for site in sites:
        made.approve(site, method, *WORDS)
    result = trained(sites, run_of(federation, method=method), tmp_path / "out")
    assert not [line for line in [*result.rounds, *result.setups] if line.get("lost") or line.get("scored_lost")]
    assert not [line for site in sites for line in log_of(site) if line["kind"] in ("refusal", "failure")]


# ---- what a coordinator may try --------------------------------------------------------------------------------------

MLP = {"trunk.1.weight": (200, 2), "trunk.1.bias": (200,), "trunk.3.weight": (200, 200), "trunk.3.bias": (200,)}
MLP |= {"head.weight": (2, 200), "head.bias": (2,)}


def ask(
    site: Path,
    config: RunConfig,
    kind: str = "train",
    start: int = 0,
    run: str = "0" * 32,
    rules: Any = (),
    **more: Any,
) -> Message:
    """A site's reply to a message of which all is up to the coordinator; `start` draws the weights."""
    Loopback({})  # messages need to know who makes them
    values = {"config": configuration.dumps(config), "own-data": True, "score": "sites"} | dict(rules)
    drawn = torch.Generator().manual_seed(start)
    weights = {name: 0.05 * torch.randn(shape, generator=drawn) for name, shape in MLP.items()}
    sent = replace(Broadcast(0, 0, -1, Round(0, 0, 0, 0), Spec("mlp"), weights, {}), **more)
    content = pack((sent.spec, weights) if kind == "evaluate" else sent, run=run)
    reply = nodes_of([site], values)[0](traveled(Message(content, 1, kind)))
    assert reply is not None
    return reply


def test_updates_are_counted_over_all_runs_and_one_that_has_left_before_is_free(
    federation: Path, willing: list[Path]
) -> None:
    """Two are approved. Another run, or the same turn with other weights, is another update."""
    north, config = willing[0], run_of(federation, method="fedprox")
    assert not ask(north, config).has_error()
    assert not ask(north, config).has_error()  # the very same
    assert not ask(north, config, run="1" * 32, start=1).has_error()
    for more in ({"run": "2" * 32, "start": 2}, {"start": 3}, {"turn": 1, "seen": 0, "start": 4}):
        said = ask(north, config, **more).error.reason  # type: ignore[arg-type]
        assert said.startswith("the site refused: all 2 updates of stage 0 that this site approved ('fedprox') have")
    assert not ask(north, config).has_error()
    (shown,) = json.loads(succeed("federation", "approve", north, "--json"))
    assert (shown["left"], shown["of"]) == (2, 2)
    exchange._logs.clear()  # a process that is started again counts on
    assert ask(north, config, start=5).has_error() and not ask(north, config).has_error()
    assert not ask(north, config, "evaluate", start=5).has_error()


def test_an_old_question_about_a_new_past_is_another_answer(federation: Path, sites: list[Path]) -> None:
    """Moon remembers its last model. The coordinator changes that past, and asks what it asked before."""
    north, config = sites[0], run_of(federation, method="moon")
    made.approve(north, "moon", *WORDS, "--rounds", "3")
    later = {"turn": 1, "seen": 0, "start": 1}
    first = unpack(ask(north, config, **later | {"turn": 0, "seen": -1}).content)
    second = ask(north, config, **later)  # type: ignore[arg-type]
    assert not second.has_error()
    other = unpack(ask(north, config, start=2).content)
    assert not torch.equal(first.weights["head.bias"], other.weights["head.bias"])
    assert "all 3 updates" in ask(north, config, **later).error.reason  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind, more, reason",
    [
        ("train", {"round": Round(0, 0, 0, 1)}, "stage 1, which the method does not have"),
        ("train", {"round": Round(0, 0, 0, -1)}, "stage -1, which the method does not have"),
        ("train", {"round": Round(0, -1000, 0, 0)}, "round -1000 (counted), which the run does not have"),
        ("train", {"round": Round(3, 3, 0, 0)}, "round 3 (index), which the run does not have"),
        ("train", {"round": Round(2, 3, 0, 0)}, "round 3 (counted), which the run does not have"),
        ("train", {"round": Round(0, 0.5, 0, 0)}, "round 0.5 (counted), which the run does not have"),  # type: ignore[arg-type]
        ("train", {"round": Round(0, True, 0, 0)}, "round True (counted), which the run does not have"),
        ("train", {"round": Round(0, 0, -1, 0)}, "round -1 (within), which the run does not have"),
        ("train", {"round": Round(10**4200, 0, 0, 0)}, "round an integer of more than 40 digits (index), which"),
        ("query", {"setup": 0}, "question 0, which the method does not have"),
        ("query", {"setup": -1}, "question -1, which the method does not have"),
        ("train", {"score": True}, "scores of this site's model are asked for, but evaluate.clients is false"),
        ("train", {"spec": Spec("mlp3")}, "the network must be one of the configuration's"),
        ("evaluate", {"spec": Spec("mlp3")}, "the network must be one of the configuration's"),
        ("train", {"client": 1}, "the message is no broadcast to site 0"),
    ],
)
def test_a_message_that_asks_for_more_is_refused_and_written_down(
    kind: str, more: dict[str, Any], reason: str, federation: Path, willing: list[Path]
) -> None:
    assert reason in ask(willing[0], run_of(federation, method="fedprox"), kind, **more).error.reason
    last = log_of(willing[0])[-1]
    assert last["kind"] == "refusal" and reason in last["reason"]


@pytest.mark.parametrize(
    "method, extras, right",
    [
        ("fedcorr(warmup=2,finetune=1)", {"AdaptiveProximal": {"mu": 1.0}}, True),
        ("fedcorr(warmup=2,finetune=1)", {"AdaptiveProximal": {"mu": -1e4}}, False),
        ("fedcorr(warmup=2,finetune=1)", {"AdaptiveProximal": {"mu": float("nan")}}, False),
        ("fednoro(warmup=1)", {"RampedDistillation": {"lam": 0.8}}, True),
        ("fednoro(warmup=1)", {"RampedDistillation": {"lam": -1e3}}, False),
        ("fednoro(warmup=1)", {"RampedDistillation": {"lam": 0.81}}, False),
    ],
)
def test_a_strength_that_no_honest_server_sends_gets_no_update(
    method: str, extras: dict[str, Any], right: bool, federation: Path, sites: list[Path]
) -> None:
    """They travel with a request, so a coordinator could make of a small step an absurd one."""
    made.approve(sites[0], method, *WORDS, "--rounds", "3")
    sent = {part: {name: torch.tensor(value) for name, value in tree.items()} for part, tree in extras.items()}
    stage = 0 if "fedcorr" in method else 1
    reply = ask(sites[0], run_of(federation, method=method, rounds=3), extras=sent, round=Round(1, 1, 0, stage))
    assert reply.has_error() is not right


def test_how_images_are_normalized_is_approved_too(federation: Path, sites: list[Path]) -> None:
    """A tiny std makes inputs, and so the update, as large as a coordinator likes."""
    config = run_of(federation)
    made.approve(sites[0], "fedavg", *WORDS, "--mean", "0.4")
    for rules, reason in (
        ({"mean": 0.4, "std": 0.001}, "std is 0.001, approved is 0.25"),
        ({}, "mean is 0.5, approved is 0.4"),
    ):
        assert reason in ask(sites[0], config, rules=rules).error.reason
    assert not ask(sites[0], config, rules={"mean": 0.4}).has_error()


def while_working(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen at the site after it trained, before the update leaves."""

    def visit(*given: Any) -> Any:
        done = work.visit(*given)
        happens()
        return done

    monkeypatch.setattr(client, "visit", visit)


def test_an_approval_that_is_revoked_while_the_site_trains_lets_nothing_out(
    federation: Path, willing: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    while_working(monkeypatch, lambda: approvals.revoke(folders.open_site(willing[0]), "fedprox") and None)
    said = ask(willing[0], run_of(federation, method="fedprox")).error.reason
    assert "this site has revoked its approval. It must approve again first" in said
    assert [line["kind"] for line in log_of(willing[0])] == ["approval", "request", "revocation", "refusal"]


def test_an_approval_that_ends_while_the_site_trains_lets_nothing_out(
    federation: Path, willing: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = date.today() + timedelta(days=approvals.DAYS + 1)
    while_working(monkeypatch, lambda: monkeypatch.setattr(exchange, "_today", lambda: later))
    assert "the approval ended on" in ask(willing[0], run_of(federation, method="fedprox")).error.reason


def test_the_last_update_leaves_once_though_two_processes_made_one(
    federation: Path, willing: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process answers between this one's look at the budget and its own line."""
    north, config = willing[0], run_of(federation, method="fedprox")
    assert not ask(north, config).has_error()
    append, others = RequestLog.append, []

    def late(self: RequestLog, kind: str, *given: Any, **facts: Any) -> None:
        if kind == "answer" and not others:
            others.append(self)
            scratch, exchange._logs[str(north)] = exchange._logs[str(north)], RequestLog(north)
            assert not ask(north, config, start=1).has_error()
            exchange._logs[str(north)] = scratch
        append(self, kind, *given, **facts)

    monkeypatch.setattr(RequestLog, "append", late)
    assert "all 2 updates of stage 0" in ask(north, config, start=2).error.reason


def test_a_coordinator_does_not_choose_how_long_a_line_of_the_log_is(federation: Path, willing: list[Path]) -> None:
    honest = configuration.dumps(run_of(federation, method="fedprox"))
    many = "\n".join(f"k{number} = 1" for number in range(50))
    for text in (
        honest.replace("[data.options]", f"[data.options]\n{'k' * 100_000} = 1"),
        honest.replace("[data.options]", f"[data.options]\n{many}"),
        honest.replace('"fedprox"', f'"{"+".join(["fedprox"] * 5000)}"'),
        honest.replace("[data.options]", f"[data.options]\ntest = {'9' * 400}"),
    ):
        assert text != honest
        assert len(ask(willing[0], run_of(federation), rules={"config": text}).error.reason) < 1100
    assert max(map(len, (willing[0] / "log.jsonl").read_text().splitlines())) < 2500
    reasons = [line["reason"] for line in log_of(willing[0]) if line["kind"] == "refusal"]
    assert reasons[0].startswith(f"data.options.{'k' * 67} is 1, approved is not set.")
    assert "data.options.k0 is 1" in reasons[1] and "; and 40 more. This site must approve" in reasons[1]


def test_what_cannot_be_logged_is_no_exception_for_flower(
    federation: Path, willing: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("/home/patient")

    monkeypatch.setattr(RequestLog, "append", broken)
    said = ask(willing[0], run_of(federation, method="fedprox")).error.reason
    assert said == "the site could not answer; its own log says why"
    monkeypatch.setattr(exchange, "_digest", broken)
    assert "patient" not in ask(willing[0], run_of(federation, method="fedprox")).error.reason


def test_a_clock_far_behind_the_log_brings_no_approval_back(
    federation: Path, willing: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Behind(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - timedelta(hours=2)

    monkeypatch.setattr(exchange, "datetime", Behind)
    monkeypatch.setattr(request_log, "datetime", Behind)
    for _ in range(2):  # the refusal's own line has the wrong time, too
        said = ask(willing[0], run_of(federation, method="fedprox")).error.reason
        assert "this site's clock is behind its log, so it answers nothing" in said


def test_an_answer_that_holds_more_than_was_signed_does_not_leave(federation: Path, willing: list[Path]) -> None:
    """The site's data has grown a column since, so its tensors have, too."""
    data = Path(folders.open_site(willing[0]).data)
    wide = willing[0] / "wide.csv"
    wide.write_text("\n".join(f"{line.split(',')[0]},{line}" for line in data.read_text().splitlines()) + "\n")
    wide.write_text(wide.read_text().replace("x,x,y", "w,x,y"))
    text = (willing[0] / "site.toml").read_text()
    (willing[0] / "site.toml").write_text(text.replace(str(data), str(wide)))
    drawn = {name: torch.zeros((200, 3) if name == "trunk.1.weight" else shape) for name, shape in MLP.items()}
    said = ask(willing[0], run_of(federation, method="fedprox"), weights=drawn).error.reason
    assert "weights trunk.1.weight is float32 2400 bytes, approved is float32 1600 bytes" in said
    assert not (willing[0] / "memory" / ("0" * 32)).exists()


def test_a_site_with_an_altered_log_refuses_and_reveals_no_path(federation: Path, willing: list[Path]) -> None:
    path = willing[0] / "log.jsonl"
    path.write_text(path.read_text().replace('"rounds":2', '"rounds":3'))
    said = ask(willing[0], run_of(federation, method="fedprox")).error.reason
    assert said == (
        "the site refused: this site's log was altered, so it answers nothing. Its administrator must look at it"
    )
    for words in ((), ("--revoke", "fedprox"), ("fedavg", "--clients", "3", *WORDS, "--yes", "--json")):
        assert "line 1 of" in complaint("federation", "approve", willing[0], *words)
    assert "line 1 of" in complaint("federation", "log", willing[0])


# ---- the statement ---------------------------------------------------------------------------------------------------


def test_the_preview_is_shown_and_nothing_is_signed_without_a_yes(sites: list[Path]) -> None:
    words = ["federation", "approve", str(sites[0]), "fedavg", "--clients", "3", *WORDS]
    for typed, signed in (("", False), ("n\n", False), ("y\n", True)):
        shown = CliRunner().invoke(main, words, input=typed)
        assert "the updates of stage 0, 2 times (rounds 1, 2)" in shown.stdout and "200, 200" in shown.stdout
        assert "local.batch_size=8" in shown.stdout and "a confusion matrix and a loss" in shown.stdout
        assert (sites[0] / "approvals" / "fedavg.json").exists() is signed is (shown.exit_code == 0)
    modes = {stat.S_IMODE((sites[0] / name).stat().st_mode) for name in ("approvals/fedavg.json", "log.jsonl")}
    assert modes == {0o600} and stat.S_IMODE((sites[0] / "approvals").stat().st_mode) == 0o700


def test_every_change_of_the_statement_is_detected(federation: Path, willing: list[Path]) -> None:
    path = willing[0] / "approvals" / "fedprox.json"
    text = path.read_text()
    statement, _ = statements.read(path)
    changes = [text.replace('"rounds": 2', '"rounds": 9'), text + "\n", text.replace("1600", "9999", 1), "{}", ""]
    changes += [text.replace('"mlp"', '"MLP"'), text.replace('"epsilon": null', '"epsilon": null,\n  "epsilon": 1')]
    for changed in changes:
        assert changed != text
        path.write_text(changed)
        with pytest.raises(UserError, match="was changed after the site signed it"):
            statements.read(path)
        assert "has approved nothing" in ask(willing[0], run_of(federation, method="fedprox")).error.reason
    # signed with the site's own key, but not by `approve`: the log does not know it
    path.write_text(statements.signed(replace(statement, rounds=9), willing[0]))
    assert "has approved nothing" in ask(willing[0], run_of(federation, method="fedprox")).error.reason
    assert "not in the log, so it does not count" in succeed("federation", "approve", willing[0])
    path.write_text(text)
    assert not ask(willing[0], run_of(federation, method="fedprox")).has_error()


def test_a_revoked_approval_holds_no_more_even_if_its_file_comes_back(federation: Path, willing: list[Path]) -> None:
    path, config = willing[0] / "approvals" / "fedprox.json", run_of(federation, method="fedprox")
    text = path.read_text()
    assert not ask(willing[0], config).has_error()
    assert "Revoked 'fedprox'" in succeed("federation", "approve", willing[0], "--revoke", "fedprox")
    assert [each.read_text() for each in path.parent.glob("*.revoked")] == [text] and not path.exists()
    assert "has approved nothing" in ask(willing[0], config).error.reason
    path.write_text(text)
    assert "has approved nothing" in ask(willing[0], config).error.reason
    again = ("federation", "approve", willing[0], "--revoke", "fedprox")
    assert "'fedprox' is not in the log as approved, so it did not count" in succeed(*again)
    assert "has no approval 'fedprox'. It has no approvals" in complaint(*again)
    assert "--revoke" in complaint(*again[:-1], "../site")
    kinds = [line["kind"] for line in log_of(willing[0])]
    assert kinds == ["approval", "request", "answer", "revocation", "request", "refusal", "request", "refusal"]


def test_an_approval_that_cannot_be_written_down_leaves_no_file(
    sites: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("federation", "approve", sites[0], "fedavg", "--clients", "3", *WORDS, "--name", "a", "--yes")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RequestLog, "_append", full)
        assert "cannot be written: No space left on device. Nothing is approved" in complaint(*words, "--json")
    assert not list((sites[0] / "approvals").glob("*.json"))
    assert "In force beside it" not in succeed(*words)
    assert "Also in force: a. What they let leave adds up, and so do their epsilons." in succeed(
        *words[:-2], "b", "--yes"
    )


def test_a_killed_process_is_no_reason_to_accuse_anybody(willing: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was ended between the signed head and the line."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RequestLog, "_complete", killed)
        with pytest.raises(KeyboardInterrupt):
            RequestLog(willing[0]).append("start")
    shown = succeed("federation", "log", willing[0])
    assert "Line 2 is signed but not yet in log.jsonl" in shown and "The log is intact: 2 lines" in shown
    assert "in force" in succeed("federation", "approve", willing[0])
    RequestLog(willing[0]).refresh()
    assert "not yet" not in succeed("federation", "log", willing[0])


def test_an_approval_ends(agreed: Path, federation: Path) -> None:
    statement, _ = statements.read(agreed / "north" / "approvals" / "fedprox.json")
    last, config = date.fromisoformat(statement.until), run_of(federation, method="fedprox")
    assert TODAY <= last - timedelta(days=approvals.DAYS) <= date.today()  # it may be midnight meanwhile
    assert statement.differences(config, SCORED, last) == []
    assert statement.differences(config, SCORED, last + timedelta(days=1)) == [f"the approval ended on {last}"]


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("fedavg",), "--clients is missing. Give the coordinator's number of sites"),
        (("fedavg", "--clients", "3", "--until", "2020-01-01"), "--until is 2020-01-01, which is in the past"),
        (("fedavg", "--clients", "3", "--allow", "lr=0.1"), "--allow is 'lr=0.1'. Write KEY=LOW..HIGH"),
        (("fedavg", "--clients", "3", "--allow", "lr=1..0"), "--allow is 'lr=1..0'. Write KEY=LOW..HIGH"),
        (("fedavg", "--clients", "3", "--allow", "lr=1..nan"), "Write KEY=LOW..HIGH"),
        (("fedavg", "--clients", "3", "--allow", "lr=0..inf"), "Write KEY=LOW..HIGH"),
        (("fedavg", "--clients", "3", "--epsilon", "nan"), "--epsilon is nan. Give a number above 0"),
        (("fedavg", "--clients", "3", "--mean", "inf"), "'mean' is inf. Give a finite number"),
        (("fedavg", "--clients", "3", "--allow", "rl=0..1"), "there is no 'rl'"),
        (("fedavg", "--clients", "3", "--allow", "lr=1..2"), "excludes the approved value of local.lr, 0.01"),
        (("fedavg", "--clients", "3", "--epsilon", "5"), "the training has no figure: the method adds no noise"),
        (("fedavg+dp(sigma=9.0)", "--clients", "3", "--epsilon", "5"), "scores on clients' own test data"),
        (("fedavg", "--clients", "3", "--model", "os:system"), "is code that this site does not allow"),
        (("fedavg", "--revoke", "fedavg"), "--revoke fedavg takes no METHOD"),
        (("fedvag", "--clients", "3"), "there is no method 'fedvag'"),
    ],
)
def test_a_wrong_word_is_one_sentence_and_signs_nothing(
    words: tuple[str, ...], sentence: str, sites: list[Path]
) -> None:
    assert sentence in complaint("federation", "approve", sites[0], *words, "--rounds", "2", "--yes")
    assert not (sites[0] / "approvals").exists()


def test_only_a_site_approves(federation: Path) -> None:
    for command in ("approve", "log"):
        said = complaint("federation", command, federation / "coordinator")
        assert "is the coordinator's folder, but only sites approve" in said


# ---- epsilon ---------------------------------------------------------------------------------------------------------


def test_noise_that_keeps_less_than_the_approved_epsilon_is_refused(federation: Path, sites: list[Path]) -> None:
    """Two rounds with sigma 8 have epsilon 1.5; sigma may vary down to 1, where they have more than 2."""
    pytest.importorskip("dp_accounting")
    words = (*WORDS, "--score", "server", "--epsilon", "2", "--allow", "sigma=1..20")
    made.approve(sites[0], "fedavg+dp(sigma=8.0)", *words)

    def differences(sigma: float) -> list[str]:
        config = run_of(federation, method=f"fedavg+dp(sigma={sigma})")
        statement, _ = statements.read(sites[0] / "approvals" / "dp-fedavg.json")
        assert statement.differences(config, Rules(), TODAY) == []
        site = folders.open_site(sites[0])
        prepared, _, spec = experiment.prepare(approvals.configured(site, config), own_data(config, site))
        return statement.differences_here(spec, prepared.plan, "server")

    def own_data(config: RunConfig, site: folders.SiteFolder) -> experiment.RunInputs:
        return upload_preview.own_data(approvals.configured(site, config), {})

    assert differences(8.0) == differences(20.0) == []
    (said,) = differences(1.0)
    assert re.fullmatch(r"epsilon is \d+\.?\d*, approved is 2", said)
    more = ("--rounds", "50", "--score", "server", "--epsilon", "2", "--clients", "3", "--yes")
    assert "--epsilon is 2, but everything that would leave has" in complaint(
        "federation", "approve", sites[0], "fedavg+dp(sigma=8.0)", *more
    )


# ---- matching --------------------------------------------------------------------------------------------------------


def statement_of(config: RunConfig, **more: Any) -> Statement:
    facts: dict[str, Any] = {"method": statements.method_name(config.method), "rounds": config.rounds}
    facts |= {"network": {"name": "mlp", "args": {}}, "settings": statements.settings(config, SCORED), "ranges": {}}
    facts |= {"epsilon": None, "leaves": {statements.SCORES: {}}, "until": TODAY.isoformat()}
    return Statement("n", "f", "s", "k", "m", **facts | more)


@given(low=st.floats(0, 1), width=st.floats(0, 1), asked=st.floats(0, 3))
def test_a_parameter_is_allowed_exactly_in_its_range(low: float, width: float, asked: float) -> None:
    agreed = statement_of(RunConfig(method=f"fedprox(mu={low!r})"), ranges={"fedprox.mu": [low, low + width]})
    found = agreed.differences(RunConfig(method=f"prox(mu={asked!r})"), SCORED, TODAY)
    assert (found == []) is (low <= asked <= low + width)


@given(st.integers(0, 60), st.integers(0, 60))
def test_rounds_are_an_upper_bound(agreed: int, asked: int) -> None:
    found = statement_of(RunConfig(rounds=agreed)).differences(RunConfig(rounds=asked), SCORED, TODAY)
    assert (found == []) is (asked <= agreed)


@given(st.floats() | st.integers() | st.booleans() | st.text() | st.none() | st.lists(st.integers()))
def test_a_range_holds_finite_numbers_only(value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    assert (value in ApprovedRange(-1.0, 1.0)) is (number and -1 <= value <= 1)
    assert 10**5000 not in ApprovedRange(-1.0, 1.0) and not statements.same(10**5000, 1.0)


@given(st.one_of(st.booleans(), st.integers(0, 1), st.floats(0, 1), st.text(max_size=1), st.none()))
def test_values_are_the_same_only_if_json_says_so(value: Any) -> None:
    assert statements.same(value, json.loads(json.dumps(value)))
    assert not statements.same(True, 1) and not statements.same("1", 1) and statements.same((1, 2), [1.0, 2])
    assert statements.same({"a": [1]}, {"a": (1,)}) and not statements.same({"a": 1}, {"b": 1})


@pytest.mark.parametrize(
    "one, other, equal",
    [
        ("fedlmd+prox", "prox+fedlmd", True),
        ("fedlmd+fedprox", "fedlmd+prox(mu=0.01)", True),
        ("fedlmd+prox", "fedlmd", False),
        ("fedlmd(beta=2)+prox", "fedlmd+prox", False),
    ],
)
def test_a_method_is_its_parts_and_all_their_parameters(one: str, other: str, equal: bool) -> None:
    found = statement_of(RunConfig(method=one)).differences(RunConfig(method=other), SCORED, TODAY)
    assert (found == []) is equal


def test_every_key_of_a_configuration_is_checked_or_free_by_name() -> None:
    """A section that gets a new field must say here whether a coordinator may set it without asking."""

    def keys(section: Any, at: str = "") -> set[str]:
        found = set()
        for name, field in section.model_fields.items():
            inner = isinstance(field.annotation, type) and issubclass(field.annotation, Section)
            found |= keys(field.annotation, f"{at}{name}.") if inner else {f"{at}{name}"}
        return found

    free = set(where(needs_approval=False))
    checked = {"local.optimizer", "local.lr", "local.lr_decay", "local.momentum", "local.weight_decay", "local.epochs"}
    checked |= {"local.train"}
    checked |= {"local.batch_size", "local.drop_last", "data.augment", "data.options", "evaluate.clients"}
    checked |= {
        "evaluate.validation",
        "evaluate.details",
        "data.corrections",
        "data.limit",
        "data.imbalance",
        "engine.device",
        "engine.precision",
        "engine.drop",
    }
    apart = {"method", "rounds", "model.name", "model.args", "model.head", "model.weights"}
    assert keys(RunConfig) - free - apart == checked
    decided = {
        *statements.OF_RULES,
        *statements.FREE_RULES,
        "own_data",
        "score",
    }  # the guard and `differences` look at these
    assert {field.name for field in fields(Rules)} == decided


@pytest.mark.parametrize(
    "one, other, equal",
    [
        ({"size": 64}, {"size": "64"}, True),
        ({"size": 64}, {"size": "64x48"}, False),
        ({"classes": "a, b"}, {"classes": "a,b"}, True),
        ({"classes": "a,b"}, {"classes": "b,a"}, False),
    ],
)
def test_a_size_and_classes_are_the_same_however_they_are_written(one: Any, other: Any, equal: bool) -> None:
    configs = [configuration.from_dict({"data": {"options": each}}) for each in (one, other)]
    assert (statement_of(configs[0]).differences(configs[1], SCORED, TODAY) == []) is equal
    older = statement_of(configs[0], settings=statements.settings(configs[0], SCORED) | {"data.options.size": 64})
    assert older.differences(configuration.from_dict({"data": {"options": one | {"size": "64"}}}), SCORED, TODAY) == []
