"""Configurations out of keywords, flags and files, and Python objects in place of names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedskew import config as configuration
from fedskew.config import consent
from fedskew.config.attack import AttackConfig
from fedskew.config.keys import KEYWORDS, meant
from fedskew.config.keywords import Keys, documented
from fedskew.config.noise import NoiseConfig
from fedskew.config.overrides import look_up, put
from fedskew.config.partition import PartitionConfig
from fedskew.config.schema import RunConfig
from fedskew.config.validate import fitting, typed
from fedskew.core.errors import UserError, similar

if TYPE_CHECKING:
    from fedskew.data.sources import Source
    from fedskew.experiment.run import RunInputs

    #: a path; four arrays; two PyTorch data sets; or a Source
    Data = str | Path | Sequence[Any] | Source

_DATA = "a path, (x_train, y_train, x_test, y_test), or two data sets"


@documented
def configure(
    config: str | Path | RunConfig | None = None,
    *,
    method: str | None = None,
    data: str | Path | None = None,
    model: str | None = None,
    **options: Unpack[Keys],
) -> RunConfig:
    """Make a configuration from a TOML file or the defaults, then keywords, then `settings`.

    Args:
        data: The path of your own data. If it names sites, they are the clients unless a partition is named.
            Default: none, but `dataset`.
        model: A network's name, or your own as "module:function". Default: auto.

    Returns:
        The complete configuration, checked.

    Raises:
        UserError: If a value is not valid; the error says what to type.

    Examples:
        >>> import fedskew
        >>> fedskew.configure(partition="dirichlet:0.1", lr=0.05).local.lr
        0.05
    """
    given: dict[str, Any] = {**options, "method": method, "model": model}
    settings, allow_code = list(given.pop("settings", ())), given.pop("allow_code", False)
    check_kind("settings", options.get("settings"), (list, tuple, Iterator), "a list, such as ['local.lr=0.1']")
    check_kind("config", config, (str, Path, RunConfig), "the path of a TOML file, or a RunConfig")
    check_kind("data", data, (str, Path), "a path")
    base = config if isinstance(config, RunConfig) else RunConfig() if config is None else configuration.load(config)
    values = base.model_dump()
    if data is not None:
        _check_alone(data, given)
        values["data"] |= {"name": "own", "dir": str(data)}
        if given.get("partition") is None and "partition" not in base.model_fields_set:
            values["partition"] |= _one_client_per_site(data)
    elif given.get("partition") is None and "partition" not in base.model_fields_set:
        values["partition"] |= _natural_clients(given.get("dataset") or values["data"]["name"])
    typed_values = _put_keywords(values, given)
    configuration.assign(values, settings)
    _check_consistent(typed_values, settings, values)
    made = configuration.from_dict(values)
    if re.search("[A-Z]", re.sub(r"\(.*?\)", "", made.method)):
        from fedskew.methods import registry

        made = made.model_copy(update={"method": registry.canonical(made.method)})
    if made.engine.precision == "auto":
        from fedskew.core.devices import has_bf16

        precision = "bf16" if has_bf16() else "float32"
        made = made.model_copy(update={"engine": made.engine.model_copy(update={"precision": precision})})
    _check_utf8(made)
    if isinstance(config, str | Path):
        consent.check(made, config, allow_code, typed_keys(settings, **given))
    return made


def _put_keywords(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Write keywords that are not None into the values; return what was typed, by key."""
    found: dict[str, tuple[str, Any]] = {}
    shorthands = {"partition": PartitionConfig.parse, "noise": NoiseConfig.parse, "attack": AttackConfig.parse}
    for keyword in (*shorthands, *(each for each in given if each not in shorthands)):
        value = given.get(keyword)
        if keyword not in KEYWORDS:
            raise UserError(_unknown(keyword, value))
        if value is None:
            continue
        words = f"{keyword.replace('_', '-')} {value}"
        if keyword in shorthands:
            example = KEYWORDS[keyword].help.partition("such as ")[2].partition(",")[0] or "dirichlet:0.5"
            check_kind(keyword, value, (str,), f"text, for example '{example}'")
            fields = shorthands[keyword](value)
            values[keyword] |= fields
            found |= {f"{keyword}.{key}": (words, each) for key, each in fields.items() if each is not None}
            continue
        value, key = str(value) if isinstance(value, Path) else value, KEYWORDS[keyword].name
        put(values, key, value)
        found[key] = words, value
    return found


def _unknown(keyword: str, value: Any) -> str:
    """Say that there is no such keyword, and what to type."""
    similarly_spelled = [KEYWORDS[each] for each in similar(keyword, KEYWORDS)]
    for key in (meant(keyword, resembling=False) or similarly_spelled or meant(keyword))[:1]:
        fitted = fitting(key, value)
        if key.keyword is None:
            return f"there is no keyword '{keyword}'. Type settings=['{typed(key.name, fitted)}']."
        return f"there is no keyword '{keyword}'. Type {key.keyword}={fitted if fitted == 'VALUE' else repr(fitted)}."
    return f"there is no keyword '{keyword}'. See help(fedskew.run) for all keywords."


def typed_keys(settings: Iterable[str] = (), **keywords: Any) -> set[str]:
    """Return the keys that settings and keywords set."""
    flagged = {KEYWORDS[each].name for each, value in keywords.items() if each in KEYWORDS and value is not None}
    return flagged | {setting.partition("=")[0].strip() for setting in settings}


def check_kind(name: str, value: Any, kinds: tuple[type, ...], wanted: str) -> None:
    """Refuse a value of another type than `kinds`."""
    if value is not None and not isinstance(value, kinds):
        given = f"the class {value.__name__}" if isinstance(value, type) else f"{value!r:.60}"
        raise UserError(f"{name} is {given}. Give {wanted}.")


def _check_utf8(config: RunConfig) -> None:
    """Refuse names of files that are no text: a run's configuration is written down as text."""
    for line in configuration.dumps(config).splitlines():
        try:
            line.encode()
        except UnicodeEncodeError:
            shown = line.encode(errors="backslashreplace").decode()
            raise UserError(f"the setting {shown} is not in UTF-8. Give the file or folder another name.") from None


def _check_consistent(found: Mapping[str, tuple[str, Any]], settings: Sequence[str], values: dict[str, Any]) -> None:
    """Refuse a keyword and a setting of the same key with different values."""
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in found and look_up(values, key) != found[key][1]:
            raise UserError(f"{found[key][0]} and the setting {setting} contradict each other. Remove one of them.")


def with_inputs(
    data: Data | None, model: Any, options: Mapping[str, Any], method: Any = None
) -> tuple[RunConfig, RunInputs]:
    """Return the configuration that keywords make, and the Python objects given in place of names."""
    from fedskew.parts.stages import Method

    check_kind("method", method, (str, Method), "the name of a method, or a Method")
    own = None if isinstance(method, str) else method
    inputs, named = run_inputs(own, data, model), dict(options)
    if options.get("partition") is not None and not isinstance(options["partition"], str):
        inputs, named = _partitioned(inputs, data, named)
        data, options = inputs.source, named
    named |= {"model": model} if isinstance(model, str) else {}
    if own is not None:
        method = own.expression or "custom"
    if inputs.source is None:
        return configure(**named | {"data": data, "method": method}), inputs
    _check_alone(type(data).__name__, options)
    if {"partition", "config"}.isdisjoint(options) and inputs.source.sites is not None:
        named |= {"partition": "natural", "clients": len(inputs.source.site_names)}
    return configure(**named, dataset="arrays", method=method), inputs


def _partitioned(inputs: RunInputs, data: Data | None, options: dict[str, Any]) -> tuple[RunInputs, dict[str, Any]]:
    """Let a partitioner divide the data: its partitions become sites, and these the clients."""
    from fedskew.data.custom import partitioned
    from fedskew.experiment.preparation.prepare import load_source

    if not partitioned.is_partitioner(options["partition"]):
        check_kind("partition", options["partition"], (str,), "text, for example 'dirichlet:0.5', or a partitioner")
    others = options | {"partition": None}
    source = inputs.source
    if source is None:
        source = load_source(configure(**others | {"data": data}))
        others = {key: value for key, value in others.items() if key not in ("dataset", "data_dir")}
    source = partitioned.by_partitioner(source, options["partition"])
    clients = len(source.site_names)
    if others.get("clients") not in (None, clients):
        raise UserError(
            f"clients is {others['clients']}, but the partitioner has {clients} partitions. Remove clients."
        )
    return replace(inputs, source=source), others | {"partition": "natural", "clients": clients}


def run_inputs(method: Any, data: Data | None, model: Any) -> RunInputs:
    """Return the Python objects given in place of names."""
    from torch import nn

    from fedskew.data import sources
    from fedskew.data.custom import torch_datasets
    from fedskew.experiment.run import RunInputs

    check_kind("model", model, (str, nn.Module), "a network's name, 'module:function', or an nn.Module instance")
    check_kind("data", data, (str, Path, Sequence, sources.Source), _DATA)
    if data is None or isinstance(data, str | Path | sources.Source):
        source = data if isinstance(data, sources.Source) else None
    elif len(data) == 4 or (len(data) == 2 and not hasattr(data[0], "ndim")):
        source = torch_datasets.from_datasets(*data) if len(data) == 2 else sources.from_arrays(*data)
        _check_numbering(source)
    else:
        raise UserError(f"data has {len(data)} parts. Give {_DATA}.")
    return RunInputs(source, None if isinstance(model, str) else model, method)


def _check_numbering(source: Source) -> None:
    """Refuse numbers of classes without a training sample: labels that count from 1, or have gaps."""
    counts = source.train.y.bincount(minlength=source.classes).tolist()
    if 0 in counts:
        how = "Subtract 1" if counts.index(0) == 0 and 0 not in counts[1:] else "Number the classes without gaps"
        raise UserError(
            f"data: label {counts.index(0)} has no training sample, and labels go up to {source.classes - 1}. {how}, "
            "or give a `Source`, which may name classes without samples."
        )


def _check_alone(data: object, options: Mapping[str, Any]) -> None:
    for other in ("dataset", "data_dir"):
        if options.get(other) is not None:
            flag = other.replace("_", "-")
            raise UserError(f"data '{data}' and {flag} '{options[other]}' exclude each other. Remove one of them.")


def _one_client_per_site(data: str | Path) -> dict[str, Any]:
    from fedskew.data.custom import own

    sites = own.site_names(Path(data))
    return PartitionConfig.parse("natural") | {"clients": len(sites)} if sites else {}


def _natural_clients(dataset: str) -> dict[str, Any]:
    from fedskew.data import registry

    known = registry.datasets().get(dataset)
    return PartitionConfig.parse("natural") | {"clients": known.sites} if known and known.sites else {}
