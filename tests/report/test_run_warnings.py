"""A run whose method did not do all that it does is not taken for one that did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedskew.record import reader, schema
from fedskew.report import load, run_warnings, standings, verdict
from tests.report import fakes

LEFT_OUT = "stages 1 of 2: there were too few --rounds for the next, which begins with Detect"


def staged(accuracies: list[float | None], finished: bool = True, **line: Any) -> reader.RunRecord:
    run = fakes.run(accuracies, **line)
    run.header.stages = ["", "Detect"]
    return reader.RunRecord(run.header, run.rounds, end=schema.EndLine() if finished else None)


def test_a_finished_run_names_the_stage_it_did_not_reach() -> None:
    assert run_warnings.of(staged([0.5], stage=0)) == [LEFT_OUT]
    assert run_warnings.of(staged([0.5], finished=False, stage=0)) == []
    assert run_warnings.of(staged([0.5], stage=1)) == []


def test_warnings_count_their_seeds() -> None:
    late, early = staged([0.5], stage=1), staged([0.5], stage=0)
    assert run_warnings.together([early, early]) == [LEFT_OUT]
    assert run_warnings.together([early, late]) == [f"{LEFT_OUT} (with 1 of 2 seeds)"]


def test_detections_without_noisy_clients_and_rounds_without_a_step_are_warned_of() -> None:
    run = staged([0.5], stage=1)
    run.setups.append({"verdict": {"noisy": [], "judgment": {"verdict": "insufficient"}}})
    assert run_warnings.of(run) == ["detection says 'insufficient', so no client was treated as noisy"]
    run.setups.append({"verdict": {"noisy": [3], "judgment": {"verdict": "some"}}})
    assert run_warnings.of(run) == []
    (said,) = run_warnings.of(fakes.run([0.5, 0.5], steps=0))
    assert said.startswith("no client made a step")


def test_updates_that_were_not_finite_are_counted_and_their_clients_named() -> None:
    why = "refused: tensor 'a' of its buffers holds a number that is not finite"
    once = fakes.run([0.5], lost={"1": why})
    assert run_warnings.of(once) == ["1 update of client 1 was left out because it was not finite"]
    run = fakes.run([0.5, 0.5], lost={"0": "no reply within 600 s", "1": why})
    run.setups.append({"lost": {str(client): why for client in range(6)}})
    run.header["data"].sites = ["Ulm", "Bonn"]
    run.header["config"]["partition"]["name"] = "natural"
    (said,) = run_warnings.of(run)
    assert said == "8 updates of clients Bonn, Ulm, 2, 3, 4 and 1 more were left out because they were not finite"


def test_no_method_wins_against_or_with_half_a_method(tmp_path: Path) -> None:
    for seed in range(3):
        for method, share in (("whole", 0.5), ("half", 0.75)):
            folder = tmp_path / f"{method}-{seed}"
            stages = ["", "Detect"] if method == "half" else [""]
            fakes.write(folder, [share, share + seed / 100], method, seed, fields={"stages": stages}, stage=0)
    (task,) = standings.tasks(load.read([tmp_path]))
    assert verdict.says(task, "best").startswith("By best accuracy, half has the highest mean, 76.00 %")
    assert verdict.cautions(task) == [f"half: {LEFT_OUT}."]
