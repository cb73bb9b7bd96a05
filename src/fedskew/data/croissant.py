"""Croissant metadata of a data set: what it is, where it comes from, and the digests of its files, as JSON-LD."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from fedskew.data.datasets import archives
from fedskew.data.registry import DatasetInfo, DownloadFile

_VERSION = "http://mlcommons.org/croissant/1.0"
#: the names of version 1.0, by the vocabulary they belong to
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_FORMATS = {".csv": "text/csv", ".gz": "application/gzip", ".zip": "application/zip", ".json": "application/json"}


def metadata(
    info: DatasetInfo | None, name: str, checksums: Mapping[str, str], classes: Sequence[str], citation: str = ""
) -> dict[str, Any]:
    """Describe a data set that was read.

    Args:
        info: What fedskew knows of it; None for the user's own data.
        name: Its name.
        checksums: Digests of what was read, by file or array: "md5:..." or "sha256:...".
        classes: The names of its classes.
        citation: BibTeX of its papers.
    """
    downloads = [] if info is None else [_download(file) for file in info.files]
    whole = {each["name"]: each["@id"] for each in downloads}
    official = set() if info is None else {(file.name, file.checksum) for file in info.files}
    read = [_read(*each, whole) for each in checksums.items() if each not in official]
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _VERSION,
        "name": name,
        "description": f"{'Data of a user' if info is None else info.what}. Classes: {', '.join(classes)}.",
        "license": None if info is None or info.yours else info.license,
        "url": None if info is None else _address(info),
        "citeAs": citation,
        "distribution": [*downloads, *read],
    }
    return {key: value for key, value in described.items() if value}


def _download(file: DownloadFile) -> dict[str, Any]:
    kind, _, digest = file.checksum.partition(":")
    return _file(file.name) | {"contentUrl": file.urls[0], "contentSize": f"{file.size} B", kind: digest}


def _read(name: str, digest: str, downloads: Mapping[str, str]) -> dict[str, Any]:
    """Describe a file or an array as it was read, out of the download that is packed around it, if there is one."""
    kind, _, value = digest.partition(":")
    around = [
        each for each in downloads if each.startswith(PurePosixPath(name).name) or each.endswith(archives.ENDINGS)
    ]
    place = {"containedIn": {"@id": downloads[around[0]]}} if len(around) == 1 else {}
    plain = re.sub(r"\s", "_", name)  # an id has no blanks
    return _file(name) | {"@id": f"read/{plain}", "contentUrl": name, kind: value} | place


def _file(name: str) -> dict[str, Any]:
    kind = _FORMATS.get(PurePosixPath(name).suffix, "application/octet-stream")
    return {"@type": "cr:FileObject", "@id": name, "name": name, "encodingFormat": kind}


def _address(info: DatasetInfo) -> str:
    """Return a page or a file of the data set on the web."""
    said = re.search(r"https?://[^\s,;]+", f"{info.how_to_get} {' '.join(url for f in info.files for url in f.urls)}")
    return "" if said is None else said[0]
