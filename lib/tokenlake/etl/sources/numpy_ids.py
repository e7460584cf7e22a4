"""One stream of token ids in a file (``.bin``, ``.npy``).

nanoGPT, OLMo-core and llm.c have such files.

The form of a file is known by its beginning: a NumPy header, the header of llm.c, or
ids from the first byte on. Its documents are known in one of three ways:

1. By `tokens.length`: all documents have so many ids, the last one perhaps fewer.
2. By the borders in ``NAME.csv.gz``, where that file is beside the ids.
3. By EOS: a document begins at the first id, and behind each EOS.

A range of the file has the documents that BEGIN in it; the last one may end behind it.
The position of a document is the index of its first id in the file.

Example: ids of 2 bytes, EOS is 0, and the file is ``5 6 0 7 0 8``. Its documents are at
0, 3 and 5. The range of bytes 2 to 8 has the ids 1 to 3, and owns the document at 3
alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.layouts import numpy_flat as layout
from tokenlake.etl.sources.bad_records import BadLine, Fault
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged, unsuitable
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.numbered_records import Numbers, id_batch, require_dtype
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.where import Predicate

INPUT_IDS = "input_ids"
LOSS_MASK: Final = "loss_mask"

_NUMPY_MAGIC: Final = b"\x93NUMPY"
_HEADER_BYTES: Final = 64 << 10
"""Bytes in which the header of a NumPy file must end."""

_LLMC_HEADER: Final = 256 * 4
_LLMC_TYPES: Final = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Magic number and version of a header of llm.c -> type of the ids."""


def read_numpy(
    part: FileRange, data: InputBytes, want: Want, predicate: Predicate | None
) -> Iterator[Parsed]:
    """Read the documents of a range in blocks.

    See :data:`tokenlake.etl.sources.records.Reader`.

    Raises:
        DamagedFileError: The file ends inside of an id, or its borders or its loss mask
            do not fit its ids.
        UnsuitableFileError: Its numbers are no ids, or nothing says where documents
            end.
    """
    if part.file.companion:
        return
    # Borders beside the ids come before the rules of the configuration.
    stream = open_stream(data, want)
    reader = _DocumentReader(part, stream, want)
    borders = want.companions.get(layout.BORDERS_SUFFIX)
    tokens = want.tokens
    if borders is not None:
        yield from reader.by_borders(
            layout.read_borders(borders.pread(borders.file.size, 0), borders.file.url)
        )
    elif tokens is not None and tokens.length is not None:
        yield from reader.by_length(tokens.length)
    elif tokens is not None and tokens.eos_token_id is not None:
        yield from reader.by_eos(tokens.eos_token_id)
    else:
        raise unsuitable(
            part.file,
            "it is one stream of ids, and nothing says where documents end",
            "set tokens.eos_token_id, or tokens.length for records of one length",
        )


@final
@dataclass(frozen=True, slots=True)
class IdStream:
    """The ids of an open file.

    Attributes:
        data: The file.
        begin: Byte at which the first id begins.
        dtype: Type of the ids.
        count: Number of ids.
    """

    data: InputBytes
    begin: int
    dtype: np.dtype[Any]
    count: int

    def ids(self, first: int, last: int) -> Numbers:
        """Return the ids ``first:last``."""
        id_bytes = self.dtype.itemsize
        byte_offset = self.begin + first * id_bytes
        block = self.data.pread((last - first) * id_bytes, byte_offset)
        return np.frombuffer(block, self.dtype)

    def index_at(self, offset: int) -> int:
        """Return the index of the first id at a byte of the file or behind it.

        It is at most `count`.
        """
        # Rounded up: an id that begins before the byte belongs to the range before it.
        bytes_before = max(0, offset - self.begin)
        return min(self.count, -(-bytes_before // self.dtype.itemsize))


def open_stream(data: InputBytes, want: Want) -> IdStream:
    """Return the ids of an open file.

    Args:
        data: The file.
        want: Type of its ids, where it does not state one.

    Raises:
        DamagedFileError: It ends inside of an id, or before the last id that its header
            states.
        UnsuitableFileError: Its numbers are no ids.
    """
    input_file = data.file
    file_head = data.pread(_HEADER_BYTES, 0)
    # 1. The header of NumPy, which states the type and the number of ids.
    if file_head.startswith(_NUMPY_MAGIC):
        return _of_numpy(data, file_head)
    # 2. The header of llm.c: numbers of 32 bits, of which the third one is the number
    #    of ids.
    if len(file_head) >= _LLMC_HEADER:
        magic_number, version, id_count = np.frombuffer(file_head, "<i4", 3).tolist()
        type_name = _LLMC_TYPES.get((magic_number, version))
        if type_name is not None:
            id_type = np.dtype(type_name).newbyteorder("<")
            return _whole(data, _LLMC_HEADER, id_type, int(id_count))
    # 3. Ids alone.
    id_type = require_dtype(input_file, want, "a file of ids alone")
    if input_file.size % id_type.itemsize:
        raise damaged(
            input_file,
            f"it has {input_file.size} bytes, expected a multiple of {id_type.itemsize} ({id_type.name})",
        )
    return IdStream(data, 0, id_type, input_file.size // id_type.itemsize)


def _of_numpy(data: InputBytes, head: bytes) -> IdStream:
    """Return the ids of a file with a header of NumPy."""
    input_file = data.file
    # Version 1.0 states the size of the header in 16 bits, later ones in 32.
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            array_shape, _order, id_type = np.lib.format.read_array_header_1_0(stream)
        else:
            array_shape, _order, id_type = np.lib.format.read_array_header_2_0(stream)
    except ValueError as error:
        raise damaged(
            input_file, f"its NumPy header cannot be read ({error})"
        ) from error
    if len(array_shape) != 1 or id_type.kind not in "iu":
        raise unsuitable(
            input_file,
            f"it is an array of {id_type} and {len(array_shape)} dimensions, expected integers of one dimension",
            "write the ids as one array of uint16 or uint32",
        )
    return _whole(data, stream.tell(), id_type, int(array_shape[0]))


def _whole(data: InputBytes, begin: int, dtype: np.dtype[Any], count: int) -> IdStream:
    """Return a stream whose header states the number of ids.

    The file must end with them.
    """
    file_end = begin + count * dtype.itemsize
    if count < 0 or data.file.size != file_end:
        raise damaged(
            data.file,
            f"it has {data.file.size} bytes, expected {file_end} for {count} ids of {dtype.name} behind its header",
        )
    return IdStream(data, begin, dtype, count)


@final
class _DocumentReader:
    """Documents of a range of one stream.

    Args:
        part: The range.
        stream: Ids of the file.
        want: Wishes to the reader.

    Raises:
        DamagedFileError: The loss mask of the file has another number of values than
            the file has ids.
    """

    def __init__(self, part: FileRange, stream: IdStream, want: Want) -> None:
        self._part = part
        self._stream = stream
        self._want = want
        # Ids that begin inside of the range: the first one, and the one after the last
        # one.
        self._first = stream.index_at(part.start)
        self._last = stream.index_at(part.stop)
        self._counted = part.start  # bytes of the range that count as read
        self._mask = want.companions.get(layout.LABEL_MASK_SUFFIX)
        if self._mask is not None and self._mask.file.size != stream.count:
            raise damaged(
                self._mask.file,
                f"it has {self._mask.file.size} bytes, expected one for each of the {stream.count} ids of "
                f"{part.file.path}",
            )
        field_names = [INPUT_IDS]
        if self._mask is not None:
            field_names.append(LOSS_MASK)
        self._names = want.names(field_names)
        _require_names(part.file, self._names, field_names)

    def by_borders(self, borders: Int64) -> Iterator[Parsed]:
        """Yield the documents of a list of borders.

        Args:
            borders: Index of the first id of each document, and that after its last
                one, int64[n, 2].

        Raises:
            DamagedFileError: A document does not begin where the one before it ends, or
                the last one not at the end.
        """
        # 1. The borders must account for every id, once. A gap would be ids of no
        #    document, which an audit could not explain.
        starts = borders[:, 0]
        covers_all_ids = self._stream.count == 0
        if len(borders):
            has_no_gap = bool((starts[1:] == borders[:-1, 1]).all())
            ends_with_file = borders[-1, 1] == self._stream.count
            covers_all_ids = has_no_gap and starts[0] == 0 and ends_with_file
        if not covers_all_ids:
            raise damaged(
                self._part.file,
                f"its {self._stream.count} ids are not those of the borders beside it, which must go from 0 to its end "
                "without a gap",
            )
        # 2. The documents that begin in the range.
        stream_end = np.array([self._stream.count], np.int64)
        document_edges = np.concatenate([starts, stream_end])
        first_document = int(np.searchsorted(starts, self._first))
        stop_document = int(np.searchsorted(starts, self._last))
        yield from self._documents(document_edges[first_document : stop_document + 1])

    def by_length(self, length: int) -> Iterator[Parsed]:
        """Yield documents of one length; the last one of the file may be shorter."""
        # Documents begin at multiples of the length: both ends are rounded up, so that
        # each belongs to one range.
        first_start = -(-self._first // length) * length
        stop_start = max(first_start, -(-self._last // length) * length)
        edges = np.arange(first_start, stop_start + 1, length, dtype=np.int64)
        yield from self._documents(np.minimum(edges, self._stream.count))

    def by_eos(self, eos_id: int) -> Iterator[Parsed]:
        """Yield documents that end with EOS; the last one of the file may have none.

        Raises:
            UnsuitableFileError: A document without EOS is larger than any record may
                be.
        """
        block_ids = max(1, self._want.block_bytes // self._stream.dtype.itemsize)
        document_start = self._first_start(eos_id, block_ids)
        # `document_start` begins the first document that is not returned yet; ids
        # before `position` were searched for EOS.
        position = document_start
        while document_start < self._last:
            # 1. Documents end behind each EOS, and the last one with the file.
            block_stop = min(position + block_ids, self._stream.count)
            is_eos = self._stream.ids(position, block_stop) == eos_id
            document_ends = position + 1 + np.flatnonzero(is_eos)
            position = block_stop
            if position == self._stream.count:
                has_open_end = not len(document_ends) or document_ends[-1] < position
                if has_open_end:
                    document_ends = np.append(document_ends, position)
            # 2. Documents that begin behind the range belong to the next one.
            open_start = np.array([document_start], np.int64)
            edges = np.concatenate([open_start, document_ends])
            edges = edges[: int(np.searchsorted(edges, self._last)) + 1]
            # 3. Without any EOS the search goes on, up to the largest record.
            searched_ids = position - document_start
            searched_bytes = searched_ids * self._stream.dtype.itemsize
            if len(edges) > 1:
                yield from self._documents(edges)
                document_start = int(edges[-1])
            elif searched_bytes > self._want.max_record_bytes:
                raise self._without_eos(eos_id, document_start, position)

    def _first_start(self, eos_id: int, block_ids: int) -> int:
        """Return the index at which the range's first document begins.

        It is the end of the stream if the range owns no document.
        """
        if self._first == 0:
            return 0
        # A document begins behind an EOS, which may be the last id before the range.
        position = self._first - 1
        while position < self._last:
            block_stop = min(position + block_ids, self._stream.count)
            token_ids = self._stream.ids(position, block_stop)
            eos_indices = np.flatnonzero(token_ids == eos_id)
            if len(eos_indices):
                return position + int(eos_indices[0]) + 1
            position = block_stop
        return self._stream.count

    def _without_eos(self, eos_id: int, start: int, position: int) -> Exception:
        return unsuitable(
            self._part.file,
            f"ids {start} to {position} have no EOS (id {eos_id}), and would be a document of more than "
            f"{self._want.max_record_bytes} bytes",
            "check tokens.eos_token_id and tokens.dtype, or cut the ids into records with tokens.length",
        )

    def _documents(self, edges: Int64) -> Iterator[Parsed]:
        """Yield documents that follow each other, in blocks.

        Args:
            edges: Index of the first id of each document, and that after the last id,
                int64[n + 1].
        """
        id_bytes = self._stream.dtype.itemsize
        most_ids = max(1, self._want.block_bytes // id_bytes)
        most_bytes = self._want.max_record_bytes
        first_document = 0
        while first_document < len(edges) - 1:
            # 1. As many documents as fit into a block, at least one.
            document_start = int(edges[first_document])
            block_end = document_start + most_ids
            stop_document = int(np.searchsorted(edges, block_end, side="right")) - 1
            stop_document = max(stop_document, first_document + 1)
            # 2. A document that is too long is a block by itself, and a bad record.
            document_end = int(edges[first_document + 1])
            document_bytes = (document_end - document_start) * id_bytes
            is_alone = stop_document == first_document + 1
            if is_alone and document_bytes > most_bytes:
                yield self._too_long(document_start, document_bytes, document_end)
            else:
                yield self._block(edges[first_document : stop_document + 1])
            first_document = stop_document

    def _block(self, edges: Int64) -> Parsed:
        """Return documents that follow each other as records."""
        # The loss mask has a byte for each id, at the index of the id.
        first_id = int(edges[0])
        stop_id = int(edges[-1])
        offsets = edges - first_id
        columns: dict[str, tuple[Numbers, Int64]] = {}
        for field_name in self._names:
            if field_name == INPUT_IDS:
                columns[field_name] = (self._stream.ids(first_id, stop_id), offsets)
            elif self._mask is not None:
                mask_bytes = self._mask.pread(stop_id - first_id, first_id)
                columns[field_name] = (np.frombuffer(mask_bytes, np.uint8), offsets)
        # Without fields the positions of the documents are all that is needed.
        rows = None
        if columns:
            rows = Rows(id_batch(columns))
        return Parsed(
            text=None,
            positions=edges[:-1].astype(np.int64),
            bad=(),
            bytes_read=self._bytes_until(stop_id),
            rows=rows,
        )

    def _too_long(self, position: int, size: int, end: int) -> Parsed:
        """Return a document that is too long as a bad record."""
        most_bytes = self._want.max_record_bytes
        fault = Fault(
            "record_too_long",
            f"the document has {size} bytes, max_record_bytes is {most_bytes}",
        )
        return Parsed(
            text=None,
            positions=np.zeros(0, np.int64),
            bad=(BadLine(position, None, fault, b""),),
            bytes_read=self._bytes_until(end),
        )

    def _bytes_until(self, index: int) -> int:
        """Return the bytes of the range up to an id, less those returned before."""
        # The last document may end behind the range, whose bytes are all that count.
        id_offset = self._stream.begin + index * self._stream.dtype.itemsize
        counted_until = min(max(id_offset, self._counted), self._part.stop)
        byte_count = counted_until - self._counted
        self._counted = counted_until
        return byte_count


def _require_names(
    file: InputFile, names: tuple[str, ...], file_names: list[str]
) -> None:
    """Raise UnsuitableFileError for a field that the file does not have."""
    for field_name in names:
        if field_name not in file_names:
            raise unsuitable(
                file,
                f"it has no field {field_name!r}; it has {', '.join(file_names)}",
                "leave tokens.loss_field and where out",
            )
