"""A hospital's own table from beginning to end: its sites by name, its samples by the lines of its file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedskew import api, label_review
from fedskew.core import atomic_io, client_names
from fedskew.core.errors import UserError
from fedskew.record import reader
from tests.commands import complaint, succeed
from tests.report.detected import cells, setup_line, write

SITES = ("north", "south", "west")
CLASSES = ("cat", "dog")


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty images at three sites, without splits, and a run on them."""
    root = tmp_path_factory.mktemp("hospital")
    rng, rows = np.random.default_rng(3), []
    (root / "images").mkdir()
    for at in range(60):
        pixels = rng.integers(0, 80, (8, 8, 3), np.uint8)
        pixels[..., at % 2] += 150
        Image.fromarray(pixels).save(root / f"images/{at}.png")
        rows.append((f"images/{at}.png", CLASSES[at % 2], SITES[at % 3]))
    with (root / "my.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "site"), *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSKEW_CACHE", str(root / "cache"))
        api.run("fedavg", data=root / "my.csv", rounds=1, local_epochs=1, engine="inline", out=root / "run")
    return root


@pytest.fixture(autouse=True)
def _there(hospital: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hospital)
    monkeypatch.setenv("FEDSKEW_CACHE", str(hospital / "cache"))


def table(path: str | Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_review_names_the_samples_of_the_table() -> None:
    text = succeed("review", "run", "--client", "west", "--out", "west.csv")
    assert "samples of client west" in text
    found, lines = table("west.csv"), Path("my.csv").read_text().splitlines()
    assert list(found[0])[:5] == ["rank", "split", "path", "line", "label"] and len(found) == 20
    assert [each["split"] for each in found].count("test") == 4  # accuracy is measured on them
    for each in found:
        path, label, site = lines[int(each["line"]) - 1].split(",")
        assert (each["path"], each["label_name"], "west") == (path, label, site)
    site, source, spec = label_review.open_run(Path("run"))
    weights = label_review.load_weights(site, spec, Path("run/weights.safetensors"))
    for each, suspect in zip(found, label_review.rank(site, spec, weights, 2), strict=True):
        pixels = np.array(Image.open(each["path"])).transpose(2, 0, 1)
        part = source.test if suspect.split == "test" else source.train
        assert (part.x[suspect.row].numpy() == pixels).all()


def test_a_client_by_name_or_number() -> None:
    succeed("review", "run", "--client", "south", "--out", "by-name.csv")
    succeed("review", "run", "--client", "1", "--out", "by-number.csv")
    assert Path("by-name.csv").read_text() == Path("by-number.csv").read_text()
    said = complaint("review", "run", "--client", "nroth", "--out", "x.csv")
    assert said == "Error: client 'nroth' does not exist. Did you mean 'north'?"
    assert "client '3' does not exist. Known: north, south, west" in complaint(
        "review", "run", "--client", "3", "--out", "x.csv"
    )


def test_names_that_are_numbers_are_names() -> None:
    assert client_names.client_called("2", ["1", "2", "3"]) == 1
    with pytest.raises(UserError, match="client '0' does not exist"):
        client_names.client_called("0", ["1", "2", "3"])
    assert client_names.client_called("2", ["0", "1", "2"]) == 2


@pytest.mark.parametrize("by", [("path",), ("line",), ("line", "path")])
def test_corrections_by_what_names_a_sample(by: tuple[str, ...]) -> None:
    succeed("review", "run", "--client", "north", "--out", "north.csv")
    first = table("north.csv")[0]
    other = CLASSES[1 - int(first["label"])]
    Path("checked.csv").write_text(",".join((*by, "label")) + "\n" + ",".join((*(first[b] for b in by), other)) + "\n")
    text = succeed("review", "run", "--client", "north", "--apply", "checked.csv", "--out", "labels.csv")
    assert "1 of 20 labels of client north" in text
    before, after = table("my.csv"), table("labels.csv")
    (at,) = (at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old["label"] != new["label"])
    assert (at + 2, after[at]["path"], after[at]["label"]) == (int(first["line"]), first["path"], other)


def test_a_review_whose_columns_were_sorted_apart_is_refused() -> None:
    succeed("review", "run", "--client", "north", "--out", "north.csv", "--top", "2")
    one, two = table("north.csv")
    Path("apart.csv").write_text(f"path,line,corrected\n{one['path']},{two['line']},dog\n")
    said = complaint("review", "run", "--client", "north", "--apply", "apart.csv", "--out", "labels.csv")
    assert f"'apart.csv', line 2: path '{one['path']}' line '{two['line']}' is no sample of this client" in said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("row,label\n3,dog\n", "has the columns row, label. Give it the column path or line, and label or corrected"),
        ("line,label\n3,dog\n", "line '3' is no sample of this client"),  # which is in the south
        ("line;label\n3;dog\n", "line '3' is no sample of this client"),
        ("line,label,label\n2,dog,cat\n", "has 2 columns 'label'"),
        ("line,label\n2,dog,cat\n", "line 2 has 3 cells instead of 2"),
    ],
)
def test_corrections_that_are_refused(content: str, sentence: str) -> None:
    Path("wrong.csv").write_text(content)
    assert sentence in complaint("review", "run", "--client", "north", "--apply", "wrong.csv", "--out", "labels.csv")


def test_a_file_that_is_two_samples_needs_its_line(tmp_path: Path) -> None:
    """Six rows, of which two name one image; the split says that all but the last are for training."""
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "0.png")
    rows = [("0.png", CLASSES[at % 2], "train" if at < 5 else "test") for at in range(6)]
    with (tmp_path / "my.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    api.run(
        "fedavg", data=tmp_path / "my.csv", partition="iid", clients=1, rounds=1, engine="inline", out=tmp_path / "run"
    )
    (tmp_path / "a.csv").write_text("path,label\n0.png,dog\n")
    asked = ("review", tmp_path / "run", "--client", "0", "--out", tmp_path / "o.csv", "--apply")
    assert "path '0.png' names 5 samples. Add the columns path and line" in complaint(*asked, tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("line,label\n2,dog\n")
    assert "1 of 5 labels" in succeed(*asked, tmp_path / "a.csv")


def test_partition_calls_clients_by_their_sites() -> None:
    text = succeed("partition", "--data", "my.csv")
    shown = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    # 20 of each site: 10 cats and 10 dogs, of which a fifth is for testing.
    assert [shown[site] for site in SITES] == [["8", "8", "16"]] * 3
    assert json.loads(succeed("partition", "--data", "my.csv", "--json"))["clients"] == list(SITES)
    succeed("partition", "--data", "my.csv", "--out", "parts.svg")
    assert all(site in Path("parts.svg").read_text() for site in SITES)
    pooled = ["partition", "--data", "my.csv", "--partition", "iid", "--clients", "3", "--json"]
    assert json.loads(succeed(*pooled))["clients"] == ["0", "1", "2"]


def test_noise_calls_clients_by_their_sites() -> None:
    asked = [
        "noise",
        "--data",
        "my.csv",
        "--noise",
        "symmetric:1.0",
        "--set",
        "noise.low=0.4",
        "--set",
        "noise.high=0.6",
    ]
    asked += ["--engine", "inline"]
    text = succeed(*asked, "--out", "noise.svg")
    assert [line.split()[0] for line in text.splitlines() if line.strip().startswith(SITES)] == list(SITES)
    examples = [line.split() for line in text.splitlines() if len(line.split()) == 4 and line.split()[0] in CLASSES]
    assert len(examples) == 8 and {each[-1] for each in examples} <= set(SITES)
    assert all(site in Path("noise.svg").read_text() for site in SITES)
    found = json.loads(succeed(*asked, "--json"))
    assert found["clients"] == list(SITES) and found["noisy"] == [0, 1, 2]


def test_the_report_calls_clients_by_their_sites() -> None:
    api.run("fedavg", data="my.csv", rounds=1, local_epochs=1, engine="inline", evaluate_clients=True, out="scored")
    succeed("report", "scored", "--out", "scored.html")
    page = Path("scored.html").read_text()
    clients, shares = (
        page[page.index(heading) :] for heading in ("Results by client</h2>", "Partition of the data</h2>")
    )
    assert all(f'<th scope="row">{site}</th>' in clients for site in SITES)
    assert "<title>client west, class cat: 8 samples</title>" in shares and ">west</text>" in shares


def test_detect_calls_clients_by_their_sites(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", setup_line(cells([2, 5]), age=[0] * 9 + [-1]), truth=[2, 5])
    lines = (folder / reader.NAME).read_text().splitlines()
    header = json.loads(lines[0])
    header["config"]["partition"]["name"] = "natural"
    header["data"]["sites"] = [f"clinic-{letter}" for letter in "abcdefghij"]
    del header["crc32"]
    (folder / reader.NAME).write_text(
        "\n".join([atomic_io.with_checksum(json.dumps(header)).decode(), *lines[1:]]) + "\n"
    )
    text = succeed("detect", folder, "--details")
    assert text.startswith("2 of 10 sites probably have wrong labels: clinic-c, clinic-f.\n")
    for expected in (
        "treated sites clinic-c, clinic-f as noisy, as here",
        "clinic-c, clinic-f; recall 100 %",
        "most often clinic-c, clinic-f",
        "Note: site clinic-j has never answered",
        "clinic-a",
    ):
        assert expected in text, expected
    page = (folder / "detection/detection.html").read_text()
    assert "Site clinic-c, class by class" in page and '<th scope="row">clinic-a</th>' in page
    found = json.loads((folder / "detection/detection.json").read_text())
    assert (found["noisy"], found["sites"][2]) == ([2, 5], "clinic-c")
