"""Tokenlake: raw text to versioned, verified, packed token datasets.

Names are imported on first use, so that ``import tokenlake`` costs a trainer nothing of the build side. Each stands
once, in ``__init__.pyi``: type checkers read that file, and so does this module.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from tokenlake._version import __version__ as __version__

# pathlib would double the time of an import.
with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as _stub:  # noqa: PTH123
    # Lines are `from MODULE import NAME as NAME`.
    _HOME: Final = {words[3]: words[1] for words in map(str.split, _stub) if len(words) == 6}

# Without `open`: `from tokenlake import *` must not take the place of Python's own.
__all__ = sorted(_HOME.keys() - {"open"})  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokenlake' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
