"""The commands that show what each client has: partition, noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.progress import showing
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.core.errors import UserError, required

if TYPE_CHECKING:
    from fedskew.data.noise.ledger import Ledger
    from fedskew.data.sources import Source
    from fedskew.runtime.context import RunContext

MANY_CLIENTS, MANY_CLASSES = 40, 20
EXAMPLES, TOP = 8, 20


@click.command(cls=options.TaskCommand)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Draw a picture: .png, .svg or .pdf.")
@click.option("--kind", type=click.Choice(["dots", "heat"]), help="The kind of picture.  [dots for few clients]")
@options.as_json
def partition(out: Path | None, kind: str | None, as_json: bool, **asked: Any) -> None:
    """Show how many samples of each class every client has."""
    from fedskew import api
    from fedskew.core import client_names
    from fedskew.experiment import run as experiment
    from fedskew.report.plots import partition as pictures
    from fedskew.report.plots import style

    config = api.configure(**asked, allow_code=True)  # for no network is built
    with showing():
        source = experiment.load_source(config)
        shards = experiment.shards_for(config, source)
    counts = [shards.shard(client, source.train.x).counts.tolist() for client in range(len(shards))]
    clients = client_names.of_clients(config.partition.name, len(shards), source.site_names)
    if out is not None:
        draw = {"dots": pictures.dots, "heat": pictures.heat, None: pictures.partition}[kind]
        style.save(draw(counts, source.labels, clients), out)
    if as_json:
        print_json(
            {
                "dataset": source.name,
                "partition": config.partition.model_dump(exclude_none=True),
                "seed": config.seed,
                "digest": shards.digest,
                "labels": list(source.labels),
                "clients": clients,
                "sizes": [sum(row) for row in counts],
                "counts": counts,
            }
        )
        return
    _print_counts(clients, counts, source.labels)
    sizes, classes = [sum(row) for row in counts], [sum(n > 0 for n in row) for row in counts]
    facts = {
        "samples": f"{sum(sizes):,} of {len(source.train):,}, {_range(sizes)} per client",
        "classes": f"{_range(classes)} of {source.classes} per client",
        "digest": shards.digest,
    }
    if source.notes:
        facts["data"] = "; ".join(source.notes)
    print_facts(facts | ({"picture": str(out)} if out else {}))


def _print_counts(clients: Sequence[str], counts: Sequence[Sequence[int]], labels: Sequence[str]) -> None:
    shown = list(zip(clients, counts, strict=True))[:MANY_CLIENTS]
    if len(labels) <= MANY_CLASSES:
        cells = [[name, *(str(n) if n else "·" for n in row), str(sum(row))] for name, row in shown]
        print_table(["client", *labels, "all"], cells, left=0)
    else:
        cells = [[name, str(sum(row)), str(sum(n > 0 for n in row)), _largest(row, labels)] for name, row in shown]
        print_table(["client", "samples", "classes", "most of"], cells, left=0)
    if len(counts) > len(shown):
        echo(f"... and {len(counts) - len(shown)} more clients; --json or -o picture.png shows them all.\n", lines=True)


def _largest(row: Sequence[int], labels: Sequence[str]) -> str:
    most = max(row)
    return f"{labels[row.index(most)]} ({most})" if most else "·"


def _range(values: Sequence[int]) -> str:
    return f"{min(values):,} to {max(values):,} (median {statistics.median(values):,g})"


@click.command(cls=options.RunCommand)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Draw a picture: .png, .svg or .pdf.")
@options.as_json
def noise(out: Path | None, as_json: bool, **asked: Any) -> None:
    """Show which clients have wrong labels. List how many, and which label became which."""
    from fedskew import api
    from fedskew.core import client_names
    from fedskew.experiment import run as experiment
    from fedskew.report.plots import noise as drawing
    from fedskew.report.plots import style

    config = api.configure(**asked)
    if config.noise.kind == "none":
        raise UserError("noise.kind is 'none', so no label is wrong. Add noise, for example --noise symmetric:0.4.")
    with showing():
        site, source, _ = experiment.prepare(config)
    ledger = required(site.ledger, "the ledger of wrong labels")
    found, examples = ledger.summary(), _examples(site, source, ledger)
    clients = client_names.of_clients(config.partition.name, len(site.shards), source.site_names)
    if out is not None:
        style.save(drawing.picture(found, source.labels, clients), out)
    if as_json:
        print_json(
            {
                "dataset": source.name,
                "noise": config.noise.model_dump(exclude_none=True),
                "digest": site.shards.digest,
                "labels": list(source.labels),
                "clients": clients,
                **found,
                "examples": examples,
            }
        )
        return
    _print_rates(found, clients, site.shards.sizes().tolist())
    _print_flips(found["flips"], source.labels)
    if examples:
        cells = [[e["true"], e["observed"], str(e["sample"]), clients[e["client"]]] for e in examples]
        print_table(["true label", "observed", "sample", "client"], cells, left=2)
    wrong = int(ledger.flipped.sum())
    facts = {
        "noisy clients": f"{len(found['noisy'])} of {len(ledger.noisy)}",
        "wrong labels": f"{wrong:,} of {len(ledger.true):,} ({100 * wrong / len(ledger.true):.1f} %)",
        "digest": site.shards.digest,
    }
    if source.notes:
        facts["data"] = "; ".join(source.notes)
    print_facts(facts | ({"picture": str(out)} if out else {}))


def _examples(site: RunContext, source: Source, ledger: Ledger) -> list[dict[str, Any]]:
    """Wrong labels from all over the data."""
    wrong = ledger.flipped.nonzero()[0]
    some = wrong[:: max(1, len(wrong) // EXAMPLES)][:EXAMPLES].tolist()
    owners = ledger.offsets.searchsorted(some, side="right") - 1
    return [
        {
            "client": int(client),
            "sample": int(site.shards.index[row]),
            "true": source.labels[ledger.true[row]],
            "observed": source.labels[ledger.observed[row]],
        }
        for row, client in zip(some, owners, strict=True)
    ]


def _print_rates(found: dict[str, Any], clients: list[str], sizes: list[int]) -> None:
    cells = [
        [clients[k], f"{sizes[k]:,}", f"{100 * found['target'][k]:.1f}", f"{100 * found['realized'][k]:.1f}"]
        for k in found["noisy"][:MANY_CLIENTS]
    ]
    print_table(["noisy client", "samples", "meant %", "wrong %"], cells, left=0)
    if len(found["noisy"]) > MANY_CLIENTS:
        echo(f"... and {len(found['noisy']) - MANY_CLIENTS} more; --json shows them all.\n", lines=True)


def _print_flips(flips: list[list[int]], labels: tuple[str, ...]) -> None:
    if len(labels) <= MANY_CLASSES:
        cells = [[name, *(str(n) if n else "·" for n in row)] for name, row in zip(labels, flips, strict=True)]
        print_table(["true \\ observed", *labels], cells)
        return
    most = sorted(((n, i, j) for i, row in enumerate(flips) for j, n in enumerate(row) if n), reverse=True)[:TOP]
    print_table(["true label", "observed", "times"], [[labels[i], labels[j], str(n)] for n, i, j in most], left=2)
