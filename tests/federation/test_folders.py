"""What init, join and admit lay down, without any process; and one sentence for every mistake."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import ssl
import stat
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedskew.core.errors import UserError
from fedskew.federation import folders
from fedskew.federation.coordinator import service
from fedskew.federation.folders import Address
from fedskew.federation.security import certificates
from fedskew.federation.transport import project
from tests.commands import complaint, fedskew, succeed
from tests.federation import made


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.coordinator(tmp_path_factory.mktemp("federation") / "coordinator")


@pytest.fixture(scope="module")
def north(coordinator: Path) -> Path:
    return made.site(coordinator.with_name("north"), coordinator, "north")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def hands_shaken(coordinator: Path, ca: Path, host: str) -> None:
    """A TLS handshake in memory: the server's half with its certificate, the client's with a CA and a name."""
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(coordinator / certificates.SERVER, coordinator / certificates.SERVER_KEY)
    client_context = ssl.create_default_context(cafile=str(ca))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(down, up, server_hostname=host)
    server = server_context.wrap_bio(up, down, server_side=True)
    for half in (client, server, client, server):
        try:
            half.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.getpeercert()


def test_only_its_owner_looks_into_the_coordinators_folder(coordinator: Path) -> None:
    assert mode(coordinator) == 0o700
    assert {mode(coordinator / name) for name in ("ca.key", "server.key", "executor.secret")} == {0o600}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_servers_certificate_holds_before_its_own_ca(coordinator: Path, host: str) -> None:
    hands_shaken(coordinator, coordinator / "ca.crt", host)


def test_it_holds_neither_before_another_ca_nor_for_another_name(coordinator: Path, tmp_path: Path) -> None:
    other = made.coordinator(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"signature failure|unable to get|self-signed"):
        hands_shaken(coordinator, other / "ca.crt", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'fl\.example\.org'"):
        hands_shaken(coordinator, coordinator / "ca.crt", "fl.example.org")


def test_a_host_name_is_in_the_certificate_and_it_lasts_ten_years(tmp_path: Path) -> None:
    coordinator = made.coordinator(tmp_path / "coordinator", "fl.example.org:443")
    assert certificates.names_of_server(coordinator) == {"fl.example.org", "localhost", "127.0.0.1"}
    hands_shaken(coordinator, coordinator / "ca.crt", "fl.example.org")
    for name in ("ca.crt", "server.crt"):
        certificate = x509.load_pem_x509_certificate((coordinator / name).read_bytes())
        assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3650 + 1


def test_an_invitation_holds_nobodys_private_key(coordinator: Path) -> None:
    for number, name in enumerate(made.SITES):
        with zipfile.ZipFile(coordinator / "invitations" / f"{name}.zip") as archive:
            content = {each: archive.read(each) for each in archive.namelist()}
        assert content.keys() == {"ca.crt", "site.toml", "README.md"}
        everything = b"".join(content.values())
        assert b"PRIVATE" not in everything
        for secret in ("ca.key", "server.key", "executor.secret"):
            assert (coordinator / secret).read_bytes() not in everything
        said = tomllib.loads(content["site.toml"].decode())
        assert (said["name"], said["number"], said["address"]) == (name, number, "127.0.0.1:9092")
        assert said["digest"] == project.digest() and said["data"] == {"classes": made.CLASSES}
        assert f"join {name}.zip".encode() in content["README.md"]


def invited(coordinator: Path, site: str) -> dict[str, Any]:
    """What a site's invitation says."""
    with zipfile.ZipFile(coordinator / "invitations" / f"{site}.zip") as archive:
        return tomllib.loads(archive.read("site.toml").decode())


def changed(coordinator: Path, line: str, other: str) -> folders.CoordinatorFolder:
    """The coordinator's folder after a change in its file."""
    path = coordinator / "federation.toml"
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, other))
    return folders.open_coordinator(coordinator)


def test_a_new_site_is_invited_without_touching_the_others(tmp_path: Path) -> None:
    coordinator = made.coordinator(tmp_path / "coordinator")
    before = (coordinator / "invitations" / "east.zip").read_bytes()
    assert service.write_invitations(changed(coordinator, '"east"]', '"east", "west"]')) == ["west"]
    assert (coordinator / "invitations" / "east.zip").read_bytes() == before
    west = invited(coordinator, "west")
    assert (west["name"], west["number"], west["data"]) == ("west", 3, {"classes": made.CLASSES})


def test_invitations_say_what_the_file_says_by_now(tmp_path: Path) -> None:
    """Nothing else in them changes: they hold the same certificate."""
    coordinator = made.coordinator(tmp_path / "coordinator")
    assert service.write_invitations(folders.open_coordinator(coordinator)) == []
    assert service.write_invitations(changed(coordinator, "# size = ", "size = ")) == list(made.SITES)
    assert invited(coordinator, "south")["data"] == {"classes": made.CLASSES, "size": "64x64"}
    with zipfile.ZipFile(coordinator / "invitations" / "south.zip") as archive:
        assert archive.read("ca.crt") == (coordinator / "ca.crt").read_bytes()
    wrong = changed(coordinator, made.CLASSES, "benign")
    with pytest.raises(UserError, match=r"federation.toml': training.data.options.classes is 'benign'. Give"):
        service.write_invitations(wrong)


def test_start_says_which_invitations_it_wrote_anew(tmp_path: Path) -> None:
    """It says so even where it cannot listen: at an address that no machine has."""
    coordinator = made.coordinator(tmp_path / "coordinator")
    changed(coordinator, 'listen = "127.0.0.1"', 'listen = "192.0.2.1"')
    changed(coordinator, "# size = ", "size = ")
    started = fedskew("federation", "start", coordinator, "--foreground")
    assert started.exit_code == 2 and "the server cannot listen at 192.0.2.1:9092" in started.stderr
    for site, line in zip(made.SITES, started.stdout.splitlines(), strict=True):
        assert line.startswith(f"Updated the invitation of '{site}'") and f"{site}.zip. Send it if" in line


def test_what_a_backup_lacks_is_made_again(tmp_path: Path) -> None:
    """The server's certificate, the executor's secret and the invitations."""
    coordinator = made.coordinator(tmp_path / "coordinator")
    for name in ("server.key", "executor.secret"):
        (coordinator / name).unlink()
    shutil.rmtree(coordinator / "invitations")
    service.make_missing_files(folders.open_coordinator(coordinator))
    assert {mode(coordinator / name) for name in ("server.key", "executor.secret")} == {0o600}
    hands_shaken(coordinator, coordinator / "ca.crt", "localhost")
    assert {path.stem for path in (coordinator / "invitations").iterdir()} == set(made.SITES)


def test_only_the_app_of_the_version_that_is_installed_is_let_in(tmp_path: Path) -> None:
    for digest in ("1" * 64, "2" * 64):
        folders.write_allow_list(tmp_path, digest)
    assert [line for line in (tmp_path / "allowed.txt").read_text().splitlines() if line[0] != "#"] == ["2" * 64]


def test_a_site_makes_its_own_key_and_lists_the_one_app_it_runs(north: Path) -> None:
    assert (mode(north), mode(north / "key"), mode(north / "memory")) == (0o700, 0o600, 0o700)
    private = serialization.load_ssh_private_key((north / "key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name == "secp384r1"
    words = (north / "key.pub").read_text().split()
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert " ".join(words[:2]) == public.decode() and words[2] == "north"
    listed = [line for line in (north / "allowed.txt").read_text().splitlines() if not line.startswith("#")]
    assert listed == [project.digest()]
    assert folders.open_site(north).data == str(north.with_suffix(".csv").resolve())


def test_what_join_prints_is_the_public_key(coordinator: Path, tmp_path: Path) -> None:
    data = made.table(tmp_path / "data.csv", 1)
    out = succeed("federation", "join", coordinator / "invitations" / "south.zip", tmp_path / "south", "--data", data)
    assert out.strip() == (tmp_path / "south" / "key.pub").read_text().strip()


def test_admitting_keeps_the_key_and_another_one_replaces_it_only_on_request(coordinator: Path, north: Path) -> None:
    key = (north / "key.pub").read_text()
    shown = succeed("federation", "admit", coordinator, "north", north / "key.pub")
    assert certificates.fingerprint(key) in shown
    assert succeed("federation", "admit", coordinator, "north", key) == shown  # the text itself, and twice
    kept = coordinator / "keys" / "north.pub"
    assert kept.read_text() == key
    certificates.make_site_key(north, "north")
    again = ("federation", "admit", coordinator, "north", north / "key.pub")
    assert f"site 'north' already has another key, {certificates.fingerprint(key)}" in complaint(*again)
    assert kept.read_text() == key
    succeed(*again, "--replace")
    assert kept.read_text() == (north / "key.pub").read_text() != key
    assert "this is the key of site 'north'" in complaint(
        "federation", "admit", coordinator, "south", north / "key.pub"
    )


def test_a_key_of_the_wrong_kind_is_one_sentence(coordinator: Path, north: Path) -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    text = other.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    for given, sentence in (
        ("nonsense", "'nonsense' is neither a public key nor a file with one"),
        ((north / "key.pub").read_text()[:60], "is neither a public key nor a file"),
        (text, "of type 'ssh-ed25519'. Use the one of type ecdsa-sha2-nistp384"),
        (north / "key", "is a private key, which must never leave its site"),
    ):
        assert sentence in complaint("federation", "admit", coordinator, "south", given)
    assert "has no site 'sout'. Did you mean 'south'?" in complaint(
        "federation", "admit", coordinator, "sout", north / "key.pub"
    )
    assert not (coordinator / "keys" / "south.pub").exists()


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"--name": "Lungs & Co"}, "name 'Lungs & Co' is not allowed. Use lowercase letters, digits and hyphens"),
        ({"--address": "example.org"}, "address 'example.org' is not HOST:PORT"),
        ({"--address": "example.org:70000"}, "address 'example.org:70000' is not HOST:PORT"),
        ({"--sites": "a,b,a"}, "sites are 'a,b,a'. Give one or more different names"),
        ({"--sites": "../a"}, "site name '../a' is not allowed. Use lowercase letters"),
        ({"--classes": "x,x"}, "classes is 'x,x'. Give two or more different names"),
        ({"--classes": "x,,y"}, "classes is 'x,,y'. Give two or more different names"),
        ({"--classes": "x"}, "classes is 'x'. Give two or more different names"),
        ({"--size": "abc"}, "size is 'abc'. Give pixels from 1 to 2048: 64, or 64x48"),
        ({"--size": "0"}, "size is '0'. Give pixels from 1 to 2048"),
        ({"--size": "64x9999"}, "size is '64x9999'. Give pixels from 1 to 2048"),
    ],
)
def test_a_wrong_word_for_init_is_one_sentence_and_leaves_nothing(
    change: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    asked = {"--name": "lungs", "--address": "example.org:9092", "--sites": "a,b"} | change
    words = [word for pair in asked.items() for word in pair]
    assert sentence in complaint("federation", "init", tmp_path / "coordinator", *words)
    assert not (tmp_path / "coordinator").exists()


def test_a_folder_that_is_not_empty_is_left_alone(coordinator: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    asked = ("--name", "lungs", "--address", "127.0.0.1:9092", "--sites", "a")
    assert "exists and is not empty" in complaint("federation", "init", tmp_path, *asked)
    data = made.table(tmp_path / "data.csv", 0)
    join = ("federation", "join", coordinator / "invitations" / "north.zip")
    assert "exists and is not empty" in complaint(*join, tmp_path, "--data", data)
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "data.csv"}


def invitation(path: Path, coordinator: Path, **changed: Any) -> Path:
    """North's, with some lines changed."""
    with (
        zipfile.ZipFile(coordinator / "invitations" / "north.zip") as original,
        zipfile.ZipFile(path, "w") as ours,
    ):
        for name in original.namelist():
            text = original.read(name).decode()
            for key, value in changed.items():
                text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
            ours.writestr(name, text)
    return path


def test_a_wrong_invitation_or_unreadable_data_is_one_sentence_and_leaves_nothing(
    coordinator: Path, tmp_path: Path
) -> None:
    data, at = made.table(tmp_path / "data.csv", 0), tmp_path / "site"
    (tmp_path / "strange.csv").write_text("x,label\n1,benign\n2,owl\n3,benign\n")
    (tmp_path / "no.zip").write_bytes(b"no archive")
    good = coordinator / "invitations" / "north.zip"
    for given, read, sentence in (
        (tmp_path / "none.zip", data, "none.zip' does not exist"),
        (tmp_path / "no.zip", data, "no.zip' is not an invitation"),
        (invitation(tmp_path / "name.zip", coordinator, name='"../../x"'), data, "name.zip' is not an invitation"),
        (
            invitation(tmp_path / "digest.zip", coordinator, digest=f'"{"0" * 64}"'),
            data,
            "is for another build of fedskew or Flower, and here is fedskew",
        ),
        (good, tmp_path / "none.csv", "none.csv"),
        (good, tmp_path / "strange.csv", "label 'owl'"),
    ):
        assert sentence in complaint("federation", "join", given, at, "--data", read)
        assert not at.exists()


@pytest.mark.parametrize("command", ["start", "stop", "status"])
def test_a_folder_of_no_federation_is_one_sentence(command: str, tmp_path: Path) -> None:
    assert "is not a federation folder" in complaint("federation", command, tmp_path)


def test_a_misspelt_or_wrong_line_of_the_file_is_one_sentence(tmp_path: Path) -> None:
    coordinator = made.coordinator(tmp_path / "coordinator")
    path = coordinator / "federation.toml"
    text = path.read_text()
    for line, changed, command, sentence in (
        ("listen = ", "listens = ", "status", "has no key 'listens'. Did you mean 'listen'?"),
        (
            "quorum = 0.5",
            "quorum = 5.0",
            "run",
            "federation.toml' 'quorum' is 5.0. Give a number above 0 and at most 1",
        ),
        ("rounds = 20", "round = 20", "run", "there is no key 'round'. Type rounds=20"),
        ('method = "fedavg"', 'method = "fedawg"', "run", "Did you mean 'fedavg'?"),
        (f'classes = "{made.CLASSES}"', "", "run", "names no classes"),
        ("[training.local]", "[training.noise]\nkind='none'\n[training.local]", "run", "'training.noise'"),
        ("[training.local]", "[training.data]\nname='mnist'\n[training.local]", "run", "data.name is 'mnist'"),
        ("max-norm = 10", "max-norm = ", "run", "is not valid TOML"),
    ):
        assert line in text
        path.write_text(text.replace(line, changed))
        assert sentence in complaint("federation", command, coordinator)
    path.write_text(text)
    assert "is not started. Type: fedskew federation start" in complaint("federation", "run", coordinator)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("--set", "partition.clients=2"), "--set changes 'partition', which the federation sets"),
        (("--set", "noise.kind=symmetric", "--set", "noise.rho=0.1"), "--set changes 'noise'"),
        (("--set", "engine.workers=2"), "--set changes 'engine'"),
        (("--set", "data.name=mnist"), "data.name is 'mnist', but every site has data of its own"),
        (("--set", "data.options.size=9999"), "data.options.size is '9999'. Give pixels from 1 to 2048"),
        (("--weights", "/none.pt"), "weights '/none.pt' cannot be read: No such file or directory"),
        (("--name", "../x"), "--name is '../x'. Use letters, digits and _ . + = -"),
        (("--name", ".."), "--name is '..'. Use letters"),
    ],
)
def test_what_the_federation_decides_cannot_be_set_for_a_run(
    words: tuple[str, ...], sentence: str, coordinator: Path
) -> None:
    assert sentence in complaint("federation", "run", coordinator, *words)


def test_one_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    coordinator = made.coordinator(tmp_path / "coordinator")
    words = ("--dataset", "digits", "--clients", "2", "--rounds", "0", "--engine", "inline")
    for name in ("a", "b"):
        succeed("run", *words, "--out", coordinator / "runs" / name)
    (coordinator / "runs" / "a" / "config.toml").unlink()
    first, second = json.loads(succeed("federation", "status", coordinator, "--json"))["runs"]
    assert first["name"] == "a" and first["state"].startswith("unreadable: ") and "config.toml" in first["state"]
    assert (second["name"], second["state"], second["rounds"], second["of"]) == ("b", "finished", 0, 0)
    shown = succeed("federation", "status", coordinator)
    assert "unreadable" in shown and "0 of 0" in shown and "north" in shown


def test_status_without_processes(coordinator: Path, north: Path) -> None:
    said = succeed("federation", "status", coordinator)
    assert "'lungs' is not started." in said and "north" in said
    assert "Site 'north' is not started." in succeed("federation", "status", north)
    assert "was not running" in succeed("federation", "stop", coordinator)


def test_an_address_may_be_of_ipv6() -> None:
    address = Address.parse("[::1]:9092")
    assert (address.host, address.port, str(address)) == ("::1", 9092, "[::1]:9092")


def test_without_flower_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "flwr" else found(name, *rest))
    assert "Install fedskew with its extra 'flower'" in complaint("federation", "status", tmp_path)
