from __future__ import annotations

import json

import torch

from tests.commands import succeed


def test_the_doctor_answers_in_one_screen() -> None:
    lines = succeed("doctor").splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 110
    text = "\n".join(lines)
    assert torch.__version__ in text and "same bits twice" in text
    if not torch.cuda.is_available():
        assert lines[-1] == "No GPU is visible. fedskew trains on the CPU."


def test_the_doctor_in_json() -> None:
    found = json.loads(succeed("doctor", "--json"))
    assert found["well"] and found["devices"][0]["device"] == "cpu" and found["devices"][0]["same_bits"]
    assert set(found["extras"]) == {"flower", "ray", "privacy", "track", "data", "pandas", "onnx"}
