"""What goes into the record: what was run on what, one line per round, and how it ended."""

from __future__ import annotations

import itertools
import platform
import re
import subprocess
import sys
import time
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

from joblib import cpu_count

from fedskew import privacy, record, site_scores, tree
from fedskew.config import RunConfig
from fedskew.data.sources import Source
from fedskew.errors import UserError
from fedskew.types import Spec, State, Tree
from fedskew.work import evaluate, server
from fedskew.work.loop import Done, Engine, Opened
from fedskew.work.site import Site

#: where a configuration names files
_PATHS = {
    "data": ("dir",),
    "partition": ("lists",),
    "model": ("weights",),
    "noise": ("labels", "matrix", "soft_labels"),
}
#: a path that is not meant from the data folder on
_OUTSIDE = re.compile(r"/|~|\.\.?/")
_WITHIN = re.compile(rf"(^|[=:,])((?:{_OUTSIDE.pattern})[^=:,]*)")


def header(config: RunConfig, site: Site, source: Source, spec: Spec) -> dict[str, Any]:
    """What is run, on what data and with what, before the first round."""
    weights = site.net(spec).initial()
    return {
        "config": _portable(config).model_dump(),
        "command": _command(config),
        "method": site.plan.method.expression,
        "card": site.plan.method.card.title,
        "stages": [", ".join(entry.name for entry in stage.entries) for stage in site.plan.method.stages],
        "model": {
            "name": spec.name,
            "args": spec.args,
            "parameters": sum(weights[n].numel() for n in site.net(spec).parameters),
        },
        "data": {
            "name": source.name,
            "train": len(source.train),
            "test": len(source.test),
            "labels": list(source.labels),
            "sites": list(source.site_names),
            "notes": list(source.notes),
        },
        "checksums": source.checksums,
        "shards": site.shards.digest,
        "noise": None if site.ledger is None else site.ledger.summary(),
        "counts": _counts(site) if site.plan.task.clients <= 1000 else None,
        "versions": versions(),
        "hardware": hardware(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def check_the_same(folder: Path, header: dict[str, Any], site: Site, state: State) -> None:
    """Refuse to go on with other data, or another network, than the run in a folder began with."""
    before = record.read(folder).header
    if not {"shards", "checksums", "config"} <= before.keys():
        raise UserError(f"record '{folder / record.NAME}' has no readable header; restore it, or begin the run anew")
    same_files = before.get("files", {}) == header["files"] and record.same_files(before, header["checksums"])
    if before["shards"] != header["shards"] or not same_files:
        raise UserError(f"the data are not those that the run in '{folder}' began with; give it the same again")
    model, network = server.model_of(site, state), site.net(state.spec).initial()
    if model is not None and {n: t.shape for n, t in model.items()} != {n: t.shape for n, t in network.items()}:
        raise UserError(
            f"the network is not that which the run in '{folder}' began with; if it was handed over in Python, hand it "
            "over again"
        )


def _portable(config: RunConfig) -> RunConfig:
    """Without the folders above the data, which are nobody else's business: checksums say what was in there."""
    changed = {}
    for section, keys in _PATHS.items():
        inner = getattr(config, section)
        paths = {key: getattr(inner, key) for key in keys}
        own = {key: Path(path).name for key, path in paths.items() if path and (key == "dir" or _OUTSIDE.match(path))}
        changed[section] = inner.model_copy(update=own)
    return config.model_copy(update=changed)


def _command(config: RunConfig) -> list[str]:
    whole, short = config.data.dir, _portable(config).data.dir
    # Flower starts its apps with a token, which is nobody else's business
    told = ["..." if before == "--token" else word for before, word in itertools.pairwise(sys.argv)]
    words = [word if not whole or not short else word.replace(whole, short) for word in told]
    return [_WITHIN.sub(lambda found: found[1] + Path(found[2]).name, word) for word in words]


def _counts(site: Site) -> list[list[int]]:
    classes, sizes = site.plan.task.classes, site.shards.sizes().tolist()
    return [y.bincount(minlength=classes).tolist() for y in site.shards.y.split(sizes)]


def versions() -> dict[str, str | None]:
    """Of everything whose change could change bits, and the commit if fedskew runs from a checkout."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("fedskew", "torch", "numpy", "scikit-learn"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["commit"] = _commit()
    return found


def _commit() -> str | None:
    """None outside of a checkout, and where git cannot be started."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or None
    except OSError:
        return None


def hardware() -> dict[str, Any]:
    """What the run is computed on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {"cpu": model, "cores": cpu_count(), "system": platform.system(), "threads_per_worker": 1}


def door(event: Opened) -> dict[str, Any]:
    """A question to all clients: who asked, how many answered, what was decided."""
    fields = {
        "round": event.round.index,
        "part": event.entry,
        "answers": event.answers,
        "verdict": event.verdict,
    }
    return fields | ({"lost": event.lost} if event.lost else {})


def line(config: RunConfig, site: Site, engine: Engine, event: Done, lengths: Collection[int] = ()) -> dict[str, Any]:
    """One round: what was asked and answered, what it cost, how good the model is now.

    The last round is always scored, and so are those that once were the last: `lengths` of a run that was made longer.
    """
    updates = event.gathered.updates
    last = event.counted and event.state.round.counted in {site.plan.rounds, *lengths}
    optimiser = site.plan.stage(event.round).optimiser
    fields: dict[str, Any] = {
        "round": event.round.index,
        "counted": event.counted,
        "stage": event.round.stage,
        "lr": optimiser.rate(event.round) if optimiser is not None else None,
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
    if event.gathered.lost:
        fields["lost"] = event.gathered.lost
    if event.gathered.late:
        fields["late"] = event.gathered.late
    if event.gathered.answered:
        fields["answered"] = event.gathered.answered
    fields |= event.told
    if privacy.sealed(site.plan.method):
        fields |= {"clients_asked": event.asked, "channels": privacy.channels(updates)}
    if config.evaluate.clients and updates:
        fields |= _client_lines(event)
    model = server.model_of(site, event.state)
    if model is not None and (last or (event.round.index + 1) % config.evaluate.every == 0):
        scores = engine.score(event.state.spec, model)
        scores.pop("confusion")
        fields |= scores
        if config.evaluate.memorisation:
            fields["memorisation"] = evaluate.memorisation(site, event.state.spec, model)
    return fields


def _client_lines(event: Done) -> dict[str, Any]:
    """Scores of the client models, and how differently they drifted: sum |m_i|^2 / |sum m_i|^2 (FedVLS Eq. 7)."""
    updates = event.gathered.updates
    total = event.gathered.sums.under("drift|").added
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
    site: Site,
    lines: list[dict[str, Any]],
    doors: list[dict[str, Any]],
    model: Tree | None,
    engine: Engine,
    state: State,
    seconds: float,
) -> dict[str, Any]:
    """How the run ended."""
    lines, _ = site_scores.on_common(lines)
    fields: dict[str, Any] = dict(record.summary(lines)) | _balanced(lines)
    if config.evaluate.target is not None:
        fields["target"] = config.evaluate.target
        fields["reached"] = record.first_reaching(lines, config.evaluate.target)
    fields["rounds"] = len(lines)
    fields["seconds"] = seconds
    fields["weights_sha256"] = None if model is None else tree.digest(model)
    if privacy.sealed(site.plan.method):
        fields["privacy"] = privacy.claim(site.plan, lines, doors)
    if model is not None and lines:
        scores = engine.score(state.spec, model)
        fields |= {key: scores[key] for key in ("confusion", "scored_lost") if key in scores}
    if model is not None and site.ledger is not None:
        fields["memorisation"] = evaluate.memorisation(site, state.spec, model)
    return fields


def _balanced(lines: list[dict[str, Any]]) -> dict[str, float | None]:
    """The best balanced accuracy and the mean of the last ten, over the counted rounds; the best of the last stage,
    too, where there are several, for that is what FedNoRo's authors report.
    """
    scored = [line for line in lines if line["counted"] and "balanced_accuracy" in line]
    found = [line["balanced_accuracy"] for line in scored]
    fields = {
        "best_balanced": max(found) if found else None,
        "last_balanced": fmean(found[-10:]) if found else None,
    }
    if scored and (last := scored[-1]["stage"]) > scored[0]["stage"]:
        fields["best_balanced_last_stage"] = max(line["balanced_accuracy"] for line in scored if line["stage"] == last)
    return fields
