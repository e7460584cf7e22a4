"""The names of EasyDeL's data package, for code that was written for it.

Example: ``import tokenlake.easydel as ed``.

They work as names of ``tokenlake``, too, whose own list they would make three times as
long. Each is imported on first use.
"""

from __future__ import annotations

from typing import Any, Final

from tokenlake.base.lazy_names import load, stub_names
from tokenlake.base.names_elsewhere import missing_name

_HOMES: Final = stub_names(__file__)

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise missing_name(__name__, name)
    value = load(_HOMES[name], f"tokenlake.{name}", "etl")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
