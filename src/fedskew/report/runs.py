"""Finding records, and telling runs apart by what differs between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew import names, record
from fedskew.config import RunConfig
from fedskew.errors import UserError
from fedskew.report.comparison import held

#: settings that change neither the method nor its task
_ASIDE = (
    "method", "seed", "data.dir", "engine.name", "engine.workers", "checkpoint.",
    "evaluate.every", "evaluate.clients", "evaluate.target", "evaluate.batch", "evaluate.memorisation",
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """A record, where it was read, and what it is called among the others."""

    path: Path
    run: record.Run
    name: str

    @property
    def config(self) -> dict[str, Any]:
        return self.run.header.get("config", {})

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def clients(self) -> list[str]:
        """What its clients are called."""
        split, sites = self.config.get("partition", {}), self.run.header.get("data", {}).get("sites", ())
        return names.of_clients(split.get("name", ""), split.get("clients", 0), sites)

    @property
    def state(self) -> str:
        """Whether it came to its end, or still goes on."""
        if self.run.end is not None:
            return "finished"
        going = record.has_writer(self.path / record.NAME if self.path.is_dir() else self.path)
        done = sum(line.get("counted") is not False for line in self.run.rounds)
        rounds = f"{done} of {self.config.get('rounds', 'unknown')} rounds"
        return f"{'going, now' if going else 'stopped'} after {rounds}"


def read(paths: Iterable[Path]) -> list[Loaded]:
    """Read run folders, record files, or folders of run folders such as a comparison."""
    found = [(path, record.read(path)) for path in folders(paths)]
    for path, run in found:
        if not run.header and path.is_file() and path.name != record.NAME:
            raise UserError(f"'{path}' is no record: its first line is no header; name a run folder or a {record.NAME}")
    called = _names([run for _, run in found], [path for path, _ in found])
    return [Loaded(path, run, name) for (path, run), name in zip(found, called, strict=True)]


def grouped(loaded: Iterable[Loaded]) -> dict[str, list[record.Run]]:
    """Runs of one name together: they differ in nothing but their seeds."""
    groups: dict[str, list[record.Run]] = {}
    for each in loaded:
        groups.setdefault(each.name, []).append(each.run)
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
            raise UserError(f"'{path}' holds no run: there is no {record.NAME} in it or in a folder inside it")
        yield from inside


def _names(runs: Sequence[record.Run], paths: Sequence[Path]) -> list[str]:
    """The method, and every other setting in which some of these runs differ."""
    today = dict(_flat(RunConfig().model_dump()))  # what older records do not mention was as the default is now
    settings = [today | dict(_flat(config)) if (config := run.header.get("config")) else {} for run in runs]
    for run, each in zip(runs, settings, strict=True):
        if digest := run.header.get("model", {}).get("weights_file"):  # files of one name may differ
            each["model.weights"] = f"{each.get('model.weights')} {str(digest)[:8]}"
    keys = sorted({key for each in settings for key in each if not key.startswith(_ASIDE)})
    differing = [key for key in keys if len({repr(each.get(key)) for each in settings if each}) > 1]
    called = []
    for run, path, each in zip(runs, paths, settings, strict=True):
        extra = [f"{key}={each[key]}" for key in differing if each.get(key) is not None]
        called.append(", ".join([run.header.get("method") or path.name, *extra]))
    return called


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
