"""Files of Megatron-Core: ``NAME.bin`` and ``NAME.idx``.

A document of a version is a document with one sequence. A packed row is a document
whose sequences are the row's segments. Padding is left out: Megatron-Core packs
sequences itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.etl.export.shard_record import Part
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.token_layout import (
    NumberSpool,
    PartFile,
    TokenFacts,
    TokenLayout,
)
from tokenlake.etl.layouts import megatron

# Ends of the names of files that a pair needs while it is written.
_LENGTHS_SUFFIX: Final = ".lengths"
_DOCUMENTS_SUFFIX: Final = ".documents"


@final
class MegatronLayout(TokenLayout):
    """The format ``megatron``.

    Args:
        facts: Facts about the rows.
        dtype: Type of the ids.
    """

    def __init__(self, facts: TokenFacts, dtype: np.dtype[Any]) -> None:
        self.facts = facts
        self._dtype = dtype

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({"input_ids": pa.list_(pa.from_numpy_dtype(self._dtype))})

    def row_bytes(self, rows: TokenRows) -> Int64:
        return np.diff(rows.row_offsets) * self._dtype.itemsize

    def open(self, path: Path, parts: Sequence[Part] = ()) -> MegatronFile:
        return MegatronFile(path, self._dtype, parts)


@final
class MegatronFile:
    """One pair of files while it is written.

    The lengths of the sequences wait in files of their own, because the index begins
    with their number.

    Args:
        path: Path of the files without their suffixes.
        dtype: Type of the ids.
        parts: Parts so far of a pair that is continued.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], parts: Sequence[Part] = ()
    ) -> None:
        # Each of the three files continues after the bytes that were recorded.
        self._path = path
        self._dtype = dtype
        self._ids = PartFile(path, megatron.DATA_SUFFIX, parts)
        self._lengths = NumberSpool(path, _LENGTHS_SUFFIX, parts)
        self._document_sizes = NumberSpool(path, _DOCUMENTS_SUFFIX, parts)

    @property
    def bytes(self) -> int:
        return self._ids.bytes

    def write(self, rows: TokenRows) -> None:
        # Padding is left out: Megatron-Core fills its own rows.
        sequences = rows.sequences()
        self._ids.write_numbers(sequences.input_ids.astype(self._dtype, copy=False))
        self._lengths.write(sequences.lengths)
        self._document_sizes.write(sequences.row_sizes)

    def so_far(self) -> list[Part]:
        # The index is no part of it: it is written at the end, from the other two.
        return [
            self._ids.so_far(),
            self._lengths.so_far(),
            self._document_sizes.so_far(),
        ]

    def close(self) -> list[Part]:
        # The index states the number of sequences first, then all their lengths, which
        # are mapped into memory rather than read.
        ids_part = self._ids.close()
        with PartFile(self._path, megatron.INDEX_SUFFIX) as index_file:
            lengths = self._lengths.numbers()
            document_sizes = self._document_sizes.numbers()
            megatron.write_index(index_file.file, self._dtype, lengths, document_sizes)
            index_part = index_file.close()
        # Their files stay until the whole export is in its place.
        self._lengths.discard()
        self._document_sizes.discard()
        return [ids_part, index_part]

    def discard(self) -> None:
        self._ids.discard()
        self._lengths.discard()
        self._document_sizes.discard()
