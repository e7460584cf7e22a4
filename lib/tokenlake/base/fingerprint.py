"""Canonical bytes, and the ids made of them.

Two things have the same fingerprint if and only if they have the same canonical JSON.
Inputs, resolved options, tokenizer files and behaviour and the format version are
identity, and are put in. Worker counts, paths of the machine, clocks, and versions of
writers and engines are not, and are left out. ``1`` and ``1.0`` are different values,
key order is not part of a value, and a tuple is the same as a list.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import xxhash

from tokenlake.errors import ConfigError, SourceError

# The settings are part of every identity: another separator would change all of them.
_CANONICAL: Final = json.JSONEncoder(
    sort_keys=True,
    separators=(",", ":"),
    ensure_ascii=False,
    allow_nan=False,
    check_circular=False,
)


def canonical_json(obj: Any) -> bytes:
    """Return the one UTF-8 JSON form of ``obj``.

    Keys are sorted, and there are no spaces, and no escapes that can be avoided.

    Raises:
        ConfigError: ``obj`` holds NaN, infinity, a key that is not a string, a lone
            surrogate or a type that JSON does not have.
    """
    with _refusing():
        _check_keys(obj, "$")
        return canonical_text(obj).encode("utf-8")


def canonical_members(fields: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the canonical form of each value of an object, for :func:`joined`.

    Raises:
        ConfigError: A value has no canonical form.
    """
    with _refusing():
        _check_keys(fields, "$")
        members: dict[str, bytes] = {}
        for key, value in fields.items():
            members[key] = canonical_text(value).encode()
        return members


def joined(members: Mapping[str, bytes]) -> bytes:
    """Return the canonical form of an object from those of its values.

    Values that are repeated in many objects are encoded once.
    """
    with _refusing():
        pieces: list[bytes] = []
        for key, canonical_value in sorted(members.items()):
            pieces += (b",", _key_text(key), b":", canonical_value)
        # The first piece is a comma in front of the first member.
        return b"".join((b"{", *pieces[1:], b"}"))


@contextmanager
def _refusing() -> Generator[None]:
    """Turn errors of encoding into a ConfigError."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"a value has no canonical JSON form: {error}. "
            "Expected only str, int, finite float, bool, null, lists and objects with string keys."
        ) from error


def canonical_text(obj: Any) -> str:
    """Return the text of :func:`canonical_json`, without checks.

    It is for values that were parsed from JSON.
    """
    return _CANONICAL.encode(obj)


# Documents of one kind have the same few keys.
@functools.lru_cache(maxsize=1024)
def _key_text(key: str) -> bytes:
    return canonical_text(key).encode()


def _check_keys(obj: Any, path: str) -> None:
    """Raise ConfigError for a key that is no string.

    json.dumps turns {1: x} into {"1": x}, which would share an id.
    """
    # Other values hold no keys, and most values of an object are no containers.
    if isinstance(obj, Mapping):
        for key, value in cast("Mapping[Any, Any]", obj).items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"{path} has the key {key!r}; expected string keys only, so write {str(key)!r}"
                )
            if isinstance(value, (dict, list, tuple)):
                _check_keys(value, f"{path}.{key}")
    elif isinstance(obj, (list, tuple)):
        for index, value in enumerate(cast("list[Any]", obj)):
            if isinstance(value, (dict, list, tuple)):
                _check_keys(value, f"{path}[{index}]")


def fingerprint(obj: Any) -> str:
    """Return the sha256 (64 lower-case hex digits) of :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(obj)).hexdigest()


def file_id(source: str, path: str) -> int:
    """Return the id of an input file, a signed int64.

    It is xxh3_64 of ``source``, NUL, ``path``.

    The ``file`` field of the provenance columns holds it; the manifest's ``inputs``
    lists the files.
    """
    try:
        identity = f"{source}\0{path}".encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"source {source!r}: the file name {path!r} is not valid UTF-8; rename it to record it"
        ) from error
    # The hash is unsigned, and the column signed.
    unsigned_id = xxhash.xxh3_64_intdigest(identity)
    if unsigned_id < 1 << 63:
        return unsigned_id
    return unsigned_id - (1 << 64)
