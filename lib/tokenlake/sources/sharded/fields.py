"""Rows, and functions of one row. Rows given in are never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenlake.transforms.fields import RenameFields

Row = dict[str, Any]
Transform = Callable[[Row], Row | None]
"""A function of a row; None leaves the row out."""


def keeping(predicate: Callable[[Row], object]) -> Transform:
    """Return a transform that keeps the rows for which `predicate` is true."""
    return lambda row: row if predicate(row) else None


def renaming(mapping: Mapping[str, str]) -> Callable[[Row], Row]:
    """Return a transform that renames fields, {old: new}; two may swap names."""
    return RenameFields(mapping)
