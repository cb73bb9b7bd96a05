"""The keywords of `fedskew.run` and others that set keys: typed here, explained by the schema."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar

from fedskew.config.consent import Consent
from fedskew.config.keys import KEYWORDS
from fedskew.config.schema import RunConfig

F = TypeVar("F", bound=Callable[..., Any])


class Partitioner(Protocol):
    """What divides a data set of Hugging Face's library; the partitioners of the package flwr-datasets do."""

    dataset: Any

    @property
    def num_partitions(self) -> int: ...
    def load_partition(self, partition_id: int) -> Any: ...


class Keys(TypedDict, total=False):
    """Keywords that set keys of the configuration; None leaves the key as it is."""

    settings: Iterable[str]
    allow_code: Consent
    seed: int | None
    rounds: int | None
    clients_per_round: int | None
    dataset: str | None
    data_dir: str | Path | None
    augment: str | None
    limit: int | None
    imbalance: float | None
    partition: str | Partitioner | None
    clients: int | None
    noise: str | None
    attack: str | None
    head: str | None
    weights: str | Path | None
    optimizer: str | None
    lr: float | None
    lr_decay: float | None
    momentum: float | None
    weight_decay: float | None
    local_epochs: int | None
    batch_size: int | None
    train: str | None
    evaluate_clients: bool | None
    validation: float | None
    stop_metric: str | None
    patience: int | None
    target: float | None
    engine: str | None
    workers: int | None
    address: str | None
    device: str | None
    fast: bool | None
    precision: str | None
    skip_bad: bool | None


class Settings(Keys, total=False):
    """The same, and a configuration to start from."""

    config: str | Path | RunConfig | None


#: what the keywords mean that are not keys
_OTHERS = {
    "data": "Your own data: a path, (x_train, y_train, x_test, y_test), two PyTorch data sets, or a `Source`. "
    "Default: none, but `dataset`.",
    "method": "Its name, with parameters and combined, such as 'fedlmd(beta=2)+prox'. Default: fedavg.",
    "model": "A network's name, your own as 'module:function', or a module. Default: auto.",
    "force": "Replace the results that are in `out`. Default: False, an error if there are some.",
    "resume": "Continue the results that are in `out`. Default: False.",
    "callbacks": "Callbacks that follow each run, called in this order. Default: none.",
    "progress": "Show progress: True everywhere, False nowhere. Default: None, in a terminal or notebook only.",
    "track": "Log to 'tensorboard', 'mlflow' or 'wandb', too. Default: none.",
    "config": "A TOML file or a `RunConfig` to start from; the other keywords win over it. Default: none.",
    "settings": "Any keys, as on the command line: ['local.drop_last=true', 'checkpoint.keep=10']. Default: none.",
    "allow_code": "Run the code that the config file names: True, or a list of its modules. Default: False.",
}


def meaning(keyword: str) -> str:
    """Return what a keyword does, with its default."""
    if keyword in _OTHERS:
        return _OTHERS[keyword]
    key = KEYWORDS[keyword]
    return f"{key.help} Default: {key.shown_default}."


def documented(function: F) -> F:
    """Write the keywords of `Settings` into a function's signature, and what its docstring leaves out into its Args."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        del parameters[-1]
        defaults = {"settings": (), "allow_code": False}
        parameters += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name),
                annotation=getattr(hint, "__forward_arg__", hint),
            )
            for name, hint in Settings.__annotations__.items()
            if name not in signature.parameters
        ]
    doc = inspect.cleandoc(function.__doc__ or "")
    missing = [each.name for each in parameters if f"\n    {each.name}: " not in doc]
    lines = [
        textwrap.fill(f"{name}: {meaning(name)}", 100, initial_indent="    ", subsequent_indent=" " * 8)
        for name in missing
    ]
    function.__doc__ = doc.replace("\n\nReturns:", "\n" + "\n".join(lines) + "\n\nReturns:", 1)
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function
