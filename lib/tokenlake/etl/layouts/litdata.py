"""The layout of litdata: ``chunk-0-0.bin`` and so on, and ``index.json``.

A chunk that is compressed is one frame of zstd, ``chunk-0-0.zstd.bin``. A chunk, or its
content, is little-endian:

=================  ==================  ===========================================================================
field              type                content
=================  ==================  ===========================================================================
items              uint32              number of items, N
offsets            uint32[N + 1]       place of each item in the file, and the size of the file
items              bytes               one after the other
=================  ==================  ===========================================================================

``index.json`` states the kind of the items:

``TokensLoader``
    Each item is the ids of a document, in one type and without a header. litdata cuts the ids of a chunk, end to end,
    into blocks of equal length; the ids after the last whole block of a chunk are not read.
``PyTreeLoader``
    Each item is a dictionary of arrays: the size (uint32) of each value, then the bytes
    of all values. The type of an array is in the index; its length is its size.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import DamagedFileError
from tokenlake.etl.layouts import record_offsets
from tokenlake.etl.layouts.joined_rows import fixed_parts, joined, ragged_parts

INDEX: Final = "index.json"
MOST_CHUNK_BYTES: Final = (1 << 32) - 1
"""Largest size of a chunk: offsets are uint32."""

USUAL_CHUNK_BYTES: Final = 1 << 26
"""Size at which litdata's own writer begins a new chunk."""

TYPE_CODES: Final = {
    "float32": 0,
    "float64": 2,
    "float16": 8,
    "uint8": 11,
    "int8": 12,
    "int16": 13,
    "int32": 15,
    "int64": 17,
    "bool": 19,
    "uint16": 20,
}
"""Name of a type -> its code in ``no_header_tensor:CODE``. The codes 1, 3, 9, 14, 16
and 18 are second names.
"""

SECOND_CODES: Final = {
    1: "float32",
    3: "float64",
    9: "float16",
    14: "int16",
    16: "int32",
    18: "int64",
}

NUMPY_TYPES: Final = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
"""Names of the types with the codes 0, 1, 2 and so on in ``no_header_numpy:CODE``."""

_ARROW: Final[Any] = pa
_ZSTD_LEVEL: Final = 4
"""Level at which litdata's own writer compresses."""

_PIECE_BYTES: Final = 1 << 22
"""Bytes that are decompressed at a time."""

_LEAF: Final[dict[str, Any]] = {"type": None, "context": None, "children_spec": []}
"""Specification of a single array in PyTorch's pytree."""

_SPEC_VERSION: Final = 1
"""Version of the specification."""


def chunk_name(index: int, compression: str | None = None) -> str:
    """Return the name of a chunk: ``chunk-0-42.bin``, or ``chunk-0-42.zstd.bin``."""
    if compression is None:
        return f"chunk-0-{index}.bin"
    return f"chunk-0-{index}.{compression}.bin"


def compressed(content: bytes, compression: str) -> bytes:
    """Return a chunk that is compressed as a whole, in one frame that states its size.

    Args:
        content: Bytes of the chunk.
        compression: Name of the compression, ``zstd``.
    """
    zstd_codec = _ARROW.Codec(compression, compression_level=_ZSTD_LEVEL)
    return zstd_codec.compress(content, asbytes=True)


def decompressed(data: bytes, content_bytes: int, path: str) -> bytes:
    """Return the content of a chunk that is compressed as a whole with zstd.

    Args:
        data: Bytes of the chunk.
        content_bytes: Size of the content, as the index states it.
        path: Path of the chunk, for messages.

    Raises:
        DamagedFileError: The bytes are no zstd, or their content has another size.
    """
    # 1. The content, in pieces: the size that the index states is not trusted.
    pieces: list[bytes] = []
    total_bytes = 0
    try:
        with _ARROW.CompressedInputStream(_ARROW.BufferReader(data), "zstd") as stream:
            # Memory grows with the content, whatever the index states. One byte more
            # than that is damage, and the rest is not read.
            while total_bytes <= content_bytes:
                free_bytes = content_bytes + 1 - total_bytes
                piece = stream.read(min(_PIECE_BYTES, free_bytes))
                if not piece:
                    break
                pieces.append(piece)
                total_bytes += len(piece)
    except OSError as error:
        raise DamagedFileError(
            f"{path}: it cannot be decompressed ({error}); it was cut or damaged",
            path=path,
        ) from error
    # 2. The size must be exact: items are found by offsets into the content.
    if total_bytes != content_bytes:
        size_text = f"more than {content_bytes}"
        if total_bytes < content_bytes:
            size_text = str(total_bytes)
        raise DamagedFileError(
            f"{path}: its content has {size_text} bytes, its index states {content_bytes}. One of them is damaged: "
            "replace both",
            path=path,
        )
    return b"".join(pieces)


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """Entry of a chunk in ``index.json``.

    Attributes:
        filename: Name of the file.
        chunk_bytes: Size of the file in bytes, before compression.
        chunk_size: Number of its items.
        dim: Number of its ids for ``TokensLoader``; else None.
    """

    filename: str
    chunk_bytes: int
    chunk_size: int
    dim: int | None


@final
@dataclass(frozen=True, slots=True)
class Items:
    """The kind of a dataset's items.

    Attributes:
        types: Name of each value -> name of the type of its numbers; for
            ``TokensLoader`` one value, whose name is not stored.
        is_stream: True for ``TokensLoader``, false for dictionaries.
    """

    types: dict[str, str]
    is_stream: bool

    def index_bytes(
        self,
        chunks: Sequence[Chunk],
        max_bytes: int | None,
        compression: str | None = None,
    ) -> bytes:
        """Return the bytes of ``index.json``.

        No clock is in it, so that equal chunks make equal bytes.

        Args:
            chunks: Entries of the chunks.
            max_bytes: Size in bytes at which a chunk ends; None: no limit.
            compression: Name of the compression of the chunks; None: none.
        """
        # The specification is that of PyTorch's pytree: a leaf, or a dictionary of
        # leaves, as JSON inside of JSON.
        data_spec: dict[str, Any] = _LEAF
        item_loader = "TokensLoader"
        if not self.is_stream:
            data_spec = {
                "type": "builtins.dict",
                "context": json.dumps(list(self.types)),
                "children_spec": [_LEAF] * len(self.types),
            }
            item_loader = "PyTreeLoader"
        data_formats = [
            f"no_header_tensor:{TYPE_CODES[type_name]}"
            for type_name in self.types.values()
        ]
        # Keys without a value are those that litdata's own writer states, too.
        config = {
            "compression": compression,
            "chunk_size": None,
            "chunk_bytes": max_bytes,
            "data_format": data_formats,
            "data_spec": json.dumps([_SPEC_VERSION, data_spec]),
            "encryption": None,
            "item_loader": item_loader,
        }
        # Sorted keys below: the order of a dictionary must not decide the bytes.
        entries: list[dict[str, Any]] = []
        for chunk in chunks:
            entries.append(
                {
                    "filename": chunk.filename,
                    "chunk_bytes": chunk.chunk_bytes,
                    "chunk_size": chunk.chunk_size,
                    "dim": chunk.dim,
                }
            )
        return json.dumps(
            {"chunks": entries, "config": config}, sort_keys=True
        ).encode()

    def encode(
        self, arrays: Mapping[str, npt.NDArray[np.generic]], row_offsets: Int64
    ) -> pa.LargeBinaryArray:
        """Return the bytes of items.

        Args:
            arrays: Name of each value -> its numbers of all rows, in the value's type.
            row_offsets: Offset of each row in the arrays, int64[rows + 1].
        """
        # Ids of a stream have no head; a dictionary begins with the sizes of its values.
        value_parts: list[pa.LargeBinaryArray] = []
        for value_name in self.types:
            value_parts.append(ragged_parts(arrays[value_name], row_offsets))
        if self.is_stream:
            return value_parts[0]
        lengths = np.diff(row_offsets)
        value_sizes: list[Int64] = []
        for type_name in self.types.values():
            value_sizes.append(lengths * np.dtype(type_name).itemsize)
        size_heads = fixed_parts(np.column_stack(value_sizes).astype("<u4"))
        return joined([size_heads, *value_parts])


@final
@dataclass(frozen=True, slots=True)
class LitdataIndex:
    """The contents of ``index.json``.

    Attributes:
        chunks: Entries of the chunks.
        items: Kind of the items.
        compression: Name of the compression of the chunks; None: they are not
            compressed.
        compression_level: Part of a chunk that is compressed by itself, ``batch`` or
            ``sample``; None: whole chunks are.
    """

    chunks: tuple[Chunk, ...]
    items: Items
    compression: str | None
    compression_level: str | None = None

    @classmethod
    def of(cls, data: bytes, path: str) -> Self:
        """Read the bytes of ``index.json``.

        Args:
            data: Bytes of the file.
            path: Path of the file, for messages.

        Raises:
            DamagedFileError: The bytes are no such file, or its items are neither ids
                nor dictionaries of arrays.
        """
        # An index of another shape raises one of the errors below, which becomes ours.
        try:
            index = json.loads(data)
            config = index["config"]
            entries: list[Chunk] = []
            for chunk in index["chunks"]:
                entry = Chunk(
                    chunk["filename"],
                    operator.index(chunk["chunk_bytes"]),
                    chunk["chunk_size"],
                    chunk["dim"],
                )
                entries.append(entry)
            # The names of a dictionary are in the order of the types.
            type_names = [
                _type_name(data_format) for data_format in config["data_format"]
            ]
            data_spec = json.loads(config["data_spec"])[1]
            is_stream = data_spec["type"] is None
            value_names = ["input_ids"]
            if not is_stream:
                value_names = json.loads(data_spec["context"])
            return cls(
                tuple(entries),
                Items(dict(zip(value_names, type_names, strict=True)), is_stream),
                config["compression"],
                config.get("compression_level"),
            )
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DamagedFileError(
                f"{path}: {error!r}; expected an index of litdata whose items are arrays without headers",
                path=path,
            ) from error


def _type_name(data_format: str) -> str:
    """Return the type's name of ``no_header_tensor:CODE`` (or ``no_header_numpy``)."""
    # litdata numbers the types of NumPy and those of PyTorch differently.
    serializer, _colon, type_code = data_format.partition(":")
    if serializer == "no_header_numpy":
        return NUMPY_TYPES[int(type_code)]
    if serializer != "no_header_tensor":
        raise ValueError(
            f"values are of {data_format!r}, expected no_header_tensor or no_header_numpy"
        )
    type_names = {code: name for name, code in TYPE_CODES.items()} | SECOND_CODES
    return type_names[int(type_code)]


def chunk_head(item_sizes: Int64) -> bytes:
    """Return the bytes of a chunk before its items.

    Args:
        item_sizes: Number of bytes of each item, int64[N].
    """
    # Offsets count from the beginning of the file, and so include the head.
    item_count = len(item_sizes)
    offsets = offsets_of(item_sizes) + head_bytes(item_count)
    count_bytes = np.uint32(item_count).astype("<u4").tobytes()
    return count_bytes + offsets.astype("<u4").tobytes()


def head_bytes(items: int) -> int:
    """Return the number of bytes of a chunk before its items."""
    return record_offsets.head_bytes(items)
