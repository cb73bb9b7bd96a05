"""The README's Python is executed, and its links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import fedskew
from fedskew.config.partition import PARTITION_NEEDS
from fedskew.data.transforms import augment
from fedskew.methods import index
from fedskew.models import registry
from tests.commands import succeed

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.S))
def test_the_python_of_the_readme_runs(code: str) -> None:
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["result"].best is not None  # type: ignore[attr-defined]


def test_the_python_of_the_record_s_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference/record.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/reference/record.md", "exec"), names)
    assert names["earlier"].end["last"] == names["result"].last
    assert (tmp_path / "both.png").exists()
    assert "Confirmed" in succeed("verify", "runs/vls")


def rows_of(heading: str) -> dict[str, str]:
    """First cells of the table under a heading of configuration.md, one for each name, and the second ones."""
    text = (ROOT / "docs/reference/configuration.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: line[1].strip() for line in lines for name in re.findall("`([^`]+)`", line[0])}


def test_every_partition_network_and_augmentation_is_documented() -> None:
    assert {name.partition(":")[0] for name in rows_of("Partitions")} == set(PARTITION_NEEDS)
    assert set(rows_of("Networks")) == set(registry.known())
    assert set(rows_of("Augmentations of training images")) == set(augment._PRESETS)


def test_the_readme_counts_the_methods_of_today() -> None:
    count = str(len(list(index.known())))
    assert re.findall(r"\b(\d+) methods, (?:alone|combined)", README) == [count, count]
    assert f"| fedskew {fedskew.__version__} |" in README


def test_the_readme_names_the_versions_that_are_tested_and_measured() -> None:
    """Flower of constraints.txt, and pfl-research of the benchmark beside it."""
    pinned = (ROOT / "constraints.txt").read_text() + (ROOT / "benchmarks/peers/requirements.txt").read_text()
    for name, package in (("Flower", "flwr"), ("pfl-research", "pfl")):
        (version,) = re.findall(rf"^{package}==(\S+)$", pinned, re.M)
        assert f"| {name} {version} |" in README


def test_the_readme_counts_the_methods_for_wrong_labels() -> None:
    """Those whose card says so; fedcorr-la is for what fedcorr is for."""
    uses = {entry.id: entry.card.use_when for entry in index.known()}
    wrong = {name for name, use in uses.items() if "wrong" in use or use.startswith("as fedcorr")}
    assert f"| simulated noise, {len(wrong)} methods, detection, review |" in README


def test_the_readme_has_the_trials_of_the_page() -> None:
    page = (ROOT / "docs/explanation/torture.md").read_text()
    (trials,) = re.findall(r"^(\d+) trials, 0 lost, 0 traceback, 0 hang, 0 unnamed\.$", page, re.M)
    assert f"[{int(trials):,} trials](docs/explanation/torture.md)" in README


def test_the_citation_is_of_this_version() -> None:
    assert f"version: {fedskew.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_ledger_has_every_entry_that_is_cited() -> None:
    listed = re.findall(r"^\| (D\d+) \|", (ROOT / "docs/reference/ledger.md").read_text(), re.M)
    texts = [path.read_text() for kind in ("py", "toml") for path in (ROOT / "src").rglob(f"*.{kind}")]
    texts += [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    assert listed == [f"D{number}" for number in range(1, len(listed) + 1)]
    assert {number for text in texts for number in re.findall(r"\bD\d+\b", text)} == set(listed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_why_fedvls_is_last_in_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on the page gives the figures below it, but for the rounding of another processor."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/results/demo.md").read_text()
    (command,) = re.findall(r"^fedskew (compare .*\\\n.*)$", page, re.M)
    succeed(*shlex.split(command.replace("\\\n", " ")))
    rows = {
        row["method"]: 100 * row["last"] for row in json.loads(Path("runs/why/comparison.json").read_text())["rows"]
    }
    said = re.findall(r"^\| `(\w+)` \| ([\d.]+) ", page, re.M)
    assert [method for method, _ in said] == ["fedavg", "fedcal", "fedvls"]
    for method, number in said:
        assert rows[method] == pytest.approx(float(number), abs=2), method


@pytest.mark.slow
def test_the_path_from_a_clone_to_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's numbered commands after the installation, with the files that it sends its reader for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (path,) = re.findall(r"^```\n(make run +# 1\..*?)^```$", README, re.M | re.S)
    first, activate, *lines = [shlex.split(line, comments=True) for line in path.splitlines()]
    assert (first, activate) == (["make", "run"], [".", ".venv/bin/activate"])
    assert "takes one command, your own data two more, your own method and the paper's table one more each" in " ".join(
        README.split()
    )
    tutorial = (ROOT / "docs/tutorials/your-own-data.md").read_text()
    exec(re.findall(r"```python\n(.*?)```", tutorial, re.S)[0], {})
    method = re.findall(r"```python\n(# methods/fedhush.py.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)[0]
    Path("fedhush.py").write_text(method)
    for program, *words in lines:
        assert program == "fedskew"
        succeed(*words)
    assert len(lines) == 3 and r"\toprule" in Path("table.tex").read_text()
    sys.modules.pop("fedhush", None)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "examples/README.md",
        *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if "://" not in link:
            assert ((ROOT / page).parent / link).exists(), link
