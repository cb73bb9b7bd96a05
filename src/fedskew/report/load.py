"""Finding records, and telling runs apart by what differs between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedskew import names, record, run_lock, site_scores
from fedskew.errors import UserError
from fedskew.report import task
from fedskew.report.comparison import held

#: settings that change neither the method nor its task
_ASIDE = (
    "method", "seed", "data.dir", "engine.name", "engine.workers", "engine.address", "engine.device", "checkpoint.",
    "evaluate.every", "evaluate.clients", "evaluate.target", "evaluate.batch", "evaluate.memorisation",
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """A record, where it was read, the task that it is on, and what it is called: among all, and on its task.

    `scored_by` are the clients whose test data its scores are of, if some rounds were scored by more.
    """

    path: Path
    run: record.Run
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
    def pair(self) -> tuple[int | None, str | None]:
        """What is the same in runs that are compared one by one: the seed, and who holds what."""
        return self.seed, self.run.header.get("shards")

    @property
    def target(self) -> float | None:
        """The accuracy to which rounds were to be counted."""
        return self.config.get("evaluate", {}).get("target")

    @property
    def blind(self) -> bool:
        """Whether it is a coordinator's, who knows nothing of the sites' samples."""
        counts = self.run.header.get("counts") or ()
        return bool(counts) and not any(map(any, counts))

    @property
    def held_back(self) -> bool:
        """Whether it was scored on samples held back from training, not on the test set."""
        return task.settings(self.run).get("evaluate.validation") is not None

    @property
    def clients(self) -> list[str]:
        """What its clients are called."""
        split, sites = self.config.get("partition", {}), self.run.header.get("data", {}).get("sites", ())
        return names.of_clients(split.get("name", ""), split.get("clients", 0), sites)

    @property
    def finished(self) -> bool:
        """Whether it has made all its rounds: where some are added, its record has no end until they are made."""
        return self.run.end is not None

    @property
    def state(self) -> str:
        """Whether it came to its end, or still goes on."""
        if self.finished:
            return "finished"
        going = run_lock.is_held(self.path if self.path.is_dir() else self.path.parent)
        return f"{'going, now' if going else 'stopped'} after {self.done}"

    @property
    def made(self) -> int:
        """How many rounds it has made; those that a method has beside those asked for do not count here."""
        return sum(line.get("counted") is not False for line in self.run.rounds)

    @property
    def done(self) -> str:
        """How far it is."""
        return so_far([self])


def read(paths: Iterable[Path]) -> list[Loaded]:
    """Read run folders, record files, or folders of run folders such as a comparison."""
    found, scored_by = [], {}
    for path in folders(paths):
        run = record.read(path)
        rounds, scored_by[path] = site_scores.on_common(run.rounds)
        found.append((path, replace(run, rounds=rounds)))
    for path, run in found:
        if not run.header and path.is_file() and path.name != record.NAME:
            raise UserError(f"'{path}' is no record: its first line is no header; name a run folder or a {record.NAME}")
    titles = task.titles([run for _, run in found])
    together = {title: [each for each, on in zip(found, titles, strict=True) if on == title] for title in titles}
    short = {path: name for group in together.values() for (path, _), name in zip(group, _names(group), strict=True)}
    return [
        Loaded(
            path,
            run,
            title,
            f"{short[path]} on {title}" if len(together) > 1 else short[path],
            short[path],
            scored_by[path],
        )
        for (path, run), title in zip(found, titles, strict=True)
    ]


def so_far(runs: Sequence[Loaded]) -> str:
    """How far runs of equally many rounds are: ``2 to 7 of 15 rounds``."""
    made = [each.made for each in runs]
    ends = dict.fromkeys((min(made), max(made)))
    return f"{' to '.join(f'{each:,}' for each in ends)} of {runs[0].config.get('rounds', 'unknown')} rounds"


def grouped(loaded: Iterable[Loaded]) -> dict[str, list[record.Run]]:
    """Runs of a task that have one name together: they differ in nothing but their seeds."""
    groups: dict[str, list[record.Run]] = {}
    for each in loaded:
        groups.setdefault(each.short, []).append(each.run)
    return groups


def folders(paths: Iterable[Path]) -> list[Path]:
    """Every run that is meant, once."""
    return list({path.resolve(): path for path in _meant(paths)}.values())


def _meant(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file() or (path / record.NAME).exists():
            yield path
            continue
        inside = held(path)
        if not inside:
            deeper = sorted({each.parent.parent for each in path.glob(f"*/*/{record.NAME}")})
            hint = "; there are runs in " + " and ".join(f"'{each}'" for each in deeper) if deeper else ""
            raise UserError(f"'{path}' holds no run: there is no {record.NAME} in it or in a folder inside it{hint}")
        yield from inside


def _names(found: Sequence[tuple[Path, record.Run]]) -> list[str]:
    """The method, and every other setting in which some of these runs differ."""
    told = []
    for _, run in found:
        each = {key: value for key, value in task.settings(run).items() if not key.startswith(_ASIDE)}
        if digest := run.header.get("model", {}).get("weights_file"):  # files of one name may differ
            each["model.weights"] = f"{each.get('model.weights')} {str(digest)[:8]}"
        if each.get("model.name") == "auto":  # what that was, or a module that was handed over
            network = run.header.get("model", {})
            each["network"] = f"{network.get('name')} of {network.get('parameters')} parameters"
        told.append(each)
    differing = task.differing([each for each in told if each])
    return [
        ", ".join(
            [run.header.get("method") or path.name]
            + [f"{key}={each[key]}" for key in differing if each.get(key) is not None]
        )
        for (path, run), each in zip(found, told, strict=True)
    ]
