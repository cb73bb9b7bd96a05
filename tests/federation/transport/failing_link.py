"""A SuperLink that fails now and then, as one does whose database is locked.

python failing_link.py [flags of fedskew.flower.link]
"""

from __future__ import annotations

from itertools import count
from typing import Any

from fedskew.flower import link

EVERY = 6
flowers = link.create_app


class Failing:
    def __init__(self, app: Any) -> None:
        self.app, self.numbers = app, count(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and next(self.numbers) % EVERY == 0:
            print("failed:", scope["path"], flush=True)
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b"database is locked"})
        else:
            await self.app(scope, receive, send)


if __name__ == "__main__":
    vars(link)["create_app"] = lambda *given: Failing(flowers(*given))
    link.main()
