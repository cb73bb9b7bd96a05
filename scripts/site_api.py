"""Show in the site's reference of the Python API the keywords that `documented` adds when fedskew is imported.

mkdocstrings reads the source only, so it does not see them; mkdocs.yml names this file.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe


class Keywords(griffe.Extension):
    """Give each decorated function the signature and the text that `help` prints."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Add what the imported function has and its source does not."""
        if func.docstring is None or "documented" not in (str(each.value) for each in func.decorators):
            return
        made = griffe.dynamic_import(func.path)
        written = {each.name: each for each in func.parameters}
        func.parameters = griffe.Parameters(
            *(written.get(each.name) or _keyword(each) for each in inspect.signature(made).parameters.values())
        )
        func.docstring.value = inspect.getdoc(made) or ""


def _keyword(found: inspect.Parameter) -> griffe.Parameter:
    kind = griffe.ParameterKind.keyword_only
    return griffe.Parameter(found.name, annotation=str(found.annotation), kind=kind, default=repr(found.default))
