"""fedskew's pool; no evaluation."""

from __future__ import annotations

from multiprocessing.connection import Connection

import job as jobs

from fedskew.engines.pool import Pool
from fedskew.runtime import server
from fedskew.runtime.context import one_thread
from fedskew.runtime.loop import RoundDone, rounds
from fedskew.runtime.store import Store


def run(name: str, count: int, pipe: Connection) -> None:
    """Run `count` rounds; the clients are drawn here."""
    job = jobs.load(name)
    site = job.site
    with one_thread():
        pool = Pool(site, Store())
        going = rounds(site, pool, server.begin(job.spec, site.net(job.spec).initial()))
        for _ in range(count):
            pipe.recv()
            event = next(going)
            assert isinstance(event, RoundDone)
            model = server.model_of(site, event.state)
            pipe.send((event.asked, sum(t.numel() for t in model.values()), *job.counter.take()))
        pool.close()
