"""What is said to leave a site is what leaves it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from fedskew.cli import main
from fedskew.core import codec
from fedskew.core.types import Broadcast, ClientState, Update
from fedskew.engines.inline import Inline
from fedskew.experiment.upload_preview import Leaf, dry_run, leaves
from fedskew.methods import registry
from fedskew.runtime.client import visit
from fedskew.runtime.context import RunContext
from fedskew.runtime.store import Store
from tests.contract import harness
from tests.contract.methods import SMALL

FEW = ["fedavg", "fpl", "fednoro", "fedconcat"]
OTHERS = [name for name in registry.known() if name not in FEW and not registry.build(name).pooled]


class Tapped(Inline):
    """Notes the bytes of every update on their way."""

    def __init__(self, context: RunContext, store: Store) -> None:
        super().__init__(context, store)
        self.bytes: list[tuple[int, int, bytes]] = []

    def visit(self, context: RunContext, sent: Broadcast, client_state: ClientState) -> tuple[Update, ClientState]:
        update, client_state = visit(context, sent, client_state)
        self.bytes.append((sent.turn, sent.client, codec.to_bytes(update)))
        return codec.from_bytes(self.bytes[-1][2]), client_state


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_the_list_equals_what_a_real_run_sends_tensor_for_tensor(name: str) -> None:
    config = harness.config(SMALL.get(name, name))
    context, state = harness.site_of(config)
    tapped = Tapped(context, Store())
    harness.final_state(context, state, tapped)
    said = {(turn.number, turn.client): turn for turn in dry_run(config, harness.inputs())}
    sent = {(turn, client): codec.from_bytes(data) for turn, client, data in tapped.bytes}
    assert sent
    for at, update in sent.items():
        assert tuple(leaves(update)) == said[at].leaves
        assert tuple(update.metrics) == said[at].metrics
        # tensors are all that is large: the rest of the message are names and a handful of numbers
        assert said[at].bytes == sum(t.numel() * t.element_size() for t in codec.flatten(update)[1])
    assert {turn for turn, _ in said} == {turn for turn, _ in sent}


def test_a_leaf_has_its_size() -> None:
    """A float32 tensor of 2 x 3 has 6 numbers of 4 bytes."""
    import torch

    update = Update(0, 5, 1, {"w": torch.zeros(2, 3)}, {}, {"Part": {"n": torch.tensor(1.0).double()}}, {})
    assert list(leaves(update)) == [
        Leaf("weights", "w", "float32", (2, 3), 24),
        Leaf("Part", "n", "float64", (), 8),
    ]


def command(*words: str) -> Any:
    small = ["--dataset", "digits", "--clients", "3", "--rounds", "2", "--model", "tiny", "--partition", "iid"]
    return CliRunner().invoke(main, ["federation", "dry-run", *words, *small])


def test_the_command_lists_tensors_and_their_sizes() -> None:
    said = command("scaffold", "--site", "2")
    assert said.exit_code == 0, said.output
    assert "the updates of stage 0, 2 times (rounds 1, 2)" in said.output
    turns = json.loads(command("scaffold", "--site", "2", "--json").output)
    assert [(turn["client"], turn["round"]) for turn in turns] == [(2, 1), (2, 2)]
    for leaf in turns[0]["leaves"]:
        assert leaf["name"] in said.output
    assert {leaf["place"] for leaf in turns[0]["leaves"]} > {"weights", "buffers"}


def test_a_site_that_is_not_there_is_one_sentence() -> None:
    said = command("fedavg", "--site", "3")
    assert said.exit_code == 2 and "--site is 3. Give a number from 0 to 2." in said.output
