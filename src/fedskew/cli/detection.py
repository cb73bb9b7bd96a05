"""The command that looks for noisy clients again, in what a run left behind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.cli.showing import MANY_CLIENTS
from fedskew.errors import UserError

if TYPE_CHECKING:
    from fedskew.detection.quality import Quality
    from fedskew.report.detection import Detection


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--seeds", type=int, help="Fits that vote.  [as in the run]")
@click.option("--covariance", type=click.Choice(["full", "diag"]), help="Of the mixture.  [as in the run]")
@click.option("--component", type=click.Choice(["sum", "norm"]), help="The noisy one is larger by it.  [as in the run]")
@click.option("--exclude-class", "exclude", multiple=True, metavar="CLASS", help="Leave a class out; may be repeated.")
@click.option("--level", type=float, help="Of the test whether it is chance.  [as in the run]")
@click.option(
    "--indicator",
    type=click.Choice(["cells", "loss", "confidence", "certainty", "lid"]),
    default="cells",
    help="What single fits are made of: losses per class, or one number per client.  [cells]",
)
@click.option("--no-normalise", is_flag=True, help="Single fits of losses per class as they are.")
@click.option("--door", type=int, help="Which detection of the run, counted from 1.  [the last]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write to.  [RUN/detection]")
@options.as_json
def detect(
    run: Path,
    exclude: tuple[str, ...],
    indicator: str,
    no_normalise: bool,
    door: int | None,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Look again for noisy clients in what the run in the folder RUN wrote down, without training; write a page.

    "Single fits" is the protocol of FedNoRo's Table 3: one mixture per seed, no vote, no test; recall, precision and
    exact match are means over the fits.
    """
    from fedskew import record
    from fedskew.report import detection, detection_page

    if no_normalise and indicator != "cells":
        raise UserError(f"--no-normalise is for losses per class, and the indicator is '{indicator}'; leave one out")
    given = {name: value for name, value in asked.items() if value is not None}
    fitted: Any = "raw cells" if no_normalise else indicator
    found = detection.detect(record.read(run), given, exclude, fitted, door)
    folder = out or (run if run.is_dir() else run.parent) / "detection"
    detection_page.write(folder, found)
    if as_json:
        print_json(found.as_json() | {"folder": str(folder)})
        return
    echo(detection_page.headline(found))
    echo()
    _print_clients(found)
    for warning in detection_page.warnings(found):
        echo(f"Note: {warning}")
    print_facts(_facts(found) | {"page": str(folder / "detection.html")})


def _print_clients(found: Detection) -> None:
    from fedskew.report.detection_page import drivers, order, row

    shown = order(found)[:MANY_CLIENTS]
    rows = [row(found, client) for client in shown]
    cells = [
        [r["site"], r["status"], "; ".join(drivers(found, client)), r["probability"], r["rate"], r["distance"]]
        for r, client in zip(rows, shown, strict=True)
    ]
    print_table(
        ["site", "status", "classes that drive it", "probability", "labels wrong", "inputs differ"], cells, left=3
    )
    if len(found.shown.sites) > len(shown):
        echo(f"... and {len(found.shown.sites) - len(shown)} more; --json shows them all.\n", lines=True)


def _facts(found: Detection) -> dict[str, str]:
    from fedskew.report.detection_page import decided, reading

    shown = found.shown
    judged, used = shown.judgement, shown.judgement.options
    facts: dict[str, str] = {"verdict": judged.verdict}
    if not math.isnan(judged.p_value):
        facts |= {
            "p-value": f"{judged.p_value:.3f} (level {used.level:g})",
            "vote share": f"{judged.vote_share:.2f} of {used.seeds} fits",
            "BIC": f"{judged.bic:+.1f} in favour of two groups",
            "gap": f"{judged.gap:.2f} times the loss; two groups with probability {judged.two_groups:.3f}",
        }
    facts |= {"reading": reading(shown), "decided": decided(shown)}
    voted = shown.called(found.fits.sets[0][0]) or "nobody"
    single = f"{found.indicator}, {used.seeds} seeds: most often {voted} ({found.fits.share:.2f})"
    if found.quality is not None and found.fits_quality is not None:
        facts["truth"] = f"{shown.called(found.truth or ()) or 'nobody'}; {_scores(found.quality)}"
        single += f"; {_scores(found.fits_quality)}"
    return facts | {"single fits": single}


def _scores(quality: Quality) -> str:
    from fedskew.report.detection_pictures import percent

    shares = {"recall": quality.recall, "precision": quality.precision, "exact match": quality.exact}
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items())
