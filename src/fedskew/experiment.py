"""From a configuration to a run: data, partition, method, engine, rounds, record; and back again after a kill."""

from __future__ import annotations

import copy
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedskew import config as configuration
from fedskew import consent, evidence, record, recording, resolve, run_folder, run_lock
from fedskew.config import RunConfig
from fedskew.data import augment, shards, sources
from fedskew.data import partition as partitions
from fedskew.engines.inline import Inline
from fedskew.engines.pool import Pool
from fedskew.engines.wire import Wire
from fedskew.errors import UserError
from fedskew.methods import registry
from fedskew.models import registry as networks
from fedskew.models.trial import try_out
from fedskew.parts import compose
from fedskew.parts.protocol import whole
from fedskew.parts.stages import Method
from fedskew.recording import Progress as Progress  # callers find both here
from fedskew.recording import Result as Result
from fedskew.run_folder import CHECKPOINT
from fedskew.types import Spec, Task
from fedskew.work import checkpoint, server
from fedskew.work.annotate import Shelf, Tell
from fedskew.work.holdback import hold_back
from fedskew.work.loop import Engine
from fedskew.work.mislabel import mislabel
from fedskew.work.site import Site, one_thread
from fedskew.work.store import Store

#: Settings of the engine that leave the result as it is, so that a run may go on with others.
_WHO_COMPUTES = ("name", "workers", "address", "device")


@dataclass(frozen=True)
class Given:
    """What a Python caller may hand over in place of names: data, a module, a method; an engine; who holds what."""

    source: sources.Source | None = None
    module: nn.Module | None = None
    method: Method | None = None
    #: where annotators' soft labels are kept, for several runs to share
    shelf: Shelf | None = None
    engine: Callable[[Site], Engine] | None = None
    held: shards.Shards | None = None


NOTHING = Given()


def sharing(given: Given, out: Path | None) -> Given:
    """The same, with a shelf on which several runs find the soft labels that the first of them made."""
    return replace(given, shelf=Shelf(out))


def shards_for(config: RunConfig, source: sources.Source) -> shards.Shards:
    """Who holds what."""
    wanted = config.partition
    seed = config.seed if wanted.seed is None else wanted.seed
    options = resolve.partition_options(wanted, seed)
    if wanted.name == "natural":
        if source.sites is None:
            raise UserError(f"partition 'natural': data set '{source.name}' has no sites; name another partition")
        options["sites"] = source.sites.numpy()
    if source.groups is not None:
        options["groups"] = source.groups.numpy()
    parts = partitions.partition(source.train.y.numpy(), source.classes, wanted.clients, wanted.name, seed, **options)
    return shards.make(source, parts)


def load_source(config: RunConfig) -> sources.Source:
    """The data the configuration names, from its folder or from FEDSKEW_DATA."""
    folder = config.data.dir or os.environ.get("FEDSKEW_DATA")
    return sources.load(config.data.name, None if folder is None else Path(folder), **config.data.options)


def prepare(
    config: RunConfig, given: Given = NOTHING, tell: Tell = lambda sentence: None
) -> tuple[Site, sources.Source, Spec]:
    """Everything a run needs, before its first round; `tell` hears how far the training of annotators is."""
    resolve.check_engine(config.engine)
    source = given.source or load_source(config)
    shape = tuple(source.train.x.shape[1:])
    task = Task(source.classes, shape, config.partition.clients)
    method = given.method or registry.build(config.method)
    if given.module is not None and any(entry.rewrites for stage in method.stages for entry in stage.entries):
        raise UserError(
            f"method '{method.expression}' builds another network out of yours and so needs it by name: put the module "
            "into a function, and give model='module:function'"
        )
    plan = compose.plan(
        method,
        task,
        seed=config.seed,
        rounds=config.rounds,
        per_round=config.per_round,
        replay=config.cohort.replay == "fedntd",
        **config.local.model_dump(),
    )
    spec = resolve.spec(config, source)

    def build(wanted: Spec, seed: int = config.seed) -> nn.Module:
        if wanted == spec and given.module is not None:
            return networks.adapt(copy.deepcopy(given.module), config.model.head, classes=source.classes)
        return networks.build(wanted, task.classes, shape, seed, agreed=spec)

    site = Site(
        plan=plan,
        x=source.train.x,
        shards=given.held or shards_for(config, source),
        test=source.test,
        view=augment.view(config.data.augment, source.mean, source.std),
        build=build,
        device=config.engine.device,
        precision=config.engine.precision,
        drop=config.engine.drop,
        score_batch=config.evaluate.batch,
    )
    if config.noise.kind != "none":
        _try_network(site, spec, given)
        seed = config.seed if config.noise.seed is None else config.noise.seed
        annotating = replace(site, build=partial(build, seed=seed), _nets={})
        wanted, shelf, room = resolve.noise(config), given.shelf or Shelf(), partial(_class_room, config)
        site.shards, site.ledger = mislabel(annotating, source, spec, wanted, seed, shelf, room, tell)
    if config.evaluate.validation is not None:
        site, source = hold_back(site, source, config.evaluate.validation, config.seed)
    return site, source, spec


def _try_network(site: Site, spec: Spec, given: Given) -> None:
    name, samples = resolve.called(spec, given.module), site.view.eval(site.x.new_zeros(2, *site.x.shape[1:]))
    try_out(name, site.build(spec), samples, site.plan.task.classes, site.device, site.precision)


def _class_room(config: RunConfig, site: Site) -> AbstractContextManager[Engine]:
    """An engine for annotators, who have no far end of a wire."""
    name = {"wire": "inline", "ray": "pool"}.get(config.engine.name, config.engine.name)
    engine = config.engine.model_copy(update={"name": name, "address": None})
    return engine_for(config.model_copy(update={"engine": engine}), site, Store(), NOTHING)


def run(
    config: RunConfig,
    out: Path | None = None,
    *,
    given: Given = NOTHING,
    force: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train from the beginning; with `out`, leave a run folder there that can be resumed and reported on."""
    if out is None:
        return _go(config, None, given, progress, force)
    run_folder.check_name(out)
    with run_lock.held(out):
        run_folder.check_free(out, force)
        return _go(config, out, given, progress, force)


def resume(folder: Path, *, given: Given = NOTHING, progress: Progress | None = None, **now: Any) -> Result:
    """Go on with a run that was interrupted, to the same bits; `now` is what `begun` takes."""
    run_folder.check_holds_run(folder)
    with run_lock.held(folder):
        config = begun(folder, method=given.method, **now)
        run_folder.check_kept(folder, config, checkpoint.exists(folder / CHECKPOINT))
        with run_folder.writing(folder):
            (folder / CHECKPOINT).mkdir(exist_ok=True)
        return _go(config, folder, given, progress, None)


def begun(
    folder: Path,
    rounds: int | None = None,
    data_dir: str | Path | None = None,
    workers: int | None = None,
    allow_code: consent.Consent = False,
    method: Method | None = None,
) -> RunConfig:
    """The configuration of the run in a folder: perhaps for more rounds, data that are elsewhere now, other workers."""
    config = run_folder.load_config(folder, rounds)
    consent.check(config, folder / run_folder.CONFIG, allow_code)
    rounds = config.rounds if rounds is None else rounds
    if rounds < config.rounds:
        raise UserError(f"rounds is {rounds}, but the run in '{folder}' was made for {config.rounds}; give more")
    if rounds > config.rounds:
        _check_unpaced(method or registry.build(config.method), config.rounds)
    values = config.model_dump() | {"rounds": rounds}
    values["data"]["dir"] = resolve.data_now(config.data) if data_dir is None else str(data_dir)
    values["engine"]["workers"] = config.engine.workers if workers is None else workers
    return configuration.from_dict(values)


def _check_unpaced(method: Method, rounds: int) -> None:
    for part in (each for stage in method.stages for outer in stage.parts for each in whole(outer)):
        if part.paced:
            raise UserError(
                f"method '{method.expression}' was run for {rounds} rounds, and {part.name} goes by that number: more "
                "rounds would be another run; begin a new one"
            )


def holds(folder: Path, config: RunConfig) -> bool:
    """Whether the folder has this run, begun at least; one with other options is refused."""
    if not (folder / run_folder.CONFIG).exists():
        return False
    before = begun(folder, allow_code=True)  # which is only compared
    engine = before.engine.model_copy(update={key: getattr(config.engine, key) for key in _WHO_COMPUTES})
    moved = {"dir": config.data.dir} if before.data.is_gone else {}
    if before.model_copy(update={"engine": engine, "data": before.data.model_copy(update=moved)}) != config:
        raise UserError(f"the run in '{folder}' was begun with other options; give the same ones, or another --out")
    return True


def continued(config: RunConfig, folder: Path | None, *, given: Given, progress: Progress | None) -> Result:
    """Go on with the run in the folder, or begin it."""
    if folder is None or not holds(folder, config):
        return run(config, folder, given=given, progress=progress)
    if not checkpoint.exists(folder / CHECKPOINT) and (folder / record.NAME).exists():
        before = record.read(folder)
        if before.end is not None and before.note is None:  # finished, and it left nothing to go on from
            return Result(config, before.header, before.rounds, before.end, None, folder, before.doors)
    now = {"data_dir": config.data.dir, "workers": config.engine.workers}
    agreed = consent.code_in(config).values()
    return resume(folder, given=given, progress=progress, allow_code=agreed, **now)


def _go(config: RunConfig, folder: Path | None, given: Given, progress: Progress | None, force: bool | None) -> Result:
    fresh = force is not None
    shelf = given.shelf or Shelf(None if fresh else folder)
    given = replace(given, shelf=shelf)
    _check_named(config, given)
    again = not fresh and folder is not None and config.checkpoint.every and checkpoint.exists(folder / CHECKPOINT)
    # read before annotators are trained, so that what is wrong with it is said at once
    file = None if again else resolve.weights_file(config)
    if fresh and file is not None:
        run_folder.check_outside(file.path, folder)
    with one_thread():
        site, source, spec = prepare(config, given)
        _try_network(site, spec, given)
        header = evidence.header(config, site, source, spec)
        model, origin = resolve.first_model(file, site.net(spec))
        header["model"] |= origin | {"name": resolve.called(spec, given.module)}
        header["files"] = resolve.digests(config)
        if folder is not None:
            run_lock.check_held(folder)
        if force is not None and folder is not None:  # only now, so that a mistake leaves no folder behind
            run_folder.make(folder, config, force)
        if folder is not None and site.ledger is not None and site.ledger.soft_labels:
            shelf.save(site.ledger.soft_labels, folder)
        store = Store(folder / CHECKPOINT if folder is not None and config.checkpoint.every else None)
        with engine_for(config, site, store, given) as engine:
            return recording.train(config, folder, site, header, server.begin(spec, model), engine, store, progress)


@contextmanager
def engine_for(config: RunConfig, site: Site, store: Store, given: Given) -> Iterator[Engine]:
    """The engine that the configuration names, closed at the end."""
    engine: Engine
    if given.engine is not None:
        engine = given.engine(site)
    elif config.engine.name == "inline":
        engine = Inline(site, store)
    elif config.engine.name == "wire":
        written, data = configuration.dumps(config), given.source or load_source(config)
        wanted = site.shards.digest, data.checksums
        engine = Wire(site, store, lambda: _elsewhere(written, given.module, given.shelf, wanted, data))
    elif config.engine.name == "ray":
        engine = _actors(config, site, store, given)
    else:
        engine = Pool(site, store, config.engine.workers)
    try:
        yield engine
    finally:
        engine.close()


def _actors(config: RunConfig, site: Site, store: Store, given: Given) -> Engine:
    from fedskew.engines.ray import Actors  # here, because Ray is an extra

    written, data = configuration.dumps(config), given.source or load_source(config)
    make = partial(_elsewhere, written, None, given.shelf, (site.shards.digest, data.checksums))
    read = None if given.source is not None else partial(load_source, config)
    return Actors(site, store, data, make, read, config.engine.workers, config.engine.address)


def _elsewhere(
    written: str,
    module: nn.Module | None,
    shelf: Shelf | None,
    wanted: tuple[Any, ...],
    data: sources.Source,
) -> Site:
    """A site made anew from a configuration's text, as a far client would; only the data are at hand already."""
    site, _, _ = prepare(configuration.from_dict(tomllib.loads(written)), Given(data, module, shelf=shelf))
    if (site.shards.digest, data.checksums) != wanted:
        raise UserError(
            f"data set '{data.name}' is not the one that the run began with (shards {site.shards.digest[:12]} instead "
            f"of {wanted[0][:12]}); copy the same files there"
        )
    return site


def _check_named(config: RunConfig, given: Given) -> None:
    """Engines that build a run anew elsewhere do so by names."""
    engine = config.engine.name
    if engine in ("wire", "ray") and given.method is not None and given.method != registry.build(config.method):
        raise UserError(f"engine '{engine}' builds methods by name at the far end; register yours, or use 'pool'")
    if engine == "ray" and given.module is not None:
        raise UserError(
            "engine 'ray' builds networks by name at the far end: put the module into a function, and give "
            "model='module:function'"
        )
