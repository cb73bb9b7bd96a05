from __future__ import annotations

import pytest

from fedskew.core.errors import UserError
from fedskew.parts.card import Card

DOC = """FedToy (2026)

    Nobody: An Example
    of two lines. 2026

    Use when: you test
    Equations:
        L_k = CE + a
            + b
        a = 1
    Symbols:
        a: what a is: one
    Defaults: none
    Deviations:
        First.
    Cost: nothing
    Travels: as fedavg
    Lost reply: tolerated
    """


def test_a_docstring_is_read_section_by_section() -> None:
    card = Card.read("fedtoy", DOC)
    assert (card.title, card.year, card.paper) == ("FedToy", 2026, "Nobody: An Example of two lines. 2026")
    assert card.equations == "L_k = CE + a + b;  a = 1"
    assert card.symbols == {"a": "what a is: one"} and card.deviations == ("First.",)
    assert (card.use_when, card.defaults, card.cost) == ("you test", "none", "nothing")
    assert (card.travels, card.lost_reply) == ("as fedavg", "tolerated")


def test_what_is_left_out_is_the_other_card_s_and_deviations_come_first() -> None:
    base = Card.read("fedtoy", DOC)
    card = Card.read("other", "Other (2027)\n\nSomebody. 2027\n\nDeviations:\n    Zeroth.\nCost: more", base)
    assert (card.title, card.year, card.paper, card.cost) == ("Other", 2027, "Somebody. 2027", "more")
    assert card.equations == base.equations and card.deviations == ("Zeroth.", "First.")


@pytest.mark.parametrize("section", ["Use when", "Defaults", "Cost", "Travels", "Lost reply"])
def test_a_missing_section_is_named(section: str) -> None:
    doc = "\n".join(line for line in DOC.split("\n") if not line.strip().startswith(section))
    with pytest.raises(UserError, match=f"method 'fedtoy' has no '{section}'. Add it as CONTRIBUTING.md shows"):
        Card.read("fedtoy", doc)


@pytest.mark.parametrize("doc", [None, "", "FedToy", DOC.replace(" (2026)", "")])
def test_a_method_without_title_and_year_is_refused(doc: str | None) -> None:
    with pytest.raises(UserError, match="the docstring of method 'fedtoy' has no"):
        Card.read("fedtoy", doc)
