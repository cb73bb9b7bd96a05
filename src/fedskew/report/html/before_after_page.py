"""The page of a run before and after its labels were corrected, for people who look after the data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fedskew.core import atomic_io
from fedskew.report import before_after, versus_local
from fedskew.report.before_after import BeforeAfter, Change
from fedskew.report.blocks import Block, Fold, Heading, Paragraph, Picture, Table, TableCell
from fedskew.report.html import templates
from fedskew.report.html.forest import forest
from fedskew.report.plots.forest import DrawnDifference
from fedskew.report.tables import percent, probability
from fedskew.report.versus_local import points

NO_BREAK = "\u00a0"
SIDES, SHOWN = ("worse", "better"), "What the corrected labels gained, with likely ranges, in percentage points"
VERDICTS: dict[before_after.Verdict, versus_local.Verdict] = {
    "better": "helps",
    "worse": "hurts",
    "no clear difference": "unclear",
    "too few samples": "too few samples",
}
STYLES = {"better": "clean", "worse": "noisy"}
NOTE = "Differences are in percentage points, with their likely range below; a word stands beside those that are clear."
CAVEATS = (
    "Both models were trained once, from the same beginning. Trained again with another seed, both numbers change a "
    "little; the range is about these two models and about which patients were tested.",
)
HOW = (
    "Everything but the corrected labels is the same in both runs: the samples of each site, the network at the "
    "beginning, the order of training. Both models predict the same test samples, and are compared sample by sample. "
    "The range holds the true difference in about 95 of 100 cases. The mean over classes counts each class alike, "
    "however rare it is. No range is given for too few samples. Compared are the models after the last round."
)


def write(found: BeforeAfter) -> Path:
    """Write the page and its data into the folder of the run after; return the page."""
    page = found.folder / f"{before_after.NAME}.html"
    atomic_io.save(page.with_suffix(".json"), json.dumps(found.as_json(), indent=1) + "\n")
    atomic_io.save(page, html(found))
    return page


def html(found: BeforeAfter) -> str:
    """Make one file that needs nothing else."""
    return templates.alone(before_after.headline(found).replace(" %", f"{NO_BREAK}%"), blocks(found))


def blocks(found: BeforeAfter) -> Iterator[Block]:
    """Show what was gained, then what was corrected, and folded how it was measured."""
    yield from (Paragraph(each, "verdict") for each in before_after.summary(found))
    yield Picture(forest([_drawn(each) for each in found.changes], SIDES, SHOWN), SHOWN)
    rows: list[list[TableCell | str]] = [
        [
            f"{each.what} ({each.samples:,})",
            f"{percent(each.before, digits=1)}{NO_BREAK}%",
            f"{percent(each.after, digits=1)}{NO_BREAK}%",
            TableCell(_difference(each), before_after.likely(each), style=STYLES.get(each.verdict, "")),
        ]
        for each in found.changes
    ]
    yield Table(["right for (test samples)", "before", "after", "difference"], rows, NOTE, kind="narrow")
    if found.wrong:
        yield Heading("Wrong labels, which this simulation knows")
        shares = [[site, *map(probability, pair)] for site, pair in zip(found.sites, found.wrong, strict=True)]
        yield Table(["site", "wrong before", "wrong after"], shares, kind="narrow")
    yield Heading("Keep in mind")
    yield from (Paragraph(each, "note") for each in (*_test_labels(found), *CAVEATS))
    yield Fold("How this was measured", [Paragraph(HOW)])


def _drawn(change: Change) -> DrawnDifference:
    """Return a change as a line of the picture: a class stands below the others."""
    site, label = ("", change.what) if change.kind == "class" else (change.what, None)
    return DrawnDifference(site, label, change.difference, change.low, change.high, VERDICTS[change.verdict])


def _difference(change: Change) -> str:
    word = change.verdict if change.verdict in STYLES else ""
    return f"{points(change.difference)} {word}".strip()


def _test_labels(found: BeforeAfter) -> Iterator[str]:
    if found.test_corrected:
        yield (
            "Test labels were corrected, too. Both models are measured against the corrected ones. If the model before "
            "chose which of them to review, this favors it: labels that it had right by mistake were not looked at."
        )
    else:
        yield "No test label was changed. If some are wrong, both models are measured against wrong answers."
