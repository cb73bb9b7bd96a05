"""Flower's run configuration holds ours as one text, and the coordinator's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.errors import UserError
from fedskew.flower.settings import Rules, configured, folder, rules


def test_rules_are_read_by_their_flower_names() -> None:
    found = rules({"config": "", "out": "/x", "deadline": 60, "max-norm": 3.5, "own-data": True, "sites": "7:0, 9:1"})
    assert found == Rules(deadline=60.0, max_norm=3.5, own_data=True, sites={7: 0, 9: 1})


@pytest.mark.parametrize(
    "given, sentence",
    [
        ({"dead-line": 3}, "run config has no key 'dead-line'; did you mean 'deadline'"),
        ({"quorum": 0.0}, "run config 'quorum' is 0.0, and must be above 0 and at most 1"),
        ({"deadline": "soon"}, "run config 'deadline' is 'soon', and must be of the kind of 3600.0"),
        ({"max-norm": 1}, "run config 'max-norm' is 1.0, and must be above 1"),
        ({"score": "nobody"}, "run config 'score' is 'nobody', and must be 'server' or 'sites'"),
        ({"sites": "7-0"}, "must be like '1234:0,5678:1'"),
    ],
)
def test_wrong_rules_are_one_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        rules(given)
    assert sentence in str(caught.value)


def test_a_project_of_ones_own_may_have_keys_of_its_own() -> None:
    assert rules({"my-key": 3, "deadline": 9.5}, strict=False) == Rules(deadline=9.5)


def test_the_configuration_is_one_text_and_flower_is_the_engine() -> None:
    config = configured({"config": 'method = "moon"\n[engine]\nname = "pool"'})
    assert (config.method, config.engine.name) == ("moon", "inline")
    for text, sentence in {"method = ": "not valid TOML", "[checkpoint]\nevery = 2": "it must be 1"}.items():
        with pytest.raises(UserError, match=sentence):
            configured({"config": text})
    with pytest.raises(UserError, match="no text 'config'"):
        configured({})


def test_folders_are_absolute() -> None:
    assert folder({"out": "/tmp/x"}, "out") == Path("/tmp/x")
    assert folder({}, "memory", Path("/m")) == Path("/m")
    with pytest.raises(UserError, match="must be the absolute path"):
        folder({"out": "runs"}, "out")
