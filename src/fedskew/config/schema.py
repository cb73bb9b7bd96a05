"""The configuration of a run: one frozen model per section. Each key declares here what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from fedskew.config.attack import AttackConfig
from fedskew.config.noise import NoiseConfig
from fedskew.config.partition import PartitionConfig
from fedskew.config.section import MOST, Count, Scalar, ScalarOrList, Section, Seed, Share, setting
from fedskew.core.errors import UserError

#: what computes, and what is measured: neither changes the result
_WHO_COMPUTES = {"changes_result": False, "may_change_on_resume": True, "needs_approval": False}
_MEASURED = {"changes_result": False, "needs_approval": False}


class DataConfig(Section):
    name: str = setting(
        "digits",
        "Data set to train on ('fedskew data list' shows all).",
        keyword="dataset",
        is_task=True,
        needs_approval=False,
    )
    dir: str | None = setting(
        None,
        "Folder of the data files.",
        unset="the folder in FEDSKEW_DATA",
        keyword="data_dir",
        synonyms=("data_path", "root"),
        is_path=True,
        **_MEASURED,
    )
    augment: str = setting(
        "none",
        "Augmentation of training images: standard, medical, or a paper's; see docs/reference/configuration.md.",
        keyword="augment",
        synonyms=("augmentation", "transform"),
        tunable=True,
    )
    limit: Count | None = setting(
        None,
        "Number of training samples to keep, stratified, and test samples in proportion: for a quick trial.",
        unset="all",
        keyword="limit",
        synonyms=("max_samples", "subset"),
        is_task=True,
    )
    imbalance: float | None = setting(
        None,
        "Ratio of the training samples of the rarest class to those of the commonest: a long tail, made before the "
        "partition; test samples are balanced.",
        unset="classes as they are",
        gt=0,
        le=1,
        keyword="imbalance",
        synonyms=("imb_factor", "imbalance_factor", "long_tail"),
        is_task=True,
    )
    corrections: list[str] | None = setting(
        None,
        "CSV files of corrected labels, as 'fedskew review' reads them; for the same sample the last one counts.",
        is_path=True,
    )
    options: dict[str, Scalar] = setting(
        {}, "Options of the data set, each on its page in docs/reference/data.", is_task=True
    )

    @property
    def is_gone(self) -> bool:
        """Whether the folder of the data files does not exist (any more)."""
        return self.dir is not None and not Path(self.dir).exists()


class ModelConfig(Section):
    name: str = setting(
        "auto",
        "Network: a name (docs/reference/configuration.md), timm:NAME, or your own as module:function.",
        keyword="model",
        synonyms=("net", "network", "arch", "architecture", "backbone"),
    )
    args: dict[str, ScalarOrList] = setting({}, "Arguments of the function that builds the network.")
    head: str | None = setting(None, "Head of your own network.", unset="its last linear layer", keyword="head")
    weights: str | None = setting(
        None,
        "Weights to start from: a .safetensors or .pt file, or the folder of a run.",
        unset="random weights",
        keyword="weights",
        is_path=True,
    )


class LocalConfig(Section):
    optimizer: Literal["sgd", "adam"] = setting(
        "sgd",
        "Optimizer of the clients: sgd or adam; its state starts anew in each round.",
        keyword="optimizer",
        synonyms=("optim",),
    )
    lr: float = setting(0.01, "Learning rate of the clients.", gt=0, keyword="lr", synonyms=("learning_rate", "eta"))
    lr_decay: float = setting(
        1.0,
        "Factor by which the learning rate is multiplied after each round.",
        gt=0,
        le=1,
        keyword="lr_decay",
        synonyms=("scheduler", "lr_schedule", "lr_scheduler", "gamma"),
    )
    momentum: float = setting(0.9, "Momentum of sgd.", ge=0, lt=1, keyword="momentum")
    weight_decay: float = setting(
        1e-5,
        "Weight decay, added to the gradient with either optimizer.",
        ge=0,
        keyword="weight_decay",
        synonyms=("wd", "l2"),
    )
    epochs: Count = setting(
        5, "Epochs of local training in each round.", keyword="local_epochs", synonyms=("num_epochs", "E")
    )
    batch_size: Count = setting(50, "Samples in a training batch.", keyword="batch_size", synonyms=("batch", "bs", "B"))
    train: str = setting(
        "all",
        "What clients train: all, head, body, batchnorm, the beginning of names, or several with commas; the rest "
        "stays as it is.",
        keyword="train",
        synonyms=("freeze", "trainable", "unfreeze"),
    )
    drop_last: bool = setting(
        False, "Drop the last batch of an epoch if it is not full; a client with less than one batch makes no step."
    )


class EvaluateConfig(Section):
    every: Count = setting(1, "Evaluate the model after every N rounds, and after the last.", needs_approval=False)
    clients: bool = setting(
        False,
        "Evaluate each client's model after its local training, too: by classes, and on majority, minority and "
        "vacant classes.",
        keyword="evaluate_clients",
        changes_result=False,
    )
    target: Share | None = setting(
        None, "Accuracy, from 0 to 1, to which rounds are counted.", keyword="target", **_MEASURED
    )
    batch_size: Count = setting(500, "Samples in an evaluation batch.", **_MEASURED)
    memorization: bool = setting(
        False,
        "With noise, measure accuracy on observed and true labels in every evaluated round, not only at the end.",
        **_MEASURED,
    )
    validation: float | None = setting(
        None,
        "Share of every client's data that is held back from training, to choose a model on.",
        gt=0,
        le=0.5,
        keyword="validation",
        synonyms=("val", "val_split", "validation_split"),
        is_task=True,
    )
    test: bool = setting(
        True,
        "Evaluate on the test data; if false, the samples held back take their place.",
        is_task=True,
        needs_approval=False,
    )
    details: bool = setting(
        False,
        "Compute F1, AUROC, sensitivity, specificity and calibration in each evaluated round, not only at the end.",
        changes_result=False,
    )

    @model_validator(mode="after")
    def _test_fits(self) -> EvaluateConfig:
        if not self.test and self.validation is None:
            raise UserError(
                "evaluate.test is false, and no samples are held back to evaluate on. Type, for example, "
                "--validation 0.2."
            )
        return self


class StopConfig(Section):
    metric: Literal["accuracy", "balanced_accuracy", "macro_f1", "macro_auroc", "ece", "loss"] = setting(
        "balanced_accuracy",
        "Metric on the samples held back that chooses the best model: accuracy, balanced_accuracy, macro_f1, "
        "macro_auroc, ece or loss.",
        keyword="stop_metric",
        needs_approval=False,
    )
    patience: Count | None = setting(
        None,
        "Stop after this many evaluated rounds without a better model.",
        unset="never",
        keyword="patience",
        synonyms=("early_stopping", "early_stop"),
        needs_approval=False,
    )
    min_delta: float = setting(
        0.0, "How much better a model must be for patience to start anew.", ge=0, needs_approval=False
    )


class EngineConfig(Section):
    name: Literal["pool", "inline", "ray"] = setting(
        "pool",
        "Engine that runs the clients: pool (processes), inline or ray (docs/how-to/ray.md); all give the same bits.",
        keyword="engine",
        **_WHO_COMPUTES,
    )
    workers: int | None = setting(
        None,
        "Processes of the pool, or actors of Ray.",
        unset="one per core",
        ge=1,
        le=10_000,
        keyword="workers",
        synonyms=("num_workers", "n_jobs", "threads", "processes"),
        **_WHO_COMPUTES,
    )
    address: str | None = setting(
        None,
        "Address of a running Ray cluster, host:port.",
        unset="a new one starts here",
        keyword="address",
        **_WHO_COMPUTES,
    )
    device: str = setting(
        "cpu",
        "Device of the networks: cpu, cuda (all GPUs), cuda:0,1 or mps.",
        keyword="device",
        synonyms=("gpu", "cuda", "accelerator"),
        changes_result=False,
    )
    fast: bool = setting(
        False,
        "Let GPUs use algorithms that are faster and give other bits each time.",
        keyword="fast",
        changes_result=False,
        needs_approval=False,
    )
    precision: Literal["float32", "bf16", "auto"] = setting(
        "float32",
        "Precision of training: float32, or bf16, which is faster on processors with instructions for it; auto takes "
        "bf16 only there, and the record says which.",
        keyword="precision",
        tunable=True,
    )
    drop: float = setting(0.0, "Share of the clients' replies to lose on purpose.", ge=0, lt=1)

    @model_validator(mode="after")
    def _address_fits(self) -> EngineConfig:
        if self.address is not None and self.name != "ray":
            raise UserError(
                f"engine '{self.name}' does not use engine.address, which is {self.address!r}. Type --engine ray, or "
                "remove the address."
            )
        if self.name == "ray" and self.device not in ("cpu", "cuda"):
            raise UserError(
                f"engine 'ray' deals out the GPUs itself, and engine.device is {self.device!r}. Type --device cuda."
            )
        return self


class CheckpointConfig(Section):
    every: int = setting(1, "Write a checkpoint after every N rounds; 0 writes none.", ge=0, le=MOST)
    keep: int = setting(
        0, "Keep the checkpoint of every N rounds, for 'fedskew verify'; 0 keeps only the last two.", ge=0, le=MOST
    )

    @model_validator(mode="after")
    def _keep_fits(self) -> CheckpointConfig:
        if self.keep and (not self.every or self.keep % self.every):
            raise UserError(
                f"checkpoint.keep is {self.keep}, which is not a multiple of checkpoint.every, {self.every}. Type, for "
                f"example, --set checkpoint.keep={(self.every or 1) * 10}."
            )
        return self


class CohortConfig(Section):
    replay: Literal["seeded", "fedntd"] = setting(
        "seeded",
        "How clients are drawn: seeded by the run's seed, or fedntd, as in the code of FedNTD and FedLMD, the same "
        "for every seed.",
    )


class RunConfig(Section):
    """Hold everything that decides a run; docs/reference/configuration.md explains each key."""

    method: str = setting(
        "fedavg",
        "Method, with its parameters and combined: 'fedlmd(beta=2)+prox'; see docs/reference/methods.",
        keyword="method",
        synonyms=("algorithm", "strategy", "aggregator"),
    )
    seed: Seed = setting(
        0,
        "Seed of all randomness, except of the noise that protects clients (docs/explanation/privacy.md).",
        keyword="seed",
        synonyms=("random_seed", "random_state"),
        needs_approval=False,
    )
    rounds: int = setting(
        20,
        "Number of communication rounds.",
        ge=0,
        le=MOST,
        keyword="rounds",
        synonyms=("num_rounds", "n_rounds", "communication_rounds", "comm_rounds", "iterations", "T"),
        tunable=True,
    )
    clients_per_round: Count | None = setting(
        None,
        "Number of clients asked in each round.",
        unset="all",
        keyword="clients_per_round",
        synonyms=(
            "fraction",
            "fraction_fit",
            "fraction_train",
            "sample_fraction",
            "participation",
            "participation_rate",
            "C",
        ),
        tunable=True,
        needs_approval=False,
    )
    data: DataConfig = setting(DataConfig(), "What to learn from.")
    partition: PartitionConfig = setting(
        PartitionConfig(alpha=0.5),
        "Partition of the data: iid, dirichlet:ALPHA, sharding:S, ...; see docs/reference/configuration.md.",
        keyword="partition",
        is_task=True,
        needs_approval=False,
    )
    noise: NoiseConfig = setting(
        NoiseConfig(),
        "Noise in the labels: KIND:RHO, such as symmetric:0.4, pairflip or h_idn; see docs/reference/noise.md.",
        keyword="noise",
        is_task=True,
        needs_approval=False,
    )
    attack: AttackConfig = setting(
        AttackConfig(),
        "Hostile clients, in simulations: KIND:SHARE, such as sign_flip:0.2, label_flip, scaled or random.",
        keyword="attack",
        is_task=True,
        needs_approval=False,
    )
    model: ModelConfig = setting(ModelConfig(), "The network.", tunable=True)
    local: LocalConfig = setting(LocalConfig(), "Training on the clients.", tunable=True)
    evaluate: EvaluateConfig = setting(EvaluateConfig(), "What is measured.")
    stop: StopConfig = setting(StopConfig(), "How the best model is chosen, and when a run stops.")
    engine: EngineConfig = setting(EngineConfig(), "What computes.")
    checkpoint: CheckpointConfig = setting(CheckpointConfig(), "What allows a run to be resumed.", **_MEASURED)
    cohort: CohortConfig = setting(CohortConfig(), "Which clients are asked.", needs_approval=False)

    @model_validator(mode="after")
    def _noise_fits(self) -> RunConfig:
        rates, clients = self.noise.rates, self.partition.clients
        if rates is not None and len(rates) != clients:
            raise UserError(
                f"noise.rates has {len(rates)} numbers for {clients} clients. Give one number for each client."
            )
        if self.evaluate.memorization and self.noise.kind == "none":
            raise UserError(
                "evaluate.memorization is true, but the labels have no noise. Type, for example, --noise "
                "symmetric:0.4, or remove --set evaluate.memorization."
            )
        return self

    @model_validator(mode="after")
    def _stop_fits(self) -> RunConfig:
        if self.stop.patience is not None and self.evaluate.validation is None:
            raise UserError(
                f"stop.patience is {self.stop.patience}, but no samples are held back to watch. Type, for example, "
                "--validation 0.2: the test data must not choose."
            )
        return self

    @model_validator(mode="after")
    def _cohort_fits(self) -> RunConfig:
        clients = self.partition.clients
        if self.clients_per_round is not None and self.clients_per_round > clients:
            raise UserError(
                f"clients_per_round is {self.clients_per_round}, above {clients}, the number of clients. "
                f"Type --clients-per-round {clients}, or more --clients."
            )
        return self
