"""Shards of MosaicML Streaming (``.mds``), plain or compressed as a whole with zstd.

A shard states its columns itself; ``index.json`` is not needed. Columns of integers are
read: arrays of one dimension (``ndarray`` with or without a type and a shape), and
``bytes``, whose type the configuration states or the plan finds. See
:mod:`tokenlake.etl.layouts.mds` for the layout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.etl.layouts import mds as layout
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.id_records import RecordFile, joined_bytes
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.numbered_records import (
    NumberedRecords,
    Numbers,
    id_batch,
    require_dtype,
)
from tokenlake.etl.sources.parsed import Want

_READ_BYTES: Final = 16 << 20
"""Bytes of the content that are decompressed at a time."""


def open_mds(data: InputBytes, want: Want) -> MdsRecords:
    """Return the samples of a shard."""
    return MdsRecords(data, want)


@final
class MdsRecords(NumberedRecords):
    """The samples of a shard.

    Args:
        data: The open shard.
        want: Form of its ids.

    Raises:
        DamagedFileError: The shard is cut, or its configuration cannot be read.
    """

    def __init__(self, data: InputBytes, want: Want) -> None:
        self._data = data
        self._want = want
        content: bytes | None = None
        if data.file.compression is not None:
            content = _decompressed(data)
        self._records = RecordFile(data, content)
        self.count = self._records.count
        self._encodings: dict[str, str] = {}
        self._sizes: list[int | None] = []
        self._read_columns(self._records.bytes_before_records())
        # Texts, images and numbers by themselves are no ids.
        column_names: list[str] = []
        for column_name, encoding in self._encodings.items():
            if encoding == "bytes" or encoding.partition(":")[0] == "ndarray":
                column_names.append(column_name)
        self.names = tuple(column_names)

    def edges(self, first: int, last: int) -> Int64:
        """Return where samples begin and the last one ends, in bytes."""
        return self._records.edges(first, last)

    def read(self, first: int, last: int, names: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of samples."""
        # A sample is read as a whole, and decoded in the columns that are needed.
        block, places = self._records.values(first, last, self._sizes)
        columns: dict[str, tuple[Numbers, Int64]] = {}
        for column_name, (begins, ends) in zip(self._encodings, places, strict=True):
            if column_name in names:
                columns[column_name] = self._arrays(
                    column_name, block, begins, ends, first
                )
        return id_batch({column_name: columns[column_name] for column_name in names})

    def _read_columns(self, head: bytes) -> None:
        """Read the names, encodings and sizes of the columns."""
        # Sizes are those of columns whose arrays have one shape; else null.
        try:
            config: Mapping[str, Any] = json.loads(head)
            column_names = [str(name) for name in config["column_names"]]
            encodings = [str(encoding) for encoding in config["column_encodings"]]
            self._encodings = dict(zip(column_names, encodings, strict=True))
            for column_size in config["column_sizes"]:
                if column_size is not None:
                    column_size = int(column_size)
                self._sizes.append(column_size)
        except (ValueError, TypeError, KeyError) as error:
            raise damaged(
                self._data.file, f"its columns cannot be read ({error})"
            ) from error
        if len(self._sizes) != len(self._encodings):
            raise damaged(
                self._data.file,
                f"it states {len(self._sizes)} sizes of {len(self._encodings)} columns",
            )

    def _arrays(
        self, name: str, block: bytes, begins: Int64, ends: Int64, first: int
    ) -> tuple[Numbers, Int64]:
        """Return the numbers of a column, and their offsets by sample.

        Args:
            name: Name of the column.
            block: Bytes of the samples.
            begins: Place of the column in each sample, int64[n].
            ends: End of the column in each sample, int64[n].
            first: Number of the first sample.
        """
        # 1. The type of the numbers, which the encoding, the arrays or the configuration
        #    states, and the place of the first number behind type and shape.
        encoding, _colon, arguments = self._encodings[name].partition(":")
        type_name, _colon, fixed_shape = arguments.partition(":")
        if encoding == "bytes":
            number_type = require_dtype(
                self._data.file, self._want, f"column {name!r} of bytes"
            )
        else:
            block_bytes = np.frombuffer(block, np.uint8)
            if not type_name:
                type_name = self._dynamic_type(name, block_bytes[begins])
                begins = begins + 1
            number_type = self._integer_type(name, type_name)
            # A fixed shape of several dimensions has a comma: ``ndarray:int32:2,3``.
            if "," in fixed_shape:
                raise self._not_ids(name, f"arrays of the shape {fixed_shape}")
            if not fixed_shape:
                begins = self._behind_shapes(name, block_bytes, begins)
        # 2. The numbers fill the rest of the value.
        value_sizes = ends - begins
        is_uneven = (value_sizes < 0) | (value_sizes % number_type.itemsize != 0)
        if is_uneven.any():
            uneven_index = int(is_uneven.argmax())
            raise damaged(
                self._data.file,
                f"column {name!r} of sample {first + uneven_index} has {int(value_sizes[uneven_index])} bytes, "
                f"expected a multiple of {number_type.itemsize} ({number_type.name})",
            )
        offsets = offsets_of(value_sizes // number_type.itemsize)
        value_bytes = joined_bytes(block, begins, ends)
        return np.frombuffer(value_bytes, number_type), offsets

    def _dynamic_type(self, name: str, codes: Numbers) -> str:
        """Return the type that the arrays of a column state, which must be one."""
        # One column of a version has one type.
        type_names: list[str] = []
        for type_code in np.unique(codes).tolist():
            type_name = layout.DYNAMIC_TYPES.get(type_code, f"code {type_code}")
            type_names.append(type_name)
        if len(type_names) != 1:
            type_text = ", ".join(sorted(type_names))
            raise self._not_ids(name, f"arrays of the types {type_text}")
        return type_names[0]

    def _integer_type(self, name: str, type_name: str) -> np.dtype[Any]:
        """Return the type of a column, which must be one of integers."""
        is_number_type = type_name in layout.DYNAMIC_TYPES.values()
        if not is_number_type or type_name.startswith("float"):
            raise self._not_ids(name, f"arrays of {type_name}")
        return np.dtype(type_name).newbyteorder("<")

    def _behind_shapes(self, name: str, heads: Numbers, begins: Int64) -> Int64:
        """Return the places of the numbers behind the shapes.

        The shapes must be of one dimension.
        """
        # The first byte is dimensions * 4 + code; a size has 1, 2, 4 or 8 bytes by its
        # code.
        dimensions, size_codes = np.divmod(heads[begins].astype(np.int64), 4)
        if (dimensions != 1).any():
            raise self._not_ids(name, f"arrays of {int(dimensions.max())} dimensions")
        return begins + 1 + (1 << size_codes)

    def _not_ids(self, name: str, content: str) -> Exception:
        return unsuitable(
            self._data.file,
            f"column {name!r} has {content}, expected arrays of integers of one dimension and one type",
            "name another column as tokens.field",
        )


def _decompressed(data: InputBytes) -> bytes:
    """Return the content of a shard that is compressed as a whole."""
    # The offsets of samples are those of the content, so that all of it is needed.
    stream = ByteStream(data)
    blocks: list[bytes] = []
    while block := stream.read(_READ_BYTES):
        blocks.append(block)
    return b"".join(blocks)
