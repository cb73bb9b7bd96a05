from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedskew
from fedskew.core.errors import UserError
from fedskew.record import reader, run_lock
from fedskew.record.schema import ExtendedLine, RoundLine
from fedskew.record.writer import LineWriter
from fedskew.report import comparison, load
from tests.report import fakes


def test_runs_that_differ_in_their_seed_only_are_one_group(tmp_path: Path) -> None:
    paths = [fakes.write(tmp_path / str(seed), [0.5], seed=seed) for seed in (0, 1)]
    assert {name: len(group) for name, group in load.grouped(load.read(paths)).items()} == {"fedavg": 2}


def test_other_differences_are_part_of_the_name(tmp_path: Path) -> None:
    paths = [fakes.write(tmp_path / str(lr), [0.5], config={"local": {"lr": lr}}) for lr in (0.1, 0.5)]
    assert [each.name for each in load.read(paths)] == ["fedavg, local.lr=0.1", "fedavg, local.lr=0.5"]


def test_custom_networks_have_different_names(tmp_path: Path) -> None:
    models = [{"name": name, "args": {}, "parameters": size} for name, size in (("Mine", 51), ("Mine", 99))]
    paths = [fakes.write(tmp_path / str(m["parameters"]), [0.5], fields={"model": m}) for m in models]
    assert [each.name for each in load.read(paths)] == [
        f"fedavg, network=Mine of {size} parameters" for size in (51, 99)
    ]


def test_engines_are_not_part_of_the_name(tmp_path: Path) -> None:
    paths = [fakes.write(tmp_path / on, [0.5], config={"engine": {"device": on}}) for on in ("cpu", "cuda")]
    assert [each.name for each in load.read(paths)] == ["fedavg", "fedavg"]


def test_rounds_that_were_added_count(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "run", [0.5] * 3, end=False)
    writer = LineWriter.append_to(folder / reader.NAME, (folder / reader.NAME).stat().st_size)
    writer.write(ExtendedLine(rounds=6))
    for line in fakes.lines([0.5] * 5)[3:]:
        writer.write(RoundLine(**line))
    writer.close()
    (loaded,) = load.read([folder])
    assert loaded.state == "stopped after 5 of 6 rounds"


def test_names_say_what_differs_on_the_same_task_and_which_task_it_is(tmp_path: Path) -> None:
    for alpha, epochs in ((0.1, 5), (0.1, 7), (0.5, 1)):
        fakes.write(tmp_path / f"{alpha}-{epochs}", [0.5], alpha=alpha, config={"local": {"epochs": epochs}})
    loaded = load.read([tmp_path])
    assert [each.short for each in loaded] == ["fedavg, local.epochs=5", "fedavg, local.epochs=7", "fedavg"]
    assert loaded[2].name == "fedavg on toy <b>, dirichlet alpha 0.5, 2 clients"


def test_a_folder_of_runs_stands_for_them_all(tmp_path: Path) -> None:
    fakes.write(tmp_path / "one", [0.5], method="fedavg")
    fakes.write(tmp_path / "two", [0.5], method="fedprox")
    assert [each.name for each in load.read([tmp_path])] == ["fedavg", "fedprox"]


def test_a_finished_comparison_knows_its_runs(tmp_path: Path) -> None:
    fakes.write(tmp_path / "fedavg-seed0", [0.5])
    fakes.write(tmp_path / "left-from-earlier", [0.5], method="fedprox")
    groups = load.grouped(load.read([tmp_path / "fedavg-seed0"]))
    rows = comparison.tables.comparison(groups)
    comparison.write(tmp_path, groups, rows)
    assert [each.name for each in load.read([tmp_path])] == ["fedavg"]


def test_an_interrupted_comparison_has_all_its_runs(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"dataset": "digits", "rounds": 1, "local_epochs": 1, "engine": "inline", "out": tmp_path}
    fedskew.compare(["fedavg"], **asked)

    class Cut(fedskew.Callback):
        def on_end(self, result: Any) -> None:
            if result.config.seed == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedskew.compare(["fedavg"], seeds=3, resume=True, callbacks=[Cut()], **asked)
    assert [each.seed for each in load.read([tmp_path])] == [0, 1]
    with pytest.raises(UserError, match="also has fedavg-seed1"):
        fedskew.compare(["fedavg"], resume=True, **asked)


@pytest.mark.parametrize("content", ["nonsense", "[]", '{"runs": 3}', '{"runs": [{}]}'])
def test_a_damaged_comparison_is_looked_through_instead(tmp_path: Path, content: str) -> None:
    fakes.write(tmp_path / "one", [0.5])
    (tmp_path / "comparison.json").write_text(content)
    assert len(load.read([tmp_path])) == 1


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_where_there_is_no_run_one_sentence_says_so(tmp_path: Path, path: str) -> None:
    with pytest.raises(UserError, match="has no run"):
        load.read([tmp_path / path])


def test_runs_further_down_are_named(tmp_path: Path) -> None:
    for kind in ("trials", "confirmed"):
        fakes.write(tmp_path / kind / "run", [0.5])
    with pytest.raises(UserError, match=r"Name '.*/confirmed' or '.*/trials'\.$"):
        load.read([tmp_path])


def test_a_record_without_a_header_is_called_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "record.jsonl").write_text("")
    (loaded,) = load.read([tmp_path / "mine"])
    assert (loaded.name, loaded.state) == ("mine", "stopped after 0 of unknown rounds")


@pytest.mark.parametrize("name", ["record.jsonl", "copy.jsonl"])
def test_a_file_is_a_record_by_its_header_or_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("path,label\n1.png,3\n")
    if name == reader.NAME:
        assert "is malformed at line 1" in str(load.read([tmp_path / name])[0].run.note)
    else:
        with pytest.raises(UserError, match=r"copy\.jsonl' is not a record: its first line is not a header"):
            load.read([tmp_path / name])
    whole = (fakes.write(tmp_path / "run", [0.5, 0.6]) / reader.NAME).read_bytes()
    (tmp_path / name).write_bytes(whole[:-5])
    assert "ends in the middle" in str(load.read([tmp_path / name])[0].run.note)


def test_a_running_run_differs_from_a_stopped_one(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "run", [0.5], end=False)
    with run_lock.locked(folder):
        (loaded,) = load.read([folder])
        assert loaded.state == "running, now after 1 of 3 rounds"
    assert loaded.state == "stopped after 1 of 3 rounds"


def test_of_the_rounds_asked_for_only_those_count_that_were_asked_for(tmp_path: Path) -> None:
    (loaded,) = load.read([fakes.write(tmp_path / "run", [0.5] * 5, end=False, counted=False)])
    assert loaded.state == "stopped after 0 of 3 rounds"


def test_a_run_that_is_named_twice_is_meant_once(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "run", [0.5])
    assert [each.path for each in load.read([tmp_path, folder])] == [folder]
