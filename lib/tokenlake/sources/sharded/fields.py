"""Rows, and functions of one row. Rows given in are never changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Transform = Callable[[Row], Row | None]
"""A function of a row; None leaves the row out."""


def keeping(predicate: Callable[[Row], object]) -> Transform:
    """Return a transform that keeps the rows for which `predicate` is true."""
    return lambda row: row if predicate(row) else None
