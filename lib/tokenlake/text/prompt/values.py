"""The values of a column as they stand in a prompt.

| the value | in the prompt |
|---|---|
| text | itself, also where it is empty |
| a boolean or a number | as JSON writes it: ``true``, ``12``, ``1.5`` |
| null, or no such column | a bad record (``null_column``); nothing at all where the column is optional |
| anything else (a list, an object, a date, NaN) | a bad record (``not_a_string``) |

What a value becomes depends on the value alone, never on the rows beside it. So JSON rows are read as the objects
they are: as columns, where a batch holds both ``1`` and ``1.5``, the former would become ``1.0``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.config.suggestion import did_you_mean
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.rendering import Column, byte_sizes, is_utf8
from tokenlake.tokenizers.encoder import SpecialScan

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
_TEXT: Final[Any] = pa.large_string()
_MISSING: Final = object()


class Values(NamedTuple):
    """A column's values of n rows.

    Attributes:
        text: large_string[n], no nulls, valid UTF-8; "" where there is a fault.
        faults: why rows cannot be used, by index.
    """

    text: Column
    faults: dict[int, Fault]


def checked_values(
    rows: Rows, columns: Sequence[str], *, optional: Iterable[str], label: str | None, scan: SpecialScan
) -> tuple[dict[str, Column], dict[int, Fault]]:
    """Return the values of `columns`, and the first fault of every row that has one.

    Args:
        optional: columns that may be null or missing.
        label: the answer's column, which may not be empty.
        scan: of special tokens that a row may not spell.
    """
    values: dict[str, Column] = {}
    faults: dict[int, Fault] = {}
    for column in columns:
        values[column], bad = values_of(rows, column, optional=column in optional)
        spelled = Fault(
            "special_token_in_text",
            f"the column {column!r} spells out a special token, which would become a control token; take it out, or "
            "set special_tokens_in_text: encode to allow it",
        )
        faults = bad | dict.fromkeys(scan.count(values[column])[0].tolist(), spelled) | faults
    if label is not None:
        empty = np.flatnonzero(byte_sizes(values[label]) == 0).tolist()
        fault = Fault("empty_label", f"the column {label!r} is empty: there is no answer to learn")
        faults = dict.fromkeys(empty, fault) | faults
    return values, faults


def values_of(rows: Rows, column: str, *, optional: bool = False) -> Values:
    """Return the texts of a column (or of a field inside one, ``a.b``)."""
    if rows.has_objects:
        return _of_objects(rows, column, optional=optional)
    names = rows.columns.schema.names
    if column in names:
        return _of_array(rows.columns.column(column), column, optional=optional)
    inside = "." in column and column.partition(".")[0] in names
    values = rows.values(column) if inside else [_MISSING] * len(rows)
    return _one_by_one(values, column, names, optional=optional)


def _of_objects(rows: Rows, column: str, *, optional: bool) -> Values:
    objects = rows.objects
    values: list[Any] = [row.get(column) for row in objects]
    if "." in column and None in values:
        values = list(rows.values(column))
    if set(map(type, values)) == {str}:
        try:
            return Values(_ARROW.array(values, _TEXT), {})
        except UnicodeEncodeError:  # half of a surrogate pair, which only a callback can make
            pass
    found = _one_by_one(values, column, (), optional=optional)
    for index in found.faults:
        row = objects[index]
        if values[index] is None and column not in row and column.partition(".")[0] not in row:
            found.faults[index] = _missing(column, tuple(row))
    return found


def _of_array(array: Any, column: str, *, optional: bool) -> Values:
    kind = _ARROW.types
    if kind.is_dictionary(array.type):
        array = array.dictionary_decode()
    plain = (kind.is_string, kind.is_large_string, kind.is_string_view, kind.is_boolean, kind.is_integer)
    if not any(is_kind(array.type) for is_kind in plain):
        return _one_by_one(array.to_pylist(), column, (), optional=optional)
    text = array if array.type == _TEXT else _COMPUTE.cast(array, _TEXT)
    if not text.null_count:
        return Values(text, {})
    nulls = [] if optional else _COMPUTE.indices_nonzero(text.is_null()).to_pylist()
    return Values(text.fill_null(""), dict.fromkeys(nulls, _null(column)))


def _one_by_one(values: Sequence[Any], column: str, known: Sequence[str], *, optional: bool) -> Values:
    texts: list[str] = []
    faults: dict[int, Fault] = {}
    for index, value in enumerate(values):
        text = _text_of(value, column, known, optional=optional)
        if isinstance(text, Fault):
            faults[index] = text
        texts.append("" if isinstance(text, Fault) else text)
    return Values(_ARROW.array(texts, _TEXT), faults)


def _text_of(value: Any, column: str, known: Sequence[str], *, optional: bool) -> str | Fault:
    """Return what one value is in a prompt, or why it cannot be there."""
    if type(value) is str:
        broken = Fault("invalid_utf8", f"the column {column!r} holds half of a surrogate pair")
        return value if is_utf8(value) else broken
    if value is None or value is _MISSING:
        return "" if optional else _null(column) if value is None else _missing(column, known)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and isfinite(value):
        return repr(float(value))
    found = repr(value) if isinstance(value, float) else type(value).__name__
    return Fault("not_a_string", f"the column {column!r} holds {found}, expected text, a number or a boolean")


def _null(column: str) -> Fault:
    return Fault(
        "null_column",
        f"the column {column!r} is missing or null; name it in optional_columns if its place may stay empty",
    )


def _missing(column: str, known: Sequence[str]) -> Fault:
    """Return the fault of a row without a column, of those that it has."""
    has = ", ".join(map(repr, known)) or "none"
    return Fault(
        "null_column", f"there is no column {column!r}; there are {has}{did_you_mean(column, known)}"
    )
