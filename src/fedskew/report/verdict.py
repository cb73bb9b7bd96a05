"""Which method wins: in sentences, and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from fedskew.core.errors import required
from fedskew.record import scores
from fedskew.report import run_warnings
from fedskew.report.blocks import Table, TableCell, points, shade
from fedskew.report.load import so_far
from fedskew.report.seed_statistics import Difference, Measure
from fedskew.report.standings import EQUAL, Standing, TaskStandings
from fedskew.report.tables import percent, rounds_reached

FOOTNOTE = (
    "Means over seeds ± the population standard deviation. Differences to the highest mean are in points, paired over "
    "the seeds that both methods have. With three or more seeds they have Student's 95 % interval, in bold where it "
    "excludes zero. Below three seeds no test is possible. The intervals are not corrected for the number of methods, "
    "nor for choosing the winner after the fact."
)
BALANCED = (
    "Balanced accuracy is the mean recall over classes: every class counts alike. Accuracy weights classes by their "
    "test samples, and these differ here."
)


def says(task: TaskStandings, measure: Measure) -> str:
    """Say which method wins and by how much, and which cannot win because a seed failed."""
    what = f"{measure} accuracy{' on held-back samples' if task.runs[0].held_back else ''}"
    failed = [
        f"{each.name} has none: it is not a number for {each.failed(measure)} of {each.seeds} seeds."
        for each in task.standings
        if each.failed(measure)
    ]
    return " ".join([_first(task, measure, what), *failed])


def _first(task: TaskStandings, measure: Measure, what: str) -> str:
    leaders = task.leaders(measure)
    if not leaders:
        evaluated = any(each.failed(measure) for each in task.standings)
        return f"No method has a {what}." if evaluated else f"No model was evaluated, so there is no {what}."
    first, names = leaders[0], [each.title for each in leaders]
    reached = f"{percent(first.spread[measure].mean)} %"
    if len(leaders) > 1:
        return f"By {what}, {', '.join(names[:-1])} and {names[-1]} are equal with {reached}."
    others = [each for each in task.ranked(measure) if each is not first]
    if not others:
        return f"The {what} of {first.title} is {reached}; there is nothing to compare it with."
    if ahead := task.ahead(measure):
        above = required(ahead[0].behind[measure], "the difference of the method that is ahead")
        return (
            f"By {what}, {first.title} has the highest mean, {reached}, but {ahead[0].title} is "
            f"{points(above.mean, sign=False)} points above it {_tested(above, above.interval)}"
        )
    second = max(others, key=lambda each: each.mean(measure))
    gap = second.behind[measure]
    leads = "wins with" if task.won(measure) else "has the highest mean,"
    text = f"By {what}, {first.title} {leads} {reached}; next is {second.title}"
    if gap is None:
        return f"{text} with {percent(second.spread[measure].mean)} %; they share no seed on the same partition."
    below = "equal" if -gap.mean <= EQUAL else f"{points(-gap.mean, sign=False)} points below"
    lead = None if gap.interval is None else (-gap.interval[1], -gap.interval[0])
    return f"{text}, {below} {_tested(gap, lead)}"


def _tested(gap: Difference, lead: tuple[float, float] | None) -> str:
    """Say how sure a lead is."""
    both = "on the seed that both have" if gap.pairs == 1 else f"on the {gap.pairs} seeds that both have"
    if lead is None:
        return f"{both}. No test is possible below three common seeds."
    zero = "excludes zero" if gap.clear else "includes zero, so this may be chance"
    return f"{both}. The 95 % interval of the lead, {points(lead[0])} to {points(lead[1])}, {zero}."


def cautions(task: TaskStandings) -> list[str]:
    """Say which runs are not finished, that methods had different numbers of rounds, and what did not happen."""
    notes = []
    if waiting := [_waiting(each) for each in task.standings if each.unfinished]:
        notes.append(f"Not finished: {'; '.join(waiting)}.")
    if len(task.lengths) > 1:
        *some, most = map("{:,}".format, task.lengths)
        notes.append(f"Rounds differ: runs were made for {', '.join(some)} or {most}, so the highest mean is no win.")
    for each in task.standings:
        notes += (f"{each.name}: {one}." for one in run_warnings.together([one.run for one in each.runs]))
    return notes


def _waiting(each: Standing) -> str:
    seeds = list(dict.fromkeys(str(one.seed) for one in each.unfinished if one.seed is not None))
    which = f", seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" if seeds else ""
    left_out = "" if each.after else ", left out here"
    return f"{each.name}{which} (after {so_far(each.unfinished)}{left_out})"


def standings(task: TaskStandings, measures: Sequence[Measure] | None = None) -> Table:
    """Make the table of all methods, best first, by these measures or by all that say different things."""
    heading, measures, target = ["method", "seeds"], measures or task.measures, task.target
    for measure in measures:
        heading += [f"{measure} %", "difference"]
    notes = [BALANCED] if "best balanced" in measures else []
    if target is not None:
        heading.append(f"rounds to {percent(target.share, digits=1)} %")
        notes.append(f"Rounds are counted to {percent(target.share, digits=1)} %, {target.what}.")
    rows = []
    for each in task.standings:
        scored = each.scored("best")
        seeds = str(scored) if scored == each.seeds else f"{scored} of {each.seeds}"
        row: list[TableCell | str] = [each.name, TableCell(seeds, each.after)]
        for measure in measures:
            spread, first = each.spread[measure], each in task.leaders(measure)
            std = spread.std if each.scored(measure) > 1 else None
            row.append(TableCell(percent(spread.mean, std), shade=shade(spread.mean), bold=first))
            row.append(TableCell(_place(task, measure)) if first else _behind(each, measure))
        if target is not None:
            row.append(rounds_reached(scores.first_reaching(one.run.rounds, target.share) for one in each.deciding))
        rows.append(row)
    return Table(heading, rows, " ".join(notes), kind="bars")


def _place(task: TaskStandings, measure: Measure) -> str:
    """Say what the highest mean is worth."""
    if len(task.ranked(measure)) == 1:
        return "–"
    if len(task.leaders(measure)) > 1:
        return "equal"
    return "wins" if task.won(measure) else "highest mean"


def _behind(each: Standing, measure: Measure) -> TableCell:
    gap = each.behind[measure]
    if gap is None:
        return TableCell("–")
    if gap.interval is None:
        return TableCell(points(gap.mean), "no test")
    return TableCell(points(gap.mean), f"{points(gap.interval[0])} to {points(gap.interval[1])}", bold=gap.clear)
