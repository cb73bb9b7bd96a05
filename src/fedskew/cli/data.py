"""Commands about data: what is known and here, fetching it, checking it, looking at it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import decoding, options
from fedskew.cli.failures import Interrupted
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.errors import UserError

if TYPE_CHECKING:
    from fedskew.data.catalogue import Source
    from fedskew.data.whereabouts import Found, Known

MANY_CLASSES, WIDEST_BAR, FEW_NAMES = 60, 30, 12
#: numbers so large that networks hardly learn from them as they are
FAR = 1000.0

_folder = click.option(
    "--data-dir", type=click.Path(path_type=Path), envvar="FEDSKEW_DATA", help="Folder of data; or set FEDSKEW_DATA."
)
_settings = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of its reader, e.g. verify=false."
)
_skip_bad = click.option("--skip-bad", is_flag=True, help="Leave out images that cannot be read, and count them.")


@click.group()
def data() -> None:
    """Data sets: list them, fetch them, check them, look at them."""


@data.command("list")
@_folder
@click.option("--verify", is_flag=True, help="Read what is here to see that it is whole, which takes a while.")
@options.as_json
def list_data(data_dir: Path | None, verify: bool, as_json: bool) -> None:
    """List the data sets: what they are, their licences, where they come from, what is here and what a download is."""
    from fedskew.data import whereabouts
    from fedskew.report.tables import size

    known = [_entry(each, data_dir, verify) for each in whereabouts.known()]
    if as_json:
        print_json(known)
        return
    here = {True: "yes", False: "no", None: "yours"}
    text = ("name", "what", "licence", "origin")
    cells = [
        [*(each[key] for key in text), here[each["here"]], size(each["size"]) if each["size"] else ""] for each in known
    ]
    print_table(["name", "what it is", "licence", "where it comes from", "here", "download"], cells, left=5, lines=True)
    for each in known:
        if verify and each["problem"] and each["damaged"]:
            echo(each["problem"])
    echo("'fedskew data get NAME' fetches what has a size, and says where to apply for the rest.")


def _entry(known: Known, folder: Path | None, verify: bool) -> dict[str, Any]:
    from fedskew.data import whereabouts

    problem = None if known.origin is None else whereabouts.absence(known.name, folder)
    damaged = False
    if verify and known.origin is not None and problem is None:
        try:
            _describe(whereabouts.Found(known.name, folder), {})
        except UserError as error:
            problem, damaged = str(error), True
    return {
        "name": known.name,
        "what": known.what,
        "licence": known.licence,
        "origin": known.comes_from,
        "size": known.origin.size if known.origin is not None and known.origin.size else None,
        "here": None if known.origin is None else problem is None,
        "problem": problem,
        "damaged": damaged,
    }


@data.command()
@click.argument("name")
@_folder
@click.option("--mirror", metavar="URL", help="Fetch from below this address instead, where the files lie by name.")
@click.option("--force", is_flag=True, help="Fetch it again and replace what is there.")
def get(name: str, data_dir: Path | None, mirror: str | None, force: bool) -> None:
    """Fetch a data set into the data folder. An interrupted download goes on when it is asked for again."""
    from fedskew.data import whereabouts

    if data_dir is None:
        raise UserError("there is no folder to put it in: say --data-dir FOLDER, or set FEDSKEW_DATA")
    for each in whereabouts.origin_of(name).parts or (name,):
        _get(each, data_dir, mirror, force)


def _get(name: str, folder: Path, mirror: str | None, force: bool) -> None:
    from fedskew.cli.transfers import Transfers
    from fedskew.data import download, whereabouts

    origin = whereabouts.origin_of(name)
    if not origin.missing(folder) and not (force and origin.files):
        echo(f"{name} is here already" + ("; --force fetches it again." if origin.files else "."))
        return
    if not origin.files:
        where = folder / origin.places[0]
        raise UserError(f"data set '{name}' is not for programs to fetch: {origin.ask}; it goes to '{where}'")
    try:
        with Transfers() as transfers:
            download.obtain(origin, folder, mirror=mirror, force=force, watch=transfers.watch)
    except KeyboardInterrupt:
        raise Interrupted("Interrupted. The same command goes on from here.") from None
    echo(f"{name} is in {folder / origin.places[0]}.")


@data.command()
@click.argument("what", metavar="PATH|NAME")
@_folder
@_settings
@_skip_bad
def check(what: str, data_dir: Path | None, settings: tuple[str, ...], skip_bad: bool) -> None:
    """Read data and say what it is, or what is wrong with it: a folder of known data sets, or your own data."""
    from fedskew.data import whereabouts

    found, chosen = whereabouts.find(what, data_dir), _reader_options(settings, skip_bad)
    if len(found) == 1:
        print_facts(_describe(found[0], chosen))
        return
    unusable = []
    for each in found:
        try:
            facts = _describe(each, chosen)
        except UserError as error:
            unusable.append(each.name)
            facts = {"data set": each.name, "problem": str(error)}
        print_facts(facts)
        echo()
    if unusable:
        raise UserError(
            f"{len(unusable)} of the {len(found)} data sets in '{what}' cannot be used: {', '.join(unusable)}"
        )


@data.command()
@click.argument("what", metavar="PATH|NAME")
@_folder
@_settings
@_skip_bad
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Draw samples of each class: .png, .svg or .pdf.")
@options.as_json
def show(
    what: str, data_dir: Path | None, settings: tuple[str, ...], skip_bad: bool, out: Path | None, as_json: bool
) -> None:
    """Show the classes of a data set and how many samples they have, and a sheet of samples as a picture."""
    from fedskew.data import whereabouts

    found = whereabouts.find(what, data_dir)
    if len(found) > 1:
        raise UserError(f"'{what}' holds {', '.join(each.name for each in found)}: name one, with --data-dir {what}")
    chosen = _reader_options(settings, skip_bad)
    with decoding.shown():
        source = whereabouts.read(found[0], chosen)
    counts = [part.y.bincount(minlength=source.classes).tolist() for part in (source.train, source.test)]
    if out is not None:
        _draw(source, counts[0], whereabouts.texts(found[0], chosen), out)
    if as_json:
        print_json({"data set": source.name, "labels": source.labels, "train": counts[0], "test": counts[1]})
        return
    _print_counts(source.labels, *counts)
    print_facts(_facts(source) | ({"picture": str(out)} if out else {}))


def _reader_options(settings: Sequence[str], skip_bad: bool) -> dict[str, Any]:
    from fedskew import config

    values: dict[str, Any] = {"skip_bad": True} if skip_bad else {}
    config.assign(values, settings)
    return values


def _describe(found: Found, options: Mapping[str, Any]) -> dict[str, str]:
    """What there is to say of a data set once it is read."""
    from fedskew.data import whereabouts
    from fedskew.data.addresses import ORIGINS

    if (origin := ORIGINS.get(found.name)) is not None and origin.what and not origin.reader:
        paths = whereabouts.check_files(found)
        return {"data set": f"{found.name}: {origin.what}", "files": ", ".join(map(str, paths))}
    with decoding.shown():
        source = whereabouts.read(found, options)
    facts = _facts(source)
    if doubts := _doubts(source):
        facts["beware"] = "; ".join(doubts)
    return facts | {"use it": _command(found, options)}


def _command(found: Found, options: Mapping[str, Any]) -> str:
    """What a shell takes to train on data that was read with these options."""
    from fedskew.data import whereabouts

    reader, fixed = whereabouts.reader_of(found)
    words = ["fedskew", "run"] if reader == "own" else ["fedskew", "run", "--dataset", reader]
    if found.place is not None:
        words += ["--data" if reader == "own" else "--data-dir", str(found.place)]
    for key, value in {**fixed, **options}.items():
        if key == "skip_bad" and value:
            words.append("--skip-bad")
        else:
            words += ["--set", f"data.options.{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def _doubts(source: Source) -> list[str]:
    """What can be trained on, but hardly is what was meant."""
    from fedskew.data import whereabouts

    found = []
    if source.classes == 1:
        found.append(f"there is one class only, '{source.labels[0]}', so there is nothing to learn")
    counts = source.train.y.bincount(minlength=source.classes).tolist()
    if single := [name for name, count in zip(source.labels, counts, strict=True) if count == 1]:
        have = "classes have" if len(single) > 1 else "class has"
        found.append(f"{len(single):,} {have} a single training sample: {_few(single)}")
    if source.train.x.ndim == 2 and source.train.x.is_floating_point():
        largest = source.train.x.abs().amax(0)
        if largest[far := int(largest.argmax())] > FAR:
            found.append(
                f"number {far + 1} of a sample is up to {largest[far]:g}; numbers are trained on as they are, so bring "
                "all of them to a size of about 1 first"
            )
    if again := whereabouts.repeated(source):
        found.append(f"{again:,} of {len(source.test):,} test samples are training samples, too")
    return found


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW_NAMES]) + (", ..." if len(names) > FEW_NAMES else "")


def _facts(source: Source) -> dict[str, str]:
    counts = source.train.y.bincount(minlength=source.classes).tolist()
    fewest, most = min(counts), max(counts)
    facts = {
        "data set": source.name,
        "samples": f"{len(source.train):,} for training, {len(source.test):,} for testing",
        "each": _kind(source),
        "classes": f"{source.classes}: {_few(source.labels)}",
        "balance": f"{fewest:,} training samples in each class"
        if fewest == most
        else f"{fewest:,} training samples in '{source.labels[counts.index(fewest)]}' to {most:,} in "
        f"'{source.labels[counts.index(most)]}'",
    }
    if source.sites is not None:
        sizes = source.sites.bincount(minlength=len(source.site_names)).tolist()
        each = f"{min(sizes):,} to {max(sizes):,} samples each"
        facts["sites"] = f"{len(sizes)}, with {each}: {_few(source.site_names)}"
    if source.groups is not None:
        facts["patients"] = f"{len(source.groups.unique()):,} in the training part"
    return facts | ({"notes": "; ".join(source.notes)} if source.notes else {})


def _kind(source: Source) -> str:
    shape = "x".join(map(str, source.train.x.shape[1:]))
    if source.vocab:
        return f"a text of up to {shape} tokens, out of {source.vocab:,}"
    return f"an image, {shape}" if source.mean else f"{shape} numbers"


def _print_counts(labels: Sequence[str], train: Sequence[int], test: Sequence[int]) -> None:
    most, shown = max(train), min(len(labels), MANY_CLASSES)
    cells = [
        [labels[k], "█" * max(bool(train[k]), round(WIDEST_BAR * train[k] / most)), f"{train[k]:,}", f"{test[k]:,}"]
        for k in range(shown)
    ]
    print_table(["class", "", "training", "test"], cells, left=2)
    if shown < len(labels):
        echo(f"... and {len(labels) - shown} more classes; --json or -o picture.png shows them all.\n", lines=True)


def _draw(source: Source, counts: Sequence[int], texts: Sequence[str] | None, out: Path) -> None:
    from fedskew.data import glance
    from fedskew.report import contact, pictures

    chosen = glance.samples(source, contact.samples_per_class(source.classes), texts)
    rows = [contact.Row(*row) for row in zip(source.labels, counts, chosen, strict=True)]
    title = f"{source.name}: {len(source.train):,} training samples, {source.classes} classes"
    pictures.save(contact.sheet(title, rows), out)
