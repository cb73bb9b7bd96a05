"""Find records, and name runs by what differs between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedskew.config import keys
from fedskew.core.errors import UserError
from fedskew.record import predictions, reader, run_dir, run_lock, site_scores
from fedskew.report import tables, task
from fedskew.report.comparison import run_folders

#: settings that change neither the method nor its task, beside those that change no result
_ASIDE = ("method", "seed", "evaluate.every")


@dataclass(frozen=True)
class LoadedRun:
    """A record with its path, its task, and its names: `name` among all runs, `short` among those of its task.

    `scored_by` are the clients whose test data its scores use, if more clients scored some rounds.
    """

    path: Path
    run: reader.RunRecord
    task: str
    name: str
    short: str
    scored_by: Sequence[int] | None = None

    @property
    def config(self) -> dict[str, Any]:
        return self.run.header.get("config", {})

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def title(self) -> str:
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"

    @property
    def pair(self) -> tuple[int | None, str | None]:
        """What runs have in common that are compared one by one: the seed, and the digest of the partition."""
        return self.seed, self.run.header.get("shards")

    @property
    def target(self) -> float | None:
        """The accuracy to which rounds were to be counted."""
        return self.config.get("evaluate", {}).get("target")

    @property
    def blind(self) -> bool:
        """Whether the record is a coordinator's, which does not know the sites' class counts."""
        counts = self.run.header.get("counts") or ()
        return bool(counts) and not any(map(any, counts))

    @property
    def held_back(self) -> bool:
        """Whether it was scored on samples held back from training, not on the test set."""
        return task.is_held_back(task.settings(self.run))

    @property
    def clients(self) -> list[str]:
        return tables.clients(self.run.header)

    @property
    def finished(self) -> bool:
        """Whether it has made all its rounds; a run that is given more rounds has no end until they are made."""
        return self.run.end is not None

    @property
    def state(self) -> str:
        """Whether it is finished, running, or stopped."""
        if self.finished:
            return "finished"
        running = run_lock.is_locked(self.path if self.path.is_dir() else self.path.parent)
        return f"{'running, now' if running else 'stopped'} after {self.done}"

    @property
    def made(self) -> int:
        """How many of the requested rounds it has made."""
        return sum(line.get("counted") is not False for line in self.run.rounds)

    @property
    def done(self) -> str:
        return so_far([self])


def read(paths: Iterable[Path]) -> list[LoadedRun]:
    """Read run folders, record files, or folders of run folders such as a comparison."""
    found, scored_by = [], {}
    for path in folders(paths):
        run = reader.read(path)
        rounds, scored_by[path] = site_scores.on_common(run.rounds)
        predicted = predictions.read(path / run_dir.PREDICTIONS) if path.is_dir() else None
        found.append((path, replace(run, rounds=rounds, predictions=predicted)))
    for path, run in found:
        if not run.header and path.is_file() and path.name != reader.NAME:
            raise UserError(
                f"'{path}' is not a record: its first line is not a header. Name a run folder or a {reader.NAME}."
            )
    titles = task.titles([run for _, run in found])
    together = {title: [each for each, on in zip(found, titles, strict=True) if on == title] for title in titles}
    short = {path: name for group in together.values() for (path, _), name in zip(group, _names(group), strict=True)}
    return [
        LoadedRun(
            path,
            run,
            title,
            f"{short[path]} on {title}" if len(together) > 1 else short[path],
            short[path],
            scored_by[path],
        )
        for (path, run), title in zip(found, titles, strict=True)
    ]


def so_far(runs: Sequence[LoadedRun]) -> str:
    """Write how far runs of equally many rounds are: ``2 to 7 of 15 rounds``."""
    made = [each.made for each in runs]
    ends = dict.fromkeys((min(made), max(made)))
    return f"{' to '.join(f'{each:,}' for each in ends)} of {runs[0].config.get('rounds', 'unknown')} rounds"


def grouped(loaded: Iterable[LoadedRun]) -> dict[str, list[reader.RunRecord]]:
    """Group the runs of a task by name: those of one name differ only in their seeds."""
    groups: dict[str, list[reader.RunRecord]] = {}
    for each in loaded:
        groups.setdefault(each.short, []).append(each.run)
    return groups


def folders(paths: Iterable[Path]) -> list[Path]:
    """Return the folder of every run once; a folder of runs stands for the runs in it."""
    return list({path.resolve(): path for path in _expanded(paths)}.values())


def _expanded(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file() or (path / reader.NAME).exists():
            yield path
            continue
        inside = run_folders(path)
        if not inside:
            deeper = sorted({each.parent.parent for each in path.glob(f"*/*/{reader.NAME}")})
            hint = " or ".join(f"'{each}'" for each in deeper) or "a folder that a run wrote"
            raise UserError(f"'{path}' has no run: there is no {reader.NAME} in it or a folder in it. Name {hint}.")
        yield from inside


def _names(found: Sequence[tuple[Path, reader.RunRecord]]) -> list[str]:
    """Name runs by the method and every other setting in which some of them differ."""
    settings = []
    for _, run in found:
        each = {
            key: value for key, value in task.settings(run).items() if key not in _ASIDE and keys.of(key).changes_result
        }
        if digest := run.header.get("model", {}).get("weights_file"):  # files of one name may differ
            each["model.weights"] = f"{each.get('model.weights')} {str(digest)[:8]}"
        if each.pop("data.corrections", None) is not None:
            each["labels"] = f"corrected {run.header.get('files', {}).get('data.corrections', '')[:4]}".strip()
        if each.get("model.name") == "auto":  # which network that was, or a module of the user's
            network = run.header.get("model", {})
            each["network"] = f"{network.get('name')} of {network.get('parameters')} parameters"
        settings.append(each)
    differing = task.differing([each for each in settings if each])
    return [
        ", ".join(
            [run.header.get("method") or path.name]
            + [f"{key}={each[key]}" for key in differing if each.get(key) is not None]
        )
        for (path, run), each in zip(found, settings, strict=True)
    ]
