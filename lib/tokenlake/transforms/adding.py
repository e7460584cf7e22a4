"""A field more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast, final

import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.rows import Row
from tokenlake.transforms.base import Fields, Outcome, Transform
from tokenlake.transforms.columnwise import changed, column_or_none, with_column
from tokenlake.transforms.fields import one_name

_ARROW: Final[Any] = pa


@final
class AddField(Transform):
    """Gives every row a field, in the place of one of that name: the same value for all, or a function of the row."""

    def __init__(self, field: str, value: Any | Callable[[Row], Any]) -> None:
        """Take the name of the field, and its value or what computes it."""
        self._field, self._value = one_name("AddField", field), value
        self._compute = cast("Callable[[Row], Any]", value) if callable(value) else None
        if isinstance(value, type):
            raise ConfigError(
                f"AddField: got the class {value.__name__}, must be a value or a function of a row"
            )
        self._column = None if self._compute else column_or_none([value])

    def __call__(self, example: Row) -> Row:
        """Return the row with the field."""
        return {**example, self._field: self._compute(example) if self._compute else self._value}

    def on_columns(self, columns: pa.RecordBatch) -> Outcome | None:
        """Add a column of one value."""
        if self._column is None:
            return None
        values = _ARROW.repeat(self._column[0], columns.num_rows)
        return changed(with_column(columns, self._field, values), columns.num_rows)

    def needs(self, wanted: Fields = None) -> Fields:
        """Return what is wanted, without this field; a function may look at anything."""
        if wanted is None or self._compute:
            return None
        return tuple(name for name in wanted if name != self._field)

    def __repr__(self) -> str:
        return f"AddField({self._field!r}, {self._value!r})"
