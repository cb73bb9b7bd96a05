"""Fetch data sets over HTTP. Downloads resume, are checked, and have their name only when they are complete."""

from __future__ import annotations

import errno
import hashlib
import http.client
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from fedskew import __version__
from fedskew.core import progress
from fedskew.core.errors import UserError
from fedskew.data.datasets import archives
from fedskew.data.registry import DatasetInfo

TIMEOUT = 30.0
TRIES = 4
#: bytes that a file of unknown size may have
MAX_SIZE = 10_000_000_000
_CHUNK = 1 << 18
_PASSING = {408, 425, 429, 500, 502, 503, 504}


class _Broken(Exception):
    """The connection failed; another try may succeed."""


class _Refused(Exception):
    """This address is of no use; another try would fail, too."""


def download(info: DatasetInfo, folder: Path, *, mirror: str | None = None, force: bool = False) -> None:
    """Fetch and unpack the files of a data set into its first folder below `folder`.

    Args:
        info: The description of the data set.
        folder: The data folder.
        mirror: An address below which all of the files lie, instead of their own addresses.
        force: Replace what is there.

    Raises:
        UserError: A file cannot be fetched, is not the official one, or finds no room.
    """
    place = folder / info.folders[0]
    check_room(folder, sum(file.size * (3 if file.packed else 1) for file in info.files))
    for file in info.files:
        urls = file.urls if mirror is None else (at_mirror(mirror, file.name),)
        target = (folder if file.packed else place) / file.name
        if file.packed and place.exists() and not force:
            raise UserError(f"'{place}' exists and is incomplete. Replace it with --force.")
        if not _is_official(target, file.checksum):
            if target.exists() and not file.packed and not force:
                raise UserError(f"'{target}' exists and is not the official file. Replace it with --force.")
            fetch(urls, target, file.checksum, size=file.size, max_size=file.max_size)
        if file.packed:
            shutil.rmtree(place, ignore_errors=True)
            archives.unpack(target, place)
            target.unlink()


def fetch(
    urls: Sequence[str],
    target: Path,
    checksum: str,
    *,
    size: int = 0,
    max_size: int = MAX_SIZE,
    pause: float = 1.0,
    timeout: float = TIMEOUT,
) -> None:
    """Download a file from the first address that has it.

    The bytes go to a file with .part behind its name, and the next call resumes there. A complete download that is not
    the official file is deleted.

    Args:
        urls: The addresses, in the order in which they are tried.
        target: The file to write.
        checksum: "md5:..." or "sha256:..." of the official file.
        size: The size to report until the server names one.
        max_size: Give an address up after so many bytes.
        pause: Seconds before the second try after a temporary failure; each further pause is twice as long.
        timeout: Seconds to wait for an answer.

    Raises:
        UserError: No address sent the official file, or it cannot be written.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if _size(part) > max_size:
            part.unlink()
        _fetch_part(urls, part, size, max_size, pause, timeout)
        found = digest(part, checksum.partition(":")[0])
        if found != checksum:
            part.unlink()
            raise UserError(
                f"the download of '{target.name}' is not the official file ({found}, official {checksum}) and was "
                "deleted. Try again, or name another source with --mirror URL."
            )
        part.replace(target)
    except OSError as error:
        hint = "Make room, then run the command again" if error.errno == errno.ENOSPC else "Choose another --data-dir"
        raise UserError(f"cannot write '{error.filename or part}' ({error.strerror}). {hint}.") from error


def digest(path: Path, kind: str) -> str:
    """Return ``"md5:..."`` or ``"sha256:..."`` of a file."""
    with open(path, "rb") as file:
        return f"{kind}:{hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"


def _is_official(path: Path, checksum: str) -> bool:
    try:
        return digest(path, checksum.partition(":")[0]) == checksum
    except OSError:
        return False


def check_room(folder: Path, wanted: int) -> None:
    """Refuse a folder whose disk has fewer than `wanted` bytes free."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if free < wanted:
        raise UserError(f"'{folder}' has {free:,} bytes free and needs {wanted:,}. Make room, or name another folder.")


def at_mirror(mirror: str, name: str) -> str:
    """Return the address of file `name` below the address `mirror`."""
    try:
        parts = urllib.parse.urlsplit(mirror)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of brackets that are not closed, and of ports that are none
        right = False
    if not right or re.search(r"[\s\x00-\x1f\x7f]", mirror):
        raise UserError(f"mirror {mirror!r} is no address. Give --mirror a URL such as https://host/folder.")
    return f"{mirror.rstrip('/')}/{urllib.parse.quote(name)}"


def _fetch_part(urls: Sequence[str], part: Path, size: int, max_size: int, pause: float, timeout: float) -> None:
    refusals = []
    for url in urls:
        fruitless, furthest = 0, _size(part)
        while True:
            try:
                _resume(url, part, size, max_size, timeout)
                return
            except _Refused as refusal:
                refusals.append(str(refusal))
                break
            except _Broken as failure:
                # Only growth beyond what was there before counts: a server without ranges begins again every time.
                fruitless = 0 if _size(part) > furthest else fruitless + 1
                furthest = max(furthest, _size(part))
                if fruitless >= TRIES:
                    refusals.append(str(failure))
                    break
                time.sleep(pause * 2 ** max(0, fruitless - 1))
    hint = f"to resume after {_size(part):,} bytes in '{part}'" if _size(part) else "or name another --mirror"
    raise UserError(f"cannot download '{part.stem}': {', and '.join(refusals)}. Run the command again, {hint}.")


def _resume(url: str, part: Path, size: int, max_size: int, timeout: float) -> None:
    """Append to `part` what is missing of `url`, in one request; refuse more than `max_size` bytes."""
    have = _size(part)
    answer = _open(url, have, timeout)
    if answer is None:
        return
    with answer:
        if answer.status != 206:
            have = 0  # this server always begins at the beginning
        elif not (begins := answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-"):
            raise _Refused(f"{url} sends another part of the file than requested ('{begins}')")
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() else 0
        with open(part, "ab" if have else "wb") as file:
            while total <= max_size and (chunk := _read(answer, max_size + 1 - have)):
                file.write(chunk)
                have += len(chunk)
                if have > max_size:
                    break
                progress.report(part.stem, have, total or max(size, have), "bytes")
    if max(have, total) > max_size:
        part.unlink()
        raise _Refused(f"{url} sends more than {max_size:,} bytes, so it is another file")
    if have < total:
        raise _Broken(f"{url} broke off after {have:,} of {total:,} bytes")


def _open(url: str, have: int, timeout: float) -> http.client.HTTPResponse | None:
    """Request the bytes after the first `have`; return None if there are no more."""
    headers = {"User-Agent": f"fedskew/{__version__}"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=timeout
        )
        return answer
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return None
        said = f"{url} answers {error.code} ({error.reason})"
        raise (_Broken if error.code in _PASSING else _Refused)(said) from error
    except urllib.error.URLError as error:
        raise _unreachable(url, error.reason) from error
    except ValueError as error:
        raise _Refused(f"'{url}' is no address ({error})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"{url} broke off ({error or type(error).__name__})") from error


def _read(answer: http.client.HTTPResponse, wanted: int) -> bytes:
    try:
        return answer.read1(min(_CHUNK, wanted))
    except (OSError, http.client.HTTPException) as error:  # of the net; writing to disk has its own
        raise _Broken(f"{answer.url} broke off ({error or type(error).__name__})") from error


def _unreachable(url: str, reason: object) -> Exception:
    host = urllib.parse.urlsplit(url).netloc
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _Refused(f"the certificate of {host} is not trusted ({reason.verify_message})")
    if not isinstance(reason, OSError):
        return _Refused(f"{url} cannot be opened ({reason})")
    return _Broken(f"{host} cannot be reached ({reason.strerror or reason}); is there a network?")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
