"""Bytes that are not what they should be are read once more before anything follows from it.

What a disk or an object store holds and what arrives are two things: a bit that flipped on its way is right the next
time, and no finished work may be thrown away for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from tokenlake.errors import IntegrityError
from tokenlake.store.base import Digest, ReadStore

_Found = TypeVar("_Found")


def looked_twice(read: Callable[[], _Found]) -> _Found:
    """Return what `read` gives, the second time where it raised IntegrityError the first."""
    try:
        return read()
    except IntegrityError:
        return read()


def parsed(
    store: ReadStore, key: str, parse: Callable[[bytes, str], _Found], data: bytes | None = None
) -> _Found:
    """Return what a small object that tells damage itself says.

    Args:
        parse: takes its bytes and its name for messages.
        data: the bytes, where they were read already.

    Raises:
        NotFoundError: there is none.
        IntegrityError: it is damaged, at the second look too.
    """
    try:
        return parse(store.read(key) if data is None else data, key)
    except IntegrityError:
        return parse(store.read(key), key)


def require_digest(store: ReadStore, key: str, expected: Digest) -> None:
    """Read an object and compare it with what it should be.

    Raises:
        NotFoundError: there is none.
        IntegrityError: it is another one, at the second look too.
    """

    def look() -> None:
        got = store.digest(key)
        if got != expected:
            raise IntegrityError(
                f"{key}: it has {got.bytes} bytes with sha256 {got.sha256}; expected {expected.bytes} bytes with "
                f"sha256 {expected.sha256}, as they were written",
                file=key,
                expected=expected.sha256,
                got=got.sha256,
            )

    looked_twice(look)


def read_files(store: ReadStore, prefix: str, hashes: Mapping[str, str]) -> dict[str, bytes]:
    """Return small files below `prefix`, each with the sha256 (hex) that is expected of it.

    Raises:
        NotFoundError: one is not there.
        IntegrityError: one is another, at the second look too.
    """

    def look(name: str, expected: str) -> bytes:
        data = store.read(f"{prefix}/{name}")
        if (got := hashlib.sha256(data).hexdigest()) != expected:
            raise IntegrityError(
                f"{prefix}/{name}: its sha256 is {got}, expected {expected}, as the build wrote it. Run the build "
                "again: it puts the file in its place",
                file=f"{prefix}/{name}",
                expected=expected,
                got=got,
            )
        return data

    return {name: looked_twice(lambda n=name, h=wanted: look(n, h)) for name, wanted in hashes.items()}
