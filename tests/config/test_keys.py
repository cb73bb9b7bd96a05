"""One place says what a key means: flags, keywords and docs/reference/configuration.md must agree with it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

import fedskew
from fedskew import api
from fedskew.cli import main
from fedskew.config import keys, page
from fedskew.config.keywords import Settings, meaning
from fedskew.config.schema import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
#: flags and keywords that set no single key
OTHERS = {"data", "config", "settings", "allow_code"}


def flags(command: str) -> dict[str, click.Option]:
    context = click.Context(main)
    found = main.get_command(context, command)
    assert found is not None
    options = (each for each in found.get_params(context) if isinstance(each, click.Option))
    return {str(each.name): each for each in options if each.help != "Show this message and exit."}


@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_config_keys_flags_and_keywords_are_the_same(command: str) -> None:
    function = getattr(fedskew, command)
    known = {"method", *keys.KEYWORDS} | OTHERS if command == "run" else {*keys.KEYWORDS} - {"method"} | OTHERS
    assert known <= set(inspect.signature(function).parameters)
    assert known <= set(flags(command))
    own = {"out", "force", "callbacks", "progress", "track", "methods", "resume"}
    own |= {"seeds", "baselines", "grid", "random", "confirm"}
    assert set(inspect.signature(function).parameters) - known <= own
    assert set(flags(command)) - known <= own | {"as_json"}


def test_a_flag_is_the_keyword_and_has_the_key_s_type() -> None:
    for keyword, key in keys.KEYWORDS.items():
        option = flags("run")[keyword]
        assert option.opts == [f"--{keyword.replace('_', '-')}"]
        assert option.is_flag == (key.type is bool)
        if keyword in Settings.__annotations__:
            assert key.type.__name__ in Settings.__annotations__[keyword].__forward_arg__, keyword


def test_a_synonym_is_no_name_of_another_key() -> None:
    names = {end for key in keys.KEYS.values() for end in (key.name.rpartition(".")[2], key.keyword)}
    synonyms = {word for key in keys.KEYS.values() for word in key.synonyms}
    assert "learning_rate" in synonyms and not synonyms & names


def test_a_key_says_what_it_means_in_one_line() -> None:
    assert set(keys.flatten(RunConfig().model_dump())) | {"data.options", "model.args"} == set(keys.KEYS) - {
        "data.options.skip_bad"
    }
    for key in keys.KEYS.values():
        assert key.help.endswith(".") and key.help[0].isupper(), key.name


@pytest.mark.parametrize("name", api.__all__)
def test_every_keyword_is_explained(name: str) -> None:
    function = getattr(fedskew, name)
    doc = inspect.getdoc(function) or ""
    for keyword, parameter in inspect.signature(function).parameters.items():
        found = re.search(rf"^    {keyword}: (.+(?:\n {{8}}.+)*)", doc, re.MULTILINE)
        assert found, keyword
        if parameter.default is not inspect.Parameter.empty:
            assert "Default: " in " ".join(found[1].split()), keyword
    assert all(f"\n{section}:\n" in doc for section in ("Args", "Returns", "Raises", "Examples"))
    assert all(meaning(keyword) for keyword in Settings.__annotations__)


def test_the_page_is_as_it_is_generated() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page.written(text) == text, "python -m fedskew.config.page docs/reference/configuration.md"
