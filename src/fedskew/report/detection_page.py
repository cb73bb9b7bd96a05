"""A detection in words, for who looks after a site's data: one page that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.detection.judge import AGREED, BELIEVED, FEWEST_CLIENTS
from fedskew.report import detection_pictures, pages, pictures
from fedskew.report.comparison import save_text
from fedskew.report.detection import Detection, Finding
from fedskew.report.detection_pictures import percent, said

READINGS = {
    "none": "No site's labels stand out, and no site's inputs look different from the others'.",
    "noise": "Labels contradict the model, and no site's inputs look different: this speaks for wrong labels, not for "
    "another device or other patients.",
    "shift": "Some sites' inputs look different (another device, other patients), but their labels do not contradict "
    "the model where it is sure: this speaks for a shift of inputs, not for wrong labels.",
    "unclear": "Some sites' inputs look different (another device, other patients); whether labels there are wrong, "
    "too, cannot be told.",
    "both": "Some sites have labels that contradict the model, and some sites' inputs look different: wrong labels and "
    "a shift of inputs, at the same site or at different ones.",
}
UNDECIDED = "It cannot be said whether labels are wrong; no site's inputs look different from the others'."
UNKNOWN = "Neither wrong labels nor other inputs can be read from what sites sent."
UNREAD = "Sites sent their losses only, so wrong labels could not be told apart from inputs that look different."
VERDICTS = {
    "some": "some: all three witnesses below speak for wrong labels",
    "inconclusive": "inconclusive: two of the three witnesses below speak for wrong labels",
    "none": "none: too little speaks for wrong labels at some sites and not at others",
    "insufficient": "insufficient: nothing can be said",
}
TOP = 3
#: A share of wrong labels, as estimated, that is worth a word if the middle site has it.
EVERYWHERE = 0.15
MOST_SITES = 100


def write(folder: Path, found: Detection) -> None:
    """Write detection.json, detection.html and detection.png."""
    save_text(folder / "detection.json", json.dumps(found.as_json(), indent=1) + "\n")
    save_text(folder / "detection.html", html(found))
    pictures.save(detection_pictures.picture(found, headline(found)), folder / "detection.png")


def html(found: Detection) -> str:
    """Everything about a detection in one file."""
    return pages.render("detection.html.j2", found=context(found, inline(found)))


def context(found: Detection, picture: str) -> dict[str, Any]:
    """What the template of a detection is filled with."""
    shown, listed = found.shown, order(found)[:MOST_SITES]
    return {
        "name": found.name,
        "round": shown.round,
        "headline": headline(found),
        "verdict": _verdict(shown),
        "witnesses": witnesses(shown),
        "reading": reading(shown),
        "picture": picture,
        "rows": [row(found, client) for client in listed],
        "left_out": len(found.shown.sites) - len(listed),
        "details": [_details(found, client) for client in listed if client["status"] in ("suspect", "noisy")],
        "warnings": warnings(found),
        "decided": decided(shown),
        "truth": truth(found),
        "history": _history(found.findings) if len(found.findings) > 1 else [],
        "privacy": privacy(shown),
        "options": vars(shown.judgement.options),
    }


def inline(found: Detection) -> str:
    """The picture, to stand inside a page."""
    return pictures.inline(detection_pictures.picture(found, ""))


def headline(found: Detection) -> str:
    """The detection in one sentence."""
    shown, clients = found.shown, len(found.shown.sites)
    verdict, mere = shown.judgement.verdict, np.flatnonzero(shown.mere).tolist()
    if shown.noisy:
        have = "has" if len(shown.noisy) == 1 else "have"
        return f"{len(shown.noisy)} of {clients} sites probably {have} wrong labels: {shown.called(shown.noisy)}"
    if mere:
        return f"No site's labels stand out; {len(mere)} of {clients} sites look different: {shown.called(mere)}"
    if verdict == "insufficient":
        reasons = [each for each in shown.judgement.warnings if each.endswith(("guessing", str(FEWEST_CLIENTS)))]
        why = _for_sites(found, reasons[-1]) if reasons else "too few sites answered"
        return f"It cannot be said whose labels are wrong: {why}"
    if verdict == "inconclusive":
        suspects = [k for k, status in enumerate(shown.judgement.status) if status == "suspect"]
        look = f"; worth a look: {shown.called(suspects)}" if suspects else ""
        return f"It cannot be said whether any of {clients} sites has wrong labels{look}"
    judged = sum(status != "unknown" for status in shown.judgement.status)
    if judged < clients:
        return f"No labels stand out at the {judged} sites that were judged; {clients - judged} of {clients} were not"
    return f"No labels stand out at any of {clients} sites"


def _verdict(shown: Finding) -> str:
    found = shown.judgement
    if found.verdict != "insufficient" and np.isnan(found.p_value):  # scored against the last reference
        return f"{found.verdict}: as at the last detection that enough sites answered"
    return VERDICTS[found.verdict]


def witnesses(shown: Finding) -> list[dict[str, Any]]:
    """What speaks for wrong labels and what against, in words; nothing where too few sites were judged."""
    found, options = shown.judgement, shown.judgement.options
    if np.isnan(found.p_value):
        return []
    least = found.p_value <= 1 / (options.simulations + 1)
    often = f"none of {options.simulations:,}" if least else f"{100 * found.p_value:.1f} % of"
    agreeing = round(found.vote_share * options.seeds)
    return [
        {
            "name": "Chance",
            "speaks": found.p_value < options.level,
            "says": f"Sites whose labels are all right differ as much as these in {often} simulated cases "
            f"(p = {found.p_value:.3f}; below {options.level:g} counts).",
        },
        {
            "name": "Gap",
            "speaks": found.two_groups >= BELIEVED and np.nanmax(found.probability) > found.two_groups / 2,
            "says": f"The higher group's losses are {found.gap:.1f} times as high as the others'; the probability that "
            f"there are two groups at all is {percent(found.two_groups)} (from {100 * BELIEVED:.0f} % on counts).",
        },
        {
            "name": "Agreement",
            "speaks": found.vote_share >= AGREED and found.voted.any(),
            "says": f"{agreeing:,} of {options.seeds:,} independent attempts to part the sites in two single out "
            f"{'the same sites' if found.voted.any() else 'nobody'} (from {100 * AGREED:.0f} % on counts).",
        },
    ]


def reading(shown: Finding) -> str:
    """Wrong labels or other inputs, in a sentence."""
    if shown.judgement.verdict == "insufficient":
        return UNKNOWN
    if not np.isfinite(shown.evidence.distance).any():
        return UNREAD
    undecided = shown.judgement.verdict == "inconclusive" and shown.reading == "none"
    return UNDECIDED if undecided else READINGS[shown.reading]


def warnings(found: Detection) -> list[str]:
    """What the verdict does not rest on."""
    shown, least = found.shown, found.shown.judgement.options.min_count
    told = [
        _for_sites(found, each)
        for each in shown.judgement.warnings
        if not each.endswith("reported nothing and is not judged")  # said below, with how long ago
    ]
    thin = int(((shown.cells.count > 0) & (shown.cells.count < least)).sum())
    if thin:
        told.append(f"{thin} of {shown.cells.count.size} pairs of site and class have fewer than {least} samples and "
                    "were left out")  # fmt: skip
    rates = shown.evidence.rate[shown.age == 0]
    if np.isfinite(rates).any() and (usual := float(np.nanmedian(rates))) >= EVERYWHERE:
        told.append(f"at the middle site about {100 * usual:.0f} % of labels contradict the model; sites are compared "
                    "with one another, so labels that are wrong alike everywhere do not stand out")  # fmt: skip
    excluded = [found.labels[c] for c in shown.judgement.options.exclude]
    if excluded:
        told.append(f"left out on request: {', '.join(excluded)}")
    told += [f"site {shown.sites[k]} has never answered" for k in np.flatnonzero(shown.age < 0)]
    told += [
        f"site {shown.sites[k]} did not answer; its losses are {shown.age[k]} detections old"
        for k in np.flatnonzero(shown.age > 0)
    ]
    return told


def _for_sites(found: Detection, warning: str) -> str:
    def called(match: re.Match[str]) -> str:
        if match[1]:
            return f"site {found.shown.sites[int(match[1])]}"
        return f"class {found.labels[int(match[2])]}" if match[2] else "site"

    return re.sub(r"client (\d+)|class (\d+)|client", called, warning)  # at once, for names may hold these words


def decided(shown: Finding) -> str:
    """What the run went on with, which heard the same and may have had other options and a memory."""
    noisy, same = shown.decided["noisy"], shown.decided["noisy"] == shown.noisy
    who = f"site{'s' if len(noisy) > 1 else ''} {shown.called(noisy)}" if noisy else "nobody"
    return f"The run itself said '{shown.decided['verdict']}' and treated {who} as noisy" + (
        ", as here." if same else ", other than here."
    )


def truth(found: Detection) -> dict[str, Any] | None:
    """Where wrong labels were made on purpose: how well they were found."""
    quality = found.quality
    if found.truth is None or quality is None:
        return None
    missed, wrongly = (
        sorted(set(found.truth) - set(found.shown.noisy)),
        sorted(set(found.shown.noisy) - set(found.truth)),
    )
    outcome = "All were found, and nobody else" if quality.exact else "; ".join(
        f"{what} {found.shown.called(who)}" for what, who in (("missed:", missed), ("wrongly flagged:", wrongly)) if who
    )  # fmt: skip
    made = "At these sites labels came from a file, and those that differ from the data's count as wrong here"
    return {
        "how": made if found.from_file else "Wrong labels were made on purpose at these sites",
        "sites": found.shown.called(found.truth) or "none",
        "outcome": outcome,
        "recall": percent(quality.recall),
        "precision": percent(quality.precision),
    }


def privacy(shown: Finding) -> str | None:
    """What is claimed, and for what."""
    if shown.privacy is None:
        return None
    return (
        f"Detections so far are differentially private with epsilon {shown.privacy['epsilon']:.3g} and delta "
        f"{shown.privacy['delta']:g}. This covers {shown.privacy['covers']}."
    )


def drivers(found: Detection, client: dict[str, Any]) -> list[str]:
    """The classes that speak most against a site, the samples behind them, and how it would stand without them."""
    cells = {cell["class"]: cell for cell in client["classes"]}
    told = []
    for c in client["drivers"][:TOP]:
        change = cells[c]["without"]
        without = "" if change is None else f", {percent(client['probability'] + change)} without it"
        told.append(f"{found.labels[c]} ({cells[c]['count']:,}+ samples{without})")
    return told


def confusions(found: Detection, client: int) -> list[str]:
    """What is labelled as what, by the model's opinion; the shares are of all the site's samples."""
    return [
        f"labelled {found.labels[y]}, looks like {found.labels[b]} ({percent(share)})"
        for y, b, share in found.shown.evidence.confusions[client][:TOP]
    ]


def order(found: Detection) -> list[dict[str, Any]]:
    """The likeliest first."""
    return sorted(found.shown.clients, key=lambda each: (-(each["probability"] or 0.0), each["client"]))


def row(found: Detection, client: dict[str, Any]) -> dict[str, Any]:
    k, evidence = client["client"], found.shown.evidence
    standing = client["status"] in ("suspect", "noisy")
    rate = evidence.rate[k]
    return {
        "site": found.shown.sites[k],
        "status": found.shown.status[k],
        "probability": said(found.shown, k),
        "rate": "–" if np.isnan(rate) else f"{100 * rate:.0f} ± {100 * evidence.rate_se[k]:.0f} %",
        "true": None if found.rates is None else percent(found.rates[k]),
        "influence": "–" if np.isnan(found.influence[k]) else percent(found.influence[k]),
        "distance": "–" if np.isnan(evidence.distance[k]) else f"{evidence.distance[k]:.2f}",
        "drivers": drivers(found, client) if standing else [],
        "confusions": confusions(found, k) if standing else [],
    }


def _details(found: Detection, client: dict[str, Any]) -> dict[str, Any]:
    nearest = client["nearest_clean"]
    cells = [
        [
            found.labels[cell["class"]],
            f"{cell['count']:,}+",
            f"{cell['mean']:.2f}",
            str(cell["rank"]),
            "–" if cell["z"] is None else f"{cell['z']:+.1f}",
            "–" if cell["without"] is None else percent(client["probability"] + cell["without"]),
        ]
        for cell in client["classes"]
    ]
    sites = found.shown.sites
    return {
        "site": sites[client["client"]],
        "nearest": None if nearest is None else sites[nearest],
        "cells": cells,
    }


def _history(findings: Sequence[Finding]) -> list[list[str]]:
    return [
        [
            str(each.round + 1),
            each.judgement.verdict,
            each.reading,
            "–" if np.isnan(each.judgement.p_value) else f"{each.judgement.p_value:.3f}",
            "–" if np.isnan(each.judgement.gap) else f"{each.judgement.gap:.1f}×",
            each.called(each.noisy) or "nobody",
            each.called(each.decided["noisy"]) or "nobody",
        ]
        for each in findings
    ]
