"""Time rounds of the pool and of the bare loop in turns, in one run, so that a busy machine slows both."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from fedskew.benchmark.floor import Floor
from fedskew.benchmark.jobs import Job
from fedskew.core import progress
from fedskew.core.errors import required
from fedskew.engines.pool import Pool
from fedskew.experiment.preparation.prepare import prepare
from fedskew.runtime import server
from fedskew.runtime.context import one_thread
from fedskew.runtime.loop import RoundDone, rounds
from fedskew.runtime.store import Store


@dataclass(frozen=True)
class Timings:
    """Seconds of each timed round, and the accuracies at the end; the two make other random draws."""

    floor: list[float]
    pool: list[float]
    accuracies: tuple[float, float]

    @property
    def ratio(self) -> float:
        """The ratio of the medians."""
        return statistics.median(self.pool) / statistics.median(self.floor)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest ratio of a round of each."""
        ratios = [pool / floor for pool, floor in zip(self.pool, self.floor, strict=True)]
        return min(ratios), max(ratios)


def measure(job: Job, repeats: int, data_dir: str | None = None) -> Timings:
    """Time `repeats` rounds of both, evaluation included, after one round to warm up."""
    config, inputs = job.prepare(data_dir)
    times: dict[str, list[float]] = {"floor": [], "pool": []}
    with one_thread():
        context, _, spec = prepare(config, inputs)
        state = server.begin(spec, context.net(spec).initial())
        bare, pool = Floor(context, config, spec), Pool(context, Store())
        try:
            going = rounds(context, pool, state)
            for repeat in range(repeats + 1):
                before = time.perf_counter()
                done = next(event for event in going if isinstance(event, RoundDone))
                model = required(server.model_of(context, done.state), "the model to evaluate")
                ours = pool.score(done.state.spec, model)["accuracy"]
                between = time.perf_counter()
                reached = bare.round(done.asked)
                if repeat:
                    times["pool"].append(between - before)
                    times["floor"].append(time.perf_counter() - between)
                progress.report(f"job {job.id}", repeat + 1, repeats + 1, "turns")
        finally:
            pool.close()
            bare.close()
    return Timings(times["floor"], times["pool"], (reached, ours))
