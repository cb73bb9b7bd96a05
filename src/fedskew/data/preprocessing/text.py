"""Turn text into token ids: a tokenizer, and a vocabulary of the training texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

#: token ids with a meaning of their own; words follow
PADDING, UNKNOWN, FIRST = 0, 1, 2

#: most tokens of a text that are read, unless a length is set
LONGEST = 200

_APART = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | {";": " ", ":": " "})


def tokens(text: str) -> list[str]:
    """Split text as torchtext's basic English does: lower case, punctuation apart, without quotes, ; and :."""
    return text.lower().replace('"', "").replace("<br />", " ").translate(_APART).split()


def vocabulary(texts: Iterable[str], most: int) -> dict[str, int]:
    """Number the words of `texts`, the most frequent first; all ids are below `most`."""
    counts = Counter(token for text in texts for token in tokens(text))
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return {token: number for number, token in enumerate(ranked[: most - FIRST], FIRST)}


def number(texts: Sequence[str], words: Mapping[str, int], out: np.ndarray) -> None:
    """Write the tokens of each text into its row, cut or padded to the row's length."""
    for row, text in zip(out, texts, strict=True):
        found = [words.get(token, UNKNOWN) for token in tokens(text)[: len(row)]]
        row[: len(found)] = found


@dataclass(frozen=True)
class TextEncoder:
    """Token ids out of text: `words` are those of the training texts, `length` is how many tokens of a text count.

    Token 0 is padding, token 1 any other word.
    """

    words: tuple[str, ...]
    length: int

    @property
    def vocab(self) -> int:
        """The number of token ids."""
        return FIRST + len(self.words)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words, FIRST)}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the token ids of each text, int64 [texts, length]."""
        found = np.full((len(texts), self.length), PADDING, np.int64)
        number(texts, self._numbers, found)
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"words": list(self.words), "length": self.length}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TextEncoder:
        """Return the encoder that `as_dict` described."""
        return cls(tuple(values["words"]), values["length"])


def fit(texts: Sequence[str], most: int, length: int = 0) -> TextEncoder:
    """Return the encoder of the training texts: at most `most` token ids; length 0 is that of the longest text."""
    longest = max(len(tokens(text)) for text in texts)
    return TextEncoder(tuple(vocabulary(texts, most)), length or min(max(longest, 1), LONGEST))
