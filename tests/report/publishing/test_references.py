"""Every method and data set names papers that are in references.bib, and the two agree."""

from __future__ import annotations

import re

import pytest

from fedskew import __version__
from fedskew.data import registry
from fedskew.methods import index
from fedskew.report.publishing import references

#: made here, read from the user's own files, or put together from others
WITHOUT = {"synthetic", "own", "npz", "huggingface"}


def field(entry: str, name: str) -> str:
    found = re.search(rf"^  {name} = \{{(.*)\}},$", entry, re.MULTILINE)
    return found[1] if found else ""


def plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.replace(r"{\"u}", "ü").lower().replace("ü", ""))


def test_entries_are_whole_and_sorted() -> None:
    text = references.entries()
    assert list(text) == sorted(text) and len(text) > 40
    for key, entry in text.items():
        assert entry.count("{") == entry.count("}"), key
        author = re.sub(r"[^a-z]", "", field(entry, "author").lower().partition(",")[0])
        assert key.startswith(author) and field(entry, "year") in key and field(entry, "title"), key
        kind = re.match(r"@(\w+)", entry)
        needed = {"inproceedings": "booktitle", "article": "journal", "techreport": "institution"}
        assert kind is not None and (kind[1] == "misc" or field(entry, needed[kind[1]])), key
    assert text["guo2025exploring"].startswith("@inproceedings{guo2025exploring,\n  author = {Guo, Kuangpu and ")


def test_every_entry_is_used_and_every_key_is_there() -> None:
    used = {key for entry in index.known() for key in entry.card.cite}
    used |= {key for info in registry.known() for key in info.works}
    assert used == set(references.entries())


@pytest.mark.parametrize("method", index.known(), ids=lambda entry: entry.id)
def test_the_card_and_its_first_entry_are_the_same_paper(method: index.MethodEntry) -> None:
    assert method.card.cite, f"add 'Cite: key' to the docstring of {method.id}, and the paper to references.bib"
    entry = references.entries()[method.card.cite[0]]
    surnames, _, rest = method.card.paper.partition(": ")
    assert plain(rest).startswith(plain(field(entry, "title")))
    wanted = surnames.removesuffix(" et al.").split(", ")
    found = [author.partition(",")[0] for author in field(entry, "author").split(" and ")]
    assert [plain(name) for name in wanted] == [plain(name) for name in found[: len(wanted)]]
    assert "et al." in surnames or len(found) == len(wanted)
    assert field(entry, "year") in method.card.paper


def test_every_data_set_that_is_not_yours_names_a_paper() -> None:
    assert {info.name for info in registry.known() if not info.works} == WITHOUT
    assert registry.info("digits-domains").works == [
        "lecun1998gradient", "hull1994database", "netzer2011reading", "ganin2015unsupervised",
    ]  # fmt: skip


def test_an_entry_is_printed_once_and_says_who_uses_it() -> None:
    cited = [("a", ["guo2025exploring"], ""), ("b", ["guo2025exploring", "guo2024not"], ""), ("c", [], "mail x@y.z")]
    text = references.bibliography(cited)
    assert text.count("@inproceedings{guo2025exploring,") == 1 and "% a, b\n@inproceedings{guo2025" in text
    assert f"version {__version__}" in text and text.endswith("% c: mail x at y.z\n")
    assert text.count("\n@") == 2 and text.startswith("@misc{fedskew,")
