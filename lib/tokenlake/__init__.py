"""Tokenlake: raw text to versioned, verified, packed token datasets.

Names are imported on first use, so that ``import tokenlake`` costs a trainer nothing of
the build side. The names of :mod:`tokenlake.easydel` work here, too, without being
listed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from tokenlake._version import __version__ as __version__
from tokenlake.base.lazy_names import load, stub_names
from tokenlake.base.names_elsewhere import missing_name

_HOMES: Final = stub_names(__file__)
_EXTRA: Final = "etl"  # installs what the build side needs; the trainer names its own

# Without `open`: `from tokenlake import *` must not take the place of Python's own.
__all__ = sorted(_HOMES.keys() - {"open"})  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        seeds = import_module("tokenlake.easydel")
        if name not in seeds.__all__:
            raise missing_name("tokenlake", name)
        home = f"{seeds.__name__}:{name}"
    value = load(home, f"tokenlake.{name}", _EXTRA)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
