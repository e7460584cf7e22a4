"""Files of MosaicML Streaming: a folder for each split, with shards and ``index.json``.

A row is a sample. Its ids are the column ``tokens``, under which LLM Foundry reads
them; the other columns have our names. Rows of packed versions keep their padding,
which has the segment id 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.etl.export.shard_record import Part, Shard
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.indexed_file import IndexedFile
from tokenlake.etl.export.trainers.token_layout import TokenFacts, TokenLayout
from tokenlake.etl.layouts import mds

_IDS_NAME: Final = "tokens"
"""Name of the column of ids, which LLM Foundry expects."""

_MOST_SHAPE_BYTES: Final = 9
"""Bytes of the size and the shape of an array, at most."""


@final
class MdsLayout(TokenLayout):
    """The format ``mds``.

    Args:
        facts: Facts about the rows.
        max_bytes: Largest size of a shard, for the index; None: not limited.
    """

    most_bytes = mds.MOST_SHARD_BYTES
    has_folders = True

    def __init__(self, facts: TokenFacts, max_bytes: int | None) -> None:
        self.facts = facts
        # Packed rows have one length, which the encoding states once for all samples.
        self._names = {name: name for name in facts.column_types}
        self._names["input_ids"] = _IDS_NAME
        columns: list[mds.MdsColumn] = []
        for column_name, column_type in facts.column_types.items():
            mds_name = self._names[column_name]
            columns.append(mds.MdsColumn(mds_name, column_type.name, facts.width))
        self._columns = mds.MdsColumns.of(columns)
        self._config = self._columns.config(max_bytes)
        # A sample has its offset in the head of the file; documents also state a shape.
        self._row_head_bytes = 4
        if facts.width is None:
            self._row_head_bytes += _MOST_SHAPE_BYTES * len(columns)

    @property
    def schema(self) -> pa.Schema:
        columns: dict[str, Any] = {}
        for column_name, column_type in self.facts.column_types.items():
            mds_name = self._names[column_name]
            columns[mds_name] = pa.list_(pa.from_numpy_dtype(column_type))
        return pa.schema(columns)

    def row_bytes(self, rows: TokenRows) -> Int64:
        column_types = self.facts.column_types.values()
        id_bytes = sum(column_type.itemsize for column_type in column_types)
        return np.diff(rows.row_offsets) * id_bytes + self._row_head_bytes

    def open(self, path: Path, parts: Sequence[Part] = ()) -> IndexedFile:
        # A shard repeats the configuration of the index before its samples.
        return IndexedFile(path, self._encode, partial(mds.shard_head, self._config))

    def shard_name(self, index: int) -> str:
        return mds.shard_name(index)

    def split_index(self, shards: Sequence[Shard]) -> Mapping[str, bytes]:
        # An entry is the name, the size in bytes and the number of samples of a shard.
        entries: list[tuple[str, int, int]] = []
        for shard in shards:
            file_name = self.shard_name(shard.index)
            entries.append((file_name, shard.parts[0].bytes, shard.rows))
        return {mds.INDEX: mds.index_bytes(self._config, entries)}

    def _encode(self, rows: TokenRows) -> pa.LargeBinaryArray:
        mds_arrays: dict[str, Any] = {}
        for column_name, numbers in self.facts.column_arrays(rows).items():
            mds_arrays[self._names[column_name]] = numbers
        return self._columns.encode(mds_arrays, rows.row_offsets)
