"""Dotted paths into JSON records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

MISSING: Final = object()
"""What :func:`follow` returns where a path leads nowhere."""


def keys_of(record: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Return the keys that `path` stands for in `record`.

    A field that bears the whole path as its name comes first: ``a.b`` is the field "a.b" where there
    is one, else the field "b" of the object in "a".
    """
    return (path,) if path in record else tuple(path.split("."))


def follow(record: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """Return what lies at `keys`, MISSING where a key is missing or its holder is no object."""
    value: Any = record
    for key in keys:
        if not isinstance(value, Mapping):
            return MISSING
        value = cast("Mapping[str, Any]", value).get(key, MISSING)
    return value
