"""The Python face: run, compare and resume, with the command line's own words for everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew import config as configuration
from fedskew import consent, record, run_folder, run_lock
from fedskew.config import RunConfig
from fedskew.errors import Diverged, UserError, nearest
from fedskew.sections import Noise

if TYPE_CHECKING:
    from torch import nn

    from fedskew.data.sources import Source
    from fedskew.experiment import Given, Progress, Result
    from fedskew.parts.stages import Method
    from fedskew.verification import Verified

    #: a path; four arrays; two PyTorch data sets; or a Source
    Data = str | Path | Sequence[Any] | Source

_DATA = "a path, (x_train, y_train, x_test, y_test), or two data sets"

#: what a flag or keyword sets in the configuration
FLAGS = {
    "method": "method",
    "seed": "seed",
    "rounds": "rounds",
    "per_round": "per_round",
    "dataset": "data.name",
    "data_dir": "data.dir",
    "skip_bad": "data.options.skip_bad",
    "augment": "data.augment",
    "clients": "partition.clients",
    "model": "model.name",
    "head": "model.head",
    "weights": "model.weights",
    "epochs": "local.epochs",
    "batch": "local.batch",
    "lr": "local.lr",
    "lr_decay": "local.lr_decay",
    "momentum": "local.momentum",
    "weight_decay": "local.weight_decay",
    "optimiser": "local.optimiser",
    "target": "evaluate.target",
    "score_clients": "evaluate.clients",
    "engine": "engine.name",
    "workers": "engine.workers",
    "address": "engine.address",
    "device": "engine.device",
    "precision": "engine.precision",
}


def configure(
    config: str | Path | RunConfig | None = None,
    *,
    data: str | Path | None = None,
    partition: str | None = None,
    noise: str | None = None,
    settings: Iterable[str] = (),
    allow_code: consent.Consent = False,
    **flags: Any,
) -> RunConfig:
    """A configuration from a TOML file (or the defaults), then flags that are not None, then ``key=value`` settings.

    `data` is the path of your own data; if it names sites, they are the clients unless a partition is named. Code that
    the file names needs `allow_code`: True, or a list of the modules.
    """
    _check_kind("config", config, (str, Path, RunConfig), "the path of a TOML file, or a RunConfig")
    _check_kind("data", data, (str, Path), "a path")
    base = config if isinstance(config, RunConfig) else RunConfig() if config is None else configuration.load(config)
    values = base.model_dump()
    if data is not None:
        _check_alone(data, flags)
        values["data"] |= {"name": "own", "dir": str(data)}
        if partition is None and "partition" not in base.model_fields_set:
            values["partition"] |= _one_client_per_site(data)
    said: dict[str, tuple[str, Any]] = {}
    for section, text, parse, example in (
        ("partition", partition, configuration.Partition.parse, "dirichlet:0.5"),
        ("noise", noise, Noise.parse, "symmetric:0.4"),
    ):
        _check_kind(section, text, (str,), f"text, for example '{example}'")
        if text is not None:
            fields = parse(text)
            values[section] |= fields
            said |= {
                f"{section}.{key}": (f"{section} {text}", each) for key, each in fields.items() if each is not None
            }
    for flag, value in flags.items():
        if flag not in FLAGS:
            raise UserError(f"there is no option '{flag}'{nearest(flag, FLAGS)}")
        if value is not None:
            value = str(value) if isinstance(value, Path) else value
            *sections, name = FLAGS[flag].split(".")
            table = values
            for section in sections:
                table = table[section]
            table[name] = value
            said[FLAGS[flag]] = f"{flag.replace('_', '-')} {value}", value
    settings = list(settings)
    configuration.assign(values, settings)
    _check_consistent(said, settings, values)
    made = configuration.from_dict(values)
    _check_letters(made)
    if isinstance(config, str | Path):
        consent.check(made, config, allow_code, typed_keys(settings, **flags))
    return made


def typed_keys(settings: Iterable[str] = (), **flags: Any) -> set[str]:
    """The keys of a configuration that settings and flags set."""
    flagged = {FLAGS[flag] for flag, value in flags.items() if flag in FLAGS and value is not None}
    return flagged | {setting.partition("=")[0].strip() for setting in settings}


def _check_kind(name: str, value: Any, kinds: tuple[type, ...], wanted: str) -> None:
    if value is not None and not isinstance(value, kinds):
        given = f"the class {value.__name__}" if isinstance(value, type) else f"{value!r:.60}"
        raise UserError(f"{name} is {given}, and must be {wanted}")


def _check_letters(config: RunConfig) -> None:
    """Names of files may be no text, but a run's configuration is written down as text."""
    for line in configuration.dumps(config).splitlines():
        try:
            line.encode()
        except UnicodeEncodeError:
            shown = line.encode(errors="backslashreplace").decode()
            raise UserError(f"the setting {shown} is not in UTF-8; give the file or folder another name") from None


def _check_consistent(said: Mapping[str, tuple[str, Any]], settings: Sequence[str], values: dict[str, Any]) -> None:
    """A flag and a setting of the same key may repeat each other, but not say two things."""
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in said:
            words, value = said[key]
            table: Any = values
            for name in key.split("."):
                table = table.get(name)
            if table != value:
                raise UserError(f"{words} and the setting {setting} contradict each other; say one of them")


def run(
    method: str | Method | None = None,
    *,
    data: Data | None = None,
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    track: str | None = None,
    **options: Any,
) -> Result:
    """Train one method.

    `data` is a path, (x_train, y_train, x_test, y_test), a pair of PyTorch data sets, or a Source; `model` is a name, a
    ``module:function`` or a module; `track` is tensorboard or mlflow.
    """
    from fedskew import experiment
    from fedskew import track as trackers
    from fedskew.parts.stages import Method

    _check_kind("method", method, (str, Method), "the name of a method, or a Method")
    named = method if method is None or isinstance(method, str) else method.expression or "custom"
    given = _given(None if isinstance(method, str) else method, data, model)
    config = configure(**_named(data, given, model, options), method=named)
    folder = None if out is None else Path(out)
    tracker = trackers.wanted(track)
    with trackers.following(tracker, folder, progress) as advance:
        return experiment.run(config, folder, given=given, force=force, progress=advance)


def compare(
    methods: Iterable[str],
    *,
    seeds: int | Sequence[int] = 1,
    data: Data | None = None,
    model: str | nn.Module | None = None,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Callable[[str, int], Progress] | None = None,
    track: str | None = None,
    **options: Any,
) -> Comparison:
    """Train several methods on the same data over the same seeds: these, or as many as said from the first on.

    With `out`, its folder gets a run folder for each and the comparison's table and picture; `resume` goes on with
    what is there. `progress(method, seed)` gives the Progress of that run.
    """
    from fedskew import experiment
    from fedskew import track as trackers
    from fedskew.methods import registry
    from fedskew.report import comparison

    base, given = settled(data, model, options)
    wanted = range(base.seed, base.seed + seeds) if isinstance(seeds, int) else seeds
    if not isinstance(wanted, Sized) or not len(wanted):
        raise UserError(f"seeds is {seeds!r}, and must be a number of at least 1, or a list of seeds")
    named = [] if isinstance(methods, str) else list(methods)
    if not named or not all(isinstance(each, str) for each in named):
        raise UserError(f"methods is {methods!r}, and must be a list of names, such as ['fedavg', 'fedprox']")
    methods = named
    built = [registry.build(each).expression for each in methods]  # a misspelt name is found before the first run
    for each, expression in zip(methods, built, strict=True):
        if built.count(expression) > 1:
            raise UserError(f"method '{each}' is to be compared with itself; name it once")
    pairs = [(each, seed) for each in methods for seed in wanted]
    place = None if out is None else Path(out)
    folders = {pair: None if place is None else place / comparison.run_name(*pair) for pair in pairs}
    with nullcontext() if place is None else run_lock.held(place):
        for folder in folders.values():
            if folder is not None and not resume:
                run_folder.check_free(folder, force, again="go on by --resume")
        if place is not None and resume:
            comparison.check_all_named(place, [folder for folder in folders.values() if folder is not None])
        tracker = trackers.wanted(track)
        given = replace(given, source=given.source or experiment.load_source(base))
        given = experiment.sharing(given, place)
        results: dict[str, list[Result]] = {each: [] for each in methods}
        failed: dict[tuple[str, int], str] = {}
        if place is not None:
            comparison.reopen(place)
        for (each, seed), folder in folders.items():
            config = configure(base, method=each, seed=seed)
            train = experiment.continued if resume else partial(experiment.run, force=force)
            shown = None if progress is None else progress(each, seed)
            try:
                with trackers.following(tracker, folder, shown) as advance:
                    results[each].append(train(config, folder, given=given, progress=advance))
            except Diverged as error:
                failed[each, seed] = str(error)
        if not any(results.values()):
            raise UserError(next(iter(failed.values())))
        results = {each: found for each, found in results.items() if found}
        done = Comparison(results, base.evaluate.target, failed)
        if place is not None:
            comparison.write(place, results, done.table())
    return done


def resume(
    folder: str | Path,
    *,
    method: Method | None = None,
    data: Data | None = None,
    model: Any = None,
    progress: Progress | None = None,
    track: str | None = None,
    **options: Any,
) -> Result:
    """Go on with an interrupted run. What was handed over in Python (method, data, module) must be handed over again.

    A tracker that followed it before goes on too, unless another one is named, or 'none'. A network ``module:function``
    that the folder names needs `allow_code`: True, or a list of the modules.
    """
    from fedskew import experiment
    from fedskew import track as trackers

    tracker = trackers.used(Path(folder)) if track is None else trackers.wanted(track)
    with trackers.following(tracker, Path(folder), progress) as advance:
        return experiment.resume(Path(folder), given=_given(method, data, model), progress=advance, **options)


def verify(
    folder: str | Path,
    *,
    first: int | None = None,
    last: int | None = None,
    method: Method | None = None,
    data: Data | None = None,
    model: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> Verified:
    """Compute rounds of a finished run again, from 1 on, and compare them with its record and its stored states.

    Without stored states (`checkpoint.keep`) the computation starts with the first round.
    """
    from fedskew import verification

    wanted = verification.plan(Path(folder), first, last)
    return verification.verify(Path(folder), wanted, given=_given(method, data, model), progress=progress, **options)


def load(folder: str | Path) -> record.Run:
    """Read a run's record."""
    return record.read(folder)


class Comparison:
    """Results by method, over seeds; `failed` says of the other runs, by method and seed, why they diverged."""

    def __init__(
        self,
        results: dict[str, list[Result]],
        target: float | None = None,
        failed: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        self.results = results
        self.target = target
        self.failed = dict(failed or {})

    def table(self, target: float | None = None) -> list[dict[str, Any]]:
        """One row per method: means and (population) standard deviations over seeds, rounds to the target."""
        from fedskew.report import tables

        return tables.comparison(self.results, self.target if target is None else target)

    def picture(self, path: str | Path) -> None:
        """Draw accuracy over the rounds, and the client models if they were scored."""
        from fedskew.report import pictures

        rows = self.table()
        pictures.save(pictures.comparison(self.results, rows, rows[0]["target"]), Path(path))


def settled(data: Any, model: Any, options: dict[str, Any]) -> tuple[RunConfig, Given]:
    """The configuration that options make, and what was handed over in place of names."""
    given = _given(None, data, model)
    return configure(**_named(data, given, model, options)), given


def _named(data: Any, given: Given, model: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with names for what was handed over."""
    named = options | ({"model": model} if isinstance(model, str) else {})
    if given.source is None:
        return named if data is None else named | {"data": data}
    _check_alone(type(data).__name__, options)
    if not {"partition", "config"}.isdisjoint(options) or given.source.sites is None:
        return named | {"dataset": "arrays"}
    return named | {"dataset": "arrays", "partition": "natural"} | {"clients": len(given.source.site_names)}


def _given(method: Any, data: Any, model: Any) -> Given:
    from torch import nn

    from fedskew.data import own, sources
    from fedskew.experiment import Given

    _check_kind("model", model, (str, nn.Module), "a network's name, 'module:function', or an nn.Module that is made")
    _check_kind("data", data, (str, Path, Sequence, sources.Source), _DATA)
    if data is None or isinstance(data, str | Path | sources.Source):
        source = data if isinstance(data, sources.Source) else None
    elif len(data) in (2, 4):
        source = own.from_datasets(*data) if len(data) == 2 else sources.from_arrays(*data)
    else:
        raise UserError(f"data has {len(data)} parts, and must be {_DATA}")
    return Given(source, None if isinstance(model, str) else model, method)


def _check_alone(data: object, options: Mapping[str, Any]) -> None:
    for other in ("dataset", "data_dir"):
        if options.get(other) is not None:
            flag = other.replace("_", "-")
            raise UserError(f"data '{data}' and {flag} '{options[other]}' exclude each other; say one of them")


def _one_client_per_site(data: str | Path) -> dict[str, Any]:
    from fedskew.data import own

    sites = own.site_names(Path(data))
    return configuration.Partition.parse("natural") | {"clients": len(sites)} if sites else {}
