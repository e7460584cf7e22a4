"""A function of one field's value."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.faults import Fault
from tokenlake.rows import Row, Rows
from tokenlake.transforms.base import Fields, Outcome, Transform, fault_of
from tokenlake.transforms.columnwise import all_bad, column_or_none, with_column
from tokenlake.transforms.fields import missing, one_name, require, union


@final
class MapField(Transform):
    """Puts ``fn(value)`` in the place of a field's value, or into another field; null is a value, too.

    A row without the field is bad (``missing_field``).
    """

    def __init__(self, field: str, fn: Callable[[Any], Any], output_field: str | None = None) -> None:
        """Take the field, the function of its value, and where its result goes (None: the same field)."""
        if not callable(fn):  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigError(f"MapField: got {fn!r}, must be a function of a value")
        self._field, self._function = one_name("MapField", field), fn
        self._output = one_name("MapField", field if output_field is None else output_field)

    def __call__(self, example: Row) -> Row:
        """Return the row with the function's result."""
        require("MapField", example, (self._field,))
        return {**example, self._output: self._function(example[self._field])}

    def on_columns(self, columns: pa.RecordBatch) -> Outcome:
        """Map one column; the others stay as they are."""
        fault = missing("MapField", columns.schema.names, (self._field,))
        if fault:
            return all_bad(columns.num_rows, fault)
        values, bad = self._mapped(columns.column(self._field).to_pylist())
        keep = np.ones(columns.num_rows, np.bool_)
        keep[[index for index, _ in bad]] = False
        left = Rows(columns).select(keep)
        made = column_or_none(list(compress(values, keep.tolist())))
        if made is not None:
            rows = Rows(with_column(left.columns, self._output, made))
        else:  # values that no column can hold as they are
            mapped = compress(values, keep.tolist())
            rows = Rows(
                objects=[
                    {**row, self._output: value} for row, value in zip(left.objects, mapped, strict=True)
                ]
            )
        return Outcome(rows, np.flatnonzero(keep), bad=tuple(bad))

    def _mapped(self, values: list[Any]) -> tuple[list[Any], list[tuple[int, Fault]]]:
        made: list[Any] = []
        bad: list[tuple[int, Fault]] = []
        for index, value in enumerate(values):
            try:
                made.append(self._function(value))
            except BadRecordError as error:
                made.append(None)
                bad.append((index, fault_of(error)))
        return made, bad

    def needs(self, wanted: Fields = None) -> Fields:
        """Return the field, and what is wanted of the others."""
        if wanted is None:
            return None
        return union([name for name in wanted if name != self._output], [self._field])

    def __repr__(self) -> str:
        return f"MapField({self._field!r}, {self._function!r}, {self._output!r})"
