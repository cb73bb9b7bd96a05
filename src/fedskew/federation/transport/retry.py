"""Repeat a request that a busy SuperLink refused. Nodes and ServerApps do so themselves; see `superlink`."""

from __future__ import annotations

import httpx
from flwr.supercore.retry import RetryInvoker, exponential

BUSY = 503


def when_busy() -> RetryInvoker:
    """Return a policy for a client of Flower's: retry for a minute if the server is busy, and never otherwise."""
    return RetryInvoker(
        lambda: exponential(0.2, max_delay=3),
        httpx.HTTPStatusError,
        max_tries=None,
        max_time=60,
        should_giveup=lambda error: isinstance(error, httpx.HTTPStatusError) and error.response.status_code != BUSY,
    )
