"""Read AG News as token ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedskew.core.errors import UserError
from fedskew.core.types import Arrays
from fedskew.data import cache, files, registry
from fedskew.data.options import integer
from fedskew.data.preprocessing.text import FIRST, number, vocabulary
from fedskew.data.sources import Source

_AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")


def ag_news(
    folder: Path | None, *, train: str = "train.csv", length: int = 200, vocab: int = 98_635, verify: bool = True
) -> Source:
    """Read ``train.csv`` and ``test.csv``: no heading, rows of class,title,description or class,text, classes from 1.

    `train` names another training file. Texts are cut or padded (with token 0) to `length` tokens; token 1 is any word
    that is not among the `vocab` - 2 most frequent of the training part. The network fasttext takes the size of the
    vocabulary from the data.

    Files that differ from the official ones are refused; set `verify` to false to read them as they are.
    """
    where = "data set 'ag-news'"
    length, most = integer(length, "length", where), integer(vocab, "vocab", where, least=FIRST + 1)
    paths = {part: _path(folder, name) for part, name in (("train", train), ("test", "test.csv"))}
    checksums, texts, y = {}, {}, {}
    for part, path in paths.items():
        official = registry.info("ag-news").contents.get(path.name) if verify else None
        checksums[path.name] = files.check_md5(path, files.read(path), official)
        texts[part], y[part] = _rows(path)

    def fill(flat: np.ndarray) -> None:
        words = vocabulary(texts["train"], most)
        flat[0] = FIRST + len(words)
        number([*texts["train"], *texts["test"]], words, flat[1:].reshape(-1, length))

    key = f"ag-news|{checksums}|{length}|{most}"
    stored = cache.mapped(key, (1 + (len(y["train"]) + len(y["test"])) * length,), np.int64, fill)
    x = stored[1:].view(-1, length)
    cut = len(y["train"])
    return Source(
        name="ag-news",
        train=Arrays(x[:cut], torch.tensor(y["train"])),
        test=Arrays(x[cut:], torch.tensor(y["test"])),
        classes=len(_AG_NEWS),
        labels=_AG_NEWS,
        mean=(),
        std=(),
        checksums=checksums,
        vocab=int(stored[0]),
    )


def training_texts(folder: Path | None, train: str = "train.csv") -> list[str]:
    """Return the training samples of ag-news as text."""
    return _rows(_path(folder, train))[0]


def _path(folder: Path | None, name: str) -> Path:
    return files.find_file("ag-news", folder, name, yours=name not in registry.info("ag-news").contents)


def _rows(path: Path) -> tuple[list[str], list[int]]:
    """Read texts, from one column or two, and classes, which count from 1."""
    texts, y = [], []
    for place, row in enumerate(files.table(path), 1):
        if len(row) not in (2, 3) or row[0] not in ("1", "2", "3", "4"):
            found = f"'{path}', row {place} has {len(row)} columns and begins with '{row[0][:20]}'"
            raise UserError(f"{found}. Write class,title,description or class,text, with a class in 1..4.")
        texts.append(" ".join(row[1:]))
        y.append(int(row[0]) - 1)
    return texts, y
