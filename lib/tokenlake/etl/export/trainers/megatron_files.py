"""Files of Megatron-Core: ``NAME.bin`` and ``NAME.idx``.

A document of a version is a document with one sequence. A packed row is a document
whose sequences are the row's segments. Padding is left out: Megatron-Core packs
sequences itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.token_layout import (
    Part,
    PartFile,
    TokenFacts,
    TokenLayout,
)
from tokenlake.etl.layouts import megatron


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

    def open(self, path: Path) -> MegatronFile:
        return MegatronFile(path, self._dtype)


@final
class MegatronFile:
    """One pair of files while it is written.

    The lengths of the sequences wait in a temporary file, because the index begins with
    their number.

    Args:
        path: Path of the files without their suffixes.
        dtype: Type of the ids.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path = path
        self._dtype = dtype
        self._ids = PartFile(path, megatron.DATA_SUFFIX)
        self._lengths = _Spool(path.parent)
        self._document_sizes = _Spool(path.parent)

    @property
    def bytes(self) -> int:
        return self._ids.bytes

    def write(self, rows: TokenRows) -> None:
        sequences = rows.sequences()
        self._ids.write_numbers(sequences.input_ids.astype(self._dtype, copy=False))
        self._lengths.write(sequences.lengths)
        self._document_sizes.write(sequences.row_sizes)

    def close(self) -> list[Part]:
        ids = self._ids.close()
        with PartFile(self._path, megatron.INDEX_SUFFIX) as index:
            lengths = self._lengths.numbers()
            document_sizes = self._document_sizes.numbers()
            megatron.write_index(index.file, self._dtype, lengths, document_sizes)
            index_part = index.close()
        self._lengths.close()
        self._document_sizes.close()
        return [ids, index_part]

    def discard(self) -> None:
        self._ids.discard()
        self._lengths.close()
        self._document_sizes.close()


@final
class _Spool:
    """Numbers (int32) in a temporary file, which is removed when it is closed.

    Args:
        folder: Folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._count = 0

    def write(self, numbers: Int64) -> None:
        """Add numbers."""
        self._file.write(numbers.astype(np.int32).tobytes())
        self._count += len(numbers)

    def numbers(self) -> npt.NDArray[np.int32]:
        """Return all numbers, mapped into memory, int32[count]."""
        self._file.flush()
        if not self._count:
            return np.zeros(0, np.int32)
        return np.memmap(self._file, np.int32, "r", shape=(self._count,))

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
