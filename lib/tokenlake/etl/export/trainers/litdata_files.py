"""Files of litdata: a folder for each split, with chunks and ``index.json``.

Documents without a mask are a stream of ids, which litdata's ``TokensLoader`` cuts into
blocks. Packed rows, and documents with a mask, are dictionaries of tensors. Rows of
packed versions keep their padding, which has the segment id 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.etl.export.shard_record import Part, Shard
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.indexed_file import IndexedFile
from tokenlake.etl.export.trainers.token_layout import TokenFacts, TokenLayout
from tokenlake.etl.layouts import litdata


@final
class LitdataLayout(TokenLayout):
    """The format ``litdata``.

    Args:
        facts: Facts about the rows.
        max_bytes: Largest size of a chunk before compression, for the index; None: not
            limited.
        compression: Name of the compression of the chunks; None: they are not
            compressed.
    """

    most_bytes = litdata.MOST_CHUNK_BYTES
    has_folders = True

    def __init__(
        self,
        facts: TokenFacts,
        max_bytes: int | None,
        compression: str | None = None,
    ) -> None:
        self.facts = facts
        self._compression = compression
        self._max_bytes = max_bytes
        # A mask beside the ids would be lost in a stream, which is ids alone.
        self._types: dict[str, str] = {}
        for column_name, column_type in facts.column_types.items():
            self._types[column_name] = column_type.name
        is_stream = list(self._types) == ["input_ids"]
        self._items = litdata.Items(self._types, is_stream=is_stream)

    @property
    def schema(self) -> pa.Schema:
        columns: dict[str, Any] = {}
        for column_name, column_type in self.facts.column_types.items():
            columns[column_name] = pa.list_(pa.from_numpy_dtype(column_type))
        return pa.schema(columns)

    def row_bytes(self, rows: TokenRows) -> Int64:
        # An item has its offset in the head; a dictionary also the size of each value.
        column_types = self.facts.column_types.values()
        id_bytes = sum(column_type.itemsize for column_type in column_types)
        row_head_bytes = 4
        if not self._items.is_stream:
            row_head_bytes += 4 * len(self._types)
        return np.diff(rows.row_offsets) * id_bytes + row_head_bytes

    def open(self, path: Path, parts: Sequence[Part] = ()) -> IndexedFile:
        compress = None
        if self._compression is not None:
            compress = partial(litdata.compressed, compression=self._compression)
        return IndexedFile(path, self._encode, litdata.chunk_head, compress)

    def shard_name(self, index: int) -> str:
        return litdata.chunk_name(index, self._compression)

    def split_index(self, shards: Sequence[Shard]) -> Mapping[str, bytes]:
        # Sizes of the index are those before compression. `dim` is the number of ids, by
        # which `TokensLoader` cuts blocks.
        chunks: list[litdata.Chunk] = []
        for shard in shards:
            chunk_part = shard.parts[0]
            chunk_bytes = chunk_part.content_bytes or chunk_part.bytes
            token_count = None
            if self._items.is_stream:
                id_bytes = chunk_bytes - litdata.head_bytes(shard.rows)
                token_count = id_bytes // np.dtype(self._types["input_ids"]).itemsize
            chunk_name = self.shard_name(shard.index)
            chunk = litdata.Chunk(chunk_name, chunk_bytes, shard.rows, token_count)
            chunks.append(chunk)
        index_bytes = self._items.index_bytes(
            chunks, self._max_bytes, self._compression
        )
        return {litdata.INDEX: index_bytes}

    def _encode(self, rows: TokenRows) -> pa.LargeBinaryArray:
        return self._items.encode(self.facts.column_arrays(rows), rows.row_offsets)
