"""Global and own model side by side, by client: weighted by the client's classes, or on its own samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.record.reader import RunRecord
from fedskew.record.schema import HeaderLine, RoundLine, SiteScores
from fedskew.report import load, two_models
from fedskew.report.html import page
from tests.contract import harness


def made(**more: object) -> RunRecord:
    """Client 0 has three samples of class 0 and one of class 1; its own model knows class 0, the global one class 1."""
    own = {"0": SiteScores(right=[4, 0], held=[4, 4], predicted=[8, 0], loss=0.0)}
    line = RoundLine(round=1, scored=own, global_recall=[0.0, 1.0], **more)  # type: ignore[arg-type]
    return RunRecord(HeaderLine(counts=[[3, 1]]), [line])


def test_classes_count_as_the_client_has_them() -> None:
    """Own: (3 * 1 + 1 * 0) / 4 = 0.75; global: (3 * 0 + 1 * 1) / 4 = 0.25."""
    assert two_models.scores(made()) == [two_models.TwoScores(0, shared=0.25, own=0.75)]


def test_a_client_s_own_samples_count_as_they_are() -> None:
    both = {"0": SiteScores(right=[1, 4], held=[4, 4], predicted=[4, 4], loss=0.0)}
    assert two_models.scores(made(global_scored=both)) == [two_models.TwoScores(0, shared=5 / 8, own=0.5)]
    assert two_models.scores(RunRecord(HeaderLine(), [RoundLine(round=1)])) == []


@pytest.mark.parametrize("method", ["ditto", "fedavg"])
def test_reports_show_it_where_there_are_two(method: str, tmp_path: Path) -> None:
    harness.finish(harness.config(method, rounds=1, clients_per_round=None), out=tmp_path / "run")
    shown = page.FORMATS["html"](load.read([tmp_path / "run"]))
    assert isinstance(shown, str) and ("own model, %" in shown) == (method == "ditto")
