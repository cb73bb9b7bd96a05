"""Write what leads where, from the records under results/: a file for `fedskew methods`, and two tables for the docs.

    python scripts/standings.py            # write all three
    python scripts/standings.py --check    # exit with 1 if one of them is out of date

Of each question the strongest skew or noise is taken that several methods have records of. Methods stand in the order
of the mean over their last ten rounds, which favors nobody's best moment. Differences are of the same seeds.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from results import RESULTS, cache
from results_page import Row, merged, rows_of, setting
from results_tables import SCORES

from fedskew.methods import index
from fedskew.methods.standings import FILE, Place, Situation
from fedskew.report.seed_statistics import difference
from fedskew.reproduce.run_cache import RunCache

DOCS = RESULTS.parent / "docs"
CHOICE, FULL = DOCS / "how-to" / "choose-a-method.md", DOCS / "results" / "standings.md"
BEGIN, END = "<!-- standings: written by python scripts/standings.py -->\n", "<!-- end of standings -->\n"
REFERENCE = "fedavg"
#: in the card of a method that takes another pass through the network
COSTLY = re.compile("forward|visits")
#: a short name, the question, and the tables that answer it
QUESTIONS = (
    ("few classes", "Few classes at each client", ("fedvls/table1/mnist-dir-0.05",)),
    (
        "few participants",
        "Few participants in a round",
        ("fedlmd/table1/cifar10-lda-0.05", "fedlmd/table2/cifar10-lda-0.05"),
    ),
    ("mild skew", "Mild skew", ("fedvls/table1/mnist-dir-0.5",)),
    ("text", "Texts", ("fedvls/table11/agnews-dir-0.05",)),
    ("wrong labels", "Wrong labels at some clients", ("fednoro/table1/ham10000-rho0.4-eta0.5-0.7",)),
)


def situations(cache: RunCache) -> list[Situation]:
    """Return each question with its methods, best first."""
    entries = {entry.preset.id: entry for entry in merged(cache.out)}
    known = {entry.id for entry in index.known()}
    found = []
    for name, question, sources in QUESTIONS:
        of_all = (row for source in sources for row in rows_of(entries[source], cache))
        rows = {row.cell.row: row for row in of_all if row.whole and row.cell.row in known}  # no variants of a method
        metric = SCORES[entries[sources[0]].preset.shows]
        scores = {id: dict(zip(row.seeds, row.scores(metric)["last10"], strict=True)) for id, row in rows.items()}
        standings = [_standing(row, scores) for row in rows.values()]
        ordered = sorted(standings, key=lambda each: -each.score)
        config = rows[REFERENCE].cell.config
        about = f"{setting(config)[:-1]}, {config.rounds} rounds"
        found.append(Situation(name, question, metric.replace("_", " "), about, list(sources), ordered))
    return found


def _standing(row: Row, scores: dict[str, dict[int, float]]) -> Place:
    own = scores[row.cell.row]
    gap = difference(own, scores[REFERENCE])
    assert gap is not None
    interval = None if gap.interval is None or row.cell.row == REFERENCE else [round(end, 2) for end in gap.interval]
    mean = round(fmean(own.values()), 2)
    return Place(row.cell.row, row.runs[0].header["method"], len(own), mean, round(gap.mean, 2), interval)


def choice(situations: list[Situation]) -> str:
    """Return one line for each question: the first method, and the first that costs about what FedAvg does."""
    costs = {entry.id: entry.card.cost for entry in index.known()}
    lines = ["| federation | first | over FedAvg | what it costs | cheap choice |", "|---|---|---:|---|---|"]
    for each in situations:
        best = each.standings[0]
        cheap = next(one for one in each.standings if one.method == REFERENCE or not COSTLY.search(costs[one.method]))
        gain = "" if cheap.method == REFERENCE else f", {cheap.over_fedavg:+.2f}"
        anchor = re.sub(r"\W+", "-", each.question.lower())
        seeds = f"{_gap(best)}, {best.seeds} seed{'s' * (best.seeds > 1)}"
        cells = [f"[{each.question}](../results/standings.md#{anchor})", _link(best.method), seeds]
        cells += [costs[best.method].partition(";")[0], _link(cheap.method) + gain]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"


def full(situations: list[Situation]) -> str:
    """Return a table for each question, with all its methods."""
    costs = {entry.id: entry.card.cost for entry in index.known()}
    parts = []
    for each in situations:
        lines = ["| | method | score | over FedAvg | seeds | what it costs |", "|---:|---|---:|---:|---:|---|"]
        for place, one in enumerate(each.standings, start=1):
            cells = [str(place), _link(one.method), f"{one.score:.2f}", _gap(one), str(one.seeds), costs[one.method]]
            lines.append(f"| {' | '.join(cells)} |")
        of = f"`{'`, `'.join(each.sources)}`"
        parts.append(f"## {each.question}\n\n{each.metric.capitalize()} in %; {each.setting}. From {of}.")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n\n"


def _link(method: str) -> str:
    """Both pages lie one folder below docs."""
    return f"[`{method}`](../reference/methods/{method}.md)"


def _gap(one: Place) -> str:
    if one.method == REFERENCE:
        return "–"
    interval = f" [{one.interval[0]:+.2f}, {one.interval[1]:+.2f}]" if one.interval else ""
    return f"{one.over_fedavg:+.2f}{interval}"


def _between_marks(page: Path, text: str) -> str:
    old = page.read_text(encoding="utf-8")
    return old[: old.index(BEGIN) + len(BEGIN)] + "\n" + text + old[old.index(END) :]


def texts(results: Path) -> dict[Path, str]:
    """Return what the three files must hold."""
    found = situations(cache(results))
    return {
        FILE: json.dumps([asdict(each) for each in found], indent=1, ensure_ascii=False) + "\n",
        CHOICE: _between_marks(CHOICE, choice(found)),
        FULL: _between_marks(FULL, full(found)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1 if a file is out of date")
    asked = parser.parse_args()
    for path, text in texts(RESULTS).items():
        if not asked.check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is out of date. Run 'python scripts/standings.py'.")


if __name__ == "__main__":
    main()
