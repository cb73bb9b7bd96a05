"""Certificates and keys are renewed, without any process."""

from __future__ import annotations

import json
import ssl
import stat
import zipfile
from pathlib import Path

import pytest

from fedskew.federation import folders
from fedskew.federation.security import certificates, renewal
from tests.commands import complaint, fedskew, succeed
from tests.federation import made
from tests.federation.test_folders import hands_shaken


@pytest.fixture
def coordinator(tmp_path: Path) -> Path:
    return made.coordinator(tmp_path / "coordinator")


@pytest.fixture
def north(coordinator: Path) -> Path:
    found = made.site(coordinator.with_name("north"), coordinator, "north")
    succeed("federation", "admit", coordinator, "north", found / "key.pub")
    return found


def test_a_new_server_certificate_needs_nothing_of_the_sites(coordinator: Path, north: Path) -> None:
    before = (coordinator / "server.crt").read_bytes(), (coordinator / "server.key").read_bytes()
    assert "sites need nothing" in succeed("federation", "renew", coordinator)
    after = (coordinator / "server.crt").read_bytes(), (coordinator / "server.key").read_bytes()
    assert before[0] != after[0] and before[1] != after[1]
    assert stat.S_IMODE((coordinator / "server.key").stat().st_mode) == 0o600
    hands_shaken(coordinator, north / "ca.crt", "127.0.0.1")


def test_the_authority_is_renewed_with_an_overlap(coordinator: Path, north: Path) -> None:
    old = (coordinator / "ca.crt").read_bytes()
    shown = succeed("federation", "renew", coordinator, "--authority")
    assert "fedskew federation renew DIR --invitation NAME.zip" in shown
    assert (coordinator / "ca.crt").read_bytes() == old
    assert "a renewal of the authority has begun" in complaint("federation", "renew", coordinator, "--authority")
    # During the overlap the server has its old certificate, which sites with and without the new authority believe.
    south = made.site(coordinator.with_name("south"), coordinator, "south")
    for site in (north, south):
        hands_shaken(coordinator, site / "ca.crt", "127.0.0.1")
    succeed("federation", "renew", north, "--invitation", coordinator / "invitations" / "north.zip")
    hands_shaken(coordinator, north / "ca.crt", "127.0.0.1")
    succeed("federation", "renew", coordinator, "--authority", "--finish")
    assert (coordinator / "ca.crt").read_bytes() != old and not list(coordinator.glob("ca.next*"))
    for site in (north, south):
        hands_shaken(coordinator, site / "ca.crt", "127.0.0.1")
    (north / "ca.crt").write_bytes(old)  # as if it had missed the overlap
    with pytest.raises(ssl.SSLCertVerificationError):
        hands_shaken(coordinator, north / "ca.crt", "127.0.0.1")
    # The old authority is dropped where the invitation no longer has it.
    succeed("federation", "renew", south, "--invitation", coordinator / "invitations" / "south.zip")
    assert (south / "ca.crt").read_bytes() == (coordinator / "ca.crt").read_bytes()
    assert "has no new authority" in complaint("federation", "renew", coordinator, "--authority", "--finish")


def test_a_renewal_cut_short_is_finished_by_the_same_command(coordinator: Path) -> None:
    succeed("federation", "renew", coordinator, "--authority")
    (coordinator / "ca.next.key").replace(coordinator / "ca.key")  # killed after its first step
    succeed("federation", "renew", coordinator, "--authority", "--finish")
    hands_shaken(coordinator, coordinator / "ca.crt", "localhost")


def test_a_site_takes_no_authority_that_its_own_did_not_sign(coordinator: Path, north: Path, tmp_path: Path) -> None:
    before = (north / "ca.crt").read_bytes()
    other = made.coordinator(tmp_path / "other")
    stranger = other / "invitations" / "north.zip"
    assert "did not sign" in complaint("federation", "renew", north, "--invitation", stranger)
    # The old authority beside a stranger's, with a signature of the stranger's own
    succeed("federation", "renew", other, "--authority")
    forged = tmp_path / "forged.zip"
    with zipfile.ZipFile(stranger) as server, zipfile.ZipFile(forged, "w") as ours:
        for name in server.namelist():
            ours.writestr(name, before + server.read(name) if name == "ca.crt" else server.read(name))
    assert "did not sign" in complaint("federation", "renew", north, "--invitation", forged)
    foreign = coordinator / "invitations" / "south.zip"
    assert "is for site 'south' of 'lungs', but this is 'north'" in complaint(
        "federation", "renew", north, "--invitation", foreign
    )
    assert (north / "ca.crt").read_bytes() == before


def test_a_sites_new_key_is_admitted_in_place_of_the_old_one(coordinator: Path, north: Path) -> None:
    old = (north / "key.pub").read_text()
    (north / "memory" / "kept").write_text("precious")
    made.approve(north)
    public = succeed("federation", "renew", north).strip()
    assert public == (north / "key.pub").read_text().strip() != old.strip()
    assert (north / "key.old.pub").exists() is False and (north / "key.pub.old").read_text() == old
    assert {stat.S_IMODE((north / name).stat().st_mode) for name in ("key", "key.old")} == {0o600}
    assert "already has another key" in complaint("federation", "admit", coordinator, "north", north / "key.pub")
    succeed("federation", "admit", coordinator, "north", north / "key.pub", "--replace")
    assert (coordinator / "keys" / "north.pub").read_text().strip() == public
    assert (north / "memory" / "kept").read_text() == "precious"
    assert "The log is intact" in succeed("federation", "log", north)
    assert [each["state"] for each in json.loads(succeed("federation", "approve", north, "--json"))] == ["in force"]


def test_options_of_the_other_end_are_one_sentence(coordinator: Path, north: Path) -> None:
    assert "--finish applies to the authority" in complaint("federation", "renew", coordinator, "--finish")
    assert "is a site's" in complaint("federation", "renew", north, "--authority")
    assert "is the coordinator's" in complaint(
        "federation", "renew", coordinator, "--invitation", coordinator / "x.zip"
    )


def test_status_warns_of_certificates_that_end_within_a_month(coordinator: Path, north: Path) -> None:
    assert json.loads(succeed("federation", "status", coordinator, "--json"))["warnings"] == []
    certificates.make_server(coordinator, ["localhost"], days=20)
    warned = fedskew("federation", "status", coordinator)
    assert (
        warned.exit_code == 0
        and f"server.crt' expires in 19 days. Type 'fedskew federation renew {coordinator}'" in warned.stderr
    )
    certificates.make_authority(north, "lungs", days=-2 + 1)
    (warning,) = json.loads(succeed("federation", "status", north, "--json"))["warnings"]
    assert "ca.crt' has expired. Ask the coordinator for a new invitation" in warning
    assert "ca.crt' has expired" in fedskew("federation", "status", north).stderr


def test_warnings_are_none_for_a_folder_without_a_server_certificate(coordinator: Path) -> None:
    (coordinator / "server.crt").unlink()
    assert renewal.warnings(folders.open_coordinator(coordinator), "coordinator") == []
