"""Which software wrote the bytes: recorded beside the identity, never part of it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tokenlake._version import __version__


@cache
def produced_by(engine: str | None = None) -> dict[str, str]:
    """Name to version of the writer and, where one is given, of the tokenizer engine."""
    names = ["pyarrow", *([engine] if engine else [])]
    return {"tokenlake": __version__} | {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
