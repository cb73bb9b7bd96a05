"""Sites leave a federation, and invitations name versions, without any process."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from fedskew.federation import folders
from fedskew.federation.coordinator import service, training
from fedskew.federation.rules import RULES
from fedskew.federation.transport import project
from tests.commands import complaint, succeed
from tests.federation import made
from tests.federation.test_folders import invitation


@pytest.fixture
def coordinator(tmp_path: Path) -> Path:
    return made.coordinator(tmp_path / "coordinator")


@pytest.fixture
def north(coordinator: Path) -> Path:
    found = made.site(coordinator.with_name("north"), coordinator, "north")
    succeed("federation", "admit", coordinator, "north", found / "key.pub")
    return found


def test_a_removed_site_is_neither_named_nor_let_in(coordinator: Path, north: Path) -> None:
    before = (coordinator / "federation.toml").read_text()
    assert "Sites left: south, east." in succeed("federation", "remove", coordinator, "north")
    after = (coordinator / "federation.toml").read_text()
    assert tomllib.loads(after) == tomllib.loads(before) | {"sites": ["south", "east"]}
    changed = [line for line in after.splitlines() if line not in before.splitlines()]
    assert changed == ['sites = ["south", "east"]']  # comments and all else are as they were
    assert not list((coordinator / "keys").iterdir()) and not (coordinator / "invitations" / "north.zip").exists()
    assert "has no site 'north'" in complaint("federation", "admit", coordinator, "north", north / "key.pub")
    assert "has no site 'north'" in complaint("federation", "remove", coordinator, "north")
    assert training.configure(folders.open_coordinator(coordinator)).partition.clients == 2


def test_sites_on_several_lines_are_changed_too_and_the_last_one_stays(coordinator: Path) -> None:
    path = coordinator / "federation.toml"
    path.write_text(path.read_text().replace('["north", "south", "east"]', '[\n  "north",\n  "south", "east",\n]'))
    for site in ("south", "north"):
        succeed("federation", "remove", coordinator, site)
    assert folders.open_coordinator(coordinator).sites == ("east",)
    assert "'east' is the only site" in complaint("federation", "remove", coordinator, "east")


def test_a_file_that_cannot_be_changed_safely_is_left_alone(coordinator: Path) -> None:
    path = coordinator / "federation.toml"
    path.write_text(path.read_text().replace('["north", "south", "east"]', '["north", "south", "east"] # not [west]'))
    succeed("federation", "remove", coordinator, "south")
    strange = path.read_text().replace("sites =", '"sites" =')
    path.write_text(strange)
    assert "Write sites = [...] yourself" in complaint("federation", "remove", coordinator, "north")
    assert path.read_text() == strange


def test_a_run_keeps_the_sites_that_it_began_with(coordinator: Path) -> None:
    before = folders.open_coordinator(coordinator)
    out = coordinator / "runs" / "old"
    out.mkdir(parents=True)
    (out / RULES).write_text(json.dumps({"names": list(before.sites)}))
    left = service.remove_site(before, "south")
    config = training.configure(left)
    old, new = training.FederatedRun(left, config, "old"), training.FederatedRun(left, config, "new")
    assert (old.sites, old.config.partition.clients) == (("north", "south", "east"), 3)
    assert (new.sites, new.config.partition.clients) == (("north", "east"), 2)


def test_an_invitation_of_another_version_names_both(coordinator: Path, tmp_path: Path) -> None:
    other = "fedskew 0.0.9 with Flower 1.40.0"
    given = invitation(tmp_path / "old.zip", coordinator, digest=f'"{"0" * 64}"', version=f'"{other}"')
    said = complaint("federation", "join", given, tmp_path / "site", "--data", made.table(tmp_path / "d.csv", 0))
    assert f"is for {other}, and here is {project.version()}. Install the coordinator's version" in said
    shady = invitation(
        tmp_path / "shady.zip", coordinator, digest=f'"{"0" * 64}"', version='"fedskew <b>1</b> with Flower 1"'
    )
    said = complaint("federation", "join", shady, tmp_path / "site", "--data", made.table(tmp_path / "d.csv", 0))
    assert "is for another build of fedskew or Flower, and here is" in said
