"""A detection as one page that needs nothing else, for people who look after a site's data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core import atomic_io
from fedskew.detection.judge import FEWEST_CLIENTS, SUSPECT_FROM
from fedskew.report.blocks import Block, Fold, Heading, Paragraph, Table, TableCell
from fedskew.report.detection import Detection, Finding, relative_losses, used_losses
from fedskew.report.html import templates
from fedskew.report.html.detection_words import (
    MEANS,
    confusions,
    decided,
    drivers,
    headline,
    privacy,
    reading,
    tests,
    truth,
    verdict_of,
    warnings,
    without,
)
from fedskew.report.tables import probability

MOST_SITES = 100


def write(folder: Path, found: Detection, picture: Path | None = None) -> None:
    """Write detection.json and detection.html, and a picture if a path for it is given."""
    atomic_io.save(folder / "detection.json", json.dumps(found.as_json(), indent=1) + "\n")
    atomic_io.save(folder / "detection.html", html(found))
    if picture is not None:
        from fedskew.report.plots import detection, style

        style.save(detection.picture(found, headline(found)), picture)


def html(found: Detection) -> str:
    """Make one file that shows everything about a detection."""
    return templates.alone(headline(found), blocks(found))


def blocks(found: Detection) -> Iterator[Block]:
    """Show a detection: the answer for each site, then, folded, how it came about."""
    shown = found.shown
    listed = order(found)[:MOST_SITES]
    yield Paragraph(MEANS[shown.judgment.verdict])
    yield answers(found, listed)
    if notes := warnings(found):
        yield Heading("Keep in mind")
        yield from (Paragraph(each, "note") for each in notes)
    yield Fold("How this was decided", list(_decision(found)))
    yield Fold("Site by site, in numbers", list(_numbers(found, listed)))
    yield from (_details(found, client) for client in listed if client["client"] in shown.suspected)
    if len(found.findings) > 1:
        yield Fold("From one detection to the next", [_history(found.findings)])
    if claim := privacy(shown):
        yield Fold("Privacy", [Paragraph(claim)])


def answers(found: Detection, listed: Sequence[dict[str, Any]]) -> Table:
    """Answer for each site, without anything that takes statistics to read."""
    shown = found.shown
    rows = [
        [shown.sites[k], _styled(shown.answer(k), shown.status[k]), shown.share(k)]
        for k in (client["client"] for client in listed)
    ]
    left_out = len(shown.sites) - len(listed)
    note = f"{left_out:,} sites that are less likely to have wrong labels are left out. " if left_out else ""
    if np.isfinite(shown.shares.low).any():
        note += "The share of wrong labels is inside its range in about nine of ten cases."
    return Table(["site", "labels", "share wrong"], rows, note.strip(), kind="text")


def _decision(found: Detection) -> Iterator[Block]:
    shown = found.shown
    yield Paragraph(f"{found.name}, before round {shown.round}. A site is a client of the run.", "soft")
    yield Paragraph(f"{verdict_of(shown)}.", strong="Verdict:")
    if made := tests(shown):
        rows: list[list[TableCell | str]] = [
            [name, _styled("yes" if speaks else "no", "noisy" if speaks else "clean"), _styled(text, "words")]
            for name, speaks, text in made
        ]
        yield Table(["test", "wrong labels?", "result"], rows, kind="text")
    yield Paragraph(reading(shown), strong="Wrong labels or different inputs?")
    yield Paragraph(decided(shown), "soft")
    if known := truth(found):
        yield Paragraph(known, strong="Compared with the truth:")


def _numbers(found: Detection, listed: Sequence[dict[str, Any]]) -> Iterator[Block]:
    used = found.shown.judgment.options
    yield _sites(found, listed)
    yield Paragraph(
        f"Noisy: a probability of {100 * used.noisy:g} % or more, if the verdict is 'some'. Suspect: "
        f"{100 * used.suspect:g} % or more; of fewer than {FEWEST_CLIENTS} sites, a share of "
        f"{100 * SUSPECT_FROM:.0f} % or more. Shift: losses are high, but inputs differ and labels agree with the "
        "model. A count such as 50+ is the lower edge of the range a site reported. Influence is relative to that by "
        "samples.",
        "soft",
    )
    yield Heading("Losses by site and class")
    yield _losses(found, listed)


def order(found: Detection) -> list[dict[str, Any]]:
    """Return the clients, the likeliest to have wrong labels first."""
    share = np.nan_to_num(found.shown.shares.low)
    return sorted(
        found.shown.clients,
        key=lambda each: (-(each["probability"] or 0.0), -share[each["client"]], each["client"]),
    )


def row(found: Detection, client: dict[str, Any]) -> dict[str, str]:
    """Return what is known of a site, by column."""
    k, evidence = client["client"], found.shown.evidence
    stands_out = k in found.shown.suspected
    known = {
        "site": found.shown.sites[k],
        "status": found.shown.status[k],
        "probability of wrong labels": found.shown.likelihood(k),
        "labels wrong (estimated)": found.shown.share(k),
    }
    if found.rates is not None:
        known["labels wrong (truth)"] = probability(found.rates[k])
    return known | {
        "inputs differ (deviations)": "–" if np.isnan(evidence.distance[k]) else f"{evidence.distance[k]:.2f}",
        "influence": probability(found.influence[k]),
        "classes that drive it": "; ".join(drivers(found, client)) if stands_out else "",
        "likely confusions": "; ".join(confusions(found, k)) if stands_out else "",
    }


def _sites(found: Detection, listed: Sequence[dict[str, Any]]) -> Table:
    rows = [row(found, client) for client in listed]
    styles = {"classes that drive it": "words", "likely confusions": "words"}
    cells: list[list[TableCell | str]] = [
        [name, *(_styled(text, each["status"] if key == "status" else styles.get(key, "")) for key, text in rest)]
        for each in rows
        for (_, name), *rest in (each.items(),)
    ]
    return Table(list(rows[0]), cells, kind="text")


def _styled(text: str, style: str) -> TableCell:
    return TableCell(text, style=style)


def _losses(found: Detection, listed: Sequence[dict[str, Any]]) -> Table:
    """Show each site's loss relative to clean sites, and its losses by class."""
    mean, (ratio, error) = used_losses(found.shown), relative_losses(found.shown)
    present = np.isfinite(mean).any(axis=0)
    low, high = np.full(len(present), np.nan), np.full(len(present), np.nan)
    low[present], high[present] = np.nanmin(mean[:, present], axis=0), np.nanmax(mean[:, present], axis=0)
    shades = (mean - low) / np.where(high > low, high - low, 1.0)
    rows: list[list[TableCell | str]] = []
    for k in (client["client"] for client in listed):
        against = "–" if np.isnan(ratio[k]) else f"{ratio[k]:.2f}×"
        spread = "" if np.isnan(ratio[k]) else f"{ratio[k] / np.exp(error[k]):.2f} to {ratio[k] * np.exp(error[k]):.2f}"
        cells = [
            TableCell("–") if np.isnan(loss) else TableCell(f"{loss:.2f}", shade=float(shade))
            for loss, shade in zip(mean[k], shades[k], strict=True)
        ]
        rows.append([found.shown.sites[k], TableCell(against, spread), *cells])
    note = (
        "A site's loss is how much its labels surprise the global model. Each class is shaded from the lowest site to "
        "the highest; a dash is a class with no or too few samples. Below the ratio to clean sites is its range of one "
        "standard error."
    )
    return Table(["site", "against clean sites", *found.labels], rows, note, kind="tall")


def _details(found: Detection, client: dict[str, Any]) -> Fold:
    nearest, sites = client["nearest_clean"], found.shown.sites
    alike = "" if nearest is None else f" (most similar clean site: {sites[nearest]})"
    cells = [
        [
            found.labels[cell["class"]],
            f"{cell['count']:,}+",
            f"{cell['mean']:.2f}",
            str(cell["rank"]),
            "–" if cell["z"] is None else f"{cell['z']:+.1f}",
            without(found.shown, client, cell) or "–",
        ]
        for cell in client["classes"]
    ]
    heading = ["class", "samples", "loss", "rank among sites", "deviations from the median"]
    return Fold(
        f"Site {sites[client['client']]}, class by class{alike}",
        [Table([*heading, "probability without this class"], cells)],
    )


def _history(findings: Sequence[Finding]) -> Table:
    rows: list[list[TableCell | str]] = [
        [
            str(each.round),
            each.judgment.verdict,
            each.reading,
            "–" if np.isnan(each.judgment.p_value) else f"{each.judgment.p_value:.3f}",
            "–" if np.isnan(each.judgment.gap) else f"{each.judgment.gap:.1f}×",
            _styled(each.called(each.noisy) or "none", "words"),
            _styled(each.called(each.decided["noisy"]) or "none", "words"),
        ]
        for each in findings
    ]
    heading = ["before round", "verdict", "reading", "p", "gap", "noisy by this detection", "noisy in the run"]
    return Table(
        heading, rows, "A run changes a site's status only after several equal verdicts in a row.", kind="text"
    )
