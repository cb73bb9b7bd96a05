"""The command cite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from fedskew.cli.screen import echo
from fedskew.core.errors import UserError, did_you_mean, similar

#: a method or a data set: its name, the keys of its papers, and what to say if it has none
Cited = tuple[str, tuple[str, ...], str]
_LISTS = ". 'fedskew methods' and 'fedskew data list' show all names."


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def cite(names: tuple[str, ...]) -> None:
    """Print BibTeX of fedskew, and of the methods and data sets used.

    NAME is a method, a data set, a run folder, a record file, or a folder of runs.
    """
    from fedskew.report.publishing import references

    cited = [each for name in names for each in _cited(name)]
    echo(references.bibliography(cited).removesuffix("\n"), lines=True)


def of_run(path: Path) -> str:
    """Return BibTeX of fedskew, and of all that the runs at a path used."""
    from fedskew.report.publishing import references

    return references.bibliography(_run(path))


def _cited(name: str) -> Iterator[Cited]:
    from fedskew.data import registry

    if name in registry.datasets():
        yield _data(name)
    elif Path(name).exists() and name not in _methods():
        yield from _run(Path(name))
    else:
        for method in _names(name):
            if method not in _methods():
                known = [*_methods(), *registry.datasets()]
                hint = did_you_mean(method, known) if similar(method, known) else _LISTS
                raise UserError(f"'{method}' is no method, data set or run{hint}")
            yield _methods()[method]


def _run(path: Path) -> Iterator[Cited]:
    """Yield what the runs at a path used: methods, data set, and the labels that people gave."""
    from fedskew.data import registry
    from fedskew.record import reader
    from fedskew.report import load

    for folder in load.folders([path]):
        header = reader.read(folder).header
        config = header.config
        if not config:
            raise UserError(f"'{folder}' does not say what was run. Name another run.")
        for method in _names(config["method"]):
            yield _methods().get(method, (method, (), "a method of your own; fedskew knows no paper of it"))
        labels = Path((config.get("noise") or {}).get("labels") or "").name
        given = [info.name for info in registry.known() if not info.readable and labels in info.markers]
        data = config["data"]["name"]
        read = data if data in registry.datasets() or header.data is None else header.data.name
        for name in (read, *given):
            yield _data(name) if name in registry.datasets() else (name, (), "data of your own")


def _data(name: str) -> Cited:
    from fedskew.data import registry

    info = registry.info(name)
    return name, tuple(info.works), f"fedskew knows no paper of it; {info.origin}"


def _methods() -> dict[str, Cited]:
    from fedskew.methods import index

    return {
        name: (entry.id, tuple(entry.card.cite), f"{entry.card.paper} (no BibTeX is known)")
        for entry in index.known()
        for name in (entry.id, *entry.aliases)
    }


def _names(expression: str) -> list[str]:
    """Return the methods' names in an expression: without parameters, which may contain brackets and plus signs."""
    while (bare := re.sub(r"\([^()]*\)", "", expression)) != expression:
        expression = bare
    return [name.strip().lower() for name in expression.split("+")]
