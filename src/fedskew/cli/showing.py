"""Commands that show things: report, methods, card, partition."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import decoding, options
from fedskew.cli.screen import console, echo, print_facts, print_json, print_table
from fedskew.errors import UserError
from fedskew.names import printable

if TYPE_CHECKING:
    from fedskew.report.cards import Entry

MANY_CLIENTS, MANY_CLASSES = 40, 20


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="File to write; - prints it.  [report.html]")
@click.option("--format", "kind", type=click.Choice(["html", "md", "csv", "png"]), help="[by the file's ending]")
def report(runs: tuple[Path, ...], out: Path | None, kind: str | None) -> None:
    """Make one page of runs, finished or not. RUN is a run folder, a record file, or a folder of runs."""
    from fedskew import run_folder
    from fedskew.report import page
    from fedskew.report import runs as records
    from fedskew.report.comparison import save

    printed = str(out) == "-"
    ending = out.suffix.removeprefix(".") if out and not printed else "html"
    if kind is None and ending not in page.FORMATS:
        known = ", ".join(f".{each}" for each in page.FORMATS)
        raise UserError(f"the ending of '{out}' says no format; it should be one of {known}, or name a --format")
    if out and not printed and kind not in (None, ending) and ending in page.FORMATS:
        raise UserError(f"'{out}' ends like {ending}, and --format says {kind}; say one of them")
    chosen = kind or ending
    path = out or Path(f"report.{chosen}")
    if not path.parent.is_dir():
        raise UserError(f"cannot write '{path}': there is no folder '{path.parent}'; make it, or name another")
    if not printed and run_folder.is_ours(path):
        raise UserError(f"'{path}' is a file of a run, which a report must not replace; name another")
    made = page.FORMATS[chosen](records.read(runs))
    if printed:
        if isinstance(made, str) and sys.stdout.isatty():
            made = printable(made, lines=True)
        click.echo(made, nl=False, color=True)  # with all signs, for a program gets what a file would have
        return
    save(path, made)
    echo(f"Written to {path}.")


@click.command()
@options.as_json
@click.option("--pages", type=click.Path(path_type=Path), help="Write a page for each, and a table, to this folder.")
def methods(as_json: bool, pages: Path | None) -> None:
    """List the methods: what they are, what travels, what they cost."""
    from fedskew.report import cards

    known = _known_methods()
    if pages is not None:
        written = cards.write(pages, known)
        echo(f"Written to {pages}: {len(written)} pages.")
    elif as_json:
        print_json([entry.as_dict() for entry in known])
    else:
        rows = [[e.id, e.card.paper, str(e.card.year), e.card.travels, e.card.cost] for e in known]
        print_table(["id", "paper", "year", "what travels", "extra cost"], rows, left=5, lines=True)


@click.command()
@click.argument("name")
def card(name: str) -> None:
    """Show the card of a method, or of each one in a sum such as fedprox+avgm."""
    from fedskew.methods import registry
    from fedskew.report import cards

    registry.build(name)  # which says what is wrong with it
    text = "\n".join(cards.page(_method(found.alias_of or found.name)) for found, _ in registry.parse(name))
    screen = console()
    if screen.is_terminal:
        from rich.markdown import Markdown

        screen.print(Markdown(text))
    else:
        echo(text.removesuffix("\n"), lines=True)


@click.command()
@options.task
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Draw a picture: .png, .svg or .pdf.")
@click.option("--kind", type=click.Choice(["dots", "heat"]), help="Left out, dots while there are few clients.")
@options.as_json
def partition(out: Path | None, kind: str | None, as_json: bool, **asked: Any) -> None:
    """Show who holds what: samples of each client and class."""
    from fedskew import experiment, face, names
    from fedskew.report import pictures

    config = face.configure(**asked, allow_code=True)  # for no network is built
    with decoding.shown():
        source = experiment.load_source(config)
        shards = experiment.shards_for(config, source)
    counts = [shards.shard(client, source.train.x).counts.tolist() for client in range(len(shards))]
    clients = names.of_clients(config.partition.name, len(shards), source.site_names)
    if out is not None:
        draw = {"dots": pictures.dots, "heat": pictures.heat, None: pictures.partition}[kind]
        pictures.save(draw(counts, source.labels, clients), out)
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
    _print_holdings(clients, counts, source.labels)
    sizes, held = [sum(row) for row in counts], [sum(n > 0 for n in row) for row in counts]
    facts = {
        "samples": f"{sum(sizes):,} of {len(source.train):,}, {_range(sizes)} per client",
        "classes": f"{_range(held)} of {source.classes} per client",
        "digest": shards.digest,
    }
    if source.notes:
        facts["data"] = "; ".join(source.notes)
    print_facts(facts | ({"picture": str(out)} if out else {}))


def _print_holdings(clients: Sequence[str], counts: Sequence[Sequence[int]], labels: Sequence[str]) -> None:
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


def _known_methods() -> list[Entry]:
    from fedskew.methods import registry

    return [_method(name) for name in registry.known()]


def _method(name: str) -> Entry:
    from fedskew.methods import registry
    from fedskew.parts.stages import seen_singly
    from fedskew.report.cards import Entry

    found = registry.entry(name)
    aliases = [each for each in registry.known(aliases=True) if registry.entry(each).alias_of == name]
    method = found.build()
    return Entry(name, found.defaults, aliases, method.card, seen_singly(method))
