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

from tokenlake.base.arrays import Int64
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
        names: list[str] = []
        for name, encoding in self._encodings.items():
            if encoding == "bytes" or encoding.partition(":")[0] == "ndarray":
                names.append(name)
        self.names = tuple(names)

    def edges(self, first: int, last: int) -> Int64:
        """Return where samples begin and the last one ends, in bytes."""
        return self._records.edges(first, last)

    def read(self, first: int, last: int, names: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of samples."""
        block, places = self._records.values(first, last, self._sizes)
        columns: dict[str, tuple[Numbers, Int64]] = {}
        for name, (begins, ends) in zip(self._encodings, places, strict=True):
            if name in names:
                columns[name] = self._arrays(name, block, begins, ends, first)
        return id_batch({name: columns[name] for name in names})

    def _read_columns(self, head: bytes) -> None:
        """Read the names, encodings and sizes of the columns."""
        # Sizes are those of columns whose arrays have one shape; else null.
        try:
            config: Mapping[str, Any] = json.loads(head)
            names = [str(name) for name in config["column_names"]]
            encodings = [str(encoding) for encoding in config["column_encodings"]]
            self._encodings = dict(zip(names, encodings, strict=True))
            self._sizes = [
                None if size is None else int(size) for size in config["column_sizes"]
            ]
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
        encoding, _, arguments = self._encodings[name].partition(":")
        type_name, _, shape = arguments.partition(":")
        if encoding == "bytes":
            dtype = require_dtype(
                self._data.file, self._want, f"column {name!r} of bytes"
            )
        else:
            heads = np.frombuffer(block, np.uint8)
            if not type_name:
                type_name = self._dynamic_type(name, heads[begins])
                begins = begins + 1
            dtype = self._integer_type(name, type_name)
            if "," in shape:
                raise self._not_ids(name, f"arrays of the shape {shape}")
            if not shape:
                begins = self._behind_shapes(name, heads, begins)
        # 2. The numbers fill the rest of the value.
        sizes = ends - begins
        is_uneven = (sizes < 0) | (sizes % dtype.itemsize != 0)
        if is_uneven.any():
            sample = first + int(is_uneven.argmax())
            raise damaged(
                self._data.file,
                f"column {name!r} of sample {sample} has {int(sizes[sample - first])} bytes, expected a multiple of "
                f"{dtype.itemsize} ({dtype.name})",
            )
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes // dtype.itemsize, out=offsets[1:])
        return np.frombuffer(joined_bytes(block, begins, ends), dtype), offsets

    def _dynamic_type(self, name: str, codes: Numbers) -> str:
        """Return the type that the arrays of a column state, which must be one."""
        # One column of a version has one type.
        type_names = sorted(
            {
                layout.DYNAMIC_TYPES.get(code, f"code {code}")
                for code in np.unique(codes).tolist()
            }
        )
        if len(type_names) != 1:
            raise self._not_ids(name, f"arrays of the types {', '.join(type_names)}")
        return type_names[0]

    def _integer_type(self, name: str, type_name: str) -> np.dtype[Any]:
        """Return the type of a column, which must be one of integers."""
        if type_name not in layout.DYNAMIC_TYPES.values() or type_name.startswith(
            "float"
        ):
            raise self._not_ids(name, f"arrays of {type_name}")
        return np.dtype(type_name).newbyteorder("<")

    def _behind_shapes(self, name: str, heads: Numbers, begins: Int64) -> Int64:
        """Return the places of the numbers behind the shapes.

        The shapes must be of one dimension.
        """
        # The first byte is dimensions * 4 + code; a size has 1, 2, 4 or 8 bytes by its
        # code.
        dimensions, code = np.divmod(heads[begins].astype(np.int64), 4)
        if (dimensions != 1).any():
            raise self._not_ids(name, f"arrays of {int(dimensions.max())} dimensions")
        return begins + 1 + (1 << code)

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
