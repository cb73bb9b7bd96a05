from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew import config, resolve
from fedskew.config import PARTITION_NEEDS, Partition, PartitionName, RunConfig
from fedskew.errors import UserError

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
def partitions(draw: st.DrawFn) -> Partition:
    name = draw(st.sampled_from(get_args(PartitionName)))
    needed = PARTITION_NEEDS[name]
    return Partition(
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
    per_round=st.none() | st.integers(1, 50),
    data=st.builds(
        config.Data,
        name=st.text(),
        dir=st.none() | st.text(),
        augment=st.text(),
        options=st.dictionaries(st.text(), scalars),
    ),
    partition=partitions(),
    model=st.builds(
        config.Model,
        name=st.text(),
        args=st.dictionaries(st.text(), scalars | st.lists(scalars)),
        head=st.none() | st.text(),
    ),
    local=st.builds(
        config.Local,
        optimiser=st.sampled_from(["sgd", "adam"]),
        lr=st.floats(0, 10, exclude_min=True),
        lr_decay=st.floats(0, 1, exclude_min=True),
        momentum=st.floats(0, 1, exclude_max=True),
        weight_decay=st.floats(0, 1),
        epochs=positive,
        batch=positive,
        drop_last=st.booleans(),
    ),
    evaluate=st.builds(
        config.Evaluate, every=positive, clients=st.booleans(), target=st.none() | st.floats(0, 1), batch=positive
    ),
    engine=st.builds(
        config.Engine,
        name=st.sampled_from(["pool", "inline", "wire"]),
        workers=st.none() | st.integers(1, 10_000),
        device=st.text(),
        precision=st.sampled_from(["float32", "bf16"]),
        drop=st.floats(0, 1, exclude_max=True),
    ),
    checkpoint=st.builds(config.Checkpoint, every=st.integers(0, 100)),
    cohort=st.builds(config.Cohort, replay=st.sampled_from(["seeded", "fedntd"])),
)


@given(configs)
def test_toml_round_trip(made: RunConfig) -> None:
    again = config.from_dict(tomllib.loads(config.dumps(made)))
    assert again == made
    assert config.dumps(again) == config.dumps(made)


def test_strings_that_toml_must_escape() -> None:
    nasty = "".join(map(chr, range(0x20))) + "\x7f\"'\\\u2028é😀"
    made = config.from_dict({"method": nasty, "model": {"args": {nasty: nasty, "": [nasty]}}})
    assert config.from_dict(tomllib.loads(config.dumps(made))) == made


def test_load_reads_what_dumps_wrote(tmp_path: Path) -> None:
    made = config.from_dict({"seed": 3, "partition": {"name": "sharding", "s": 2, "clients": 7}})
    (tmp_path / "run.toml").write_text(config.dumps(made), encoding="utf-8")
    assert config.load(tmp_path / "run.toml") == made


def test_defaults_are_valid_and_frozen() -> None:
    made = config.from_dict({})
    assert made == RunConfig()
    with pytest.raises(ValueError):
        made.seed = 1


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"local": {"epoch": 3}}, "config has no key 'local.epoch'; did you mean 'epochs'?"),
        ({"locl": {}}, "config has no key 'locl'; did you mean 'local'?"),
        ({"cohort": {"x": 1}}, "config has no key 'cohort.x'; known: replay"),
        (
            {"partition": {"clients": 0, "alpha": 1.0}},
            "config key 'partition.clients' is 0; it should be greater than or equal to 1",
        ),
        (
            {"per_round": 11, "partition": {"alpha": 1.0}},
            "config key 'per_round' is 11; it should be at most 10, the value of 'partition.clients'",
        ),
        ({"partition": {"alpha": 0.0}}, "config key 'partition.alpha' is 0.0; it should be greater than 0"),
        ({"partition": {"alpha": -1}}, "config key 'partition.alpha' is -1; it should be greater than 0"),
        ({"partition": {"alpha": float("nan")}}, "config key 'partition.alpha' is nan; it should be a finite number"),
        (
            {"partition": {"name": "dirichlet"}},
            "config key 'partition.alpha' is not set; partition 'dirichlet' needs it, for example 0.5",
        ),
        (
            {"partition": {"name": "iid", "alpha": 0.5}},
            "config key 'partition.alpha' is 0.5; partition 'iid' has no use for it, leave it out",
        ),
        ({"partition": {"name": "dirichet"}}, "config key 'partition.name' is 'dirichet'; did you mean 'dirichlet'?"),
        (
            {"engine": {"address": "10.0.0.1:6379"}},
            "config key 'engine.address' is '10.0.0.1:6379'; only engine 'ray' has one, leave it out",
        ),
        (
            {"engine": {"name": "ray", "device": "cuda"}},
            "config key 'engine.device' is 'cuda'; with engine 'ray' it should be 'cpu'",
        ),
        ({"engine": {"name": "gpu"}}, "config key 'engine.name' is 'gpu'; known: inline, pool, ray, wire"),
        ({"rounds": "ten"}, "config key 'rounds' is 'ten'; it should be a valid integer"),
        ({"rounds": True}, "config key 'rounds' is True; it should be a valid integer"),
        ({"local": 3}, "config key 'local' is 3; it should be a section of keys and values"),
        ({"model": {"args": 3}}, "config key 'model.args' is 3; it should be a section of keys and values"),
        (
            {"data": {"options": {"a": [1]}}},
            "config key 'data.options.a' is [1]; it should be a finite number, a string, true or false",
        ),
        (
            {"model": {"args": {"a": [None]}}},
            "config key 'model.args.a' is [None]; it should be a finite number, a string, true or false",
        ),
        # Only the first of several mistakes is told.
        (
            {"local": {"epochs": 10**20}},
            "config key 'local.epochs' is 100000000000000000000; it should be less than or equal to 1000000000",
        ),
        ({"rounds": 10**9 + 1}, "config key 'rounds' is 1000000001; it should be less than or equal to 1000000000"),
        ({"seed": 2**63}, f"config key 'seed' is {2**63}; it should be less than {2**63}"),
        (
            {"engine": {"workers": 10**4 + 1}},
            "config key 'engine.workers' is 10001; it should be less than or equal to 10000",
        ),
        (
            {"noise": {"seed": -(2**64)}},
            f"config key 'noise.seed' is {-(2**64)}; it should be greater than or equal to {-(2**63)}",
        ),
        (
            {"model": {"args": {"hidden": [2**64]}}},
            f"config key 'model.args.hidden' is [{2**64}]; it should be a whole number of at most 64 bits",
        ),
        (
            {"local": {"batch": 10**200}},
            f"config key 'local.batch' is {10**39}...; it should be less than or equal to 1000000000",
        ),
        ({"seed": "x", "rounds": "y"}, "config key 'seed' is 'x'; it should be a valid integer"),
    ],
)
def test_one_sentence_for_each_mistake(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        config.from_dict(values)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"seed = 1\nrounds =\n", ["run.toml' is not valid TOML", "line 2"]),
        (b"seed = '\xff'", ["run.toml' is not text in UTF-8"]),
        (b"seed = " + b"9" * 5000, ["run.toml' is not valid TOML", "5000 digits"]),
        (b"[local]\nepoch = 1\n", ["run.toml' has no key 'local.epoch'; did you mean 'epochs'?"]),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(UserError) as raised:
        config.load(tmp_path / "run.toml")
    assert all(word in str(raised.value) for word in words)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml' cannot be read: No such file"):
        config.load(tmp_path / "none.toml")


def test_override_parses_toml_values_and_falls_back_to_text() -> None:
    made = config.override(
        RunConfig(),
        [
            "partition.legacy=true",
            "local.lr=1",
            "method=fedprox(mu=0.5)+avgm",
            'data.name="7"',
            "data.dir=2024-01-01",
            "model.args.hidden=[3, 4]",
            "data.options.size = 5",
            "per_round=2",
        ],
    )
    assert (made.partition.legacy, made.local.lr, made.method) == (True, 1.0, "fedprox(mu=0.5)+avgm")
    assert (made.data.name, made.data.dir, made.data.options) == ("7", "2024-01-01", {"size": 5})
    assert made.model.args == {"hidden": [3, 4]}
    assert made.per_round == 2


def test_override_with_none_puts_the_default_back() -> None:
    made = config.from_dict({"per_round": 3, "data": {"augment": "crop"}})
    assert config.override(made, ["per_round=none", "data.augment=none"]) == RunConfig()
    assert config.override(RunConfig(), ["partition.name=iid", "partition.alpha=none"]).partition.name == "iid"


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("local.epoch=3", "config has no key 'local.epoch'; did you mean 'epochs'?"),
        ("epochs=3", "config has no key 'epochs'; did you mean 'local.epochs'?"),
        ("batch=3", "config has no key 'batch'; did you mean 'local.batch' or 'evaluate.batch'?"),
        ("nowhere.at.all=3", "config has no key 'nowhere'; known: "),
        ("seed.x=3", "config has no key 'seed.x'; 'seed' is a value, not a section"),
        ("local.lr", "override 'local.lr' should be 'key=value', for example 'local.lr=0.1'"),
        ("local=3", "config key 'local' is 3; it should be a section of keys and values"),
        ("rounds=" + "9" * 5000, f"config key 'rounds' is '{'9' * 39}...; it should be a valid integer"),
        ("rounds=-1", "config key 'rounds' is -1; it should be greater than or equal to 0"),
    ],
)
def test_override_mistakes(assignment: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        config.override(RunConfig(), [assignment])
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
    fields = Partition.parse(text)
    assert {name: value for name, value in fields.items() if value is not None} == expected
    if ":" in text:
        merged = {**RunConfig().partition.model_dump(), **fields}
        assert config.from_dict({"partition": merged}).partition.name == expected["name"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dirichet:1", "partition 'dirichet' is unknown; did you mean 'dirichlet'?"),
        ("dirichlet:x", "partition 'dirichlet:x' should be 'dirichlet:alpha', for example 'dirichlet:0.5'"),
        ("sharding:1.5", "partition 'sharding:1.5' should be 'sharding:s', for example 'sharding:2'"),
        ("iid:3", "partition 'iid:3' should be 'iid': it takes no parameter"),
    ],
)
def test_partition_shorthand_mistakes(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        Partition.parse(text)
    assert str(raised.value) == sentence


def test_every_partition_name_has_its_need() -> None:
    assert set(get_args(PartitionName)) == set(PARTITION_NEEDS)


def test_config_and_record_do_without_torch() -> None:
    program = "import sys, fedskew.config, fedskew.record; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_streams_of_others_have_the_seeds_that_numpy_takes(seed: int) -> None:
    replayed = Partition(name="sharding", s=2, legacy=True)
    with pytest.raises(UserError, match=f"partition.legacy is true, and the seed {seed}; numpy's are from 0"):
        resolve.partition_options(replayed, seed)
    assert resolve.partition_options(replayed, 2**32 - 1) == {"s": 2, "legacy": True}
