"""Runs that start from weights of a file: what the record says of them, and that mistakes cost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedskew import configure
from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.experiment import run as experiment
from fedskew.federation.rules import Rules
from fedskew.federation.site import guard
from fedskew.record import reader
from fedskew.report import load
from tests.commands import complaint, succeed
from tests.contract import harness

QUICK = ["--engine", "inline", "--rounds", "1", "--clients", "2", "--local-epochs", "1", "--model", "mlp"]


def test_a_run_without_rounds_ends_with_the_weights_it_started_from(tmp_path: Path) -> None:
    first = harness.finish(harness.config(rounds=1), out=tmp_path / "first")
    same = harness.finish(harness.config(rounds=0, weights=str(tmp_path / "first")))
    assert same.end["weights_sha256"] == first.end["weights_sha256"]
    assert same.header["model"]["weights_sha256"] == first.end["weights_sha256"]
    assert same.header["model"]["head_from_file"]
    assert same.header["config"]["model"]["weights"] == "first"


@pytest.mark.parametrize("engine", ["pool", "wire"])
def test_all_engines_start_from_the_file(tmp_path: Path, engine: str) -> None:
    harness.finish(harness.config("fedprox", rounds=1), out=tmp_path / "first")
    inline, other = (
        harness.finish(harness.config(rounds=2, weights=str(tmp_path / "first")), engine=name)
        for name in ("inline", engine)
    )
    plain = harness.finish(harness.config(rounds=2))
    assert inline.end["weights_sha256"] == other.end["weights_sha256"] != plain.end["weights_sha256"]


def test_resume_needs_the_file_only_until_the_first_checkpoint(tmp_path: Path) -> None:
    harness.finish(harness.config("fedprox", rounds=1), out=tmp_path / "first")
    (tmp_path / "first" / "weights.safetensors").rename(tmp_path / "w.safetensors")
    wanted = harness.config(rounds=2, weights=str(tmp_path / "w.safetensors"))
    whole = harness.finish(wanted)
    harness.finish(wanted.model_copy(update={"rounds": 1}), out=tmp_path / "run")
    (tmp_path / "w.safetensors").unlink()
    resumed = experiment.resume(tmp_path / "run", inputs=harness.inputs(), rounds=2)
    assert resumed.end["weights_sha256"] == whole.end["weights_sha256"]
    assert "weights_sha256" in reader.read(tmp_path / "run").header["model"]


def test_a_file_is_also_looked_for_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = harness.finish(harness.config(rounds=1), out=tmp_path / "first")
    (tmp_path / "first" / "weights.safetensors").rename(tmp_path / "w.safetensors")
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path))
    same = harness.finish(harness.config(rounds=0, weights="w.safetensors"))
    assert same.end["weights_sha256"] == first.end["weights_sha256"]


def test_other_classes_get_a_fresh_head(tmp_path: Path) -> None:
    succeed("run", *QUICK, "--out", tmp_path / "first")
    tensors = load_file(tmp_path / "first" / "weights.safetensors")
    few = {name: t[:3] if name.startswith("head.") else t for name, t in tensors.items()}
    torch.save(few, tmp_path / "three.pt")
    succeed("run", *QUICK, "--weights", tmp_path / "three.pt", "--out", tmp_path / "second")
    header = reader.read(tmp_path / "second").header
    assert not header["model"]["head_from_file"]
    assert str(tmp_path) not in str(header)
    succeed("report", tmp_path / "second", "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "weights_sha256 at the start" in page and header["model"]["weights_sha256"] in page


def test_a_mistake_is_one_sentence_and_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    (tmp_path / "bad.pt").write_bytes(b"nonsense")
    torch.save({"head.weight": torch.zeros(2, 2)}, tmp_path / "other.pt")
    for name, said in {
        "bad.pt": "is damaged or no file of weights",
        "none.pt": "none.pt' cannot be read: No such file or directory",
        "other.pt": "do not fit the network: 'trunk.1.weight' is missing in the file",
        ".": "there are no weights in",
    }.items():
        assert said in complaint("run", *QUICK, "--weights", tmp_path / name, "--out", out)
        assert not out.exists()
    said = complaint("run", *QUICK, "--weights", "nowhere.pt", "--out", out)
    assert "model.weights is 'nowhere.pt', which is neither here nor in the data folder" in said


def test_a_mistake_is_found_before_annotators_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "prepare", lambda *_: pytest.fail("annotators would be trained by now"))
    with pytest.raises(UserError, match="cannot be read"):
        harness.finish(harness.config(weights=str(tmp_path / "none.pt"), noise="h_idn:0.5"))


def test_a_run_does_not_replace_the_one_it_starts_from(tmp_path: Path) -> None:
    succeed("run", *QUICK, "--out", tmp_path / "run")
    before = (tmp_path / "run" / "weights.safetensors").read_bytes()
    said = complaint("run", *QUICK, "--weights", tmp_path / "run", "--out", tmp_path / "run", "--force")
    assert "whose run is to be replaced. Choose another --out" in said
    assert (tmp_path / "run" / "weights.safetensors").read_bytes() == before


def test_a_report_distinguishes_files_of_one_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        first = harness.finish(harness.config("fedavg" if name == "a" else "fedprox", rounds=1), out=tmp_path / name)
        assert first.folder is not None
        first.folder.joinpath("weights.safetensors").rename(tmp_path / name / "w.safetensors")
        harness.finish(
            harness.config(rounds=1, weights=str(tmp_path / name / "w.safetensors")), out=tmp_path / f"from-{name}"
        )
    loaded = load.read([tmp_path / "from-a", tmp_path / "from-b"])
    assert len({each.name for each in loaded}) == 2
    assert all("model.weights=w.safetensors " in each.name for each in loaded)


def test_a_site_reads_no_file_that_a_coordinator_starts_from() -> None:
    config = configure(weights="/etc/passwd", model="mlp")
    guard.check_config(config, Rules(), {"site": 0}, given=False)
    context, _, spec = experiment.prepare(config, harness.inputs())
    assert tree.digest(context.net(spec).initial())
    with pytest.raises(UserError, match="damaged or no file of weights"):
        harness.finish(config)
