from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.reproduce import costs, facts
from fedskew.reproduce.presets import find, presets
from fedskew.reproduce.schema import SCALES

MINUTES = 60


def test_steps_are_counted_by_hand() -> None:
    config = find("fedlmd/table1/cifar10-lda-0.05")[0][0].cells("paper")[0].config
    # a round: 10 clients of 500 samples on average, 5 epochs: 5 (50000 * 10 / 100 / 50 + 10 / 2) = 525 steps, the half
    # batch of each client included; and 10000 / 50 batches of the test data forwards only: 200 / 3
    assert costs.steps(config) == pytest.approx(200 * (525 + 200 / 3))


def test_a_second_pass_and_scored_clients_cost_more() -> None:
    cells = {cell.row: cell.config for cell in find("fedvls/table1/mnist-dir-0.1")[0][0].cells("paper")}
    # 5 (60000 / 64 + 10 / 2) steps a round; 11 models scored on 10000 / 64 batches
    training, scored = 5 * (60000 / 64 + 5), 10000 / 64 / 3 * 11
    assert costs.steps(cells["fedavg"]) == pytest.approx(50 * (training + scored))
    assert costs.steps(cells["fedsam"]) == pytest.approx(50 * (2 * training + scored))
    assert costs.steps(cells["fedvls"]) == pytest.approx(50 * (4 / 3 * training + scored))


def test_a_stage_of_few_steps_costs_less() -> None:
    (config,) = (cell.config for cell in find("fedvls/table1/cifar10-dir-0.1")[0][0].cells("paper", ["fedconcat"]))
    # 50 rounds of 10 (50000 / 64 + 10 / 2) steps, 1000 of 3 by each of 10 clients; 10000 / 64 batches scored in each
    assert costs.steps(config) == pytest.approx(50 * 10 * (50000 / 64 + 5) + 1000 * 30 + 1050 * 10000 / 64 / 3)


def test_the_update_of_one_client_costs_what_that_client_does() -> None:
    cell = find("fedvls/table12")[0][0].cells("small", ["fedavg"])[0]
    assert cell.client == 0
    # table 7's client 0 has 3310 + 3 + 4 + 4992 + 13 + 2 images; one epoch, and half a batch more; one model is scored
    owned = sum(facts.counts(cell.config)[0].tolist())
    assert costs.steps(cell.config, cell.client) == pytest.approx(owned / 64 + 0.5 + 10000 / 64 / 3)


def test_annotators_and_stages_beside_the_rounds_are_counted() -> None:
    preset = find("fednoro/table1/ham10000-rho0.4-eta0.5-0.7")[0][0]
    cells = {cell.row: cell.config for cell in preset.cells("paper")}
    # an epoch of all 20 clients has 7007 / 16 + 20 / 2 steps; annotators make 10 on 2 of 5 clients, and judge
    epoch, scored, annotators = 7007 / 16 + 10, 2005 / 16 / 3, 10 * 0.4 * (4 / 3 * 7007 / 16 + 10)
    assert costs.steps(cells["fedavg"]) == pytest.approx(30 * (epoch + scored) + annotators)
    # FedCorr's first stage visits everybody twice, one a round, beside its 28 rounds
    assert costs.steps(cells["fedcorr"]) == pytest.approx(30 * epoch + (28 + 40) * scored + annotators)
    clean = find("fednoro/table1/ham10000-clean")[0][0].cells("paper", ["fedla"])[0].config
    assert costs.steps(clean) == pytest.approx(30 * (epoch + scored))


def test_every_step_has_a_stored_time() -> None:
    for preset in presets().values():
        for scale in SCALES:
            for cell in preset.cells(scale):
                assert costs.key(cell.config) in costs.STORED, preset.id


def test_no_small_cell_takes_more_than_fifteen_minutes_on_two_cores() -> None:
    for preset in presets().values():
        cells = preset.cells("small")
        for cell in [*cells, *(cell.start for cell in cells if cell.start is not None)]:
            taken = costs.STORED[costs.key(cell.config)] * costs.steps(cell.config) / 2
            assert taken <= 15 * MINUTES, (preset.id, cell.row, cell.column, taken / MINUTES)


def test_a_measured_step_is_kept(tmp_path: Path) -> None:
    config = find("fedlmd/table1/cifar10-lda-0.05")[0][0].cells("smoke")[0].config
    path = tmp_path / "deep" / "times.json"
    assert costs.Clock(path).step(config) == (costs.STORED[costs.key(config)], False)
    measured = costs.Clock(path, measure=True).step(config)
    assert measured is not None and measured[1] and 0 < measured[0] < 1
    assert costs.Clock(path).step(config) == measured


def test_a_damaged_file_of_times_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text("{")
    config = find("fedlmd/table1/cifar10-lda-0.05")[0][0].cells("smoke")[0].config
    found = costs.seconds([(config, None), (config, None)], costs.Clock(path))
    assert found is not None and not found[1]


def test_partitions_are_exact_without_the_data() -> None:
    # the replays of the specification: FedNTD's seed, 100 clients; and FedNoRo's golden sizes on ICH
    counts = facts.counts(find("fedlmd/fig10/partition-0.5")[0][0].config("paper", "cifar10-lda-0.5"))
    assert counts[0].tolist() == [239, 14, 136, 15, 0, 0, 31, 19, 185, 0]
    assert (counts.sum(1).min(), counts.sum(1).max()) == (134, 1004)
    ich = facts.counts(find("fednoro/fig3/ich-partition")[0][0].config("paper", "ich-clean"))
    assert ich.sum(1).tolist()[:6] == [1509, 1723, 3402, 1671, 3789, 3059]
    assert ich[0].tolist() == [88, 325, 440, 179, 477] and ich[19].tolist() == [79, 288, 8, 163, 200]
    # FedVLS' quantity-based skew: the first of two holders may get more than the other on CIFAR-10, not on CIFAR-100
    two, twenty = (
        facts.counts(find(f"fedvls/table2/{task}")[0][0].config("paper", task))
        for task in ("cifar10-quantity-2", "cifar100-quantity-20")
    )
    assert two[:3, :4].tolist() == [[485, 4230, 0, 0], [4515, 770, 0, 0], [0, 0, 1155, 3013]]
    assert twenty.sum(1).tolist() == [2996, 7004, 2584, 7416, 2712, 7288, 2403, 7597, 2483, 7517]


@pytest.mark.slow
def test_every_partition_can_be_drawn() -> None:
    """Except those of the sites of the data; FedNTD's at 0.05 takes 19,126 draws and has a test of its own."""
    drawn = set()
    for preset in presets().values():
        for cell in (cell for scale in SCALES for cell in preset.cells(scale)):
            config, wanted = cell.config, cell.config.partition
            stated = repr((config.data, wanted, config.seed))
            if stated not in drawn and wanted.name != "natural" and (wanted.alpha, wanted.clients) != (0.05, 100):
                drawn.add(stated)
                counts = facts.counts(config)
                assert counts.shape == (wanted.clients, len(facts.of(config).classes))
                assert counts.sum() == facts.of(config).train
    assert len(drawn) > 50
