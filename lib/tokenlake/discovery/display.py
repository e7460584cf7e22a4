"""Sample records made short enough to show."""

from __future__ import annotations

import math
from typing import Any, Final, cast

STRING_CHARACTERS: Final = 300
_ITEMS: Final = 5
_DEPTH: Final = 6


def shortened(value: object, limit: int = STRING_CHARACTERS, depth: int = _DEPTH) -> Any:
    """Return a JSON-able copy of `value`: long strings and lists cut (saying so), bytes by their number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}... ({len(value):,} characters)"
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {str(key): shortened(item, limit, depth - 1) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        shown = [shortened(item, limit, depth - 1) for item in items[:_ITEMS]]
        return shown if len(items) <= _ITEMS else [*shown, f"... ({len(items):,} items)"]
    return str(value)[:limit]  # dates, decimals
