"""Files of a split that are divided by the values of a column.

For example ``train-lang=en-00000-of-00001.parquet``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, Protocol, Self, final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import STRINGS
from tokenlake.base.checks import expected
from tokenlake.errors import ConfigError
from tokenlake.etl.export.flat_manifest import FlatFile

_ARROW: Final[Any] = pa
_COMPUTE: Final[Any] = pc

_MOST_VALUES: Final = 256
"""Largest number of values: each has an open file, and rows that wait for it."""

_LONGEST_VALUE: Final = 128
"""Bytes of a value in the name of a file, for which file systems allow 255 bytes."""


class SplitFiles(Protocol):
    """Files of rows while they are written.

    Attributes:
        rows: Number of rows so far, those of finished shards included.
    """

    @property
    def rows(self) -> int: ...

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        ...

    def finish(self, naming: str | None) -> list[FlatFile]:
        """Close all files, name them, and return them."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


@final
class FilesByValue:
    """Files of one split while they are written, each with the rows of one value.

    In names a value is percent-encoded, and null is ``~null``.

    Args:
        split: Name of the split.
        schema: Schema of the rows.
        column: Name of the column.
        open_files: Function that opens the files of one value; its argument stands in
            their names.

    Raises:
        ConfigError: There is no such column, or it is not one of text, whole numbers or
            truth values. Later also: it has more than 256 values, or one too long for a
            name.
    """

    def __init__(
        self,
        split: str,
        schema: pa.Schema,
        column: str,
        open_files: Callable[[str], SplitFiles],
    ) -> None:
        if column not in schema.names:
            raise expected("shard_column", column, f"one of {', '.join(schema.names)}")
        # Values of other types, such as lists, have no short form for a name.
        column_type: Any = schema.field(column).type
        is_number = pa.types.is_integer(column_type)
        is_truth_value = pa.types.is_boolean(column_type)
        if column_type not in STRINGS and not is_number and not is_truth_value:
            raise ConfigError(
                f"shard_column: {column!r} is a column of {column_type}, expected text, whole numbers or booleans, "
                "which can be part of file names"
            )
        self._split = split
        self._column = column
        self._open_files = open_files
        self._files: dict[str, SplitFiles] = {}
        # Rows of a value that the finished shards of an interrupted export hold, and
        # that are still to come.
        self._finished_rows: dict[str, int] = {}
        self._stack = ExitStack()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        # Each value gets its rows in their order; files are opened as values come up.
        values: Any = _COMPUTE.dictionary_encode(
            batch.column(self._column), null_encoding="encode"
        )
        codes = values.indices.to_numpy()
        for code, value in enumerate(values.dictionary.to_pylist()):
            value_rows = batch.take(_ARROW.array(np.flatnonzero(codes == code)))
            value_name = self._name_of(value)
            # The first rows of a value are those that its finished shards hold.
            finished_rows = min(self._finished_rows[value_name], len(value_rows))
            self._finished_rows[value_name] -= finished_rows
            self._files[value_name].add(value_rows.slice(finished_rows))

    @property
    def rows(self) -> int:
        """Number of rows before the first one that must be added: always 0.

        The finished shards of values hold rows from everywhere in the split.
        """
        return 0

    def finish(self, naming: str | None) -> list[FlatFile]:
        """Close all files, name them, and return them by value.

        There is at least one file, even without rows.
        """
        # Sorted by name: the order in which values came up depends on the rows.
        all_files = [self._files[name] for name in sorted(self._files)]
        if not all_files:
            all_files = [self._opened(self._split)]
        # Names contain the value, but the rows are of the split.
        finished: list[FlatFile] = []
        for value_files in all_files:
            for flat_file in value_files.finish(naming):
                finished.append(replace(flat_file, split=self._split))
        return finished

    def __enter__(self) -> FilesByValue:
        return self

    def __exit__(self, *error: object) -> None:
        """Close what is open after an error; the files are for the caller to remove."""
        self._stack.close()

    def _name_of(self, value: Any) -> str:
        """Return the name of a value, whose files are opened with its first row."""
        # `~` is encoded in values, so that no text has the name of null.
        value_name = "~null"
        if value is not None:
            value_name = quote(str(value), safe="").replace("~", "%7E")
        if value_name in self._files:
            return value_name
        if len(value_name) > _LONGEST_VALUE:
            raise self._unfit(f"the value {value_name}")
        if len(self._files) == _MOST_VALUES:
            raise self._unfit(f"more than {_MOST_VALUES} values")
        series = f"{self._split}-{quote(self._column, safe='')}={value_name}"
        self._files[value_name] = self._opened(series)
        self._finished_rows[value_name] = self._files[value_name].rows
        return value_name

    def _unfit(self, values: str) -> ConfigError:
        return ConfigError(
            f"shard_column: {self._column!r} has {values}; expected few short values"
        )

    def _opened(self, split: str) -> SplitFiles:
        return self._stack.enter_context(self._open_files(split))
