"""The papers behind methods and data sets, as BibTeX: `references.bib` has them by the keys that cards name."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from fedskew import __version__

_OWN = rf"""@misc{{fedskew,
  author = {{{{The fedskew authors}}}},
  title = {{{{fedskew}}: federated learning under label skew and label noise}},
  note = {{Software, version {__version__}}},
}}"""


@functools.cache
def entries() -> Mapping[str, str]:
    """Return the BibTeX entries by their keys."""
    text = files("fedskew.report.publishing").joinpath("references.bib").read_text(encoding="utf-8")
    return {found[2]: found[1] for found in re.finditer(r"^(@\w+\{([^,]+),\n.*?^\})$", text, re.MULTILINE | re.DOTALL)}


def bibliography(cited: Iterable[tuple[str, Sequence[str], str]]) -> str:
    """Return the entries once each, fedskew's own first.

    Args:
        cited: For each method or data set its name, the keys of its papers, and what to say if it has none.
    """
    users: dict[str, list[str]] = {}
    without = []
    for name, keys, otherwise in cited:
        for key in keys:
            users.setdefault(key, []).append(name)
        if not keys:
            without.append(f"% {name}: {' '.join(otherwise.replace('@', ' at ').split())}\n")
    found = [f"% {', '.join(dict.fromkeys(names))}\n{entries()[key]}\n" for key, names in users.items()]
    return "\n".join([f"{_OWN}\n", *found, *dict.fromkeys(without)])
