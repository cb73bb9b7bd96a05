"""The command that looks for noisy clients again, in the record of a run."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.partition import MANY_CLIENTS
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.core.errors import UserError
from fedskew.core.wording import number_of

if TYPE_CHECKING:
    from fedskew.detection.quality import Quality
    from fedskew.report.detection import Detection


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--seeds", type=int, help="Number of mixture fits that vote.  [as in the run]")
@click.option("--covariance", type=click.Choice(["full", "diag"]), help="Covariance of the mixture.  [as in the run]")
@click.option(
    "--component",
    type=click.Choice(["sum", "norm"]),
    help="Which component is noisy: that whose center has the larger sum or norm.  [as in the run]",
)
@click.option("--exclude-class", "exclude", multiple=True, metavar="CLASS", help="Class to leave out; may be repeated.")
@click.option("--level", type=float, help="Significance level of the test for chance.  [as in the run]")
@click.option(
    "--indicator",
    type=click.Choice(["cells", "loss", "confidence", "certainty", "lid"]),
    default="cells",
    help="What single fits use: losses per class, or one number per client.  [cells]",
)
@click.option("--no-normalize", is_flag=True, help="Do not normalize the losses per class of single fits.")
@click.option("--detection", "which", type=int, help="Number of the run's detection, from 1.  [the last]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the page and its data.  [RUN/detection]")
@click.option("--picture", type=click.Path(path_type=Path), help="Also draw a picture: PNG, SVG or PDF.")
@click.option("--details", is_flag=True, help="Also print how this was decided: tests, probabilities, single fits.")
@options.as_json
def detect(
    run: Path,
    exclude: tuple[str, ...],
    indicator: str,
    no_normalize: bool,
    which: int | None,
    out: Path | None,
    picture: Path | None,
    details: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Find noisy clients in the run folder RUN again. Nothing is trained; a page is written.

    Single fits follow FedNoRo's Table 3: one mixture per seed, without a vote and without a test; recall, precision
    and exact match are means over the fits.
    """
    from fedskew.record import reader
    from fedskew.report import detection
    from fedskew.report.html import detection_page, detection_words

    if no_normalize and indicator != "cells":
        raise UserError(f"indicator '{indicator}' does not use --no-normalize. Remove --no-normalize or --indicator.")
    given = {name: value for name, value in asked.items() if value is not None}
    fitted: Any = "raw cells" if no_normalize else indicator
    found = detection.detect(reader.read(run), given, exclude, fitted, which)
    folder = out or (run if run.is_dir() else run.parent) / "detection"
    detection_page.write(folder, found, picture)
    if as_json:
        print_json(found.as_json() | {"folder": str(folder)})
        return
    echo(f"{detection_words.headline(found)}.")
    echo(detection_words.MEANS[found.shown.judgment.verdict])
    echo()
    answers = detection_page.answers(found, detection_page.order(found)[:MANY_CLIENTS])
    print_table(answers.heading, answers.cells, left=2)
    if len(found.shown.sites) > len(answers.rows):
        echo(f"... and {len(found.shown.sites) - len(answers.rows)} more; --json shows all.")
    if answers.note:
        echo(answers.note, lines=True)
    for warning in detection_words.warnings(found):
        echo(f"Note: {warning}")
    facts = _facts(found) if details else {}
    if details:
        echo()
        _print_clients(found)
    elif known := detection_words.truth(found):
        facts["truth"] = known
    if found.shown.named and run.is_dir():
        site = found.shown.sites[found.shown.named[0]]
        facts["which labels"] = shlex.join(["fedskew", "review", str(run), "--client", site, "--out", "suspects.csv"])
    pictured = {} if picture is None else {"picture": str(picture)}
    print_facts(facts | {"page": str(folder / "detection.html")} | pictured)


def _print_clients(found: Detection) -> None:
    from fedskew.report.html.detection_page import order, row
    from fedskew.report.html.detection_words import drivers

    shown = order(found)[:MANY_CLIENTS]
    heading = ["site", "labels", "classes that drive it", "probability", "share wrong", "inputs differ"]
    cells = [
        [
            known["site"],
            found.shown.answer(client["client"]),
            "; ".join(drivers(found, client)),
            known["probability of wrong labels"],
            known["labels wrong (estimated)"],
            known["inputs differ (deviations)"],
        ]
        for client in shown
        for known in (row(found, client),)
    ]
    print_table(heading, cells, left=3)


def _facts(found: Detection) -> dict[str, str]:
    from fedskew.report.html.detection_words import decided, reading

    shown = found.shown
    judged, used = shown.judgment, shown.judgment.options
    facts: dict[str, str] = {"verdict": judged.verdict}
    if not math.isnan(judged.p_value):
        facts |= {
            "p-value": f"{judged.p_value:.3f} (level {used.level:g})",
            "vote share": f"{judged.vote_share:.2f} of {used.seeds} fits",
            "BIC": f"{judged.bic:+.1f} in favor of two groups",
            "gap": f"{judged.gap:.2f} times the loss; two groups with probability {judged.two_groups:.3f}",
        }
    facts |= {"reading": reading(shown), "decided": decided(shown)}
    voted = shown.called(found.fits.sets[0][0]) or "no site"
    single = f"{found.indicator}, {number_of(used.seeds, 'seed')}: most often {voted} ({found.fits.share:.2f})"
    if found.quality is not None and found.fits_quality is not None:
        facts["truth"] = f"{shown.called(found.truth or ()) or 'no site'}; {_scores(found.quality)}"
        single += f"; {_scores(found.fits_quality)}"
    return facts | {"single fits": single}


def _scores(quality: Quality) -> str:
    from fedskew.report.tables import probability

    shares = {"recall": quality.recall, "precision": quality.precision, "exact match": quality.exact}
    return ", ".join(f"{name} {probability(share)}" for name, share in shares.items())
