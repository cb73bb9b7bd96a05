"""The commands about methods: methods, card."""

from __future__ import annotations

from pathlib import Path

import click

from fedskew.cli import options
from fedskew.cli.screen import console, echo, print_json, print_table


@click.command()
@options.as_json
@click.option("--long", "long", is_flag=True, help="Show the full references, what travels, and the whole cost.")
@click.option("--pages", type=click.Path(path_type=Path), help="Write a page for each method to this folder.")
def methods(as_json: bool, long: bool, pages: Path | None) -> None:
    """List the methods. Say when to use each, and what it costs beyond FedAvg."""
    from fedskew.methods import index, standings
    from fedskew.report import cards

    known, places = index.known(), standings.places()
    if pages is not None:
        written = cards.write(pages, known)
        echo(f"Written to {pages}: {len(written)} pages.")
    elif as_json:
        print_json([entry.as_dict() for entry in known])
    elif long:
        rows = [[e.id, e.card.paper, e.card.use_when, e.card.travels, e.card.cost] for e in known]
        print_table(["id", "paper", "use when", "what travels", "extra cost"], rows, left=5, lines=True)
    else:
        rows = [
            [
                e.id,
                cards.reference(e.card),
                e.card.use_when,
                ", ".join(places.get(e.id, ())),
                e.card.cost.partition(";")[0],
            ]
            for e in known
        ]
        print_table(["id", "paper", "use when", "place", "extra cost"], rows, left=5)
        echo(
            "'text 1/9': first of 9 methods in our records on texts (docs/how-to/choose-a-method.md). "
            "'fedskew card ID' says everything about one method; 'fedskew methods --long' shows more columns."
        )


@click.command()
@click.argument("name")
def card(name: str) -> None:
    """Show the card of a method. For a sum such as fedprox+avgm, show the card of each."""
    from fedskew.methods import index
    from fedskew.report import cards

    names = [name]
    if not name.replace("-", "").replace("_", "").isalnum():  # an expression, which only the code can check
        from fedskew.methods import registry

        registry.build(name)
        names = [found.name for found, _ in registry.parse(name)]
    text = "\n".join(cards.page(index.find(each)) for each in names)
    screen = console()
    if screen.is_terminal:
        from rich.markdown import Markdown

        screen.print(Markdown(text))
    else:
        echo(text.removesuffix("\n"), lines=True)
