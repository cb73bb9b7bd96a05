"""Federated minus local training at each site: whose samples, which verdict, and where it is shown."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedskew
from fedskew.core.errors import UserError
from fedskew.data import sources
from fedskew.experiment.comparison import Comparison
from fedskew.metrics.intervals import wilson
from fedskew.record import predictions
from fedskew.record.predictions import FinalPredictions
from fedskew.record.schema import EndLine, HeaderLine, RoundLine
from fedskew.report import load, versus_local
from fedskew.report.html import page
from fedskew.report.plots.forest import marks_at, pictured, spans
from tests.commands import succeed


class Finished:
    """A run as far as a comparison of sites reads it."""

    def __init__(self, predicted: FinalPredictions | None, seed: int = 0, rounds: Any = ()) -> None:
        config = {
            "method": "m", "seed": seed, "rounds": 1, "clients_per_round": None, "data": {"name": "d"},
            "partition": {"name": "natural", "clients": 2}, "engine": {"precision": "float32"},
            "local": {"epochs": 1, "batch_size": 1, "optimizer": "sgd", "lr": 1.0, "momentum": 0.0,
                      "weight_decay": 0.0},
        }  # fmt: skip
        data = {"name": "d", "train": 400, "test": 100, "labels": ["ill", "well"], "sites": ["north", "south"]}
        self.header = HeaderLine.model_validate({"config": config, "data": data, "counts": [[30, 10], [5, 15]]})
        self.rounds, self.setups, self.end, self.predictions = list(rounds), [], EndLine(), predicted


def predicted(labels: np.ndarray, right: np.ndarray, sites: np.ndarray | None) -> FinalPredictions:
    """Models that are right where it says; the other class is predicted elsewhere."""
    return FinalPredictions(labels, np.where(right, labels, 1 - labels), sites, None, "the same")


LABELS = np.tile([0, 1], 50)
NORTH = np.repeat([0, 1], 50)


def test_each_site_is_compared_on_its_own_samples() -> None:
    """North: 50 samples, federated all right, local 30 of them. South: equal. Each class has half of the samples."""
    fed = predicted(LABELS, np.ones((1, 100), bool), NORTH)
    own = np.ones((2, 100), bool)
    own[0, :20] = False
    own[1, :50] = False  # the southern model on northern samples: of no matter
    rows = versus_local.differences({"fedavg": [Finished(fed)], "local": [Finished(predicted(LABELS, own, NORTH))]})
    said = versus_local.summary(rows)
    assert said[-1] == "All data in one place were not tried, so it is unknown how far above they are."
    assert said[0] == (
        "fedavg instead of local training: helps at north, unclear at south; over all sites together it helps."
    )
    assert versus_local.summary(rows[6:])[0].endswith("training: unclear at south.")
    assert [(row.site, row.label) for row in rows] == [
        (site, label) for site in ("all sites", "north", "south") for label in (None, "ill", "well")
    ]
    together, north, south = rows[0], rows[3], rows[6]
    assert (together.samples, together.federated, together.local) == (100, 1.0, pytest.approx(0.8))
    assert together.verdict == "helps"
    assert (north.samples, north.federated) == (50, 1.0) and north.local == pytest.approx(0.6)
    assert north.difference == pytest.approx(0.4)
    assert north.verdict == "helps" and north.low is not None and north.low > 0.2
    assert (south.difference, south.verdict) == (0.0, "unclear")
    assert [row.samples for row in rows[4:6]] == [25, 25] and rows[4].local == pytest.approx(15 / 25)


def test_shared_samples_count_as_the_classes_of_the_site() -> None:
    """North has 30 ill of 40. Right on all ill and no well: 0.75 for north, 0.25 for south, whatever is in the test.

    Of the 60 training samples at both sites 35 are ill: 0.583 for all sites together.
    """
    ill = predicted(LABELS, (LABELS == 0)[None], None)
    well = predicted(LABELS, np.stack([LABELS == 1] * 2), None)
    rows = versus_local.differences({"fedavg": [Finished(ill)], "local": [Finished(well)]})
    assert [row.federated for row in rows if row.label is None] == pytest.approx([35 / 60, 0.75, 0.25])
    assert [row.local for row in rows if row.label is None] == pytest.approx([25 / 60, 0.25, 0.75])
    assert [row.verdict for row in rows if row.label is None and row.site != "all sites"] == ["helps", "hurts"]
    assert [row.federated for row in rows if row.label == "ill"] == [1.0, 1.0, 1.0]


def test_shared_samples_of_all_sites_count_each_model_as_its_site_does() -> None:
    """North has 30 of 35 ill and 10 of 25 well. Its own model is right on all, the southern one on none: 40 of 60."""
    one = predicted(LABELS, np.ones((1, 100), bool), None)
    own = predicted(LABELS, np.stack([np.ones(100, bool), np.zeros(100, bool)]), None)
    rows = versus_local.differences({"fedavg": [Finished(one)], "local": [Finished(own)]})
    assert rows[0].site == "all sites" and rows[0].local == pytest.approx(40 / 60)
    assert [row.local for row in rows[1:3]] == pytest.approx([30 / 35, 10 / 25])


def test_all_data_in_one_place_is_compared_with_both() -> None:
    """Of 100 samples local has 50 right, federated 60, centralized 90: 40 points above local, 30 above federated."""

    def of(right: int, models: int = 1) -> list[Finished]:
        return [Finished(predicted(LABELS, np.tile(np.arange(100) % 10 < right / 10, (models, 1)), NORTH))]

    found = {"centralized": of(90), "fedavg": of(60), "local": of(50, 2)}
    rows = [row for row in versus_local.differences(found) if row.label is None]
    assert [(row.method, row.site) for row in rows[::3]] == [("fedavg", "all sites"), ("centralized", "all sites")]
    federated, central = rows[0], rows[3]
    assert (central.difference, central.verdict) == (pytest.approx(0.4), "helps") and central.behind_low is None
    assert federated.behind_low is not None and federated.behind_high is not None
    assert 0.2 < federated.behind_low < 0.3 < federated.behind_high < 0.4
    said = versus_local.summary(versus_local.differences(found))
    assert said[0] == (
        "fedavg instead of local training: helps at each of the 2 sites; over all sites together it helps."
    )
    assert said[1].startswith("With 50 test samples at a site, a difference below about ")
    assert said[2].startswith("All data in one place instead of local training: helps over all sites together (+40.0")
    assert said[2].endswith("It is above fedavg: there, exchanging more could help.")


def test_few_samples_get_no_interval() -> None:
    """Nineteen samples of a class are fewer than twenty."""
    labels = np.array([0] * 19 + [1] * 31)
    both = [Finished(predicted(labels, np.ones((n, 50), bool), np.zeros(50, int))) for n in (1, 2)]
    rows = versus_local.differences({"fedavg": both[:1], "local": both[1:]})
    assert [(row.label, row.verdict, row.low is None) for row in rows] == [
        (None, "unclear", False), ("ill", "too few samples", True), ("well", "unclear", False)
    ]  # fmt: skip


def test_counts_of_a_federation_are_not_paired_and_wider() -> None:
    """30 against 24 of 40 right: from counts, and sample by sample where the 24 are among the 30."""
    labels = np.zeros(40, int)

    def counts(right: int) -> list[RoundLine]:
        scored = {"0": {"right": [right, 0], "held": [40, 0], "predicted": [right, 40 - right], "loss": 1.0}}
        return [RoundLine.model_validate({"round": 1, "scored": scored})]

    def samples(right: int) -> FinalPredictions:
        return predicted(labels, (np.arange(40) < right)[None], np.zeros(40, int))

    found = [
        versus_local.differences({"fedavg": [Finished(a, rounds=c)], "local": [Finished(b, rounds=d)]})[0]
        for a, b, c, d in ((None, None, counts(30), counts(24)), (samples(30), samples(24), [], []))
    ]
    assert [row.difference for row in found] == pytest.approx([0.15, 0.15])
    assert [row.paired for row in found] == [False, True]
    assert [row.verdict for row in found] == ["unclear", "helps"]


def test_only_seeds_that_both_have_count() -> None:
    run = predicted(LABELS, np.ones((1, 100), bool), NORTH)
    rows = versus_local.differences(
        {"fedavg": [Finished(run, seed) for seed in (0, 1, 2)], "local": [Finished(run, 1)]}
    )
    assert {row.seeds for row in rows} == {1}
    assert versus_local.differences({"fedavg": [Finished(run)]}) == []


def test_seeds_that_draw_their_test_samples_are_compared_by_the_rows_of_these() -> None:
    """Two seeds share 50 of 100 samples, rows 50 to 99. There local is right in one seed only: that cancels.

    Without rows it does not show.
    """
    labels, site = np.zeros(100, int), np.zeros(100, int)
    half = np.arange(100) % 2 == 0

    def runs(right: list[np.ndarray], known: bool) -> list[Finished]:
        made = [
            FinalPredictions(labels, 1 - each[None].astype(int), site, None, f"of {seed}")
            for seed, each in enumerate(right)
        ]
        numbered = [replace(one, rows=50 * seed + np.arange(100) if known else None) for seed, one in enumerate(made)]
        return [Finished(one, seed) for seed, one in enumerate(numbered)]

    federated, local = [np.ones(100, bool)] * 2, [half, np.where(np.arange(100) < 50, ~half, half)]
    known, unknown = (
        versus_local.differences({"fedavg": runs(federated, rows), "local": runs(local, rows)})[0]
        for rows in (True, False)
    )
    assert known.difference == unknown.difference == pytest.approx(0.5) and known.low and unknown.low
    # a sample adds 0.005 to the error of a seed, so 0.0025 to the mean: of the 100 that one seed tests 0.000625
    assert known.low == pytest.approx(0.5 - np.hypot(0.5 - wilson(0.5, 400).low, 1 - wilson(1.0, 150).low))
    assert unknown.high > known.high and unknown.low < known.low


def test_predictions_survive_their_file(tmp_path: Path) -> None:
    kept = replace(predicted(LABELS, np.ones((2, 100), bool), NORTH), rows=np.arange(100) * 3)
    kept.save(tmp_path / "predictions.npz")
    back = predictions.read(tmp_path / "predictions.npz")
    assert back is not None and back.samples == kept.samples and back.groups is None
    for name in ("labels", "predicted", "sites", "rows"):
        assert np.array_equal(getattr(back, name), getattr(kept, name))
    (tmp_path / "predictions.npz").write_bytes(b"PK nothing")
    assert predictions.read(tmp_path / "predictions.npz") is None


def test_the_axis_holds_everything_at_round_numbers() -> None:
    assert marks_at(-0.12, 0.31) == [-0.1, 0.0, 0.1, 0.2, 0.3]
    row = versus_local.SiteDifference("m", "a", None, 50, 0.9, 0.6, 0.3, 0.2, 0.4, "helps", 0.5, None, None, 1, True)
    low, high = spans([row])
    assert low < -0.0 and high > 0.4
    many = [replace(row, label=str(number)) for number in range(60)]
    assert pictured([row, *many], "m") == [row]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    """Three sites with a third of the classes each, and 180 test samples of theirs."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 200)
    x = (rng.normal(size=(600, 6)) + 1.5 * np.eye(6)[y]).astype(np.float32)
    site, test = y.copy(), np.arange(600) % 10 < 3
    data = sources.from_arrays(x[~test], y[~test], x[test], y[test], sites=site[~test], site_names=["a", "b", "c"])
    import torch

    data = replace(data, test=replace(data.test, sites=torch.from_numpy(site[test])))
    out = tmp_path_factory.mktemp("compared") / "out"
    quick = {"partition": "natural", "clients": 3, "rounds": 2, "local_epochs": 1, "engine": "inline", "model": "mlp"}
    done = fedskew.compare(
        ["fedavg"],
        baselines=["local", "centralized", "finetuned"],
        seeds=2,
        data=data,
        out=out,
        progress=False,
        **quick,
    )
    return done, out


def test_baselines_are_runs_of_their_own(compared: tuple[Comparison, Path]) -> None:
    done, out = compared
    assert list(done.results) == ["fedavg", "fedavg+finetuned", "local", "centralized"]
    assert all((out / f"{name}-seed1" / "predictions.npz").exists() for name in done.results)
    # a site that has one class only finds it alone without an error
    assert {row.local for row in done.versus_local() if row.label is None} == {1.0}
    assert {row.verdict for row in done.versus_local() if row.method == "fedavg"} <= {"hurts", "unclear"}
    assert all(row.centralized is not None and row.seeds == 2 and row.paired for row in done.versus_local())


def test_pages_tables_and_files_say_the_same(compared: tuple[Comparison, Path], tmp_path: Path) -> None:
    done, out = compared
    rows = done.versus_local()
    stored = json.loads((out / "comparison.json").read_text())["versus_local"]
    assert stored == [row.row() for row in rows]
    lines = list(csv.DictReader((out / "versus-local.csv").open()))
    assert [line["verdict"] for line in lines] == [row.verdict for row in rows]
    loaded = load.read([out])
    again = versus_local.differences(load.grouped(loaded))
    assert sorted(map(str, again)) == sorted(map(str, rows))
    html, markdown = page.html(loaded), page.markdown(loaded)
    for said in versus_local.summary(rows):
        assert said in markdown
    assert "Is it better than each site alone?" in html and html.count('class="dots forest"') == 2
    scores = html.partition('id="scores"')[2].partition("</section>")[0]
    assert scores.index("<summary>local, seed 0") < scores.index("<summary>fedavg, seed 1"), (
        "each method's first seed first"
    )
    done.plot_versus_local(tmp_path / "forest.png", "fedavg+finetuned")
    assert (tmp_path / "forest.png").stat().st_size > 1000 and (out / "versus-local-fedavg.png").exists()
    with pytest.raises(UserError, match="nothing to compare with local training of 'fedprox'"):
        done.plot_versus_local(method="fedprox")


def test_the_command_prints_the_answer(tmp_path: Path) -> None:
    quick = ["--clients", "3", "--rounds", "1", "--local-epochs", "1", "--engine", "inline", "--model", "tiny"]
    said = succeed("compare", "fedavg", "--baselines", "local", *quick, "--out", str(tmp_path / "out"))
    assert "fedavg instead of local training: " in said
    with pytest.raises(UserError, match=r"there is no baseline 'locl'\. Did you mean 'local'"):
        fedskew.compare(["fedavg"], baselines="locl")
