"""One framework's process: do a round of a job whenever `compare.py` says so.

python benchmarks/peers/side.py FRAMEWORK JOB ROUNDS ADDRESS
"""

from __future__ import annotations

import importlib
import os
import sys
from multiprocessing.connection import Client


def main() -> None:
    framework, name, rounds, address = sys.argv[1:]
    # of several processes, the first one talks
    pipe = Client(address) if os.environ.get("RANK", "0") == "0" else None
    importlib.import_module(f"with_{framework}").run(name, int(rounds), pipe)


if __name__ == "__main__":
    main()
