"""Run a configuration, and resume what was interrupted or stopped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedskew import config as configuration
from fedskew.config import consent, keys
from fedskew.config.schema import RunConfig
from fedskew.core.errors import UserError
from fedskew.core.wording import number_of
from fedskew.experiment import recorder, run_metadata
from fedskew.experiment.callbacks import Callback
from fedskew.experiment.preparation import resolve
from fedskew.experiment.preparation.annotators import SoftLabelCache
from fedskew.experiment.preparation.prepare import NO_INPUTS as NO_INPUTS
from fedskew.experiment.preparation.prepare import RunInputs as RunInputs
from fedskew.experiment.preparation.prepare import check_rebuildable, engine_for, preprocessing, try_network
from fedskew.experiment.preparation.prepare import load_source as load_source
from fedskew.experiment.preparation.prepare import prepare as prepare
from fedskew.experiment.preparation.prepare import shards_for as shards_for
from fedskew.experiment.preparation.prepare import shared_source as shared_source
from fedskew.experiment.recorder import Result as Result
from fedskew.methods import registry
from fedskew.parts.part import with_inner_parts
from fedskew.parts.stages import Method
from fedskew.record import reader, run_dir, run_lock
from fedskew.record.run_dir import CHECKPOINT
from fedskew.runtime import checkpoint, server
from fedskew.runtime.context import one_thread
from fedskew.runtime.store import Store


def run(
    config: RunConfig,
    out: Path | None = None,
    *,
    inputs: RunInputs = NO_INPUTS,
    force: bool = False,
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Train from the first round; with `out`, leave a run folder there.

    Args:
        config: Everything that names can say.
        out: The run folder, which can be resumed and reported on.
        inputs: Python objects in place of names.
        force: Replace the run that is in the folder.
        callbacks: What follows the run, called in this order.

    Raises:
        UserError: The configuration, the data or the folder do not allow the run.
    """
    if out is None:
        return _train(config, None, inputs, callbacks)
    run_dir.check_name(out)
    with run_lock.locked(out):
        run_dir.check_free(out, force)
        return _train(config, out, inputs, callbacks, force=force)


def resume(
    folder: Path, *, inputs: RunInputs = NO_INPUTS, callbacks: Iterable[Callback] = (), **changes: Any
) -> Result:
    """Continue a run to the same bits as if it had never been interrupted.

    Args:
        folder: The run folder.
        inputs: The same Python objects that the run started with.
        callbacks: What follows the run, called in this order.
        changes: What may differ now, as in `resumed_config`.
    """
    run_dir.check_holds_run(folder)
    with run_lock.locked(folder):
        config = resumed_config(folder, method=inputs.method, **changes)
        run_dir.check_kept(folder, config, checkpoint.exists(folder / CHECKPOINT))
        with run_dir.writing(folder):
            (folder / CHECKPOINT).mkdir(exist_ok=True)
        return _train(config, folder, inputs, callbacks, resuming=True)


def resumed_config(
    folder: Path,
    rounds: int | None = None,
    data_dir: str | Path | None = None,
    workers: int | None = None,
    allow_code: consent.Consent = False,
    method: Method | None = None,
) -> RunConfig:
    """Read the configuration of the run in a folder, with what may change: more rounds, moved data, other workers."""
    config = run_dir.load_config(folder, rounds)
    consent.check(config, folder / run_dir.CONFIG, allow_code)
    rounds = config.rounds if rounds is None else rounds
    if rounds < config.rounds:
        raise UserError(f"rounds is {rounds}, but the run in '{folder}' has {config.rounds}. Give a larger number.")
    if rounds > config.rounds:
        _check_extendable(method or registry.build(config.method), config.rounds)
    values = config.model_dump() | {"rounds": rounds}
    values["data"]["dir"] = resolve.data_now(config.data) if data_dir is None else str(data_dir)
    values["engine"]["workers"] = config.engine.workers if workers is None else workers
    return configuration.from_dict(values)


def _check_extendable(method: Method, rounds: int) -> None:
    for part in (each for stage in method.stages for outer in stage.parts for each in with_inner_parts(outer)):
        if part.depends_on_total_rounds:
            raise UserError(
                f"method '{method.expression}' was run for {number_of(rounds, 'round')}, and {part.name} depends on "
                "that number: more rounds would change the earlier ones. Start a new run."
            )


def holds_same_run(folder: Path, config: RunConfig) -> bool:
    """Return whether the folder has this run, complete or not; refuse one with other options."""
    if not (folder / run_dir.CONFIG).exists():
        return False
    before = resumed_config(folder, allow_code=True)  # it is only compared
    same = (key.removeprefix("engine.") for key in keys.where(changes_result=False) if key.startswith("engine."))
    engine = before.engine.model_copy(update={key: getattr(config.engine, key) for key in same})
    moved = {"dir": config.data.dir} if before.data.is_gone else {}
    if before.model_copy(update={"engine": engine, "data": before.data.model_copy(update=moved)}) != config:
        raise UserError(f"the run in '{folder}' has other options. Give the same options, or another --out.")
    return True


def resume_or_run(
    config: RunConfig, folder: Path | None, *, inputs: RunInputs, callbacks: Iterable[Callback] = ()
) -> Result:
    """Continue the run in the folder, or start it; one that a callback stopped stays as it is."""
    if folder is None or not holds_same_run(folder, config):
        return run(config, folder, inputs=inputs, callbacks=callbacks)
    if (folder / reader.NAME).exists():
        before = reader.read(folder)
        done = before.end is not None and before.note is None
        if before.end is not None and done and ("stopped" in before.end or not checkpoint.exists(folder / CHECKPOINT)):
            return Result(config, before.header, before.rounds, before.end, None, folder, before.setups)
    changes = {"data_dir": config.data.dir, "workers": config.engine.workers}
    agreed = consent.code_in(config).values()
    return resume(folder, inputs=inputs, callbacks=callbacks, allow_code=agreed, **changes)


def _train(
    config: RunConfig,
    folder: Path | None,
    inputs: RunInputs,
    callbacks: Iterable[Callback],
    *,
    force: bool = False,
    resuming: bool = False,
) -> Result:
    """Prepare and train; nothing is written before everything is checked."""
    cache = inputs.soft_labels or SoftLabelCache(folder if resuming else None)
    inputs = replace(inputs, soft_labels=cache)
    check_rebuildable(config, inputs)
    restores = resuming and folder is not None and config.checkpoint.every and checkpoint.exists(folder / CHECKPOINT)
    file = None if restores else resolve.weights_file(config)  # a mistake in it shows before annotators are trained
    if not resuming and file is not None:
        run_dir.check_outside(file.path, folder)
    with one_thread():
        context, source, spec = prepare(config, inputs)
        try_network(config, context, spec, inputs)
        model, origin = resolve.first_model(file, context.net(spec))
        header = run_metadata.header(config, context, source, spec, resolve.called(spec, inputs.module), **origin)
        if folder is not None:
            run_lock.check_locked(folder)
            if not resuming:
                run_dir.make(folder, config, force)
            with run_dir.writing(folder):
                preprocessing(source).save(folder)
            if context.ledger is not None and context.ledger.soft_labels:
                cache.save(context.ledger.soft_labels, folder)
        store = Store(folder / CHECKPOINT if folder is not None and config.checkpoint.every else None)
        first = server.begin(spec, model)
        with engine_for(config, context, store, inputs) as engine:
            return recorder.train(config, folder, context, header, first, engine, store, callbacks, inputs.name)
