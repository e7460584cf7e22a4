"""A look into one file: its columns, its first records, and what is wrong with it; a few MB at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from tokenlake.discovery.beginning import read_beginning
from tokenlake.discovery.bounded import FILE_BYTES, BoundedBytes, BoundReached, MemoryBytes
from tokenlake.discovery.looked import Looked
from tokenlake.discovery.shapes import Shape, columns_of, shape_of_type
from tokenlake.errors import DamagedFileError, TokenlakeError
from tokenlake.sources.columnar.access import reading
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.opening import opened
from tokenlake.sources.parquet.footer import footer
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.readers import reader_of
from tokenlake.sources.sniff import has_lines
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.want import Want

SAMPLE_ROWS: Final = 64
"""Records that are kept of a file."""

_CHUNK_BYTES: Final = (1 << 20) + (1 << 18)  # a first page and its dictionary, at most what writers make
_COLUMN_BYTES: Final = 3 << 20  # of a Parquet file's sample; the rest is for its footer
_BUFFER_BYTES: Final = 64 << 10
_DELIMITERS: Final = (",", ";", "\t", "|")


def look(file: InputFile, delimiter: str | None, storage_options: Mapping[str, Any] | None = None) -> Looked:
    """Look into a file; what is wrong with it is in the answer, never raised, unless it cannot be reached.

    Raises:
        SourceError: the storage cannot be reached.
    """
    read = _LOOKS.get(file.format, _look_into_records)
    return _looked(file, storage_options, lambda data: read(file, data, delimiter))


def _looked(
    file: InputFile, storage_options: Mapping[str, Any] | None, read: Callable[[BoundedBytes], Looked]
) -> Looked:
    try:
        with opened(file, storage_options) as data:
            bounded = BoundedBytes(data)
            try:
                found = read(bounded)
            except DamagedFileError as error:
                found = Looked(file=file, columns={}, damage=_what(file, error))
            except BoundReached:
                found = Looked(file=file, columns={}, remark=f"not looked into: that takes over {_MIB} MiB")
            return replace(found, bytes_read=bounded.bytes_read)
    except OSError as error:  # such as a file that may not be read
        return Looked(file=file, columns={}, damage=f"it cannot be read ({error.strerror or error})")


_MIB: Final = FILE_BYTES >> 20


def _what(file: InputFile, error: TokenlakeError) -> str:
    """The error's sentence, without what everybody knows by now."""
    message = str(error).removeprefix(f"{file.url}: ").removeprefix("the file is damaged: ")
    return message.partition(". Damaged files are never")[0]


def _look_into_parquet(file: InputFile, data: BoundedBytes, _delimiter: str | None) -> Looked:
    if not file.size:
        raise damaged(file, "it is empty; not even a footer is there")
    with reading(file, "its footer"):
        parquet = pq.ParquetFile(
            data.for_arrow(), page_checksum_verification=True, buffer_size=_BUFFER_BYTES, pre_buffer=False
        )
    with parquet:
        columns = _columns(parquet.schema_arrow)
        found = Looked(file=file, columns=columns, stored=file.size, total=parquet.metadata.num_rows)
        group = _first_group(parquet.metadata)
        if group is None:
            return found
        chosen = _affordable(parquet.metadata.row_group(group), columns)
        try:
            rows = _parquet_rows(file, parquet, group, chosen)
        except BoundReached:
            return replace(found, remark=f"no sample: its first pages take over {_MIB} MiB")
    left_out = [name for name in columns if name not in chosen]
    remark = f"columns not sampled, too large: {', '.join(left_out)}" if left_out else None
    return replace(found, rows=rows, seen=len(rows), remark=remark)


def footer_rows(file: InputFile, storage_options: Mapping[str, Any] | None = None) -> Looked:
    """Count the records of a Parquet file by its footer; otherwise like :func:`look`."""
    return _looked(
        file, storage_options, lambda data: Looked(file=file, columns={}, total=footer(data).num_rows)
    )


def _first_group(meta: pq.FileMetaData) -> int | None:
    return next((index for index in range(meta.num_row_groups) if meta.row_group(index).num_rows), None)


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


def _parquet_rows(
    file: InputFile, parquet: pq.ParquetFile, group: int, columns: list[str]
) -> tuple[dict[str, Any], ...]:
    reader: Any = parquet  # the stub leaves the types of lists open
    with reading(file, f"row group {group}"):
        batches = reader.iter_batches(SAMPLE_ROWS, row_groups=[group], columns=columns, use_threads=False)
        return _records(file, next(batches, None))


def _look_into_arrow(file: InputFile, data: BoundedBytes, _delimiter: str | None) -> Looked:
    stream = data.pread(6, 0) != b"ARROW1"
    with reading(file, "its schema"):
        # Mapped where it can be: only the pages that the first records lie in are read.
        opened_file = pa.memory_map(file.url) if file.is_local and not file.compression else data.for_arrow()
        reader = ipc.open_stream(opened_file) if stream else ipc.open_file(opened_file)
    found = Looked(file=file, columns=_columns(reader.schema), stored=file.size)
    try:
        with reading(file, "its first record batch"):
            batch = _first_batch(reader)
    except BoundReached:
        return replace(found, remark=f"no sample: its first record batch takes over {_MIB} MiB")
    except StopIteration:
        return replace(found, total=0)
    batches = getattr(reader, "num_record_batches", None)
    rows = _records(file, batch.slice(0, SAMPLE_ROWS))
    return replace(
        found,
        rows=rows,
        seen=batch.num_rows,
        stored=min(file.size, batch.get_total_buffer_size()) if batches is None else file.size // batches,
        total=batch.num_rows if batches == 1 else None,
    )


def _first_batch(reader: Any) -> pa.RecordBatch:
    if isinstance(reader, ipc.RecordBatchFileReader):
        if not reader.num_record_batches:
            raise StopIteration
        return reader.get_batch(0)
    return reader.read_next_batch()


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


def _look_into_records(file: InputFile, data: BoundedBytes, delimiter: str | None) -> Looked:
    """Look into a format that is read from its beginning on."""
    document = file.format == "text" and file.text_mode == "document"
    file = _by_its_bytes(file, data)
    begun = read_beginning(data, file.format, document=document)
    if begun is None:
        return Looked(file=file, columns={}, remark=f"no record ends in its first {_MIB} MiB")
    if delimiter is None and file.format in {"csv", "tsv"}:
        delimiter = _delimiter(file, begun.data)
    memory = MemoryBytes(file, begun.data)
    part = FileRange(file=memory.file, start=0, stop=memory.file.size, weight=memory.file.size)
    want = _want(file, delimiter)
    blocks = list(reader_of(file.format)(part, memory, want, None))
    rows = tuple(row for block in blocks for row in _objects(block))
    seen = sum(len(block) + len(block.bad) for block in blocks)
    return Looked(
        file=file,
        columns=_seen_columns(file, rows, blocks),
        rows=rows[:SAMPLE_ROWS],
        lengths=_length(rows, begun.stored, file.size) if document else None,
        seen=seen,
        bad=Counter(bad.fault.reason for block in blocks for bad in block.bad),
        stored=begun.stored,
        total=1 if document else seen if begun.whole else None,
        delimiter=delimiter,
        lines=_lines(begun.data) if file.format == "text" else (0, 0),
    )


def _delimiter(file: InputFile, data: bytes) -> str | None:
    """Return what separates the cells of the header where it is not what the extension says."""
    header = data.partition(b"\n")[0].decode("utf-8", errors="replace")
    if (("\t" if file.format == "tsv" else ",") in header) or not header:
        return None
    count, found = max((header.count(each), each) for each in _DELIMITERS)
    return found if count else None


def _want(file: InputFile, delimiter: str | None) -> Want:
    if file.format == "text":
        return Want(text="text", delimiter=delimiter)
    return Want(text=None, columns=None, delimiter=delimiter)


def _objects(block: Parsed) -> list[dict[str, Any]]:
    if block.rows is not None:
        return block.rows.objects
    texts: list[Any] = [] if block.text is None else block.text.to_pylist()
    return [{"text": text} for text in texts]


def _seen_columns(
    file: InputFile, rows: tuple[dict[str, Any], ...], blocks: list[Parsed]
) -> dict[str, Shape]:
    if file.format == "text":
        return {"text": Shape("string")}
    if file.format in ("json", "jsonl"):
        return columns_of(rows)
    schema = next((block.rows.columns.schema for block in blocks if block.rows is not None), None)
    return {} if schema is None else _columns(schema)


def _length(rows: tuple[dict[str, Any], ...], stored: int, size: int) -> float | None:
    """Characters of a document, from its beginning."""
    return len(rows[0]["text"]) * size / max(stored, 1) if rows else None


def _lines(data: bytes) -> tuple[int, int]:
    lines = data.splitlines()
    blank = sum(not line.strip() for line in lines)
    return len(lines) - blank, blank


def _by_its_bytes(file: InputFile, data: BoundedBytes) -> InputFile:
    """Return the file with the format that it has: .json is often JSON Lines, and the other way round."""
    if file.format not in {"json", "jsonl"}:
        return file
    head = ByteStream(data).read(min(_BUFFER_BYTES, file.size) if file.compression is None else _BUFFER_BYTES)
    if file.format == "jsonl" and head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        return replace(file, format="json")
    return replace(file, format="jsonl") if has_lines(head) else file


_LOOKS: Final[dict[str, Callable[[InputFile, BoundedBytes, str | None], Looked]]] = {
    "parquet": _look_into_parquet,
    "arrow": _look_into_arrow,
}
