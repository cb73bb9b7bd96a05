"""Cells are run once, wherever their runs are; and one of each kind comes out of the command at smoke scale."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedskew import experiment, record, run_folder
from fedskew.cli import main
from fedskew.config import Data, RunConfig
from fedskew.errors import UserError
from fedskew.reproduce import cells, costs, one
from fedskew.reproduce.catalogue import Preset, find, presets
from fedskew.reproduce.cells import Shelf, identity
from tests.commands import complaint
from tests.report import fakes

TABLE1 = "fedlmd/table1/cifar10-lda-0.05"


def preset_of(wanted: str) -> Preset:
    return find(wanted)[0][0]


def test_runs_are_the_same_whatever_engine_and_folder_they_have() -> None:
    config = preset_of(TABLE1).cells("paper")[0].config
    elsewhere = config.model_copy(update={"data": config.data.model_copy(update={"dir": "there"})})
    pooled = config.model_copy(update={"engine": config.engine.model_copy(update={"workers": 7})})
    rounded = config.model_copy(update={"engine": config.engine.model_copy(update={"precision": "bf16"})})
    assert identity(config) == identity(elsewhere) == identity(pooled)
    assert identity(config) != identity(rounded)
    assert identity(config) != identity(config.model_copy(update={"rounds": 199}))


def test_identifiers_share_their_runs(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    by_row = {c.row: c for c in preset_of("fedlmd/table3/cifar10-lda-0.05").cells("paper")}
    for cell in preset_of(TABLE1).cells("paper", ["fedavg", "fedntd", "fedlmd"]):
        assert shelf.place(cell) == shelf.place(by_row[cell.row])
    update = preset_of("fedvls/table12").cells("paper")[0]
    assert update.start is not None
    assert shelf.place(update.start) == shelf.place(preset_of("fedvls/table1/cifar10-dir-0.05").cells("paper")[0])
    both, whole = (
        {cell.column: shelf.place(cell) for cell in preset_of(wanted).cells("paper", [row])}
        for wanted, row in (("fedvls/table5", "both"), ("fedvls/table6", "fedvls"))
    )
    assert both == whole
    other = preset_of("fedvls/fig2").cells("paper")[0]
    assert len({shelf.place(each) for each in (update, update.start, other)}) == 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods of a table at smoke scale."""
    out = tmp_path_factory.mktemp("finished")
    one.reproduce(preset_of(TABLE1), "smoke", Shelf(out), methods=["fedavg", "fedlmd"], name="inline")
    return out


def test_a_finished_cell_is_not_run_again(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob(record.NAME)}
    assert len(before) == 2
    trained: list[str] = []

    def tell(cell: cells.Cell) -> object:
        trained.append(cell.row)
        return lambda line: None

    one.reproduce(preset_of(TABLE1), "smoke", Shelf(finished), methods=["fedavg", "fedlmd"], tell=tell)  # type: ignore[arg-type]
    assert trained == [] and {path: path.read_bytes() for path in before} == before


def test_records_from_elsewhere_are_taken(finished: Path, tmp_path: Path) -> None:
    wanted = preset_of(TABLE1).cells("smoke")
    shelf = Shelf(tmp_path, (finished,))
    there = {cell.row: folder for cell in wanted for place, folder in shelf.finished([cell]).items() if place}
    assert set(there) == {"fedavg", "fedlmd"} and all(finished in folder.parents for folder in there.values())
    scored = wanted[0].config.model_copy(
        update={"evaluate": wanted[0].config.evaluate.model_copy(update={"clients": True})}
    )
    assert shelf.finished([cells.Cell("fedavg", "", scored, scored)]) == {}  # that record has no scores of clients


def test_an_unfinished_or_foreign_record_is_not_taken(finished: Path, tmp_path: Path) -> None:
    first = next(finished.rglob(record.NAME))
    for name, text in {"cut": first.read_text().split('{"kind":"end"')[0], "torn": '{"kind":"hea', "empty": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / record.NAME).write_text(text)
    assert Shelf(tmp_path / "out", (tmp_path,)).finished(preset_of(TABLE1).cells("smoke")) == {}


def test_an_extended_record_has_the_rounds_it_was_extended_to(finished: Path, tmp_path: Path) -> None:
    path = next(finished.rglob(record.NAME))
    (tmp_path / "run").mkdir()
    header, *rest = path.read_text().splitlines()
    longer = json.dumps({"kind": "extended", "rounds": 5}, separators=(",", ":"))
    (tmp_path / "run" / record.NAME).write_text("\n".join([header, longer, *rest]) + "\n")
    cell = next(c for c in preset_of(TABLE1).cells("smoke") if shelf_row(header) == c.config.method)
    shelf = Shelf(tmp_path / "out", (tmp_path,))
    assert shelf.finished([cell]) == {}
    five = cell.config.model_copy(update={"rounds": 5})
    assert len(shelf.finished([cells.Cell(cell.row, "", five, five)])) == 1


def shelf_row(header: str) -> str:
    return RunConfig.model_validate(json.loads(header)["config"]).method


def test_an_interrupted_table_goes_on(finished: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(line: dict[str, object]) -> None:
        raise Stop

    preset = preset_of(TABLE1)
    with pytest.raises(Stop):
        one.reproduce(preset, "smoke", Shelf(tmp_path), methods=["fedavg"], tell=lambda cell: stop, name="inline")
    one.reproduce(preset, "smoke", Shelf(tmp_path), methods=["fedavg"], name="inline", data_dir="now here")
    assert [experiment.begun(path.parent).data.dir for path in tmp_path.rglob(record.NAME)] == ["now here"]
    (ended,) = (record.read(path).end for path in tmp_path.rglob(record.NAME))
    whole = next(run.end for run in map(record.read, finished.rglob(record.NAME)) if run.header["method"] == "fedavg")
    assert ended is not None and whole is not None and ended["weights_sha256"] == whole["weights_sha256"]


def test_a_shorter_run_of_the_same_goes_on_where_it_is(finished: Path, tmp_path: Path) -> None:
    (cell,) = one.wanted(preset_of(TABLE1), "smoke", ["fedavg"], name="inline")[0]
    begun = tmp_path / "mine" / "first-round"
    experiment.run(cell.config.model_copy(update={"rounds": 1}), begun)
    before = (begun / record.NAME).read_bytes()

    foreign = Shelf(tmp_path / "out", (tmp_path / "mine",))
    assert foreign.begun(cell) == begun
    assert cells.run([cell], foreign) == {foreign.place(cell): foreign.place(cell)}
    assert (begun / record.NAME).read_bytes() == before

    own = Shelf(tmp_path / "mine", (tmp_path / "mine",))
    assert cells.run([cell], own) == {own.place(cell): begun}
    ended = record.read(begun).end
    whole = next(run.end for run in map(record.read, finished.rglob(record.NAME)) if run.header["method"] == "fedavg")
    assert ended is not None and whole is not None and ended["weights_sha256"] == whole["weights_sha256"]
    assert list(Shelf(tmp_path / "mine", (tmp_path / "mine",)).finished([cell]).values()) == [begun]


def test_a_cell_s_folder_stays_its_own(tmp_path: Path) -> None:
    """Even if a longer run, or one from another model, could go on from there."""
    shelf = Shelf(tmp_path, (tmp_path,))
    (short,) = one.wanted(preset_of(TABLE1), "smoke", ["fedavg"], name="inline")[0]
    long = replace(short, config=short.config.model_copy(update={"rounds": 3}))
    cells.run([short], shelf)
    cells.run([long], Shelf(tmp_path, (tmp_path,)))
    assert [len(record.read(shelf.place(cell)).rounds) for cell in (short, long)] == [2, 3]

    one.reproduce(preset_of("fedvls/fig9"), "smoke", Shelf(tmp_path), methods=["fedlc"], name="inline")
    (other,) = one.wanted(preset_of("fedvls/fig3/cifar10-dir-0.05"), "smoke", ["fedlc"], name="inline")[0]
    assert Shelf(tmp_path, (tmp_path,)).begun(other) is None
    # nor from the cells of another table, where --records finds them
    elsewhere = Shelf(tmp_path / "elsewhere", (tmp_path,))
    longer = replace(short, config=short.config.model_copy(update={"rounds": 4}))
    assert elsewhere.begun(other) is None and elsewhere.begun(longer) is None
    once = replace(other, config=other.config.model_copy(update={"rounds": 1}))
    assert elsewhere.finished([once]) == {}


def test_a_cell_that_was_made_longer_is_not_the_table_s(tmp_path: Path) -> None:
    (cell,) = one.wanted(preset_of(TABLE1), "smoke", ["fedavg"], name="inline")[0]
    shelf = Shelf(tmp_path)
    cells.run([cell], shelf)
    experiment.resume(shelf.place(cell), rounds=4)
    with pytest.raises(UserError, match="it has 4 rounds, and the table's 2; move it to another folder"):
        cells.run([cell], shelf)
    shelf.place(cell).rename(tmp_path / "cells" / "longer")
    cells.run([cell], shelf)
    assert len(record.read(shelf.place(cell)).rounds) == 2


def test_a_run_without_scores_of_clients_is_not_taken_for_one_with_them(tmp_path: Path) -> None:
    one.reproduce(preset_of("fedvls/fig3/cifar10-dir-0.1"), "smoke", Shelf(tmp_path), methods=["fedavg"], name="inline")
    made = one.reproduce(preset_of("fedvls/table17"), "smoke", Shelf(tmp_path), methods=["fedavg"], name="inline")
    assert float(made.cells[0][1]) > 0
    # but one with scores will do where none are asked for
    unscored = preset_of("fedvls/fig3/cifar10-dir-0.1").cells("smoke", ["fedavg"])[0]
    scored = preset_of("fedvls/table17").cells("smoke", ["fedavg"])[0]
    shelf = Shelf(tmp_path)
    shelf.place(unscored).rename(tmp_path / "away")
    assert shelf.finished([unscored]) == {shelf.place(unscored): shelf.place(scored)}


def test_everybody_is_everybody_by_number_too() -> None:
    config = preset_of("fedvls/fig3/cifar10-dir-0.05").cells("paper")[0].config
    assert identity(config) == identity(config.model_copy(update={"per_round": config.partition.clients}))
    assert identity(config) != identity(config.model_copy(update={"per_round": 5}))


def test_a_shorter_run_is_no_beginning_where_the_method_goes_by_the_number_of_rounds(tmp_path: Path) -> None:
    """FedNoRo ramps its distillation up over all rounds."""
    (cell,) = one.wanted(preset_of("fednoro/table1/cifar10n-rho0.4"), "smoke", ["fednoro"], name="inline")[0]
    begun = tmp_path / "shorter"
    experiment.run(cell.config.model_copy(update={"rounds": 2}), begun)
    assert Shelf(tmp_path, (tmp_path,)).begun(cell) is None


@pytest.mark.parametrize(
    "wanted",
    [
        "fedlmd/fig2/cifar10-lda-0.05",
        "fedlmd/fig8/switch",
        "fedvls/table12",
        "fedvls/table17",
        "fednoro/table3/ich-rho0.3-eta0.3-0.5",
    ],
)
def test_one_of_each_family_at_smoke_scale(wanted: str, finished: Path) -> None:
    check(wanted, finished)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", list(presets()))
def test_every_preset_at_smoke_scale(wanted: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(wanted, tmp_path_factory.getbasetemp() / "all")


def check(wanted: str, out: Path) -> None:
    outcome = one.reproduce(preset_of(wanted), "smoke", Shelf(out), name="inline")
    assert outcome.files and all(path.stat().st_size > 100 for path in outcome.files)
    if outcome.cells:
        assert all(len(line) == len(outcome.heading) for line in outcome.cells)
        assert "printed" not in outcome.heading or preset_of(wanted).shows in ("hyper", "printed")


def test_one_client_s_update_begins_with_the_trained_model(finished: Path) -> None:
    """After a round of FedAvg by one client alone, the model is that client's: it was trained on its samples only."""
    check("fedvls/fig2", finished)
    cell = one.wanted(preset_of("fedvls/fig2"), "smoke", name="inline")[0][0]
    run = record.read(Shelf(finished).place(cell))
    assert cell.start is not None
    start = record.read(Shelf(finished).place(cell.start))
    assert run.header["counts"] == [start.header["counts"][3]]
    assert run.rounds[0]["examples"] == sum(start.header["counts"][3])


def test_updates_among_records_are_taken_without_the_weights_they_began_with(finished: Path, tmp_path: Path) -> None:
    """Committed records have no weights: a table whose updates are all there is made from them alone."""
    preset = preset_of("fedvls/table12")
    one.reproduce(preset, "smoke", Shelf(finished), methods=["fedavg", "fedkd"], name="inline")
    there = tmp_path / "records"
    for cell in (group[0] for group in one.wanted(preset, "smoke", ["fedavg", "fedkd"], name="inline")):
        assert cell.start is not None
        for each in (cell, cell.start):
            kept = Shelf(there).place(each)
            kept.mkdir(parents=True, exist_ok=True)
            (kept / record.NAME).write_bytes((Shelf(finished).place(each) / record.NAME).read_bytes())
    trained: list[tuple[str, int]] = []

    def tell(cell: cells.Cell) -> object:
        trained.append((cell.row, cell.config.rounds))
        return lambda line: None

    def again(out: str, *methods: str) -> None:
        shelf = Shelf(tmp_path / out, (there,))
        one.reproduce(preset, "smoke", shelf, methods=methods, tell=tell, name="inline")  # type: ignore[arg-type]

    again("all", "fedavg", "fedkd")
    assert trained == []
    again("one more", "fedavg", "fedkd", "fedntd")
    assert trained == [
        ("fedavg", 2),
        ("fedntd", 1),
    ]  # its weights are nowhere, so the model is trained for fedntd alone
    tables = [(out / "fedvls/table12/smoke-fedavg-fedkd/table.csv").read_text() for out in (finished, tmp_path / "all")]
    assert tables[0] == tables[1]


def test_a_table_that_tests_models_anew_does_not_take_records_without_them(tmp_path: Path) -> None:
    preset = preset_of("fedvls/table14")
    one.reproduce(preset, "smoke", Shelf(tmp_path / "first"), methods=["fpl"], name="inline")
    (there,) = (tmp_path / "first" / "cells").iterdir()
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        (tmp_path / name / record.NAME).write_bytes((there / record.NAME).read_bytes())
    (tmp_path / "with" / run_folder.WEIGHTS).write_bytes((there / run_folder.WEIGHTS).read_bytes())
    for name, trained in {"with": 0, "without": 1}.items():
        shelf = Shelf(tmp_path / f"again {name}", (tmp_path / name,))
        one.reproduce(preset, "smoke", shelf, methods=["fpl"], name="inline")
        assert len(list(shelf.out.rglob(record.NAME))) == trained


def command(*words: str) -> str:
    result = CliRunner().invoke(main, ["reproduce", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_prints_table_7_exactly(tmp_path: Path) -> None:
    shown = command("fedvls/table7", "--out", str(tmp_path))
    assert "100 of 100 entries are those of the paper." in shown
    written = (tmp_path / "fedvls" / "table7" / "paper" / "table.md").read_text()
    assert "| class-5 | 1471 | 0 | 3403 | 0 | 125 | 0 | 0 | 0 | 0 | 1 |" in written
    numbers = json.loads(command("fedvls/table7", "--out", str(tmp_path), "--json"))["numbers"]
    assert len(numbers) == 100 and all(n["ours"] == n["printed"] and n["difference"] == 0 for n in numbers)


def test_a_partition_is_the_paper_s_own_at_small_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no data, so nothing has to stand in; the plumbing draws another one and says so."""
    drawn = []
    monkeypatch.setattr(one.drawing, "partitions", lambda preset, scale: drawn.append(scale) or {})
    shown = json.loads(command("fednoro/fig3/isic-partition", "--out", str(tmp_path), "--json"))
    assert (drawn, shown["scale"], shown["substitutions"]) == (["paper"], "paper", [])
    shown = json.loads(command("fednoro/fig3/isic-partition", "--scale", "smoke", "--out", str(tmp_path), "--json"))
    assert drawn == ["paper", "smoke"] and "data.name: isic2019 -> digits" in shown["substitutions"]


@pytest.mark.parametrize("wanted", ["fedlmd/table6", "fedvls/table10"])
def test_hyper_parameters_come_out_as_printed(wanted: str, tmp_path: Path) -> None:
    outcome = one.reproduce(preset_of(wanted), "paper", Shelf(tmp_path))
    # names may differ; FedSAM's 0.9 is SGD's momentum (D23); which data have how many clusters of FedConcat is not said
    for method, _, ours, _, _, printed in outcome.cells:
        if (method, wanted) not in {(name, "fedvls/table10") for name in ("fedsam", "fedconcat")}:
            values, theirs = ([part.partition("=")[2] for part in said.split(",")] for said in (ours, printed))
            assert values[: len(theirs)] == theirs, method  # what is not printed stands behind


def test_the_list_has_every_preset_and_what_was_run(finished: Path) -> None:
    rows = json.loads(command("--list", "--json", "--scale", "smoke", "--out", str(finished)))
    by_id = {row["id"]: row for row in rows}
    assert set(by_id) == set(presets())
    assert (by_id[TABLE1]["runs"], by_id[TABLE1]["finished"]) == (4, 2)
    assert by_id[TABLE1]["seconds"] > 0 and by_id["fedvls/table7"]["runs"] == 0
    assert by_id["fedvls/fig1"]["also"] == ["fedvls/fig5", "feded/fig1"]


def test_the_list_is_of_what_the_command_would_run(finished: Path) -> None:
    def listed(*words: str) -> tuple[int, int]:
        (row,) = json.loads(command(TABLE1, "--list", "--json", "--scale", "smoke", "--out", str(finished), *words))
        return row["runs"], row["finished"]

    assert listed("--methods", "fedavg,fedntd") == (2, 1)
    assert listed("--methods", "fedavg", "--seeds", "3") == (3, 1)
    assert listed("--methods", "fedavg", "--precision", "bf16") == (1, 0)  # those would be other runs


def test_the_list_says_which_scale_it_shows(tmp_path: Path) -> None:
    assert "those of --scale small" in command(TABLE1, "--list", "--out", str(tmp_path))
    assert "those of --scale paper" in command(TABLE1, "--list", "--scale", "paper", "--out", str(tmp_path))


def test_the_list_says_which_precision_it_shows(tmp_path: Path) -> None:
    shown = command(TABLE1, "--list", "--precision", "bf16", "--out", str(tmp_path))
    assert "those of --scale small --precision bf16" in shown and "Step times are those of float32." in shown


def test_the_run_that_others_begin_with_is_in_the_estimate(tmp_path: Path) -> None:
    (listed,) = json.loads(command("fedvls/table12", "--list", "--json", "--out", str(tmp_path)))
    updates = preset_of("fedvls/table12").cells("small")
    clock = costs.Clock(tmp_path / "none.json")
    assert updates[0].start is not None and updates[0].start.config.rounds == 5
    alone, start = [(update.config, update.client) for update in updates], updates[0].start.config
    six, one_more = (costs.seconds(runs, clock) for runs in (alone, [(start, None)]))
    assert six is not None and one_more is not None
    assert listed["runs"] == 6 and listed["seconds"] == pytest.approx(six[0] + one_more[0])


def test_the_table_for_programs(finished: Path) -> None:
    words = [TABLE1, "--scale", "smoke", "--methods", "fedavg,fedlmd", "--out", str(finished), "--json"]
    shown = json.loads(command(*words))
    assert shown["heading"][:2] == ["method", "best"] and [line[0] for line in shown["cells"]] == ["fedavg", "fedlmd"]
    first, best = shown["numbers"][0], shown["cells"][0][1]
    assert (first["row"], first["measure"], f"{first['ours']:.2f}", first["seeds"]) == ("fedavg", "best", best, 1)
    assert first["printed"] is None and first["difference"] is None  # digits stand in for the paper's data
    assert "rounds: 200 -> 2" in shown["substitutions"]
    assert [Path(path).name for path in shown["files"]] == ["table.md", "table.csv", "figure.png"]


def test_what_is_assumed_and_where_the_paper_s_scale_deviates_is_said_at_every_scale(tmp_path: Path) -> None:
    words = ["fedvls/table13/cifar10-dir-0.1", "--scale", "smoke", "--methods", "fedkd", "--out", str(tmp_path)]
    said = json.loads(command(*words, "--json"))["sentences"]
    assert "Assumed, because neither paper nor code says it: fedkd(beta=0.1, tau=1.0)." in said
    trials, network = (each for each in said if each.startswith("At scale paper: "))
    assert "Trials differ in their seed" in trials and "D19" in network


def test_entries_of_the_ledger_are_those_of_the_methods_that_are_run() -> None:
    table = preset_of("fedvls/table1/mnist-dir-0.05")
    assert table.deviations(["fedvls", "fedavg"])[-1].endswith("fedvls D1 D2 D3 D6 D33, fedavg D7 D8.")
    assert not any("FedConcat" in said for said in table.deviations(["fedvls"]))
    assert any("FedConcat" in said for said in table.deviations())


def test_of_several_tables_those_are_made_that_have_the_method(finished: Path, tmp_path: Path) -> None:
    """Table 1 of FedNoRo has no fednoro on clean ICH."""
    rows = json.loads(command("fednoro/table1", "--methods", "fednoro", "--list", "--json", "--out", str(tmp_path)))
    assert "fednoro/table1/ich-clean" not in {row["id"] for row in rows}
    assert len(rows) == 11 and {row["runs"] for row in rows} == {1}
    words = ["fedlmd/fig2", "--scale", "smoke", "--methods", "fedlmd,fedkd", "--out", str(finished)]
    result = CliRunner().invoke(main, ["reproduce", *words])
    assert result.exit_code == 2 and "'fedlmd/fig2' has no method 'fedkd'" in result.output
    shown = command("fedlmd", "--scale", "smoke", "--methods", "fedkd", "--list", "--json", "--out", str(finished))
    assert "fedlmd/fig4/cifar10-lda-0.05" in shown and "fig10" not in shown and "table3" not in shown


def test_ctrl_c_says_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [TABLE1, "--scale", "smoke", "--methods", "fedavg", "--out", str(tmp_path / "my runs")]
    monkeypatch.setattr("sys.argv", ["/usr/bin/fedskew", "reproduce", *words])

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run", interrupted)
    result = CliRunner().invoke(main, ["reproduce", *words])
    said = f"fedskew reproduce {TABLE1} --scale smoke --methods fedavg --out '{tmp_path}/my runs'"
    assert result.exit_code == 130 and f"go on with the same command: {said}\n" in result.output


def test_a_wrong_precision_is_said_before_anything_runs(tmp_path: Path) -> None:
    words = ["reproduce", TABLE1, "--scale", "smoke", "--out", str(tmp_path), "--precision", "fp8"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and "key 'engine.precision' is 'fp8'" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_cells_side_by_side_give_the_same_table(finished: Path, tmp_path: Path) -> None:
    done: list[str] = []
    for out, jobs in ((finished, 1), (tmp_path, 2)):
        one.reproduce(
            preset_of(TABLE1),
            "smoke",
            Shelf(out),
            methods=["fedavg", "fedlmd"],
            jobs=jobs,
            done=lambda cell: done.append(cell.row),
            name="inline",
        )
    assert sorted(done) == ["fedavg", "fedlmd"]
    tables = [(out / TABLE1 / "smoke-fedavg-fedlmd" / "table.csv").read_text() for out in (finished, tmp_path)]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_ctrl_c_ends_all_that_run_side_by_side(tmp_path: Path) -> None:
    asked = ["reproduce", "fedlmd/fig5/shard", "--scale", "smoke", "--jobs", "2", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "fedskew", *asked]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline().endswith(": finished\n")
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "go on with the same command" in said.splitlines()[-1] and "Traceback" not in said
    # those that had begun may have ended meanwhile, but none of the other runs began
    assert len(list(tmp_path.rglob(record.NAME))) < 12


@pytest.mark.slow
def test_what_fails_beside_others_is_said_at_once(tmp_path: Path) -> None:
    cell = preset_of(TABLE1).cells("smoke")[0]
    long = [replace(cell, config=cell.config.model_copy(update={"rounds": 10**6, "seed": seed})) for seed in (1, 2, 3)]
    lost = cell.config.model_copy(update={"data": Data(name="mnist", dir=str(tmp_path / "nowhere"))})
    begun = time.monotonic()
    with pytest.raises(UserError, match="nowhere' does not exist"):
        cells.run([long[0], replace(cell, config=lost), *long[1:]], Shelf(tmp_path), jobs=2)
    assert time.monotonic() - begun < 60


def test_a_torn_last_line_is_no_end(tmp_path: Path) -> None:
    path = fakes.write(tmp_path / "run", [0.5] * 3) / record.NAME
    assert cells.is_finished(path.parent)
    whole = path.read_bytes()
    for cut in (1, 30, len(whole.splitlines()[-1]), len(whole)):
        path.write_bytes(whole[:-cut])
        assert not cells.is_finished(path.parent), cut
    path.write_bytes(whole.replace(b"5eed", b"5eed" * 2**18))  # a line of more than a megabyte
    assert cells.is_finished(path.parent)


def test_a_row_of_hyper_parameters(tmp_path: Path) -> None:
    whole, row = (
        one.reproduce(preset_of("fedvls/table10"), "paper", Shelf(tmp_path), methods=m) for m in ((), ["moon"])
    )
    assert {line[0] for line in row.cells} == {"moon"} < {line[0] for line in whole.cells}
    assert [each.folder.name for each in (whole, row)] == ["paper", "paper-moon"]


def test_some_of_a_table_does_not_replace_all_of_it(tmp_path: Path) -> None:
    preset = preset_of(TABLE1)
    asked: list[dict[str, Any]] = [{}, {"methods": ["fedavg"]}, {"methods": ["fedavg"], "seeds": 2}]
    made = [one.reproduce(preset, "smoke", Shelf(tmp_path), name="inline", **each) for each in asked]
    assert [each.folder.name for each in made] == ["smoke", "smoke-fedavg", "smoke-fedavg-seeds=2"]
    assert "One seed." in made[0].sentences and any(said.startswith("2 seeds: ") for said in made[2].sentences)


def test_a_row_and_methods_must_agree() -> None:
    said = complaint("reproduce", f"{TABLE1}/fedntd", "--methods", "fedavg")
    assert "is of fedntd, and --methods says fedavg; say one of them" in said


def test_measuring_goes_with_the_list() -> None:
    assert "--measure measures what --list estimates with" in complaint("reproduce", "fedvls/table7", "--measure")


def test_the_command_says_what_is_missing() -> None:
    result = CliRunner().invoke(main, ["reproduce"])
    assert result.exit_code == 2 and "which table or figure?" in result.output


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("fedvls/table7", "'fedvls/table7' has no method 'fedavgg'; it has none"),
        ("fedvls", "'fedvls' has no method 'fedavgg'; did you mean 'fedavg'?"),
    ],
)
def test_a_method_that_no_table_has_is_refused(wanted: str, sentence: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["reproduce", wanted, "--methods", "fedavgg", "--out", str(tmp_path)])
    assert result.exit_code == 2 and sentence in result.output
    assert not list(tmp_path.iterdir())
