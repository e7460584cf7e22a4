"""A look into one file: its columns, its first records, and what is wrong with it; it reads a few MB at most."""

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
from tokenlake.etl.introspection.shapes import Shape, merged, shape_of_type, shape_of_value
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
"""Stored bytes that are read of one file at most."""
_BUFFER_BYTES: Final = 64 << 10
_BLOCK_BYTES: Final = (
    1 << 20
)  # decompressed bytes that are read at a time of a format without blocks of its own
_BLOCKS: Final = 2


class BoundReached(Exception):
    """More of a file would have to be read than is allowed; never leaves this package."""


@final
class BoundedBytes(InputBytes):
    """An open input of which at most `limit` bytes can be read, repeats counted.

    Attributes:
        bytes_read: how many were.
    """

    def __init__(self, data: InputBytes, limit: int = FILE_BYTES) -> None:
        self.file, self.read_ahead = data.file, _BUFFER_BYTES
        self._data, self._limit = data, limit
        self.bytes_read = 0

    def read_into(self, view: memoryview, offset: int) -> int:
        wanted = min(len(view), max(self.file.size - offset, 0))
        if self.bytes_read + wanted > self._limit:
            raise BoundReached(f"{self.file.url}: more than {self._limit} bytes")
        got = self._data.read_into(view, offset)
        self.bytes_read += got
        return got

    def for_arrow(self) -> Any:
        """Return a random-access file that counts, for a local input too."""
        return pa.PythonFile(self.as_file(), mode="r")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileSample:
    """What a look into a file found.

    Attributes:
        file: the file; its format is what its bytes say where the name says otherwise (JSON or JSON Lines).
        columns: name to type.
        rows: the first records, at most 64 of them.
        lengths: characters of the texts of a file that is one text, where they are not those of `rows`.
        seen: records in the part that was looked at, bad ones too.
        bad: how many of them are bad, by reason.
        stored: stored bytes of that part.
        total: records of the whole file where it is known for sure, else None.
        delimiter: between the cells of CSV where it is not what the extension says, else None.
        lines: non-empty lines and blank lines of a text file's beginning.
        damage: why the file cannot be read, None where it can.
        remark: what could not be looked at, None for nothing.
        bytes_read: bytes that were read for all this.
    """

    file: InputFile
    columns: Mapping[str, Shape]
    rows: tuple[dict[str, Any], ...] = ()
    lengths: float | None = None
    seen: int = 0
    bad: Mapping[str, int] = field(default_factory=dict[str, int])
    stored: int = 0
    total: int | None = None
    delimiter: str | None = None
    lines: tuple[int, int] = (0, 0)
    damage: str | None = None
    remark: str | None = None
    bytes_read: int = 0


SAMPLE_ROWS: Final = 64
"""Records that are kept of a file."""
_CHUNK_BYTES: Final = (1 << 20) + (1 << 18)  # a first page and its dictionary, at most what writers make
_COLUMN_BYTES: Final = 3 << 20  # of a Parquet file's sample; the rest is for its footer
_DELIMITERS: Final = (",", ";", "\t", "|")


def look(
    file: InputFile, delimiter: str | None, storage_options: Mapping[str, Any] | None = None
) -> FileSample:
    """Look into a file; what is wrong with it is in the answer, never raised, unless it cannot be reached.

    Raises:
        SourceError: the storage cannot be reached.
    """
    read = _LOOKS.get(file.format, _look_into_records)
    try:
        with opened(file, storage_options) as data:
            bounded = BoundedBytes(data)
            try:
                found = read(file, bounded, delimiter)
            except DamagedFileError as error:
                found = FileSample(file=file, columns={}, damage=error.details["problem"])
            except BoundReached:
                found = FileSample(
                    file=file, columns={}, remark=f"not looked into: that takes over {_MIB} MiB"
                )
            return replace(found, bytes_read=bounded.bytes_read)
    except OSError as error:  # such as a file that may not be read
        return FileSample(file=file, columns={}, damage=f"it cannot be read ({error.strerror or error})")


_MIB: Final = FILE_BYTES >> 20


def _look_into_parquet(file: InputFile, data: BoundedBytes, _delimiter: str | None) -> FileSample:
    if not file.size:
        raise damaged(file, "it is empty; not even a footer is there")
    with open_parquet(data) as parquet:
        columns = _columns(parquet.schema_arrow)
        meta = parquet.metadata
        found = FileSample(file=file, columns=columns, stored=file.size, total=meta.num_rows)
        group = next((index for index in range(meta.num_row_groups) if meta.row_group(index).num_rows), None)
        if group is None:
            return found
        chosen = _affordable(meta.row_group(group), columns)
        reader: Any = parquet  # the stub leaves the types of lists open
        try:
            with reading(file, f"row group {group}"):
                batches = reader.iter_batches(
                    SAMPLE_ROWS, row_groups=[group], columns=chosen, use_threads=False
                )
                rows = _records(file, next(batches, None))
        except BoundReached:
            return replace(found, remark=f"no sample: its first pages take over {_MIB} MiB")
    left_out = [name for name in columns if name not in chosen]
    remark = f"columns not sampled, too large: {', '.join(left_out)}" if left_out else None
    return replace(found, rows=rows, seen=len(rows), remark=remark)


def _affordable(group: pq.RowGroupMetaData, columns: Mapping[str, Shape]) -> list[str]:
    """The columns whose first pages fit in the bound: texts and chats first."""
    cost: Counter[str] = Counter()
    for index in range(group.num_columns):
        chunk = group.column(index)
        size = chunk.total_compressed_size
        rows = size * SAMPLE_ROWS // max(group.num_rows, 1)
        cost[chunk.path_in_schema.partition(".")[0]] += min(size, _CHUNK_BYTES + rows)
    chosen: list[str] = []
    left = _COLUMN_BYTES
    for name in sorted(columns, key=lambda name: not (columns[name].is_text or columns[name].is_chat)):
        if cost[name] <= left:
            chosen.append(name)
            left -= cost[name]
    return [name for name in columns if name in chosen]


def _look_into_arrow(file: InputFile, data: BoundedBytes, _delimiter: str | None) -> FileSample:
    stream = data.pread(6, 0) != b"ARROW1"
    with reading(file, "its schema"):
        # Mapped where it can be: only the pages that the first records lie in are read.
        opened_file = pa.memory_map(file.url) if file.is_local and not file.compression else data.for_arrow()
        reader: Any = ipc.open_stream(opened_file) if stream else ipc.open_file(opened_file)
    found = FileSample(file=file, columns=_columns(reader.schema), stored=file.size)
    batches: int | None = None if stream else reader.num_record_batches
    if batches == 0:
        return replace(found, total=0)
    try:
        with reading(file, "its first record batch"):
            batch = reader.read_next_batch() if stream else reader.get_batch(0)
    except BoundReached:
        return replace(found, remark=f"no sample: its first record batch takes over {_MIB} MiB")
    except StopIteration:
        return replace(found, total=0)
    rows = _records(file, batch.slice(0, SAMPLE_ROWS))
    return replace(
        found,
        rows=rows,
        seen=batch.num_rows,
        stored=min(file.size, batch.get_total_buffer_size()) if batches is None else file.size // batches,
        total=batch.num_rows if batches == 1 else None,
    )


def _columns(schema: pa.Schema) -> dict[str, Shape]:
    fields: Any = schema
    return {field.name: shape_of_type(field.type, field.nullable) for field in fields}


def _records(file: InputFile, batch: pa.RecordBatch | None) -> tuple[dict[str, Any], ...]:
    if batch is None:
        return ()
    with reading(file, "its first records"):
        batch.validate(full=True)  # what follows trusts offsets and encodings
    try:
        return tuple(batch.to_pylist())
    except (ValueError, OverflowError):  # such as a timestamp that Python has no date for
        return ()


def _look_into_records(file: InputFile, data: BoundedBytes, delimiter: str | None) -> FileSample:
    """Look into a format that is read from its beginning on."""
    document = file.format == "text" and file.text_mode == "document"
    stream = ByteStream(data)
    head = stream.read(_BLOCK_BYTES if document else _BUFFER_BYTES)
    check_records(file, head)
    if file.format == "jsonl" and head.lstrip(SPACE).startswith(b"["):
        file = replace(file, format="json")
    if delimiter is None and file.format in {"csv", "tsv"}:
        header = head.partition(b"\n")[0].decode("utf-8", errors="replace")
        count, likeliest = max((header.count(each), each) for each in _DELIMITERS)
        delimiter = likeliest if count and ("\t" if file.format == "tsv" else ",") not in header else None

    lines = replace(file, text_mode="lines")  # of a document, too, what its first lines hold is found out
    part = FileRange(file=lines, start=0, stop=file.size, weight=file.size)
    if file.format == "text":
        want = Want(text="text", block_bytes=_BLOCK_BYTES)
    else:
        want = Want(text=None, columns=None, delimiter=delimiter, block_bytes=_BLOCK_BYTES)
    blocks, whole = list[Parsed](), False
    try:
        blocks.extend(islice(reader_of(file.format)(part, data, want, None), _BLOCKS))
        whole = len(blocks) < _BLOCKS
    except BoundReached:
        if not blocks:
            return FileSample(file=file, columns={}, remark=f"no record ends in its first {_MIB} MiB")

    objects = [block.rows.objects for block in blocks if block.rows is not None]
    if file.format == "text":
        objects = [[{"text": text} for text in block.text.to_pylist()] for block in blocks if block.text]
    rows = tuple(row for some in objects for row in some)
    seen = sum(len(block) + len(block.bad) for block in blocks)
    read = sum(block.bytes_read for block in blocks)
    # Half of what a decompressor took last is still to come.
    stored = max(1, read - _BUFFER_BYTES // 2 if file.compression else read)
    found = FileSample(
        file=file,
        columns=_seen_columns(file, rows, blocks),
        rows=rows[:SAMPLE_ROWS],
        seen=seen,
        bad=Counter(bad.fault.reason for block in blocks for bad in block.bad),
        stored=file.size if whole else stored,
        total=seen if whole else None,
        delimiter=delimiter,
        lines=(seen, sum(block.normalized.get("blank_line", 0) for block in blocks)),
    )
    if not document:
        return found
    text = head.decode("utf-8", errors="replace")
    if not text or found.bad:
        return replace(found, rows=(), seen=1, total=1)
    length = len(text) * file.size / max(stream.consumed(), 1)
    return replace(found, rows=({"text": text},), lengths=length, seen=1, total=1)


def _seen_columns(
    file: InputFile, rows: tuple[dict[str, Any], ...], blocks: list[Parsed]
) -> dict[str, Shape]:
    if file.format == "text":
        return {"text": Shape("string")}
    if file.format in ("json", "jsonl"):
        return dict(merged(shape_of_value(row) for row in rows).fields)
    schema = next((block.rows.columns.schema for block in blocks if block.rows is not None), None)
    return {} if schema is None else _columns(schema)


_LOOKS: Final[dict[str, Callable[[InputFile, BoundedBytes, str | None], FileSample]]] = {
    "parquet": _look_into_parquet,
    "arrow": _look_into_arrow,
}

_CHARACTERS: Final = 300  # of a text
_ITEMS: Final = 5
_DEPTH: Final = 6


def shortened(value: object, depth: int = _DEPTH) -> Any:
    """Return a JSON-able copy of `value`: long strings and lists cut (saying so), bytes by their number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if len(value) <= _CHARACTERS else f"{value[:_CHARACTERS]}... ({len(value):,} characters)"
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {str(key): shortened(item, depth - 1) for key, item in entries.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        shown = [shortened(item, depth - 1) for item in items[:_ITEMS]]
        return shown if len(items) <= _ITEMS else [*shown, f"... ({len(items):,} items)"]
    return str(value)[:_CHARACTERS]  # dates, decimals
