from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

import fedskew
from fedskew.core.errors import UserError
from fedskew.data import registry
from fedskew.data.sources import Source, draws_by_seed, load

FILES = registry.info("heart-disease").markers
#: patients by diagnosis at each hospital, from UCI's description (specified in the task, not in the reader)
PATIENTS = [[164, 55, 36, 35, 13], [188, 106, 0, 0, 0], [8, 48, 32, 30, 5], [51, 56, 41, 42, 10]]


@pytest.fixture
def heart(shared_data: Path) -> Source:
    return load("heart-disease", shared_data)


class TestRealFiles:
    def test_every_hospital_gives_a_fifth_of_every_diagnosis(self, heart: Source) -> None:
        assert heart.sites is not None
        for site, patients in enumerate(PATIENTS):
            trained = heart.train.y[heart.sites == site].bincount(minlength=5).tolist()
            assert trained == [each - round(each / 5) for each in patients]
        tested = [sum(round(patients[k] / 5) for patients in PATIENTS) for k in range(5)]
        assert heart.test.y.bincount(minlength=5).tolist() == tested
        assert len(heart.train) + len(heart.test) == 303 + 294 + 123 + 200

    def test_the_split_is_redrawn_with_the_seed(self, heart: Source, shared_data: Path) -> None:
        again, other = load("heart-disease", shared_data, seed=0), load("heart-disease", shared_data, seed=1)
        assert torch.equal(again.test.x, heart.test.x)
        assert len(other.test) == len(heart.test)
        assert not torch.equal(other.test.x, heart.test.x)
        assert other.checksums == heart.checksums  # so that runs with other seeds are on the same task

    def test_rows_are_those_of_the_four_files_one_after_the_other(self, shared_data: Path) -> None:
        """The last cell is the diagnosis: the same patients are recognized whatever the seed."""
        texts = [(shared_data / "heart-disease" / name).read_text() for name in FILES]
        diagnoses = [int(line.rsplit(",", 1)[1]) for text in texts for line in text.split()]
        for seed in (0, 1):
            test = load("heart-disease", shared_data, seed=seed).test
            assert test.rows is not None and [diagnoses[row] for row in test.rows.tolist()] == test.y.tolist()
            assert len(set(test.rows.tolist())) == len(test)

    def test_features_are_scaled_with_the_training_patients_alone(self, heart: Source) -> None:
        # age is the first feature and never missing: its training values have mean 0 and deviation 1, the test values
        # have not, as they would if all patients together had been scaled
        age = heart.train.x[:, 0].double()
        assert float(age.mean()) == pytest.approx(0, abs=1e-6)
        assert float(age.std(correction=0)) == pytest.approx(1, abs=1e-6)
        assert abs(float(heart.test.x[:, 0].double().mean())) > 1e-4
        assert torch.isfinite(heart.train.x).all()

    def test_binary_is_healthy_against_ill(self, shared_data: Path) -> None:
        source = load("heart-disease", shared_data, binary=True)
        assert source.labels == ("healthy", "ill")
        assert source.train.y.bincount().tolist()[0] == sum(p[0] - round(p[0] / 5) for p in PATIENTS)

    def test_the_copy_is_the_official_file_but_for_six_cells(self, shared_data: Path) -> None:
        """UCI's Cleveland file lacks four counts of vessels and two thallium results; a 0 and a number stand there."""
        folder = shared_data / "heart-disease"
        official = {file.name: file.checksum for file in registry.info("heart-disease").files}
        for name in FILES:
            rows = [line.split(",") for line in (folder / name).read_text().split("\n")]
            if "cleveland" in name:
                for row, column in ((166, 11), (192, 11), (287, 11), (302, 11), (87, 12), (266, 12)):
                    rows[row][column] = "?"
            text = "\n".join(",".join(row) for row in rows)
            assert f"md5:{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}" == official[name]
            assert len(text) == next(file.size for file in registry.info("heart-disease").files if file.name == name)


class TestRuns:
    def test_the_hospitals_are_the_clients_and_each_seed_draws_its_own_test_patients(self, shared_data: Path) -> None:
        config = fedskew.configure(dataset="heart-disease", data_dir=shared_data)
        assert (config.partition.name, config.partition.clients) == ("natural", 4)
        assert fedskew.configure(dataset="heart-disease", partition="iid", clients=3).partition.name == "iid"
        options = {"dataset": "heart-disease", "data_dir": shared_data, "rounds": 1, "local_epochs": 1}
        found = fedskew.compare(["fedavg"], seeds=2, engine="inline", progress=False, **options)
        first, second = found.results["fedavg"]
        assert first.header.shards != second.header.shards
        assert first.header.data.sites == ["Cleveland", "Budapest", "Zurich-Basel", "Long Beach"]
        alone = fedskew.run(seed=1, engine="inline", progress=False, **options)
        assert alone.end is not None and second.end is not None
        assert alone.end.weights_sha256 == second.end.weights_sha256

    def test_only_some_data_sets_depend_on_the_seed(self) -> None:
        assert [each.name for each in registry.known() if draws_by_seed(each.name)] == ["heart-disease"]


@pytest.fixture
def copied(shared_data: Path, tmp_path: Path) -> Path:
    for name in FILES:
        shutil.copy(shared_data / "heart-disease" / name, tmp_path / name)
        (tmp_path / name).chmod(0o600)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3", "row 304 is '1,2,3'. Fetch the file again: a row has 13 numbers or"),
        (",".join(["1"] * 13 + ["5"]), "row 304 is '1,1,1"),
        (",".join(["1"] * 12 + ["x", "0"]), "row 304 is '1,1,1"),
        (",".join(["1"] * 13 + ["0"]), r"has \(165, 55, 36, 35, 13\) patients by diagnosis"),
    ],
)
def test_other_files_are_refused(copied: Path, line: str, message: str) -> None:
    path = copied / "processed.cleveland.data"
    path.write_text(path.read_text().rstrip() + f"\n{line}\n")
    with pytest.raises(UserError, match=message):
        load("heart-disease", copied)


def test_other_patients_can_be_read_on_request(copied: Path) -> None:
    path = copied / "processed.cleveland.data"
    path.write_text(path.read_text().rstrip() + "\n" + ",".join(["1"] * 13 + ["0"]) + "\n")
    source = load("heart-disease", copied, verify=False)
    assert len(source.train) + len(source.test) == 921
