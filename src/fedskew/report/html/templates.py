"""Fill templates, in the style that all pages share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from fedskew.report.html import escaped

if TYPE_CHECKING:
    from jinja2 import Environment

    from fedskew.report.blocks import Block


def render(template: str, **filling: Any) -> str:
    """Return a whole page, with its style and script."""
    style, script = Markup(text("page.css")), Markup(text("page.js"))
    return environment().get_template(template).render(style=style, script=script, **filling)


def blocks(content: Iterable[Block]) -> str:
    """Return blocks as HTML."""
    return str(environment().get_template("blocks.html.j2").module.blocks(list(content)))  # type: ignore[attr-defined]


def alone(title: str, content: Iterable[Block]) -> str:
    """Return a page of one title and these blocks."""
    return render("alone.html.j2", title=title, content=Markup(blocks(content)))


@cache
def environment() -> Environment:
    """Return the environment in which templates escape everything."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("fedskew.report.html", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=escaped.finalize,
    )
    made.filters |= {"name": escaped.name, "plain": escaped.plain}
    return made


@cache
def text(name: str) -> str:
    """Return a file of this folder."""
    return files("fedskew.report.html").joinpath(name).read_text(encoding="utf-8")
