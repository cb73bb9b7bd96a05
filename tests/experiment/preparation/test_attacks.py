"""Hostile clients: what they do, by hand; the same bits everywhere; and no way into a federation."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedskew
from fedskew import api
from fedskew.config.attack import AttackConfig
from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import Broadcast, ClientState, Round, Spec, Tree, Update
from fedskew.experiment.preparation.attacks import Tampering, attacked, hostile
from fedskew.federation import preparation
from fedskew.federation.rules import Rules
from fedskew.federation.site import guard
from fedskew.runtime import server
from fedskew.runtime.accumulate import simulate
from fedskew.runtime.client import visit
from fedskew.runtime.context import one_thread
from tests.contract import harness

SOURCE = Path(fedskew.__file__).parent
KINDS = ("label_flip", "sign_flip", "scaled", "random")


def sent_and_back(kind: str, factor: float, client: int = 1, **options: Any) -> Update:
    """From w = (1, 2) a client comes to (1.5, 1), and its variance from 1 to 0.5."""
    before: Tree = {"w": torch.tensor([1.0, 2.0]), "n.running_var": torch.tensor([1.0]), "n.count": torch.tensor(3)}
    sent = Broadcast(client, 4, -1, Round(0, 0, 0, 0), Spec("tiny"), before, {})
    buffers = {"n.running_var": torch.tensor([0.5]), "n.count": torch.tensor(9)}
    update = Update(client, 10, 5, {"w": torch.tensor([1.5, 1.0])}, buffers, {"Part": {"a": torch.ones(1)}}, {})
    return Tampering(kind, factor, frozenset({1}), 0)(sent, replace(update, **options))


def test_a_sign_flip_goes_the_other_way() -> None:
    """w - (w_k - w) = (1 - 0.5, 2 + 1) = (0.5, 3), of the variance 1 + 0.5."""
    update = sent_and_back("sign_flip", 1.0)
    assert update.weights["w"].tolist() == [0.5, 3.0]
    assert update.buffers["n.running_var"].tolist() == [1.5] and update.buffers["n.count"].item() == 9
    assert update.extras["Part"]["a"].item() == 1 and (update.examples, update.steps) == (10, 5)


def test_a_scaled_change_is_ten_times_as_long() -> None:
    """w + 10 (w_k - w) = (1 + 5, 2 - 10) = (6, -8); the variance would be 1 - 5, and stays at 0."""
    update = sent_and_back("scaled", 10.0)
    assert update.weights["w"].tolist() == [6.0, -8.0] and update.buffers["n.running_var"].tolist() == [0.0]


def test_a_random_change_has_the_length_of_the_true_one_times_the_factor() -> None:
    """|w_k - w| = sqrt(0.25 + 1) = 1.118, three times as much is 3.354."""
    update = sent_and_back("random", 3.0)
    change = update.weights["w"] - torch.tensor([1.0, 2.0])
    assert float(change.norm()) == pytest.approx(3 * 1.25**0.5, rel=1e-6)
    assert tree.equal(update.weights, sent_and_back("random", 3.0).weights)


def test_others_are_left_alone() -> None:
    honest = sent_and_back("scaled", 10.0, client=2)
    assert honest.weights["w"].tolist() == [1.5, 1.0]
    assert sent_and_back("scaled", 10.0, steps=0).weights["w"].tolist() == [1.5, 1.0]  # an answer to a setup


def test_flipped_labels_count_from_the_other_end() -> None:
    config = harness.config(attack="label_flip:0.25")
    context, _ = harness.site_of(config)
    plain, _ = harness.site_of(harness.config())
    (bad,) = context.hostile
    for client in range(4):
        y, right = (each.shards.shard(client, each.x).y for each in (context, plain))
        assert torch.equal(y, 9 - right) if client == bad else torch.equal(y, right)
    assert context.tamper is None
    assert harness.finish(config).header.hostile == [bad]


@pytest.mark.parametrize(("share", "many"), [(0.0, 0), (0.1, 1), (0.2, 2), (0.25, 2), (0.4, 4), (0.01, 1)])
def test_so_many_are_hostile(share: float, many: int) -> None:
    found = hostile(AttackConfig(kind="scaled", share=share), 10, seed=3)
    assert len(found) == many and sorted(set(found)) == list(found)
    assert found == hostile(AttackConfig(kind="random", share=share), 10, seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_attack_has_the_same_bits_on_every_engine(kind: str) -> None:
    config = harness.config("krum(m=2)", attack=f"{kind}:0.3")
    digests = {harness.finish(config, engine=engine).end.weights_sha256 for engine in ("inline", "pool", "wire")}
    assert len(digests) == 1
    assert digests != {harness.finish(harness.config("krum(m=2)")).end.weights_sha256}


def test_nobody_hostile_is_no_attack() -> None:
    digests = {harness.finish(harness.config(**options)).end.weights_sha256 for options in ({}, {"attack": "random:0"})}
    assert len(digests) == 1


def test_an_attack_resumes_to_the_same_bits(tmp_path: Path) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    config = harness.config("fedmedian", attack="random:0.3")
    whole = harness.finish(config)
    with pytest.raises(KeyboardInterrupt):
        harness.finish(config, out=tmp_path / "run", callbacks=[harness.each_round(stop)])
    done = fedskew.experiment.run.resume(tmp_path / "run", inputs=harness.inputs())
    assert done.end.weights_sha256 == whole.end.weights_sha256


@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        ("sign-flip:0.2", "attack 'sign-flip' is unknown. Did you mean 'sign_flip'"),
        ("random:much", "attack 'random:much' has no valid share. Type, for example, --attack random:0.2"),
        ("none:0.2", "attack 'none' takes no parameter"),
        ("scaled:1.0", "attack.share is 1.0, but must be less than 1"),
    ],
)
def test_a_mistake_is_one_sentence(attack: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        api.configure(attack=attack)
    assert sentence in str(error.value)
    with pytest.raises(UserError, match=r"attack 'label_flip' does not use attack\.scale"):
        api.configure(attack="label_flip:0.2", settings=["attack.scale=3"])


# ---- never in a federation ------------------------------------------------------------------------------------------


def test_sites_and_coordinator_refuse_it_in_one_sentence() -> None:
    config = harness.config(attack="sign_flip:0.2")
    with pytest.raises(guard.Refused, match=r"attack\.kind is 'sign_flip', but attacks are for simulations only"):
        guard.check_config(config, Rules(), {}, given=False)
    with pytest.raises(UserError, match="attacks are for simulations only"):
        preparation.prepare_server(config, Rules(), None, lambda: None)  # type: ignore[arg-type,return-value]
    guard.check_config(harness.config(), Rules(), {}, given=False)


def test_a_federation_never_imports_the_code() -> None:
    """Nor does a run without an attack: it is imported where one is asked for, and nowhere else."""
    modules = [
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for path in (SOURCE / "federation").rglob("*.py")
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    try:\n        importlib.import_module(name)\n"
        "    except ImportError as error:\n        assert 'flwr' in str(error) or 'ray' in str(error), error\n"
        "assert 'fedskew.experiment.run' in sys.modules\n"
        "assert not [name for name in sys.modules if name.endswith('.attacks')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_site_does_not_tamper_even_if_its_context_could() -> None:
    """`visit`, which sites run, ignores `tamper`; only engines that simulate clients apply it."""
    context, state = harness.site_of(harness.config(clients_per_round=None))
    bad = attacked(context, AttackConfig(kind="scaled", share=0.9), 0)
    state = server.init_memory(context, replace(state, round=replace(state.round, stage=0)), state.memory["start"])
    sent = server.broadcasts(context, state, [bad.hostile[0]], False)[0]
    with one_thread():
        honest, site, simulated = (
            run(where, sent, ClientState())[0] for run, where in ((visit, context), (visit, bad), (simulate, bad))
        )
    assert tree.equal(honest.weights, site.weights) and not tree.equal(honest.weights, simulated.weights)
    for path in (SOURCE / "federation").rglob("*.py"):
        assert "tamper" not in path.read_text() and "simulate(" not in path.read_text(), path
