"""The report of a federation: who was missing when, and scores on the sites that all rounds have."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fedskew.record import reader, site_scores
from fedskew.record.schema import EndLine, HeaderLine, RoundLine
from fedskew.record.writer import LineWriter
from fedskew.report import load, seed_statistics, standings
from fedskew.report.html import page, panels, participation
from tests.report import fakes

GONE = "not connected"


def scores(right: list[int], held: list[int], loss: float) -> dict[str, Any]:
    return {"right": right, "held": held, "predicted": held, "loss": loss}


#: 10 samples at site 0, 30 at site 1: 5 and 30 of them right
TWO = {"0": scores([5, 0], [8, 2], 4.0), "1": scores([20, 10], [20, 10], 2.0)}
ONE = {"0": scores([8, 2], [8, 2], 1.0)}


def lines(**of_second: Any) -> list[dict[str, Any]]:
    """Three rounds of two sites; the second one without site 1."""
    whole = {"asked": 2, "answered": [0, 1], "scored": TWO, "accuracy": 35 / 40, "test_loss": 6 / 40}
    half = {"asked": 2, "answered": [0], "lost": {"1": GONE}, "scored": ONE, "scored_lost": {"1": GONE}}
    common = {"counted": True, "recall": [0.5, 0.5], "balanced_accuracy": 0.5, "up": 1, "down": 1, "seconds": 1.0}
    second = half | {"accuracy": 1.0, "test_loss": 0.1} | of_second
    return [common | {"round": n} | line for n, line in enumerate((whole, second, whole | {"late": [1]}), 1)]


def parsed(rounds: list[dict[str, Any]]) -> list[RoundLine]:
    return [RoundLine(**line) for line in rounds]


def written(folder: Path, rounds: list[dict[str, Any]]) -> load.LoadedRun:
    header = fakes.header("fedavg", 0)
    header["config"]["partition"] |= {"name": "natural"}
    header |= {"counts": [[0, 0, 0], [0, 0, 0]]}
    header["data"] |= {"sites": ["north", "so<u>th"]}
    folder.mkdir()
    writer = LineWriter.create(folder / reader.NAME, HeaderLine(**header))
    for line in rounds:
        writer.write(RoundLine(**line))
    writer.write(
        EndLine(best=0.5, last=0.5, seconds=3.0, weights_sha256="00", confusion=[[1]], scored_lost={"1": GONE})
    )
    writer.close()
    (loaded,) = load.read([folder])
    assert loaded.run.note is None
    return loaded


def test_scores_are_those_of_the_sites_that_all_rounds_have() -> None:
    """Site 0 alone: 5 of 10, and a loss of 4 over 10 samples, in the rounds that two sites scored."""
    rounds, sites = site_scores.on_common(parsed(lines()))
    assert sites == [0]
    assert [line["accuracy"] for line in rounds] == [0.5, 1.0, 0.5]
    assert [line["test_loss"] for line in rounds] == [0.4, 0.1, 0.4]
    assert rounds[0]["recall"] == [5 / 8, 0.0] and rounds[0]["balanced_accuracy"] == 5 / 16
    assert rounds[0]["predicted"] == [8, 2] and rounds[1]["recall"] == [0.5, 0.5]


def test_where_all_sites_score_every_round_nothing_changes() -> None:
    same = parsed([line | {"scored": TWO} for line in lines()])
    assert site_scores.on_common(same) == (same, None)
    unscored = [RoundLine(round=1, accuracy=0.5)]
    assert site_scores.on_common(unscored) == (unscored, None)


def test_without_a_common_site_rounds_stay_as_they_are() -> None:
    apart = parsed(lines(scored={"2": scores([1, 1], [1, 1], 0.5)}))
    assert site_scores.on_common(apart) == (apart, [])


def test_the_page_shows_missing_clients_and_the_sites_of_the_scores(tmp_path: Path) -> None:
    loaded = written(tmp_path / "run", lines())
    row = participation.rows(loaded)[1]
    assert row.states == ["took part", "lost", "took part"] and row.count == "2 of 3" and row.late == [2]
    assert row.missing == "round 2: not connected; late answers in round 3"
    html, text = page.html([loaded]), page.markdown([loaded])
    for each in (unescape(html), text):
        assert "round 2: not connected; late answers in round 3" in each
        assert "the final model was not scored by so<u>th" in each
        assert "training samples" not in each
    assert "scores use the test data of north, which scored every evaluated round" in html
    assert "so<u>th" not in html and html.count('<rect class="lost"') == 1 and html.count('<circle class="late"') == 1
    assert seed_statistics.score(loaded.run, "best") == 1.0 and seed_statistics.score(loaded.run, "last") == 0.5


def test_rounds_of_one_reason_are_listed_together(tmp_path: Path) -> None:
    whole, half, _ = lines()
    rounds = [(half if n in (2, 3, 5) else whole) | {"round": n} for n in range(1, 7)]
    assert participation.rows(written(tmp_path / "run", rounds))[1].missing == "rounds 2 to 3, 5: not connected"


@pytest.mark.parametrize("broken", [{"0": {"right": [1]}}, {"0": scores([1], [1, 1], 0.0)}, {"0": scores([0], [0], 1)}])
def test_damaged_scores_of_sites_end_the_reading(broken: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", lines()).path
    fakes.append(folder, json.dumps({"kind": "round", "round": 4, "scored": broken}))
    assert "malformed at line 6" in str(reader.read(folder).note)


def test_a_simulation_without_missing_clients_says_so(tmp_path: Path) -> None:
    loaded = load.read([fakes.write(tmp_path / "run", [0.5])])
    assert len(participation.panel(loaded)) == 1
    assert "No client was missing in any round." in page.html(loaded)
    assert panels.notes(loaded, standings.tasks(loaded)) == []
