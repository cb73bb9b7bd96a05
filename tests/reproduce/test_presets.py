from __future__ import annotations

import pytest
from pydantic import ValidationError

from fedskew.core.errors import UserError
from fedskew.methods import registry
from fedskew.reproduce import presets as catalog
from fedskew.reproduce.presets import find, presets
from fedskew.reproduce.schema import SCALES, STATIC, Hyper

SETTINGS = [
    "mnist-shard-2", "cifar10-shard-2", "cifar10-shard-3", "cifar10-shard-5", "cifar10-shard-10", "cifar100-shard-10",
    "cinic10-shard-2", "mnist-lda-0.1", "cifar10-lda-0.05", "cifar10-lda-0.1", "cifar10-lda-0.3", "cifar10-lda-0.5",
    "cifar100-lda-0.1", "cinic10-lda-0.1",
]  # fmt: skip
DIRICHLET = [f"{data}-dir-{b}" for data in ("mnist", "cifar10", "cifar100", "tiny") for b in ("0.5", "0.1", "0.05")]
QUANTITY = ["cifar10-quantity-2", "cifar100-quantity-20", "tiny-quantity-40"]
BACKBONES = [f"{net}-dir-{b}" for net in ("resnet18", "resnet32", "mobilenetv2") for b in ("0.1", "0.05")]
ICH = [f"ich-rho{rho}-eta{eta}" for rho in ("0.2", "0.3", "0.4", "0.6") for eta in ("0.3-0.5", "0.5-0.7")]

#: the specification's list of what one command each should regenerate
IDS = [
    "fedlmd/table1/cifar10-lda-0.05", "fedlmd/table2/cifar10-lda-0.05", "fedlmd/table5/cifar10-lda-0.5",
    "fedlmd/table6",
    *(f"fedlmd/table{number}/{cell}" for number in (3, 7) for cell in SETTINGS),
    *(f"fedlmd/table4/{net}" for net in ("cnn2", "mobilenet", "resnet8")),
    "fedlmd/fig2/cifar10-lda-0.05", "fedlmd/fig4/cifar10-lda-0.05", "fedlmd/fig5/shard", "fedlmd/fig5/lda",
    *(f"fedlmd/fig6/cifar10-lda-{alpha}" for alpha in ("0.05", "0.3", "0.5")),
    "fedlmd/fig7/epochs", "fedlmd/fig7/clients", "fedlmd/fig8/switch", "fedlmd/fig9/tau", "fedlmd/fig9/beta",
    *(f"fedlmd/fig10/partition-{alpha}" for alpha in ("0.05", "0.3", "0.5")),
    *(f"{paper}/table1/{cell}" for paper in ("feded", "fedvls") for cell in DIRICHLET),
    *(f"{paper}/table2/{cell}" for paper in ("feded", "fedvls") for cell in QUANTITY),
    *(f"{paper}/table3/{cell}" for paper in ("feded", "fedvls") for cell in BACKBONES),
    *(f"feded/table{number}" for number in (4, 5, 6, 7)),
    *(f"fedvls/table{number}" for number in (4, 5, 6, 7, 10, 12, 14, 15, 16, 17)),
    *(f"fedvls/table11/agnews-{cell}" for cell in ("dir-0.1", "dir-0.05", "quantity-2")),
    *(f"fedvls/table13/{d}-dir-{b}" for d in ("cifar10", "cifar100", "tiny") for b in ("0.1", "0.05")),
    *(f"fedvls/fig{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9)), *(f"feded/fig{n}" for n in (1, 3, 4, 5, 6)),
    *(f"fednoro/table1/{cell}" for cell in ["ich-clean", *ICH]),
    *(f"fednoro/table2/isic-{cell}" for cell in ("clean", "rho0.4-eta0.5-0.7", "rho0.6-eta0.5-0.7")),
    *(f"fednoro/table3/ich-rho{rho}-eta0.3-0.5{row}" for rho in ("0.3", "0.4")
      for row in ("", "/lid", "/conf", "/loss", "/loss+la", "/loss+pc", "/loss+la+pc", "/loss+la+pc+norm")),
    *(f"fednoro/table4/ich-rho0.4-eta0.3-0.5/{row}" for row in ("all", "drop-noisy", "daagg", "kl", "kl+daagg")),
    "fednoro/table4/ich-rho0.4-eta0.3-0.5", "fednoro/table4/isic-rho0.6-eta0.5-0.7", "fednoro/table5",
    "fednoro/fig3/ich-partition", "fednoro/fig3/isic-partition", "fednoro/fig4/ich-rho0.4-eta0.3-0.5-t1sweep",
    *(f"fednoro/table{number}/ham10000-rho0.4-eta0.5-0.7" for number in (1, 3, 4)), "fednoro/table1/ham10000-clean",
    *(f"niid-bench/cifar10/{task}" for task in ("label2", "labeldir-0.5", "label2-100", "labeldir-0.5-100", "iid-100")),
    *(f"fnbench/agnews/{task}" for task in ("symmetric-dir-0.5", "pairflip-dir-1.0")),
]  # fmt: skip


@pytest.mark.parametrize("wanted", IDS)
def test_every_identifier_of_the_specification_is_there(wanted: str) -> None:
    assert find(wanted)


def test_a_row_that_is_no_run_stands_for_the_run_that_it_is_read_off() -> None:
    runs = {row: find(f"fednoro/table3/ich-rho0.3-eta0.3-0.5/{row}")[0][1] for row in ("lid", "loss+la")}
    assert runs == {"lid": ("without-la",), "loss+la": ("with-la",)}
    with pytest.raises(UserError, match=r"has no method 'lod'. Known: .*lid"):
        find("fednoro/table3/ich-rho0.3-eta0.3-0.5/lod")


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.id)
def test_a_preset_builds_at_every_scale(preset: catalog.Preset) -> None:
    """Configurations are checked as they are made; methods are built; each value has a source."""
    for scale in SCALES:
        cells = preset.cells(scale)
        assert bool(cells) == (preset.shows not in STATIC)
        for cell in cells:
            assert registry.build(cell.config.method).expression == cell.config.method
            if scale == "smoke":
                assert cell.config.data.name == "digits" and cell.config.rounds <= 3
        places = [(cell.row, cell.column) for cell in cells]
        assert len(set(places)) == len(places)


def test_the_paper_s_scale_of_a_cell_by_hand() -> None:
    """FedLMD's section 5.1 and table 6, and the seeds of its code."""
    (preset, _), *_ = find("fedlmd/table1/cifar10-lda-0.05")
    config = next(cell.config for cell in preset.cells("paper") if cell.row == "fedlmd")
    assert config.method == "fedlmd(beta=2.0, tau=3.0)"
    assert (config.rounds, config.clients_per_round, config.seed, config.model.name) == (200, 10, 2022, "cnn2")
    assert (config.partition.name, config.partition.alpha, config.partition.clients) == ("dirichlet", 0.05, 100)
    assert config.partition.legacy and config.partition.seed == 19940817 and config.cohort.replay == "fedntd"
    assert (config.local.epochs, config.local.batch_size, config.local.lr, config.local.lr_decay) == (5, 50, 0.01, 0.99)
    assert config.data.augment == "fedlmd-cifar10" and config.local.weight_decay == 1e-5


def test_the_board_s_protocol_by_hand() -> None:
    """The section on NIID-Bench of its specification; the partition is drawn with the run's own seed."""
    (preset, _), *_ = find("niid-bench/cifar10/label2")
    (cell,) = preset.cells("paper", ["scaffold"])
    local, split = cell.config.local, cell.config.partition
    assert (cell.config.rounds, cell.config.clients_per_round, cell.config.seed) == (50, None, 0)
    assert (cell.config.model.name, cell.config.data.augment) == ("simple-cnn", "niid-bench")
    assert (split.name, split.k, split.clients, split.legacy, split.seed) == ("labels", 2, 10, True, None)
    assert (local.optimizer, local.epochs, local.batch_size, local.lr) == ("sgd", 10, 64, 0.01)
    assert (local.lr_decay, local.momentum, local.weight_decay) == (1.0, 0.9, 1e-5)
    assert cell.config.method == "scaffold(weights='mixed')" and preset.seeds == 3
    mu = {task: method_of(f"niid-bench/cifar10/{task}", "fedprox") for task in ("label2", "label2-100", "iid-100")}
    assert mu == {"label2": "fedprox", "label2-100": "fedprox(mu=0.001)", "iid-100": "fedprox"}


def method_of(wanted: str, row: str) -> str:
    (preset, _), *_ = find(wanted)
    return next(cell.config.method for cell in preset.cells("paper") if cell.row == row)


def test_hyper_parameters_follow_the_data() -> None:
    assert method_of("fedvls/table1/cifar10-dir-0.1", "fedvls") == "fedvls(statistics='batch')"
    assert method_of("fedvls/table1/tiny-dir-0.1", "fedvls") == "fedvls(lam=0.5, statistics='batch')"
    assert method_of("fedvls/table1/mnist-dir-0.1", "moon") == "moon(mu=0.01, head=256, hidden=0.5)"
    assert method_of("fednoro/table1/ich-rho0.4-eta0.5-0.7", "fedprox") == "fedprox"
    assert method_of("fednoro/table2/isic-rho0.4-eta0.5-0.7", "fedprox") == "fedprox(mu=0.1)"
    assert method_of("fednoro/table1/ham10000-rho0.4-eta0.5-0.7", "fednoro") == "fednoro"


@pytest.mark.parametrize("network", ["cnn2", "mobilenet", "resnet8"])
def test_a_task_like_another_has_its_hyper_parameters(network: str) -> None:
    """FedLMD's table 4 is that of CIFAR-10 with alpha 0.05, whose values in table 6 are not the usual ones."""
    assert method_of(f"fedlmd/table4/{network}", "fedcurv") == "fedcurv(s=250, lam=2.0)"
    assert method_of(f"fedlmd/table4/{network}", "fedntd") == "fedntd(beta=3.0)"
    assert method_of(f"fedlmd/table4/{network}", "fedlmd") == "fedlmd(beta=2.0, tau=3.0)"


def test_rounds_among_the_hyper_parameters_are_the_run_s() -> None:
    (preset, _), *_ = find("fednoro/table1/ham10000-rho0.4-eta0.5-0.7")
    rounds = {cell.row: cell.config.rounds for cell in preset.cells("paper")}
    assert rounds["fedcorr"] == 28 and rounds["fedavg"] == 30


def test_fedconcat_has_its_original_s_rounds_and_epochs_at_the_paper_s_scale_only() -> None:
    (preset, _), *_ = find("fedvls/table1/mnist-dir-0.05")
    (paper,), (small,) = (preset.cells(scale, ["fedconcat"]) for scale in ("paper", "small"))  # type: ignore[arg-type]
    assert (paper.config.method, paper.config.rounds, paper.config.local.epochs) == ("fedconcat", 1050, 10)
    assert (small.config.method, small.config.rounds, small.config.local.epochs) == (
        "fedconcat(encoder_rounds=2)", 20, 5,
    )  # fmt: skip
    assert method_of("fedvls/table2/tiny-quantity-40", "fedconcat") == "fedconcat(clusters=4, head='joined', cap=1.2)"


def test_fedvls_as_released_has_no_weight_decay() -> None:
    (preset, _), *_ = find("fedvls/code/mnist-released-0.05")
    decay = {cell.row: cell.config.local.weight_decay for cell in preset.cells("paper")}
    assert decay.pop("fedvls-released") == 0 and set(decay.values()) == {1e-5}


def test_client_models_of_a_method_with_too_many_rounds_are_not_scored() -> None:
    (preset, _), *_ = find("fedvls/table1/mnist-dir-0.05")
    scored = {cell.row: cell.config.evaluate.clients for cell in preset.cells("paper")}
    assert [row for row, clients in scored.items() if not clients] == ["fedconcat"]


def test_a_deviation_of_a_method_is_said_where_it_stands() -> None:
    both = (find(f"{paper}/table1/mnist-dir-0.1")[0][0].deviations() for paper in ("fedvls", "feded"))
    assert [any("FedGF" in said for said in each) for each in both] == [True, False]


def test_other_data_forget_the_options_of_the_first() -> None:
    (preset, _), *_ = find("fedvls/table14")
    paper, smoke = (preset.cells(scale)[0].config for scale in ("paper", "smoke"))  # type: ignore[arg-type]
    assert paper.data.options == {"alpha": 0.1, "seed": 1} and paper.partition.alpha is None
    assert smoke.data.options == {} and smoke.partition.alpha == 0.1


def test_only_the_paper_s_own_network_starts_from_its_weights() -> None:
    (preset, _), *_ = find("fednoro/table2/isic-clean")
    started = {scale: {cell.config.model.weights for cell in preset.cells(scale)} for scale in SCALES}
    assert started == {"paper": {"resnet18-imagenet.pth"}, "small": {None}, "smoke": {None}}


def test_a_cell_on_other_data_stands_in() -> None:
    (preset, _), *_ = find("fedlmd/table3/cifar100-lda-0.1")
    assert not preset.cells("paper")[0].stands_in and preset.cells("small")[0].stands_in
    (preset, _), *_ = find("fedlmd/table3/cifar10-lda-0.1")
    assert not preset.cells("small")[0].stands_in and preset.cells("smoke")[0].stands_in


def test_a_task_of_our_own_stands_in_at_every_scale() -> None:
    (preset, _), *_ = find("fednoro/table1/ham10000-rho0.4-eta0.5-0.7")
    assert preset.protocol == (
        "ham10000-rho0.4-eta0.5-0.7 stands in for ich-rho0.4-eta0.5-0.7; "
        "20 clients, all in each of 30 rounds of 1 epoch, batch 16, Adam 3e-4"
    )
    assert all(cell.stands_in for scale in SCALES for cell in preset.cells(scale))
    fednoro = next(cell for cell in preset.cells("paper") if cell.row == "fednoro")
    assert (fednoro.config.data.name, fednoro.config.rounds, fednoro.config.method) == ("npz", 30, "fednoro")
    assert (fednoro.printed.data.name, fednoro.printed.rounds) == ("ich", 100)
    assert fednoro.printed.noise == fednoro.config.noise and fednoro.printed.method == "fednoro(gate=False)"


def test_every_task_that_is_not_the_papers_says_whom_it_stands_for() -> None:
    for preset in presets().values():
        ours = ("ham10000", "cifar10n", "mnist-released", "mnist-as-tested")
        own = {task for task in preset.tasks if task.startswith(ours)}
        assert set(preset.stand_ins) == own
        for task in own:  # the protocol's line is that of the configuration
            config = preset.config("paper", task)
            local, epochs = config.local, f"{config.local.epochs} epoch{'s' * (config.local.epochs > 1)}"
            assert f"each of {config.rounds} rounds of {epochs}, batch {local.batch_size}" in preset.protocol


def test_what_is_assumed_is_named_with_its_value() -> None:
    (preset, _), *_ = find("fedlmd/table2/cifar10-lda-0.05")
    assert preset.assumed("small") == ["fedntd-tf(beta=1.0, tau=1.0)"]
    assert preset.assumed("paper", ["fedavg", "fedlmd-tf"]) == []
    (preset, _), *_ = find("fedlmd/fig8/switch")
    assert preset.assumed("paper") == []  # teacher_from is what the figure is drawn over
    (preset, _), *_ = find("fedlmd/fig9/tau")
    assert preset.assumed("paper") == ["fedkd(beta=1.0)"]
    (preset, _), *_ = find("fedvls/table16")  # a value that is the registry's own is said, too
    assert preset.assumed("paper") == ["fedntd(tau=1.0)", "fedlmd(tau=1.0)"]


def test_a_local_update_is_one_round_from_a_trained_model() -> None:
    (preset, _), *_ = find("fedvls/table12")
    cell = preset.cells("paper")[-1]
    assert cell.config.rounds == 1 and cell.client == 0
    assert cell.start is not None and cell.start.config.rounds == 100 and cell.start.config.method == "fedavg"
    assert cell.seeded(2).start.config.seed == cell.seeded(2).config.seed == 3  # type: ignore[union-attr]


def test_a_sweep_has_a_column_for_each_value() -> None:
    (preset, _), *_ = find("fedlmd/fig8/switch")
    cells = preset.cells("paper")
    assert [cell.column for cell in cells] == ["0", "25", "50", "75", "100", "125", "150", "175", "200"]
    assert cells[0].config.method == "fedlmd(beta=2.0, tau=3.0)"
    assert cells[1].config.method == "fedlmd(beta=2.0, tau=3.0, teacher_from=25, free_beta=1.0, free_tau=1.0)"
    assert cells[-1].config.method == "fedlmd-tf" and cells[-1].row == "switch"
    assert preset.cells("small")[-1].config.method == "fedlmd-tf"
    (preset, _), *_ = find("fedvls/fig4/clients")
    assert [cell.config.partition.clients for cell in preset.cells("paper", ["fedavg"])] == [10, 20, 30, 50]


def test_names_are_found_in_several_ways() -> None:
    assert [preset.id for preset, _ in find("fedvls/fig5")] == ["fedvls/fig1"]
    assert len(find("fedlmd/table3")) == 14
    everything = [preset.id for preset, _ in find("fedvls")]
    assert len(everything) == len(set(everything)) and "fedvls/fig1" in everything
    assert find("fedlmd/table1/cifar10-lda-0.05/fedntd")[0][1] == ("fedntd",)
    assert {preset.id for preset, _ in find("fedvls/fig8")} == {
        f"fedvls/fig4/{x}" for x in ("participation", "epochs", "clients")
    }


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(UserError, match="there is no table or figure 'fedlmd/table8'"):
        find("fedlmd/table8")
    with pytest.raises(UserError, match="Did you mean 'fedlmd/table1'"):
        find("fedlmd/tabel1")
    with pytest.raises(UserError, match=r"figure 'nope'\. 'fedskew reproduce --list' shows all of them"):
        find("nope")
    (preset, _), *_ = find("fedlmd/table1")
    with pytest.raises(UserError, match="has no method 'fedprox'"):
        preset.cells("smoke", ["fedprox"])


def test_a_value_without_a_source_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"\['mu'\] have a value or a source but not both"):
        Hyper.model_validate({"usual": {"mu": 1.0}})
    with pytest.raises(ValidationError, match=r"\['tau'\] have a value or a source but not both"):
        Hyper.model_validate({"usual": {"mu": 1.0}, "source": {"mu": "paper"}, "at": {"mnist": {"tau": 2.0}}})
    with pytest.raises(ValidationError, match=r"\['tau'\] have no value at the paper.s scale"):
        Hyper.model_validate({"usual": {"mu": 1.0}, "source": {"mu": "paper"}, "small": {"tau": 2.0}})
