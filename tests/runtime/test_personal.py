"""Weights that stay at a client: they do what their method says, and no byte of them leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fedskew.cli import main
from fedskew.core import codec, tree
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, ClientState, ServerState, Tree, Update
from fedskew.data.shards import Shards
from fedskew.engines.inline import Inline
from fedskew.experiment import run as experiment
from fedskew.experiment.preparation.prepare import prepare
from fedskew.experiment.upload_preview import dry_run
from fedskew.methods import registry
from fedskew.record import reader
from fedskew.runtime import server
from fedskew.runtime.client import personal, visit, with_personal
from fedskew.runtime.context import RunContext, one_thread
from fedskew.runtime.store import Store
from tests.contract import harness

#: which tensors of the tiny network stay
STAYING = {
    "fedper": {"head.weight", "head.bias"},
    "fedbn": {f"trunk.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")},
    "fedper+fedvls+avgm": {"head.weight", "head.bias"},
    "fedbn+fpl": {
        f"trunk.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    },
}
STAYING |= {"fedrep(head_epochs=1)": STAYING["fedper"]}
EVERYTHING = ["local", "fedlmd+finetuned"]
BESIDE = ["ditto(lam=0.5)", "ditto+scaffold"]


class Tapped(Inline):
    """Notes every message as the bytes that travel, and what the clients have afterwards."""

    def __init__(self, context: RunContext, store: Store) -> None:
        super().__init__(context, store)
        self.down: list[tuple[Broadcast, bytes]] = []
        self.up: list[tuple[Broadcast, bytes]] = []
        self.stayed: dict[int, list[Tree]] = {}

    def visit(self, context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
        self.down.append((sent, codec.to_bytes(sent)))
        update, new = visit(context, sent, client_state)
        self.up.append((sent, codec.to_bytes(update)))
        if not sent.evaluate:
            self.stayed.setdefault(sent.client, []).append(personal(context, sent, new))
        return codec.from_bytes(self.up[-1][1]), new


def tapped(method: str, **options: Any) -> tuple[Tapped, ServerState]:
    """Run a method, with an evaluation of every client's model at the end."""
    context, state = harness.site_of(harness.config(method, **options))
    engine = Tapped(context, Store())
    state = harness.final_state(context, state, engine)
    with one_thread():
        engine.ask(server.evaluations(context, state))
    return engine, state


def pieces(values: Tree) -> Iterator[tuple[str, bytes]]:
    """Cut tensors into runs of 16 bytes, of which each would betray them; constant ones would be found anywhere."""
    for name, t in values.items():
        raw = t.numpy().tobytes()
        for start in range(0, len(raw) - 15, 16):
            if len(set(raw[start : start + 16])) > 4:
                yield name, raw[start : start + 16]


@pytest.mark.parametrize("method", [*STAYING, *EVERYTHING, *BESIDE])
def test_no_byte_of_them_leaves(method: str) -> None:
    engine, _ = tapped(method, clients_per_round=None, evaluate_clients=True)
    searched, trained = 0, [tree for each in engine.stayed.values() for tree in each if tree]
    assert len(trained) >= 4
    messages = [data for _, data in (*engine.up, *engine.down)]
    for each in trained:
        for name, run in pieces(each):
            searched += 1
            assert not any(run in data for data in messages), f"{name} left"
    assert searched > 100 or "bn" in method


@pytest.mark.parametrize("method", [*STAYING, *EVERYTHING])
def test_their_names_go_down_once_and_never_up(method: str) -> None:
    engine, _ = tapped(method, clients_per_round=None)
    names = STAYING.get(method) or set(engine.context.net(engine.down[0][0].spec).initial())
    stage = len(registry.build(method).stages) - 1
    first: set[int] = set()
    for sent, data in engine.down:
        if sent.round.stage == stage:
            assert (names <= sent.weights.keys()) == (sent.client not in first)
            assert sent.client not in first or not any(name.encode() in data for name in names)
            first.add(sent.client)
    assert first == {0, 1, 2, 3}
    for sent, data in engine.up:
        if sent.round.stage == stage:
            assert not any(name.encode() in data for name in names)


def test_the_preview_names_what_stays_and_lists_the_rest() -> None:
    for turn in dry_run(harness.config("fedper"), harness.inputs()):
        assert {leaf.name for leaf in turn.stays} == STAYING["fedper"]
        assert not {leaf.name for leaf in turn.leaves} & STAYING["fedper"]


@pytest.mark.parametrize("method", ["fedper", "local", "ditto", "fedavg+finetuned"])
def test_no_file_but_the_clients_own_states_has_them(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Record, model, report, the server's state and logs: neither their bytes, nor the digits that texts would have."""
    config, folder = harness.config(method, clients_per_round=None, evaluate_clients=True), tmp_path / "run"
    with caplog.at_level("DEBUG"):
        assert harness.finish(config, out=folder).rounds[-1].scored is not None
        made = CliRunner().invoke(main, ["report", str(folder), "-o", str(folder / "report.html")])
    assert made.exit_code == 0, made.output
    own = [memory for state in client_states(folder).values() for memory in state.memory.values()]
    found = {run for each in own for _, run in pieces(each)}
    found |= {f"{value:.12f}"[:9].encode() for each in own for value in each["head.weight"].flatten()[:8].tolist()}
    written = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("client-")]
    assert {reader.NAME, "report.html", "weights.safetensors", "manifest.json"} < {path.name for path in written}
    assert len(own) == 4 and len(found) > 100
    for data in (*(path.read_bytes() for path in written), caplog.text.encode(), made.output.encode()):
        assert not any(each in data for each in found)


def client_states(folder: Path) -> dict[str, ClientState]:
    """Return what the checkpoint of a run has of each client."""
    files = json.loads((folder / "checkpoint" / "manifest.json").read_text().splitlines()[0])["client_states"]
    return {client: codec.load(folder / "checkpoint" / name)["state"] for client, name in files.items()}


def states(engine: Inline, clients: int = 4) -> list[str]:
    return [tree.digest(next(iter(engine.store.get(client).memory.values()), {})) for client in range(clients)]


def test_alone_a_client_does_what_it_would_do_in_a_federation_of_one() -> None:
    """Client 0 of `local` and the only client of fedavg have the same data and the same draws: the same bits."""
    context, state = harness.site_of(harness.config("local", clients_per_round=None))
    engine = Inline(context, Store())
    harness.final_state(context, state, engine)
    shard = context.shards.shard(0, context.x)
    alone = Shards(shard.index, shard.y, torch.tensor([0, len(shard)]), shard.classes)
    given = replace(harness.inputs(), shards=alone)
    done = experiment.run(harness.config("fedavg", clients=1, clients_per_round=None), inputs=given)
    assert done.weights is not None and len(done.weights) == 10
    assert tree.equal(engine.store.get(0).memory["Personal@0"], done.weights)


def test_all_clients_have_as_many_steps_as_in_the_federated_run() -> None:
    runs = [harness.finish(harness.config(method)) for method in ("fedavg", "local")]
    assert [line.steps for line in runs[0].rounds] == [line.steps for line in runs[1].rounds]


def test_an_evaluated_client_has_the_global_weights_under_its_own() -> None:
    engine, state = tapped("fedper", clients_per_round=None)
    context, model = engine.context, server.model_of(engine.context, state)
    assert model is not None
    for sent in server.evaluations(context, state):
        found = with_personal(context, sent, engine.store.get(sent.client)).weights
        own = engine.store.get(sent.client).memory["Personal@0"]
        assert own.keys() == STAYING["fedper"] and found.keys() == model.keys()
        assert tree.equal(found, model | own) and not tree.equal(found, model)


def test_scores_are_those_of_the_clients_own_models() -> None:
    """Every client's counts, over the 60 test digits, are those of its own weights; accuracy is their mean."""
    engine, state = tapped("local", clients_per_round=None)
    context = engine.context
    with one_thread():
        counted = [
            context.net(sent.spec).frozen(
                with_personal(context, sent, engine.store.get(sent.client)).weights, context.view.eval(context.test.x)
            )
            for sent in server.evaluations(context, state)
        ]
    right = [int((out.logits.argmax(1) == context.test.y).sum()) for out in counted]
    line = harness.finish(harness.config("local", clients_per_round=None)).rounds[-1]
    assert line.scored is not None and len(set(right)) > 1
    assert [sum(line.scored[str(client)].right) for client in range(4)] == right
    assert line.accuracy == sum(right) / 240


@pytest.mark.parametrize("method", ["fedper", "fedbn+fedlmd", "local", "fedrep(head_epochs=1)", "ditto"])
def test_a_lost_reply_takes_the_clients_own_weights_back(method: str) -> None:
    lossy = harness.config(method, settings=["partition.min_size=5", "engine.drop=0.4"], rounds=5)
    ended = []
    for kind in (Inline, harness.Unasked):
        context, state = harness.site_of(lossy)
        engine = kind(context, Store())
        harness.final_state(context, state, engine)
        ended.append(states(engine))
    assert ended[0] == ended[1] and len(set(ended[0])) == 4


@pytest.mark.parametrize("method", ["fedper", "local", "fedavg+finetuned", "fedrep(head_epochs=1)", "ditto", "fedbabu"])
def test_a_resumed_run_and_a_pool_have_the_same_weights_at_every_client(method: str, tmp_path: Path) -> None:
    """Also with every state written to disk and read back, in a run that is extended."""

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    config = harness.config(method)
    runs = [harness.finish(config, out=tmp_path / "through")]
    runs.append(harness.finish(harness.config(method, workers=2), engine="pool", out=tmp_path / "pool"))
    with pytest.raises(KeyboardInterrupt):
        harness.finish(config, out=tmp_path / "stopped", callbacks=[harness.each_round(stop)])
    runs.append(experiment.resume(tmp_path / "stopped", inputs=harness.inputs()))
    through, *others = (client_states(tmp_path / name) for name in ("through", "pool", "stopped"))
    assert through and runs[0].accuracy == runs[1].accuracy == runs[2].accuracy
    for other in others:
        assert {c: codec.to_bytes(state) for c, state in through.items()} == {
            c: codec.to_bytes(state) for c, state in other.items()
        }


def test_a_client_without_its_memory_is_one_sentence() -> None:
    context, state = harness.site_of(harness.config("fedper"))
    state = server.init_memory(context, replace(state, round=replace(state.round, stage=0)), state.memory["start"])
    sent = server.evaluations(context, state)[0]
    bare = replace(sent, weights={n: t for n, t in sent.weights.items() if n not in STAYING["fedper"]})
    with pytest.raises(UserError, match="client 0 has lost its personal weights"):
        visit(context, bare, ClientState())


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("fedper+scaffold", "ControlVariate needs all trained weights to travel, but those of 'head' stay"),
        ("local+mofedsam", "GlobalMomentum needs all trained weights to travel"),
        ("fedbn+fedgf", "GlobalFlat needs all trained weights to travel"),
        ("fedbn+fedcurv", "Curvature needs all trained weights to travel"),
        ("fedper+fedbn", "both bring their own personal"),
        ("fedconcat+fedper", "replaces the network, but clients have weights of their own"),
        ("finetuned+finetuned(epochs=2)", "both have a closing stage"),
    ],
)
def test_what_cannot_work_is_refused(method: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        registry.build(method)
    assert sentence in str(error.value)


def test_a_network_without_batch_norm_has_nothing_to_keep() -> None:
    with pytest.raises(UserError, match="leaves weights of 'batchnorm' at the clients, and network 'mlp' has none"):
        prepare(harness.config("fedbn", model="mlp"), harness.inputs())


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("all", 10),
        ("head", {"head.weight", "head.bias"}),
        ("batchnorm", STAYING["fedbn"]),
        ("trunk.0", {"trunk.0.weight"}),
        ("nothing", set()),
    ],
)
def test_selectors_name_kinds_or_beginnings(what: str, names: Any) -> None:
    context, state = harness.site_of(harness.config())
    found = context.net(state.spec).select(what)
    assert len(found) == names if isinstance(names, int) else found == names
    assert context.net(state.spec).select("body") == context.net(state.spec).select("all") - {
        "head.weight",
        "head.bias",
    }


# ---- all data in one place ------------------------------------------------------------------------------------------


def test_centralized_is_one_client_with_all_data() -> None:
    """The same bits as fedavg whose one client has the rows of all four in their order; the header keeps the four."""
    config = harness.config("centralized", clients_per_round=None)
    context, _, _ = prepare(config, harness.inputs())
    shards = context.shards
    assert len(shards) == 4
    done = harness.finish(config)
    steps = sum(line.steps or 0 for line in done.rounds)
    apart = harness.finish(harness.config("fedavg", clients_per_round=None))
    assert steps == sum(line.steps or 0 for line in apart.rounds)
    assert done.header.shards == apart.header.shards and done.header.counts == apart.header.counts
    effort = context.plan.method.stages[0].effort
    method = registry.build("fedavg")
    method = replace(method, stages=tuple(replace(s, effort=effort) for s in method.stages))
    given = replace(harness.inputs(method), shards=replace(shards, offsets=torch.tensor([0, len(shards.y)])))
    alone = experiment.run(harness.config("fedavg", clients=1, clients_per_round=None), inputs=given)
    assert alone.end.weights_sha256 == done.end.weights_sha256


def test_centralized_has_the_share_of_the_clients_that_are_asked() -> None:
    """Three of four clients take three quarters of the steps of all on average."""
    steps = [
        harness.finish(harness.config("centralized", clients_per_round=many, rounds=1)).rounds[0].steps
        for many in (None, 3, 1)
    ]
    assert steps[0] and steps[1:] == [round(steps[0] * 3 / 4), round(steps[0] / 4)]
