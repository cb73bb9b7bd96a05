"""Flower's run configuration holds ours as one text, and the coordinator's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.core.errors import UserError
from fedskew.federation.rules import Rules, absolute_folder, parse_config, parse_rules


def test_rules_are_read_by_their_flower_names() -> None:
    found = parse_rules(
        {"config": "", "out": "/x", "deadline": 60, "max-norm": 3.5, "own-data": True, "sites": "7:0, 9:1"}
    )
    assert found == Rules(deadline=60.0, max_norm=3.5, own_data=True, sites={7: 0, 9: 1})


@pytest.mark.parametrize(
    "given, sentence",
    [
        ({"dead-line": 3}, "run config has no key 'dead-line'. Did you mean 'deadline'"),
        ({"quorum": 0.0}, "run config 'quorum' is 0.0. Give a number above 0 and at most 1"),
        ({"deadline": "soon"}, "run config 'deadline' is 'soon'. Give a value of the type of 3600.0"),
        ({"max-norm": 1}, "run config 'max-norm' is 1.0. Give a number above 1"),
        ({"score": "nobody"}, "run config 'score' is 'nobody'. Give 'server' or 'sites'"),
        ({"sites": "7-0"}, "Write NODE:SITE pairs, for example '1234:0,5678:1'"),
    ],
)
def test_wrong_rules_are_one_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_rules(given)
    assert sentence in str(caught.value)


def test_a_project_of_ones_own_may_have_keys_of_its_own() -> None:
    assert parse_rules({"my-key": 3, "deadline": 9.5}, strict=False) == Rules(deadline=9.5)


def test_the_configuration_is_one_text_and_flower_is_the_engine() -> None:
    config = parse_config({"config": 'method = "moon"\n[engine]\nname = "pool"'})
    assert (config.method, config.engine.name) == ("moon", "inline")
    for text, sentence in {"method = ": "not valid TOML", "[checkpoint]\nevery = 2": "Set it to 1"}.items():
        with pytest.raises(UserError, match=sentence):
            parse_config({"config": text})
    with pytest.raises(UserError, match="no text 'config'"):
        parse_config({})


def test_folders_are_absolute() -> None:
    assert absolute_folder({"out": "/tmp/x"}, "out") == Path("/tmp/x")
    assert absolute_folder({}, "memory", Path("/m")) == Path("/m")
    with pytest.raises(UserError, match="Give the absolute path"):
        absolute_folder({"out": "runs"}, "out")
