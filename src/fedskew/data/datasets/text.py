"""Text as token numbers: a tokenizer, a vocabulary of the training part, and the data sets read with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from fedskew.data import cache, files
from fedskew.data.catalogue import Source, reader
from fedskew.data.options import whole
from fedskew.errors import UserError
from fedskew.types import Arrays

#: Token numbers with a meaning of their own; words follow.
PADDING, UNKNOWN, FIRST = 0, 1, 2

_AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")
_AG_NEWS_FILES = {
    "train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
    "test.csv": "d52ea96a97a2d943681189a97654912d",
}
_APART = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | {";": " ", ":": " "})


def tokens(text: str) -> list[str]:
    """Lower case, marks apart from words, quotation marks, line breaks, ; and : gone (torchtext's basic English)."""
    return text.lower().replace('"', "").replace("<br />", " ").translate(_APART).split()


def vocabulary(texts: Iterable[str], most: int) -> dict[str, int]:
    """Numbers of the words of `texts`, the most frequent first, so that all numbers are below `most`."""
    counts = Counter(token for text in texts for token in tokens(text))
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return {token: number for number, token in enumerate(ranked[: most - FIRST], FIRST)}


def number(texts: Sequence[str], words: Mapping[str, int], out: np.ndarray) -> None:
    """Write the tokens of each text into its row, which is long enough for some of them and padded for others."""
    for row, text in zip(out, texts, strict=True):
        found = [words.get(token, UNKNOWN) for token in tokens(text)[: len(row)]]
        row[: len(found)] = found


@reader(
    "ag-news",
    what="127,600 news items, 4 classes, as token numbers",
    licence="none stated; for research, cite Zhang et al. 2015 and the AG corpus",
    origin="ag_news_csv of Zhang, Zhao and LeCun: train.csv and test.csv, rows of class, title, description",
)
def ag_news(
    folder: Path | None, *, train: str = "train.csv", length: int = 200, vocab: int = 98_635, verify: bool = True
) -> Source:
    """``train.csv`` and ``test.csv`` without a heading, rows of class,title,description or class,text, classes from 1.

    `train` names another training file; texts are cut or padded (with token 0) to `length` tokens; token 1 is any word
    that is not among the `vocab` - 2 most frequent of the training part. The network fasttext learns the size of the
    vocabulary from the data. Other files than the official ones are refused unless `verify` is false.
    """
    where = "data set 'ag-news'"
    length, most = whole(length, "length", where), whole(vocab, "vocab", where, least=FIRST + 1)
    paths = {part: _path(folder, name) for part, name in (("train", train), ("test", "test.csv"))}
    checksums, texts, y = {}, {}, {}
    for part, path in paths.items():
        official = _AG_NEWS_FILES.get(path.name) if verify else None
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
    """The training samples of ag-news in words, in their order."""
    return _rows(_path(folder, train))[0]


def _path(folder: Path | None, name: str) -> Path:
    places = files.folders("ag-news", folder, ("ag_news", "ag_news_csv", "AG_NEWS"))
    return files.find("ag-news", places, name, own=name not in _AG_NEWS_FILES)


def _rows(path: Path) -> tuple[list[str], list[int]]:
    """Texts, of one column or of two, and classes, which count from 1."""
    texts, y = [], []
    for place, row in enumerate(files.table(path), 1):
        if len(row) not in (2, 3) or row[0] not in ("1", "2", "3", "4"):
            told = f"'{path}', row {place} has {len(row)} columns and begins with '{row[0][:20]}'"
            raise UserError(f"{told}; rows should be class,title,description or class,text, with a class in 1..4")
        texts.append(" ".join(row[1:]))
        y.append(int(row[0]) - 1)
    return texts, y
