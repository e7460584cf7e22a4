"""Python rows as Arrow batches of one schema, which the first rows decide."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import BadRecordError
from tokenlake.rowwise.shard_files import is_list
from tokenlake.rowwise.source import Row
from tokenlake.sources.rows import column_of, names_in

_ARROW: Final[Any] = pa
_JSON_KINDS: Final = frozenset({bool, int, float, str, list, dict, type(None)})
_UNFIT: Final = (pa.ArrowInvalid, TypeError, ValueError, OverflowError)


@final
class RowsToArrow:
    """Makes batches of rows.

    A column has the type of its values in the first batch, by the rules of :mod:`tokenlake.sources.rows`, but values of
    several kinds are an error instead of JSON text. Later values must be of that type, or become it exactly (1 and
    1.0). NumPy arrays are lists of their own kind of number, and dates, bytes and decimals what Arrow has for them.

    Args:
        schema: None to let the first batch decide.
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema
        self._rows = 0

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return the next rows as a batch; a key that a row lacks is null.

        Raises:
            BadRecordError: a value does not fit, or a row has a field that the first ones did not; names row and field.
        """
        for place, row in enumerate(rows):
            if not isinstance(row, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self._error(place, "", f"got {type(row).__name__}, expected a dict")
        names = names_in(rows)
        if self.schema is None:
            arrays = [self._column(rows, name, None) for name in names]
            self.schema = _ARROW.schema(
                [(name, array.type) for name, array in zip(names, arrays, strict=True)]
            )
        else:
            self._refuse_new(rows, names)
            arrays = [self._column(rows, field.name, field.type) for field in self.schema]
        self._rows += len(rows)
        if not arrays:  # a batch without columns has no length of its own
            return _ARROW.RecordBatch.from_struct_array(_ARROW.array([{}] * len(rows), pa.struct([])))
        return _ARROW.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, rows: Sequence[Row], name: str, kind: Any) -> Any:
        """Return a field as an array of the type `kind`, None for that of its values."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._error(0, str(name), "names of fields must be text")
        values = [row.get(name) for row in rows]
        try:
            return _array(values, kind)
        except _UNFIT as error:
            place = _culprit(values, kind)
            why = "cannot stand in a column with the values before it"
            if kind is not None:
                hint = "; the first rows held nothing but null there, so give a schema"
                why = f"is no {kind}, which the first rows decided{hint if kind == pa.null() else ''}"
            raise self._error(place, name, f"{_shown(values[place])} {why}", error) from error

    def _refuse_new(self, rows: Sequence[Row], names: tuple[str, ...]) -> None:
        known = set(self.schema.names if self.schema is not None else ())
        for name in names:
            if name not in known:
                place = next(index for index, row in enumerate(rows) if name in row)
                raise self._error(
                    place, name, "the first rows had no such field; give a schema, or the same fields to all"
                )

    def _error(self, place: int, name: str, detail: str, cause: Exception | None = None) -> BadRecordError:
        row = self._rows + place
        because = f" ({cause})" if cause is not None and str(cause) else ""
        return BadRecordError(
            f"row {row}{f', field {name!r}' if name else ''}: {detail}{because}",
            row=row,
            field=name,
            reason="type_mismatch",
        )


def _array(values: Sequence[Any], kind: Any) -> Any:
    return _typed(values) if kind is None else _cast(values, kind)


def _typed(values: Sequence[Any]) -> Any:
    """Return values as an array of their own type; anything that would have to become another value is an error."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {np.ndarray} and (array := _joined(values)) is not None:
        return array
    if not kinds <= _JSON_KINDS:
        return _natural(values)
    try:
        array = column_of(values)
    except TypeError:  # something inside that JSON does not have
        return _natural(values)
    if array.type != pa.large_string() or kinds <= {str}:
        return array
    if kinds in ({list}, {dict}):  # such as lists of bytes
        return _natural(values)
    raise TypeError(f"values of {', '.join(sorted(kind.__name__ for kind in kinds))}")


def _cast(values: Sequence[Any], kind: Any) -> Any:
    """Return values as an array of the type `kind`, if they are equal then."""
    array = _joined(values)
    array = _natural(values) if array is None else array
    if array.type == kind:
        return array
    if not _becomes(array.type, kind):
        raise TypeError(f"values of {array.type}")
    array = array.cast(kind)
    if is_list(kind) and not kind.value_field.nullable and array.flatten().null_count:
        raise TypeError("null inside a list that may hold none")
    return array


def _natural(values: Sequence[Any]) -> Any:
    """Return values as Arrow sees them, with two of its liberties taken away: True is no 1.0, and bytes are no text."""
    array = _ARROW.array(values)
    if _has_leaf(
        array.type,
        lambda kind: _ARROW.types.is_floating(kind) or _ARROW.types.is_binary(kind),
    ):
        found = set[type[Any]]()
        for value in values:
            _kinds_in(value, found)
        if (bool in found and float in found) or (bytes in found and str in found):
            raise TypeError(f"values of {', '.join(sorted(kind.__name__ for kind in found))}")
    return array


def _kinds_in(value: Any, found: set[type[Any]]) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _kinds_in(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _kinds_in(item, found)
    else:
        found.add(type(value))


def _becomes(kind: Any, wanted: Any) -> bool:
    """Whether values of one type may become another's by a cast that checks every value."""
    types = _ARROW.types
    if kind == wanted or types.is_null(kind):
        return True
    if types.is_struct(kind) and types.is_struct(wanted):
        names = {child.name: child.type for child in wanted}
        return all(child.name in names and _becomes(child.type, names[child.name]) for child in kind)
    if is_list(kind) and is_list(wanted):
        return _becomes(kind.value_type, wanted.value_type)
    if types.is_dictionary(wanted):
        return _becomes(kind, wanted.value_type)
    return any(family(kind) and family(wanted) for family in _FAMILIES)


def _is_any_of(*names: str) -> Callable[[Any], bool]:
    tests = [getattr(_ARROW.types, f"is_{name}") for name in names]
    return lambda kind: any(test(kind) for test in tests)


_FAMILIES: Final[tuple[Callable[[Any], bool], ...]] = (
    _is_any_of("integer", "floating"),
    _is_any_of("string", "large_string"),
    _is_any_of("binary", "large_binary", "fixed_size_binary"),
    _is_any_of("temporal"),
    _is_any_of("decimal"),
)
"""Types of which a value of one may be a value of another."""


def _has_leaf(kind: Any, test: Callable[[Any], bool]) -> bool:
    if is_list(kind):
        return _has_leaf(kind.value_type, test)
    if _ARROW.types.is_struct(kind):
        return any(_has_leaf(child.type, test) for child in kind)
    return test(kind)


def _joined(values: Sequence[Any]) -> Any:
    """Return arrays of one dimension and kind as one list array, None where they are anything else."""
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.ndim == 1]
    if len(arrays) < len(values) or not arrays or len({array.dtype for array in arrays}) > 1:
        return None
    lengths = np.array([len(array) for array in arrays], np.int64)
    if lengths.sum() > np.iinfo(np.int32).max:
        return None
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    inner = _ARROW.array(np.concatenate(arrays))
    kind = pa.list_(pa.field("item", inner.type, nullable=False))
    return _ARROW.ListArray.from_arrays(_ARROW.array(offsets), inner, type=kind)


def _culprit(values: Sequence[Any], kind: Any) -> int:
    """Return the place of the first value that is not of a type, or (None) that fits none before it."""

    def is_unfit(place: int) -> bool:
        try:
            _array(values[: place + 1] if kind is None else [values[place]], kind)
        except _UNFIT:
            return True
        return False

    if kind is None:  # from the culprit on nothing fits
        return bisect_left(range(len(values) - 1), True, key=is_unfit)
    return next(filter(is_unfit, range(len(values))), 0)


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text[:60]}{'...' if len(text) > 60 else ''} ({type(value).__name__})"
