"""The command that a site uses at home, to find its wrong labels and to mend them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedskew.cli import options
from fedskew.cli.screen import print_facts, print_table
from fedskew.errors import UserError, required

if TYPE_CHECKING:
    from fedskew.consent import Consent
    from fedskew.data.sources import Source
    from fedskew.types import Shard


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--client", "called", required=True, help="Whose samples: the site's name, or number in the run.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="CSV file to write, outside of RUN.")
@click.option("--top", type=click.IntRange(min=1), help="List only so many.  [all]")
@click.option("--weights", type=click.Path(path_type=Path), help="Another model than the run's last.")
@click.option("--check", is_flag=True, help="In simulation: precision against the true labels.")
@click.option("--corrections", type=click.Path(path_type=Path), help="Take corrected labels back from this CSV file.")
@options.allow_code
def worklist(
    run: Path,
    called: str,
    out: Path,
    top: int | None,
    weights: Path | None,
    check: bool,
    corrections: Path | None,
    allow_code: Consent,
) -> None:
    """List a site's suspicious labels for relabelling at home, or take the corrections back.

    RUN is a run folder. The file is for its owner's eyes only: mode 600, never under RUN, never sent.
    """
    from fedskew import names, worklist

    if corrections is not None and (top is not None or weights is not None or check):
        raise UserError("--corrections takes labels back and lists nothing, so leave out --top, --weights and --check")
    worklist.check_outside(out, run)
    site, source, spec = worklist.open_run(run, allow_code)
    known = worklist.client_names(run, source)
    client = names.client_called(called, known)
    if corrections is not None:
        _take_back(run, out, site.shards.shard(client, site.x), known[client], source, corrections)
        return
    found = worklist.rank(site, spec, worklist.load_weights(site, spec, weights or run), client)
    precision = worklist.check(site, client, found) if check else None
    worklist.save_suspects(out, run, found[:top], source)
    listed = len(found[:top])
    facts = {
        "work list": f"{out}: {listed:,} of the {len(found):,} samples of client {known[client]}",
        "expected wrong": f"{sum(each.error for each in found):.1f} in all",
    }
    if found:
        facts["first 50"] = f"{found[0].expected_errors_next_50:.1f} expected wrong"
    if listed < len(found):
        facts["50 after these"] = f"{found[listed].expected_errors_next_50:.1f} expected wrong"
    if precision is not None:
        rate = required(site.ledger, "the ledger of wrong labels").realised[client]
        facts["precision@50"] = f"{precision:.2f}, where {rate:.2f} of all labels are wrong"
    print_facts(facts)


def _take_back(run: Path, out: Path, shard: Shard, client: str, source: Source, corrections: Path) -> None:
    from fedskew import worklist

    y = worklist.corrected_labels(shard, corrections, source)
    worklist.save_labels(out, run, shard, y)
    after = y.bincount(minlength=source.classes)
    counts = zip(source.labels, shard.counts.tolist(), after.tolist(), strict=True)
    print_table(["label", "before", "now"], [[name, str(old), str(new)] for name, old, new in counts])
    changed = int((y != shard.y).sum())
    print_facts({"labels": str(out), "changed": f"{changed:,} of {len(y):,} labels of client {client}"})
