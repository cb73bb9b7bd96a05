"""Templates filled with what they show, in the style that all pages share."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from fedskew.report import escaped

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **filling: Any) -> str:
    """A whole page; style and script come with it."""
    style, script = Markup(_text("page.css")), Markup(_text("page.js"))
    return environment().get_template(template).render(style=style, script=script, **filling)


def macro(template: str, name: str, **filling: Any) -> str:
    """A piece of a page."""
    return str(getattr(environment().get_template(template).module, name)(**filling))


@cache
def environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("fedskew.report", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=escaped.finalize,
    )
    made.filters |= {"name": escaped.name, "plain": escaped.plain}
    return made


@cache
def _text(name: str) -> str:
    return files("fedskew.report").joinpath(name).read_text(encoding="utf-8")
