from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedskew.core.progress import report
from fedskew.data import registry
from fedskew.data.registry import DatasetInfo, DownloadFile
from fedskew.experiment.callbacks import progress
from tests import commands
from tests.data.datasets.served import serving

CONTENT = bytes(range(256)) * 2000


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)


fedskew = partial(commands.fedskew, "data")
succeed = partial(commands.succeed, "data")


def complaint(*arguments: str | Path) -> str:
    result = fedskew(*arguments)
    assert result.exit_code == 2, result.output
    (said,) = (line for line in result.stderr.splitlines() if not re.search("(B|bytes) of ", line))  # but for progress
    assert said.startswith("Error: ")
    return said


def image_folder(folder: Path, **classes: int) -> Path:
    for number, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True)
        for sample in range(count):
            pixels = np.full((8, 8, 3), 40 * number + sample, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{sample}.png")
    return folder


def known(*arguments: str | Path) -> dict[str, dict[str, object]]:
    return {each["name"]: each for each in json.loads(succeed("list", "--json", *arguments))}


# ---- list ------------------------------------------------------------------------------------------------------------


def test_list_says_what_is_here_by_looking_only(tmp_path: Path) -> None:
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    for marker in registry.info("cifar10").markers:
        (batches / f"{marker}.xz").write_bytes(b"damaged")
    listed = known("--data-dir", tmp_path)
    assert listed["cifar10"]["here"] and listed["cifar10"]["problem"] is None, "nothing was read"
    assert listed["cifar10"]["size"] == 170_498_071
    assert listed["digits"]["here"] and listed["synthetic"]["here"] and listed["own"]["here"] is None
    assert not listed["cifar100"]["here"] and str(tmp_path) in str(listed["cifar100"]["problem"])
    text = succeed("list", "--data-dir", tmp_path)
    assert "license" in text and "170.5 MB" in text
    verified = known("--data-dir", tmp_path, "--verify")
    assert not verified["cifar10"]["here"] and "damaged" in str(verified["cifar10"]["problem"])
    assert verified["digits"]["here"]


def test_list_knows_real_data(shared_data: Path) -> None:
    listed = known("--data-dir", shared_data)
    here = {name for name, each in listed.items() if each["here"]}
    assert here >= {"mnist", "cifar10", "cifar10n", "usps", "svhn", "dermamnist"}
    assert not here & {"cifar100", "cinic10", "tiny-imagenet", "synthdigits", "ich", "isic2019"}


# ---- get -------------------------------------------------------------------------------------------------------------


def toy(monkeypatch: pytest.MonkeyPatch, url: str, content: bytes = CONTENT) -> None:
    file = DownloadFile((url,), len(content), f"md5:{hashlib.md5(content).hexdigest()}")
    toy = DatasetInfo("toy", "a toy", "ours", "here", folders=("toy",), markers=("toy.bin",), files=(file,))
    monkeypatch.setitem(registry.datasets(), "toy", toy)


def test_get_fetches_reports_and_does_not_fetch_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"toy.bin": CONTENT}) as server:
        toy(monkeypatch, server.url("toy.bin"))
        result = fedskew("get", "toy", "--data-dir", "data")
        assert result.exit_code == 0 and "toy is in data/toy." in result.stdout
        assert "toy.bin: 512.0 kB of 512.0 kB" in result.stderr
        assert "here already" in succeed("get", "toy", "--data-dir", "data")
        assert len(server.ranges) == 1
        succeed("get", "toy", "--data-dir", "data", "--force")
    assert Path("data/toy/toy.bin").read_bytes() == CONTENT
    assert [path.name for path in Path("data/toy").iterdir()] == ["toy.bin"]


def test_get_goes_on_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"toy.bin": CONTENT}, break_after=[200_000]) as server:
        toy(monkeypatch, server.url("toy.bin"))
        succeed("get", "toy", "--data-dir", "data")
    assert server.ranges == [None, "bytes=200000-"]
    assert Path("data/toy/toy.bin").read_bytes() == CONTENT


def test_get_from_a_mirror_of_the_real_files(shared_data: Path, tmp_path: Path) -> None:
    """Real files have the checksums that are written down, and arrive so that their reader finds them."""
    files = {f"copy/{path.name}": path.read_bytes() for path in (shared_data / "mnist").iterdir()}
    with serving(files) as server:
        succeed("get", "mnist", "--data-dir", tmp_path / "new", "--mirror", server.url("copy/"))
    assert "60,000 for training, 10,000 for testing" in succeed("check", tmp_path / "new")


def test_get_refuses_a_file_that_is_not_the_official_one(tmp_path: Path) -> None:
    files = {file.name: b"something else" for file in registry.info("mnist").files}
    with serving(files) as server:
        said = complaint("get", "mnist", "--data-dir", tmp_path / "new", "--mirror", server.url())
    assert "not the official file" in said
    assert not any(path.is_file() for path in (tmp_path / "new").rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnist"], "--data-dir"),
        (["mnits", "--data-dir", "data"], "Did you mean 'mnist'"),
        (["ich", "--data-dir", "data"], "kaggle.com"),
        (["isic2019", "--data-dir", "data"], "isic-archive.com"),
        (["own", "--data-dir", "data"], "cannot be fetched"),
        (["mnist", "--data-dir", "data", "--mirror", "file:///etc"], "is no address"),
    ],
)
def test_get_says_what_it_cannot_do(arguments: list[str], said: str) -> None:
    assert said in complaint("get", *arguments)
    assert not Path("data").exists()


def test_a_set_of_sets_is_fetched_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"toy.bin": CONTENT}) as server:
        toy(monkeypatch, server.url("toy.bin"))
        both = DatasetInfo("both", "a pair", "ours", "here", parts=("digits", "toy", "synthdigits"))
        monkeypatch.setitem(registry.datasets(), "both", both)
        said = complaint("get", "both", "--data-dir", "data")
    assert "yaroslav.ganin.net" in said and Path("data/toy/toy.bin").exists()


def test_ctrl_c_leaves_the_part_that_has_arrived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    half = CONTENT[: len(CONTENT) // 2]
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    name = registry.info("mnist").files[0].name
    with serving({name: half}, hold=True) as server:
        command = [sys.executable, "-m", "fedskew", "data", "get", "mnist", "--data-dir", "data", "--mirror"]
        process = subprocess.Popen([*command, server.url()], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        part = tmp_path / "data" / "mnist" / f"{name}.part"
        until = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Run the same command to resume." in said
    assert half.startswith(part.read_bytes()) and part.stat().st_size > 0
    assert [path.name for path in part.parent.iterdir()] == [part.name]


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    main_end, end = pty.openpty()
    with os.fdopen(end, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        patched.setenv("TERM", "xterm")
        with progress.showing():
            report("file.zip", 500_000, 2_000_000, "bytes")
            report("file.zip", 2_000_000, 2_000_000, "bytes")
    with os.fdopen(main_end, "rb", buffering=0) as screen:
        drawn = ""
        with contextlib.suppress(OSError):  # which is how a terminal without a program ends
            while chunk := screen.read(4096):
                drawn += chunk.decode(errors="ignore")
    assert "file.zip" in drawn and "2.0 MB of 2.0 MB" in drawn


# ---- check -----------------------------------------------------------------------------------------------------------


def test_check_describes_an_image_folder(tmp_path: Path) -> None:
    text = succeed("check", image_folder(tmp_path / "mine", cat=10, dog=5))
    assert "2: cat, dog" in text and "an image, 3x8x8" in text
    assert f"fedskew run --data {tmp_path / 'mine'}" in text
    assert "beware" not in text


def test_check_describes_sites_and_patients(tmp_path: Path) -> None:
    image_folder(tmp_path / "images", a=12, b=12)
    with open(tmp_path / "my.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["path", "label", "site", "patient"])
        for label in "ab":
            for sample in range(12):
                lines.writerow([f"images/{label}/{sample}.png", label, f"s{sample % 2}", f"p{sample}"])
    text = succeed("check", "my.csv")
    assert "sites     2, with " in text and "patients  " in text


def test_check_counts_test_samples_that_are_training_samples(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32), np.arange(9) % 3
    np.savez("mine.npz", x_train=x[:6], y_train=y[:6], x_test=x[3:], y_test=y[3:])
    text = succeed("check", "mine.npz")
    assert "3 of 6 test samples are training samples, too" in text  # rows 3, 4 and 5
    assert "3 features" in text and "2 training samples in each class" in text


def test_check_of_a_folder_of_known_data_sets_says_which_cannot_be_used(tmp_path: Path, shared_data: Path) -> None:
    for name in ("mnist", "ag_news"):
        (tmp_path / name).symlink_to(shared_data / name)
    result = fedskew("check", tmp_path)
    assert result.exit_code == 2
    assert "60,000 for training" in result.stdout and "needs the file 'train.csv'" in result.stdout
    assert result.stderr == (
        f"Error: 1 of the 2 data sets in '{tmp_path}' cannot be used: ag-news. "
        "Fetch each again with 'fedskew data get NAME --force'.\n"
    )
    assert "CIFAR-10_human.pt" in succeed("check", "cifar10n", "--data-dir", shared_data)


def test_check_warns_of_a_class_with_one_sample_and_of_one_class_only(tmp_path: Path) -> None:
    warned = succeed("check", image_folder(tmp_path / "mine", cat=9, dog=1, owl=1, emu=2))
    # Of 13 images 20 % are for testing: 3 of the 9 that are not the first of their class, places 1, 4 and 7, all cats.
    assert "beware    2 classes have a single training sample: dog, owl\n" in warned
    only = succeed("check", image_folder(tmp_path / "one", cat=9))
    assert "beware" in only and "there is only one class, 'cat', so there is nothing to learn" in only
    assert "beware" not in succeed("check", image_folder(tmp_path / "fine", cat=9, dog=9))


def test_check_warns_of_numbers_that_are_too_large_to_train_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    for scale in (1, 10_000):
        rows = (f"{'ab'[n % 2]},{n / 10},{scale * n}" for n in range(20))
        path.write_text("label,one,two\n" + "\n".join(rows) + "\n")
        warned = "feature 2 is as large as 1" in succeed("check", path)
        assert warned == (scale > 1)


def test_check_says_how_columns_were_understood_and_what_may_be_a_mistake(tmp_path: Path) -> None:
    rows = [f"{('ill', 'well', 'Ill')[at % 3]},{at},{at % 7},{'AB'[at % 2]}" for at in range(60)]
    (tmp_path / "my.csv").write_text("\n".join(["label,number,age,grade", *rows]))
    shown = " ".join(succeed("check", tmp_path / "my.csv").split())
    assert "numbers number, age categories grade (A, B)" in shown
    assert "classes 'Ill' and 'ill' differ in capital letters only" in shown
    assert "column 'number' grows from row to row; remove it if it only numbers the rows" in shown
    assert "column 'age'" not in shown


def test_check_and_show_leave_out_bad_images_when_asked_to(tmp_path: Path) -> None:
    own = image_folder(tmp_path / "mine", cat=9, dog=9)
    (own / "dog/torn.png").write_bytes(b"no image")
    for command in ("check", "show"):
        assert "torn.png' cannot be read" in complaint(command, own)
        assert "1 images are left out, which cannot be read or have another size" in succeed(command, own, "--skip-bad")
    assert f"fedskew run --data {own} --skip-bad" in succeed("check", own, "--skip-bad")
    assert "has no option 'skip_bad'" in complaint("check", "digits", "--skip-bad")


def test_the_command_that_check_names_can_be_used(tmp_path: Path) -> None:
    own = image_folder(tmp_path / "my images", cat=9, dog=9)
    Image.new("RGB", (9, 9)).save(own / "dog/large.png")
    (own / "dog/torn.png").write_bytes(b"no image")
    text = succeed("check", own, "--skip-bad", "--set", "size=8", "--set", "classes=dog,cat")
    (use,) = re.findall(r"use it +(.*)", text)
    assert shlex.split(use) == [
        *("fedskew", "run", "--data", str(own), "--skip-bad"),
        *("--set", "data.options.size=8", "--set", "data.options.classes=dog,cat"),
    ]
    commands.succeed("partition", *shlex.split(use)[2:], "--partition", "iid", "--clients", "2")


def test_the_command_for_a_data_set_with_a_reader_of_another_name(tmp_path: Path) -> None:
    x, y = np.zeros((4, 28, 28), np.uint8), np.arange(4)[:, None] % 2
    (tmp_path / "medmnist").mkdir()
    np.savez(tmp_path / "medmnist/pneumoniamnist.npz", **{f"{part}_images": x for part in ("train", "val", "test")},
             **{f"{part}_labels": y for part in ("train", "val", "test")})  # fmt: skip
    text = succeed("check", tmp_path)
    assert f"run --dataset pneumoniamnist --data-dir {tmp_path}" in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "path,klass\nx.png,1\n", "no column 'label'"),
        ("b.csv", "path,label\n" + 10 * "none.png,1\n", "none.png"),
        ("c.npz", "no arrays", "c.npz"),
        ("d.txt", "text", "no folder and no .csv"),
    ],
)
def test_check_explains_in_one_sentence_what_is_wrong(name: str, content: str, said: str) -> None:
    Path(name).write_text(content)
    assert said in complaint("check", name)
    assert said in complaint("show", name)


def test_check_of_nothing_names_what_is_near() -> None:
    assert "Did you mean 'digits'" in complaint("check", "digit")
    assert "has no option 'sise'" in complaint("check", "digits", "--set", "sise=3")


# ---- show ------------------------------------------------------------------------------------------------------------


def test_show_counts_and_draws(tmp_path: Path) -> None:
    own = image_folder(tmp_path / "mine", cat=20, dog=5)
    text = succeed("show", own, "-o", "sheet.png")
    # Of each class a fifth is for testing.
    assert [line.split() for line in text.splitlines() if "█" in line] == [
        ["cat", "█" * 30, "16", "4"],
        ["dog", "█" * 8, "4", "1"],
    ]
    assert "sheet.png" in text
    with Image.open("sheet.png") as sheet:
        assert min(sheet.size) > 100
    raised = json.loads(succeed("show", own, "--json"))
    assert raised == {"data set": "mine", "labels": ["cat", "dog"], "train": [16, 4], "test": [4, 1]}


def test_show_of_many_classes_stays_short() -> None:
    text = succeed("show", "synthetic", "--set", "classes=90", "--set", "samples=180")
    assert "and 30 more classes" in text and len(text.splitlines()) < 80


def test_show_draws_words(tmp_path: Path) -> None:
    rows = "".join(f'"{label}","Title {label}","Oil at $50 in {label}"\n' for label in (1, 1, 2, 3, 4))
    for name in ("few.csv", "test.csv"):
        (tmp_path / name).write_text(rows)
    options = ["--data-dir", tmp_path, "--set", "train=few.csv", "--set", "verify=false"]
    text = succeed("show", "ag-news", *options, "-o", "words.svg")
    assert "World" in text and "5 for training, 5 for testing" in text
    assert "a text of up to 200 tokens" in text
    assert Path("words.svg").read_text().startswith("<?xml")


def test_show_wants_one_data_set_and_a_picture(tmp_path: Path) -> None:
    for name in ("usps/usps.h5", "svhn/train_32x32.mat"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert "usps, svhn. Name one" in complaint("show", tmp_path)
    assert "no data set but labels" in complaint("show", "cifar10n", "--data-dir", tmp_path)
    assert ".png, .svg or .pdf" in complaint("show", "digits", "-o", "sheet.doc")
