"""Hash of a shard's content, whatever its encoding, compression or row groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import pyarrow as pa
import xxhash

from tokenlake.base.arrays import FlatRows, Level, Values, levels_of


class LogicalHasher:
    """Hash of rows, column by column.

    Equal digests mean equal rows, whatever wrote the file.

    A column is hashed with xxh3 (128 bit, hex), over the little-endian values of all
    rows in order:

    - A list column hashes its lengths (int32) and its flattened values separately, and
      joins the two digests.
    - A struct hashes each child.
    - A string or binary column hashes its lengths (int64) and its bytes.
    - A null is hashed as zero, an empty list or an empty string. If there was one, the
      numbers (int64) of the nulls among the values of their level are hashed separately
      and follow.

    Example: a column of lists with the rows ``[7, 8]`` and ``[9]`` has two levels. Its
    digest is xxh3 of the lengths ``2 1``, then xxh3 of the values ``7 8 9``.
    """

    def __init__(self) -> None:
        # Hashes of the levels of each column, from its lists down to its values.
        self._levels: dict[str, list[_LevelHash]] = {}

    def update(self, rows: FlatRows | pa.RecordBatch | pa.Table) -> None:
        """Add rows; after any call, even without rows, every column has a digest."""
        if isinstance(rows, FlatRows):
            for column_name, levels in rows.levels.items():
                self._add(column_name, levels)
            return
        # Arrow's forms: a column of a record batch is one array, that of a table has
        # chunks. A column without chunks is added empty, so that it has a digest.
        for column_name, column in zip(rows.schema.names, rows.columns, strict=True):
            chunks = [column]
            if isinstance(column, pa.ChunkedArray):
                chunks = column.chunks or [pa.array([], column.type)]
            for chunk in chunks:
                self._add(column_name, levels_of(chunk))

    def _add(self, name: str, levels: Sequence[Level]) -> None:
        """Add an array of a column, given by its levels."""
        hashes = self._levels.setdefault(name, [_LevelHash() for _ in levels])
        for level_hash, level in zip(hashes, levels, strict=True):
            level_hash.update(*level)

    def update_list(
        self, name: str, values: Values, lengths: Values | None = None
    ) -> None:
        """Add values of a column of lists without nulls.

        They are added as :meth:`update` adds them with their rows.

        Args:
            name: Name of the column; all of it is added by this method.
            values: Next values; they may end inside a row.
            lengths: Lengths of the next rows, int32; None if all rows have one length,
                which is not hashed.
        """
        hashes = self._levels.setdefault(name, [_LevelHash(), _LevelHash()])
        if lengths is not None:
            hashes[0].update(len(lengths), lengths, None)
        hashes[1].update(len(values), values, None)

    def digest(self) -> dict[str, str]:
        """Return the hex digest of each column, by name.

        A digest has 32 digits for each level, and for the nulls of a level.
        """
        digests: dict[str, str] = {}
        for name, hashes in self._levels.items():
            digests[name] = "".join(level_hash.hexdigest() for level_hash in hashes)
        return digests


@final
class _LevelHash:
    """Hashes of one level of one column: its values, and the numbers of its nulls."""

    def __init__(self) -> None:
        self._values: xxhash.xxh3_128 | None = None
        self._nulls: xxhash.xxh3_128 | None = None
        self._count = 0  # values so far, nulls included

    def update(self, count: int, values: Values | None, nulls: Values | None) -> None:
        """Add values.

        Args:
            count: Number of values.
            values: Values; None if they are in the levels below.
            nulls: Numbers of the nulls among the values; None if there are none.
        """
        # A hash begins with the first value, so that a level without values or nulls
        # has none.
        if values is not None:
            if self._values is None:
                self._values = xxhash.xxh3_128()
            self._values.update(values.view(np.uint8).data)
        # Numbers count from the first value of the level, in all arrays that were
        # added.
        if nulls is not None:
            if self._nulls is None:
                self._nulls = xxhash.xxh3_128()
            self._nulls.update((nulls + self._count).astype("<i8").view(np.uint8).data)
        self._count += count

    def hexdigest(self) -> str:
        """Return the digest of the values, then that of the nulls.

        Either may be missing.
        """
        digest = ""
        for partial_hash in (self._values, self._nulls):
            if partial_hash is not None:
                digest += partial_hash.hexdigest()
        return digest
