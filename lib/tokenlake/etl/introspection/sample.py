"""A sample of one file: its columns, first records and faults.

At most 4 MiB of a file are read, whatever its size and format. Formats with a footer or
batches are read there; all others are read from their beginning by the reader of a
build, so that a sample has the faults that a build would find.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar, cast, final

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
from tokenlake.etl.sources.bad_reasons import BadReason, added_up
from tokenlake.etl.sources.bad_records import BadLine, position_unit
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
from tokenlake.etl.sources.position_kinds import place_of
from tokenlake.etl.sources.records import reader_of

FILE_BYTES: Final = 4 << 20
"""Largest number of stored bytes that are read of one file."""
_MIB: Final = FILE_BYTES >> 20

_BUFFER_BYTES: Final = 64 << 10  # of a read; also of the head, by which JSON is told
BLOCK_BYTES: Final = 1 << 20
"""Decompressed bytes of a block, if the format has none."""
_BLOCKS: Final = (
    2  # that are read from the beginning: a second one shows that more comes
)
# Blocks of a file whose stored bytes are all read: the rest costs no further read.
_MOST_BLOCKS: Final = 8


class _Block(Protocol):
    """Records that were read at a time."""

    @property
    def bytes_read(self) -> int:
        """Number of input bytes read since the block before."""
        ...


_AnyBlock = TypeVar("_AnyBlock", bound=_Block)

# Bytes of a file of lines in which line ends are counted, at places spread over it: at
# most so many, and of a small file a sixteenth.
_COUNTED_BYTES: Final = 1 << 20
_COUNTED_SHARE: Final = 16
# Number of these places. In a remote file each one takes a request.
_PLACES: Final = 64
_REMOTE_PLACES: Final = 8

SAMPLE_ROWS: Final = 64
"""Number of records that are kept of a file."""

# Bytes of a first page with its dictionary: the largest that writers make.
_CHUNK_BYTES: Final = (1 << 20) + (1 << 18)
# Bytes of the columns in a Parquet file's sample; the rest is for its footer.
_COLUMN_BYTES: Final = 3 << 20
_DELIMITERS: Final = (",", ";", "\t", "|")


class BoundReached(Exception):
    """The limit of bytes read from a file was reached; never leaves this package."""


@final
class BoundedBytes(InputBytes):
    """An open input of which at most `limit` bytes can be read.

    For the limit, repeated reads count again: each takes time and traffic.
    """

    def __init__(self, data: InputBytes, limit: int = FILE_BYTES) -> None:
        self.file = data.file
        self.read_ahead = _BUFFER_BYTES
        self._data = data
        self._limit = limit
        self._spent_bytes = 0
        # First byte and end of each read, in the order of the reads.
        self._reads: list[tuple[int, int]] = []

    @property
    def bytes_read(self) -> int:
        """The number of bytes of the file that were read; each counts once."""
        distinct_bytes = 0
        counted_end = 0
        for start, end in sorted(self._reads):
            distinct_bytes += max(0, end - max(start, counted_end))
            counted_end = max(counted_end, end)
        return distinct_bytes

    def read_into(self, view: memoryview, offset: int) -> int:
        # A read past the end gets fewer bytes. The limit is tested before the read,
        # which would cost time and traffic.
        available = max(self.file.size - offset, 0)
        if self._spent_bytes + min(len(view), available) > self._limit:
            raise BoundReached(f"{self.file.url}: more than {self._limit} bytes")
        count = self._data.read_into(view, offset)
        self._spent_bytes += count
        self._reads.append((offset, offset + count))
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
        bad: Bad records in that part, by reason.
        judged: Number of records that the code of a build judged; None if `bad` has
            only those that cannot be read.
        stored: Stored bytes of that part.
        total: Number of records of the whole file if it is known exactly, else None.
        densities: Records per byte at places spread over the file; empty if it can be
            read from its beginning only.
        delimiter: Delimiter of CSV cells if it differs from the extension's, else None.
        lines: Numbers of non-empty lines and of blank lines at the beginning of a text
            file.
        damage: Reason that the file cannot be read; None for a readable file.
        remark: Part that was not sampled, and the reason; None for nothing.
        bytes_read: Number of bytes of the file that were read; each counts once.
    """

    file: InputFile
    columns: Mapping[str, Shape]
    rows: tuple[dict[str, Any], ...] = ()
    lengths: float | None = None
    seen: int = 0
    bad: tuple[BadReason, ...] = ()
    judged: int | None = None
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
    """Return a sample of a file.

    A fault of the file is a part of the sample and is not raised: an inspection of many
    files reports all faults together.

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
    """Return a sample of Parquet: the first rows of the first row group with rows."""
    if not file.size:
        raise damaged(file, "it is empty and has no footer")
    with open_parquet(data) as parquet:
        columns = _columns(parquet.schema_arrow)
        metadata = parquet.metadata
        sample = FileSample(
            file=file, columns=columns, stored=file.size, total=metadata.num_rows
        )
        group_index = _first_group_with_rows(metadata)
        if group_index is None:
            return sample
        chosen = _affordable(metadata.row_group(group_index), columns)
        reader: Any = parquet  # the stub leaves the types of lists open
        try:
            with reading(file, f"row group {group_index}"):
                batches = reader.iter_batches(
                    SAMPLE_ROWS,
                    row_groups=[group_index],
                    columns=chosen,
                    use_threads=False,
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


def _first_group_with_rows(metadata: pq.FileMetaData) -> int | None:
    """Return the index of the first row group with rows; None if there is none."""
    for group_index in range(metadata.num_row_groups):
        if metadata.row_group(group_index).num_rows:
            return group_index
    return None


def _affordable(group: pq.RowGroupMetaData, columns: Mapping[str, Shape]) -> list[str]:
    """Return the columns whose first pages fit in the limit, in the file's order.

    Texts and chats go first: they decide about the kind of the records.
    """
    # The bytes of a column are at most those of its first page, its dictionary and the
    # sampled rows.
    column_bytes: Counter[str] = Counter()
    for index in range(group.num_columns):
        chunk = group.column(index)
        chunk_bytes = chunk.total_compressed_size
        sampled_size = chunk_bytes * SAMPLE_ROWS // max(group.num_rows, 1)
        column_name = chunk.path_in_schema.partition(".")[0]
        column_bytes[column_name] += min(chunk_bytes, _CHUNK_BYTES + sampled_size)

    chosen: set[str] = set()
    remaining_bytes = _COLUMN_BYTES

    # `False` sorts before `True`: columns that can be the text come first.
    def is_of_no_use(column_name: str) -> bool:
        shape = columns[column_name]
        return not (shape.is_text or shape.is_chat)

    for column_name in sorted(columns, key=is_of_no_use):
        if column_bytes[column_name] <= remaining_bytes:
            chosen.add(column_name)
            remaining_bytes -= column_bytes[column_name]
    return [column_name for column_name in columns if column_name in chosen]


def _look_into_arrow(
    file: InputFile, data: BoundedBytes, _delimiter: str | None
) -> FileSample:
    """Return a sample of an Arrow file or stream: the first rows of its first batch."""
    # Only the file format begins with these bytes.
    is_stream = data.pread(6, 0) != b"ARROW1"
    with reading(file, "its schema"):
        # A mapped file reads only the pages that the first records touch.
        arrow_file: Any
        if file.is_local and not file.compression:
            arrow_file = pa.memory_map(file.url)
        else:
            arrow_file = data.for_arrow()
        reader: Any
        if is_stream:
            reader = ipc.open_stream(arrow_file)
        else:
            reader = ipc.open_file(arrow_file)
    sample = FileSample(file=file, columns=_columns(reader.schema), stored=file.size)

    # A stream does not say how many record batches it has.
    batch_count: int | None = None
    if not is_stream:
        batch_count = reader.num_record_batches
    if batch_count == 0:
        return replace(sample, total=0)
    try:
        with reading(file, "its first record batch"):
            if is_stream:
                batch = reader.read_next_batch()
            else:
                batch = reader.get_batch(0)
    except BoundReached:
        remark = f"no sample: its first record batch needs more than {_MIB} MiB"
        return replace(sample, remark=remark)
    except StopIteration:
        return replace(sample, total=0)

    # The stored bytes of the batch, from which the rows of the file are estimated. A
    # file has batches of about equal size. A stream is taken at the size of the batch
    # in memory.
    stored = min(file.size, batch.get_total_buffer_size())
    if batch_count is not None:
        stored = file.size // batch_count
    total: int | None = None
    if batch_count == 1:
        total = batch.num_rows
    return replace(
        sample,
        rows=_records(file, batch.slice(0, SAMPLE_ROWS)),
        seen=batch.num_rows,
        stored=stored,
        total=total,
    )


def _columns(schema: pa.Schema) -> dict[str, Shape]:
    """Return the types of an Arrow schema by name."""
    arrow_fields: Any = schema  # the stubs leave the types of fields open
    columns: dict[str, Shape] = {}
    for arrow_field in arrow_fields:
        shape = shape_of_type(arrow_field.type, arrow_field.nullable)
        columns[arrow_field.name] = shape
    return columns


def _records(
    file: InputFile, batch: pa.RecordBatch | None
) -> tuple[dict[str, Any], ...]:
    """Return the rows of a batch.

    There are none if Python has no type for one of their values.
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
    """Return a sample of a format that is read from its beginning.

    These are JSON, CSV and text.
    """
    # 1. The head: it decides between JSON and JSON Lines, whose extensions are often
    # mixed up, and about the delimiter. Of a document it is the sampled text.
    is_document = file.format == "text" and file.text_mode == "document"
    stream = ByteStream(data)
    head_bytes = _BUFFER_BYTES
    if is_document:
        head_bytes = BLOCK_BYTES
    head = stream.read(head_bytes)
    check_records(file, head)
    if file.format == "jsonl" and head.lstrip(SPACE).startswith(b"["):
        file = replace(file, format="json")
    if delimiter is None and file.format in {"csv", "tsv"}:
        delimiter = _detected_delimiter(file, head)

    # 2. The first blocks. Lines are read of a document, too: they may turn out to be
    #    the documents.
    as_lines = replace(file, text_mode="lines")
    file_range = FileRange(file=as_lines, start=0, stop=file.size, weight=file.size)
    if file.format == "text":
        want = Want(text="text", block_bytes=BLOCK_BYTES)
    else:
        want = Want(
            text=None, columns=None, delimiter=delimiter, block_bytes=BLOCK_BYTES
        )
    read_blocks = reader_of(file.format)
    blocks: list[Parsed] = []
    is_whole = False
    try:
        is_whole = first_blocks(
            read_blocks(file_range, data, want, None), _records_of, file, blocks
        )
    except BoundReached:
        # The blocks before the limit are the sample. Without any, one record is larger.
        if not blocks:
            remark = f"no record ends in its first {_MIB} MiB"
            return FileSample(file=file, columns={}, remark=remark)

    sample = _sample_of_blocks(file, blocks, delimiter, is_whole=is_whole)
    if not is_whole and file.is_lines and not file.compression:
        sample = replace(sample, densities=_line_densities(file, data))
    if not is_document:
        return sample

    # 3. A complete file is one record, whose length is estimated from its first block.
    text = head.decode("utf-8", errors="replace")
    if not text or sample.bad:
        return replace(sample, rows=(), seen=1, total=1)
    # Characters per stored byte: the file may be compressed.
    consumed_bytes = max(stream.consumed(), 1)
    length = len(text) * file.size / consumed_bytes
    return replace(sample, rows=({"text": text},), lengths=length, seen=1, total=1)


def _records_of(block: Parsed) -> int:
    """Return the number of records of a block, bad ones included."""
    return len(block) + len(block.bad)


def first_blocks(
    blocks: Iterable[_AnyBlock],
    records_of: Callable[[_AnyBlock], int],
    file: InputFile,
    sampled_blocks: list[_AnyBlock],
) -> bool:
    """Read the blocks at the beginning of a file that a sample consists of.

    Args:
        blocks: Blocks of the file, in order.
        records_of: Function that returns the number of records of a block.
        file: The file.
        sampled_blocks: List to which the blocks are added one by one: those before a
            failed read remain.

    Returns:
        True if these are all blocks of the file.
    """
    taken_bytes = 0
    filled_blocks = 0
    for block in blocks:
        sampled_blocks.append(block)
        taken_bytes += block.bytes_read
        # The header of CSV is a block without records.
        if records_of(block):
            filled_blocks += 1
        has_all_bytes = taken_bytes >= file.size and len(sampled_blocks) < _MOST_BLOCKS
        if filled_blocks >= _BLOCKS and not has_all_bytes:
            return False
    return True


def _line_densities(file: InputFile, data: BoundedBytes) -> tuple[float, ...]:
    """Return the line ends per byte at even distances in a file of lines.

    There are as many as the limit of bytes allows. Long lines have no end at most
    places, and one at a few: the mean is right.
    """
    # The window of each place: all windows together have the counted bytes.
    places = _REMOTE_PLACES
    if file.is_local:
        places = _PLACES
    counted_bytes = min(_COUNTED_BYTES, file.size // _COUNTED_SHARE)
    window = bytearray(max(1, counted_bytes // places))
    densities: list[float] = []
    for place in range(places):
        # In the middle of each of the equal parts of the file.
        byte_offset = int((place + 0.5) * (file.size - len(window)) / places)
        try:
            bytes_read = data.read_into(memoryview(window), byte_offset)
        except BoundReached:
            break
        line_ends = window[:bytes_read].count(b"\n")
        densities.append(line_ends / max(bytes_read, 1))
    # Without a line end at any place the blocks at the beginning say more.
    if not any(densities):
        return ()
    return tuple(densities)


def _detected_delimiter(file: InputFile, head: bytes) -> str | None:
    """Return the most frequent delimiter of the header.

    It is None if the extension's delimiter is in the header.
    """
    header = head.partition(b"\n")[0].decode("utf-8", errors="replace")
    usual_delimiter = ","
    if file.format == "tsv":
        usual_delimiter = "\t"
    if usual_delimiter in header:
        return None
    # Of equally frequent ones the last in the order of characters counts.
    most_occurrences = 0
    most_frequent: str | None = None
    for delimiter in sorted(_DELIMITERS):
        occurrences = header.count(delimiter)
        if occurrences and occurrences >= most_occurrences:
            most_occurrences = occurrences
            most_frequent = delimiter
    return most_frequent


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
    # The blocks have records as objects, as a column of texts, or as bad records.
    rows: list[dict[str, Any]] = []
    bad: list[BadReason] = []
    lines_before = 0
    seen = 0
    bytes_read = 0
    blank_lines = 0
    for block in blocks:
        if file.format != "text" and block.rows is not None:
            rows += block.rows.objects
        elif file.format == "text" and block.text:
            for text in block.text.to_pylist():
                rows.append({"text": text})
        for record in block.bad:
            place = _place(file, record, lines_before)
            bad.append(BadReason(reason=record.fault.reason, records=1, first=place))
        lines_before += block.lines
        seen += _records_of(block)
        bytes_read += block.bytes_read
        blank_lines += block.normalized.get("blank_line", 0)

    # The stored bytes of the blocks. A decompressor has taken more than it has given:
    # about half of the bytes that it took last are not decompressed yet.
    stored = file.size
    total: int | None = None
    if is_whole:
        total = seen
    else:
        pending_bytes = 0
        if file.compression:
            pending_bytes = _BUFFER_BYTES // 2
        stored = max(1, bytes_read - pending_bytes)
    return FileSample(
        file=file,
        columns=_seen_columns(file, rows, blocks),
        rows=tuple(rows[:SAMPLE_ROWS]),
        seen=seen,
        bad=added_up(bad),
        stored=stored,
        total=total,
        delimiter=delimiter,
        lines=(seen, blank_lines),
    )


def _place(file: InputFile, record: BadLine, lines_before: int) -> str:
    """Return the place of a bad record of a block.

    Args:
        file: File of the block.
        record: The record.
        lines_before: Lines of the file before the block.
    """
    line_number: int | None = None
    if record.line_index is not None:
        line_number = lines_before + record.line_index + 1
    return place_of(file.path, record.position, line_number, position_unit(file))


def _seen_columns(
    file: InputFile, rows: list[dict[str, Any]], blocks: list[Parsed]
) -> dict[str, Shape]:
    """Return the columns of text, of the records' keys, or of the blocks' schema."""
    if file.format == "text":
        return {"text": Shape("string")}
    # JSON has no schema: the columns are those of all records of the sample.
    if file.format in ("json", "jsonl"):
        shapes: list[Shape] = []
        for row in rows:
            shapes.append(shape_of_value(row))
        return dict(merged(shapes).fields)
    for block in blocks:
        if block.rows is not None:
            return _columns(block.rows.columns.schema)
    return {}


# Formats that are sampled by their own structure; all others from their beginning.
_LOOKS: Final[
    dict[str, Callable[[InputFile, BoundedBytes, str | None], FileSample]]
] = {
    "parquet": _look_into_parquet,
    "arrow": _look_into_arrow,
}

# Limits of a record that is shown: a record may be a book, or nested without end.
_SHOWN_CHARACTERS: Final = 300  # of a text
_SHOWN_ITEMS: Final = 5  # of a list
_SHOWN_DEPTH: Final = 6  # levels of lists and objects


def shortened(value: object, depth: int = _SHOWN_DEPTH) -> Any:
    """Return a JSON-able copy of a value for people.

    Long strings and lists are cut, with a note of their length. Bytes are their number.
    """
    if isinstance(value, float):
        # JSON has no infinity and no NaN.
        if math.isfinite(value):
            return value
        return str(value)
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
        shown_entries: dict[str, Any] = {}
        for key, item in entries.items():
            shown_entries[str(key)] = shortened(item, depth - 1)
        return shown_entries
    if isinstance(value, list | tuple):
        list_items = cast("list[Any]", value)
        shown_items: list[Any] = []
        for item in list_items[:_SHOWN_ITEMS]:
            shown_items.append(shortened(item, depth - 1))
        if len(list_items) > _SHOWN_ITEMS:
            shown_items.append(f"... ({len(list_items):,} items)")
        return shown_items
    return str(value)[:_SHOWN_CHARACTERS]  # dates, decimals
