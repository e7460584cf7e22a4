"""The layout of Megatron-Core's ``IndexedDataset``.

The ids are in ``NAME.bin``, and their borders in ``NAME.idx``.

``NAME.bin`` is ids alone, one sequence after the other. ``NAME.idx`` is little-endian:

======================  =========================  ==================================================================
field                   type                       content
======================  =========================  ==================================================================
magic                   9 bytes                    ``MMIDIDX`` and two zero bytes
version                 uint64                     1
type of the ids         uint8                      code, see :data:`TYPE_CODES`
sequences               uint64                     number of sequences, S
document borders        uint64                     number of documents + 1, D
sequence lengths        int32[S]                   number of ids of each sequence
sequence offsets        int64[S]                   place of its first id in ``NAME.bin``, in bytes
document borders        int64[D]                   index of the first sequence of each document, and S at the end
======================  =========================  ==================================================================

A document is a run of sequences. For two documents, of the sequences [7, 8, 9] and [4],
[5, 6], with ids of 2 bytes:

    sequence lengths  = [3, 1, 2]
    sequence offsets  = [0, 6, 8]
    document borders  = [0, 1, 3]
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int32, Int64, offsets_of
from tokenlake.errors import DamagedFileError

DATA_SUFFIX: Final = ".bin"
INDEX_SUFFIX: Final = ".idx"
MAGIC: Final = b"MMIDIDX\x00\x00"
VERSION: Final = 1

TYPE_CODES: Final = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float64": 6,
    "float32": 7,
    "uint16": 8,
}
"""Name of a NumPy type -> its code. There is no code for uint32."""

MOST_UINT16_IDS: Final = 65_500
"""Size of a vocabulary from which Megatron's own tools write int32."""

_PIECE: Final = 1 << 20
"""Numbers of an array that are converted at a time."""

HEADER: Final = struct.Struct("<9sQBQQ")
"""Magic, version, type code, number of sequences, number of document borders."""


@final
@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """The contents of an ``.idx`` file.

    Attributes:
        dtype: Type of the ids in the ``.bin`` file.
        sequence_lengths: Number of ids of each sequence, int32[S].
        document_borders: Index of the first sequence of each document, and S at the
            end, int64[D].
    """

    dtype: np.dtype[np.generic]
    sequence_lengths: Int32
    document_borders: Int64

    @property
    def data_bytes(self) -> int:
        """Size of the ``.bin`` file in bytes."""
        return int(self.sequence_lengths.sum(dtype=np.int64)) * self.dtype.itemsize


def ids_type(vocab_size: int) -> str:
    """Return the name of the type that Megatron's own tools write.

    It depends on the number of ids in the vocabulary.
    """
    if vocab_size < MOST_UINT16_IDS:
        return "uint16"
    return "int32"


def write_index(
    file: BinaryIO,
    dtype: np.dtype[Any],
    sequence_lengths: npt.NDArray[np.integer],
    document_sizes: npt.NDArray[np.integer],
) -> None:
    """Write an ``.idx`` file. Arrays that are mapped into memory are read in pieces.

    Args:
        file: File to write to.
        dtype: Type of the ids in the ``.bin`` file.
        sequence_lengths: Number of ids of each sequence, [S].
        document_sizes: Number of sequences of each document, [documents].
    """
    # 1. The header. There is one border more than documents.
    type_code = TYPE_CODES[dtype.name]
    border_count = len(document_sizes) + 1
    file.write(
        HEADER.pack(MAGIC, VERSION, type_code, len(sequence_lengths), border_count)
    )
    # 2. Lengths of the sequences, and the offsets that follow from them.
    for piece in _pieces(sequence_lengths):
        file.write(piece.astype("<i4").tobytes())
    sequence_offset = 0
    for piece in _pieces(sequence_lengths):
        offsets = offsets_of(piece) * dtype.itemsize + sequence_offset
        file.write(offsets[:-1].astype("<i8").tobytes())
        sequence_offset = int(offsets[-1])
    # 3. Borders of the documents, the number of all sequences being the last one.
    document_border = 0
    for piece in _pieces(document_sizes):
        borders = offsets_of(piece) + document_border
        file.write(borders[:-1].astype("<i8").tobytes())
        document_border = int(borders[-1])
    file.write(struct.pack("<q", document_border))


def _pieces(numbers: npt.NDArray[np.integer]) -> Iterator[npt.NDArray[np.integer]]:
    # An array that is mapped into memory is never read as a whole.
    for first_index in range(0, len(numbers), _PIECE):
        yield numbers[first_index : first_index + _PIECE]


def read_index(data: bytes | memoryview, path: str) -> MegatronIndex:
    """Return the contents of an ``.idx`` file, with all its numbers checked.

    Args:
        data: Bytes of the file; the arrays of the result are views of them.
        path: Path of the file, for messages.

    Raises:
        DamagedFileError: The bytes are no such file.
    """
    # 1. The header.
    if len(data) < HEADER.size:
        raise _damaged(
            path,
            f"it has {len(data)} bytes, expected at least {HEADER.size} of a header",
        )
    magic, version, type_code, sequences, borders = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _damaged(path, f"it begins with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise _damaged(path, f"it has version {version}, expected {VERSION}")
    type_names = {number: name for name, number in TYPE_CODES.items()}
    if type_code not in type_names:
        raise _damaged(
            path,
            f"it has the type code {type_code}, expected one of {sorted(type_names)}",
        )
    id_type = np.dtype(type_names[type_code]).newbyteorder("<")
    # 2. The arrays. A file of multimodal data has more bytes after them.
    expected_bytes = HEADER.size + sequences * 12 + borders * 8
    if len(data) < expected_bytes:
        raise _damaged(
            path,
            f"it has {len(data)} bytes, expected {expected_bytes} for {sequences} sequences and {borders} document "
            "borders",
        )
    byte_offset = HEADER.size
    lengths = np.frombuffer(data, "<i4", sequences, byte_offset)
    byte_offset += lengths.nbytes
    sequence_offsets = np.frombuffer(data, "<i8", sequences, byte_offset)
    byte_offset += sequence_offsets.nbytes
    document_borders = np.frombuffer(data, "<i8", borders, byte_offset)
    # 3. Their numbers. Lengths and offsets state the same thing, so that damage of one
    #    of them shows.
    if (lengths < 0).any():
        raise _damaged(
            path, f"sequence {int((lengths < 0).argmax())} has a negative length"
        )
    is_wrong = sequence_offsets != offsets_of(lengths)[:-1] * id_type.itemsize
    if is_wrong.any():
        sequence = int(is_wrong.argmax())
        raise _damaged(
            path,
            f"sequence {sequence} does not begin where the sequence before it ends",
        )
    covers_all = False
    if borders > 0:
        covers_all = document_borders[0] == 0 and document_borders[-1] == sequences
    if not covers_all or (np.diff(document_borders) < 0).any():
        raise _damaged(
            path,
            f"its document borders do not rise from 0 to {sequences}, the number of sequences",
        )
    return MegatronIndex(id_type, lengths, document_borders)


def _damaged(path: str, reason: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path}: {reason}; it is no index of Megatron's, or was cut", path=path
    )
