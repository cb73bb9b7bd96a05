"""The command that shows wrong labels."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import decoding, options
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.cli.showing import MANY_CLASSES, MANY_CLIENTS
from fedskew.errors import UserError, required

if TYPE_CHECKING:
    from fedskew.data.ledger import Ledger
    from fedskew.data.sources import Source
    from fedskew.work.site import Site

EXAMPLES, TOP = 8, 20


@click.command()
@options.setting("--method", "Makes no difference here.", "fedavg")
@options.training
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Draw a picture: .png, .svg or .pdf.")
@options.as_json
def noise(out: Path | None, as_json: bool, **asked: Any) -> None:
    """Show whose labels are wrong, how often, and what became what; takes the options of run."""
    from fedskew import experiment, face, names
    from fedskew.report import noise as drawing
    from fedskew.report import pictures

    config = face.configure(**asked)
    if config.noise.kind == "none":
        raise UserError("noise.kind is 'none', so no label is wrong; say which, for example --noise symmetric:0.4")
    with decoding.shown():
        site, source, _ = experiment.prepare(config, tell=_now_and_then())
    ledger = required(site.ledger, "the ledger of wrong labels")
    found, examples = ledger.summary(), _examples(site, source, ledger)
    clients = names.of_clients(config.partition.name, len(site.shards), source.site_names)
    if out is not None:
        pictures.save(drawing.picture(found, source.labels, clients), out)
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


def _now_and_then() -> Any:
    """Says how far it is, but not more often than every three seconds."""
    said = time.monotonic()

    def tell(sentence: str) -> None:
        nonlocal said
        if time.monotonic() - said > 3:
            said = time.monotonic()
            echo(sentence, err=True)

    return tell


def _examples(site: Site, source: Source, ledger: Ledger) -> list[dict[str, Any]]:
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
        [clients[k], f"{sizes[k]:,}", f"{100 * found['target'][k]:.1f}", f"{100 * found['realised'][k]:.1f}"]
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
