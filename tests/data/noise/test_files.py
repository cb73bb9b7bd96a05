"""Files that noise is made from, and one sentence for whatever is wrong with them."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import UserError
from fedskew.data.noise.files import human_labels, matrix, soft_labels

TRUE = np.array([0, 1, 2, 1])


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


class TestSoftLabels:
    def test_csv_with_and_without_a_heading(self, tmp_path: Path) -> None:
        rows = "a,0.5,0.25,0.25\nb,1,0,0\n"
        for heading in ("", "id,x,y,z\n"):
            found = soft_labels(written(tmp_path / "soft.csv", heading + rows), 2, 3)
            assert found.tolist() == [[0.5, 0.25, 0.25], [1, 0, 0]]

    def test_a_data_frame_numbers_its_columns(self, tmp_path: Path) -> None:
        found = soft_labels(written(tmp_path / "soft.csv", ",0,1\n0,0.5,0.5\n1,1.0,0.0\n"), 2, 2)
        assert found.tolist() == [[0.5, 0.5], [1, 0]]

    def test_npy(self, tmp_path: Path) -> None:
        np.save(tmp_path / "soft.npy", np.full((2, 4), 0.25, dtype=np.float32))
        assert soft_labels(tmp_path / "soft.npy", 2, 4).tolist() == [[0.25] * 4] * 2

    def test_text_is_rounded_and_rows_sum_to_one_again(self, tmp_path: Path) -> None:
        found = soft_labels(written(tmp_path / "soft.csv", "a,0.333,0.333,0.333\n"), 1, 3)
        assert found.sum() == pytest.approx(1, abs=1e-15)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("a,1,0\n", "holds 1 x 2 probabilities. Give 2 x 3, one row for each sample."),
            ("a,1,0,0\nb,1,0,0\nc,1,0,0\n", "holds 3 x 3 probabilities. Give 2 x 3"),
            ("a,1,0,0\nb,0.5,0.2,0.2\n", "row 1 sums to 0.9. Give probabilities that sum to 1"),
            ("a,1.5,-0.5,0\nb,1,0,0\n", "row 0 sums to 1. Give probabilities"),
            ("a,1,0,0\nb,x,0,0\n", "holds no finite number somewhere"),
            ("a,1,0,0\nb,nan,0,0\n", "holds no finite number somewhere"),
            ("a,1,0,0\nb,1\n", "has rows of different length"),
            ("", "has rows of different length"),
            (b"\xff\xfe", "is not in UTF-8"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, content: str | bytes, words: str) -> None:
        with pytest.raises(UserError) as raised:
            soft_labels(written(tmp_path / "soft.csv", content), 2, 3)
        assert words in str(raised.value) and "soft.csv'" in str(raised.value)

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"none\.csv' does not exist"):
            soft_labels(tmp_path / "none.csv", 2, 3)


class TestMatrix:
    T = ((0.9, 0.1), (0.25, 0.75))

    def test_all_formats(self, tmp_path: Path) -> None:
        np.save(tmp_path / "t.npy", self.T)
        written(tmp_path / "t.csv", "0.9,0.1\n0.25,0.75\n")
        written(tmp_path / "t.json", json.dumps(self.T))
        for name in ("t.npy", "t.csv", "t.json"):
            assert np.allclose(matrix(tmp_path / name, 2, 5), self.T)

    def test_one_for_each_client(self, tmp_path: Path) -> None:
        written(tmp_path / "t.json", json.dumps([self.T, self.T, [[1, 0], [0, 1]]]))
        assert matrix(tmp_path / "t.json", 2, 3)[2].tolist() == [[1, 0], [0, 1]]

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ([[0.9, 0.2], [0.5, 0.5]], "row 0 sums to 1.1. Give probabilities that sum to 1"),
            ([[0.9, 0.1], [1.5, -0.5]], "row 1 sums to 1. Give probabilities"),
            ([[[1, 0], [0, 1]], [[1, 0], [0, 0.5]], [[1, 0], [0, 1]]], "row 1, 1 sums to 0.5"),
            ([[1.0]], "is 1 x 1. Give 2 x 2, or 3 x 2 x 2, one for each client"),
            ([[1, 0], [1]], "no finite number somewhere, or rows of different length"),
            ({"a": 1}, "holds no finite number somewhere"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, content: object, words: str) -> None:
        with pytest.raises(UserError) as raised:
            matrix(written(tmp_path / "t.json", json.dumps(content)), 2, 3)
        assert words in str(raised.value)

    def test_broken_files(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="is no JSON file"):
            matrix(written(tmp_path / "t.json", "{"), 2, 3)
        with pytest.raises(UserError, match=r"is damaged or no \.npy file"):
            matrix(written(tmp_path / "t.npy", "x"), 2, 3)


class TestHumanLabels:
    @pytest.mark.parametrize("heading", ["row,label", "\ufeffrow,label", " row , label "])
    def test_rows_are_found_however_a_spreadsheet_writes_them(self, heading: str, tmp_path: Path) -> None:
        path = written(tmp_path / "said.csv", f"{heading}\n3,0\n2,1\n1,2\n0,2\n")
        assert human_labels(path, None, TRUE, 3).tolist() == [2, 2, 1, 0]

    def test_two_columns_of_one_name_are_refused(self, tmp_path: Path) -> None:
        path = written(tmp_path / "said.csv", "label,label\n0,1\n0,1\n0,1\n0,1\n")
        with pytest.raises(UserError, match="has 2 columns 'label'"):
            human_labels(path, "label", TRUE, 3)

    def test_a_damaged_archive(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "said.pt", "w") as archive:
            archive.writestr("archive/data.pkl", b"0123456789" * 9)
        content = (tmp_path / "said.pt").read_bytes()
        with pytest.raises(UserError, match="is damaged"):
            human_labels(written(tmp_path / "said.pt", content.replace(b"0123456789", b"9876543210", 1)), None, TRUE, 3)

    def cifar_n(self, folder: Path, clean: list[int], zipped: bool = True) -> Path:
        """As the authors' file is: a dictionary of arrays, pickled by torch, in a zip since its version 1.6."""
        content = pickle.dumps({"clean_label": np.array(clean), "worse_label": np.array([0, 2, 2, 1])}, protocol=2)
        path = folder / "CIFAR-10_human.pt"
        if not zipped:
            return written(path, content)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", content)
        return path

    @pytest.mark.parametrize("zipped", [True, False])
    def test_cifar_n(self, tmp_path: Path, zipped: bool) -> None:
        path = self.cifar_n(tmp_path, TRUE.tolist(), zipped)
        assert human_labels(path, "worse_label", TRUE, 3).tolist() == [0, 2, 2, 1]
        assert human_labels(path, "clean_label", TRUE, 3).tolist() == TRUE.tolist()

    def test_another_order_is_noticed(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="in another order than the data"):
            human_labels(self.cifar_n(tmp_path, [1, 0, 2, 1]), "worse_label", TRUE, 3)

    def test_csv_and_npy(self, tmp_path: Path) -> None:
        csv = written(tmp_path / "said.csv", "anna,ben\n0,1\n1,1\n2,2\n0,1\n")
        assert human_labels(csv, "anna", TRUE, 3).tolist() == [0, 1, 2, 0]
        np.save(tmp_path / "said.npy", [2, 1, 2, 0])
        assert human_labels(tmp_path / "said.npy", None, TRUE, 3).tolist() == [2, 1, 2, 0]

    @pytest.mark.parametrize(
        ("key", "content", "words"),
        [
            (None, "a,b\n0,0\n", "noise.key is not set. Choose one of a, b"),
            ("c", "a,b\n0,0\n", "there is no column 'c' (noise.key). Choose one of a, b"),
            ("a", "a,b\n0,0\n", "has 1 labels for 4 training samples. Give one for each."),
            ("a", "a\n0\n1\n2\n3\n", "label 3 is outside 0..2"),
            ("a", "a\n0\n1\n2\n-1\n", "label -1 is outside 0..2"),
            ("a", "a\n0\n1\n2\n0.5\n", "holds other labels than integers"),
            ("a", "a\n0\n1\n2\ncat\n", "no finite number"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, key: str | None, content: str, words: str) -> None:
        with pytest.raises(UserError) as raised:
            human_labels(written(tmp_path / "said.csv", content), key, TRUE, 3)
        assert words in str(raised.value)

    def test_a_pickle_cannot_run_anything(self, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return exec, ("raise SystemExit",)

        with pytest.raises(UserError, match="Do not trust it"):
            human_labels(written(tmp_path / "evil.pt", pickle.dumps({"a": Evil()})), "a", TRUE, 3)

    def test_the_real_file(self, shared_data: Path) -> None:
        """CIFAR-10N: 40.2 % of worse_label are wrong (Wei et al. 2022, table 1: 40.21)."""
        path = shared_data / "cifar-n" / "CIFAR-10_human.pt"
        if not path.exists():
            pytest.skip("no CIFAR-10N")
        clean = human_labels(path, "clean_label", _clean(path), 10)
        worse = human_labels(path, "worse_label", clean, 10)
        assert (worse != clean).mean() == pytest.approx(0.4021, abs=5e-5)


def _clean(path: Path) -> np.ndarray:
    from fedskew.data.noise.files import _columns

    return np.asarray(_columns(path)["clean_label"])
