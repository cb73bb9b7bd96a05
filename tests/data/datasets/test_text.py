from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.data.preprocessing.text import FIRST, PADDING, UNKNOWN, tokens, vocabulary
from fedskew.data.sources import load


def write(path: Path, rows: list[tuple[str, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


class TestTokens:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            # What the documentation of torchtext's basic English promises, mark by mark.
            ("Hello, World!", "hello , world !"),
            ("It's over.Done", "it ' s over . done"),
            ('He said: "no"; then left?', "he said no then left ?"),
            ("one<br />two (three)", "one two ( three )"),
            ("  many \t blanks\n", "many blanks"),
            ("U.S. #39;s", "u . s . #39 s"),
            ("", ""),
        ],
    )
    def test_basic_english(self, text: str, wanted: str) -> None:
        assert tokens(text) == wanted.split()

    @given(st.text())
    def test_any_text(self, text: str) -> None:
        found = tokens(text)
        assert all(found) and not any(mark in token for token in found for mark in '";: ')
        assert tokens(" ".join(found)) == found


def test_words_by_frequency_then_alphabet() -> None:
    words = vocabulary(["b a c", "a c", "a d"], most=5)
    # a comes three times, c twice; of b and d, once each, b is first; two of five numbers are taken already
    assert words == {"a": FIRST, "c": FIRST + 1, "b": FIRST + 2}


class TestAgNews:
    def rows(self, folder: Path) -> None:
        write(
            folder / "train.csv", [("3", "Oil up", "Oil rises."), ("4", "Chips", "New chip"), ("1", "War", "end of it")]
        )
        write(folder / "test.csv", [("2", "Oil team wins"), ("3", "Oil up")])

    def test_columns_classes_and_numbers(self, tmp_path: Path) -> None:
        self.rows(tmp_path)
        news = load("ag-news", tmp_path, length=6, verify=False)
        assert (news.train.y.tolist(), news.test.y.tolist()) == ([2, 3, 0], [1, 2])
        assert news.labels == ("World", "Sports", "Business", "Sci/Tech")
        # oil twice; then . chip chips end it new of rises up war by alphabet: 11 words and two numbers of no word
        assert news.vocab == 13
        assert news.train.x.tolist() == [[2, 11, 2, 10, 3, 0], [5, 8, 4, 0, 0, 0], [12, 6, 9, 7, 0, 0]]
        assert news.test.x.tolist() == [[2, UNKNOWN, UNKNOWN, *[PADDING] * 3], [2, 11, 0, 0, 0, 0]]
        assert news.train.x.dtype == torch.int64
        assert news.mean == ()

    def test_long_texts_are_cut_and_rare_words_unknown(self, tmp_path: Path) -> None:
        self.rows(tmp_path)
        news = load("ag-news", tmp_path, length=2, vocab=4, verify=False)
        assert news.vocab == 4
        assert news.train.x.tolist() == [[2, 1], [1, 1], [1, 1]]

    def test_a_file_of_one_s_own_cannot_be_fetched(self, tmp_path: Path) -> None:
        self.rows(tmp_path)
        with pytest.raises(UserError, match=r"'mine\.csv'.*\. Make it, or name another\.$"):
            load("ag-news", tmp_path, train="mine.csv")
        (tmp_path / "train.csv").unlink()
        with pytest.raises(UserError, match=r"'train\.csv'.*'fedskew data get ag-news' to fetch it\.$"):
            load("ag-news", tmp_path)

    def test_only_official_files_unless_verify_is_false(self, tmp_path: Path) -> None:
        self.rows(tmp_path)
        with pytest.raises(UserError, match=r"train\.csv' is not the official file"):
            load("ag-news", tmp_path)

    @pytest.mark.parametrize(
        ("row", "word"),
        [(("5", "a", "b"), "begins with '5'"), (("1",), "has 1 columns"), (("class", "text"), "begins with 'class'")],
    )
    def test_wrong_rows(self, tmp_path: Path, row: tuple[str, ...], word: str) -> None:
        self.rows(tmp_path)
        write(tmp_path / "train.csv", [("1", "a", "b"), row])
        with pytest.raises(UserError, match=rf"row 2 .*{word}.*class,title,description or class,text"):
            load("ag-news", tmp_path, verify=False)

    def test_no_text(self, tmp_path: Path) -> None:
        self.rows(tmp_path)
        (tmp_path / "train.csv").write_bytes(b"\xff\xfe")
        with pytest.raises(UserError, match="line 1 is not in UTF-8"):
            load("ag-news", tmp_path, verify=False)

    @pytest.mark.parametrize(("option", "value"), [("length", 0), ("vocab", 2)])
    def test_impossible_options(self, tmp_path: Path, option: str, value: int) -> None:
        with pytest.raises(UserError, match=f"{option} is {value}"):
            load("ag-news", tmp_path, **{option: value})

    def test_real_files(self, shared_data: Path) -> None:
        news = load("ag-news", shared_data, train="train_subset.csv")
        assert torch.bincount(news.train.y).tolist() == [5772, 3902, 3998, 5882]
        assert torch.bincount(news.test.y).tolist() == [1900] * 4
        assert news.train.x.shape == (19554, 200)
        assert int(news.train.x.max()) == news.vocab - 1
        assert UNKNOWN not in news.train.x and UNKNOWN in news.test.x
        assert news.checksums["test.csv"] == "md5:d52ea96a97a2d943681189a97654912d"
