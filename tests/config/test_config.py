from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew import config as configuration
from fedskew.config import schema
from fedskew.config.partition import PARTITION_NEEDS, PartitionConfig, PartitionName
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.experiment.preparation import resolve

positive = st.integers(1, 10**6)
integers = st.integers(-(2**63), 2**63 - 1)
scalars = st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | st.text()
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "alpha": st.floats(0, 1e300, exclude_min=True),
    "s": positive,
    "k": positive,
    "lists": st.text(),
}


@st.composite
def partitions(draw: st.DrawFn) -> PartitionConfig:
    name = draw(st.sampled_from(get_args(PartitionName)))
    needed = PARTITION_NEEDS[name]
    return PartitionConfig(
        name=name,
        clients=draw(st.integers(50, 10**6)),
        min_size=draw(st.integers(0, 100)),
        legacy=draw(st.booleans()),
        paired=draw(st.booleans()),
        upper=draw(st.floats(0, 1e300, exclude_min=True)),
        seed=draw(st.none() | integers),
        **({needed: draw(PARAMETERS[needed])} if needed else {}),
    )


configs = st.builds(
    RunConfig,
    method=st.text(),
    seed=integers,
    rounds=st.integers(0, 10**6),
    clients_per_round=st.none() | st.integers(1, 50),
    data=st.builds(
        schema.DataConfig,
        name=st.text(),
        dir=st.none() | st.text(),
        augment=st.text(),
        options=st.dictionaries(st.text(), scalars),
    ),
    partition=partitions(),
    model=st.builds(
        schema.ModelConfig,
        name=st.text(),
        args=st.dictionaries(st.text(), scalars | st.lists(scalars)),
        head=st.none() | st.text(),
    ),
    local=st.builds(
        schema.LocalConfig,
        optimizer=st.sampled_from(["sgd", "adam"]),
        lr=st.floats(0, 10, exclude_min=True),
        lr_decay=st.floats(0, 1, exclude_min=True),
        momentum=st.floats(0, 1, exclude_max=True),
        weight_decay=st.floats(0, 1),
        epochs=positive,
        batch_size=positive,
        drop_last=st.booleans(),
    ),
    evaluate=st.builds(
        schema.EvaluateConfig,
        every=positive,
        clients=st.booleans(),
        target=st.none() | st.floats(0, 1),
        batch_size=positive,
    ),
    engine=st.builds(
        schema.EngineConfig,
        name=st.sampled_from(["pool", "inline"]),
        workers=st.none() | st.integers(1, 10_000),
        device=st.text(),
        precision=st.sampled_from(["float32", "bf16"]),
        drop=st.floats(0, 1, exclude_max=True),
    ),
    checkpoint=st.builds(schema.CheckpointConfig, every=st.integers(0, 100)),
    cohort=st.builds(schema.CohortConfig, replay=st.sampled_from(["seeded", "fedntd"])),
)


@given(configs)
def test_toml_round_trip(made: RunConfig) -> None:
    again = configuration.from_dict(tomllib.loads(configuration.dumps(made)))
    assert again == made
    assert configuration.dumps(again) == configuration.dumps(made)


def test_strings_that_toml_must_escape() -> None:
    nasty = "".join(map(chr, range(0x20))) + "\x7f\"'\\\u2028é😀"
    made = configuration.from_dict({"method": nasty, "model": {"args": {nasty: nasty, "": [nasty]}}})
    assert configuration.from_dict(tomllib.loads(configuration.dumps(made))) == made


def test_load_reads_what_dumps_wrote(tmp_path: Path) -> None:
    made = configuration.from_dict({"seed": 3, "partition": {"name": "sharding", "s": 2, "clients": 7}})
    (tmp_path / "run.toml").write_text(configuration.dumps(made), encoding="utf-8")
    assert configuration.load(tmp_path / "run.toml") == made


def test_defaults_are_valid_and_frozen() -> None:
    made = configuration.from_dict({})
    assert made == RunConfig()
    with pytest.raises(ValueError):
        made.seed = 1


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"local": {"epoch": 3}}, "there is no key 'local.epoch'. Type local.epochs=3 (or --local-epochs 3)."),
        ({"locl": {}}, "there is no section 'locl'. Did you mean 'local'?"),
        ({"cohort": {"x": 1}}, "there is no key 'cohort.x'. The keys of 'cohort' are cohort.replay."),
        (
            {"partition": {"clients": 0, "alpha": 1.0}},
            "partition.clients is 0, but must be at least 1. "
            "Type, for example, partition.clients=10 (or --clients 10).",
        ),
        (
            {"clients_per_round": 11, "partition": {"alpha": 1.0}},
            "clients_per_round is 11, above 10, the number of clients. Type --clients-per-round 10, or more --clients.",
        ),
        (
            {"partition": {"alpha": 0.0}},
            "partition.alpha is 0.0, but must be greater than 0. Type, for example, partition.alpha=0.5.",
        ),
        (
            {"partition": {"alpha": -1}},
            "partition.alpha is -1, but must be greater than 0. Type, for example, partition.alpha=0.5.",
        ),
        (
            {"partition": {"alpha": float("nan")}},
            "partition.alpha is nan, but must be a finite number. Type, for example, partition.alpha=0.5.",
        ),
        (
            {"partition": {"name": "dirichlet"}},
            "partition 'dirichlet' needs partition.alpha, which is not set. "
            "Type, for example, --partition dirichlet:0.5.",
        ),
        (
            {"partition": {"name": "iid", "alpha": 0.5}},
            "partition 'iid' does not use partition.alpha, which is 0.5. Remove it: --set partition.alpha=none.",
        ),
        (
            {"partition": {"name": "dirichet"}},
            "partition.name is 'dirichet', but must be iid, sharding, dirichlet, dirichlet_client, "
            "bernoulli_dirichlet, quantity, labels, natural or explicit. Type, for example, partition.name=dirichlet.",
        ),
        (
            {"engine": {"address": "10.0.0.1:6379"}},
            "engine 'pool' does not use engine.address, which is '10.0.0.1:6379'. Type --engine ray, or remove the "
            "address.",
        ),
        (
            {"engine": {"name": "ray", "device": "cuda:0,1"}},
            "engine 'ray' deals out the GPUs itself, and engine.device is 'cuda:0,1'. Type --device cuda.",
        ),
        (
            {"engine": {"name": "gpu"}},
            "engine.name is 'gpu', but must be pool, inline or ray. Type, for example, engine.name=pool (or "
            "--engine pool).",
        ),
        (
            {"rounds": "ten"},
            "rounds is 'ten', but must be a whole number. Type, for example, rounds=20 (or --rounds 20).",
        ),
        (
            {"rounds": True},
            "rounds is True, but must be a whole number. Type, for example, rounds=20 (or --rounds 20).",
        ),
        ({"local": 3}, "local is 3, but must be a section of keys and values. Type local.KEY=VALUE."),
        (
            {"model": {"args": 3}},
            "model.args is 3, but must be a section of keys and values. Type model.args.KEY=VALUE.",
        ),
        (
            {"data": {"options": {"a": [1]}}},
            "data.options.a is [1], but must be a finite number, a string, true or false.",
        ),
        (
            {"model": {"args": {"a": [None]}}},
            "model.args.a is [None], but must be a finite number, a string, true or false.",
        ),
        # Only the first of several mistakes is named.
        (
            {"local": {"epochs": 10**20}},
            "local.epochs is 100000000000000000000, but must be at most 1000000000. "
            "Type, for example, local.epochs=5 (or --local-epochs 5).",
        ),
        (
            {"rounds": 10**9 + 1},
            "rounds is 1000000001, but must be at most 1000000000. Type, for example, rounds=20 (or --rounds 20).",
        ),
        ({"seed": 2**63}, f"seed is {2**63}, but must be less than {2**63}. Type, for example, seed=0 (or --seed 0)."),
        (
            {"engine": {"workers": 10**4 + 1}},
            "engine.workers is 10001, but must be at most 10000. "
            "Type, for example, engine.workers=10000 (or --workers 10000).",
        ),
        (
            {"noise": {"seed": -(2**64)}},
            f"noise.seed is {-(2**64)}, but must be at least {-(2**63)}.",
        ),
        (
            {"model": {"args": {"hidden": [2**64]}}},
            f"model.args.hidden is [{2**64}], but must be a whole number of at most 64 bits.",
        ),
        (
            {"local": {"batch_size": 10**200}},
            f"local.batch_size is {10**39}..., but must be at most 1000000000. "
            "Type, for example, local.batch_size=50 (or --batch-size 50).",
        ),
        (
            {"seed": "x", "rounds": "y"},
            "seed is 'x', but must be a whole number. Type, for example, seed=0 (or --seed 0).",
        ),
    ],
)
def test_one_sentence_for_each_mistake(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        configuration.from_dict(values)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"seed = 1\nrounds =\n", ["run.toml' is not valid TOML", "line 2"]),
        (b"seed = '\xff'", ["run.toml' is not UTF-8 text"]),
        (b"seed = " + b"9" * 5000, ["run.toml' is not valid TOML", "5000 digits"]),
        (b"[local]\nepoch = 1\n", ["run.toml': there is no key 'local.epoch'. Type local.epochs=1"]),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(UserError) as raised:
        configuration.load(tmp_path / "run.toml")
    assert all(word in str(raised.value) for word in words)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml' cannot be read: No such file"):
        configuration.load(tmp_path / "none.toml")


def test_override_parses_toml_values_and_falls_back_to_text() -> None:
    made = configuration.override(
        RunConfig(),
        [
            "partition.legacy=true",
            "local.lr=1",
            "method=fedprox(mu=0.5)+avgm",
            'data.name="7"',
            "data.dir=2024-01-01",
            "model.args.hidden=[3, 4]",
            "data.options.size = 5",
            "clients_per_round=2",
        ],
    )
    assert (made.partition.legacy, made.local.lr, made.method) == (True, 1.0, "fedprox(mu=0.5)+avgm")
    assert (made.data.name, made.data.dir, made.data.options) == ("7", "2024-01-01", {"size": 5})
    assert made.model.args == {"hidden": [3, 4]}
    assert made.clients_per_round == 2


def test_override_with_none_puts_the_default_back() -> None:
    made = configuration.from_dict({"clients_per_round": 3, "data": {"augment": "crop"}})
    assert configuration.override(made, ["clients_per_round=none", "data.augment=none"]) == RunConfig()
    assert configuration.override(RunConfig(), ["partition.name=iid", "partition.alpha=none"]).partition.name == "iid"


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("per_round=3", "there is no key 'per_round'. Type clients_per_round=3 (or --clients-per-round 3)."),
        ("local.epoch=3", "there is no key 'local.epoch'. Type local.epochs=3 (or --local-epochs 3)."),
        (
            "epochs=3",
            "there is no key 'epochs'. Type local.epochs=3 (or --local-epochs 3) or noise.annotator.epochs=3.",
        ),
        ("batch=3", "there is no key 'batch'. Type local.batch_size=3 (or --batch-size 3)."),
        ("learning_rate=0.3", "there is no key 'learning_rate'. Type local.lr=0.3 (or --lr 0.3)."),
        ("local.learning_rate=0.3", "there is no key 'local.learning_rate'. Type local.lr=0.3 (or --lr 0.3)."),
        ("num_clients=3", "there is no key 'num_clients'. Type partition.clients=3 (or --clients 3)."),
        # a share is no number of clients, and a yes is no device
        (
            "fraction=0.1",
            "there is no key 'fraction'. Type clients_per_round=VALUE (or --clients-per-round VALUE).",
        ),
        ("gpu=true", "there is no key 'gpu'. Type engine.device=VALUE (or --device VALUE)."),
        ("mu=1", "there is no key 'mu'. See docs/reference/configuration.md for all keys."),
        ("partition=iid", "partition is 'iid', but must be a section of keys and values. Type --partition iid."),
        (
            "data=mnist",
            "data is 'mnist', but must be a section of keys and values. Type data.name=mnist (or --dataset mnist).",
        ),
        ("nowhere.at.all=3", "there is no section 'nowhere'. Known: "),
        ("seed.x=3", "there is no key 'seed.x', because 'seed' is a value. Type seed=VALUE."),
        ("local.lr", "setting 'local.lr' has no value. Type key=value, for example local.lr=0.1."),
        ("local=3", "local is 3, but must be a section of keys and values. Type local.KEY=VALUE."),
        (
            "rounds=" + "9" * 5000,
            f"rounds is '{'9' * 39}..., but must be a whole number. Type, for example, rounds=20 (or --rounds 20).",
        ),
        ("rounds=-1", "rounds is -1, but must be at least 0. Type, for example, rounds=20 (or --rounds 20)."),
    ],
)
def test_override_mistakes(assignment: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        configuration.override(RunConfig(), [assignment])
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", {"name": "iid"}),
        ("dirichlet:0.05", {"name": "dirichlet", "alpha": 0.05}),
        ("dirichlet_client:1", {"name": "dirichlet_client", "alpha": 1.0}),
        ("sharding:2", {"name": "sharding", "s": 2}),
        ("quantity:3", {"name": "quantity", "s": 3}),
        ("labels:4", {"name": "labels", "k": 4}),
        ("explicit:a:b.json", {"name": "explicit", "lists": "a:b.json"}),
        ("dirichlet", {"name": "dirichlet"}),
    ],
)
def test_partition_shorthand(text: str, expected: dict[str, Any]) -> None:
    fields = PartitionConfig.parse(text)
    assert {name: value for name, value in fields.items() if value is not None} == expected
    if ":" in text:
        merged = {**RunConfig().partition.model_dump(), **fields}
        assert configuration.from_dict({"partition": merged}).partition.name == expected["name"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dirichet:1", "partition 'dirichet' is unknown. Did you mean 'dirichlet'?"),
        ("dirichlet:x", "partition 'dirichlet:x' has no valid alpha. Type, for example, --partition dirichlet:0.5."),
        ("sharding:1.5", "partition 'sharding:1.5' has no valid s. Type, for example, --partition sharding:2."),
        ("iid:3", "partition 'iid' takes no parameter, but got '3'. Type --partition iid."),
    ],
)
def test_partition_shorthand_mistakes(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        PartitionConfig.parse(text)
    assert str(raised.value) == sentence


def test_every_partition_name_has_its_need() -> None:
    assert set(get_args(PartitionName)) == set(PARTITION_NEEDS)


def test_config_and_record_do_without_torch() -> None:
    program = "import sys, fedskew.config.schema, fedskew.record.reader; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_streams_of_others_have_the_seeds_that_numpy_takes(seed: int) -> None:
    replayed = PartitionConfig(name="sharding", s=2, legacy=True)
    with pytest.raises(UserError, match=f"partition.legacy needs a seed from 0 to .*, and the seed is {seed}"):
        resolve.partition_options(replayed, seed)
    assert resolve.partition_options(replayed, 2**32 - 1) == {"s": 2, "legacy": True}
