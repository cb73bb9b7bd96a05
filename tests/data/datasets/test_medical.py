"""MedMNIST as it is; ICH and ISIC 2019 written here in the layouts that the papers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import torch
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

from fedskew.core.errors import UserError
from fedskew.data.datasets.listing import Listing
from fedskew.data.sources import load

ICH = "epidural,intraparenchymal,intraventricular,subarachnoid,subdural"
ISIC = "MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"


def gray(path: Path, value: int, side: int = 128) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (side, side), value).save(path)


def one_hot(k: int, classes: int, form: str = "{:d}") -> str:
    return ",".join(form.format(int(c == k)) for c in range(classes))


def write_ich(root: Path, names: tuple[str, str] = ("train.csv", "test.csv")) -> None:
    """Classes 0..4 twice in training, once in testing; the gray level is 10 times the number of the image."""
    number = 0
    for name, repeats in zip(names, (2, 1), strict=True):
        lines = [f"id,{ICH}"]
        for k in range(5 * repeats):
            lines.append(f"ID_{number:09x},{one_hot(k % 5, 5)}")
            gray(root / "stage_1_train_images" / f"ID_{number:09x}.png", 10 * number)
            number += 1
        (root / name).write_text("\n".join(lines) + "\n")


class TestMedMnist:
    def test_real_files(self, shared_data: Path) -> None:
        derma = load("dermamnist", shared_data)
        assert torch.bincount(derma.train.y).tolist() == [228, 359, 769, 80, 779, 4693, 99]
        assert derma.labels == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
        assert (derma.train.x.shape, len(derma.test)) == ((7007, 3, 28, 28), 2005)

    def test_any_file_by_name(self, tmp_path: Path) -> None:
        x, y = np.zeros((6, 28, 28), dtype=np.uint8), np.array([[0], [1], [2]] * 2)
        arrays = {
            f"{part}_{what}": a for part in ("train", "val", "test") for what, a in (("images", x), ("labels", y))
        }
        np.savez(tmp_path / "organamnist.npz", **arrays)
        found = load("medmnist", tmp_path, file="organamnist.npz")
        assert (found.name, found.classes, found.train.x.shape) == ("organamnist", 3, (6, 1, 28, 28))
        with pytest.raises(UserError, match="needs the option 'file'"):
            load("medmnist", tmp_path)
        with pytest.raises(UserError, match=r"needs the file 'pathmnist\.npz'"):
            load("medmnist", tmp_path, file="pathmnist.npz")
        np.savez(tmp_path / "chestmnist.npz", **arrays | {"train_labels": np.zeros((6, 14), dtype=int)})
        with pytest.raises(UserError, match="one integer per sample"):
            load("medmnist", tmp_path, file="chestmnist.npz")

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"'dermamnist\.npz' or"):
            load("dermamnist", tmp_path)


class TestIch:
    @pytest.mark.parametrize("names", [("train.csv", "test.csv"), ("train_ICH.csv", "test_ICH.csv")])
    def test_fednoro(self, tmp_path: Path, names: tuple[str, str]) -> None:
        write_ich(tmp_path, names)
        ich = load("ich", tmp_path)
        assert (ich.train.y.tolist(), ich.test.y.tolist()) == ([0, 1, 2, 3, 4] * 2, [0, 1, 2, 3, 4])
        assert ich.train.x.shape == (10, 3, 128, 128)
        assert ich.train.x[:, 0, 0, 0].tolist() == [10 * k for k in range(10)]
        assert ich.labels == tuple(ICH.split(","))
        assert load("ich", tmp_path, channels=1, size=32).train.x.shape == (10, 1, 32, 32)

    def test_fedirm_names_have_their_suffix(self, tmp_path: Path) -> None:
        write_ich(tmp_path)
        for name in ("train.csv", "test.csv"):
            text = (tmp_path / name).read_text()
            rows = [line.replace(",", ".png,", 1) for line in text.splitlines()[1:]]
            (tmp_path / name).write_text("\n".join([f"ImageID,{ICH}", *rows]))
        (tmp_path / "stage_1_train_images").rename(tmp_path / "images")
        assert load("ich", tmp_path, images_in="images").train.y.tolist() == [0, 1, 2, 3, 4] * 2

    def test_fediic_one_table_of_numbers(self, tmp_path: Path) -> None:
        for k in range(10):
            gray(tmp_path / "stage_1_train_images" / f"ID_{k}.png", 20 * k, 16)
        (tmp_path / "data.csv").write_text("id,class\n" + "".join(f"ID_{k},{k % 5}\n" for k in range(10)))
        ich = load("ich", tmp_path)
        # RandomState(0).permutation(10) is 2 8 4 9 1 6 7 3 0 5, and int(0.7 * 10) is 7.
        assert ich.train.x[:, 0, 0, 0].tolist() == [40, 160, 80, 180, 20, 120, 140]
        assert (ich.train.y.tolist(), ich.test.y.tolist()) == ([2, 3, 4, 4, 1, 1, 2], [3, 0, 0])
        (tmp_path / "data.csv").write_text("id,class\nID_0,5\n")
        with pytest.raises(UserError, match="line 2: ID_0,5 does not fit"):
            load("ich", tmp_path)

    @pytest.mark.parametrize(
        ("text", "word"),
        [
            ("id,epidural\nID_0,1\n", "has no column 'intraparenchymal'"),
            (f"id,{ICH}\nID_0,1,1,0,0,0\n", "line 2: 'ID_0' is of 2 classes"),
            (f"id,{ICH}\nID_0,0,0,0,0,0\n", "line 2: 'ID_0' is of 0 classes"),
            (f"id,{ICH}\nID_0,0,0,x,0,0\n", "line 2: .* does not fit its heading"),
            (f"id,{ICH}\nID_0,0,0\n", "line 2: .* does not fit its heading"),
            (f"id,{ICH}\nID_9999,0,0,1,0,0\n", r"ID_9999\.png' cannot be read \(there is no such file"),
            ("", "has no column 'epidural'"),
        ],
    )
    def test_wrong_tables(self, tmp_path: Path, text: str, word: str) -> None:
        write_ich(tmp_path)
        (tmp_path / "train.csv").write_text(text)
        with pytest.raises(UserError, match=word):
            load("ich", tmp_path)

    @pytest.mark.parametrize(("option", "value"), [("size", -1), ("channels", 2)])
    def test_impossible_options(self, tmp_path: Path, option: str, value: int) -> None:
        write_ich(tmp_path)
        with pytest.raises(UserError, match=f"{option} is {value}"):
            load("ich", tmp_path, **{option: value})


def slice_of_head(path: Path, stored: np.ndarray, patient: str, **header: Any) -> None:
    """A CT slice as RSNA's are: 16 bits signed, a rescale and a window in the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    made.SOPClassUID, made.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    made.PatientID, made.Modality = patient, "CT"
    made.Rows, made.Columns = stored.shape
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 16, 15, 1
    values = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 80} | header
    for name, value in values.items():
        if value is not None:
            setattr(made, name, value)
    made.PixelData = stored.astype("<i2").tobytes()
    made.save_as(path)


def write_dicom(root: Path, count: int = 10) -> None:
    """Image k is of class k % 5 and of patient k // 2; one more has two kinds, one has none, rows come twice."""
    rows = ["ID,Label"]
    kinds = ICH.split(",")
    positives = {f"ID_{k:04x}": [kinds[k % 5]] for k in range(count)}
    positives |= {"ID_two": kinds[:2], "ID_none": []}
    for image, which in positives.items():
        some = [f"{image}_{kind},{int(kind in which)}" for kind in kinds]
        rows += [*some, f"{image}_any,{int(bool(which))}", some[0]]
    (root / "stage_1_train.csv").write_text("\n".join(rows) + "\n")
    for k in range(count):
        stored = np.full((4, 4), 1024)  # water: density 0
        stored[:2] = 1064 + k
        slice_of_head(root / "stage_1_train_images" / f"ID_{k:04x}.dcm", stored, f"patient {k // 2}")


class TestIchDicom:
    def test_window_and_stretch(self, tmp_path: Path) -> None:
        root = tmp_path / "stage_1_train_images"
        # Densities -1024, 0, 20, 200 in a window of 0..80: 0, 0, 20, 80, stretched by 255/80 to 0, 0, 63.75, 255.
        stored = np.array([[0, 1024], [1044, 1224]])
        for k in range(4):
            slice_of_head(root / f"ID_{k}.dcm", stored, "p", **({"WindowCenter": [40, 99], "WindowWidth": [80, 9]}))
        lines = [f"ID_{k}_{kind},{int(kind == 'subdural')}\n" for k in range(4) for kind in ICH.split(",")]
        (tmp_path / "stage_1_train.csv").write_text("ID,Label\n" + "".join(lines))
        found = load("ich-dicom", tmp_path, size=2)
        assert found.train.x.tolist() == [[[[0, 0], [63, 255]]] * 3] * 2
        assert found.train.y.tolist() == [4, 4]

    def test_images_of_one_kind_only(self, tmp_path: Path) -> None:
        write_dicom(tmp_path)
        found = load("ich-dicom", tmp_path, channels=1)
        assert (len(found.train), len(found.test)) == (7, 3)
        assert torch.bincount(torch.cat((found.train.y, found.test.y))).tolist() == [2] * 5
        assert found.train.x.shape == (7, 1, 128, 128)
        assert found.groups is None

    def test_patients_stay_whole(self, tmp_path: Path) -> None:
        write_dicom(tmp_path, 20)
        found = load("ich-dicom", tmp_path, grouped=True, size=4)
        assert found.groups is not None
        assert (len(found.train), len(found.test)) == (14, 6)
        # Two slices of each patient, and all of them in one part.
        assert torch.bincount(found.groups).unique().tolist() in ([2], [0, 2])

    @pytest.mark.parametrize("header", [{"WindowWidth": None}, {"RescaleSlope": None}])
    def test_headers_that_lack_something(self, tmp_path: Path, header: dict[str, Any]) -> None:
        write_dicom(tmp_path)
        path = tmp_path / "stage_1_train_images" / "ID_0003.dcm"
        slice_of_head(path, np.zeros((4, 4)), "p", **header)
        with pytest.raises(UserError, match=r"ID_0003\.dcm' cannot be read as a DICOM image with a window"):
            load("ich-dicom", tmp_path)
        found = load("ich-dicom", tmp_path, skip_bad=True)
        assert len(found.train) + len(found.test) == 9

    def test_an_even_slice_is_black(self, tmp_path: Path) -> None:
        write_dicom(tmp_path)
        for path in (tmp_path / "stage_1_train_images").iterdir():
            slice_of_head(path, np.full((4, 4), 1050), "p")
        assert not load("ich-dicom", tmp_path).train.x.any()

    @pytest.mark.parametrize(
        ("row", "word"),
        [
            ("ID_1_other,0", "line 3: ID_1_other,0 is no label"),
            ("ID_1_epidural,2", "line 3"),
            ("ID_1_epidural", "line 3"),
        ],
    )
    def test_wrong_rows(self, tmp_path: Path, row: str, word: str) -> None:
        (tmp_path / "stage_1_train.csv").write_text(f"ID,Label\nID_0_any,0\n{row}\n")
        with pytest.raises(UserError, match=word):
            load("ich-dicom", tmp_path)

    def test_no_bleeding_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "stage_1_train.csv").write_text("ID,Label\nID_0_any,0\n")
        with pytest.raises(UserError, match="no image with exactly one kind"):
            load("ich-dicom", tmp_path)


def write_isic(root: Path, nested: bool = False) -> None:
    """Ten lesions of two photographs each, of class k % 8; one of unknown kind."""
    inside = root / "ISIC_2019_Training_Input"
    inside = inside / "ISIC_2019_Training_Input" if nested else inside
    inside.mkdir(parents=True)
    truth, metadata = [f"image,{ISIC}"], ["image,age_approx,anatom_site_general,lesion_id,sex"]
    for k in range(21):
        name = f"ISIC_{k:07d}" + ("_downsampled" if k == 3 else "")
        Image.new("RGB", (30, 20), (10 * k, 0, 0)).save(inside / f"{name}.jpg")
        truth.append(f"{name},{one_hot(8 if k == 20 else (k // 2) % 8, 9, '{:.1f}')}")
        metadata.append(f"{name},55.0,anterior torso,{f'HAM_{k // 2:07d}' if k < 18 else ''},female")
    (root / "ISIC_2019_Training_GroundTruth.csv").write_text("\n".join(truth))
    (root / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(metadata))


class TestIsic:
    @pytest.mark.parametrize("nested", [False, True])
    def test_split_by_permutation(self, tmp_path: Path, nested: bool) -> None:
        write_isic(tmp_path, nested)
        isic = load("isic2019", tmp_path, size=16)
        assert (len(isic.train), len(isic.test)) == (14, 6)  # of 20: the unknown kind does not count
        assert isic.labels == tuple(ISIC.split(",")[:8])
        assert isic.train.x.shape == (14, 3, 16, 16)
        order = np.random.RandomState(0).permutation(20)
        assert isic.train.y.tolist() == [(k // 2) % 8 for k in order[:14]]
        assert (isic.test.x[:, 0, 8, 8].int() - torch.tensor(10 * order[14:])).abs().max() <= 4  # JPEG loses a little

    def test_lesions_stay_whole(self, tmp_path: Path) -> None:
        write_isic(tmp_path)
        isic = load("isic2019", tmp_path, size=4, grouped=True)
        assert isic.groups is not None
        assert len(isic.train) + len(isic.test) == 20 and len(isic.train) in (13, 14)
        both = torch.cat((isic.train.x[:, 0, 0, 0], isic.test.x[:, 0, 0, 0])).int()
        lesion = (both.float() / 10).round().int() // 2
        train, test = set(lesion[: len(isic.train)].tolist()), set(lesion[len(isic.train) :].tolist())
        assert train & test <= {9}  # the two photographs 18 and 19 name no lesion and are one each

    def test_ready_tables(self, tmp_path: Path) -> None:
        write_isic(tmp_path)
        heading, *rows = (tmp_path / "ISIC_2019_Training_GroundTruth.csv").read_text().splitlines()
        (tmp_path / "train.csv").write_text("\n".join([heading, *rows[:4]]))
        (tmp_path / "test.csv").write_text("\n".join([heading, *rows[4:6]]))
        isic = load("isic2019", tmp_path)
        assert (isic.train.y.tolist(), isic.test.y.tolist()) == ([0, 0, 1, 1], [2, 2])
        assert isic.train.x.shape == (4, 3, 224, 224)

    def test_grouped_needs_the_metadata(self, tmp_path: Path) -> None:
        write_isic(tmp_path)
        (tmp_path / "ISIC_2019_Training_Metadata.csv").write_text("image,sex\n")
        with pytest.raises(UserError, match="no columns 'image' and 'lesion_id'"):
            load("isic2019", tmp_path, grouped=True)


def test_a_split_respects_groups_and_shares() -> None:
    listing = Listing([Path(str(k)) for k in range(30)], [0] * 30, [k // 3 for k in range(30)])
    train, test = listing.split(0.7, seed=5)
    assert train.groups is not None and test.groups is not None
    assert (len(train.paths), len(test.paths)) == (21, 9)
    assert not set(train.groups) & set(test.groups)
    assert [str(path) for path in train.paths] != [str(path) for path in listing.split(0.7, seed=6)[0].paths]
