"""What a method's page says. Without torch, so that cards can be read at once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedskew.core.errors import UserError


@dataclass(frozen=True)
class Card:
    """What a method's page says. It is the docstring of the function that composes the method."""

    title: str = ""
    paper: str = ""
    #: keys of its papers in references.bib
    cite: tuple[str, ...] = ()
    year: int = 0
    equations: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict)
    defaults: str = ""
    deviations: tuple[str, ...] = ()
    cost: str = ""
    travels: str = ""
    lost_reply: str = ""
    #: in at most eight words
    use_when: str = ""

    @classmethod
    def read(cls, name: str, doc: str | None, like: Card | None = None) -> Card:
        """Read the docstring of a method: title and year, paper, then sections of one text or of indented items.

        Sections that it leaves out are those of the card `like`, and so are further deviations.
        """
        head, *lines = inspect.cleandoc(doc or "").split("\n")
        title = re.fullmatch(r"(.+) \((\d{4})\)", head)
        sections: dict[str, list[str]] = {"Paper": [""]}
        here, listed = "Paper", False
        for line in filter(None, lines):
            opens = re.fullmatch(rf"({'|'.join(_SECTIONS)}):(?: (.+))?", line)
            if opens:
                here, listed = opens[1], opens[2] is None
                sections[here] = [] if listed else [opens[2]]
            elif listed and not line.startswith("     "):
                sections[here].append(line.strip())
            else:
                sections[here][-1] = f"{sections[here][-1]} {line.strip()}".strip()
        given: dict[str, Any] = {key: sections[label][0] for label, key in _TEXTS.items() if label in sections}
        if "Equations" in sections:
            given["equations"] = ";  ".join(sections["Equations"])
        if "Symbols" in sections:
            given["symbols"] = dict(each.split(": ", 1) for each in sections["Symbols"])
        card = replace(like or cls(), **given)
        needed = {**_TEXTS, "Equations": "equations"}
        missing = next((label for label, key in needed.items() if not getattr(card, key)), "Title (year)")
        if title is None or missing != "Title (year)":
            raise UserError(f"the docstring of method '{name}' has no '{missing}'. Add it as CONTRIBUTING.md shows.")
        cite = tuple(sections["Cite"][0].split(", ")) if "Cite" in sections else ()
        deviations = (*sections.get("Deviations", ()), *card.deviations)
        return replace(card, title=title[1], year=int(title[2]), cite=cite, deviations=deviations)


#: sections of one text, and the fields that hold them
_TEXTS = {
    "Paper": "paper", "Use when": "use_when", "Defaults": "defaults", "Cost": "cost", "Travels": "travels",
    "Lost reply": "lost_reply",
}  # fmt: skip
_SECTIONS = (*_TEXTS, "Cite", "Equations", "Symbols", "Deviations")
