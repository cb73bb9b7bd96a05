"""Every message as bytes, every object rebuilt from them: what runs here runs across any network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedskew import codec
from fedskew.engines.inline import Inline
from fedskew.types import Broadcast, Update
from fedskew.work.client import visit
from fedskew.work.gather import Gathered, blocks, lift
from fedskew.work.site import Site
from fedskew.work.store import Store


class Wire(Inline):
    """Asks clients that know nothing but bytes; a client's site is made anew for each message by `rebuild`."""

    def __init__(self, site: Site, store: Store, rebuild: Callable[[], Site]) -> None:
        super().__init__(site, store)
        self.rebuild = rebuild

    def ask(self, sent: Sequence[Broadcast]) -> Gathered:
        gathered = Gathered()
        for block in blocks(sent):
            said = Gathered()
            for each in block:
                reply, keep = _remote(self.rebuild(), codec.to_bytes(each), codec.to_bytes(self.store.get(each.client)))
                update = codec.from_bytes(reply)
                assert isinstance(update, Update)
                if each.entry is None and update.steps == 0:
                    continue
                self.store.put(each.client, codec.from_bytes(keep))
                if self.site.loses(each):
                    continue
                said.updates.append(update if each.entry is not None else lift(self.site.plan, update, each, said.sums))
            gathered.absorb(said)
        return gathered


def _remote(site: Site, sent: bytes, keep: bytes) -> tuple[bytes, bytes]:
    """A client at the far end of a wire."""
    update, kept = visit(site, codec.from_bytes(sent), codec.from_bytes(keep))
    return codec.to_bytes(update), codec.to_bytes(kept)
