"""Which clients took part in which round, and why others did not: of federations, and of runs that lost a reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from fedskew.record.schema import RoundLine
from fedskew.report.blocks import Block, Paragraph, Table, TableCell, folds
from fedskew.report.load import LoadedRun

TOOK_PART, LOST, NOT_ASKED = "took part", "lost", "not asked"
#: pixels: of a row, and at most and at least of a round in it
HIGH, WIDE, NARROW, ROW = 18, 18, 4, 420
#: separate stretches of rounds that a sentence names
MOST_STRETCHES = 8
MOST_SITES = 100


@dataclass(frozen=True)
class ParticipationRow:
    """A site over the rounds: what it did in each, the rounds of late answers, and why it was missing."""

    site: str
    states: list[str]
    late: list[int]
    missing: str

    @property
    def count(self) -> str:
        asked = sum(state != NOT_ASKED for state in self.states)
        return f"{self.states.count(TOOK_PART):,} of {asked:,}"

    @property
    def picture(self) -> str:
        """Draw a mark for each round: high where the site took part, low where it was lost, a dot for a late answer."""
        step = min(WIDE, max(NARROW, ROW // max(len(self.states), 1)))
        marks = [*self._bars(step), *(self._dot(step, number) for number in self.late)]
        width, label = step * len(self.states), f"{self.site}: took part in {self.count} rounds"
        return (
            f'<svg class="strip" role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {HIGH}" '
            f'style="width:{width}px">{"".join(marks)}</svg>'
        )

    def _bars(self, step: int) -> Iterator[str]:
        for number, state in enumerate(self.states):
            if state != NOT_ASKED:
                kind, high = ("took", HIGH - 4) if state == TOOK_PART else ("lost", 5)
                gap = 1 if step > NARROW else 0
                yield (
                    f'<rect class="{kind}" x="{number * step}" y="{HIGH - high}" width="{step - gap}" height="{high}">'
                    f"<title>round {number + 1}: {state}</title></rect>"
                )

    def _dot(self, step: int, number: int) -> str:
        title = f"<title>round {number + 1}: an answer to an earlier round came in</title>"
        return f'<circle class="late" cx="{(number + 0.5) * step:g}" cy="4" r="3">{title}</circle>'


def panel(runs: Sequence[LoadedRun]) -> list[Block]:
    """Show each run that missed a client, or that knows which clients answered."""
    known = [each for each in runs if any(line.keys() & {"answered", "lost", "late"} for line in each.run.rounds)]
    if not known:
        return [Paragraph("No client was missing in any round.", "missing")]
    legend = (
        "A high mark is a round in which the site took part; a low mark is a round without it; a dot is a late answer."
    )
    return [Paragraph(legend, "soft"), *folds((each.title, [_table(each)]) for each in known)]


def _table(each: LoadedRun) -> Table:
    made = rows(each)
    cells: list[list[TableCell | str]] = [
        [row.site, row.count, TableCell("", row.missing, style="words", picture=row.picture)]
        for row in made[:MOST_SITES]
    ]
    left_out = f"{len(made) - MOST_SITES:,} more sites are left out." if len(made) > MOST_SITES else ""
    return Table(["site", "took part", f"rounds 1 to {len(each.run.rounds)}"], cells, left_out, kind="strips")


def rows(each: LoadedRun) -> list[ParticipationRow]:
    """Make one row for each client; if there are many, those that were missing come first."""
    lines, names = each.run.rounds, each.clients
    made = []
    for client, name in enumerate(names):
        states = [_state(line, client, len(names)) for line in lines]
        late = [number for number, line in enumerate(lines) if client in line.get("late", ())]
        made.append(ParticipationRow(name, states, late, _missing(each, str(client), late)))
    return made if len(made) <= MOST_SITES else sorted(made, key=lambda row: -row.states.count(LOST))


def _state(line: RoundLine, client: int, clients: int) -> str:
    if str(client) in line.get("lost", {}):
        return LOST
    if "answered" in line:
        return TOOK_PART if client in line["answered"] else NOT_ASKED
    return TOOK_PART if line.get("asked") == clients else NOT_ASKED


def _missing(each: LoadedRun, client: str, late: Sequence[int]) -> str:
    """Say when a client was missing, and why."""
    reasons: dict[str, list[int]] = {}
    for number, line in enumerate(each.run.rounds, 1):
        if (why := line.get("lost", {}).get(client)) is not None:
            reasons.setdefault(why, []).append(number)
        elif (why := line.get("scored_lost", {}).get(client)) is not None:
            reasons.setdefault(f"did not score the model: {why}", []).append(number)
    parts = [f"{_stretches(numbers)}: {why}" for why, numbers in reasons.items()]
    parts += [
        f"{line.get('part', 'question')} before round {line['round']}: {line['lost'][client]}"
        for line in each.run.setups
        if client in line.get("lost", {})
    ]
    parts += [f"late answers in {_stretches([number + 1 for number in late])}"] if late else []
    return "; ".join(parts)


def _stretches(numbers: Sequence[int]) -> str:
    """Write ``rounds 4 to 6, 9``."""
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b > a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b > a + 1), numbers[-1]]
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
    more = [f"and {len(shown) - MOST_STRETCHES} more times"] if len(shown) > MOST_STRETCHES else []
    return f"round{'s' * (len(numbers) > 1)} {', '.join(shown[:MOST_STRETCHES] + more)}"


def scoring_notes(runs: Iterable[LoadedRun]) -> list[str]:
    """Name the sites whose test data the curves are of, where not all sites scored every round."""
    notes = []
    for each in runs:
        if each.scored_by:
            names = ", ".join(each.clients[client] for client in each.scored_by)
            notes.append(f"{each.name}: scores use the test data of {names}, which scored every evaluated round.")
        elif each.scored_by is not None:
            notes.append(f"{each.name}: no site scored every evaluated round, so rounds differ in their test data.")
    return notes
