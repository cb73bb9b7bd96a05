"""Adding a method takes one file of at most 40 lines and touches nothing else: the page in CONTRIBUTING does it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.contract import harness

from fedskew.methods import registry

CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"


def worked_example() -> str:
    (code,) = re.findall(r"```python\n(# methods/.*?)```", CONTRIBUTING.read_text(), re.S)
    return code


def test_the_worked_example_is_a_method() -> None:
    code = worked_example()
    assert len(code.splitlines()) <= 40
    try:
        exec(compile(code, "example", "exec"), {"__name__": "example"})
        plain = harness.finish(harness.config("fedavg"))
        limit = harness.finish(harness.config("fedhush(weight=0)"))
        loud = harness.finish(harness.config("fedhush(weight=0.5)+avgm", engine="pool", workers=2))
        assert limit.end["weights_sha256"] == plain.end["weights_sha256"]
        assert loud.end["weights_sha256"] != plain.end["weights_sha256"]
        assert loud.best is not None
    finally:
        registry._entries.pop("fedhush", None)
