"""An exported model is the run's model; its card says what the record says; its data are described in Croissant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from fedskew.cli import main
from fedskew.data import croissant, registry
from fedskew.models import registry as networks
from fedskew.models import weights
from fedskew.record import reader
from tests.contract import harness


def export(*words: object) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, words)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = harness.config("fednoro(warmup=1)", clients_per_round=4, rounds=2)
    harness.finish(config, out=folder)
    return folder


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    out = run.parent / "model"
    done = export(run, "--out", out)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"Written to {out}: model.safetensors, README.md, config.json, croissant.json.\n"
    return out


def test_the_weights_are_the_runs_last(run: Path, exported: Path) -> None:
    given, wanted = load_file(exported / "model.safetensors"), weights.read(run).tensors
    assert given.keys() == wanted.keys() and all(torch.equal(given[name], wanted[name]) for name in wanted)


def test_the_network_can_be_built_from_the_folder_alone(exported: Path) -> None:
    stored = json.loads((exported / "config.json").read_text())
    spec = networks.Spec(stored["network"]["name"], stored["network"]["args"])
    network = networks.build(spec, len(stored["classes"]), tuple(stored["input"]["shape"]), seed=0)
    network.load_state_dict(load_file(exported / "model.safetensors"))
    assert stored["input"]["shape"] == [1, 8, 8] and len(stored["input"]["mean"]) == 1


def test_the_card_says_what_the_record_says(run: Path, exported: Path) -> None:
    _, front, text = (exported / "README.md").read_text().split("---\n", 2)
    found = yaml.safe_load(front)
    assert found["tags"] == ["federated-learning", "fedskew", "fednoro"] and found["datasets"] == ["arrays"]
    record = reader.read(run)
    assert record.end is not None
    assert f"accuracy of {100 * record.end['last']:.2f} %" in text and record.end["weights_sha256"] in text
    recalls = record.rounds[-1]["recall"]
    for label, recall in enumerate(recalls):
        assert any(line.startswith(f"| {label} |") and line.endswith(f"| {100 * recall:.1f} |")
                   for line in text.splitlines())  # fmt: skip
    verdict = record.setups[-1]["verdict"]
    assert f"says '{verdict['judgment']['verdict']}'" in text and "@inproceedings{wu2023fednoro," in text
    assert "No claim: nothing was added" in text and str(run.parent) not in text


def test_the_card_repeats_the_privacy_claim(tmp_path: Path) -> None:
    harness.finish(harness.config("fedavg+dp(clip=1.0, sigma=2.0)", rounds=1), out=tmp_path / "run")
    assert export(tmp_path / "run", "-o", tmp_path / "model").exit_code == 0
    end = reader.read(tmp_path / "run").end
    assert end is not None
    assert f"Differential privacy: {end['privacy']['statement']}." in (tmp_path / "model" / "README.md").read_text()


def test_an_export_is_replaced_and_nothing_else(run: Path, exported: Path, tmp_path: Path) -> None:
    assert export(run, "-o", exported).exit_code == 0
    (tmp_path / "mine.txt").touch()
    refused = export(run, "-o", tmp_path)
    assert refused.exit_code == 2 and "has other files, such as 'mine.txt'" in refused.stderr
    assert export(run, "-o", run).exit_code == 2  # the run folder itself


def test_a_run_without_an_end_is_refused(tmp_path: Path) -> None:
    harness.finish(harness.config(rounds=1), out=tmp_path / "run")
    record = tmp_path / "run" / reader.NAME
    record.write_bytes(b"".join(record.read_bytes().splitlines(keepends=True)[:-1]))
    done = export(tmp_path / "run", "-o", tmp_path / "model")
    assert done.exit_code == 2 and "is not finished. Type: fedskew resume" in done.stderr
    assert not (tmp_path / "model").exists()


# ---- ONNX -----------------------------------------------------------------------------------------------------------


def has_onnx() -> Any:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason="needs ONNX: pip install 'fedskew[onnx]'")
    return pytest.importorskip("onnx.reference").ReferenceEvaluator


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp", "resnet8"])
def test_onnx_gives_the_same_logits(network: str, tmp_path: Path) -> None:
    evaluator = has_onnx()
    harness.finish(harness.config(rounds=1, model=network), out=tmp_path / "run")
    done = export(tmp_path / "run", "-o", tmp_path / "model", "--onnx")
    assert done.exit_code == 0 and done.stderr == "", done.stderr
    module = networks.build(networks.Spec(network, {}), 10, (1, 8, 8), seed=1).eval()
    module.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))
    for size in (1, 7):  # any batch
        samples = torch.randn(size, 1, 8, 8)
        (logits,) = evaluator(str(tmp_path / "model" / "model.onnx")).run(None, {"samples": samples.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(logits, module(samples).numpy(), rtol=1e-4, atol=1e-5)


def test_without_onnx_a_sentence_says_what_to_install(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    done = export(run, "-o", tmp_path / "model", "--onnx")
    assert done.exit_code == 2 and "Type: pip install 'fedskew[onnx]'" in done.stderr
    assert not (tmp_path / "model").exists()


# ---- Croissant ------------------------------------------------------------------------------------------------------


def described(name: str, checksums: dict[str, str]) -> dict[str, Any]:
    return croissant.metadata(registry.info(name), name, checksums, ["a", "b"], "@misc{x,}")


def test_files_have_their_addresses_and_digests() -> None:
    read = {"train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb"}
    found = described("mnist", read)
    assert found["@type"] == "sc:Dataset" and found["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    files = {each["@id"]: each for each in found["distribution"]}
    assert len(files) == 5
    packed, plain = files["train-images-idx3-ubyte.gz"], files["read/train-images-idx3-ubyte"]
    assert packed["md5"] == "f68b3c2dcbeaaa9fbdd348bbdeb94873" and packed["contentUrl"].startswith("https://")
    assert plain["md5"] == "6bbc9ace898e44ae57da46a324031adb" and plain["containedIn"] == {"@id": packed["@id"]}


def test_a_file_that_is_the_download_is_described_once_unless_it_differs() -> None:
    assert len(described("ag-news", {"train.csv": "md5:b1a00f826fdfbd249f79597b59e1dc12"})["distribution"]) == 2
    changed = described("ag-news", {"train.csv": "md5:00"})["distribution"]
    assert [each["md5"] for each in changed if each["@id"] == "read/train.csv"] == ["00"]


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10", "ag-news", "isic2019", "own"])
def test_mlcroissant_accepts_it(name: str, tmp_path: Path) -> None:
    """Where mlcroissant is not installed, the properties that version 1.0 requires are looked for."""
    found = described(name, {"x_train": "sha256:" + "0" * 64})
    assert {"@context", "@type", "conformsTo", "name", "description", "distribution"} <= found.keys()
    for each in found["distribution"]:
        assert {"@id", "@type", "name", "contentUrl", "encodingFormat"} <= each.keys()
        assert {"md5", "sha256"} & each.keys()
    try:
        import mlcroissant
    except ImportError:
        return
    (tmp_path / "croissant.json").write_text(json.dumps(found))
    issues = mlcroissant.Dataset(str(tmp_path / "croissant.json")).metadata.ctx.issues
    assert not issues.errors
