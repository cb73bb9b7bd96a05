"""Every command and every block of Python on the pages of the docs is executed, or the page says why it is not."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

from fedskew.cli import main
from tests.commands import succeed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    name
    for path in DOCS.rglob("*.md")
    if not (name := path.relative_to(DOCS).as_posix()).startswith(("reference/methods/", "reference/data/"))
)
#: that take more than some seconds; all others are among the fast tests
SLOW = {name for name in PAGES if name.startswith("tutorials/")} | {
    *(
        f"how-to/{name}.md"
        for name in ("choose-a-method", "export-the-model", "is-federating-worth-it", "report-for-a-paper", "sweep")
    ),
    *(f"explanation/{name}.md" for name in ("determinism", "detection", "privacy")),
    *("reference/configuration.md", "reference/noise.md", "index.md"),
}
BLOCK = re.compile(r"(?:<!-- not run: ([^>]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_BY = re.compile(r"^<!-- run by (\S+) -->$", re.MULTILINE)
RUNNABLE = ("sh", "bash", "python")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    #: why it is not run here
    reason: str

    def commands(self) -> list[list[str]]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text()
    return [Block(language, code, reason) for reason, language, code in BLOCK.findall(text)]


def not_run() -> dict[str, list[str]]:
    """The reasons, by page, also those of pages that another test executes."""
    found = {page: [block.reason for block in blocks(page) if block.reason] for page in PAGES}
    for page in PAGES:
        found[page] += RUN_BY.findall((DOCS / page).read_text())
    return {page: reasons for page, reasons in found.items() if reasons}


def test_what_is_not_run_here_is_known_and_says_why() -> None:
    assert not_run() == {
        "explanation/detection.md": ["takes many hours; tests/detection tries the programs"],
        "explanation/papers.md": ["needs MNIST and CIFAR-10"],
        "explanation/speed.md": ["takes 15 minutes; tests/benchmark/test_measure.py times small jobs"],
        "explanation/torture.md": ["takes hours; tests/project/test_torture.py makes some trials"],
        "how-to/callbacks.md": ["tests/experiment/callbacks/test_callbacks.py"],
        "how-to/federation.md": ["tests/federation/test_end_to_end.py"],
        "how-to/flower.md": ["tests/federation/test_docs.py"],
        "how-to/gpu.md": ["needs a GPU"],
        "how-to/label-review.md": ["tests/test_label_review.py"],
        "how-to/own-data.md": [
            "needs the library flwr-datasets; tests/data/custom/test_partitioned.py has a partitioner of the same kind",
            "tests/api/test_own_data.py",
        ],
        "how-to/large-networks.md": [
            "needs timm, and files of weights; tests/runtime/test_frozen.py adapts a network from a file"
        ],
        "how-to/ray.md": ["needs the extra ray; tests/engines/test_ray.py"],
        "how-to/report.md": ["serves the page until you stop it; tests/browser/test_watch.py looks at it"],
        "how-to/reproduce.md": [
            "needs MNIST and CIFAR-10; tests/reproduce makes tables from them",
            "reads the records under results/, and needs CIFAR-10",
        ],
        "how-to/slurm.md": [
            "needs a SLURM cluster; tests/examples/test_deployment.py runs a task of the script",
            "needs the runs above",
        ],
        "how-to/sweep.md": ["needs the extra track; tests/experiment/callbacks/test_trackers.py"],
        "reference/configuration.md": ["names files of yours; tests/config/test_consent.py"],
        "reference/noise.md": ["needs CIFAR-10 and its labels by people; tests/data/noise reads such files"],
        "reference/record.md": ["tests/project/test_readme.py"],
        "results/demo.md": ["takes two minutes; tests/project/test_readme.py compares the figures below"],
        "tutorials/README.md": ["installs the package"],
        "tutorials/four-hospitals.md": [
            "fetches the data; the test reads them beside the repository",
            "tests/federation/test_four_hospitals.py",
        ],
    }
    for reasons in not_run().values():
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", " ".join(reasons)):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES)
def test_each_page_starts_with_its_task(page: str) -> None:
    """A heading, then words; what can be typed is marked as such, so that it is executed."""
    title, _, first = (DOCS / page).read_text().partition("\n\n")
    assert re.fullmatch(r"# .+", title) and re.match(r"[A-Z`\[]|\*\*[A-Z]|fedskew |<!-- not run", first), first[:60]
    if not RUN_BY.search((DOCS / page).read_text()):
        for block in blocks(page):
            assert block.language in RUNNABLE or not re.match(r"(fedskew|import|python|\w+ = fedskew)\b", block.text), (
                block.text
            )
        assert not re.search(r"^    fedskew", (DOCS / page).read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in PAGES]
)
@pytest.mark.timeout(600)
def test_what_a_page_says_is_done(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSKEW_CACHE", str(tmp_path / ".cache"))
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)
    if any("heart-disease" in block.text for block in blocks(page)):
        monkeypatch.setenv("FEDSKEW_DATA", str(request.getfixturevalue("shared_data")))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    if RUN_BY.search((DOCS / page).read_text()):
        return
    names: dict[str, Any] = {}
    modules = set()
    for block in blocks(page):
        file = re.match(r"# (\w+)\.py\n", block.text)
        if block.language == "toml" and (named := re.match(r"# (\w+\.toml)\n", block.text)):
            Path(named[1]).write_text(block.text)
        if block.language not in RUNNABLE or block.reason:
            continue
        if file and block.language == "python":
            Path(f"{file[1]}.py").write_text(block.text)
            modules.add(file[1])
        elif block.language == "python":
            exec(compile(block.text, page, "exec"), names)
        else:
            for program, *words in block.commands():
                if program == "export":
                    monkeypatch.setenv(*words[0].split("=", 1))
                    continue
                assert program == "fedskew", program
                redirected = words.pop() if words[-2:-1] == [">"] else None
                said = succeed(*(word for word in words if word != ">"))
                if redirected:
                    Path(redirected).write_text(said)
    for module in modules:
        sys.modules.pop(module, None)


def test_numbers_of_forgetting_are_those_of_the_tables() -> None:
    section = (DOCS / "results/tables.md").read_text().split("## fedvls/table1/mnist-dir-0.05, paper\n")[1]
    scores, clients = re.findall(r"^\| `fedavg` (.*) \|$", section, re.MULTILINE)[:2]
    vacant, last10 = clients.split("|")[3].strip(), scores.split("|")[5].split("±")[0].strip()
    text = " ".join((DOCS / "explanation/label-skew.md").read_text().split())
    assert (
        f"fall to {vacant} % after their local work, where the global model that they received has {last10} %" in text
    )


def test_pictures_of_skew_show_what_the_page_says(tmp_path: Path) -> None:
    text = (DOCS / "explanation/label-skew.md").read_text()
    shown = re.findall(r"^## .*`([\w:.]+)`", text, re.MULTILINE)
    assert shown == ["iid", "dirichlet:0.5", "dirichlet:0.05", "labels:2"]
    for partition in shown:
        drawn = tmp_path / f"{partition.replace(':', '-')}.png"
        words = ["--dataset", "digits", "--partition", partition, "--clients", "10", "--kind", "dots", "-o", str(drawn)]
        said = " ".join(succeed("partition", *words).split())
        assert drawn.read_bytes() == (DOCS / "pictures" / "skew" / drawn.name).read_bytes(), partition
        section = " ".join(text.split(f"`{partition}`\n")[1].split("\n## ")[0].split())
        for few, many, median in re.findall(r"classes (\d+) to (\d+) \(median ([\d.]+)\)", said):
            if partition.startswith("dirichlet"):
                assert f"{few} to {many} classes" in section and median in section


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_a_browser_can_read_the_picture(picture: Path) -> None:
    """One wrong sign in an SVG, and browsers show nothing of it."""
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def typed() -> list[tuple[str, str]]:
    """Every line on any page that begins with fedskew, whether it is executed or not."""
    pages = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
    found = []
    for path in pages:
        text = path.read_text().replace("\\\n", " ")
        code = [*re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S), *re.findall(r"\n\n((?: {4}.*\n)+)", text)]
        lines = [line.strip() for block in code for line in block.splitlines()]
        found += [(str(path.relative_to(ROOT)), line) for line in lines if line.startswith("fedskew ")]
    return found


def test_commands_and_flags_exist_also_where_they_are_not_executed() -> None:
    lines = typed()
    assert len(lines) > 80
    for page, line in lines:
        words, context = shlex.split(line, comments=True)[1:], click.Context(main)
        command: click.Command = main
        flags = {flag for option in main.get_params(context) for flag in option.opts}
        while isinstance(command, click.Group) and words:
            word = words.pop(0)
            if word.startswith("-"):
                assert word in flags, (page, line)
                words = words[1:] if word == "--import" else words
                continue
            found = command.get_command(context, word)
            assert found is not None, (page, line)
            command, context = found, click.Context(found, parent=context)
            flags |= {flag for option in command.get_params(context) for flag in option.opts}
        for word in words:
            if word.startswith("-") and not re.match(r"-\d", word):
                assert word.partition("=")[0] in flags, (page, line)
