"""A federation over the years, without any process: sites leave, certificates and keys are renewed, copies restored."""

from __future__ import annotations

import io
import json
import shutil
import ssl
import stat
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedskew import run_lock
from fedskew.errors import UserError
from fedskew.federation import backups, certificates, folder, renewal, training
from fedskew.federation import office as offices
from fedskew.flower import project
from fedskew.flower.settings import RULES
from tests.commands import complaint, fedskew, succeed
from tests.federation import made
from tests.federation.test_folders import hands_shaken, invitation


@pytest.fixture
def office(tmp_path: Path) -> Path:
    return made.office(tmp_path / "office")


@pytest.fixture
def north(office: Path) -> Path:
    found = made.site(office.with_name("north"), office, "north")
    succeed("federation", "admit", office, "north", found / "key.pub")
    return found


# ---- sites that leave -----------------------------------------------------------------------------------------------


def test_a_removed_site_is_neither_named_nor_let_in(office: Path, north: Path) -> None:
    before = (office / "federation.toml").read_text()
    assert "Sites left: south, east." in succeed("federation", "remove", office, "north")
    after = (office / "federation.toml").read_text()
    assert tomllib.loads(after) == tomllib.loads(before) | {"sites": ["south", "east"]}
    changed = [line for line in after.splitlines() if line not in before.splitlines()]
    assert changed == ['sites = ["south", "east"]']  # comments and all else are as they were
    assert not list((office / "keys").iterdir()) and not (office / "invitations" / "north.zip").exists()
    assert "has no site 'north'" in complaint("federation", "admit", office, "north", north / "key.pub")
    assert "has no site 'north'" in complaint("federation", "remove", office, "north")
    assert training.configure(folder.coordinator(office)).partition.clients == 2


def test_sites_on_several_lines_are_changed_too_and_the_last_one_stays(office: Path) -> None:
    path = office / "federation.toml"
    path.write_text(path.read_text().replace('["north", "south", "east"]', '[\n  "north",\n  "south", "east",\n]'))
    for site in ("south", "north"):
        succeed("federation", "remove", office, site)
    assert folder.coordinator(office).sites == ("east",)
    assert "'east' is the only site" in complaint("federation", "remove", office, "east")


def test_a_file_that_cannot_be_changed_safely_is_left_alone(office: Path) -> None:
    path = office / "federation.toml"
    path.write_text(path.read_text().replace('["north", "south", "east"]', '["north", "south", "east"] # not [west]'))
    succeed("federation", "remove", office, "south")
    strange = path.read_text().replace("sites =", '"sites" =')
    path.write_text(strange)
    assert "Write sites = [...] anew" in complaint("federation", "remove", office, "north")
    assert path.read_text() == strange


def test_a_run_keeps_the_sites_that_it_began_with(office: Path) -> None:
    before = folder.coordinator(office)
    out = office / "runs" / "old"
    out.mkdir(parents=True)
    (out / RULES).write_text(json.dumps({"names": list(before.sites)}))
    left = offices.remove(before, "south")
    config = training.configure(left)
    old, new = training.Training(left, config, "old"), training.Training(left, config, "new")
    assert (old.sites, old.config.partition.clients) == (("north", "south", "east"), 3)
    assert (new.sites, new.config.partition.clients) == (("north", "east"), 2)


# ---- certificates and keys ------------------------------------------------------------------------------------------


def test_a_new_server_certificate_needs_nothing_of_the_sites(office: Path, north: Path) -> None:
    before = (office / "server.crt").read_bytes(), (office / "server.key").read_bytes()
    assert "sites need nothing" in succeed("federation", "renew", office)
    after = (office / "server.crt").read_bytes(), (office / "server.key").read_bytes()
    assert before[0] != after[0] and before[1] != after[1]
    assert stat.S_IMODE((office / "server.key").stat().st_mode) == 0o600
    hands_shaken(office, north / "ca.crt", "127.0.0.1")


def test_the_authority_is_renewed_with_an_overlap(office: Path, north: Path) -> None:
    old = (office / "ca.crt").read_bytes()
    shown = succeed("federation", "renew", office, "--authority")
    assert "fedskew federation renew DIR --invitation NAME.zip" in shown
    assert (office / "ca.crt").read_bytes() == old
    assert "a renewal of the authority has begun" in complaint("federation", "renew", office, "--authority")
    # During the overlap the server has its old certificate, which sites with and without the new authority believe.
    south = made.site(office.with_name("south"), office, "south")
    for site in (north, south):
        hands_shaken(office, site / "ca.crt", "127.0.0.1")
    succeed("federation", "renew", north, "--invitation", office / "invitations" / "north.zip")
    hands_shaken(office, north / "ca.crt", "127.0.0.1")
    succeed("federation", "renew", office, "--authority", "--finish")
    assert (office / "ca.crt").read_bytes() != old and not list(office.glob("ca.next*"))
    for site in (north, south):
        hands_shaken(office, site / "ca.crt", "127.0.0.1")
    (north / "ca.crt").write_bytes(old)  # as if it had missed the overlap
    with pytest.raises(ssl.SSLCertVerificationError):
        hands_shaken(office, north / "ca.crt", "127.0.0.1")
    # The old authority is dropped where the invitation no longer has it.
    succeed("federation", "renew", south, "--invitation", office / "invitations" / "south.zip")
    assert (south / "ca.crt").read_bytes() == (office / "ca.crt").read_bytes()
    assert "has no new authority to finish with" in complaint("federation", "renew", office, "--authority", "--finish")


def test_a_renewal_cut_short_is_finished_by_the_same_command(office: Path) -> None:
    succeed("federation", "renew", office, "--authority")
    (office / "ca.next.key").replace(office / "ca.key")  # killed after its first step
    succeed("federation", "renew", office, "--authority", "--finish")
    hands_shaken(office, office / "ca.crt", "localhost")


def test_a_site_takes_no_authority_that_its_own_did_not_sign(office: Path, north: Path, tmp_path: Path) -> None:
    before = (north / "ca.crt").read_bytes()
    other = made.office(tmp_path / "other")
    stranger = other / "invitations" / "north.zip"
    assert "did not sign" in complaint("federation", "renew", north, "--invitation", stranger)
    # The old authority beside a stranger's, with a signature of the stranger's own
    succeed("federation", "renew", other, "--authority")
    forged = tmp_path / "forged.zip"
    with zipfile.ZipFile(stranger) as theirs, zipfile.ZipFile(forged, "w") as ours:
        for name in theirs.namelist():
            ours.writestr(name, before + theirs.read(name) if name == "ca.crt" else theirs.read(name))
    assert "did not sign" in complaint("federation", "renew", north, "--invitation", forged)
    foreign = office / "invitations" / "south.zip"
    assert "is for site 'south' of 'lungs', and this is 'north'" in complaint(
        "federation", "renew", north, "--invitation", foreign
    )
    assert (north / "ca.crt").read_bytes() == before


def test_a_sites_new_key_is_admitted_in_place_of_the_old_one(office: Path, north: Path) -> None:
    old = (north / "key.pub").read_text()
    (north / "memory" / "kept").write_text("precious")
    made.approve(north)
    public = succeed("federation", "renew", north).strip()
    assert public == (north / "key.pub").read_text().strip() != old.strip()
    assert (north / "key.old.pub").exists() is False and (north / "key.pub.old").read_text() == old
    assert {stat.S_IMODE((north / name).stat().st_mode) for name in ("key", "key.old")} == {0o600}
    assert "has another key already" in complaint("federation", "admit", office, "north", north / "key.pub")
    succeed("federation", "admit", office, "north", north / "key.pub", "--replace")
    assert (office / "keys" / "north.pub").read_text().strip() == public
    assert (north / "memory" / "kept").read_text() == "precious"
    assert "The chain holds" in succeed("federation", "log", north)
    assert [each["state"] for each in json.loads(succeed("federation", "approve", north, "--json"))] == ["in force"]


def test_options_of_the_other_end_are_one_sentence(office: Path, north: Path) -> None:
    assert "--finish is for the authority" in complaint("federation", "renew", office, "--finish")
    assert "is a site's" in complaint("federation", "renew", north, "--authority")
    assert "is the coordinator's" in complaint("federation", "renew", office, "--invitation", office / "x.zip")


def test_status_warns_of_certificates_that_end_within_a_month(office: Path, north: Path) -> None:
    assert json.loads(succeed("federation", "status", office, "--json"))["warnings"] == []
    certificates.make_server(office, ["localhost"], days=20)
    told = fedskew("federation", "status", office)
    assert (
        told.exit_code == 0
        and f"server.crt' expires in 19 days. Type 'fedskew federation renew {office}'" in told.stderr
    )
    certificates.make_authority(north, "lungs", days=-2 + 1)
    (warning,) = json.loads(succeed("federation", "status", north, "--json"))["warnings"]
    assert "ca.crt' has expired. Ask the coordinator for a new invitation" in warning
    assert "ca.crt' has expired" in fedskew("federation", "status", north).stderr


# ---- versions -------------------------------------------------------------------------------------------------------


def test_an_invitation_of_another_version_names_both(office: Path, tmp_path: Path) -> None:
    theirs = "fedskew 0.0.9 with Flower 1.40.0"
    given = invitation(tmp_path / "old.zip", office, digest=f'"{"0" * 64}"', version=f'"{theirs}"')
    said = complaint("federation", "join", given, tmp_path / "site", "--data", made.table(tmp_path / "d.csv", 0))
    assert f"is for {theirs}, and here is {project.version()}. Install the coordinator's version" in said
    shady = invitation(
        tmp_path / "shady.zip", office, digest=f'"{"0" * 64}"', version='"fedskew <b>1</b> with Flower 1"'
    )
    said = complaint("federation", "join", shady, tmp_path / "site", "--data", made.table(tmp_path / "d.csv", 0))
    assert "is for another build of fedskew or Flower, and here is" in said


# ---- copies ---------------------------------------------------------------------------------------------------------


def content(at: Path) -> dict[str, bytes]:
    return {str(path.relative_to(at)): path.read_bytes() for path in sorted(at.rglob("*")) if path.is_file()}


def test_a_folder_is_restored_as_it_was_for_its_owner_alone(office: Path, north: Path, tmp_path: Path) -> None:
    words = ("--dataset", "digits", "--clients", "2", "--rounds", "1", "--engine", "inline")
    succeed("run", *words, "--out", office / "runs" / "a")
    for at in (office, north):
        (at / "flower").mkdir(exist_ok=True)
        (at / "flower" / "state.db").write_text("Flower's own")
        file = tmp_path / f"{at.name}.tar.gz"
        succeed("federation", "backup", at, file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        again = tmp_path / "again" / at.name
        again.parent.mkdir(exist_ok=True)
        succeed("federation", "restore", file, again)
        left_out = {"flower/state.db", "allowed.txt", *(f"invitations/{name}.zip" for name in made.SITES)}
        assert content(again) == {name: each for name, each in content(at).items() if name not in left_out}
        modes = {stat.S_IMODE(path.stat().st_mode) for path in [again, *again.rglob("*")]}
        assert modes == {0o600, 0o700}
    (run,) = training.standings(folder.coordinator(tmp_path / "again" / "office"))
    assert (run.state, run.rounds) == ("finished", 1)
    offices.furnish(folder.coordinator(tmp_path / "again" / "office"))
    assert "exists; choose another name" in complaint("federation", "backup", office, tmp_path / "office.tar.gz")
    assert "exists and is not empty" in complaint("federation", "restore", tmp_path / "office.tar.gz", office)


def test_a_folder_in_which_a_run_is_going_is_not_copied(office: Path, tmp_path: Path) -> None:
    with run_lock.held(office / "runs" / "a"):
        said = complaint("federation", "backup", office, tmp_path / "x.tar.gz")
        assert "run 'a' is going on. Wait until it has ended, or stop it" in said
    assert not (tmp_path / "x.tar.gz").exists()
    succeed("federation", "backup", office, tmp_path / "x.tar.gz")


def test_a_link_is_not_followed(office: Path, tmp_path: Path) -> None:
    (office / "keys" / "x").symlink_to("/etc/passwd")
    assert "is neither a file nor a folder" in complaint("federation", "backup", office, tmp_path / "x.tar.gz")
    assert not (tmp_path / "x.tar.gz").exists()


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for info, data in members:
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "keys/../../x"])
def test_a_copy_that_would_write_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    given = archive(tmp_path / "x.tar.gz", (tarfile.TarInfo(name), b"mine"))
    assert "which no backup of a federation does" in complaint(
        "federation", "restore", given, tmp_path / "in" / "office"
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) in (["in", "x.tar.gz"], ["x.tar.gz"])


def test_a_copy_with_links_or_of_something_else_is_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("runs")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    given = archive(tmp_path / "link.tar.gz", (link, b""))
    assert "which no backup of a federation does" in complaint("federation", "restore", given, tmp_path / "office")
    given = archive(tmp_path / "other.tar.gz", (tarfile.TarInfo("x"), b"mine"))
    assert "is no folder of a federation" in complaint("federation", "restore", given, tmp_path / "office")
    assert "cannot be restored" in complaint("federation", "restore", tmp_path / "none", tmp_path / "office")
    assert not (tmp_path / "office").exists() and not (tmp_path / "office.restoring").exists()


def test_a_damaged_copy_is_refused_whatever_byte_it_is(office: Path, tmp_path: Path) -> None:
    """Bytes of the head of a gzip file (time, system, name) mean nothing, so the first ones are left out."""
    file = tmp_path / "x.tar.gz"
    backups.write(folder.coordinator(office), file)
    whole = file.read_bytes()
    head = whole.index(b"\0", 10) + 1
    for place in range(head, len(whole), max(1, (len(whole) - head) // 60)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError, match="is no backup, or it is damaged"):
            backups.read(file, tmp_path / "again")
        assert not (tmp_path / "again").exists()
    file.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="is no backup, or it is damaged"):
        backups.read(file, tmp_path / "again")
    shutil.rmtree(tmp_path / "again", ignore_errors=True)
    file.write_bytes(whole)
    assert backups.read(file, tmp_path / "again").folder.name == "again"


def test_warnings_are_none_for_a_folder_without_a_server_certificate(office: Path) -> None:
    (office / "server.crt").unlink()
    assert renewal.warnings(folder.coordinator(office), "office") == []
