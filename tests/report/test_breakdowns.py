from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.report import hurt, numbers, panels, runs
from tests.report import fakes

NAN = float("nan")


def test_recall_is_the_mean_over_seeds_that_have_one(tmp_path: Path) -> None:
    fakes.write(tmp_path / "0", [0.5], recall=[0.2, NAN, NAN])
    fakes.write(tmp_path / "1", [0.5], seed=1, recall=[0.4, 0.6, NAN])
    assert hurt.class_recall(runs.read([tmp_path])) == [pytest.approx(0.3), 0.6, None]
    assert hurt.class_recall([]) is None


def test_clients_are_as_they_were_last_the_worst_first(tmp_path: Path) -> None:
    def scored(share: float) -> list[dict[str, object]]:
        return [{"client": 0, "accuracy_all": share, "recall": []}, {"client": 1, "accuracy_all": 0.3, "recall": []}]

    folder = fakes.write(tmp_path / "run", [0.5], end=False, clients=scored(0.9))
    fakes.append(
        folder, '{"kind":"round","round":1,"clients":[{"client":0,"accuracy_all":0.1,"accuracy_vacant":0.05}]}'
    )
    (found,) = numbers.tasks(runs.read([folder]))
    first, second = hurt.clients(found)
    assert (first.client, first.accuracy, first.vacant) == (0, {"fedavg": 0.1}, {"fedavg": 0.05})
    assert (first.samples, first.classes) == (6, 2)  # it holds 5, 0 and 1 of the three classes
    assert (second.client, second.accuracy, second.vacant) == (1, {"fedavg": 0.3}, {"fedavg": None})


def test_clients_of_different_splits_are_not_mixed(tmp_path: Path) -> None:
    for seed, share in enumerate((0.2, 0.8)):
        told = {"counts": [[seed + 1, 0, 0], [0, 9, 0]]}
        fakes.write(tmp_path / str(seed), [0.5], "one", seed, told=told, clients=[{"client": 0, "accuracy_all": share}])
    (found,) = numbers.tasks(runs.read([tmp_path]))
    (client,) = hurt.clients(found)
    assert (client.samples, client.accuracy) == (1, {"one": 0.2})
    table = panels.clients(found)
    assert not isinstance(table, str)
    assert table.note == "Seeds differ in who holds what; these are the clients of seed 0."


def test_clients_of_one_split_are_averaged_over_seeds(tmp_path: Path) -> None:
    for seed, share in enumerate((0.2, 0.8)):
        scored = [{"client": 0, "accuracy_all": share}]
        fakes.write(tmp_path / str(seed), [0.5], "one", seed, told={"shards": "same"}, clients=scored)
    (found,) = numbers.tasks(runs.read([tmp_path]))
    (client,) = hurt.clients(found)
    assert client.accuracy == {"one": 0.5}
    table = panels.clients(found)
    assert not isinstance(table, str) and not table.note


def test_confusions_add_up(tmp_path: Path) -> None:
    loaded = [
        runs.Loaded(tmp_path, numbers_run, "unknown task", "x", "x")
        for numbers_run in (
            fakes.record.Run(end={"confusion": [[1, 2], [3, 4]]}),
            fakes.record.Run(end={"confusion": [[5, 0], [0, 1]]}),
        )
    ]
    assert hurt.confusion(loaded) == [[6, 2], [3, 5]]
    assert hurt.confusion([]) is None
