"""A detection in words: its result in one sentence, what it means, what limits it, and how it came about."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fedskew.detection import shift
from fedskew.detection.judge import (
    AGREED,
    BELIEVED,
    CLEAN_UP_TO,
    FEWEST_CLIENTS,
    GUESSED,
    LOSSES_ONLY,
    SUSPECT_FROM,
    TOO_FEW,
    UNLEARNED,
)
from fedskew.report.detection import Detection, Finding
from fedskew.report.tables import probability

READINGS = {
    "none": "No site's labels stand out, and no site's inputs differ from the others'.",
    "noise": "Labels contradict the model, and no site's inputs differ. This indicates wrong labels, not another "
    "device or other patients.",
    "shift": "Some sites' inputs differ (another device, other patients), but their labels agree with the model where "
    "it is sure. This indicates a shift of inputs, not wrong labels.",
    "unclear": "Some sites' inputs differ (another device, other patients). Whether their labels are also wrong is "
    "unclear.",
    "both": "Some sites' labels contradict the model, and some sites' inputs differ: wrong labels and a shift of "
    "inputs, at the same site or at different ones.",
}
UNDECIDED = "It is undecided whether labels are wrong; no site's inputs differ from the others'."
UNKNOWN = "What sites sent shows neither wrong labels nor different inputs."
UNREAD = "Sites sent only their losses, so wrong labels cannot be told apart from different inputs."
VERDICTS = {
    "some": "some: all three tests indicate wrong labels",
    "likely": f"likely: of fewer than {FEWEST_CLIENTS} sites, some have wrong labels by their estimated shares",
    "inconclusive": "inconclusive: two of the three tests indicate wrong labels",
    "none": "none: fewer than two of the three tests indicate wrong labels",
    "insufficient": "insufficient: there is too little to decide",
}
#: the same for sites that are too few to compare
VERDICTS_OF_FEW = {
    "none": f"none: by its estimated share, no site has more than {100 * CLEAN_UP_TO:.0f} % wrong labels",
    "inconclusive": "inconclusive: the estimated shares are too uncertain",
}
#: what a verdict means for the people at the sites
MEANS = {
    "some": "The labels of these sites contradict a model that the other sites' labels agree with. Check their labels "
    "first: the list of suspicious samples is made at the site and stays there.",
    "likely": "With so few sites this is a hint, not proof. Check the labels there: the list of suspicious samples is "
    "made at the site and stays there. The training treats all sites alike.",
    "inconclusive": "The signs are too weak to say that labels are wrong, and too strong to say that all is well.",
    "none": "Sites are compared with each other: labels that are wrong in the same way everywhere do not stand out.",
    "insufficient": "This says nothing about any site, good or bad.",
}
TOP = 3


def headline(found: Detection) -> str:
    """Say the result in one sentence."""
    shown, clients = found.shown, len(found.shown.sites)
    verdict, mere = shown.judgment.verdict, np.flatnonzero(shown.mere).tolist()
    if shown.named:
        have = "has" if len(shown.named) == 1 else "have"
        return f"{len(shown.named)} of {clients} sites probably {have} wrong labels: {shown.called(shown.named)}"
    if mere:
        return f"No site's labels stand out; the inputs of {len(mere)} of {clients} sites differ: {shown.called(mere)}"
    if verdict == "insufficient":
        reasons = [
            each for each in shown.judgment.warnings if each.endswith((GUESSED, UNLEARNED, TOO_FEW, LOSSES_ONLY))
        ]
        why = _plainly(_for_sites(found, reasons[-1])) if reasons else "too few sites answered"
        return f"Which labels are wrong is unknown: {why}"
    if verdict == "inconclusive":
        look = f"; check first: {shown.called(shown.suspected)}" if shown.suspected else ""
        return f"It is undecided whether any of {clients} sites has wrong labels{look}"
    judged = sum(status != "unknown" for status in shown.judgment.status)
    if judged < clients:
        return f"No labels stand out at the {judged} sites that were judged; {clients - judged} of {clients} were not"
    if apart := contradicted(shown):
        where = f"{len(apart)} of {clients} sites"
        return (
            f"No site stands out against the others, but labels contradict the model at {where}: {shown.called(apart)}"
        )
    return f"No labels stand out at any of {clients} sites"


def _plainly(reason: str) -> str:
    """Say why nothing is known in words that take no statistics."""
    if reason.endswith("guessing"):
        return "the model is no better than guessing; train for more rounds"
    return reason.replace(" with usable losses", "")


def contradicted(shown: Finding) -> list[int]:
    """Return the sites that are not suspect, although a share of their labels is estimated to be wrong."""
    high = np.flatnonzero(shown.shares.low >= SUSPECT_FROM).tolist()
    return [k for k in high if k not in shown.suspected and not shown.mere[k]]


def verdict_of(shown: Finding) -> str:
    found = shown.judgment
    if found.scored_late:
        return f"{found.verdict}: as at the last detection that enough sites answered"
    few = np.isnan(found.p_value)
    return VERDICTS_OF_FEW.get(found.verdict, VERDICTS[found.verdict]) if few else VERDICTS[found.verdict]


def tests(shown: Finding) -> list[tuple[str, bool, str]]:
    """Return the three tests: name, whether it indicates wrong labels, and why; none for too few sites."""
    found, options = shown.judgment, shown.judgment.options
    if np.isnan(found.p_value):
        return []
    least = found.p_value <= 1 / (options.simulations + 1)
    often = f"none of {options.simulations:,}" if least else f"{100 * found.p_value:.1f} % of"
    agreeing = round(found.vote_share * options.seeds)
    return [
        (
            "Chance",
            found.p_value < options.level,
            f"Sites without wrong labels differ this much in {often} simulated cases "
            f"(p = {found.p_value:.3f}; the limit is {options.level:g}).",
        ),
        (
            "Gap",
            bool(found.two_groups >= BELIEVED and np.nanmax(found.probability) > found.two_groups / 2),
            f"The higher group's losses are {found.gap:.1f} times the others'; the probability of two groups is "
            f"{probability(found.two_groups)} (the limit is {100 * BELIEVED:.0f} %).",
        ),
        (
            "Agreement",
            bool(found.vote_share >= AGREED and found.voted.any()),
            f"{agreeing:,} of {options.seeds:,} independent mixture fits select "
            f"{'the same sites' if found.voted.any() else 'no site'} (the limit is {100 * AGREED:.0f} %).",
        ),
    ]


def reading(shown: Finding) -> str:
    """Say whether labels are wrong or inputs differ."""
    if shown.judgment.verdict == "insufficient":
        return UNKNOWN
    if not np.isfinite(shown.evidence.distance).any():
        return UNREAD
    if shown.judgment.verdict == "likely":
        return READINGS["both" if shift.shifted(shown.evidence.distance).any() else "noise"]
    undecided = shown.judgment.verdict == "inconclusive" and shown.reading == "none"
    return UNDECIDED if undecided else READINGS[shown.reading]


def warnings(found: Detection) -> list[str]:
    """Return what limits the verdict."""
    shown, least = found.shown, found.shown.judgment.options.min_count
    notes = [
        _plainly(_for_sites(found, each))
        for each in shown.judgment.warnings
        if not each.endswith("reported nothing and is not judged")  # below, with how long ago
    ]
    thin = int(((shown.cells.count > 0) & (shown.cells.count < least)).sum())
    if thin:
        notes.append(f"{thin} of {shown.cells.count.size} pairs of site and class have fewer than {least} samples and "
                    "were left out")  # fmt: skip
    if apart := contradicted(shown):
        notes.append(f"labels contradict the model at {shown.called(apart)}, but these sites do not stand out against "
                     "the others; labels that are equally wrong at several sites look like this")  # fmt: skip
    measured = np.isfinite(shown.evidence.rate[shown.age == 0]).any() and shown.judgment.verdict != "insufficient"
    if measured and np.isnan(shown.shares.low).all():
        notes.append(UNLEARNED)
    excluded = [found.labels[c] for c in shown.judgment.options.exclude]
    if excluded:
        notes.append(f"excluded by option: {', '.join(excluded)}")
    notes += [f"site {shown.sites[k]} has never answered" for k in np.flatnonzero(shown.age < 0)]
    notes += [
        f"site {shown.sites[k]} did not answer; its losses are {shown.age[k]} detections old"
        for k in np.flatnonzero(shown.age > 0)
    ]
    return notes


def _for_sites(found: Detection, warning: str) -> str:
    def called(match: re.Match[str]) -> str:
        if match[1]:
            return f"site {found.shown.sites[int(match[1])]}"
        return f"class {found.labels[int(match[2])]}" if match[2] else "site"

    return re.sub(r"client (\d+)|class (\d+)|client", called, warning)  # at once, for names may hold these words


def decided(shown: Finding) -> str:
    """Say what the run itself decided, which may have had other options and earlier detections."""
    noisy, same = shown.decided["noisy"], shown.decided["noisy"] == shown.noisy
    sites = f"site{'s' if len(noisy) > 1 else ''} {shown.called(noisy)}" if noisy else "no site"
    return f"The run's verdict was '{shown.decided['verdict']}'; it treated {sites} as noisy" + (
        ", as here." if same else ", unlike here."
    )


def truth(found: Detection) -> str:
    """Say how well wrong labels were found; nothing where the record does not know them."""
    quality = found.quality
    if found.truth is None or quality is None:
        return ""
    wrong, flagged = set(found.truth), set(found.shown.named)
    mistakes = (("missed:", sorted(wrong - flagged)), ("wrongly flagged:", sorted(flagged - wrong)))
    outcome = "; ".join(f"{what} {found.shown.called(sites)}" for what, sites in mistakes if sites)
    made = (
        "These sites' labels came from a file, and those that differ from the data's count as wrong"
        if found.from_file
        else "The run gave these sites wrong labels on purpose"
    )
    return (
        f"{made}: {found.shown.called(found.truth) or 'none'}. {outcome or 'The detection found exactly these'} "
        f"(recall {probability(quality.recall)}, precision {probability(quality.precision)})."
    )


def privacy(shown: Finding) -> str | None:
    """Say what privacy the record claims, and for what."""
    if shown.privacy is None:
        return None
    return (
        f"Detections so far are differentially private with epsilon {shown.privacy['epsilon']:.3g} and delta "
        f"{shown.privacy['delta']:g}. This covers {shown.privacy['covers']}."
    )


def drivers(found: Detection, client: dict[str, Any]) -> list[str]:
    """Return the classes that speak most against a site, their samples, and the probability without each of them."""
    cells = {cell["class"]: cell for cell in client["classes"]}
    return [
        f"{found.labels[c]} ({cells[c]['count']:,}+ samples{alone and f', {alone} without it'})"
        for c in client["drivers"][:TOP]
        for alone in (without(found.shown, client, cells[c]),)
    ]


def without(shown: Finding, client: dict[str, Any], cell: dict[str, Any]) -> str:
    """Write a site's probability of wrong labels without a class, where the verdict gives one."""
    likely = shown.probability_of(client["client"])
    return "" if likely is None or cell["without"] is None else probability(likely + cell["without"])


def confusions(found: Detection, client: int) -> list[str]:
    """Return the likely confusions of labels, by the model; the shares are of all the site's samples."""
    return [
        f"labeled {found.labels[y]}, looks like {found.labels[b]} ({probability(share)})"
        for y, b, share in found.shown.evidence.confusions[client][:TOP]
    ]
