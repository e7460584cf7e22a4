"""Canonical bytes and the ids made of them: nothing here depends on the machine, the clock or the order of keys."""

from __future__ import annotations

import hashlib
import json
from os import PathLike
from pathlib import Path
from typing import Any, Final

import xxhash

_CHUNK: Final = 1 << 20


def canonical_json(obj: Any) -> bytes:
    """Return `obj` as JSON with sorted keys and no spaces, UTF-8; NaN and infinities raise ValueError."""
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def fingerprint(obj: Any) -> str:
    """Return the sha256 (hex) of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(obj)).hexdigest()


def file_id(source: str, path: str) -> int:
    """Return the identity of an input file: signed int64, xxh3_64 of ``source NUL path`` in UTF-8."""
    value = xxhash.xxh3_64_intdigest(f"{source}\0{path}".encode())
    return value - (1 << 64) if value >= 1 << 63 else value


def sha256_file(path: str | PathLike[str]) -> str:
    """Return the sha256 (hex) of a file's bytes, read in chunks of 1 MiB."""
    digest = hashlib.sha256()
    with Path(path).open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
