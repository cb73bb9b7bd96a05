"""Which methods combine by ``a+b``: every pair is built, and what is said against it written down.

``python -m fedskew.methods.combine`` prints the page docs/combinations.md.
"""

from __future__ import annotations

import itertools

from fedskew.errors import UserError
from fedskew.methods import registry

INTRODUCTION = """\
# Which methods combine

`a+b` is the method `a` with everything in which `b` differs from `fedavg`. Terms, corrections and inputs add up; there
is one loss on the labels, one way to take a gradient, one optimiser, one weighing, one reduction and one server step.
What does not fit is refused before the first round, with the sentence below. The order of the two makes no difference.

This page is made by `make docs`; a test holds it to the code, and another trains every pair that combines.
"""


def combinations() -> dict[tuple[str, str], str | None]:
    """Every pair of methods with the sentence that refuses it, None where they combine."""
    return {pair: _refusal("+".join(pair)) for pair in itertools.combinations(registry.known(), 2)}


def _refusal(expression: str) -> str | None:
    try:
        registry.build(expression)
    except UserError as error:
        return str(error)
    return None


def page() -> str:
    """The pairs as Markdown: a square of all methods, then the refusals."""
    names, pairs = registry.known(), combinations()
    symmetric = pairs | {(b, a): refusal for (a, b), refusal in pairs.items()}
    square = [_row("", *map(str, range(1, len(names) + 1))), _row("---", *[":-:"] * len(names))]
    for number, name in enumerate(names, start=1):
        cells = ["" if name == other else "✗" if symmetric[name, other] else "✓" for other in names]
        square.append(_row(f"{number} `{name}`", *cells))
    refused = [_row(f"`{a}+{b}`", refusal) for (a, b), refusal in pairs.items() if refusal]
    why = ["## Why not", "", _row("pair", "what is said"), _row("---", "---"), *refused]
    return "\n".join([INTRODUCTION, *square, "", *why]) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
