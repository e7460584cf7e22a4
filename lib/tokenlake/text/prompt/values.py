"""The values of a column as they stand in a prompt.

| the value | in the prompt |
|---|---|
| text | itself, also where it is empty |
| a boolean or a number | as JSON writes it: ``true``, ``12``, ``1.5`` |
| null, or no such column | a bad record (``null_column``); nothing at all where the column is optional |
| anything else (a list, an object, a date, NaN) | a bad record (``not_a_string``) |

What a value becomes depends on the value alone, never on the rows beside it. So JSON rows are read as the objects
they are: as columns, where a batch holds both ``1`` and ``1.5``, the former would become ``1.0``.

The values of all columns of a prompt, and why rows cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.config.suggestion import did_you_mean
from tokenlake.sources.rows import Fault, Row, Rows

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc
_TEXT: Final[Any] = pa.large_string()
_MISSING: Final = object()


@final
@dataclass(frozen=True, slots=True)
class Values:
    """A column's values of n rows.

    Attributes:
        text: large_string[n], no nulls, valid UTF-8; "" where there is a fault.
        faults: why rows cannot be used, by index.
    """

    text: pa.LargeStringArray
    faults: dict[int, Fault]


def values_of(rows: Rows, column: str, *, optional: bool = False) -> Values:
    """Return the texts of a column (or of a field inside one, ``a.b``)."""
    if rows.has_objects:
        return _of_objects(rows, column, optional=optional)
    batch = rows.columns
    if column not in batch.schema.names:
        if column.partition(".")[0] in batch.schema.names and "." in column:
            return _one_by_one(rows.values(column), column, batch.schema.names, optional=optional)
        return _one_by_one([_MISSING] * len(rows), column, batch.schema.names, optional=optional)
    return _of_array(batch.column(column), column, batch.schema.names, optional=optional)


def text_of(value: Any, column: str, *, optional: bool = False) -> str | Fault:
    """Return what one value is in a prompt, or why it cannot be there."""
    if type(value) is str:
        return value if _is_whole(value) else _half(column)
    if value is None:
        return "" if optional else _null(column)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and isfinite(value):
        return repr(float(value))
    found = repr(value) if isinstance(value, float) else type(value).__name__
    return Fault("not_a_string", f"the column {column!r} holds {found}, expected text, a number or a boolean")


def missing(column: str, known: Sequence[str]) -> Fault:
    """Return the fault of a row without a column, of those that it has."""
    has = ", ".join(map(repr, known)) or "none"
    return Fault(
        "null_column", f"there is no column {column!r}; there are {has}{did_you_mean(column, known)}"
    )


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
        if values[index] is None and not _has(objects[index], column):
            found.faults[index] = missing(column, tuple(objects[index]))
    return found


def _has(row: Row, column: str) -> bool:
    return column in row or column.partition(".")[0] in row


def _of_array(array: Any, column: str, known: Sequence[str], *, optional: bool) -> Values:
    kind = _ARROW.types
    if kind.is_dictionary(array.type):
        array = array.dictionary_decode()
    textual = (
        kind.is_string(array.type) or kind.is_large_string(array.type) or kind.is_string_view(array.type)
    )
    if not (textual or kind.is_boolean(array.type) or kind.is_integer(array.type)):
        return _one_by_one(array.to_pylist(), column, known, optional=optional)
    text = array if array.type == _TEXT else _COMPUTE.cast(array, _TEXT)
    if not text.null_count:
        return Values(text, {})
    nulls = [] if optional else _COMPUTE.indices_nonzero(text.is_null()).to_pylist()
    return Values(text.fill_null(""), {index: _null(column) for index in nulls})


def _one_by_one(values: Sequence[Any], column: str, known: Sequence[str], *, optional: bool) -> Values:
    texts: list[str] = []
    faults: dict[int, Fault] = {}
    for index, value in enumerate(values):
        if value is _MISSING:
            text = "" if optional else missing(column, known)
        else:
            text = text_of(value, column, optional=optional)
        if isinstance(text, Fault):
            faults[index] = text
        texts.append("" if isinstance(text, Fault) else text)
    return Values(_ARROW.array(texts, _TEXT), faults)


def _is_whole(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _null(column: str) -> Fault:
    return Fault(
        "null_column",
        f"the column {column!r} is missing or null; name it in optional_columns if its place may stay empty",
    )


def _half(column: str) -> Fault:
    return Fault("invalid_utf8", f"the column {column!r} holds half of a surrogate pair")


Int64 = npt.NDArray[np.int64]
_JudgedCOMPUTE: Final[Any] = pc


def judged_values(
    rows: Rows, columns: Sequence[str], *, optional: Iterable[str], label: str | None, pattern: str
) -> tuple[dict[str, Values], dict[int, Fault]]:
    """Return the values of `columns`, and the first fault of every row that has one.

    Args:
        optional: columns that may be null or missing.
        label: the answer's column, which may not be empty.
        pattern: of special tokens that a row may not spell; "" for none.
    """
    values: dict[str, Values] = {}
    faults: dict[int, Fault] = {}
    for column in columns:
        found = values[column] = values_of(rows, column, optional=column in optional)
        faults = found.faults | _spelled(column, found, pattern) | faults
    if label is not None:
        empty = np.flatnonzero(sizes_of(values[label].text) == 0).tolist()
        fault = Fault("empty_label", f"the column {label!r} is empty: there is no answer to learn")
        faults = dict.fromkeys(empty, fault) | faults
    return values, faults


def _spelled(column: str, values: Values, pattern: str) -> dict[int, Fault]:
    """Find the rows whose own value spells a special token."""
    if not pattern:
        return {}
    fault = Fault(
        "special_token_in_text",
        f"the column {column!r} spells out a special token, which would become a control token; take it out, or set "
        "special_tokens_in_text: encode to allow it",
    )
    matches = _JudgedCOMPUTE.match_substring_regex(values.text, pattern)
    return dict.fromkeys(_JudgedCOMPUTE.indices_nonzero(matches).to_pylist(), fault)


def sizes_of(text: Any) -> Int64:
    """int64[n], UTF-8 bytes of each text."""
    return _JudgedCOMPUTE.binary_length(text).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
