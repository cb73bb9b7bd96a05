from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.record.schema import EndLine
from fedskew.report import breakdowns, load, standings
from fedskew.report.blocks import Table
from tests.report import fakes

NAN = float("nan")


def test_recall_is_the_mean_over_seeds_that_have_one(tmp_path: Path) -> None:
    fakes.write(tmp_path / "0", [0.5], recall=[0.2, NAN, NAN])
    fakes.write(tmp_path / "1", [0.5], seed=1, recall=[0.4, 0.6, NAN])
    assert breakdowns.class_recall(load.read([tmp_path])) == [pytest.approx(0.3), 0.6, None]
    assert breakdowns.class_recall([]) is None


def test_of_a_long_tail_means_of_thirds_come_first(tmp_path: Path) -> None:
    for seed, few in enumerate((0.2, 0.4)):
        tail = {"recall_many": 0.9, "recall_medium": 0.5, "recall_few": few}
        fakes.write(tmp_path / str(seed), [0.5], seed=seed, recall=[0.9, 0.5, few], **tail)
    (found,) = standings.tasks(load.read([tmp_path]))
    table = breakdowns.class_table(found)
    assert isinstance(table, Table) and "a third of the classes each" in table.note
    first = [str(row[0]) for row in table.rows]
    assert first == ["mean: many", "mean: medium", "mean: few", *found.class_names(3)]
    assert "30.0" in str(table.rows[2][-1])
    fakes.write(tmp_path / "plain" / "0", [0.5])
    plain = breakdowns.class_table(standings.tasks(load.read([tmp_path / "plain"]))[0])
    assert isinstance(plain, Table) and len(plain.rows) == 3 and not plain.note


def test_clients_are_as_they_were_last_the_worst_first(tmp_path: Path) -> None:
    def scored(share: float) -> list[dict[str, object]]:
        return [{"client": 0, "accuracy_all": share, "recall": []}, {"client": 1, "accuracy_all": 0.3, "recall": []}]

    folder = fakes.write(tmp_path / "run", [0.5], end=False, clients=scored(0.9))
    fakes.append(
        folder, '{"kind":"round","round":1,"clients":[{"client":0,"accuracy_all":0.1,"accuracy_vacant":0.05}]}'
    )
    (found,) = standings.tasks(load.read([folder]))
    first, second = breakdowns.clients(found)
    assert (first.client, first.accuracy, first.vacant) == (0, {"fedavg": 0.1}, {"fedavg": 0.05})
    assert (first.samples, first.classes) == (6, 2)  # it holds 5, 0 and 1 of the three classes
    assert (second.client, second.accuracy, second.vacant) == (1, {"fedavg": 0.3}, {"fedavg": None})


def test_clients_of_different_splits_are_not_mixed(tmp_path: Path) -> None:
    for seed, share in enumerate((0.2, 0.8)):
        listed = {"counts": [[seed + 1, 0, 0], [0, 9, 0]]}
        fakes.write(
            tmp_path / str(seed), [0.5], "one", seed, fields=listed, clients=[{"client": 0, "accuracy_all": share}]
        )
    (found,) = standings.tasks(load.read([tmp_path]))
    (client,) = breakdowns.clients(found)
    assert (client.samples, client.accuracy) == (1, {"one": 0.2})
    table = breakdowns.client_table(found)
    assert not isinstance(table, str)
    assert table.note == "Seeds differ in their partitions; these are the clients of seed 0."


def test_clients_of_one_split_are_averaged_over_seeds(tmp_path: Path) -> None:
    for seed, share in enumerate((0.2, 0.8)):
        scored = [{"client": 0, "accuracy_all": share}]
        fakes.write(tmp_path / str(seed), [0.5], "one", seed, fields={"shards": "same"}, clients=scored)
    (found,) = standings.tasks(load.read([tmp_path]))
    (client,) = breakdowns.clients(found)
    assert client.accuracy == {"one": 0.5}
    table = breakdowns.client_table(found)
    assert not isinstance(table, str) and not table.note


def test_confusions_add_up(tmp_path: Path) -> None:
    loaded = [
        load.LoadedRun(tmp_path, numbers_run, "unknown task", "x", "x")
        for numbers_run in (
            fakes.reader.RunRecord(end=EndLine(confusion=[[1, 2], [3, 4]])),
            fakes.reader.RunRecord(end=EndLine(confusion=[[5, 0], [0, 1]])),
        )
    ]
    assert breakdowns.confusion(loaded) == [[6, 2], [3, 5]]
    assert breakdowns.confusion([]) is None
