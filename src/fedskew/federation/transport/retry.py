"""Ask again where a SuperLink is busy: see `fedskew.flower.link`. Nodes and ServerApps do that by themselves."""

from __future__ import annotations

import httpx
from flwr.supercore.retry import RetryInvoker, exponential

BUSY = 503


def when_busy() -> RetryInvoker:
    """For a client of Flower's: a minute of patience, and none with other refusals."""
    return RetryInvoker(
        lambda: exponential(0.2, max_delay=3),
        httpx.HTTPStatusError,
        max_tries=None,
        max_time=60,
        should_giveup=lambda error: isinstance(error, httpx.HTTPStatusError) and error.response.status_code != BUSY,
    )
