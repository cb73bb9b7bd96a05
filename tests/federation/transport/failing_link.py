"""A SuperLink that fails at every 6th request and at the 6th of each kind, as one does whose database is locked.

python failing_link.py [flags of fedskew.federation.transport.superlink]
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

from fedskew.federation.transport import superlink

EVERY = 6
flowers = superlink.create_app


class Failing:
    def __init__(self, app: Any) -> None:
        self.app, self.numbers, self.kinds = app, count(1), Counter[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self._fails(scope["path"]):
            print("failed:", scope["path"], flush=True)
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"database is locked"})
        else:
            await self.app(scope, receive, send)

    def _fails(self, path: str) -> bool:
        """However busy the machine is, and so however often which request is made."""
        self.kinds[path] += 1
        return next(self.numbers) % EVERY == 0 or self.kinds[path] == EVERY


if __name__ == "__main__":
    vars(superlink)["create_app"] = lambda *given: Failing(flowers(*given))
    superlink.main()
