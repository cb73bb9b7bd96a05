from __future__ import annotations

import hashlib
import io
import socket
import zipfile
from pathlib import Path

import pytest

from fedskew.core.errors import UserError
from fedskew.core.progress import listening
from fedskew.data import registry
from fedskew.data.datasets import download
from fedskew.data.registry import DatasetInfo, DownloadFile
from tests.commands import fedskew
from tests.data.datasets.served import Server, serving

CONTENT = bytes(range(256)) * 4096  # 1 MiB
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


def fetch(server: Server, target: Path, checksum: str = MD5, **options: object) -> None:
    download.fetch([server.url("file.bin")], target, checksum, pause=0.0, **options)  # type: ignore[arg-type]


def complaint(server: Server, target: Path, checksum: str = MD5) -> str:
    with pytest.raises(UserError) as caught:
        fetch(server, target, checksum)
    assert not target.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_is_fetched_and_progress_reported(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    with (
        serving({"file.bin": CONTENT}) as server,
        listening(lambda task, done, total, unit: reported.append((done, total))),
    ):
        fetch(server, tmp_path / "deep" / "f")
    assert (tmp_path / "deep" / "f").read_bytes() == CONTENT
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["f"]
    assert reported[-1] == (len(CONTENT), len(CONTENT)) and reported == sorted(reported)


def test_sha256_is_understood_too(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT}) as server:
        fetch(server, tmp_path / "f", f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert (tmp_path / "f").exists()


def test_a_broken_connection_is_resumed_where_it_broke(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT}, break_after=[500_000, 300_000]) as server:
        fetch(server, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    # 500,000 bytes come, then 300,000 more, then the rest.
    assert server.ranges == [None, "bytes=500000-", "bytes=800000-"]


def test_a_killed_download_goes_on_in_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(CONTENT[:700_000])
    with serving({"file.bin": CONTENT}) as server:
        fetch(server, tmp_path / "f")
    assert server.ranges == ["bytes=700000-"]
    assert (tmp_path / "f").read_bytes() == CONTENT and not (tmp_path / "f.part").exists()


def test_a_server_that_always_breaks_leaves_a_part_and_no_file(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT}, break_after=[400_000, *[0] * 9]) as server:
        said = complaint(server, tmp_path / "f")
    assert "resume after 400,000 bytes" in said and "f.part" in said
    assert (tmp_path / "f.part").read_bytes() == CONTENT[:400_000]
    assert len(server.ranges) == 1 + download.TRIES


def test_a_server_without_ranges_begins_again_and_not_for_ever(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT}, break_after=[400_000], ranges=False) as server:
        fetch(server, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    for number, sizes in enumerate([[400_000], [400_000, 10]]):
        with serving({"file.bin": CONTENT}, break_after=sizes * 20, ranges=False) as server:
            complaint(server, tmp_path / f"g{number}")
        assert len(server.ranges) == 1 + download.TRIES


def test_a_finished_part_is_only_checked(tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(CONTENT)
    with serving({"file.bin": CONTENT}) as server:
        fetch(server, tmp_path / "f")
    assert server.sent == 0
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_part_of_something_else_is_deleted_so_that_the_next_try_is_whole(tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(b"x" * 1000)
    with serving({"file.bin": CONTENT}) as server:
        assert "not the official file" in complaint(server, tmp_path / "f")
        assert list(tmp_path.iterdir()) == []
        fetch(server, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_the_file_deleted(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT[:-1] + b"?"}) as server:
        said = complaint(server, tmp_path / "f")
    assert "not the official file" in said and MD5 in said and "deleted" in said
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_range_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(CONTENT[:1000])
    with serving({"file.bin": CONTENT}, shifted=8) as server:
        assert "another part of the file" in complaint(server, tmp_path / "f")
    assert (tmp_path / "f.part").read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize(("code", "asked"), [(404, 1), (403, 1), (410, 1), (503, 4), (429, 4)])
def test_status_codes_are_named_and_temporary_ones_tried_again(tmp_path: Path, code: int, asked: int) -> None:
    with serving({"file.bin": CONTENT}, codes=[code] * 10) as server:
        assert f"answers {code}" in complaint(server, tmp_path / "f")
    assert len(server.ranges) == asked
    assert list(tmp_path.iterdir()) == []


def test_a_passing_failure_passes(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT}, codes=[503, 500]) as server:
        fetch(server, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_the_second_address_is_asked_when_the_first_has_nothing(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT}) as server:
        download.fetch([server.url("gone.bin"), server.url("file.bin")], tmp_path / "f", MD5, pause=0.0)
        assert (tmp_path / "f").read_bytes() == CONTENT
        with pytest.raises(UserError, match=r"gone\.bin answers 404.*lost\.bin answers 404"):
            download.fetch([server.url("gone.bin"), server.url("lost.bin")], tmp_path / "g", MD5, pause=0.0)


def test_a_silent_server_ends_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file.bin"
        with pytest.raises(UserError, match="timed out"):
            download.fetch([url], tmp_path / "f", MD5, pause=0.0, timeout=0.05)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/file.bin", "http://name.invalid/file.bin"])
def test_no_network_ends_in_a_sentence(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match=r"cannot be reached .*is there a network"):
        download.fetch([url], tmp_path / "f", MD5, pause=0.0)


@pytest.mark.parametrize("url", ["no address", "http://a b/", "gopher://x/y"])
def test_what_is_no_address_ends_in_a_sentence(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="cannot download 'f'"):
        download.fetch([url], tmp_path / "f", MD5, pause=0.0)


def test_a_full_disk_ends_in_a_sentence(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "f.part").symlink_to("/dev/full")  # a file on a disk without room
    with serving({"file.bin": CONTENT}) as server:
        said = complaint(server, tmp_path / "f")
    assert "No space left" in said and "Make room" in said


def test_a_folder_that_cannot_be_made_ends_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with serving({"file.bin": CONTENT}) as server:
        with pytest.raises(UserError, match="cannot write"):
            fetch(server, tmp_path / "file" / "f")
        assert server.ranges == []


def test_room_is_asked_of_the_disk(tmp_path: Path) -> None:
    download.check_room(tmp_path / "not" / "yet", 1)
    with pytest.raises(UserError, match="Make room"):
        download.check_room(tmp_path / "not" / "yet", 10**18)


def test_addresses_at_a_mirror() -> None:
    assert download.at_mirror("http://here/data/", "a b.zip") == "http://here/data/a%20b.zip"


@pytest.mark.parametrize(
    "wrong",
    ["here/data", "file:///etc", "ftp://x", "ftp:/x", "", "http://", "http:///x", "http://[", "http://[::1",
     "http://a b", "http://x:99999999", "http://x:y", "http://x:-1", "http://x:0", "http://x\x1b[31m", "http://x\n"],
)  # fmt: skip
def test_a_malformed_mirror_ends_in_a_sentence(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(UserError, match=r"is no address. Give --mirror a URL such as https://"):
        download.at_mirror(wrong, "a.zip")
    result = fedskew("data", "get", "mnist", "--data-dir", tmp_path, "--mirror", wrong)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    assert "is no address" in result.stderr


def test_a_redirection_to_a_malformed_address_ends_in_a_sentence(tmp_path: Path) -> None:
    with serving({"file.bin": b""}, elsewhere="http://[") as server:
        assert "is no address" in complaint(server, tmp_path / "f")


# ---- no more than a file has ----------------------------------------------------------------------------------------


def test_an_endless_mirror_is_left_at_the_known_size(tmp_path: Path) -> None:
    with serving({"a.bin": CONTENT}) as official, serving({"a.bin": bytes(1 << 20)}, endless=True) as mirror:
        with pytest.raises(UserError, match=r"sends more than 1,048,576 bytes, so"):
            download.download(described(official), tmp_path, mirror=mirror.url())
        assert list((tmp_path / "toy").iterdir()) == [], "nothing is kept of it"


def test_a_server_that_announces_too_much_is_left_at_once(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT}) as server, pytest.raises(UserError, match="more than 1,000 bytes"):
        fetch(server, tmp_path / "f", max_size=1000)
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_is_too_long_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / "f.part").write_bytes(CONTENT + b"more")
    with serving({"file.bin": CONTENT}) as server:
        fetch(server, tmp_path / "f", max_size=len(CONTENT))
    assert server.ranges == [None] and (tmp_path / "f").read_bytes() == CONTENT


def test_an_endless_address_is_followed_by_the_next(tmp_path: Path) -> None:
    with serving({"file.bin": CONTENT}, endless=True) as endless, serving({"file.bin": CONTENT}) as server:
        download.fetch([endless.url("file.bin"), server.url("file.bin")], tmp_path / "f", MD5, max_size=len(CONTENT))
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_every_known_file_has_a_bound() -> None:
    files = [file for info in registry.known() for file in info.files]
    assert all(0 < file.size <= file.max_size <= 2 * file.size for file in files)
    assert all(file.rounded for file in files if file.size % 10_000 == 0)


# ---- whole data sets -------------------------------------------------------------------------------------------------


def packed(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/"), content)
    return made.getvalue()


def described(server: Server, *names: str) -> DatasetInfo:
    """A data set of all files that a server has."""
    files = [
        DownloadFile((server.url(name),), len(server.files[name]), f"md5:{hashlib.md5(server.files[name]).hexdigest()}")
        for name in server.files
    ]
    markers = names or tuple(server.files)
    return DatasetInfo("toy", "a toy", "ours", "here", folders=("toy", "Toy/raw"), markers=markers, files=tuple(files))


def test_files_go_to_their_place_and_those_that_are_there_stay(tmp_path: Path) -> None:
    reported = set()
    with serving({"a.bin": CONTENT, "b.bin": b"b"}) as server:
        toy = described(server)
        assert toy.missing(tmp_path) == ["a.bin", "b.bin"]
        download.download(toy, tmp_path)
        assert toy.missing(tmp_path) == []
        (tmp_path / "toy" / "b.bin").unlink()
        server.ranges.clear()
        with listening(lambda task, done, total, unit: reported.add(task)):
            download.download(toy, tmp_path)
    assert len(server.ranges) == 1 and reported == {"b.bin"}
    assert (tmp_path / "toy" / "a.bin").read_bytes() == CONTENT and (tmp_path / "toy" / "b.bin").read_bytes() == b"b"


def test_a_users_own_file_is_only_replaced_by_force(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.bin").write_text("mine")
    with serving({"a.bin": CONTENT}) as server:
        with pytest.raises(UserError, match=r"not the official file\. Replace it with --force"):
            download.download(described(server), tmp_path)
        assert (tmp_path / "toy" / "a.bin").read_text() == "mine" and server.ranges == []
        download.download(described(server), tmp_path, force=True)
    assert (tmp_path / "toy" / "a.bin").read_bytes() == CONTENT


def test_an_archive_is_unpacked_and_gone(tmp_path: Path) -> None:
    with serving({"toy.zip": packed(toy__a=b"1", toy__deep__b=b"2")}, break_after=[50]) as server:
        download.download(described(server, "a", "deep/b"), tmp_path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == ["toy/a", "toy/deep/b"]
    assert server.ranges == [None, "bytes=50-"]


def test_an_archive_that_was_brought_by_hand_is_not_fetched(tmp_path: Path) -> None:
    with serving({"toy.zip": packed(a=b"1")}) as server:
        (tmp_path / "toy.zip").write_bytes(server.files["toy.zip"])
        download.download(described(server, "a"), tmp_path)
    assert server.ranges == [] and (tmp_path / "toy" / "a").read_bytes() == b"1"


def test_a_damaged_archive_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "toy.zip").write_text("half of it")
    with serving({"toy.zip": packed(a=b"1")}) as server:
        download.download(described(server, "a"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_a_folder_in_the_way_is_only_replaced_by_force(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "mine").touch()
    with serving({"toy.zip": packed(a=b"1")}) as server:
        with pytest.raises(UserError, match=r"is incomplete\. Replace it with --force"):
            download.download(described(server, "a"), tmp_path)
        assert (tmp_path / "toy" / "mine").exists() and server.ranges == []
        download.download(described(server, "a"), tmp_path, force=True)
    assert [p.name for p in (tmp_path / "toy").iterdir()] == ["a"]


def test_an_archive_that_leads_out_leaves_nothing_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with (
        serving({"toy.zip": packed(a=b"1", **{"..__evil": b"2"})}) as server,
        pytest.raises(UserError, match="leads out of the folder"),
    ):
        download.download(described(server, "a"), folder)
    assert [p.name for p in folder.iterdir()] == ["toy.zip"] and not (tmp_path / "evil").exists()


def test_a_mirror_is_asked_instead(tmp_path: Path) -> None:
    with serving({"a.bin": CONTENT}) as official, serving({"copy/a.bin": CONTENT}) as mirror:
        download.download(described(official), tmp_path, mirror=mirror.url("copy"))
        assert official.ranges == [] and len(mirror.ranges) == 1
        with pytest.raises(UserError, match="answers 404"):
            download.download(described(official), tmp_path / "other", mirror=mirror.url("elsewhere"))
    assert (tmp_path / "toy" / "a.bin").read_bytes() == CONTENT


def test_a_mirror_cannot_give_another_file(tmp_path: Path) -> None:
    other = {"a.bin": CONTENT[1:]}
    with (
        serving({"a.bin": CONTENT}) as official,
        serving(other) as mirror,
        pytest.raises(UserError, match="not the official file"),
    ):
        download.download(described(official), tmp_path, mirror=mirror.url())
    assert not any(p.is_file() for p in tmp_path.rglob("*"))
