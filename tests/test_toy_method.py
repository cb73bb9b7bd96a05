"""Adding a method takes one file of at most 40 lines and touches nothing else: the page in CONTRIBUTING does it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from fedskew.methods import registry
from tests.contract import harness

CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"


def worked_example() -> str:
    (code,) = re.findall(r"```python\n(# methods/.*?)```", CONTRIBUTING.read_text(), re.S)
    return code


def test_the_worked_example_is_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = worked_example()
    assert len(code.splitlines()) <= 40
    (tmp_path / "fedhush.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module("fedhush")
        plain = harness.finish(harness.config("fedavg"))
        limit = harness.finish(harness.config("fedhush(weight=0)"))
        loud = harness.finish(harness.config("fedhush(weight=0.5)+avgm", engine="pool", workers=2))
        assert limit.end["weights_sha256"] == plain.end["weights_sha256"]
        assert loud.end["weights_sha256"] != plain.end["weights_sha256"]
        assert loud.best is not None
    finally:
        registry._entries.pop("fedhush", None)
