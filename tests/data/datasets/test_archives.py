from __future__ import annotations

import io
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.errors import UserError
from fedskew.data.datasets import archives

Entries = Sequence[tuple[str, bytes]]
TREE: Entries = [("set/a.txt", b"alpha"), ("set/deep/b.bin", bytes(range(256)) * 9), ("set/empty", b"")]
KINDS = ["zip", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz"]


def make(path: Path, entries: Entries) -> Path:
    """An archive with any names, wherever they lead."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            for name, content in entries:
                made.writestr(name, content)
    else:
        kind = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".xz": "xz"}.get(path.suffix, "")
        with tarfile.open(path, f"w:{kind}") as made:
            for name, content in entries:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                made.addfile(info, io.BytesIO(content))
    return path


def make_special(path: Path, kind: bytes, link: str = "") -> Path:
    with tarfile.open(path, "w") as made:
        info = tarfile.TarInfo("thing")
        info.type, info.linkname = kind, link
        made.addfile(info)
    return path


def holdings(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refusal(archive: Path, **limits: int) -> str:
    """The sentence in which unpacking ends; nothing may be left of it."""
    before = sorted(archive.parent.iterdir())
    with pytest.raises(UserError) as caught:
        archives.unpack(archive, archive.parent / "out", **limits)
    assert sorted(archive.parent.iterdir()) == before
    assert str(archive) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_comes_out(tmp_path: Path, kind: str) -> None:
    archives.unpack(make(tmp_path / f"a.{kind}", TREE), tmp_path / "out")
    assert holdings(tmp_path / "out") == dict(TREE)
    assert {p.name for p in tmp_path.iterdir()} == {f"a.{kind}", "out"}


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_single_folder_of_the_same_name_is_not_doubled(tmp_path: Path, kind: str) -> None:
    archives.unpack(make(tmp_path / f"a.{kind}", TREE), tmp_path / "set")
    assert set(holdings(tmp_path / "set")) == {"a.txt", "deep/b.bin", "empty"}
    beside = [*TREE, ("readme", b"beside it")]
    archives.unpack(make(tmp_path / f"b.{kind}", beside), tmp_path / "more" / "set")
    assert set(holdings(tmp_path / "more" / "set")) == {"readme", "set/a.txt", "set/deep/b.bin", "set/empty"}


def test_folders_and_names_with_a_dot_in_front(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as made:
        for name in (".", "./train", "./train/empty"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            made.addfile(info)
    archives.unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "train" / "empty").is_dir()


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/tmp/evil", "..", "a/..", "..\\evil", "C:\\evil", "C:evil", "a\nb"]
)
def test_paths_that_lead_out_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    archive = make(tmp_path / f"a.{kind}", [("fine", b"1"), (name, b"2")])
    if kind == "zip":
        assert name in zipfile.ZipFile(archive).namelist(), "the archive must hold what is to be refused"
    assert "leads out of the folder" in refusal(archive)


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc"),
        (tarfile.SYMTYPE, "inside"),
        (tarfile.LNKTYPE, "../secret"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes, link: str) -> None:
    assert "a link or device" in refusal(make_special(tmp_path / "a.tar", kind, link))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, kind: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        info = zipfile.ZipInfo("thing")
        info.external_attr = (kind | 0o777) << 16
        made.writestr(info, "/etc/passwd")
    assert "a link or device" in refusal(tmp_path / "a.zip")


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_bombs_are_refused(tmp_path: Path, kind: str) -> None:
    archive = make(tmp_path / f"a.{kind}", [("one", bytes(600_000)), ("two", bytes(400_001))])
    assert archive.stat().st_size < 20_000
    assert "more than 1,000,000 bytes" in refusal(archive, most_bytes=1_000_000)
    assert "more than 1 entries" in refusal(archive, most_entries=1)
    archives.unpack(archive, tmp_path / "out", most_bytes=1_000_001, most_entries=2)


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_cannot_be_overwritten(tmp_path: Path, kind: str, names: tuple[str, str]) -> None:
    assert "twice" in refusal(make(tmp_path / f"a.{kind}", [(name, b"x") for name in names]))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_archives_end_in_a_sentence(tmp_path: Path, kind: str) -> None:
    archive = make(tmp_path / f"a.{kind}", TREE)
    whole = archive.read_bytes()
    for broken in (b"no archive at all", whole[: len(whole) // 3]):
        archive.write_bytes(broken)
        assert "damaged" in refusal(archive)


def test_a_zip_with_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    archive = make(tmp_path / "a.zip", [("a", b"some content that is long enough " * 3)])
    broken = bytearray(archive.read_bytes())
    broken[45] ^= 0xFF  # inside the packed bytes: the header is 30 bytes and the name is one
    archive.write_bytes(broken)
    assert "damaged" in refusal(archive)


def test_what_is_there_is_not_touched_and_what_was_killed_is_cleared_away(tmp_path: Path) -> None:
    archive = make(tmp_path / "a.zip", TREE)
    (tmp_path / ".out.unpacking").mkdir()
    (tmp_path / ".out.unpacking" / "half").touch()
    archives.unpack(archive, tmp_path / "out")
    assert holdings(tmp_path / "out") == dict(TREE) and not (tmp_path / ".out.unpacking").exists()
    (tmp_path / "out" / "set" / "mine").write_text("mine")
    with pytest.raises(UserError, match=r"exists\. Remove it first"):
        archives.unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "set" / "mine").read_text() == "mine"


def test_a_missing_archive_and_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        archives.unpack(tmp_path / "none.zip", tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be unpacked"):
        archives.unpack(make(tmp_path / "a.zip", TREE), tmp_path / "file" / "out")


PIECES = st.sampled_from(["a", "b", "..", ".", "", " ", "c:", "\\..", "...", "ü"])


@given(
    names=st.lists(st.lists(PIECES, min_size=1, max_size=4).map("/".join).filter(bool), max_size=4),
    zipped=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_no_name_gets_out(names: list[str], zipped: bool) -> None:
    with tempfile.TemporaryDirectory() as outer:
        room = Path(outer) / "x" / "y"
        room.mkdir(parents=True)
        archive = make(room / ("a.zip" if zipped else "a.tar"), [(name, b"!") for name in names])
        try:
            archives.unpack(archive, room / "out")
        except UserError:
            assert not (room / "out").exists()
        found = {path.relative_to(room).parts[0] for path in Path(outer).rglob("*") if path.is_file()}
        assert found <= {archive.name, "out"}
        assert {p.name for p in room.iterdir()} <= {archive.name, "out"}
