"""Prepare a run: data, partition, method, network and labels from a configuration; and the engine it asks for."""

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
from fedskew.config.schema import RunConfig
from fedskew.core import devices
from fedskew.core.errors import UserError
from fedskew.core.types import Spec, Task
from fedskew.data import shards as sharding
from fedskew.data import sources
from fedskew.data.limit import limited
from fedskew.data.long_tail import long_tailed
from fedskew.data.partitions import partition as partitions
from fedskew.data.preprocessing.saved import Preprocessing
from fedskew.data.shards import Shards
from fedskew.data.transforms import augment
from fedskew.engines.inline import Inline
from fedskew.engines.pool import Pool, succeeds_in_fork
from fedskew.experiment.preparation import resolve
from fedskew.experiment.preparation.annotators import SoftLabelCache
from fedskew.experiment.preparation.corrected_labels import corrected
from fedskew.experiment.preparation.noisy_labels import mislabel
from fedskew.experiment.preparation.validation import hold_back
from fedskew.methods import registry
from fedskew.models import registry as networks
from fedskew.models.trial import try_out
from fedskew.parts import compose
from fedskew.parts.cohorts import Everyone
from fedskew.parts.stages import Method, Plan
from fedskew.runtime.client import steps_of
from fedskew.runtime.context import RunContext
from fedskew.runtime.loop import Engine
from fedskew.runtime.store import Store


@dataclass(frozen=True)
class RunInputs:
    """Python objects that replace what the configuration names; None leaves the name in force.

    Attributes:
        source: The data set.
        module: The network.
        method: The method.
        soft_labels: Where annotators' soft labels are cached, for several runs to share.
        engine: What makes the engine.
        shards: Which client has which samples.
        name: What progress bars call the run.
    """

    source: sources.Source | None = None
    module: nn.Module | None = None
    method: Method | None = None
    soft_labels: SoftLabelCache | None = None
    engine: Callable[[RunContext], Engine] | None = None
    shards: Shards | None = None
    name: str | None = None


def shards_for(config: RunConfig, source: sources.Source) -> Shards:
    """Assign samples to clients, as the partition says."""
    wanted = config.partition
    seed = config.seed if wanted.seed is None else wanted.seed
    options = resolve.partition_options(wanted, seed)
    if wanted.name == "natural":
        if source.sites is None:
            raise UserError(
                f"partition 'natural' needs sites, and data set '{source.name}' has none. Type --partition iid."
            )
        options["sites"] = source.sites.numpy()
    if source.groups is not None:
        options["groups"] = source.groups.numpy()
    parts = partitions.partition(source.train.y.numpy(), source.classes, wanted.clients, wanted.name, seed, **options)
    return sharding.make(source, parts)


def load_source(config: RunConfig, *, limit: bool = True) -> sources.Source:
    """Load the data set that the configuration names, from its folder or from FEDSKEW_DATA; whole without `limit`."""
    folder = config.data.dir or os.environ.get("FEDSKEW_DATA")
    seed = {"seed": config.seed} if sources.draws_by_seed(config.data.name) else {}
    source = sources.load(config.data.name, None if folder is None else Path(folder), **seed | config.data.options)
    return long_tailed(limited(source, config.data.limit), config.data.imbalance) if limit else source


def shared_source(config: RunConfig) -> sources.Source | None:
    """Load a data set that is the same for every seed; None if each run has test samples of its own."""
    return None if sources.draws_by_seed(config.data.name) else load_source(config)


#: the configuration names everything
NO_INPUTS = RunInputs()


def prepare(config: RunConfig, inputs: RunInputs = NO_INPUTS) -> tuple[RunContext, sources.Source, Spec]:
    """Load and build everything a run needs before its first round."""
    resolve.check_engine(config.engine)
    source = inputs.source or load_source(config)
    if inputs.shards is None:  # which number the samples of the whole source
        source = long_tailed(limited(source, config.data.limit), config.data.imbalance)
    shape = tuple(source.train.x.shape[1:])
    if config.data.augment != "none" and len(shape) != 3:
        raise UserError(
            f"data.augment is '{config.data.augment}', which is for images, and a sample of '{source.name}' has shape "
            f"{list(shape)}. Type --augment none."
        )
    task = Task(source.classes, shape, config.partition.clients)
    method = inputs.method or registry.build(config.method)
    if inputs.module is not None and any(setup.replaces_network for stage in method.stages for setup in stage.setups):
        raise UserError(
            f"method '{method.expression}' builds another network from yours, so it needs a name. Put the module into "
            "a function, and give model='module:function'."
        )
    plan = compose.plan(
        method,
        task,
        seed=config.seed,
        rounds=config.rounds,
        clients_per_round=config.clients_per_round,
        replay=config.cohort.replay == "fedntd",
        **config.local.model_dump(),
    )
    spec = resolve.spec(config, source)

    def build(wanted: Spec, seed: int = config.seed) -> nn.Module:
        if wanted == spec and inputs.module is not None:
            return networks.adapt(copy.deepcopy(inputs.module), config.model.head, classes=source.classes)
        return networks.build(wanted, task.classes, shape, seed, agreed=spec)

    context = RunContext(
        plan=plan,
        x=source.train.x,
        shards=inputs.shards or shards_for(config, source),
        test=source.test if config.partition.name == "natural" else replace(source.test, sites=None),
        view=augment.view(config.data.augment, source.mean, source.std),
        build=build,
        precision=config.engine.precision,
        drop=config.engine.drop,
        score_batch=config.evaluate.batch_size,
    )
    _check_selected(context, spec)
    if config.noise.kind != "none":
        try_network(config, context, spec, inputs)
        seed = config.seed if config.noise.seed is None else config.noise.seed
        annotating = replace(context, build=partial(build, seed=seed), _nets={})
        cache, open_engine = inputs.soft_labels or SoftLabelCache(), partial(_annotator_engine, config)
        noise = resolve.noise(config)
        context.shards, context.ledger = mislabel(annotating, source, spec, noise, seed, cache, open_engine)
    context = _with_attack(config, context)
    context, source = _with_validation(config, *corrected(config.data.corrections, context, source), context.shards)
    if method.pooled:
        context.plan = _pooled(context, spec, config.clients_per_round or config.partition.clients)
    return context, source, spec


def _check_selected(context: RunContext, spec: Spec) -> None:
    """Refuse a method that trains weights, or leaves some at the clients, which the network does not have."""
    method, name = context.plan.method, spec.name
    for stage in method.stages:
        for setup in stage.setups:
            spec = setup.rewritten(spec)
        if stage.train not in ("", "head") and not context.net(spec).trainable(stage.train):
            raise UserError(
                f"'{stage.train}' names no weights of network '{name}' that can be trained. Type --train all, head, "
                f"body or the beginning of a name such as '{context.net(spec).parameters[0]}'."
            )
        if stage.personal is not None and not context.net(spec).select(stage.personal.what):
            raise UserError(
                f"method '{method.expression}' leaves weights of '{stage.personal.what}' at the clients, and network "
                f"'{name}' has none. Choose another --model or method."
            )


def _with_attack(config: RunConfig, context: RunContext) -> RunContext:
    """Make some clients hostile, if the configuration wants some."""
    if config.attack.kind == "none":
        return context
    from fedskew.experiment.preparation import attacks  # federations never import it

    return attacks.attacked(context, config.attack, config.seed)


def _with_validation(
    config: RunConfig, context: RunContext, source: sources.Source, drawn_by: Shards
) -> tuple[RunContext, sources.Source]:
    """Hold back validation samples, if the configuration wants some."""
    if config.evaluate.validation is not None:
        context, source = hold_back(
            context,
            source,
            config.evaluate.validation,
            config.seed,
            beside=config.evaluate.test or config.stop.patience is not None,
            replace_test=not config.evaluate.test,
            drawn_by=drawn_by,
        )
    return context, source


def _pooled(context: RunContext, spec: Spec, asked: int) -> Plan:
    """Return the plan for all data in one place: a round has as many steps as its clients would take together."""
    plan, sizes, batch_norm = context.plan, context.shards.sizes().tolist(), context.net(spec).has_batch_norm
    stages = []
    for stage in plan.method.stages:
        steps = sum(steps_of(size, stage, batch_norm) for size in sizes) * asked / len(sizes)
        stages.append(replace(stage, cohort=Everyone(), effort=replace(stage.effort, steps=max(round(steps), 1))))
    return replace(plan, method=replace(plan.method, stages=tuple(stages)), task=replace(plan.task, clients=1))


def preprocessing(source: sources.Source) -> Preprocessing:
    """Return what a run keeps, so that its model can be used."""
    dtype, shape = str(source.train.x.dtype).removeprefix("torch."), tuple(source.train.x.shape[1:])
    return Preprocessing(source.labels, shape, dtype, source.mean, source.std, source.encoder)


def try_network(config: RunConfig, context: RunContext, spec: Spec, inputs: RunInputs) -> None:
    """Try the network on two samples, so that a mistake shows before anything is trained.

    Where torch knows a GPU, a process that has computed a gradient cannot fork workers that compute one. So engine
    'pool' tries it in a fork; what goes wrong there is repeated here, to be shown.
    """

    def trial() -> None:
        samples = context.view.eval(context.x.new_zeros(2, *context.x.shape[1:]))
        name, classes = resolve.called(spec, inputs.module), context.plan.task.classes
        try_out(name, context.build(spec), samples, classes, context.device, context.precision)

    if config.engine.name != "pool" or not succeeds_in_fork(trial):
        trial()


def _annotator_engine(config: RunConfig, context: RunContext) -> AbstractContextManager[Engine]:
    """Open an engine for annotators; they are trained on this machine."""
    name = "pool" if config.engine.name == "ray" else config.engine.name
    engine = config.engine.model_copy(update={"name": name, "address": None})
    return engine_for(config.model_copy(update={"engine": engine}), context, Store(), NO_INPUTS)


@contextmanager
def engine_for(config: RunConfig, context: RunContext, store: Store, inputs: RunInputs) -> Iterator[Engine]:
    """Open the engine that the configuration names, and close it at the end."""
    engine: Engine
    if inputs.engine is not None:
        engine = inputs.engine(context)
    elif config.engine.name == "inline":
        engine = Inline(context, store, devices.named(config.engine.device)[0], not config.engine.fast)
    elif config.engine.name == "ray":
        engine = _actors(config, context, store, inputs)
    else:
        found = devices.named(config.engine.device)
        engine = Pool(context, store, config.engine.workers, found, not config.engine.fast)
    try:
        yield engine
    finally:
        engine.close()


def _actors(config: RunConfig, context: RunContext, store: Store, inputs: RunInputs) -> Engine:
    from fedskew.engines.ray import Actors  # Ray is an extra

    text, data = configuration.dumps(config), inputs.source or load_source(config)
    make = partial(_rebuilt_context, text, inputs.soft_labels, (context.shards.digest, data.checksums))
    read = None if inputs.source is not None else partial(load_source, config)
    wanted = config.engine
    return Actors(
        context, store, data, make, read, wanted.workers, wanted.address, wanted.device, deterministic=not wanted.fast
    )


def _rebuilt_context(
    text: str,
    soft_labels: SoftLabelCache | None,
    digests: tuple[Any, ...],
    data: sources.Source,
) -> RunContext:
    """Build the run again from the text of its configuration, as another machine does, on the same data."""
    context, _, _ = prepare(configuration.from_dict(tomllib.loads(text)), RunInputs(data, soft_labels=soft_labels))
    if (context.shards.digest, data.checksums) != digests:
        raise UserError(
            f"data set '{data.name}' differs from the one the run began with (shards {context.shards.digest[:12]} "
            f"instead of {digests[0][:12]}). Copy the same files there."
        )
    return context


def check_rebuildable(config: RunConfig, inputs: RunInputs) -> None:
    """Refuse Python objects that the engine cannot build again elsewhere: it needs names."""
    if config.engine.name != "ray":
        return
    if inputs.method is not None and inputs.method != registry.build(config.method):
        raise UserError("engine 'ray' builds methods by name. Register your method, or set engine.name=pool.")
    if inputs.module is not None:
        raise UserError(
            "engine 'ray' builds networks by name. Put the module into a function, and give model='module:function'."
        )
