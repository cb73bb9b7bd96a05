"""List which methods combine by ``a+b``: build every pair, and note the error.

``python -m fedskew.methods.combine`` prints the page docs/reference/combinations.md.
"""

from __future__ import annotations

import itertools

from fedskew.core.errors import UserError
from fedskew.methods import registry

INTRODUCTION = """\
# Which methods combine

Write `--method a+b` to combine two methods. ✓ pairs work; ✗ pairs are refused before the first round, with the error
below. The order of the two makes no difference.

`a+b` is the method `a` with everything in which `b` differs from `fedavg`. Terms, corrections and inputs add up. There
is one loss on the labels, one way to take a gradient, one optimizer, one weighing, one reduction and one server step.

`make docs` writes this page. One test compares it with the code, and another trains every pair that works.
"""


def combinations() -> dict[tuple[str, str], str | None]:
    """Return for every pair of methods the error that refuses it, or None if they combine."""
    return {pair: _refusal("+".join(pair)) for pair in itertools.combinations(registry.known(), 2)}


def _refusal(expression: str) -> str | None:
    try:
        registry.build(expression)
    except UserError as error:
        return str(error)
    return None


def page() -> str:
    """Return the page in Markdown: a square of all methods, then the errors."""
    names, pairs = registry.known(), combinations()
    symmetric = pairs | {(b, a): refusal for (a, b), refusal in pairs.items()}
    square = [_row("", *map(str, range(1, len(names) + 1))), _row("---", *[":-:"] * len(names))]
    for number, name in enumerate(names, start=1):
        cells = ["" if name == other else "✗" if symmetric[name, other] else "✓" for other in names]
        square.append(_row(f"{number} `{name}`", *cells))
    refused = [_row(f"`{a}+{b}`", refusal) for (a, b), refusal in pairs.items() if refusal]
    why = ["## Why not", "", _row("pair", "error"), _row("---", "---"), *refused]
    return "\n".join([INTRODUCTION, *square, "", *why]) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
