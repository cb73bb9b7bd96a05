"""Every message as bytes, every object rebuilt from them: what runs here runs across any network."""

from __future__ import annotations

from collections.abc import Callable

from fedskew import codec
from fedskew.engines.inline import Inline
from fedskew.types import Broadcast, Keep, Update
from fedskew.work.client import visit
from fedskew.work.site import Site
from fedskew.work.store import Store


class Wire(Inline):
    """Asks clients that know nothing but bytes; a client's site is made anew for each message by `rebuild`."""

    def __init__(self, site: Site, store: Store, rebuild: Callable[[], Site]) -> None:
        super().__init__(site, store)
        self.rebuild = rebuild

    def visit(self, site: Site, sent: Broadcast, keep: Keep) -> tuple[Update, Keep]:
        del site
        update, kept = _remote(self.rebuild(), codec.to_bytes(sent), codec.to_bytes(keep))
        return codec.from_bytes(update), codec.from_bytes(kept)


def _remote(site: Site, sent: bytes, keep: bytes) -> tuple[bytes, bytes]:
    """A client at the far end of a wire."""
    update, kept = visit(site, codec.from_bytes(sent), codec.from_bytes(keep))
    return codec.to_bytes(update), codec.to_bytes(kept)
