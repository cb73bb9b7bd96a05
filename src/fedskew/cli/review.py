"""The command with which a site reviews its own labels."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedskew.cli import options
from fedskew.cli.screen import print_facts, print_table
from fedskew.core.errors import UserError, required

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedskew.config.consent import Consent
    from fedskew.data.sources import Source
    from fedskew.label_review import Suspect
    from fedskew.runtime.context import RunContext

#: images on a page
MOST_IMAGES = 500


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--client", "name", help="The site's name, or its client number in the run.")
@click.option("--test", is_flag=True, help="Instead of a client: the test samples that all clients share.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="CSV file to write, outside of RUN.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="List only the first N.  [all]")
@click.option("--page", type=click.Path(path_type=Path), help="Also write a page of the images: HTML, outside of RUN.")
@click.option(
    "--weights", type=click.Path(path_type=Path), help="Weights of the model that ranks the labels.  [the run's last]"
)
@click.option("--check", is_flag=True, help="Measure the precision; needs simulated noise.")
@click.option("--apply", "corrections", type=click.Path(path_type=Path), help="Apply the corrections in this CSV file.")
@options.allow_code
def review(
    run: Path,
    name: str | None,
    test: bool,
    out: Path | None,
    top: int | None,
    page: Path | None,
    weights: Path | None,
    check: bool,
    corrections: Path | None,
    allow_code: Consent,
) -> None:
    """List a site's suspicious labels, or apply its corrections.

    RUN is a run folder. Only the owner can read the file that is written; it stays outside of RUN and is never sent.

    --apply writes your own data once more, with corrected labels, beside the original unless --out names a file. For
    other data sets it writes the client's corrected labels to --out.
    """
    from fedskew import label_review
    from fedskew.core import client_names

    if (name is None) != test:
        raise UserError("it is not clear whose labels to review. Type either --client NAME or --test.")
    if corrections is not None and (top is not None or page or weights is not None or check):
        raise UserError("--apply lists no labels. Leave out --top, --page, --weights and --check.")
    if corrections is None and out is None:
        raise UserError("there is no file for the list. Type, for example, --out suspects.csv.")
    for written in filter(None, (out, page)):
        label_review.check_outside(written, run)
    context, source, spec = label_review.open_run(run, allow_code)
    known = label_review.client_names(run, source)
    client = None if name is None else client_names.client_called(name, known)
    whose = "the test samples" if client is None else f"client {known[client]}"
    if corrections is not None:
        _apply(run, out, context, client, whose, source, corrections)
        return
    found = label_review.rank(context, spec, label_review.load_weights(context, spec, weights or run), client)
    precision = label_review.measure_precision(context, client, found) if check else None
    listed = found[:top]
    out = required(out, "the file for the list")
    label_review.save_suspects(out, run, listed, source)
    if page is not None:
        _save_page(page, run, whose.replace("client", "site", 1), listed, source)
    _say(context, client, f"{out}: {len(listed):,} of the {len(found):,} samples of {whose}", found, len(listed), page)
    if precision is not None:
        ledger = required(context.ledger, "the ledger of wrong labels")
        rate = 0.0 if client is None else ledger.realized[client]
        print_facts({"precision@50": f"{precision:.2f}, where {rate:.2f} of all labels are wrong"})


def _say(
    context: RunContext, client: int | None, what: str, found: Sequence[Suspect], listed: int, page: Path | None
) -> None:
    """Print what was listed, how many wrong labels to expect, and what accuracy is measured on."""
    facts = {"review list": what, "expected wrong": f"{sum(each.error for each in found):.1f} in all"}
    if found:
        facts["first 50"] = f"{found[0].expected_errors_next_50:.1f} expected wrong"
    if listed < len(found):
        facts["50 after these"] = f"{found[listed].expected_errors_next_50:.1f} expected wrong"
    tested = sum(each.split == "test" for each in found)
    if tested:
        facts["test samples"] = f"{tested:,}; accuracy is measured on them, so wrong labels there make it wrong"
    elif context.test.sites is None and client is not None:
        facts["test samples"] = "shared by all clients; type --test instead of --client to review them"
    if page is not None:
        facts["page"] = f"{page}: open it in a browser; it stays on this machine"
    print_facts(facts)


def _save_page(path: Path, run: Path, whose: str, suspects: Sequence[Suspect], source: Source) -> None:
    """Write the page of images, which only its owner may read."""
    import torch

    from fedskew.core import atomic_io
    from fedskew.data import corrections
    from fedskew.report.html import review_page

    parts = {corrections.TRAIN: source.train, corrections.TEST: source.test}
    if source.train.x.dtype != torch.uint8 or source.train.x.ndim != 4:
        raise UserError(f"data set '{source.name}' has no images to show. Leave out --page.")
    names = corrections.sample_names(source)
    samples = [
        review_page.Sample(
            each.rank,
            {corrections.SPLIT: each.split, **{name: values[each.row] for name, values in names[each.split].items()}},
            source.labels[each.label],
            source.labels[each.suggested],
            each.error,
            parts[each.split].x[each.row].numpy(),
            each.split == corrections.TEST,
        )
        for each in suspects[:MOST_IMAGES]
    ]
    command = f"fedskew retrain {shlex.quote(os.fspath(run))} corrections.csv"
    atomic_io.save(path, review_page.html(whose, samples, source.labels, command), private=True)


def _apply(
    run: Path,
    out: Path | None,
    context: RunContext,
    client: int | None,
    whose: str,
    source: Source,
    file: Path,
) -> None:
    """Write the corrected labels, and say what has changed."""
    from fedskew import label_review

    written, pairs = label_review.save_corrected(out, run, context, client, source, file)
    before, now = zip(*pairs, strict=True) if pairs else ((), ())
    counts = ([name, str(before.count(number)), str(now.count(number))] for number, name in enumerate(source.labels))
    print_table(["label", "before", "now"], list(counts))
    again = ["fedskew", "retrain", os.fspath(run), os.fspath(file)]
    print_facts({
        "labels": str(written),
        "changed": f"{sum(old != new for old, new in pairs):,} of {len(pairs):,} labels of {whose}",
        "to train again": shlex.join(again),
    })  # fmt: skip
