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

from fedskew.errors import UserError
from fedskew.federation import certificates, folder
from fedskew.federation import office as offices
from fedskew.federation.folder import Address
from fedskew.flower import project
from tests.commands import complaint, fedskew, succeed
from tests.federation import made


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.office(tmp_path_factory.mktemp("federation") / "office")


@pytest.fixture(scope="module")
def north(office: Path) -> Path:
    return made.site(office.with_name("north"), office, "north")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def hands_shaken(office: Path, ca: Path, host: str) -> None:
    """A TLS handshake in memory: the server's half with its certificate, the client's with a CA and a name."""
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(office / certificates.SERVER, office / certificates.SERVER_KEY)
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


def test_only_its_owner_looks_into_the_coordinators_folder(office: Path) -> None:
    assert mode(office) == 0o700
    assert {mode(office / name) for name in ("ca.key", "server.key", "executor.secret")} == {0o600}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_servers_certificate_holds_before_its_own_ca(office: Path, host: str) -> None:
    hands_shaken(office, office / "ca.crt", host)


def test_it_holds_neither_before_another_ca_nor_for_another_name(office: Path, tmp_path: Path) -> None:
    other = made.office(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"signature failure|unable to get|self-signed"):
        hands_shaken(office, other / "ca.crt", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'fl\.example\.org'"):
        hands_shaken(office, office / "ca.crt", "fl.example.org")


def test_a_host_name_is_in_the_certificate_and_it_lasts_ten_years(tmp_path: Path) -> None:
    office = made.office(tmp_path / "office", "fl.example.org:443")
    assert certificates.names_of_server(office) == {"fl.example.org", "localhost", "127.0.0.1"}
    hands_shaken(office, office / "ca.crt", "fl.example.org")
    for name in ("ca.crt", "server.crt"):
        certificate = x509.load_pem_x509_certificate((office / name).read_bytes())
        assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3650 + 1


def test_an_invitation_holds_nobodys_private_key(office: Path) -> None:
    for number, name in enumerate(made.SITES):
        with zipfile.ZipFile(office / "invitations" / f"{name}.zip") as archive:
            content = {each: archive.read(each) for each in archive.namelist()}
        assert content.keys() == {"ca.crt", "site.toml", "README.md"}
        everything = b"".join(content.values())
        assert b"PRIVATE" not in everything
        for secret in ("ca.key", "server.key", "executor.secret"):
            assert (office / secret).read_bytes() not in everything
        said = tomllib.loads(content["site.toml"].decode())
        assert (said["name"], said["number"], said["address"]) == (name, number, "127.0.0.1:9092")
        assert said["digest"] == project.digest() and said["data"] == {"classes": made.CLASSES}
        assert f"join {name}.zip".encode() in content["README.md"]


def told(office: Path, site: str) -> dict[str, Any]:
    """What a site's invitation says."""
    with zipfile.ZipFile(office / "invitations" / f"{site}.zip") as archive:
        return tomllib.loads(archive.read("site.toml").decode())


def changed(office: Path, line: str, other: str) -> folder.Coordinator:
    """The coordinator's folder after a change in its file."""
    path = office / "federation.toml"
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, other))
    return folder.coordinator(office)


def test_a_new_site_is_invited_without_touching_the_others(tmp_path: Path) -> None:
    office = made.office(tmp_path / "office")
    before = (office / "invitations" / "east.zip").read_bytes()
    assert offices.invite(changed(office, '"east"]', '"east", "west"]')) == ["west"]
    assert (office / "invitations" / "east.zip").read_bytes() == before
    west = told(office, "west")
    assert (west["name"], west["number"], west["data"]) == ("west", 3, {"classes": made.CLASSES})


def test_invitations_say_what_the_file_says_by_now(tmp_path: Path) -> None:
    """Nothing else in them changes: they hold the same certificate."""
    office = made.office(tmp_path / "office")
    assert offices.invite(folder.coordinator(office)) == []
    assert offices.invite(changed(office, "# size = ", "size = ")) == list(made.SITES)
    assert told(office, "south")["data"] == {"classes": made.CLASSES, "size": "64x64"}
    with zipfile.ZipFile(office / "invitations" / "south.zip") as archive:
        assert archive.read("ca.crt") == (office / "ca.crt").read_bytes()
    wrong = changed(office, made.CLASSES, "benign")
    with pytest.raises(UserError, match=r"federation.toml': training.data.options.classes is 'benign', and must be"):
        offices.invite(wrong)


def test_start_says_which_invitations_it_wrote_anew(tmp_path: Path) -> None:
    """It says so even where it cannot listen: at an address that no machine has."""
    office = made.office(tmp_path / "office")
    changed(office, 'listen = "127.0.0.1"', 'listen = "192.0.2.1"')
    changed(office, "# size = ", "size = ")
    begun = fedskew("federation", "start", office, "--foreground")
    assert begun.exit_code == 2 and "the server cannot listen at 192.0.2.1:9092" in begun.stderr
    for site, line in zip(made.SITES, begun.stdout.splitlines(), strict=True):
        assert line.startswith(f"Written anew, for '{site}' if") and line.endswith(f"{site}.zip")


def test_what_a_backup_lacks_is_made_again(tmp_path: Path) -> None:
    """The server's certificate, the executor's secret and the invitations."""
    office = made.office(tmp_path / "office")
    for name in ("server.key", "executor.secret"):
        (office / name).unlink()
    shutil.rmtree(office / "invitations")
    offices.furnish(folder.coordinator(office))
    assert {mode(office / name) for name in ("server.key", "executor.secret")} == {0o600}
    hands_shaken(office, office / "ca.crt", "localhost")
    assert {path.stem for path in (office / "invitations").iterdir()} == set(made.SITES)


def test_only_the_app_of_the_version_that_is_installed_is_let_in(tmp_path: Path) -> None:
    for digest in ("1" * 64, "2" * 64):
        folder.allow(tmp_path, digest)
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
    assert folder.member(north).data == str(north.with_suffix(".csv").resolve())


def test_what_join_prints_is_the_public_key(office: Path, tmp_path: Path) -> None:
    data = made.table(tmp_path / "data.csv", 1)
    out = succeed("federation", "join", office / "invitations" / "south.zip", tmp_path / "south", "--data", data)
    assert out.strip() == (tmp_path / "south" / "key.pub").read_text().strip()


def test_admitting_keeps_the_key_and_another_one_only_replaces_it_when_told(office: Path, north: Path) -> None:
    key = (north / "key.pub").read_text()
    shown = succeed("federation", "admit", office, "north", north / "key.pub")
    assert certificates.fingerprint(key) in shown
    assert succeed("federation", "admit", office, "north", key) == shown  # the text itself, and twice
    kept = office / "keys" / "north.pub"
    assert kept.read_text() == key
    certificates.make_site_key(north, "north")
    again = ("federation", "admit", office, "north", north / "key.pub")
    assert f"site 'north' has another key already, {certificates.fingerprint(key)}" in complaint(*again)
    assert kept.read_text() == key
    succeed(*again, "--replace")
    assert kept.read_text() == (north / "key.pub").read_text() != key
    assert "the key is that of site 'north'" in complaint("federation", "admit", office, "south", north / "key.pub")


def test_a_key_of_the_wrong_kind_is_one_sentence(office: Path, north: Path) -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    text = other.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    for given, sentence in (
        ("nonsense", "'nonsense' is neither a public key nor a file that holds one"),
        ((north / "key.pub").read_text()[:60], "is neither a public key nor a file"),
        (text, "of the kind 'ssh-ed25519', and must be ecdsa-sha2-nistp384"),
        (north / "key", "is a private key, which must never leave its site"),
    ):
        assert sentence in complaint("federation", "admit", office, "south", given)
    assert "has no site 'sout'; did you mean 'south'?" in complaint(
        "federation", "admit", office, "sout", north / "key.pub"
    )
    assert not (office / "keys" / "south.pub").exists()


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"--name": "Lungs & Co"}, "name 'Lungs & Co' must be of small letters, digits and hyphens"),
        ({"--address": "example.org"}, "address 'example.org' must be HOST:PORT"),
        ({"--address": "example.org:70000"}, "address 'example.org:70000' must be HOST:PORT"),
        ({"--sites": "a,b,a"}, "sites are 'a,b,a', and must be one or more different names"),
        ({"--sites": "../a"}, "site name '../a' must be of small letters"),
        ({"--classes": "x,x"}, "classes is 'x,x', and must be two or more names, each once"),
        ({"--classes": "x,,y"}, "classes is 'x,,y', and must be two or more names, each once"),
        ({"--classes": "x"}, "classes is 'x', and must be two or more names, each once"),
        ({"--size": "abc"}, "size is 'abc', and must be pixels from 1 to 2048, such as 64, or 64x48"),
        ({"--size": "0"}, "size is '0', and must be pixels from 1 to 2048"),
        ({"--size": "64x9999"}, "size is '64x9999', and must be pixels from 1 to 2048"),
    ],
)
def test_a_wrong_word_for_init_is_one_sentence_and_leaves_nothing(
    change: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    asked = {"--name": "lungs", "--address": "example.org:9092", "--sites": "a,b"} | change
    words = [word for pair in asked.items() for word in pair]
    assert sentence in complaint("federation", "init", tmp_path / "office", *words)
    assert not (tmp_path / "office").exists()


def test_a_folder_that_is_not_empty_is_left_alone(office: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    asked = ("--name", "lungs", "--address", "127.0.0.1:9092", "--sites", "a")
    assert "exists and is not empty" in complaint("federation", "init", tmp_path, *asked)
    data = made.table(tmp_path / "data.csv", 0)
    join = ("federation", "join", office / "invitations" / "north.zip")
    assert "exists and is not empty" in complaint(*join, tmp_path, "--data", data)
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "data.csv"}


def invitation(path: Path, office: Path, **changed: Any) -> Path:
    """North's, with some lines changed."""
    with (
        zipfile.ZipFile(office / "invitations" / "north.zip") as theirs,
        zipfile.ZipFile(path, "w") as ours,
    ):
        for name in theirs.namelist():
            text = theirs.read(name).decode()
            for key, value in changed.items():
                text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
            ours.writestr(name, text)
    return path


def test_a_wrong_invitation_or_unreadable_data_is_one_sentence_and_leaves_nothing(office: Path, tmp_path: Path) -> None:
    data, at = made.table(tmp_path / "data.csv", 0), tmp_path / "site"
    (tmp_path / "strange.csv").write_text("x,label\n1,benign\n2,owl\n3,benign\n")
    (tmp_path / "no.zip").write_bytes(b"no archive")
    good = office / "invitations" / "north.zip"
    for given, read, sentence in (
        (tmp_path / "none.zip", data, "none.zip' does not exist"),
        (tmp_path / "no.zip", data, "no.zip' is no invitation"),
        (invitation(tmp_path / "name.zip", office, name='"../../x"'), data, "name.zip' is no invitation"),
        (
            invitation(tmp_path / "digest.zip", office, digest=f'"{"0" * 64}"'),
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
    assert "is no folder of a federation" in complaint("federation", command, tmp_path)


def test_a_misspelt_or_wrong_line_of_the_file_is_one_sentence(tmp_path: Path) -> None:
    office = made.office(tmp_path / "office")
    path = office / "federation.toml"
    text = path.read_text()
    for line, changed, command, sentence in (
        ("listen = ", "listens = ", "status", "has no key 'listens'; did you mean 'listen'?"),
        ("quorum = 0.5", "quorum = 5.0", "run", "federation.toml' 'quorum' is 5.0, and must be above 0 and at most 1"),
        ("rounds = 20", "round = 20", "run", "has no key 'round'; did you mean 'rounds'?"),
        ('method = "fedavg"', 'method = "fedawg"', "run", "did you mean 'fedavg'?"),
        (f'classes = "{made.CLASSES}"', "", "run", "names no classes"),
        ("[training.local]", "[training.noise]\nkind='none'\n[training.local]", "run", "'training.noise'"),
        ("[training.local]", "[training.data]\nname='mnist'\n[training.local]", "run", "data.name is 'mnist'"),
        ("max-norm = 10", "max-norm = ", "run", "is not valid TOML"),
    ):
        assert line in text
        path.write_text(text.replace(line, changed))
        assert sentence in complaint("federation", command, office)
    path.write_text(text)
    assert "is not started; 'fedskew federation start" in complaint("federation", "run", office)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("--set", "partition.clients=2"), "--set changes 'partition', which the federation itself decides"),
        (("--set", "noise.kind=symmetric", "--set", "noise.rho=0.1"), "--set changes 'noise'"),
        (("--set", "engine.workers=2"), "--set changes 'engine'"),
        (("--set", "data.name=mnist"), "data.name is 'mnist', and must be left out: every site has data of its own"),
        (("--set", "data.options.size=9999"), "data.options.size is '9999', and must be pixels from 1 to 2048"),
        (("--weights", "/none.pt"), "weights '/none.pt' cannot be read: No such file or directory"),
        (("--name", "../x"), "--name is '../x', and must be of letters, digits and _ . + = -"),
        (("--name", ".."), "--name is '..', and must be of letters"),
    ],
)
def test_what_the_federation_decides_cannot_be_set_for_a_run(
    words: tuple[str, ...], sentence: str, office: Path
) -> None:
    assert sentence in complaint("federation", "run", office, *words)


def test_one_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    office = made.office(tmp_path / "office")
    words = ("--dataset", "digits", "--clients", "2", "--rounds", "0", "--engine", "inline")
    for name in ("a", "b"):
        succeed("run", *words, "--out", office / "runs" / name)
    (office / "runs" / "a" / "config.toml").unlink()
    first, second = json.loads(succeed("federation", "status", office, "--json"))["runs"]
    assert first["name"] == "a" and first["state"].startswith("unreadable: ") and "config.toml" in first["state"]
    assert (second["name"], second["state"], second["rounds"], second["of"]) == ("b", "finished", 0, 0)
    shown = succeed("federation", "status", office)
    assert "unreadable" in shown and "0 of 0" in shown and "north" in shown


def test_status_without_processes(office: Path, north: Path) -> None:
    said = succeed("federation", "status", office)
    assert "'lungs' is not started." in said and "north" in said
    assert "Site 'north' is not started." in succeed("federation", "status", north)
    assert "was not running" in succeed("federation", "stop", office)


def test_an_address_may_be_of_ipv6() -> None:
    address = Address.parse("[::1]:9092")
    assert (address.host, address.port, str(address)) == ("::1", 9092, "[::1]:9092")


def test_without_flower_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "flwr" else found(name, *rest))
    assert "install fedskew with its extra 'flower'" in complaint("federation", "status", tmp_path)
