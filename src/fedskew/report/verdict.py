"""Which method wins: in sentences, and as a table."""

from __future__ import annotations

import math

from fedskew import record
from fedskew.errors import required
from fedskew.report import shortfalls
from fedskew.report.cells import Cell, Table, percent, points, shade
from fedskew.report.numbers import EQUAL, Difference, Measure, Standing, Task
from fedskew.report.runs import so_far

FOOTNOTE = (
    "Means over seeds ± the population's standard deviation. Differences to the highest mean are in points, in pairs "
    "of the seeds that both methods have; from three seeds on with Student's 95 % interval, in bold where it leaves "
    "out zero. Below three seeds no test is possible. The intervals are not corrected for the number of methods, nor "
    "for the winner having been picked afterwards."
)
BALANCED = (
    "Balanced accuracy, the mean recall over classes, counts every class alike. Accuracy counts classes by the number "
    "of samples that are scored, which differs here."
)


def says(task: Task, measure: Measure) -> str:
    """Who wins and by how much, and who cannot because a seed failed."""
    what = f"{measure} accuracy{' on held-back samples' if task.runs[0].held_back else ''}"
    failed = [
        f"{each.name} has none: it is not a number at {each.failed(measure)} of {each.seeds} seeds."
        for each in task.standings
        if each.failed(measure)
    ]
    return " ".join([_first(task, measure, what), *failed])


def _first(task: Task, measure: Measure, what: str) -> str:
    leaders = task.leaders(measure)
    if not leaders:
        evaluated = any(each.failed(measure) for each in task.standings)
        return f"Nobody has a {what}." if evaluated else f"No model was evaluated, so there is no {what}."
    first, names = leaders[0], [each.title for each in leaders]
    reached = f"{percent(first.spread[measure].mean)} %"
    if len(leaders) > 1:
        return f"By {what} {', '.join(names[:-1])} and {names[-1]} are equal with {reached}."
    others = [each for each in task.standings if each is not first and each.mean(measure) > -math.inf]
    if not others:
        return f"The {what} of {first.title} is {reached}; there is nothing to compare it with."
    if ahead := task.ahead(measure):
        above = required(ahead[0].behind[measure], "the difference of who is ahead")
        return (
            f"By {what} {first.title} has the highest mean, {reached}, but {ahead[0].title} is "
            f"{points(above.mean, sign=False)} points above it {_tested(above, above.interval)}"
        )
    second = max(others, key=lambda each: each.mean(measure))
    gap = second.behind[measure]
    leads = "wins with" if task.won(measure) else "has the highest mean,"
    told = f"By {what} {first.title} {leads} {reached}; next is {second.title}"
    if gap is None:
        return f"{told} with {percent(second.spread[measure].mean)} %, without a seed that both have on the same split."
    below = "equal" if -gap.mean <= EQUAL else f"{points(-gap.mean, sign=False)} points below"
    lead = None if gap.interval is None else (-gap.interval[1], -gap.interval[0])
    return f"{told}, {below} {_tested(gap, lead)}"


def _tested(gap: Difference, lead: tuple[float, float] | None) -> str:
    """How sure a lead is."""
    both = "on the seed that both have" if gap.pairs == 1 else f"on the {gap.pairs} seeds that both have"
    if lead is None:
        return f"{both}. No test is possible below three common seeds."
    zero = "leaves out zero" if gap.clear else "does not leave out zero, so this may be chance"
    return f"{both}. The 95 % interval of the lead, {points(lead[0])} to {points(lead[1])}, {zero}."


def cautions(task: Task) -> list[str]:
    """Which runs are not finished, that methods had different numbers of rounds, and what did not happen."""
    told = []
    if waiting := [_waiting(each) for each in task.standings if each.unfinished]:
        told.append(f"Not finished: {'; '.join(waiting)}.")
    if len(task.lengths) > 1:
        *some, most = map("{:,}".format, task.lengths)
        told.append(f"Rounds differ: runs were made for {', '.join(some)} or {most}, so the highest mean is no win.")
    for each in task.standings:
        told += (f"{each.name}: {one}." for one in shortfalls.together([one.run for one in each.runs]))
    return told


def _waiting(each: Standing) -> str:
    seeds = list(dict.fromkeys(str(one.seed) for one in each.unfinished if one.seed is not None))
    which = f", seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" if seeds else ""
    left_out = "" if each.after else ", left out here"
    return f"{each.name}{which} (after {so_far(each.unfinished)}{left_out})"


def standings(task: Task) -> Table:
    heading, measures, target = ["method", "seeds"], task.measures, task.target
    for measure in measures:
        heading += [f"{measure} %", "difference"]
    told = [BALANCED] if "best balanced" in measures else []
    if target is not None:
        heading.append(f"rounds to {percent(target.share, digits=1)} %")
        told.append(f"Rounds are counted to {percent(target.share, digits=1)} %, {target.what}.")
    rows = []
    for each in task.standings:
        scored = each.scored("best")
        seeds = str(scored) if scored == each.seeds else f"{scored} of {each.seeds}"
        row: list[Cell | str] = [each.name, Cell(seeds, each.after)]
        for measure in measures:
            spread, first = each.spread[measure], each in task.leaders(measure)
            std = spread.std if each.scored(measure) > 1 else None
            row.append(Cell(percent(spread.mean, std), shade=shade(spread.mean), bold=first))
            row.append(Cell(_place(task, measure)) if first else _behind(each, measure))
        if target is not None:
            found = [record.first_reaching(one.run.rounds, target.share) for one in each.deciding]
            row.append(" / ".join("–" if index is None else str(index + 1) for index in found))
        rows.append(row)
    return Table(heading, rows, " ".join(told))


def _place(task: Task, measure: Measure) -> str:
    """What is said of whoever has the highest mean."""
    if sum(each.mean(measure) > -math.inf for each in task.standings) == 1:  # as the sentence says
        return "–"
    if len(task.leaders(measure)) > 1:
        return "equal"
    return "wins" if task.won(measure) else "highest mean"


def _behind(each: Standing, measure: Measure) -> Cell:
    gap = each.behind[measure]
    if gap is None:
        return Cell("–")
    if gap.interval is None:
        return Cell(points(gap.mean), "no test")
    return Cell(points(gap.mean), f"{points(gap.interval[0])} to {points(gap.interval[1])}", bold=gap.clear)
