"""Long tables of a manifest, read column by column.

A manifest may list ten thousand shards, and every value of every entry is checked before it is believed. One by one
that is a million calls; here a column is checked as a whole. These checks only ever say yes or no, and yes only where
the reader of one entry would accept each: what they do not accept is read again one by one, which says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any, Final, cast

from tokenlake.sealed import MAX_COUNT

_HEX: Final = re.compile(r"[0-9a-f]*")


def columns(values: list[Any], keys: tuple[str, ...]) -> list[tuple[Any, ...]] | None:
    """Return the columns of objects that have these keys and no others; None if not all are such objects."""
    if not are_all(values, dict) or not set(map(len, values)) <= {len(keys)}:
        return None
    try:
        return [tuple(map(itemgetter(key), values)) for key in keys]
    except KeyError:
        return None


def are_all(values: Iterable[Any], kind: type) -> bool:
    """Say whether the type of each value is this very one: True is no int."""
    return set(map(type, values)) <= {kind}


def are_counts(column: Collection[Any], low: int = 0, high: int = MAX_COUNT) -> bool:
    """Say whether all are integers of ``low .. high``."""
    return not column or (are_all(column, int) and low <= min(column) and max(column) <= high)


def are_hex(column: Collection[Any], digits: int, *, more: bool = False) -> bool:
    """Say whether all are ``digits`` lower-case hexadecimal digits; ``more``: or twice, three times ... as many."""
    if not are_all(column, str) or _HEX.fullmatch("".join(column)) is None:
        return False
    lengths = set(map(len, cast("Collection[str]", column)))
    return all(length % digits == 0 and length > 0 if more else length == digits for length in lengths)


def flat(column: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """Yield the values of all lists of a column."""
    return chain.from_iterable(column)
