"""Texts as HTML: escaped, with right-to-left names isolated from what stands around them."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

from fedskew.core.client_names import printable

_LETTER = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
#: words in right-to-left letters, up to the next comma or other sign: in a list each name keeps its place
_WORDS = re.compile(f"{_LETTER}+(?:[ \\d_\u05be-]*{_LETTER}+)*")


def name(text: str) -> Markup:
    """What is one name from its beginning to its end."""
    shown = plain(text)
    return Markup(f"<bdi>{shown}</bdi>") if re.search(_LETTER, shown) else shown


def sentence(text: str) -> Markup:
    """A text that may hold names."""
    return Markup(_WORDS.sub(r"<bdi>\g<0></bdi>", str(plain(text))))


def plain(text: str) -> Markup:
    """Where no element may stand: in a title, in SVG."""
    return escape(printable(text, lines=True))


def finalize(value: Any) -> Any:
    """What a template makes of everything that it is filled with."""
    return sentence(value) if isinstance(value, str) and not isinstance(value, Markup) else value
