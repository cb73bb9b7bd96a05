"""Make the lines of the record: what was run, each setup and round, and how the run ended."""

from __future__ import annotations

import itertools
import platform
import re
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from joblib import cpu_count

from fedskew.config import keys
from fedskew.config.overrides import look_up, put
from fedskew.config.schema import RunConfig
from fedskew.core import tree
from fedskew.core.errors import UserError
from fedskew.core.types import ServerState, Spec, Tree
from fedskew.data import long_tail
from fedskew.data.sources import Source
from fedskew.experiment import privacy, scoring
from fedskew.experiment.callbacks import selection
from fedskew.experiment.preparation import resolve
from fedskew.record import reader, scores, site_scores
from fedskew.record.evaluation import Scores
from fedskew.record.predictions import FinalPredictions
from fedskew.record.schema import (
    EndLine,
    HeaderLine,
    RecordedData,
    RecordedModel,
    RecordedNoise,
    RoundLine,
    SetupLine,
)
from fedskew.runtime import evaluate, server
from fedskew.runtime.checkpoint import BestModel
from fedskew.runtime.client import SCORES
from fedskew.runtime.context import RunContext
from fedskew.runtime.evaluate import TEST, Scoring
from fedskew.runtime.loop import Engine, RoundDone, SetupDone

#: a path that is not meant from the data folder on
_OUTSIDE = re.compile(r"/|~|\.\.?/")
#: what an engine scores and a round's line does not have
_WITHIN_DETAILS = ("confusion", "probabilities", "details")
_WITHIN = re.compile(rf"(^|[=:,])((?:{_OUTSIDE.pattern})[^=:,]*)")


def header(config: RunConfig, context: RunContext, source: Source, spec: Spec, name: str, **origin: Any) -> HeaderLine:
    """Return the header: configuration, data, network, versions and hardware."""
    net = context.net(spec)
    weights = net.initial()
    return HeaderLine(
        config=_portable(config),
        command=_command(config),
        method=context.plan.method.expression,
        card=context.plan.method.card.title,
        stages=[", ".join(setup.name for setup in stage.setups) for stage in context.plan.method.stages],
        model=RecordedModel(
            name=name, args=dict(spec.args), parameters=sum(weights[n].numel() for n in net.parameters), **origin
        ),
        data=RecordedData(
            name=source.name,
            train=len(source.train),
            test=len(source.test),
            labels=list(source.labels),
            sites=list(source.site_names),
            notes=list(source.notes),
            shape=list(source.train.x.shape[1:]),
            mean=list(source.mean),
            std=list(source.std),
        ),
        checksums=dict(source.checksums),
        files=resolve.digests(config),
        shards=context.shards.digest,
        noise=None if context.ledger is None else RecordedNoise(**context.ledger.summary()),
        hostile=list(context.hostile),
        counts=_counts(context) if context.plan.task.clients <= 1000 else None,
        versions=versions(),
        hardware=hardware(),
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def check_the_same(folder: Path, header: HeaderLine, context: RunContext, state: ServerState) -> None:
    """Refuse to resume a run with other data or another network than it was started with."""
    before = reader.read(folder).header
    if not {"shards", "checksums", "config"} <= before.keys():
        raise UserError(f"record '{folder / reader.NAME}' has no readable header. Restore it, or start the run again.")
    known = before.data is None or before.data.test == header.data.test if header.data else True
    same_files = known and before.files == header.files and reader.same_files(before, header.checksums)
    if before.shards != header.shards or not same_files:
        raise UserError(f"the data are not those that the run in '{folder}' started with. Provide the same data.")
    model, network = server.model_of(context, state), context.net(state.spec).initial()
    if model is not None and {n: t.shape for n, t in model.items()} != {n: t.shape for n, t in network.items()}:
        raise other_network(folder)


def other_network(folder: Path) -> UserError:
    """Say that the network differs from the run's."""
    return UserError(
        f"the network differs from the one the run in '{folder}' began with. Restore its code, or give the same "
        "Python object as model."
    )


def _portable(config: RunConfig) -> dict[str, Any]:
    """Return the configuration without the folders above its files; checksums identify the contents."""
    values = config.model_dump()
    for key in keys.where(is_path=True):
        path = look_up(values, key)
        if isinstance(path, list):
            put(values, key, [Path(each).name for each in path])
        elif path and (key == "data.dir" or _OUTSIDE.match(path)):
            put(values, key, Path(path).name)
    return values


def _command(config: RunConfig) -> list[str]:
    whole, short = config.data.dir, _portable(config)["data"]["dir"]
    # Flower starts its apps with a token, which must stay secret
    safe = ["..." if before == "--token" else word for before, word in itertools.pairwise(sys.argv)]
    words = [word if not whole or not short else word.replace(whole, short) for word in safe]
    return [_WITHIN.sub(lambda found: found[1] + Path(found[2]).name, word) for word in words]


def _counts(context: RunContext) -> list[list[int]]:
    classes, sizes = context.plan.task.classes, context.shards.sizes().tolist()
    return [y.bincount(minlength=classes).tolist() for y in context.shards.y.split(sizes)]


def versions() -> dict[str, str | None]:
    """Return the versions of everything that could change bits, and the commit of a checkout."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("fedskew", "torch", "numpy", "scikit-learn"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["torch"] = str(torch.__version__)  # has the build, such as +cu130, which the package may not name
    found["commit"] = _commit()
    return found


def _commit() -> str | None:
    """Return the commit; None outside of a checkout, or without git."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        return None


def hardware() -> dict[str, Any]:
    """Return processor, cores and system."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {"cpu": model, "cores": cpu_count(), "system": platform.system(), "threads_per_worker": 1}


def setup_line(event: SetupDone) -> SetupLine:
    """Return the line of a setup: who asked, how many clients answered, what was decided."""
    fields: dict[str, Any] = {
        "round": event.round.index + 1,
        "part": event.setup,
        "answers": event.answers,
        "verdict": event.verdict,
    }
    return SetupLine(**fields | ({"lost": _by_name(event.lost)} if event.lost else {}))


def _by_name(lost: Mapping[int, str]) -> dict[str, str]:
    """Return reasons by the client's number as JSON writes it."""
    return {str(client): reason for client, reason in lost.items()}


def line(
    config: RunConfig, context: RunContext, engine: Engine, event: RoundDone, lengths: Collection[int] = ()
) -> RoundLine:
    """Return the line of a round: who took part, what it cost, how good the model is now.

    The last round is always scored, and so are those that once were the last: `lengths` of a run that was made longer.
    """
    updates = event.replies.updates
    stage = context.plan.stage(event.round)
    last = stage.closing or (event.counted and event.state.round.counted in {context.plan.rounds, *lengths})
    optimizer = stage.optimizer
    fields: dict[str, Any] = {
        "round": event.round.index + 1,
        "counted": event.counted,
        "stage": event.round.stage,
        "lr": optimizer.rate(event.round) if optimizer is not None else None,
        "asked": len(event.asked),
        "replies": len(updates),
        "examples": sum(update.examples for update in updates),
        "steps": sum(update.steps for update in updates),
    }
    if updates:
        if all("loss" in update.metrics for update in updates):
            fields["loss"] = sum(update.metrics["loss"] for update in updates) / len(updates)
        fields["up"] = int(sum(update.metrics["up"] for update in updates))
        fields["down"] = int(sum(update.metrics["down"] for update in updates))
    if event.replies.lost:
        fields["lost"] = _by_name(event.replies.lost)
    if event.replies.late:
        fields["late"] = event.replies.late
    if event.replies.answered:
        fields["answered"] = event.replies.answered
    fields |= event.diagnostics
    if privacy.is_protected(context.plan.method):
        fields |= {"clients_asked": event.asked, "channels": privacy.channels(updates)}
    if config.evaluate.clients and updates:
        fields |= _client_lines(event)
    if last or (event.round.index + 1) % config.evaluate.every == 0:
        scores = scores_of(context, engine, event.state, Scoring(detailed=config.evaluate.details))
        if config.evaluate.details:
            fields["scores"] = scoring.detailed(context.test, scores, "test", "last")
        fields |= {name: value for name, value in scores.items() if name not in _WITHIN_DETAILS}
        if config.data.imbalance is not None and "recall" in fields:
            fields |= _thirds(context, fields["recall"])
        model = server.model_of(context, event.state)
        if model is not None and config.evaluate.memorization:
            fields["memorization"] = evaluate.memorization(context, event.state.spec, model)
        if model is not None and not _asks_clients(context, engine, event.state) and context.validation is not None:
            fields["validation"] = scoring.of_validation(config, context, engine, event.state.spec, model)
    return RoundLine(**fields)


def _thirds(context: RunContext, recall: list[float]) -> dict[str, float]:
    """Return the mean recall of the classes with many, a medium number of, and few training samples."""
    y = context.shards.y.numpy() if context.ledger is None else context.ledger.true
    classes = long_tail.thirds(np.bincount(y, minlength=context.plan.task.classes))
    return {f"recall_{name}": float(np.mean(np.array(recall)[each])) for name, each in classes.items() if len(each)}


def _asks_clients(context: RunContext, engine: Engine, state: ServerState) -> bool:
    """Whether clients score with weights that stay with them; frozen ones are not sent again for that."""
    stage = context.plan.stage(state.round)
    return stage.has_own_models or (stage.personal is not None and engine.scores_at_clients)


def scores_of(context: RunContext, engine: Engine, state: ServerState, scoring: Scoring = TEST) -> dict[str, Any]:
    """Return the scores of the model or, where clients have weights of their own, of all their models together.

    The global model is scored beside these where test samples are here.
    """
    model = server.model_of(context, state)
    if not _asks_clients(context, engine, state):
        return {} if model is None else engine.score(state.spec, model, scoring)
    replies = engine.ask(server.evaluations(context, state, scoring.detailed))
    counted = {update.client: dict(update.extras[SCORES]) for update in replies.updates}
    likely = [each.pop("probabilities") for each in counted.values() if "probabilities" in each]
    counts = {str(client): evaluate.client_counts(each) for client, each in counted.items()}
    found: dict[str, Any] = evaluate.scores(list(counted.values())) | {
        "scored_by": "clients",
        "scored": {client: each for client, each in counts.items() if any(each["held"])},
    }
    if len(likely) == context.plan.task.clients:
        found["probabilities"] = torch.stack(likely).numpy()
    if model is not None and len(context.shards.y) and context.plan.stage(state.round).has_own_models:
        found |= evaluate.global_scores(context, state.spec, model)
    found |= {"scored_lost": _by_name(replies.lost)} if replies.lost else {}
    return found | ({"late": replies.late} if replies.late else {})


def _client_lines(event: RoundDone) -> dict[str, Any]:
    """Return scores of the client models, and their drift diversity: sum |m_i|^2 / |sum m_i|^2 (FedVLS Eq. 7)."""
    updates = event.replies.updates
    total = event.replies.sums.under("drift|").added
    apart = sum(update.metrics["drift"] for update in updates)
    together = float(tree.dot(total, total))
    clients: list[dict[str, Any]] = []
    for update in updates:
        shown = {k: v for k, v in update.metrics.items() if k.startswith("accuracy_")}
        recall = [value for name, value in update.metrics.items() if name.startswith("recall_")]
        clients.append({"client": update.client, **shown, "recall": recall})
    out: dict[str, Any] = {"clients": clients, "drift_diversity": apart / together if together else None}
    for group in ("majority", "minority", "vacant", "all"):
        found = [c[f"accuracy_{group}"] for c in clients if f"accuracy_{group}" in c]
        out[f"client_{group}"] = sum(found) / len(found) if found else None
    return out


def end(
    config: RunConfig,
    context: RunContext,
    lines: list[RoundLine],
    setups: list[SetupLine],
    model: Tree | None,
    engine: Engine,
    scored: Mapping[str, Any],
    state: ServerState,
    seconds: float,
    best: BestModel | None = None,
) -> EndLine:
    """Return the last line: best and last scores, time, digest of the weights; `scored` are the last scores."""
    lines, _ = site_scores.on_common(lines)
    fields: dict[str, Any] = dict(scores.summary(lines)) | _balanced(lines)
    if config.evaluate.target is not None:
        fields["target"] = config.evaluate.target
        fields["reached"] = scores.first_reaching(lines, config.evaluate.target)
    fields["rounds"] = len(lines)
    fields["seconds"] = seconds
    fields["weights_sha256"] = None if model is None else tree.digest(model)
    if privacy.is_protected(context.plan.method):
        fields["privacy"] = privacy.claim(context.plan, lines, setups)
    fields |= {key: scored[key] for key in ("confusion", "scored_lost") if key in scored}
    found = scoring.detailed(context.test, dict(scored), "test", "last") if scored else []
    if best is not None:
        fields["chosen"] = selection.progress(lines, config.stop).best
        found += _of_best(context, engine, state.spec, best)
    fields |= {"scores": found} if found else {}
    if model is not None and context.ledger is not None:
        fields["memorization"] = evaluate.memorization(context, state.spec, model)
    return EndLine(**fields)


def predictions(context: RunContext, scored: Mapping[str, Any]) -> FinalPredictions | None:
    """Return what the final model, or each client's, predicts for the test samples; None where only sites have them."""
    if "probabilities" not in scored:
        return None
    test, found = context.test, np.asarray(scored["probabilities"])
    guess = np.where(np.isfinite(found).all(-1), np.nan_to_num(found).argmax(-1), -1)
    return FinalPredictions(
        labels=test.y.numpy(),
        predicted=np.atleast_2d(guess),
        sites=None if test.sites is None else test.sites.numpy(),
        groups=None if test.groups is None else test.groups.numpy(),
        samples=tree.digest({"x": test.x, "y": test.y}),
        rows=None if test.rows is None else test.rows.numpy(),
    )


def _of_best(context: RunContext, engine: Engine, spec: Spec, best: BestModel) -> list[Scores]:
    """Score the chosen model on the test samples, and on those that chose it."""
    found: list[Scores] = []
    for on, data in (("test", context.test), ("validation", context.validation)):
        scored = engine.score(spec, best.weights, Scoring(on, detailed=True))  # type: ignore[arg-type]
        found += scoring.detailed(data or context.test, scored, on, "best")
    return found


def _balanced(lines: list[RoundLine]) -> dict[str, float | None]:
    """Return the best balanced accuracy and the mean of the last ten, over counted rounds; the best of the last stage,
    too, where there are several, for that is what FedNoRo's authors report.
    """
    scored = [line for line in lines if line.counted and "balanced_accuracy" in line]
    found: list[float] = [line["balanced_accuracy"] for line in scored]
    fields = {
        "best_balanced": max(found) if found else None,
        "last_balanced": fmean(found[-10:]) if found else None,
    }
    if scored and (last := scored[-1].stage) > scored[0].stage:
        fields["best_balanced_last_stage"] = max(line["balanced_accuracy"] for line in scored if line.stage == last)
    return fields
