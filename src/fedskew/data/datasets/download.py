"""Fetching data sets over HTTP: resumed where they broke off, checked, and never half there under their own name."""

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
from collections.abc import Callable, Sequence
from pathlib import Path

from fedskew import __version__
from fedskew.data import archives
from fedskew.data.addresses import Origin
from fedskew.errors import UserError

#: called with the bytes that are here and those of the whole file
Tell = Callable[[int, int], None]
Watch = Callable[[str], Tell]

TIMEOUT = 30.0
TRIES = 4
#: bytes that a file of unknown size may have
MOST = 10_000_000_000
_CHUNK = 1 << 18
_PASSING = {408, 425, 429, 500, 502, 503, 504}


class _Broken(Exception):
    """The connection failed, and may not fail again."""


class _Refused(Exception):
    """This address will not do, however often it is asked."""


def obtain(
    origin: Origin, folder: Path, *, mirror: str | None = None, force: bool = False, watch: Watch | None = None
) -> None:
    """Fetch and unpack the files of a data set into its place below `folder`.

    `mirror` is an address below which all of them lie, `force` replaces what is there, and `watch` is told the name of
    each file, and gives what to tell its progress.
    """
    place = folder / origin.places[0]
    check_room(folder, sum(file.size * (3 if file.packed else 1) for file in origin.files))
    for file in origin.files:
        urls = file.urls if mirror is None else (at_mirror(mirror, file.name),)
        target = (folder if file.packed else place) / file.name
        if file.packed and place.exists() and not force:
            raise UserError(f"'{place}' is there and not complete; --force replaces it by what is fetched")
        if not _is_official(target, file.checksum):
            if target.exists() and not file.packed and not force:
                raise UserError(f"'{target}' is there and not the official file; --force replaces it")
            fetch(urls, target, file.checksum, size=file.size, most=file.most, tell=watch and watch(file.name))
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
    most: int = MOST,
    tell: Tell | None = None,
    pause: float = 1.0,
    timeout: float = TIMEOUT,
) -> None:
    """Download `target` from the first of `urls` that has it.

    `checksum` is "md5:..." or "sha256:...". What has arrived lies in a file with .part behind its name, where the next
    call goes on; a finished download that is not the official file is deleted. `size` is what to tell until the server
    says better; an address that sends more than `most` bytes is given up. After a failure that may pass it is tried
    again, after `pause` seconds, then twice as many, and so on.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if _size(part) > most:
            part.unlink()
        _fetch_part(urls, part, size, most, tell, pause, timeout)
        found = digest(part, checksum.partition(":")[0])
        if found != checksum:
            part.unlink()
            raise UserError(
                f"what came for '{target.name}' is not the official file ({found}, official {checksum}) and was "
                "deleted: try again, or name another source with --mirror"
            )
        part.replace(target)
    except OSError as error:
        hint = "; make room and try again, it goes on from there" if error.errno == errno.ENOSPC else ""
        raise UserError(f"cannot write '{error.filename or part}' ({error.strerror}){hint}") from error


def digest(path: Path, kind: str) -> str:
    """``"md5:..."`` or ``"sha256:..."`` of a file."""
    with open(path, "rb") as file:
        return f"{kind}:{hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"


def _is_official(path: Path, checksum: str) -> bool:
    try:
        return digest(path, checksum.partition(":")[0]) == checksum
    except OSError:
        return False


def check_room(folder: Path, wanted: int) -> None:
    """The disk of `folder`, or of the nearest folder above it that exists, must have `wanted` bytes free."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if free < wanted:
        raise UserError(f"'{folder}' has room for {free:,} bytes and {wanted:,} are wanted: make room or go elsewhere")


def at_mirror(mirror: str, name: str) -> str:
    """The address of file `name` below the address `mirror`."""
    try:
        parts = urllib.parse.urlsplit(mirror)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of brackets that are not closed, and of ports that are none
        right = False
    if not right or re.search(r"[\s\x00-\x1f\x7f]", mirror):
        raise UserError(f"mirror {mirror!r} is no address. Give one that begins with http:// or https:// and a host.")
    return f"{mirror.rstrip('/')}/{urllib.parse.quote(name)}"


def _fetch_part(
    urls: Sequence[str], part: Path, size: int, most: int, tell: Tell | None, pause: float, timeout: float
) -> None:
    refusals = []
    for url in urls:
        fruitless, furthest = 0, _size(part)
        while True:
            try:
                _go_on(url, part, size, most, tell, timeout)
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
    kept = f"; {_size(part):,} bytes are kept in '{part}', and the next try goes on from there" if _size(part) else ""
    raise UserError(f"cannot download '{part.stem}': {', and '.join(refusals)}{kept}")


def _go_on(url: str, part: Path, size: int, most: int, tell: Tell | None, timeout: float) -> None:
    """Add to `part` what is missing of `url`, in one request; what is longer than `most` bytes is another file."""
    have = _size(part)
    answer = _open(url, have, timeout)
    if answer is None:
        return
    with answer:
        if answer.status != 206:
            have = 0  # this server always begins at the beginning
        elif not (begins := answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-"):
            raise _Refused(f"{url} answers with another part of the file than the one asked for ('{begins}')")
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() else 0
        with open(part, "ab" if have else "wb") as file:
            while total <= most and (chunk := _read(answer, most + 1 - have)):
                file.write(chunk)
                have += len(chunk)
                if have > most:
                    break
                if tell is not None:
                    tell(have, total or max(size, have))
    if max(have, total) > most:
        part.unlink()
        raise _Refused(f"{url} sends more than the {most:,} bytes that it may have, so it is another file")
    if have < total:
        raise _Broken(f"{url} broke off after {have:,} of {total:,} bytes")


def _open(url: str, have: int, timeout: float) -> http.client.HTTPResponse | None:
    """The answer of the server, which begins behind the `have` bytes that we have; None if it has no more."""
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
        return _Refused(f"{host} shows a certificate that is not trusted ({reason.verify_message})")
    if not isinstance(reason, OSError):
        return _Refused(f"{url} cannot be opened ({reason})")
    return _Broken(f"{host} cannot be reached ({reason.strerror or reason}); is there a network?")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
