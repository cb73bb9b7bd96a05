"""The commands about data sets: list, get, check, show."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedskew.cli import options
from fedskew.cli.failures import Group, Interrupted
from fedskew.cli.progress import showing
from fedskew.cli.screen import echo, print_facts, print_json, print_table
from fedskew.core.errors import UserError

if TYPE_CHECKING:
    from fedskew.data.lookup import DatasetLocation
    from fedskew.data.preprocessing.table import ColumnStatistics
    from fedskew.data.registry import DatasetInfo
    from fedskew.data.sources import Source

MANY_CLASSES, WIDEST_BAR, FEW_NAMES, FEW_ROWS = 60, 30, 12, 20
#: known cells of a column below which its sums say much about single samples
FEW_CELLS = 5
#: features above it should be scaled before training
LARGE_FEATURE = 1000.0

_folder = click.option(
    "--data-dir", type=click.Path(path_type=Path), envvar="FEDSKEW_DATA", help="The data folder; or set FEDSKEW_DATA."
)
_settings = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the data set, such as verify=false."
)
_skip_bad = click.option("--skip-bad", is_flag=True, help="Leave out unreadable images, and count them.")


@click.group(cls=Group)
def data() -> None:
    """List, fetch, check and show data sets."""


@data.command("list")
@_folder
@click.option("--verify", is_flag=True, help="Read what is here and check it, which takes a while.")
@options.as_json
def list_data(data_dir: Path | None, verify: bool, as_json: bool) -> None:
    """List the data sets and their licenses. Show which of them are here."""
    from fedskew.data import registry
    from fedskew.report.tables import size

    known = [_entry(info, data_dir, verify) for info in registry.known()]
    if as_json:
        print_json(known)
        return
    here = {True: "yes", False: "no", None: "yours"}
    text = ("name", "what", "license", "origin")
    cells = [
        [*(each[key] for key in text), here[each["here"]], size(each["size"]) if each["size"] else ""] for each in known
    ]
    print_table(["name", "what it is", "license", "where it comes from", "here", "download"], cells, left=5, lines=True)
    for each in known:
        if each["damaged"]:
            echo(each["problem"])
    echo("'fedskew data get NAME' fetches a data set, or says how to apply for it.")


def _entry(info: DatasetInfo, folder: Path | None, verify: bool) -> dict[str, Any]:
    problem, damaged = info.problem(folder), False
    if verify and not info.yours and problem is None:
        from fedskew.data import lookup

        try:
            _describe(lookup.DatasetLocation(info.name, folder), {})
        except UserError as error:
            problem, damaged = str(error), True
    return {
        "name": info.name,
        "what": info.what,
        "license": info.license,
        "origin": info.origin,
        "size": info.size or None,
        "here": None if info.yours else problem is None,
        "problem": problem,
        "damaged": damaged,
    }


@data.command()
@click.argument("name")
@_folder
@click.option("--mirror", metavar="URL", help="Fetch the files from below this address instead.")
@click.option("--force", is_flag=True, help="Fetch it again and replace what is there.")
def get(name: str, data_dir: Path | None, mirror: str | None, force: bool) -> None:
    """Fetch a data set into the data folder. Run it again to resume an interrupted download."""
    from fedskew.data import registry

    if data_dir is None:
        raise UserError("no data folder is named. Add --data-dir FOLDER, or set FEDSKEW_DATA.")
    for each in registry.info(name).parts or (name,):
        _get(registry.info(each), data_dir, mirror, force)


def _get(info: DatasetInfo, folder: Path, mirror: str | None, force: bool) -> None:
    if info.yours:
        raise UserError(f"data set '{info.name}' cannot be fetched: it is {info.what}. See 'fedskew data list'.")
    if not info.missing(folder) and not (force and info.files):
        echo(f"{info.name} is here already" + ("; --force fetches it again." if info.files else "."))
        return
    target = folder / info.folders[0]
    if not info.files:
        raise UserError(f"data set '{info.name}' is not open to programs. Get '{target}': {info.how_to_get}.")
    from fedskew.data.datasets import download

    try:
        with showing():
            download.download(info, folder, mirror=mirror, force=force)
    except KeyboardInterrupt:
        raise Interrupted("Interrupted. Run the same command to resume.") from None
    echo(f"{info.name} is in {target}.")


@data.command()
@click.argument("what", metavar="PATH|NAME")
@_folder
@_settings
@_skip_bad
def check(what: str, data_dir: Path | None, settings: tuple[str, ...], skip_bad: bool) -> None:
    """Read data and say what it is, or what is wrong with it.

    PATH is a folder of known data sets, or your own data; NAME is a known data set.
    """
    from fedskew.data import lookup

    found, chosen = lookup.find(what, data_dir), _reader_options(settings, skip_bad)
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
            f"{len(unusable)} of the {len(found)} data sets in '{what}' cannot be used: {', '.join(unusable)}. "
            "Fetch each again with 'fedskew data get NAME --force'."
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
    """Show how many samples each class has. Draw some of them with --out."""
    from fedskew.data import lookup

    found = lookup.find(what, data_dir)
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise UserError(f"'{what}' holds {names}. Name one of them and add --data-dir {what}.")
    chosen = _reader_options(settings, skip_bad)
    with showing():
        source = lookup.read(found[0], chosen)
    counts = [part.y.bincount(minlength=source.classes).tolist() for part in (source.train, source.test)]
    if out is not None:
        _draw(source, counts[0], lookup.training_texts(found[0], chosen), out)
    if as_json:
        print_json({"data set": source.name, "labels": source.labels, "train": counts[0], "test": counts[1]})
        return
    _print_counts(source.labels, *counts)
    print_facts(_facts(source) | ({"picture": str(out)} if out else {}))


def _reader_options(settings: Sequence[str], skip_bad: bool) -> dict[str, Any]:
    from fedskew import config as configuration

    values: dict[str, Any] = {"skip_bad": True} if skip_bad else {}
    configuration.assign(values, settings)
    return values


def _describe(found: DatasetLocation, options: Mapping[str, Any]) -> dict[str, str]:
    """Read a data set and describe it."""
    from fedskew.data import lookup, registry

    if not (info := registry.info(found.name)).readable:
        paths = lookup.verify_files(found)
        return {"data set": f"{found.name}: {info.what}", "files": ", ".join(map(str, paths))}
    with showing():
        source = lookup.read(found, options)
    facts = _facts(source)
    if warnings := _warnings(source):
        facts["beware"] = "; ".join(warnings)
    return facts | {"use it": _command(found, options)}


def _command(found: DatasetLocation, options: Mapping[str, Any]) -> str:
    """Return the command that trains on data that was read with these options."""
    own = found.name == "own"
    words = ["fedskew", "run"] if own else ["fedskew", "run", "--dataset", found.name]
    if found.path is not None:
        words += ["--data" if own else "--data-dir", str(found.path)]
    for key, value in options.items():
        if key == "skip_bad" and value:
            words.append("--skip-bad")
        else:
            words += ["--set", f"data.options.{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def _warnings(source: Source) -> list[str]:
    """Name what can be trained on, but is probably a mistake."""
    from fedskew.data import lookup

    found = []
    if source.classes == 1:
        found.append(f"there is only one class, '{source.labels[0]}', so there is nothing to learn")
    counts = source.train.y.bincount(minlength=source.classes).tolist()
    if single := [name for name, count in zip(source.labels, counts, strict=True) if count == 1]:
        have = "classes have" if len(single) > 1 else "class has"
        found.append(f"{len(single):,} {have} a single training sample: {_few(single)}")
    if source.train.x.ndim == 2 and source.train.x.is_floating_point():
        largest = source.train.x.abs().amax(0)
        if largest[feature := int(largest.argmax())] > LARGE_FEATURE:
            how = "scale all of them to about 1 first" if source.encoder is None else "set the option scale to true"
            found.append(
                f"feature {feature + 1} is as large as {largest[feature]:g}; features are used as they are, so {how}"
            )
    found += _alike("classes", source.labels) + _alike("sites", source.site_names)
    found += [
        f"column '{name}' grows from row to row; remove it if it only numbers the rows" for name in _row_numbers(source)
    ]
    if leaked := lookup.count_leaked(source):
        found.append(f"{leaked:,} of {len(source.test):,} test samples are training samples, too")
    return found


def _alike(what: str, names: Sequence[str]) -> list[str]:
    """Say which names differ in capital letters only."""
    seen: dict[str, str] = {}
    pairs = [(seen.setdefault(name.casefold(), name), name) for name in names]
    return [f"{what} '{one}' and '{other}' differ in capital letters only" for one, other in pairs if one != other]


def _row_numbers(source: Source) -> list[str]:
    """Return the columns of numbers that grow from each training row to the next."""
    from fedskew.data.preprocessing.table import TableEncoder

    x = source.train.x
    if not isinstance(source.encoder, TableEncoder) or len(x) < FEW_ROWS:
        return []
    grow = (x[1:] > x[:-1]).all(0).tolist()
    return [name for name, grows in zip(source.encoder.features, grow, strict=True) if grows]


def _columns(source: Source) -> dict[str, str]:
    """Say what became of each column of a table."""
    from fedskew.data.preprocessing.table import TableEncoder

    if not isinstance(source.encoder, TableEncoder):
        return {}
    numbers = [each.name for each in source.encoder.columns if not each.categories]
    words = [f"{each.name} ({_few(each.categories)})" for each in source.encoder.columns if each.categories]
    shown = {"numbers": _few(numbers), "categories": "; ".join(words)}
    return {what: text for what, text in shown.items() if text}


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
    facts |= _columns(source)
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
        return f"a text of up to {shape} tokens from a vocabulary of {source.vocab:,}"
    return f"an image, {shape}" if source.mean else f"{shape} features"


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
    from fedskew.data import preview
    from fedskew.report.plots import sample_grid, style

    chosen = preview.samples(source, sample_grid.samples_per_class(source.classes), texts)
    rows = [sample_grid.GridRow(*row) for row in zip(source.labels, counts, chosen, strict=True)]
    title = f"{source.name}: {len(source.train):,} training samples, {source.classes} classes"
    style.save(sample_grid.sheet(title, rows), out)


@data.command()
@click.argument("what", metavar="PATH", type=click.Path(path_type=Path))
@_settings
@click.option("--classes", required=True, metavar="X,Y,...", help="Names of all classes, as the coordinator has them.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="JSON file to write.")
def statistics(what: Path, settings: tuple[str, ...], classes: str, out: Path) -> None:
    """Site: write what this site shares of its table, so that all sites make the same features.

    The file has, for each column of the training rows, the number of cells and of missing ones, and the mean and the
    squared deviations of numbers, or the different words. It has no rows. Read it before you send it.
    """
    from fedskew.data.custom import agreement, own
    from fedskew.data.options import check_names

    chosen = _reader_options(settings, False) | {"classes": classes}
    check_names(own.column_statistics, chosen, "a table")
    found = own.column_statistics(what, **chosen)
    agreement.write(out, found)
    rows = [[name, str(each.cells), str(each.missing), _summary(each)] for name, each in found.items()]
    print_table(["column", "cells", "missing", "what leaves"], rows)
    few = [name for name, each in found.items() if 0 < each.present < FEW_CELLS]
    if few:
        echo(
            f"Note: fewer than {FEW_CELLS} cells of {', '.join(few)} are known here, and sums of so few say much about "
            "each of them. Remove the column at all sites, if that matters."
        )
    print_facts({"statistics": f"{out}: for the coordinator, who joins those of all sites with 'fedskew data agree'"})


def _summary(column: ColumnStatistics) -> str:
    if column.categories:
        return ", ".join(column.categories)
    return f"mean {column.mean:.6g}, squared deviations {column.squares:.6g}"


@data.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILES...")
@click.option("--scale", is_flag=True, help="Scale numbers with the mean and deviation over all sites.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="File to write.  [standard output]")
def agree(files: tuple[Path, ...], scale: bool, out: Path | None) -> None:
    """Coordinator: join the statistics of all sites to one encoder, for 'federation init --encoder'."""
    from fedskew.core import atomic_io
    from fedskew.data.custom import agreement

    encoder = agreement.agree(files, scale)
    if out is None:
        echo(encoder)
        return
    atomic_io.save(out, encoder + "\n")
    echo(f"Written to {out}.")
