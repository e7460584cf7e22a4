"""A sample of one file: its columns, its first records and its faults; at most 4 MiB
of the file are read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, cast, final

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from tokenlake.errors import DamagedFileError
from tokenlake.etl.introspection.shapes import (
    Shape,
    merged,
    shape_of_type,
    shape_of_value,
)
from tokenlake.etl.sources.byte_stream import ByteStream
from tokenlake.etl.sources.columnar import reading
from tokenlake.etl.sources.contents import check_records
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.json_form import SPACE
from tokenlake.etl.sources.opening import opened
from tokenlake.etl.sources.parquet import open_parquet
from tokenlake.etl.sources.parsed import Parsed, Want
from tokenlake.etl.sources.records import reader_of

FILE_BYTES: Final = 4 << 20
"""Largest number of stored bytes that are read of one file."""
_MIB: Final = FILE_BYTES >> 20

_BUFFER_BYTES: Final = 64 << 10
_BLOCK_BYTES: Final = 1 << 20
"""Decompressed bytes that are read at a time of a format that has no blocks."""
_BLOCKS: Final = 2
_COUNTED_BYTES: Final = 1 << 20
"""Most bytes of a file of lines in which line ends are counted, at places spread
over it.
"""
_COUNTED_SHARE: Final = 16
"""A small file has this part of its bytes counted."""
_PLACES: Final = 64
"""Number of these places in a local file."""
_REMOTE_PLACES: Final = 8
"""Number of places in a remote file, of which each takes a request."""

SAMPLE_ROWS: Final = 64
"""Number of records that are kept of a file."""
_CHUNK_BYTES: Final = (1 << 20) + (
    1 << 18
)  # of a first page and its dictionary: the largest that writers make
_COLUMN_BYTES: Final = 3 << 20  # of a Parquet file's sample; the rest is for its footer
_DELIMITERS: Final = (",", ";", "\t", "|")


class BoundReached(Exception):
    """The limit of bytes read from a file was reached; never leaves this package."""


@final
class BoundedBytes(InputBytes):
    """An open input of which at most `limit` bytes can be read, repeated reads
    included.

    Attributes:
        bytes_read: Number of bytes read so far.
    """

    def __init__(self, data: InputBytes, limit: int = FILE_BYTES) -> None:
        self.file = data.file
        self.read_ahead = _BUFFER_BYTES
        self.bytes_read = 0
        self._data = data
        self._limit = limit

    def read_into(self, view: memoryview, offset: int) -> int:
        available = max(self.file.size - offset, 0)
        if self.bytes_read + min(len(view), available) > self._limit:
            raise BoundReached(f"{self.file.url}: more than {self._limit} bytes")
        count = self._data.read_into(view, offset)
        self.bytes_read += count
        return count

    def for_arrow(self) -> Any:
        """Return a random-access file that counts, for a local input too."""
        return pa.PythonFile(self.as_file(), mode="r")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileSample:
    """Sample of a file.

    Attributes:
        file: File with its format by the bytes, which the name may not say (JSON or
            JSON Lines).
        columns: Name -> type.
        rows: First records, at most 64.
        lengths: Estimated characters of a file that is one text; None for other files.
        seen: Number of records in the sampled part, bad ones included.
        bad: Number of bad records in that part, by reason.
        stored: Stored bytes of that part.
        total: Number of records of the whole file if it is known exactly, else None.
        densities: Records per byte at places spread over the file; empty if it can be
            read from its beginning only.
        delimiter: Delimiter of CSV cells if it differs from the extension's, else None.
        lines: Numbers of non-empty lines and of blank lines at the beginning of a text
            file.
        damage: Reason that the file cannot be read; None for a readable file.
        remark: Part that was not sampled, and the reason; None for nothing.
        bytes_read: Number of bytes read for the sample.
    """

    file: InputFile
    columns: Mapping[str, Shape]
    rows: tuple[dict[str, Any], ...] = ()
    lengths: float | None = None
    seen: int = 0
    bad: Mapping[str, int] = field(default_factory=dict[str, int])
    stored: int = 0
    total: int | None = None
    densities: tuple[float, ...] = ()
    delimiter: str | None = None
    lines: tuple[int, int] = (0, 0)
    damage: str | None = None
    remark: str | None = None
    bytes_read: int = 0


def look(
    file: InputFile,
    delimiter: str | None,
    storage_options: Mapping[str, Any] | None = None,
) -> FileSample:
    """Return a sample of a file. A fault of the file is a part of the sample and is not
    raised.

    Args:
        file: File.
        delimiter: Delimiter of CSV cells; None to detect it.
        storage_options: Options of the storage.

    Raises:
        SourceError: The storage cannot be reached.
    """
    read = _LOOKS.get(file.format, _look_into_records)
    try:
        with opened(file, storage_options) as data:
            bounded = BoundedBytes(data)
            try:
                sample = read(file, bounded, delimiter)
            except DamagedFileError as error:
                sample = FileSample(
                    file=file, columns={}, damage=error.details["problem"]
                )
            except BoundReached:
                remark = f"not sampled: that needs more than {_MIB} MiB"
                sample = FileSample(file=file, columns={}, remark=remark)
            return replace(sample, bytes_read=bounded.bytes_read)
    except OSError as error:  # such as a file without permission to read
        return FileSample(
            file=file,
            columns={},
            damage=f"it cannot be read ({error.strerror or error})",
        )


def _look_into_parquet(
    file: InputFile, data: BoundedBytes, _delimiter: str | None
) -> FileSample:
    """Return a sample of Parquet: the first rows of the first row group that has
    rows.
    """
    if not file.size:
        raise damaged(file, "it is empty and has no footer")
    with open_parquet(data) as parquet:
        columns = _columns(parquet.schema_arrow)
        metadata = parquet.metadata
        sample = FileSample(
            file=file, columns=columns, stored=file.size, total=metadata.num_rows
        )
        groups = range(metadata.num_row_groups)
        group = next(
            (index for index in groups if metadata.row_group(index).num_rows), None
        )
        if group is None:
            return sample
        chosen = _affordable(metadata.row_group(group), columns)
        reader: Any = parquet  # the stub leaves the types of lists open
        try:
            with reading(file, f"row group {group}"):
                batches = reader.iter_batches(
                    SAMPLE_ROWS, row_groups=[group], columns=chosen, use_threads=False
                )
                rows = _records(file, next(batches, None))
        except BoundReached:
            return replace(
                sample, remark=f"no sample: its first pages need more than {_MIB} MiB"
            )

    remark: str | None = None
    left_out = [name for name in columns if name not in chosen]
    if left_out:
        remark = f"columns not sampled, too large: {', '.join(left_out)}"
    return replace(sample, rows=rows, seen=len(rows), remark=remark)


def _affordable(group: pq.RowGroupMetaData, columns: Mapping[str, Shape]) -> list[str]:
    """Return the columns whose first pages fit in the limit, in the file's order;
    texts and chats go first.
    """
    # The bytes of a column are at most those of its first page, its dictionary and the
    # sampled rows.
    column_bytes: Counter[str] = Counter()
    for index in range(group.num_columns):
        chunk = group.column(index)
        size = chunk.total_compressed_size
        sampled_size = size * SAMPLE_ROWS // max(group.num_rows, 1)
        name = chunk.path_in_schema.partition(".")[0]
        column_bytes[name] += min(size, _CHUNK_BYTES + sampled_size)

    chosen: set[str] = set()
    remaining_bytes = _COLUMN_BYTES
    for name in sorted(
        columns, key=lambda name: not (columns[name].is_text or columns[name].is_chat)
    ):
        if column_bytes[name] <= remaining_bytes:
            chosen.add(name)
            remaining_bytes -= column_bytes[name]
    return [name for name in columns if name in chosen]


def _look_into_arrow(
    file: InputFile, data: BoundedBytes, _delimiter: str | None
) -> FileSample:
    """Return a sample of an Arrow file or stream: the first rows of its first record
    batch.
    """
    is_stream = data.pread(6, 0) != b"ARROW1"
    with reading(file, "its schema"):
        # A mapped file reads only the pages that the first records touch.
        can_map = file.is_local and not file.compression
        opened_file = pa.memory_map(file.url) if can_map else data.for_arrow()
        reader: Any = (
            ipc.open_stream(opened_file) if is_stream else ipc.open_file(opened_file)
        )
    sample = FileSample(file=file, columns=_columns(reader.schema), stored=file.size)

    # A stream does not say how many record batches it has.
    batch_count: int | None = None if is_stream else reader.num_record_batches
    if batch_count == 0:
        return replace(sample, total=0)
    try:
        with reading(file, "its first record batch"):
            batch = reader.read_next_batch() if is_stream else reader.get_batch(0)
    except BoundReached:
        return replace(
            sample,
            remark=f"no sample: its first record batch needs more than {_MIB} MiB",
        )
    except StopIteration:
        return replace(sample, total=0)

    stored = min(file.size, batch.get_total_buffer_size())
    if batch_count is not None:
        stored = file.size // batch_count
    return replace(
        sample,
        rows=_records(file, batch.slice(0, SAMPLE_ROWS)),
        seen=batch.num_rows,
        stored=stored,
        total=batch.num_rows if batch_count == 1 else None,
    )


def _columns(schema: pa.Schema) -> dict[str, Shape]:
    """Return the types of an Arrow schema by name."""
    fields: Any = schema
    return {field.name: shape_of_type(field.type, field.nullable) for field in fields}


def _records(
    file: InputFile, batch: pa.RecordBatch | None
) -> tuple[dict[str, Any], ...]:
    """Return the rows of a batch; none if Python has no type for one of their
    values.
    """
    if batch is None:
        return ()
    with reading(file, "its first records"):
        batch.validate(full=True)  # the conversion trusts offsets and encodings
    try:
        return tuple(batch.to_pylist())
    # Such as a timestamp that Python has no date for.
    except (ValueError, OverflowError):
        return ()


def _look_into_records(
    file: InputFile, data: BoundedBytes, delimiter: str | None
) -> FileSample:
    """Return a sample of a format that is read from its beginning: JSON, CSV or
    text.
    """
    is_document = file.format == "text" and file.text_mode == "document"
    stream = ByteStream(data)
    head = stream.read(_BLOCK_BYTES if is_document else _BUFFER_BYTES)
    check_records(file, head)
    if file.format == "jsonl" and head.lstrip(SPACE).startswith(b"["):
        file = replace(file, format="json")
    if delimiter is None and file.format in {"csv", "tsv"}:
        delimiter = _detected_delimiter(file, head)

    # Read the first blocks. Lines are read of a document, too: they may turn out to be
    # the documents.
    as_lines = replace(file, text_mode="lines")
    file_range = FileRange(file=as_lines, start=0, stop=file.size, weight=file.size)
    if file.format == "text":
        want = Want(text="text", block_bytes=_BLOCK_BYTES)
    else:
        want = Want(
            text=None, columns=None, delimiter=delimiter, block_bytes=_BLOCK_BYTES
        )
    blocks: list[Parsed] = []
    is_whole = False
    try:
        blocks.extend(
            islice(reader_of(file.format)(file_range, data, want, None), _BLOCKS)
        )
        is_whole = len(blocks) < _BLOCKS
    except BoundReached:
        if not blocks:
            return FileSample(
                file=file, columns={}, remark=f"no record ends in its first {_MIB} MiB"
            )

    sample = _sample_of_blocks(file, blocks, delimiter, is_whole=is_whole)
    if not is_whole and file.is_lines and not file.compression:
        sample = replace(sample, densities=_line_densities(file, data))
    if not is_document:
        return sample

    # The whole file is one record, whose length is estimated from its first block.
    text = head.decode("utf-8", errors="replace")
    if not text or sample.bad:
        return replace(sample, rows=(), seen=1, total=1)
    length = len(text) * file.size / max(stream.consumed(), 1)
    return replace(sample, rows=({"text": text},), lengths=length, seen=1, total=1)


def _line_densities(file: InputFile, data: BoundedBytes) -> tuple[float, ...]:
    """Return the line ends per byte at even distances in a file of lines, as far as the
    limit of bytes goes.

    Long lines have no end at most places, and one at a few: the mean is right.
    """
    places = _PLACES if file.is_local else _REMOTE_PLACES
    window = bytearray(
        max(1, min(_COUNTED_BYTES, file.size // _COUNTED_SHARE) // places)
    )
    densities: list[float] = []
    for place in range(places):
        begin = int((place + 0.5) * (file.size - len(window)) / places)
        try:
            count = data.read_into(memoryview(window), begin)
        except BoundReached:
            break
        densities.append(window[:count].count(b"\n") / max(count, 1))
    # Without a line end at any place the blocks at the beginning say more.
    return tuple(densities) if any(densities) else ()


def _detected_delimiter(file: InputFile, head: bytes) -> str | None:
    """Return the most frequent delimiter of the header; None if the extension's
    delimiter is in it.
    """
    header = head.partition(b"\n")[0].decode("utf-8", errors="replace")
    count, most_frequent = max(
        (header.count(delimiter), delimiter) for delimiter in _DELIMITERS
    )
    usual = "\t" if file.format == "tsv" else ","
    return most_frequent if count and usual not in header else None


def _sample_of_blocks(
    file: InputFile, blocks: list[Parsed], delimiter: str | None, *, is_whole: bool
) -> FileSample:
    """Return the sample that the first blocks of a file give.

    Args:
        file: File.
        blocks: Blocks from the beginning of the file.
        delimiter: Delimiter of CSV cells if it differs from the extension's.
        is_whole: True if the blocks are the whole file.
    """
    rows: list[dict[str, Any]] = []
    bad: Counter[str] = Counter()
    seen = 0
    bytes_read = 0
    blank_lines = 0
    for block in blocks:
        if file.format != "text" and block.rows is not None:
            rows += block.rows.objects
        elif file.format == "text" and block.text:
            rows += [{"text": text} for text in block.text.to_pylist()]
        bad.update(record.fault.reason for record in block.bad)
        seen += len(block) + len(block.bad)
        bytes_read += block.bytes_read
        blank_lines += block.normalized.get("blank_line", 0)

    stored = file.size
    if not is_whole:
        # About half of the bytes that a decompressor took last are not decompressed
        # yet.
        unread = _BUFFER_BYTES // 2 if file.compression else 0
        stored = max(1, bytes_read - unread)
    return FileSample(
        file=file,
        columns=_seen_columns(file, rows, blocks),
        rows=tuple(rows[:SAMPLE_ROWS]),
        seen=seen,
        bad=bad,
        stored=stored,
        total=seen if is_whole else None,
        delimiter=delimiter,
        lines=(seen, blank_lines),
    )


def _seen_columns(
    file: InputFile, rows: list[dict[str, Any]], blocks: list[Parsed]
) -> dict[str, Shape]:
    """Return the columns of text, of the records' keys, or of the blocks' schema."""
    if file.format == "text":
        return {"text": Shape("string")}
    if file.format in ("json", "jsonl"):
        return dict(merged(shape_of_value(row) for row in rows).fields)
    for block in blocks:
        if block.rows is not None:
            return _columns(block.rows.columns.schema)
    return {}


_LOOKS: Final[
    dict[str, Callable[[InputFile, BoundedBytes, str | None], FileSample]]
] = {
    "parquet": _look_into_parquet,
    "arrow": _look_into_arrow,
}

_SHOWN_CHARACTERS: Final = 300  # of a text
_SHOWN_ITEMS: Final = 5
_SHOWN_DEPTH: Final = 6


def shortened(value: object, depth: int = _SHOWN_DEPTH) -> Any:
    """Return a JSON-able copy of a value, with long strings and lists cut at a note,
    and bytes as their number.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        if len(value) <= _SHOWN_CHARACTERS:
            return value
        return f"{value[:_SHOWN_CHARACTERS]}... ({len(value):,} characters)"
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {str(key): shortened(item, depth - 1) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        shown = [shortened(item, depth - 1) for item in items[:_SHOWN_ITEMS]]
        if len(items) > _SHOWN_ITEMS:
            shown.append(f"... ({len(items):,} items)")
        return shown
    return str(value)[:_SHOWN_CHARACTERS]  # dates, decimals
