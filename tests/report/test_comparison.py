from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedskew.core import atomic_io
from fedskew.core.errors import UserError
from fedskew.report import comparison, tables
from tests.report import fakes


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("fedavg", "fedavg-seed3"),
        ("fedprox(mu=0.5)", "fedprox-mu=0.5-seed3"),
        ("fedlmd(beta=2, tau=3)+prox", "fedlmd-beta=2-tau=3-+prox-seed3"),
        ("../x/y", "..-x-y-seed3"),
    ],
)
def test_names_of_folders_need_no_quotes(method: str, name: str) -> None:
    assert comparison.run_name(method, 3) == name


def test_it_leaves_a_table_for_programs_one_for_people_and_a_picture(tmp_path: Path) -> None:
    groups = {"fedavg": [fakes.run([0.25, 0.5], client_vacant=0.1)]}
    comparison.write(tmp_path / "new", groups, tables.comparison(groups))
    stored = json.loads((tmp_path / "new" / "comparison.json").read_text())
    assert stored["target"] == 0.5
    assert stored["rows"][0]["best"] == 0.5
    assert stored["runs"][0]["folder"] == "fedavg-seed0"
    assert (tmp_path / "new" / "comparison.md").read_text().startswith("| method |")
    assert (tmp_path / "new" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .* Choose another place"):
        atomic_io.save(tmp_path / "file" / "x.md", "text")
