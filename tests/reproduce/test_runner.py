"""Cells are run once, wherever their runs are; and one of each kind comes out of the command at smoke scale."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedskew.cli import main
from fedskew.config.schema import DataConfig, RunConfig
from fedskew.core.errors import UserError
from fedskew.experiment import run as experiment
from fedskew.experiment.callbacks import Callback
from fedskew.record import reader, run_dir
from fedskew.reproduce import costs, run_cache, runner
from fedskew.reproduce.presets import Preset, find, presets
from fedskew.reproduce.run_cache import RunCache, identity
from tests.commands import complaint
from tests.contract import harness
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
    cache = RunCache(tmp_path)
    by_row = {c.row: c for c in preset_of("fedlmd/table3/cifar10-lda-0.05").cells("paper")}
    for cell in preset_of(TABLE1).cells("paper", ["fedavg", "fedntd", "fedlmd"]):
        assert cache.place(cell) == cache.place(by_row[cell.row])
    update = preset_of("fedvls/table12").cells("paper")[0]
    assert update.start is not None
    assert cache.place(update.start) == cache.place(preset_of("fedvls/table1/cifar10-dir-0.05").cells("paper")[0])
    both, whole = (
        {cell.column: cache.place(cell) for cell in preset_of(wanted).cells("paper", [row])}
        for wanted, row in (("fedvls/table5", "both"), ("fedvls/table6", "fedvls"))
    )
    assert both == whole
    other = preset_of("fedvls/fig2").cells("paper")[0]
    assert len({cache.place(each) for each in (update, update.start, other)}) == 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods of a table at smoke scale; no test adds a run."""
    out = tmp_path_factory.mktemp("finished")
    runner.reproduce(preset_of(TABLE1), "smoke", RunCache(out), methods=["fedavg", "fedlmd"], name="inline")
    return out


@pytest.fixture(scope="module")
def shared(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with whatever tests add, in any order: what several of them need is run once."""
    return Path(shutil.copytree(finished, tmp_path_factory.mktemp("shared") / "runs"))


def test_a_finished_cell_is_not_run_again(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob(reader.NAME)}
    assert len(before) == 2
    starts = harness.Starts()
    runner.reproduce(preset_of(TABLE1), "smoke", RunCache(finished), methods=["fedavg", "fedlmd"], callbacks=[starts])
    assert starts.names == [] and {path: path.read_bytes() for path in before} == before


def test_records_from_elsewhere_are_taken(finished: Path, tmp_path: Path) -> None:
    wanted = preset_of(TABLE1).cells("smoke")
    cache = RunCache(tmp_path, (finished,))
    there = {cell.row: folder for cell in wanted for place, folder in cache.finished([cell]).items() if place}
    assert set(there) == {"fedavg", "fedlmd"} and all(finished in folder.parents for folder in there.values())
    scored = wanted[0].config.model_copy(
        update={"evaluate": wanted[0].config.evaluate.model_copy(update={"clients": True})}
    )
    assert cache.finished([run_cache.Cell("fedavg", "", scored, scored)]) == {}  # that record has no scores of clients


def test_an_unfinished_or_foreign_record_is_not_taken(finished: Path, tmp_path: Path) -> None:
    first = next(finished.rglob(reader.NAME))
    for name, text in {"cut": first.read_text().split('{"kind":"end"')[0], "torn": '{"kind":"hea', "empty": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / reader.NAME).write_text(text)
    assert RunCache(tmp_path / "out", (tmp_path,)).finished(preset_of(TABLE1).cells("smoke")) == {}


def test_an_extended_record_has_the_rounds_it_was_extended_to(finished: Path, tmp_path: Path) -> None:
    path = next(finished.rglob(reader.NAME))
    (tmp_path / "run").mkdir()
    header, *rest = path.read_text().splitlines()
    longer = json.dumps({"kind": "extended", "rounds": 5}, separators=(",", ":"))
    (tmp_path / "run" / reader.NAME).write_text("\n".join([header, longer, *rest]) + "\n")
    cell = next(c for c in preset_of(TABLE1).cells("smoke") if method_of(header) == c.config.method)
    cache = RunCache(tmp_path / "out", (tmp_path,))
    assert cache.finished([cell]) == {}
    five = cell.config.model_copy(update={"rounds": 5})
    assert len(cache.finished([run_cache.Cell(cell.row, "", five, five)])) == 1


def method_of(header: str) -> str:
    return RunConfig.model_validate(json.loads(header)["config"]).method


def test_an_interrupted_table_goes_on(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)  # it replaces a folder that is gone

    class Stop(Exception):
        pass

    def stop(line: dict[str, object]) -> None:
        raise Stop

    preset = preset_of(TABLE1)
    with pytest.raises(Stop):
        runner.reproduce(
            preset, "smoke", RunCache(tmp_path), methods=["fedavg"], callbacks=[harness.each_round(stop)], name="inline"
        )
    runner.reproduce(preset, "smoke", RunCache(tmp_path), methods=["fedavg"], name="inline", data_dir="now here")
    assert [experiment.resumed_config(path.parent).data.dir for path in tmp_path.rglob(reader.NAME)] == ["now here"]
    (ended,) = (reader.read(path).end for path in tmp_path.rglob(reader.NAME))
    whole = next(run.end for run in map(reader.read, finished.rglob(reader.NAME)) if run.header["method"] == "fedavg")
    assert ended is not None and whole is not None and ended["weights_sha256"] == whole["weights_sha256"]


def test_a_shorter_run_of_the_same_goes_on_where_it_is(finished: Path, tmp_path: Path) -> None:
    (cell,) = runner.wanted(preset_of(TABLE1), "smoke", ["fedavg"], name="inline")[0]
    started = tmp_path / "mine" / "first-round"
    experiment.run(cell.config.model_copy(update={"rounds": 1}), started)
    before = (started / reader.NAME).read_bytes()

    foreign = RunCache(tmp_path / "out", (tmp_path / "mine",))
    assert foreign.unfinished(cell) == started
    assert run_cache.run([cell], foreign) == {foreign.place(cell): foreign.place(cell)}
    assert (started / reader.NAME).read_bytes() == before

    own = RunCache(tmp_path / "mine", (tmp_path / "mine",))
    assert run_cache.run([cell], own) == {own.place(cell): started}
    ended = reader.read(started).end
    whole = next(run.end for run in map(reader.read, finished.rglob(reader.NAME)) if run.header["method"] == "fedavg")
    assert ended is not None and whole is not None and ended["weights_sha256"] == whole["weights_sha256"]
    assert list(RunCache(tmp_path / "mine", (tmp_path / "mine",)).finished([cell]).values()) == [started]


def test_a_cell_s_folder_stays_its_own(tmp_path: Path) -> None:
    """Even if a longer run, or one from another model, could go on from there."""
    cache = RunCache(tmp_path, (tmp_path,))
    (short,) = runner.wanted(preset_of(TABLE1), "smoke", ["fedavg"], name="inline")[0]
    long = replace(short, config=short.config.model_copy(update={"rounds": 3}))
    run_cache.run([short], cache)
    run_cache.run([long], RunCache(tmp_path, (tmp_path,)))
    assert [len(reader.read(cache.place(cell)).rounds) for cell in (short, long)] == [2, 3]

    runner.reproduce(preset_of("fedvls/fig9"), "smoke", RunCache(tmp_path), methods=["fedlc"], name="inline")
    (other,) = runner.wanted(preset_of("fedvls/fig3/cifar10-dir-0.05"), "smoke", ["fedlc"], name="inline")[0]
    assert RunCache(tmp_path, (tmp_path,)).unfinished(other) is None
    # nor from the cells of another table, where --records finds them
    elsewhere = RunCache(tmp_path / "elsewhere", (tmp_path,))
    longer = replace(short, config=short.config.model_copy(update={"rounds": 4}))
    assert elsewhere.unfinished(other) is None and elsewhere.unfinished(longer) is None
    once = replace(other, config=other.config.model_copy(update={"rounds": 1}))
    assert elsewhere.finished([once]) == {}


def test_a_cell_that_was_made_longer_is_not_the_table_s(tmp_path: Path) -> None:
    (cell,) = runner.wanted(preset_of(TABLE1), "smoke", ["fedavg"], name="inline")[0]
    cache = RunCache(tmp_path)
    run_cache.run([cell], cache)
    experiment.resume(cache.place(cell), rounds=4)
    with pytest.raises(UserError, match="has 4 rounds, and the table needs 2\\. Move the folder"):
        run_cache.run([cell], cache)
    cache.place(cell).rename(tmp_path / "cells" / "longer")
    run_cache.run([cell], cache)
    assert len(reader.read(cache.place(cell)).rounds) == 2


def test_a_run_without_scores_of_clients_is_not_taken_for_one_with_them(tmp_path: Path) -> None:
    runner.reproduce(
        preset_of("fedvls/fig3/cifar10-dir-0.1"), "smoke", RunCache(tmp_path), methods=["fedavg"], name="inline"
    )
    made = runner.reproduce(preset_of("fedvls/table17"), "smoke", RunCache(tmp_path), methods=["fedavg"], name="inline")
    assert float(made.cells[0][1]) > 0
    # but one with scores will do where none are asked for
    unscored = preset_of("fedvls/fig3/cifar10-dir-0.1").cells("smoke", ["fedavg"])[0]
    scored = preset_of("fedvls/table17").cells("smoke", ["fedavg"])[0]
    cache = RunCache(tmp_path)
    cache.place(unscored).rename(tmp_path / "away")
    assert cache.finished([unscored]) == {cache.place(unscored): cache.place(scored)}


def test_everybody_is_everybody_by_number_too() -> None:
    config = preset_of("fedvls/fig3/cifar10-dir-0.05").cells("paper")[0].config
    assert identity(config) == identity(config.model_copy(update={"clients_per_round": config.partition.clients}))
    assert identity(config) != identity(config.model_copy(update={"clients_per_round": 5}))


def test_a_shorter_run_is_no_beginning_where_the_method_goes_by_the_number_of_rounds(tmp_path: Path) -> None:
    """FedNoRo ramps its distillation up over all rounds."""
    (cell,) = runner.wanted(preset_of("fednoro/table1/cifar10n-rho0.4"), "smoke", ["fednoro"], name="inline")[0]
    started = tmp_path / "shorter"
    experiment.run(cell.config.model_copy(update={"rounds": 2}), started)
    assert RunCache(tmp_path, (tmp_path,)).unfinished(cell) is None


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
def test_one_of_each_family_at_smoke_scale(wanted: str, shared: Path) -> None:
    check(wanted, shared)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", list(presets()))
def test_every_preset_at_smoke_scale(wanted: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(wanted, tmp_path_factory.getbasetemp() / "all")


def check(wanted: str, out: Path) -> None:
    outcome = runner.reproduce(preset_of(wanted), "smoke", RunCache(out), name="inline")
    assert outcome.files and all(path.stat().st_size > 100 for path in outcome.files)
    if outcome.cells:
        assert all(len(line) == len(outcome.heading) for line in outcome.cells)
        assert "printed" not in outcome.heading or preset_of(wanted).shows in ("hyper", "printed")


def test_one_client_s_update_begins_with_the_trained_model(shared: Path) -> None:
    """After a round of FedAvg by one client alone, the model is that client's: it was trained on its samples only."""
    check("fedvls/fig2", shared)
    cell = runner.wanted(preset_of("fedvls/fig2"), "smoke", name="inline")[0][0]
    run = reader.read(RunCache(shared).place(cell))
    assert cell.start is not None
    start = reader.read(RunCache(shared).place(cell.start))
    assert run.header["counts"] == [start.header["counts"][3]]
    assert run.rounds[0]["examples"] == sum(start.header["counts"][3])


def test_updates_among_records_are_taken_without_the_weights_they_began_with(shared: Path, tmp_path: Path) -> None:
    """Committed records have no weights: a table whose updates are all there is made from them alone."""
    preset = preset_of("fedvls/table12")
    runner.reproduce(preset, "smoke", RunCache(shared), methods=["fedavg", "fedkd"], name="inline")
    there = tmp_path / "records"
    for cell in (group[0] for group in runner.wanted(preset, "smoke", ["fedavg", "fedkd"], name="inline")):
        assert cell.start is not None
        for each in (cell, cell.start):
            kept = RunCache(there).place(each)
            kept.mkdir(parents=True, exist_ok=True)
            (kept / reader.NAME).write_bytes((RunCache(shared).place(each) / reader.NAME).read_bytes())
    starts = harness.Starts()

    def trained() -> list[tuple[str, int]]:
        return [(each.method.partition("(")[0], each.rounds) for each in starts.configs]

    def again(out: str, *methods: str) -> None:
        cache = RunCache(tmp_path / out, (there,))
        runner.reproduce(preset, "smoke", cache, methods=methods, callbacks=[starts], name="inline")

    again("all", "fedavg", "fedkd")
    assert trained() == []
    again("one more", "fedavg", "fedkd", "fedntd")
    assert trained() == [
        ("fedavg", 2),
        ("fedntd", 1),
    ]  # its weights are nowhere, so the model is trained for fedntd alone
    tables = [(out / "fedvls/table12/smoke-fedavg-fedkd/table.csv").read_text() for out in (shared, tmp_path / "all")]
    assert tables[0] == tables[1]


def test_a_table_that_tests_models_anew_does_not_take_records_without_them(tmp_path: Path) -> None:
    preset = preset_of("fedvls/table14")
    runner.reproduce(preset, "smoke", RunCache(tmp_path / "first"), methods=["fpl"], name="inline")
    (there,) = (tmp_path / "first" / "cells").iterdir()
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        (tmp_path / name / reader.NAME).write_bytes((there / reader.NAME).read_bytes())
    (tmp_path / "with" / run_dir.WEIGHTS).write_bytes((there / run_dir.WEIGHTS).read_bytes())
    for name, trained in {"with": 0, "without": 1}.items():
        cache = RunCache(tmp_path / f"again {name}", (tmp_path / name,))
        runner.reproduce(preset, "smoke", cache, methods=["fpl"], name="inline")
        assert len(list(cache.out.rglob(reader.NAME))) == trained


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
    monkeypatch.setattr(runner.drawing, "partitions", lambda preset, scale: drawn.append(scale) or {})
    shown = json.loads(command("fednoro/fig3/isic-partition", "--out", str(tmp_path), "--json"))
    assert (drawn, shown["scale"], shown["substitutions"]) == (["paper"], "paper", [])
    shown = json.loads(command("fednoro/fig3/isic-partition", "--scale", "smoke", "--out", str(tmp_path), "--json"))
    assert drawn == ["paper", "smoke"] and "data.name: isic2019 -> digits" in shown["substitutions"]


@pytest.mark.parametrize("wanted", ["fedlmd/table6", "fedvls/table10"])
def test_hyper_parameters_come_out_as_printed(wanted: str, tmp_path: Path) -> None:
    outcome = runner.reproduce(preset_of(wanted), "paper", RunCache(tmp_path))
    # names may differ; FedSAM's 0.9 is SGD's momentum (D23); which data have how many clusters of FedConcat is not said
    for method, _, ours, _, _, printed in outcome.cells:
        if (method, wanted) not in {(name, "fedvls/table10") for name in ("fedsam", "fedconcat")}:
            values, reference = ([part.partition("=")[2] for part in said.split(",")] for said in (ours, printed))
            assert values[: len(reference)] == reference, method  # what is not printed stands behind


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
    assert result.exit_code == 2 and "engine.precision is 'fp8'" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_cells_side_by_side_give_the_same_table(finished: Path, tmp_path: Path) -> None:
    done: list[str] = []

    class Done(Callback):
        def on_message(self, text: str) -> None:
            done.append(text.partition(",")[0])

    for out, jobs in ((finished, 1), (tmp_path, 2)):
        runner.reproduce(
            preset_of(TABLE1),
            "smoke",
            RunCache(out),
            methods=["fedavg", "fedlmd"],
            jobs=jobs,
            callbacks=[Done()],
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
    assert len(list(tmp_path.rglob(reader.NAME))) < 12


@pytest.mark.slow
def test_what_fails_beside_others_is_said_at_once(tmp_path: Path) -> None:
    cell = preset_of(TABLE1).cells("smoke")[0]
    long = [replace(cell, config=cell.config.model_copy(update={"rounds": 10**6, "seed": seed})) for seed in (1, 2, 3)]
    lost = cell.config.model_copy(update={"data": DataConfig(name="mnist", dir=str(tmp_path / "nowhere"))})
    started = time.monotonic()
    with pytest.raises(UserError, match="nowhere', needed for data set 'mnist', is missing"):
        run_cache.run([long[0], replace(cell, config=lost), *long[1:]], RunCache(tmp_path), jobs=2)
    assert time.monotonic() - started < 60


def test_a_torn_last_line_is_no_end(tmp_path: Path) -> None:
    path = fakes.write(tmp_path / "run", [0.5] * 3) / reader.NAME
    assert run_cache.is_finished(path.parent)
    whole = path.read_bytes()
    for cut in (1, 30, len(whole.splitlines()[-1]), len(whole)):
        path.write_bytes(whole[:-cut])
        assert not run_cache.is_finished(path.parent), cut
    path.write_bytes(whole.replace(b"5eed", b"5eed" * 2**18))  # a line of more than a megabyte
    assert run_cache.is_finished(path.parent)


def test_a_row_of_hyper_parameters(tmp_path: Path) -> None:
    whole, row = (
        runner.reproduce(preset_of("fedvls/table10"), "paper", RunCache(tmp_path), methods=m) for m in ((), ["moon"])
    )
    assert {line[0] for line in row.cells} == {"moon"} < {line[0] for line in whole.cells}
    assert [each.folder.name for each in (whole, row)] == ["paper", "paper-moon"]


def test_some_of_a_table_does_not_replace_all_of_it(tmp_path: Path) -> None:
    preset = preset_of(TABLE1)
    asked: list[dict[str, Any]] = [{}, {"methods": ["fedavg"]}, {"methods": ["fedavg"], "seeds": 2}]
    made = [runner.reproduce(preset, "smoke", RunCache(tmp_path), name="inline", **each) for each in asked]
    assert [each.folder.name for each in made] == ["smoke", "smoke-fedavg", "smoke-fedavg-seeds=2"]
    assert "One seed." in made[0].sentences and any(said.startswith("2 seeds: ") for said in made[2].sentences)


def test_a_row_and_methods_must_agree() -> None:
    said = complaint("reproduce", f"{TABLE1}/fedntd", "--methods", "fedavg")
    assert "is the row of fedntd, but --methods is fedavg. Leave out --methods." in said


def test_measuring_goes_with_the_list() -> None:
    assert "--measure works only with --list" in complaint("reproduce", "fedvls/table7", "--measure")


def test_the_command_says_what_is_missing() -> None:
    result = CliRunner().invoke(main, ["reproduce"])
    assert result.exit_code == 2 and "the ID of a table or figure is missing." in result.output


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("fedvls/table7", "'fedvls/table7' has no method 'fedavgg'. It has none"),
        ("fedvls", "'fedvls' has no method 'fedavgg'. Did you mean 'fedavg'?"),
    ],
)
def test_a_method_that_no_table_has_is_refused(wanted: str, sentence: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["reproduce", wanted, "--methods", "fedavgg", "--out", str(tmp_path)])
    assert result.exit_code == 2 and sentence in result.output
    assert not list(tmp_path.iterdir())
