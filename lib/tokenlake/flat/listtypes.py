"""Which Arrow types are lists, whatever their layout."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

_TYPES: Final[Any] = pa.types


def is_list(kind: Any) -> bool:
    """Return whether values of this type are lists."""
    return _TYPES.is_list(kind) or _TYPES.is_large_list(kind) or _TYPES.is_fixed_size_list(kind)
