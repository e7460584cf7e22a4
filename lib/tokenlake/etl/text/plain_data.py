"""Texts in plain data: in lists and objects as JSON has them, at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in plain data, names of fields among them."""
    # A list of pending values in the place of recursion: rows may be nested deeply.
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            fields = cast("Mapping[Any, Any]", item)
            pending += fields
            pending += fields.values()
        elif isinstance(item, list | tuple):
            pending += cast("Sequence[Any]", item)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with every text in it changed, but for names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {name: with_texts(item, change) for name, item in fields.items()}
    if isinstance(value, list):
        return [with_texts(item, change) for item in cast("list[Any]", value)]
    return value
