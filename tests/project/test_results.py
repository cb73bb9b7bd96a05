"""Every number on the results page comes from a record: found there again by other means than the page's own."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from fedskew.config.schema import RunConfig
from fedskew.detection.history import cells_from_json
from fedskew.detection.mixture import Vote
from fedskew.detection.quality import Indicator, averaged, fits
from fedskew.reproduce import archive

# the first test to ask for it waits for the small queue, a minute on an idle machine
pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
LARGEST_PICTURE = 100_000

QUEUE = """
[[runs]]
id = "fednoro/table1/ham10000-rho0.4-eta0.5-0.7"
scale = "smoke"
methods = ["fedla", "fedcorr", "fednoro", "rofl"]
seeds = 2

[[runs]]
id = "fednoro/table3/ham10000-rho0.4-eta0.5-0.7"
scale = "smoke"

[[runs]]
id = "fedvls/table12"
scale = "smoke"
methods = ["fedavg", "fedvls"]

[[runs]]
id = "fedvls/table17"
scale = "smoke"
methods = ["fedavg", "fedvls"]

[[runs]]
id = "fedlmd/fig8/switch"
scale = "smoke"
precision = "bf16"
"""


def script(name: str, *words: object) -> str:
    """Return what a script prints, here: a process of its own would import everything again."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(sys, "argv", [name, *map(str, words)])
        patch.syspath_prepend(ROOT / "scripts")
        try:
            runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")
        except SystemExit as ended:
            assert not ended.code
    return printed.getvalue()


@dataclass(frozen=True)
class Made:
    """A page and the records that it is made from."""

    docs: Path
    results: Path

    @property
    def text(self) -> str:
        return (self.docs / "tables.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("docs"), ROOT / "results")
    # as `make results` starts it
    subprocess.run([sys.executable, ROOT / "scripts" / "results_page.py", made.docs], check=True)
    return made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Tables of every kind at smoke scale, but for one method that is not run."""
    made = Made(tmp_path_factory.mktemp("docs"), tmp_path_factory.mktemp("results"))
    (made.results / "queue.toml").write_text(QUEUE.replace(', "rofl"', ""))
    script("results.py", "--results", made.results)
    (made.results / "queue.toml").write_text(QUEUE)
    (made.results / "remarks.toml").write_text('"fedvls/table12" = "A remark."\n')
    script("results_page.py", made.docs, made.results)
    return made


#: measured outside of this project, with the authors' code; the other two numbers are ours and the paper's
SAID_OF_THE_RELEASED_CODE = """
The authors' own released FedVLS code, on MNIST with Dirichlet 0.05, on the same partition and tested as it tests, gives
best 90.41 % in 50 rounds. It was measured for us: the released client and server classes, unchanged but for the
device, lambda 0.1, lr 0.01, seed as released. Ours has 91.10 there, and print 95.56. The released code does not give
the printed number, and ours agrees with it.
"""

# ---- a page, read without knowing how it was written ----------------------------------------------------------------

Record = list[dict[str, Any]]

SETTING = re.compile(
    r"(?P<data>[\w-]+), (?P<model>[\w-]+), (?P<split>\w+)(?: (?P<number>[\d.]+))?, (?P<clients>\d+) clients, "
    r"(?P<asked>\w+) a round, (?P<epochs>\d+) epochs?, batch (?P<batch>\d+)"
)
TABLE3: dict[str, tuple[bool, Indicator]] = {
    "lid": (False, "lid"), "conf": (False, "confidence"), "loss": (False, "loss"), "loss+la": (True, "loss"),
    "loss+pc": (False, "raw cells"), "loss+la+pc": (True, "raw cells"), "loss+la+pc+norm": (True, "cells"),
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    id: str
    scale: str
    #: those of the section: methods may have epochs of their own
    settings: list[dict[str, str]]
    heading: list[str]
    rows: list[dict[str, str]]
    #: of the section, in the text around
    balanced: bool


def tables(text: str) -> Iterator[Table]:
    for section in text.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        name, _, scale = title.partition(", ")
        settings = [found.groupdict() for found in SETTING.finditer(body)]
        for block in re.findall(r"(?:^\|.*\n?)+", body, re.MULTILINE):
            heading, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
            rows = [dict(zip(heading, line, strict=True)) for line in lines]
            yield Table(name, scale, settings, heading, rows, "Balanced accuracy" in body)


def records(results: Path) -> list[Path]:
    return sorted(path for folder in archive.folders(results) for path in folder.rglob("record.jsonl"))


def fitting(results: Path, table: Table) -> list[list[Record]]:
    """Records with the section's data and network; those that differ in their seed only together, the first n of them.

    A table may want fewer seeds than another has run.
    """
    wanted = {(each["data"], each["model"], int(each["epochs"]), int(each["batch"])) for each in table.settings}
    groups: dict[str, list[Record]] = {}
    for path in records(results):
        lines, config = parsed(path)
        named = (
            config["data"]["name"],
            config["model"]["name"],
            config["local"]["epochs"],
            config["local"]["batch_size"],
        )
        if named in wanted:
            groups.setdefault(json.dumps(config | {"seed": 0, "method": lines[0]["method"]}), []).append(lines)
    by_seed = [sorted(group, key=lambda lines: lines[0]["config"]["seed"]) for group in groups.values()]
    return [group[:n] for group in by_seed for n in range(1, len(group) + 1)]


@cache
def parsed(path: Path) -> tuple[Record, dict[str, Any]]:
    """The lines of a record, and its configuration: settings that were added since it was made have their defaults."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return lines, RunConfig.model_validate(lines[0]["config"]).model_dump()


def same_split(table: Table, run: Record) -> bool:
    config = run[0]["config"]
    split = config["partition"]
    asked = "all" if config["clients_per_round"] is None else str(config["clients_per_round"])
    number = next((f"{split[key]:g}" for key in ("alpha", "s") if split.get(key) is not None), None)
    return (split["name"], number, str(split["clients"]), asked) in [
        (each["split"], each["number"], each["clients"], each["asked"]) for each in table.settings
    ]


def rounds(run: Record) -> list[dict[str, Any]]:
    return [line for line in run if line["kind"] == "round"]


def spread(values: list[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {pstdev(values):.2f}" if len(values) > 1 else "")


def check_runs(table: Table, row: dict[str, str], groups: list[list[Record]]) -> None:
    key = "balanced_accuracy" if table.balanced else "accuracy"
    (method,) = re.findall("`(.*)`", row["method"])
    candidates = []
    for group in groups:
        curves = [[100 * line[key] for line in rounds(run) if line["counted"] and key in line] for run in group]
        if group[0][0]["method"] == method and same_split(table, group[0]):
            shown = {
                "seeds": str(len(group)),
                "rounds": str(sum(line["counted"] for line in rounds(group[0]))),
                "best": spread([max(curve) for curve in curves]),
                "last": spread([curve[-1] for curve in curves]),
                "mean of last 10": spread([fmean(curve[-10:]) for curve in curves]),
                "seconds": f"{fmean(sum(line['seconds'] for line in rounds(run)) for run in group):.0f}",
            }
            candidates.append(shown)
    there = {
        name: row[name].split(" of ")[0] for name in ("seeds", "rounds", "best", "last", "mean of last 10", "seconds")
    }
    assert there in candidates, (table.id, row)
    if row.get("difference", "–") != "–":
        check_printed(table, row)


def check_printed(table: Table, row: dict[str, str]) -> None:
    """The cell of published.toml, read here; and that the run is as long as the paper's."""
    published = tomllib.loads((ROOT / "src/fedskew/reproduce/published.toml").read_text())
    paper, number, column = table.id.split("/")
    there = published[f"{paper}/{number}"]
    name = row["method"].strip("`").split(":")[0].split("(")[0]
    best, *deviation = there["rows"][name].split()[there["columns"].index(column)].split("/")
    assert row["printed best"] == " ± ".join([best, *deviation])
    assert float(row["difference"]) == pytest.approx(float(row["best"].split(" ± ")[0]) - float(best), abs=0.0101)
    assert table.scale == "paper" and " of " not in row["rounds"]


def check_clients(table: Table, row: dict[str, str], groups: list[list[Record]]) -> None:
    (method,) = re.findall("`(.*)`", row["method"])
    found = []
    for group in groups:
        late = [rounds(run)[-10:] for run in group]
        if group[0][0]["method"] == method and "client_vacant" in late[0][0] and same_split(table, group[0]):
            shares = [
                f"{100 * fmean(fmean(line[f'client_{name}'] for line in lines) for lines in late):.2f}"
                for name in ("majority", "minority", "vacant")
            ]
            found.append([*shares, f"{fmean(fmean(line['drift_diversity'] for line in lines) for lines in late):.2f}"])
    assert [row[name] for name in ("majority", "minority", "vacant", "drift diversity")] in found, (table.id, row)


def check_detections(table: Table, row: dict[str, str], groups: list[list[Record]]) -> None:
    board = table.id.startswith("fnbench")
    most = 2 if board else 1  # parameters of a row that is no variant
    runs = {
        run[0]["method"].split("(")[0]: run
        for group in groups
        for run in group
        if str(run[0]["config"]["seed"]) == row["seed"] and run[0]["method"].count("=") <= most
        if (run[0]["config"]["noise"]["kind"] == "none") == ("clean" in table.id)
        if not board or run[0]["config"]["noise"]["kind"] in table.id
    }
    setup_line = next(line for line in reversed(runs["fednoro"]) if line["kind"] == "setup")["verdict"]
    noise = runs["fednoro"][0]["noise"]
    named = [", ".join(map(str, who)) or "nobody" for who in (setup_line["noisy"], noise["noisy"] if noise else [])]
    digests = [runs[name][-1]["weights_sha256"] for name in ("fednoro", "fedla") if name in runs]
    same = "–" if len(digests) < 2 else "yes" if digests[0] == digests[1] else "no"
    assert [row["verdict"], float(row["p"])] == [
        setup_line["judgment"]["verdict"],
        round(setup_line["judgment"]["p_value"], 3),
    ]
    assert [row["found noisy"], row["truly noisy"], row["same weights as fedla"]] == [*named, same]


def check_quality(table: Table, row: dict[str, str], groups: list[list[Record]]) -> None:
    assert [row["recall"], row["precision"], row["match"]] in qualities(row, groups), (table.id, row)


def qualities(row: dict[str, str], groups: list[list[Record]]) -> Iterator[list[str]]:
    """One after another: each takes a thousand fits."""
    adjusted, indicator = TABLE3.get(row["method"], (True, "cells"))
    for group in groups:
        verdicts = [[line["verdict"] for line in run if line["kind"] == "setup"] for run in group]
        setups = [[each for each in verdict if "judgment" in each] for verdict in verdicts]
        if group[0][0]["noise"] and ("la=False" not in group[0][0]["method"]) == adjusted and all(setups):
            for at in range(len(setups[0])) if "setting" in row else [-1]:
                judged = []
                for run, verdict in zip(group, setups, strict=True):
                    vote = thousand_fits(indicator, json.dumps([verdict[at]["cells"], verdict[at]["scalars"]]))
                    judged.append(averaged(vote, run[0]["noise"]["noisy"]))
                yield [spread([100 * getattr(q, name) for q in judged]) for name in ("recall", "precision", "exact")]


@cache
def thousand_fits(indicator: Indicator, reported: str) -> Vote:
    cells, scalars = json.loads(reported)
    stated = {int(client): values for client, values in scalars.items()}
    return fits(indicator, cells_from_json(cells), stated, 1000)


def check_recalls(table: Table, row: dict[str, str], groups: list[list[Record]]) -> None:
    found = []
    for run in (run for group in groups for run in group):
        recall = [100 * share for share in rounds(run)[-1]["recall"]]
        if row[""].split(",")[0] in ("global", run[0]["method"].split("(")[0]):
            found.append([f"{value:.2f}" for value in (*recall, sum(recall) / len(recall))])
    assert [value for name, value in row.items() if name] in found, (table.id, row)


def check_best(table: Table, row: dict[str, str], groups: list[list[Record]]) -> None:
    bests = [spread([100 * max(line["accuracy"] for line in rounds(run)) for run in group]) for group in groups]
    assert row["best"] in bests, (table.id, row)


def check_drift(table: Table, row: dict[str, str], groups: list[list[Record]]) -> None:
    kin = [group for group in groups if group[0][0]["method"].split("(")[0] == row["method"]]
    drifts = [[rounds(run)[-1].get("drift_diversity") for run in group] for group in kin]
    assert row["drift"] in [spread(values) for values in drifts if None not in values], (table.id, row)


def check_others(table: Table, row: dict[str, str], results: Path) -> None:
    places = [folder / row["record"].strip("`") / "record.jsonl" for folder in archive.folders(results)]
    (path,) = (place for place in places if place.exists())
    run = [json.loads(line) for line in path.read_text().splitlines()]
    curve = [100 * line["accuracy"] for line in rounds(run) if "accuracy" in line]
    assert row["method"] == f"`{run[0]['method']}`" and row["rounds"] == str(len(rounds(run)))
    assert [row["best"], row["last"]] == [f"{max(curve):.2f}", f"{curve[-1]:.2f}"]
    assert row["mean of last 10"] == f"{sum(curve[-10:]) / len(curve[-10:]):.2f}"


#: by a column that only this kind of table has
CHECKS: dict[str, Callable[[Table, dict[str, str], list[list[Record]]], None]] = {
    "seconds": check_runs,
    "vacant": check_clients,
    "verdict": check_detections,
    "precision": check_quality,
    "class-0": check_recalls,
    "drift": check_drift,
    "best": check_best,
}


def check_page(made: Made) -> set[str]:
    """All rows of all tables; a kind of table that is not known here fails. Returns the kinds."""
    kinds = set()
    for table in tables(made.text):
        if "record" in table.heading:
            for row in table.rows:
                check_others(table, row, made.results)
            continue
        kind = next(column for column in CHECKS if column in table.heading)
        groups = fitting(made.results, table)
        for row in table.rows:
            CHECKS[kind](table, row, groups)
        kinds.add(kind)
    return kinds


# ---- the tests ------------------------------------------------------------------------------------------------------


def test_the_committed_page_is_that_of_the_records(committed: Made) -> None:
    assert committed.text == Made(ROOT / "docs" / "results", ROOT / "results").text
    drawn, there = ({p.name for p in (d / "pictures").iterdir()} for d in (committed.docs, ROOT / "docs" / "results"))
    assert drawn == there


def test_the_answers_have_the_numbers_of_the_tables(committed: Made) -> None:
    """Of the template each name of a figure is looked up in the tables, which the tests here trace to the records."""
    template = (ROOT / "results" / "questions.md").read_text()
    answers = (ROOT / "docs" / "results" / "README.md").read_text()
    assert answers == (committed.docs / "README.md").read_text()
    columns = {"best": "best", "last10": "mean of last 10", "seeds": "seeds", "printed": "printed best"}
    cells = {
        (table.id, row["method"].split(":")[0].strip("`").split("(")[0], which): row[column].split(" ± ")[0]
        if which == "printed"
        else row[column]
        for table in tables(committed.text)
        for row in table.rows
        for which, column in columns.items()
        if column in row and "seconds" in row
    }
    figures = re.findall(r"\{(\S+) (\S+) (\w+)\}", template)
    assert len(figures) > 40
    for name, method, which in figures:
        answers_cell = cells[name, method, which]
        template = template.replace("{" + f"{name} {method} {which}" + "}", answers_cell)
    assert template == answers


def test_no_other_number_is_among_the_answers() -> None:
    template = (ROOT / "results" / "questions.md").read_text()
    assert " ".join(SAID_OF_THE_RELEASED_CODE.split()) in " ".join(
        (ROOT / "docs/results/README.md").read_text().split()
    )
    without = re.sub(r"\{[^}]*\}|Dirichlet 0\.\d+|lambda 0\.1|lr 0\.01", "", template)
    assert re.findall(r"\d+\.\d+", without) == ["90.41"]


def test_every_number_of_the_committed_page_is_in_a_record(committed: Made) -> None:
    assert {"seconds", "vacant"} <= check_page(committed)


def test_every_kind_of_table_comes_from_records(small: Made) -> None:
    assert check_page(small) == set(CHECKS) - {"vacant"}
    assert "Not run yet: rofl." in small.text and "A remark." in small.text
    assert "printed best" not in small.text and "+/-" not in small.text
    command = "fedskew reproduce fedlmd/fig8/switch --scale smoke --precision bf16 --seeds 1 --records results"
    assert f"Made by `{command}`; seed 2022; bf16; commit " in small.text


def test_a_changed_number_is_noticed(small: Made, tmp_path: Path) -> None:
    """The checks above can fail: one digit of one row of each table is turned."""
    for table in tables(small.text):
        column = next(c for c in ("last", "p", "recall", "class-6", "drift", "best") if c in table.heading)
        row = table.rows[0]
        wrong = row | {column: re.sub(r"\d(?=\D*$)", lambda m: str((int(m[0]) + 1) % 10), row[column])}
        kind = next(name for name in CHECKS if name in table.heading)
        with pytest.raises(AssertionError):
            CHECKS[kind](table, wrong, fitting(small.results, table))


def test_a_second_time_nothing_is_run_and_the_page_is_the_same(small: Made, tmp_path: Path) -> None:
    (small.results / "queue.toml").write_text(QUEUE.replace(', "rofl"', ""))
    before = {path: path.read_bytes() for path in small.results.rglob("record.jsonl")}
    assert script("results.py", "--results", small.results) == ""
    assert {path: path.read_bytes() for path in small.results.rglob("record.jsonl")} == before
    (small.results / "queue.toml").write_text(QUEUE)
    script("results_page.py", tmp_path, small.results)
    assert (tmp_path / "tables.md").read_text() == small.text


def test_the_queue_asks_for_identifiers_that_exist_and_goes_on_when_data_are_missing(tmp_path: Path) -> None:
    (tmp_path / "queue.toml").write_text(
        '[[runs]]\nid = "fedlmd/table1/cifar10-lda-0.05"\nscale = "paper"\nmethods = ["fedavg"]\n'
        '[[runs]]\nid = "fedlmd/table2/cifar10-lda-0.05"\nscale = "smoke"\nmethods = ["fedavg"]\n'
    )
    command = [sys.executable, ROOT / "scripts" / "results.py", "--results", tmp_path]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": "/usr/bin", "FEDSKEW_DATA": str(tmp_path)}
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1 and "fedlmd/table1/cifar10-lda-0.05, fedavg, seed 2022: " in done.stderr
    (ended,) = tmp_path.rglob("record.jsonl")
    assert '"kind":"end"' in ended.read_text()


def test_remarks_belong_to_something_and_hold_no_measured_number() -> None:
    remarks = tomllib.loads((ROOT / "results" / "remarks.toml").read_text())
    page = Made(ROOT / "docs" / "results", ROOT / "results").text
    for name, text in remarks.items():
        assert f"\n## {name}, " in page and not re.search(r"\d\.\d", text), name


def test_commits_that_pages_name_are_in_the_history_or_said_not_to_be() -> None:
    def git(*words: str) -> str:
        return subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True).stdout

    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("no history to look in")
    said = (ROOT / "docs" / "how-to" / "reproduce.md").read_text(encoding="utf-8").partition("not have (")[2]
    missing = set(re.findall(r"\b[0-9a-f]{7}\b", said.partition(")")[0]))
    named = set()
    for page in (ROOT / "docs").rglob("*.md"):
        named |= set(re.findall(r"`([0-9a-f]{7})`", page.read_text(encoding="utf-8")))
    history = {commit[:7] for commit in git("rev-list", "--all").split()}
    assert named - history == missing


def test_pictures_are_small() -> None:
    for path in (ROOT / "docs" / "results" / "pictures").iterdir():
        assert path.stat().st_size <= LARGEST_PICTURE, path


def test_records_name_no_folder_of_anybodys_machine() -> None:
    found = records(ROOT / "results")
    assert found
    for path in found:
        header = path.read_text().partition("\n")[0]
        assert '"dir":null' in header and "/home/" not in header and "/root/" not in header and "/work/" not in header
