"""The layout of MosaicML Streaming: ``shard.00000.mds`` and so on, and ``index.json``.

A shard is little-endian:

=================  ==================  ===========================================================================
field              type                content
=================  ==================  ===========================================================================
samples            uint32              number of samples, N
offsets            uint32[N + 1]       place of each sample in the file, and the size of the file
configuration      JSON                the columns, as in ``index.json``; readers do not use it
samples            bytes               one after the other
=================  ==================  ===========================================================================

A sample has its columns in the order of their names: first the size (uint32) of each
column whose encoding has no fixed size, then the bytes of all columns. The encoding
``ndarray:int32`` is an array of any shape: a byte ``dimensions * 4 + code``, the shape
in uint8, uint16, uint32 or uint64 (codes 0 to 3, the smallest that holds it), and the
numbers. ``ndarray:int32:2048`` has the fixed shape 2048: the numbers alone.

The sample {"tokens": [7, 8]} of the column ``tokens`` as ``ndarray:int32``::

    0a 00 00 00              size of the column, 10 bytes
    04 02                    one dimension with a size of uint8: 2
    07 00 00 00 08 00 00 00  the numbers
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64, binary_over, offsets_of
from tokenlake.errors import DamagedFileError
from tokenlake.etl.layouts import record_offsets
from tokenlake.etl.layouts.joined_rows import fixed_parts, joined, ragged_parts

INDEX: Final = "index.json"
VERSION: Final = 2
MOST_SHARD_BYTES: Final = (1 << 32) - 1
"""Largest size of a shard: offsets are uint32."""

USUAL_SHARD_BYTES: Final = 1 << 26
"""Size at which MosaicML's own writer begins a new shard."""

_SHAPE_TYPES: Final = ("<u1", "<u2", "<u4", "<u8")
_ARROW: Final[Any] = pa


def shard_name(index: int) -> str:
    """Return the name of a shard, for example ``shard.00042.mds``."""
    return f"shard.{index:05d}.mds"


@final
@dataclass(frozen=True, slots=True)
class MdsColumn:
    """A column of arrays of one dimension.

    Attributes:
        name: Name of the column.
        dtype: Name of the type of its numbers, for example ``int32``.
        length: Number of numbers in each array; None: arrays have many lengths.
    """

    name: str
    dtype: str
    length: int | None = None

    @property
    def encoding(self) -> str:
        """The encoding, for example ``ndarray:int32:2048``."""
        encoding = f"ndarray:{self.dtype}"
        if self.length is not None:
            encoding += f":{self.length}"
        return encoding

    @property
    def bytes(self) -> int | None:
        """Size of an array in bytes; None: arrays have many sizes."""
        if self.length is None:
            return None
        return self.length * np.dtype(self.dtype).itemsize


@final
@dataclass(frozen=True, slots=True)
class MdsColumns:
    """The columns of a dataset, in the order of their names.

    Attributes:
        columns: Columns.
    """

    columns: tuple[MdsColumn, ...]

    @classmethod
    def of(cls, columns: Sequence[MdsColumn]) -> Self:
        """Return columns in the order in which samples have them."""
        return cls(tuple(sorted(columns, key=lambda column: column.name)))

    def config(self, size_limit: int | None) -> dict[str, Any]:
        """Return the configuration of a shard.

        Its bytes and ``index.json`` state it alike.

        Args:
            size_limit: Size in bytes at which a shard ends; None: no limit.
        """
        return {
            "version": VERSION,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": size_limit,
            "column_names": [column.name for column in self.columns],
            "column_encodings": [column.encoding for column in self.columns],
            "column_sizes": [column.bytes for column in self.columns],
        }

    def encode(
        self, arrays: Mapping[str, npt.NDArray[np.generic]], row_offsets: Int64
    ) -> pa.LargeBinaryArray:
        """Return the bytes of samples.

        Args:
            arrays: Name of each column -> its numbers of all rows, in the column's
                type.
            row_offsets: Offset of each row in the arrays, int64[rows + 1].
        """
        # 1. The parts of a sample: of each column its shape, if that varies, and its
        #    numbers.
        lengths = np.diff(row_offsets)
        column_sizes: list[Int64] = []
        sample_parts: list[pa.LargeBinaryArray] = []
        for column in self.columns:
            numbers = arrays[column.name]
            if column.length is None:
                shapes, shape_bytes = _shape_parts(lengths)
                column_sizes.append(shape_bytes + lengths * numbers.dtype.itemsize)
                sample_parts.append(shapes)
            sample_parts.append(ragged_parts(numbers, row_offsets))
        # 2. The sizes of the columns that vary come first.
        if column_sizes:
            size_heads = np.column_stack(column_sizes).astype("<u4")
            sample_parts.insert(0, fixed_parts(size_heads))
        # 3. Without rows there are no parts to join.
        if len(row_offsets) == 1:
            return _ARROW.array([], pa.large_binary())
        return joined(sample_parts)


def _shape_parts(lengths: Int64) -> tuple[pa.LargeBinaryArray, Int64]:
    """Return the bytes of the shape of each array, and their number.

    The arrays have one dimension.
    """
    # 1. The code is that of the smallest type which holds the length.
    row_count = len(lengths)
    type_codes = np.zeros(row_count, np.int64)
    type_codes[lengths >= 1 << 8] = 1
    type_codes[lengths >= 1 << 16] = 2
    # 2. Each row has room for the longest shape; the bytes that it does not need are
    #    left out. The first byte is dimensions * 4 + code, of one dimension.
    shape_heads = np.zeros((row_count, 5), np.uint8)
    shape_heads[:, 0] = 4 + type_codes
    shape_heads[:, 1:] = lengths.astype("<u4").view(np.uint8).reshape(row_count, 4)
    shape_bytes = 1 + (1 << type_codes)
    is_needed = np.arange(5) < shape_bytes[:, None]
    shapes = binary_over(
        offsets_of(shape_bytes), _ARROW.py_buffer(shape_heads[is_needed])
    )
    return shapes, shape_bytes


def shard_head(config: Mapping[str, Any], sample_sizes: Int64) -> bytes:
    """Return the bytes of a shard before its samples.

    Args:
        config: Configuration of the shard, see :meth:`MdsColumns.config`.
        sample_sizes: Number of bytes of each sample, int64[N].
    """
    # The configuration lies between the offsets and the samples.
    sample_count = len(sample_sizes)
    offsets = offsets_of(sample_sizes) + head_bytes(config, sample_count)
    count_bytes = struct.pack("<I", sample_count)
    return count_bytes + offsets.astype("<u4").tobytes() + _config_bytes(config)


def head_bytes(config: Mapping[str, Any], samples: int) -> int:
    """Return the number of bytes of a shard before its samples."""
    return record_offsets.head_bytes(samples) + len(_config_bytes(config))


def _config_bytes(config: Mapping[str, Any]) -> bytes:
    return json.dumps(config, sort_keys=True).encode()


def index_bytes(
    config: Mapping[str, Any], shards: Sequence[tuple[str, int, int]]
) -> bytes:
    """Return the bytes of ``index.json``.

    Args:
        config: Configuration of the shards, see :meth:`MdsColumns.config`.
        shards: Name, size in bytes and number of samples of each shard.
    """
    # Hashes are left out: readers do not require them, and ours are in the manifest.
    entries: list[dict[str, Any]] = []
    for file_name, file_bytes, samples in shards:
        raw_data = {"basename": file_name, "bytes": file_bytes, "hashes": {}}
        entries.append(
            {**config, "samples": samples, "raw_data": raw_data, "zip_data": None}
        )
    return json.dumps({"version": VERSION, "shards": entries}, sort_keys=True).encode()


def read_index(data: bytes, path: str) -> list[dict[str, Any]]:
    """Return the entries of the shards of ``index.json``.

    Each has the fields of :meth:`MdsColumns.config`.

    Args:
        data: Bytes of the file.
        path: Path of the file, for messages.

    Raises:
        DamagedFileError: The bytes are no such file, of another version, or of another
            format.
    """
    # Each entry states its format: MosaicML Streaming has others beside MDS.
    try:
        index = json.loads(data)
        shards = list(index["shards"])
        for shard in shards:
            if (shard["version"], shard["format"]) != (VERSION, "mds"):
                raise ValueError(
                    f"format {shard['format']!r} of version {shard['version']!r}"
                )
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedFileError(
            f"{path}: {error}; expected an index of MDS, version {VERSION}", path=path
        ) from error
    return shards


def array_of(encoding: str, data: bytes | memoryview) -> npt.NDArray[np.generic]:
    """Return an array of one dimension of its bytes.

    Args:
        encoding: Encoding of the column, ``ndarray`` with or without a type and a
            shape.
        data: Bytes of the column.

    Raises:
        ValueError: The bytes or the encoding are no array of one dimension.
    """
    encoding_name, _colon, arguments = encoding.partition(":")
    type_name, _colon, fixed_shape = arguments.partition(":")
    if encoding_name != "ndarray":
        raise ValueError(f"the encoding is {encoding!r}, expected ndarray")
    # An encoding without a type, or without a shape, has them before the numbers.
    remaining = memoryview(data)
    if not type_name:
        type_name = DYNAMIC_TYPES[remaining[0]]
        remaining = remaining[1:]
    if not fixed_shape:
        dimensions, type_code = divmod(remaining[0], 4)
        if dimensions != 1:
            raise ValueError(f"an array has {dimensions} dimensions, expected 1")
        # The shape itself is not needed: the numbers fill the rest.
        remaining = remaining[1 + np.dtype(_SHAPE_TYPES[type_code]).itemsize :]
    return np.frombuffer(remaining, np.dtype(type_name).newbyteorder("<"))


DYNAMIC_TYPES: Final = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
"""Codes of types in arrays whose encoding states none."""
