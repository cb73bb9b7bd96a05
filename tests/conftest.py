from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

# The same examples every time, and no deadline: a loaded machine must not fail a test.
settings.register_profile("fedskew", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("fedskew")


# Threads of torch and numpy beside the workers of pytest-xdist wait for a core and for each other. Runs train with one
# thread in any case, and tests/parity asks for two.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# pytest-xdist gives its workers a terminal's width, and they have no terminal.
os.environ.pop("COLUMNS", None)

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws without a seed does not depend on the tests that its worker had before."""
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder ../shared/data beside the repository")
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images of tests are not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSKEW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
