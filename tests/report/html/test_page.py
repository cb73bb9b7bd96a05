from __future__ import annotations

import csv
import io
import json
import re
import time
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedskew import config as configuration
from fedskew.cli import main
from fedskew.record import reader as record
from fedskew.record.schema import EndLine, HeaderLine, RoundLine
from fedskew.record.writer import LineWriter
from fedskew.report import breakdowns, load, seed_statistics, standings
from fedskew.report.html import page, panels
from tests.report import detected, fakes

VOID = ("meta", "img", "br", "input")
HEADINGS = [
    "What was run, and on what data",
    "Is it better than each site alone?",
    "Which method wins",
    "Curves over the rounds",
    "How good the models are",
    "Which clients took part",
    "Results by class",
    "Results on classes that a client has, and on classes it lacks",
    "Results by client",
    "Confusion matrices",
    "Partition of the data",
    "Which labels are wrong",
    "Results and cost of each run",
    "How to run it again",
]


class _Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.linked += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> _Outline:
    """The page read from end to end: every element that was opened is closed."""
    read = _Outline()
    read.feed(text)
    read.close()
    assert not read.open
    return read


def words(text: str) -> str:
    """What a reader sees of a panel or a page."""
    bare = re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(bare))


def curves(text: str) -> dict[str, Any]:
    """The numbers that the page draws."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.fixture
def loaded(tmp_path: Path) -> list[load.LoadedRun]:
    whole = fakes.write(
        tmp_path / "whole", [0.25, 0.5, 0.75], client_majority=0.5, client_minority=0.5, client_vacant=0.0
    )
    half = fakes.write(tmp_path / "half", [0.25], method="fedprox", end=False)
    with (half / "record.jsonl").open("a") as record:
        record.write('{"kind":"round","rou')
    return load.read([whole, half])


def test_the_page_is_complete_and_loads_nothing(loaded: list[load.LoadedRun]) -> None:
    linked = outline(page.html(loaded)).linked
    assert linked == [f"#{name}" for name in panels.PANELS]


def test_the_page_answers_in_order(loaded: list[load.LoadedRun]) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", page.html(loaded))
    assert headings == HEADINGS


def test_the_page_says_what_was_run_and_what_came_out(loaded: list[load.LoadedRun]) -> None:
    text = words(page.html(loaded))
    for expected in ("fedprox", "75.00", "15 training and 6 test samples", "1,234 parameters", "5eed", "digest of 0.5"):
        assert expected in text
    assert "fedskew run --method fedavg" in text
    assert "ends in the middle of line 3" in text
    assert "fedprox, seed 0: stopped after 1 of 3 rounds" in text


def test_the_curves_are_the_records_numbers(loaded: list[load.LoadedRun]) -> None:
    drawn = curves(page.html(loaded))
    assert drawn["groups"] == ["fedavg", "fedprox"]
    assert drawn["metrics"][0]["label"] == "accuracy of the global model"
    assert [[row[0], row[1]] for row in drawn["runs"][0]["rows"]] == [[1, 0.25], [2, 0.5], [3, 0.75]]
    assert [[row[0], row[1]] for row in drawn["runs"][1]["rows"]] == [[1, 0.25]]


def test_names_from_records_are_escaped(loaded: list[load.LoadedRun]) -> None:
    assert "toy <b>" not in page.html(loaded)
    assert "toy &lt;b&gt;" in page.html(loaded)


def test_a_name_cannot_end_the_data_of_the_curves(tmp_path: Path) -> None:
    text = page.html(load.read([fakes.write(tmp_path / "run", [0.5], method="</script><b>")]))
    assert curves(text)["groups"] == ["</script><b>"]


def test_names_that_are_no_text_are_spelled_out(tmp_path: Path) -> None:
    """A folder of images that was named in Latin-1 is a class called so."""
    labels = ["caf\udce9", "b", "c"]
    path = fakes.write(tmp_path / "run", [0.5], fields={"data": fakes.header("fedavg", 0)["data"] | {"labels": labels}})
    result = CliRunner().invoke(main, ["report", str(path), "-o", str(tmp_path / "report.html")])
    assert result.exit_code == 0, result.output
    assert "caf\\udce9" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_class_without_test_samples_has_no_recall(loaded: list[load.LoadedRun]) -> None:
    assert "| b | 7 | – | – |" in page.markdown(loaded)


def test_notes_on_the_data_are_shown_for_every_task(tmp_path: Path) -> None:
    data = fakes.header("fedavg", 0)["data"]
    for alpha, note in ((0.1, "labels were read from the folders' names"), (0.5, "scored on 6 samples held back")):
        fakes.write(tmp_path / str(alpha), [0.5], alpha=alpha, fields={"data": data | {"notes": [note]}})
    loaded = load.read([tmp_path])
    for text in (words(page.html(loaded)), page.markdown(loaded)):
        assert "labels were read from the folders' names" in text
        assert "scored on 6 samples held back" in text


def test_where_runs_of_a_task_differ_the_setting_says_so(tmp_path: Path) -> None:
    for lr in (0.1, 0.5):
        fakes.write(tmp_path / str(lr), [0.5], config={"local": {"lr": lr}})
    facts = panels.setting(standings.tasks(load.read([tmp_path]))[0])
    one, other = facts["local training"].split("; or ")
    assert "learning rate 0.1" in one and "learning rate 0.5" in other
    assert facts["rounds"] == "3, 2 clients in each"
    for lr in (0.2, 0.3, 0.4):
        fakes.write(tmp_path / str(lr), [0.5], config={"local": {"lr": lr}})
    facts = panels.setting(standings.tasks(load.read([tmp_path]))[0])
    assert facts["local training"].endswith("; or others")


def test_a_coordinator_says_that_it_does_not_know_the_samples(tmp_path: Path) -> None:
    nothing = {"counts": [[0, 0, 0], [0, 0, 0]], "checksums": {}}
    for method in ("fedavg", "fedprox"):
        fakes.write(tmp_path / method, [0.5], method, fields=nothing)
    loaded = load.read([tmp_path])
    for text in (words(page.html(loaded)), page.markdown(loaded)):
        assert "toy <b>: sample counts known only to the sites, 3 classes" in unescape(text)
        assert "without checksums it is unknown whether these runs used the same data" in text
        assert "0 to 0 samples" not in text
        assert "training samples" not in text and "sites in a federation do not share" in words(page.html(loaded))


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (["reproduce", "fedvls/table1", "--seeds", "2"], ("command", "fedskew reproduce fedvls/table1 --seeds 2")),
        (["sweep", "a b.toml"], ("command", "fedskew sweep 'a b.toml'")),
        (["--import", "mine", "run"], ("command", "fedskew --import mine run")),
        (["--import=mine", "compare"], ("command", "fedskew --import=mine compare")),
        (["--results", "results"], ("started by", "a script: --results results")),
        (["coordinator", "--address", "127.0.0.1:9"], ("started by", "fedskew federation run")),
        ([], ("started by", "a script")),
    ],
)
def test_whatever_started_a_run_is_shown(tmp_path: Path, words: list[str], listed: tuple[str, str]) -> None:
    (each,) = load.read([fakes.write(tmp_path / "run", [0.5], fields={"command": words})])
    facts = panels.again(each)
    assert facts[listed[0]] == listed[1]
    assert len({"command", "started by"} & facts.keys()) == 1


def test_the_configuration_is_one_that_can_be_run_again(tmp_path: Path) -> None:
    (each,) = load.read([fakes.write(tmp_path / "run", [0.5], method="fedprox(mu=0.5)")])
    (tmp_path / "again.toml").write_text(panels.config_text(each))
    assert configuration.load(tmp_path / "again.toml").model_dump() == each.config
    assert panels.config_text(replace(each, run=record.RunRecord())) == "unknown"
    unknown = replace(each, run=record.RunRecord({"config": {"later": 1}}))
    assert json.loads(panels.config_text(unknown)) == {"later": 1}


def test_seeds_have_a_column_of_their_own_among_the_costs(loaded: list[load.LoadedRun]) -> None:
    (task,) = standings.tasks(loaded)
    table = panels.costs(task)
    assert table.heading[:2] == ["run", "seed"]
    assert [row[:3] for row in table.rows] == [["fedavg", "0", "75.00"], ["fedprox", "0", "25.00"]]


def test_a_page_of_markdown_has_every_table(loaded: list[load.LoadedRun]) -> None:
    text = page.markdown(loaded)
    assert text.count("| --- |") == 4  # standings, classes, vacant classes, cost
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == HEADINGS
    assert text.count("This is drawn; the page of '--format html' shows it.") == 2  # curves, partition
    assert "The intervals are not corrected for the number of methods" in text
    assert "> fedprox, seed 0: stopped after 1 of 3 rounds" in text
    assert "Client models were not scored" in text


def test_a_page_of_markdown_has_detections_and_confusions(tmp_path: Path) -> None:
    folder = detected.write(tmp_path / "run", detected.setup_line(detected.cells([2, 5])))
    fakes.append(folder, '{"kind":"end","seconds":1.0,"confusion":[[8,1,0],[0,7,0],[0,0,6]]}')
    text = page.markdown(load.read([folder]))
    assert "**fednoro, seed 0: 2 of 10 sites probably have wrong labels: 2, 5**" in text
    assert "| mole | 8 | 1 | · |" in text


def test_a_detection_has_the_influence_since_without_being_judged_again(tmp_path: Path) -> None:
    folder = detected.write(tmp_path / "run", detected.setup_line(detected.cells([1], clients=2, gap=0.1), round=2))
    before = load.read([folder])
    first = page.draw(before)
    fakes.append(folder, '{"kind":"round","round":3,"accuracy":0.5,"shares":{"0":0.6,"1":0.4}}')
    now = load.read([folder])
    assert page.unchanged(before, now) == ["partition"]
    judged = panels._detection.cache_info().misses
    second = page.draw(now, first, page.unchanged(before, now))
    assert panels._detection.cache_info().misses == judged
    # client 0 holds 6 of 15 samples and has 0.6 of the weight: 0.6 / 0.4 of that by samples
    assert "150 %" in words(second.panels["detection"]) and "150 %" not in words(first.panels["detection"])


def test_a_picture_is_a_picture(loaded: list[load.LoadedRun]) -> None:
    assert page.png(loaded).startswith(b"\x89PNG")


def test_csv_has_one_line_for_each_round(loaded: list[load.LoadedRun]) -> None:
    rows = list(csv.DictReader(io.StringIO(page.rounds_csv(loaded))))
    assert [(row["run"], row["round"], row["accuracy"]) for row in rows][-2:] == [
        ("fedavg", "3", "0.75"),
        ("fedprox", "1", "0.25"),
    ]
    assert {metric.key for metric in seed_statistics.METRICS} < rows[0].keys()  # all that the page can draw


@pytest.mark.parametrize("kind", page.FORMATS)
def test_an_empty_record_still_makes_a_page(tmp_path: Path, kind: str) -> None:
    (tmp_path / "record.jsonl").write_text("")
    assert page.FORMATS[kind](load.read([tmp_path]))


# ---- odd records ----------------------------------------------------------------------------------------------------


def test_one_run_of_one_round(tmp_path: Path) -> None:
    text = page.html(load.read([fakes.write(tmp_path / "run", [0.5])]))
    outline(text)
    assert "The best accuracy of fedavg is 50.00 %; there is nothing to compare it with." in words(text)
    assert len(curves(text)["runs"][0]["rows"]) == 1


def test_scores_that_are_not_numbers(tmp_path: Path) -> None:
    text = page.html(load.read([fakes.write(tmp_path / "run", [0.5, float("nan")], test_loss=float("inf"))]))
    outline(text)
    assert [row[1] for row in curves(text)["runs"][0]["rows"]] == [0.5, "nan"]
    assert "accuracy of the global model is not a number in 1 of 2 rounds" in words(text)
    assert "loss of the global model is not a number in 2 of 2 rounds" in words(text)
    assert "fedavg 1 50.00 – NaN" in words(text)


def test_rounds_without_a_model_to_evaluate(tmp_path: Path) -> None:
    for name, accuracies in {"begun": [None, None], "later": [None, 0.5]}.items():
        fakes.write(tmp_path / name, accuracies, method="fedconcat", seed=len(name), recall=None)
    text = words(page.html(load.read([tmp_path / "begun"])))
    assert "No model was evaluated, so there is no best accuracy." in text
    assert "No run has the recall of each class" in text
    assert [row[1] for row in curves(page.html(load.read([tmp_path / "later"])))["runs"][0]["rows"]] == [None, 0.5]


def test_a_thousand_clients_and_two_hundred_classes(tmp_path: Path) -> None:
    clients = [{"client": k, "accuracy_all": k / 1000, "recall": []} for k in range(1000)]
    confusion = [[5 if y == b else int(b == 7) for b in range(200)] for y in range(200)]
    header = fakes.header("fedavg", 0) | {"counts": [[(k + c) % 3 for c in range(200)] for k in range(1000)]}
    header["data"] = header["data"] | {"labels": [f"class {c}" for c in range(200)]}
    (tmp_path / "run").mkdir()
    writer = LineWriter.create(tmp_path / "run" / record.NAME, HeaderLine(**header))
    writer.write(RoundLine(round=1, counted=True, accuracy=0.5, recall=[0.5] * 200, clients=clients))
    writer.write(EndLine(seconds=1.0, confusion=confusion))
    writer.close()
    text = page.html(load.read([tmp_path / "run"]))
    outline(text)
    assert len(text) < 1_000_000
    assert "900 clients with better results are left out." in words(text)
    assert "class 199" in words(text) and text.count('href="data:image/png') == 2
    # class 0 is predicted as class 7 once in 5 + 1 times
    assert "class 0 class 7 1 16.7" in words(text)


def test_confusions_of_many_methods_are_cut_to_the_best_and_the_page_says_so(tmp_path: Path) -> None:
    for method in range(breakdowns.MOST_CONFUSIONS + 2):
        folder = fakes.write(tmp_path / str(method), [method / 100], method=f"m{method}", end=False)
        fakes.append(folder, '{"kind":"end","seconds":1.0,"confusion":[[1,0,0],[0,1,0],[0,0,1]]}')
    text = page.html(load.read([tmp_path]))
    assert text.count("Only the best methods") == 2
    assert text.count("true \\ predicted") == breakdowns.MOST_CONFUSIONS


def test_fifty_runs_of_two_hundred_rounds_are_quick_and_small(tmp_path: Path) -> None:
    shares = [0.1 + 0.8 * (1 - 0.99**r) + (r * 7919 % 101) / 5000 for r in range(200)]
    for method in range(10):
        for seed in range(5):
            extra = dict.fromkeys(("balanced_accuracy", "client_all", "client_majority", "client_vacant"), 0.123456)
            accuracies: list[float | None] = [share + seed / 1000 for share in shares]
            fakes.write(
                tmp_path / f"{method}-{seed}", accuracies, f"fedprox(mu={method})", seed, loss=1.2345678, **extra
            )
    began = time.process_time()
    text = page.html(load.read([tmp_path]))
    assert time.process_time() - began < 10
    assert len(text.encode()) < 5_000_000


def _tail(folder: Path) -> tuple[bytes, int]:
    """A whole record, and where its last round begins."""
    content = (fakes.write(folder, [0.25, 0.5]) / record.NAME).read_bytes()
    return content, content.rindex(b"\n", 0, content.rindex(b'{"kind":"end"') - 1) + 1


def test_a_record_cut_at_any_byte_of_its_tail_is_read_up_to_the_last_complete_line(tmp_path: Path) -> None:
    content, start = _tail(tmp_path / "run")
    for length in range(start, len(content)):
        (tmp_path / "run" / record.NAME).write_bytes(content[:length])
        (each,) = load.read([tmp_path / "run"])
        whole = content[:length].count(b"\n")
        assert len(each.run.rounds) == whole - 1
        torn = not content[:length].endswith(b"\n")
        assert (f"ends in the middle of line {whole + 1}" in (each.run.note or "")) == torn


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), junk=st.binary(max_size=8))
def test_a_record_cut_anywhere_still_makes_every_text(tmp_path: Path, cut: float, junk: bytes) -> None:
    folder = tmp_path / "run"
    if not folder.exists():
        _tail(folder)
        (folder / "whole").write_bytes((folder / record.NAME).read_bytes())
    whole = (folder / "whole").read_bytes()
    (folder / record.NAME).write_bytes(whole[: int(cut * len(whole))] + junk)
    loaded = load.read([folder])
    outline(page.html(loaded))
    assert page.markdown(loaded) and page.rounds_csv(loaded)
