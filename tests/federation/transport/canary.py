"""A stranger's app: it leaves a file wherever it is imported, and again where its parts are called."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

SEEN = Path(os.environ["CANARY"])


def sing(what: str) -> None:
    descriptor, _ = tempfile.mkstemp(prefix=f"{what}-", dir=SEEN)
    os.close(descriptor)


sing("imported")
app = ClientApp()
server = ServerApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    sing("client")
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    sing("server")
    questions = [Message(RecordDict({"head": ConfigRecord({})}), node, "query") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(questions, timeout=120):
        sing(f"error{reply.error.code}" if reply.has_error() else "answered")
