"""The layout of nanoGPT and OLMo-core.

The ids have no header, in ``NAME.bin`` or ``NAME.npy``.

Both trainers map the bytes of a file as an array of one type that their configuration
states; a ``.npy`` file of OLMo-core has no NumPy header either. Files beside the ids
hold the rest:

=============================  ======================================================================================
``NAME.csv.gz``                borders of the documents, which OLMo-core reads: lines ``start,end`` without a heading,
                               in ids, ascending
``NAME.label_mask.npy``        loss mask of OLMo-core: a byte for each id, 1 if it counts toward the loss
``metadata.json``              type of the ids, vocabulary, BOS, EOS and padding, and the files (:class:`FlatMetadata`)
=============================  ======================================================================================

For two documents, [7, 8, 9] and [4, 5], as uint16::

    NAME.npy     07 00 08 00 09 00 04 00 05 00
    NAME.csv.gz  0,3
                 3,5
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Self, final

import numpy as np
import pyarrow as pa
from pyarrow import csv

from tokenlake.base.arrays import Int64
from tokenlake.errors import DamagedFileError
from tokenlake.etl.layouts.metadata_file import METADATA as METADATA
from tokenlake.etl.layouts.metadata_file import metadata_bytes, read_metadata

BIN_SUFFIX: Final = ".bin"
NPY_SUFFIX: Final = ".npy"
BORDERS_SUFFIX: Final = ".csv.gz"
LABEL_MASK_SUFFIX: Final = ".label_mask.npy"

TYPES: Final = ("uint16", "uint32")
"""Types of ids; always little-endian."""

MOST_UINT16_IDS: Final = 1 << 16
"""Largest vocabulary whose ids fit uint16."""

_ARROW: Final[Any] = pa
_CSV: Final[Any] = csv
_GZIP_LEVEL: Final = 1
"""Level of compression: level 6 makes files a third smaller, in seven times the time."""


def ids_type(vocab_size: int) -> str:
    """Return the name of the smallest type for the ids of a vocabulary."""
    if vocab_size <= MOST_UINT16_IDS:
        return "uint16"
    return "uint32"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMetadata:
    """The contents of ``metadata.json``.

    Attributes:
        dtype: Type of the ids, ``uint16`` or ``uint32``.
        vocab_size: Number of ids of the vocabulary.
        bos_id: Id that begins documents; None if there is none.
        eos_id: Id that ends documents; None if there is none.
        pad_id: Id of padding; None if there is none. The files have no padding.
        files: Name of each file of ids -> number of its ids.
    """

    dtype: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    files: dict[str, int]

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return metadata_bytes(self)

    @classmethod
    def of(cls, data: bytes, path: str) -> Self:
        """Read the file's bytes; DamagedFileError if they are no such file."""
        metadata = read_metadata(cls, data, path)
        if metadata.dtype not in TYPES:
            raise DamagedFileError(
                f"{path}: dtype is {metadata.dtype!r}, expected one of {', '.join(TYPES)}",
                path=path,
            )
        return metadata


@final
class BordersWriter:
    """Writer of a ``.csv.gz`` file of borders.

    Args:
        file: File to write to; it stays open.
    """

    def __init__(self, file: BinaryIO) -> None:
        # Neither a name nor a clock in the header: equal borders make equal bytes.
        self._stream: Any = gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)

    def write(self, starts: Int64, ends: Int64) -> None:
        """Write the borders of documents.

        Args:
            starts: Index of the first id of each document in the file, int64[n].
            ends: Index after its last id, int64[n].
        """
        # Arrow writes numbers as text without a Python object for each.
        border_lines = _ARROW.RecordBatch.from_arrays(
            [_over(starts), _over(ends)], names=["start", "end"]
        )
        options = _CSV.WriteOptions(include_header=False)
        csv_buffer = _ARROW.BufferOutputStream()
        _CSV.write_csv(border_lines, csv_buffer, options)
        self._stream.write(csv_buffer.getvalue())

    def close(self) -> None:
        """Write the end of the compressed stream."""
        self._stream.close()


def _over(numbers: Int64) -> Any:
    """Return numbers as an Arrow array, without copying them."""
    buffers = [None, _ARROW.py_buffer(np.ascontiguousarray(numbers))]
    return _ARROW.Array.from_buffers(pa.int64(), len(numbers), buffers)


def read_borders(data: bytes, path: str) -> Int64:
    """Return start and end of each document of a ``.csv.gz`` file, int64[n, 2].

    Fields of a line after the first two are ignored, as OLMo-core does.

    Args:
        data: Bytes of the file.
        path: Path of the file, for messages.

    Raises:
        DamagedFileError: The bytes are no such file, or a border lies before the one
            before it.
    """
    try:
        csv_text = gzip.decompress(data)
        borders = _parsed(csv_text)
    except (OSError, EOFError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise DamagedFileError(
            f"{path}: {error}; expected gzip of lines start,end", path=path
        ) from error
    # Starts and ends alternate, so that one comparison covers both.
    is_descending = np.diff(borders.reshape(-1)) < 0
    if is_descending.any():
        line_number = (int(is_descending.argmax()) + 1) // 2
        raise DamagedFileError(
            f"{path}:{line_number + 1}: borders {borders[line_number].tolist()} do not ascend",
            path=path,
        )
    return borders


def _parsed(csv_text: bytes) -> Int64:
    """Return the first two fields of each line, int64[n, 2]."""
    # Arrow refuses a file without lines, which a file without documents has.
    if not csv_text:
        return np.zeros((0, 2), np.int64)
    # Columns without a heading are called f0, f1 and so on.
    column_names = ["f0", "f1"]
    read_options = _CSV.ReadOptions(autogenerate_column_names=True)
    convert_options = _CSV.ConvertOptions(
        include_columns=column_names,
        column_types=dict.fromkeys(column_names, pa.int64()),
    )
    borders_table = _CSV.read_csv(
        _ARROW.py_buffer(csv_text),
        read_options=read_options,
        convert_options=convert_options,
    )
    return np.column_stack(
        [borders_table.column(name).to_numpy() for name in column_names]
    )
