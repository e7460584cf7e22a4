"""What the footer of a shard says of the columns that batches are made of, as plain numbers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.reading.packedgroup import IDS, LEARNED, LENGTHS

Int64 = npt.NDArray[np.int64]

_COLUMNS: Final = {IDS: "INT32", LENGTHS: "INT32", LEARNED: "BOOLEAN"}
_MAGIC: Final = b"PAR1"
_TAIL: Final = 1 << 16  # bytes that hold most footers, read at once


class Source(Protocol):
    """The bytes of one open shard; any number of threads may read at once."""

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes; ValueError where there are fewer."""
        ...


class Chunk(NamedTuple):
    """A column of a row group.

    Attributes:
        begin, size: its bytes in the file.
        values: how many it holds, empty lists counted as one.
        familiar: whether its pages may be what :mod:`tokenlake.reading.pages` understands.
    """

    begin: int
    size: int
    values: int
    familiar: bool


@final
@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """A shard's footer.

    Attributes:
        rows: of each row group, int64[groups].
        chunks: of each column: :class:`Chunk` of all row groups, int64[4, groups].
        digest: of the footer's bytes.

    Raises:
        ValueError: as :meth:`read`.
    """

    rows: Int64
    chunks: dict[str, Int64]
    digest: int

    @classmethod
    def read(cls, source: Source) -> Self:
        """Read the footer of a shard.

        Raises:
            ValueError: there is none, or what it describes is not one column chunk after the other.
        """
        data = _footer_bytes(source)
        metadata: Any = pq.read_metadata(pa.BufferReader(data))
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        columns = [[group.column(leaf) for leaf in range(metadata.num_columns)] for group in groups]
        _check_places(columns, source.size - len(data))
        leaves = _leaves(metadata.schema)
        chunks = {
            name: _chunks(columns, leaf, metadata.schema, kind) for name, (leaf, kind) in leaves.items()
        }
        return cls(np.array([group.num_rows for group in groups], np.int64), chunks, zlib.crc32(data))

    def is_of(self, source: Source) -> bool:
        """Return whether a shard still has this footer."""
        return zlib.crc32(_footer_bytes(source)) == self.digest

    def chunk(self, group: int, column: str) -> Chunk:
        """Return a column chunk; ValueError where there is none."""
        if group >= len(self.rows) or column not in self.chunks:
            raise ValueError(f"no column {column} of row group {group}")
        begin, size, values, familiar = self.chunks[column][:, group].tolist()
        return Chunk(begin, size, values, bool(familiar))


def _footer_bytes(source: Source) -> bytes:
    """The end of a file: the footer's Thrift, its length in four bytes, ``PAR1``."""
    size = source.size
    tail = source.read(size - min(size, _TAIL), min(size, _TAIL))
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError("no Parquet magic bytes at the end of the file")
    length = 8 + int.from_bytes(tail[-8:-4], "little")
    if length > size - len(_MAGIC):
        raise ValueError(f"a footer of {length} bytes; the file has {size}")
    return tail[-length:] if length <= len(tail) else source.read(size - length, length)


def _leaves(schema: Any) -> dict[str, tuple[int, str]]:
    """Return of each column that is known where it stands among the leaves, and the type its values must have."""
    roots = [schema.column(leaf).path.partition(".")[0] for leaf in range(len(schema))]
    return {name: (roots.index(name), kind) for name, kind in _COLUMNS.items() if roots.count(name) == 1}


def _chunks(columns: list[list[Any]], leaf: int, schema: Any, kind: str) -> Int64:
    described = schema.column(leaf)
    listed = described.max_definition_level == described.max_repetition_level == 1
    facts = [
        (
            column.data_page_offset,
            column.total_compressed_size,
            column.num_values,
            listed
            and described.physical_type == column.physical_type == kind
            and column.compression == "ZSTD"
            and not column.has_dictionary_page,
        )
        for column in (group[leaf] for group in columns)
    ]
    return np.array(facts, np.int64).reshape(-1, 4).T.copy()


def _check_places(columns: list[list[Any]], end: int) -> None:
    """Raise ValueError unless column chunks follow each other from the first byte on, as every writer lays them.

    A footer has no checksum: a flipped bit could lead from one good page to another.
    """
    chunks = [chunk for group in columns for chunk in group]
    begins = np.array([_begin(chunk) for chunk in chunks], np.int64)
    sizes = np.array([chunk.total_compressed_size for chunk in chunks], np.int64)
    expected = np.cumsum(np.concatenate([[len(_MAGIC)], sizes]))
    if (sizes < 0).any() or (begins != expected[:-1]).any() or expected[-1] > end:
        raise ValueError("the footer's column chunks do not follow each other through the file")


def _begin(chunk: Any) -> int:
    return chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
