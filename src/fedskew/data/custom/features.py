"""Turn the cells of tables and texts into features or token ids; only training rows decide how."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedskew.core.errors import UserError
from fedskew.data.custom.rows import Rows
from fedskew.data.custom.table import TEXT
from fedskew.data.options import integer
from fedskew.data.preprocessing import columns, table, text
from fedskew.data.preprocessing.columns import Notation
from fedskew.data.preprocessing.encoder import Encoder, from_dict
from fedskew.data.preprocessing.table import TableEncoder
from fedskew.data.preprocessing.text import TextEncoder

#: features whose deviations differ by more than this train badly unless they are scaled
_UNEQUAL = 100


@dataclass(frozen=True)
class Wanted:
    """The options of tables and texts; `encoder` is one that several sites have agreed on, as JSON."""

    scale: bool = False
    notation: Notation = Notation()
    length: int = 0
    vocab: int = 20_000
    encoder: str = ""


@dataclass(frozen=True)
class Encoded:
    """Network inputs, what made them, and sentences about that."""

    x: Any
    encoder: Encoder | None = None
    notes: tuple[str, ...] = ()
    has_missing: bool = False


def encode(listed: Rows, train: np.ndarray, wanted: Wanted) -> Encoded:
    """Encode the samples; arrays stay as they are."""
    if not isinstance(listed.samples, dict):
        return Encoded(listed.samples)
    given = agreed(wanted.encoder)
    if given is not None and (wanted.scale or wanted.notation.categories):
        raise UserError(
            "the agreed encoder says what is scaled and what is a category. Leave scale and categories out."
        )
    if TEXT in listed.samples:
        return _encoded_text(listed.samples[TEXT], train, wanted, given)
    read = parse(given, listed.samples, wanted.notation, listed.name)
    encoder = given or table.fit(statistics(read, train), wanted.scale)
    has_missing = any(np.isnan(values).any() for values in read.values() if values.dtype == np.float64)
    return Encoded(apply(encoder, read), encoder, _notes(encoder, read, train), has_missing)


def parse(
    encoder: Encoder | None, cells: Mapping[str, Sequence[str]], notation: Notation, where: Callable[[int], str]
) -> dict[str, np.ndarray]:
    """Read the columns of a table: with an encoder, those that it uses, and its categories as such."""
    if not isinstance(encoder, TableEncoder):
        return columns.parse(cells, notation, where)
    check_columns(encoder, cells)
    used = {column.name: cells[column.name] for column in encoder.columns}
    return columns.parse(used, replace(notation, categories=_categories(encoder)), where)


def _categories(encoder: TableEncoder) -> tuple[str, ...]:
    return tuple(column.name for column in encoder.columns if column.categories)


def check_common(encoded: Encoded) -> None:
    """Refuse what a site of a federation would make of its data otherwise than the other sites."""
    encoder = encoded.encoder
    if isinstance(encoder, TextEncoder):
        raise UserError("these data are text, and sites have no common vocabulary. Give arrays of token ids instead.")
    if isinstance(encoder, TableEncoder) and (encoder.scale or _categories(encoder) or encoded.has_missing):
        raise UserError(
            "these data have categories or missing values, or are to be scaled, and all sites must do it alike. Agree "
            "on features first: fedskew data statistics, then fedskew data agree."
        )


def statistics(read: table.Table, train: np.ndarray) -> dict[str, table.ColumnStatistics]:
    """Return the statistics of the training rows."""
    return table.summarize({name: values[train] for name, values in read.items()})


def check_columns(encoder: Encoder, given: Iterable[str]) -> None:
    """Refuse data that lack a column of the training."""
    wanted = [TEXT] if isinstance(encoder, TextEncoder) else [column.name for column in encoder.columns]
    if missing := [name for name in wanted if name not in given]:
        raise UserError(f"the data have no column '{missing[0]}'; they have {', '.join(given)}. Add it.")


def apply(encoder: Encoder, read: Mapping[str, Any]) -> np.ndarray:
    """Encode columns, which must be those that the encoder was fitted on."""
    check_columns(encoder, read)
    if isinstance(encoder, TextEncoder):
        return encoder.encode([str(each) for each in read[TEXT]])
    for column in encoder.columns:
        values = np.asarray(read[column.name])
        if bool(column.categories) == (values.dtype == np.float64):
            there = f"words, such as '{values[0]:.40}'" if values.dtype != np.float64 else "numbers"
            kind = "words" if column.categories else "numbers"
            raise UserError(f"column '{column.name}' has {there}, and it had {kind} in training. Write {kind}.")
    return encoder.encode({name: np.asarray(values) for name, values in read.items()})


def _encoded_text(texts: Sequence[str], train: np.ndarray, wanted: Wanted, given: Encoder | None) -> Encoded:
    where = "your own text"
    most = integer(wanted.vocab, "vocab", where, least=text.FIRST + 1)
    length = integer(wanted.length, "length", where, least=0)
    trained = [each for each, chosen in zip(texts, train, strict=True) if chosen]
    encoder = given or text.fit(trained, most, length)
    return Encoded(apply(encoder, {TEXT: texts}), encoder)


def agreed(stored: str) -> Encoder | None:
    """Return the encoder in the option of that name; None if there is none."""
    if not stored:
        return None
    try:
        return from_dict(json.loads(stored))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"option encoder is '{stored:.40}', which is no encoder. Paste the line that 'fedskew data agree' prints."
        ) from None


def _notes(encoder: Encoder, read: table.Table, train: np.ndarray) -> tuple[str, ...]:
    if not isinstance(encoder, TableEncoder):
        return ()
    used, notes = [column.name for column in encoder.columns], []
    if unused := [name for name in read if name not in used]:
        notes.append(f"column '{unused[0]}' has no value in the training samples and is not used")
    numbers = [values for name, values in read.items() if name in used and values.dtype == np.float64]
    if any(np.isnan(values[train]).any() for values in numbers):
        notes.append("missing numbers are replaced by the mean of the training samples")
    spread = [column.std for column in encoder.columns if not column.categories]
    if not encoder.scale and spread and max(spread) > _UNEQUAL * min(spread):
        notes.append("features differ much in scale: --set data.options.scale=true probably trains better")
    return (*notes, *unknown_words(encoder, read))


def unknown_words(encoder: Encoder, read: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each category with words that the training rows did not have."""
    found = []
    for column in encoder.columns if isinstance(encoder, TableEncoder) else ():
        words = read[column.name]
        if column.categories and len(new := words[~np.isin(words, [*column.categories, ""])]):
            found.append(
                f"column '{column.name}': {len(new):,} of {len(words):,} cells have a word that is in no training row, "
                f"such as '{new[0]:.40}', and count as none of the known ones"
            )
    return tuple(found)
