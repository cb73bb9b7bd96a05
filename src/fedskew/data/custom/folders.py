"""List the samples in folders, tables and client folders, before anything large is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedskew.core.errors import UserError
from fedskew.data.custom import hugging_face, table
from fedskew.data.custom.arrays import ARRAYS, arrays
from fedskew.data.custom.rows import IMAGES, TEST, TRAIN, Rows, joined, with_splits

_CLIENT = "client-"
_HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")


def read(path: Path) -> Rows:
    """List the samples in a folder or a CSV file."""
    if path.is_dir():
        clients = sorted(each for each in path.iterdir() if each.is_dir() and each.name.startswith(_CLIENT))
        if clients:
            return _clients(path, clients)
        if any((path / name).exists() for name in _HUGGING_FACE):
            return hugging_face.from_disk(path)
        tables = sorted(filter(table.is_table, path.iterdir()))
        return _tables(path, tables) if tables else _image_folder(path)
    if table.is_table(path):
        return table.read(path)
    if not path.exists():
        raise UserError(f"data '{path}' does not exist. Check the path.")
    raise UserError(
        f"data '{path}' is no folder and no .csv, .tsv, .npz or .safetensors file. Name one of these; save a "
        "spreadsheet as CSV in UTF-8."
    )


def _tables(path: Path, tables: Sequence[Path]) -> Rows:
    """Read a folder of tables, each a site."""
    if folders := _visible(path):
        raise UserError(
            f"'{path}' holds '{tables[0].name}' and a folder '{folders[0].name}'. Name the table itself, or move it."
        )
    return _sited({each.stem: table.read(each) for each in tables})


def _image_folder(path: Path) -> Rows:
    if not (path / TRAIN).is_dir():
        return _class_folders(path)
    others = [each.name for each in _visible(path) if each.name not in (TRAIN, TEST, "__MACOSX")]
    if others and not (path / TEST).is_dir():
        raise UserError(
            f"'{path}' has a folder '{others[0]}' next to '{TRAIN}'. Rename it to '{TEST}', or move it away."
        )
    rows = {split: _class_folders(path / split) for split in (TRAIN, TEST) if (path / split).is_dir()}
    return joined(rows) if TEST not in rows else with_splits(rows)


def _visible(path: Path) -> list[Path]:
    """Return the folders inside a folder, without hidden ones."""
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def _class_folders(path: Path) -> Rows:
    folders = _visible(path)
    if not folders:
        raise UserError(f"'{path}' holds no folders. Put the images of each class into a folder of its own.")
    samples: list[Path] = []
    labels: list[str] = []
    for folder in folders:
        found = sorted(each for each in folder.iterdir() if each.suffix.lower() in IMAGES)
        for deeper in (e for inner in _visible(folder) for e in inner.rglob("*") if e.suffix.lower() in IMAGES):
            raise UserError(f"'{deeper}' is too deep. Move images of the class into '{folder}' itself.")
        if not found:
            raise UserError(f"class '{folder.name}' is empty. Add images to '{folder}', or remove it.")
        samples += found
        labels += [folder.name] * len(found)
    return Rows(samples, labels, [], [], [])


def _clients(path: Path, clients: Sequence[Path]) -> Rows:
    """Read client folders, each a site; test data is in a folder test, in each client folder, or drawn."""
    sited = _sited({each.name: _of_client(each) for each in clients})
    if not (path / TEST).is_dir():
        return sited
    if sited.splits:
        raise UserError(f"both '{path / TEST}' and the clients' own data say what is for testing. Remove one of them.")
    test = _of_client(path / TEST)
    return with_splits({TRAIN: sited, TEST: replace(test, sites=[TEST] * len(test.labels), splits=[])})


def _sited(rows: Mapping[str, Rows]) -> Rows:
    """Join the rows of sites by name."""
    for name, each in rows.items():
        if each.sites and set(each.sites) != {name}:
            other = next(site for site in each.sites if site != name)
            raise UserError(f"the table of site '{name}' has a column site with '{other}'. Remove the column.")
    return joined({name: replace(each, sites=[name] * len(each.labels)) for name, each in rows.items()})


def _of_client(path: Path) -> Rows:
    """Read an image folder, or the one CSV or array file in a folder."""
    tables = sorted(each for each in path.iterdir() if table.is_table(each) or each.suffix in ARRAYS)
    if len(tables) > 1:
        raise UserError(f"'{path}' holds {tables[0].name} and {tables[1].name}. Leave one file for each client.")
    if not tables:
        return _image_folder(path)
    return table.read(tables[0]) if table.is_table(tables[0]) else _client_arrays(tables[0])


def _client_arrays(path: Path) -> Rows:
    stored = arrays(path)
    if not {"x", "y"} <= stored.keys():
        raise UserError(f"'{path}' holds {', '.join(stored) or 'nothing'}. Name the arrays of a client x and y.")
    y = stored["y"][:, 0] if stored["y"].shape[1:] == (1,) else stored["y"]
    rows = len(stored["x"]) if stored["x"].ndim else 0
    if y.dtype.kind not in "iu" or y.shape != (rows,):
        raise UserError(f"'{path}' has other labels than integers, one for each of the {rows} rows of x. Correct y.")
    return Rows(stored["x"], [str(label) for label in y.tolist()], [], [], [])
