"""Sealing and unsealing a document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.fingerprint import canonical_json, canonical_texts, joined
from tokenlake.sealed.canonical import parse_canonical
from tokenlake.sealed.fields import SHA256, Fields

FORMAT_VERSION: Final = 1


def seal_of(fields: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) that belongs into ``fields["sha256"]``."""
    return hashlib.sha256(canonical_json({k: v for k, v in fields.items() if k != "sha256"})).hexdigest()


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return the document's bytes: canonical JSON of ``fields`` with their seal."""
    texts = canonical_texts({key: value for key, value in fields.items() if key != "sha256"})
    return joined({**texts, "sha256": f'"{hashlib.sha256(joined(texts)).hexdigest()}"'})


def unseal(data: bytes, where: str) -> Fields:
    """Parse a sealed document, check its format version and its seal.

    Args:
        data: the file's bytes.
        where: the file's name, for messages.

    Raises:
        IntegrityError: not JSON, not canonical, another format version, or not the sealed bytes.
    """
    return _well_sealed(data, where) or _unseal_step_by_step(data, where)


def _well_sealed(data: bytes, where: str) -> Fields | None:
    """Return the content of a document that is all right; None for any that is not, without saying why."""
    try:
        fields = Fields(parse_canonical(data.decode("utf-8")), where)
        well = fields.count("format_version") == FORMAT_VERSION and is_sealed_as(
            data, fields.text("sha256", SHA256)
        )
    except (ValueError, RecursionError, IntegrityError):
        return None
    return fields if well else None


def _unseal_step_by_step(data: bytes, where: str) -> Fields:
    fields = Fields(parse(data, where), where)
    got = fields.count("format_version", low=1)
    if got != FORMAT_VERSION:
        fields.fail(
            "format_version", f"{FORMAT_VERSION} (this release reads no other; upgrade tokenlake)", got
        )
    stated = fields.text("sha256", SHA256)
    try:
        real = seal_of(fields.value)
        whole = canonical_json({**fields.value, "sha256": stated})
    except ConfigError as error:  # a lone surrogate written as an escape
        raise IntegrityError(f"{where}: not canonical JSON: {error}", file=where) from error
    if real != stated:
        fields.fail(
            "sha256",
            f"{real}, the hash of the content",
            f"{stated}; the file was changed after it was written",
        )
    if whole != data:
        raise IntegrityError(
            f"{where}: the bytes are not the canonical form of their content; the file was edited. "
            "Restore it, or rebuild the version.",
            file=where,
        )
    return fields


def is_sealed_as(data: bytes, seal: str) -> bool:
    """Say whether ``data`` are a sealed document's bytes with this very seal, without parsing them."""
    field = f'"sha256":"{seal}"'.encode()
    start = data.find(field)
    stop = start + len(field)
    if start < 0:
        return False
    # With the field goes the comma that parts it from the next one, or from the one before if it is the last.
    before, after = start, stop
    if data[stop : stop + 1] == b",":
        after = stop + 1
    elif data[start - 1 : start] == b",":
        before = start - 1
    real = hashlib.sha256(data[:before])
    real.update(memoryview(data)[after:])
    return real.hexdigest() == seal


def parse(data: bytes, where: str) -> Any:
    """Parse JSON without its ambiguities: no duplicate keys, NaN, bad UTF-8 or bottomless nesting."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{where}: not valid JSON ({error}); {len(data)} bytes. The file is cut or damaged.", file=where
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
