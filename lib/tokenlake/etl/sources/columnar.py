"""Texts and records out of columns, as Parquet and Arrow IPC share them.

The position of a record is its row index in the file, from 0. A row with a string that
is not UTF-8 is a bad record; a row whose text cannot be used is doubtful, because a
predicate may still leave it out on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import (
    STRINGS,
    is_utf8,
    mask_of,
    no_text,
    select,
    string_buffers,
    text_over,
)
from tokenlake.etl.sources.bad_records import RAW_LIMIT, BadLine, Fault
from tokenlake.etl.sources.input_errors import damaged, no_column, unsuitable
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.parsed import Parsed
from tokenlake.etl.sources.rows import Rows

Piece: TypeAlias = "tuple[pa.RecordBatch | None, pa.LargeStringArray | None]"
"""Consecutive rows: the wanted columns and the texts, None for what is not wanted."""

_COMPUTE: Final[Any] = pc
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns
_EXTENSION_NAME: Final = b"ARROW:extension:name"
# Positions take 8 bytes each: records that are only counted come in batches of this
# size.
_COUNTED_ROWS: Final = 1 << 20


def check_names(
    file: InputFile, names: Sequence[str], wanted: Sequence[str] = ()
) -> None:
    """Raise DamagedFileError unless columns have different names and wanted ones exist."""
    repeated: list[str] = []
    for column_name, count in Counter(names).items():
        if count > 1:
            repeated.append(column_name)
    if repeated:
        message = (
            f"it has several columns of the same name: {', '.join(sorted(repeated))}"
        )
        raise unsuitable(file, message, "write it again with different names")
    existing_names = frozenset(names)
    for column_name in wanted:
        if column_name not in existing_names:
            raise no_column(file, column_name, names)


def text_path(file: InputFile, schema: pa.Schema, field: str) -> tuple[str, ...]:
    """Return the place of a text.

    It is the name of a column, or of a column and of fields of structs inside it.

    A name that is the whole rest of `field` comes first: ``a.b`` is the column "a.b",
    otherwise field "b" of "a".

    Args:
        file: The file, for messages.
        schema: Its schema.
        field: Dotted path of the text.

    Raises:
        DamagedFileError: The field is missing, or does not hold strings.
    """
    names: list[str] = schema.names
    # The field, and the type of its values where a dictionary or runs stand for them.
    fields = _fields_at(list(schema), field)
    if not fields:
        raise no_column(file, field, names, " (content_field)")
    column_type: Any = fields[-1].type
    value_type: Any = column_type
    if pa.types.is_dictionary(column_type) or pa.types.is_run_end_encoded(column_type):
        value_type = column_type.value_type
    # Storage of an extension type may be strings of another meaning, such as JSON or a
    # UUID.
    metadata: dict[bytes, bytes] = fields[-1].metadata or {}
    extension = metadata.get(_EXTENSION_NAME)
    if extension or not _may_be_text(value_type):
        type_description = str(column_type)
        if extension:
            type_description = (
                f"the extension type {extension.decode(errors='replace')}"
            )
        message = f"column {field!r} holds {type_description}, expected strings, or bytes that are UTF-8"
        raise unsuitable(
            file, message, "name a column of strings as content_field", column=field
        )
    return tuple(path_field.name for path_field in fields)


def _may_be_text(value_type: Any) -> bool:
    """Say whether values are strings, or bytes that may be text.

    Strings of Parquet without annotation are bytes.
    """
    types = pa.types
    is_binary = types.is_binary(value_type) or types.is_large_binary(value_type)
    is_binary = (
        is_binary
        or types.is_binary_view(value_type)
        or types.is_fixed_size_binary(value_type)
    )
    return value_type in STRINGS or is_binary


def _fields_at(fields: list[Any], path: str) -> list[Any]:
    """Return the fields that a dotted path leads through, [] if it leads nowhere."""
    # A name that is the whole path comes first.
    for field in fields:
        if field.name == path:
            return [field]
    for field in fields:
        prefix = f"{field.name}."
        if path.startswith(prefix) and pa.types.is_struct(field.type):
            members = [
                field.type.field(index) for index in range(field.type.num_fields)
            ]
            inner_fields = _fields_at(members, path[len(prefix) :])
            if inner_fields:
                return [field, *inner_fields]
    return []


def pick(batch: pa.RecordBatch, path: tuple[str, ...]) -> Any:
    """Return the column at `path`; it is null where a struct around it is."""
    column: Any = batch.column(path[0])
    if len(path) == 1:
        return column
    return _COMPUTE.struct_field(column, list(path[1:]))


def as_text(column: Any) -> pa.LargeStringArray:
    """Return strings or bytes of any kind as large_string with offset 0; not validated.

    The array lies over its own bytes alone.
    """
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.large_binary())
    text = column.cast(pa.large_string(), safe=False)
    if not len(text):
        return no_text()
    validity, offsets_buffer, text_bytes = text.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(text) + 1, 8 * text.offset)
    # A slice refers to the buffers of the whole column: a copy has its own.
    if text.offset or offsets[0]:
        return pa.concat_arrays([text])
    # Only the bytes of these texts are kept.
    if text_bytes is None:
        text_bytes = pa.py_buffer(b"")
    if text_bytes.size != offsets[-1]:
        text_bytes = text_bytes.slice(0, int(offsets[-1]))
        return _ARROW.LargeStringArray.from_buffers(
            len(text), offsets_buffer, text_bytes, validity
        )
    return text


def all_utf8(text: pa.LargeStringArray) -> bool:
    """Say whether all texts are valid UTF-8.

    It is like `is_utf8`, but twice as fast on short texts.

    They are if their bytes as a whole are valid and none begins in the middle of a
    character. The array's offset must be 0, and its offsets in order and within its
    data.
    """
    if not len(text):
        return True
    buffers: Any = text.buffers()
    offsets, all_bytes = string_buffers(text)
    if not is_utf8(text_over(offsets[[0, -1]], buffers[2])):
        return False
    # Bytes 10xxxxxx continue a character. A text that begins with one was cut out of
    # it.
    text_starts = offsets[1:-1]
    first_bytes = all_bytes[text_starts[text_starts < offsets[-1]]]
    return not (first_bytes & 0xC0 == 0x80).any()


def counted_records(
    first_row: int, count: int, weight: Callable[[int], int]
) -> Iterator[Parsed]:
    """Yield records of which nothing but their number is wanted.

    Args:
        first_row: Row index of the first record in the file.
        count: Number of records.
        weight: Function of the rows so far that returns the input bytes read since the
            last call.
    """
    for batch_start in range(0, count, _COUNTED_ROWS):
        batch_end = min(batch_start + _COUNTED_ROWS, count)
        positions = np.arange(
            first_row + batch_start, first_row + batch_end, dtype=np.int64
        )
        yield Parsed(
            text=None, positions=positions, bad=(), bytes_read=weight(batch_end)
        )


def numbered(
    pieces: Iterator[Piece],
    first_row: int,
    weight: Callable[[int], int],
    limit: int,
) -> Iterator[Parsed]:
    """Yield the records of pieces that follow each other.

    Args:
        pieces: The pieces.
        first_row: Row index of the first record in the file.
        weight: Function of the rows so far that returns the input bytes read since the
            last call.
        limit: Largest size of a text in bytes.
    """
    rows_done = 0

    def number(piece: Piece) -> Parsed:
        nonlocal rows_done
        rows, text = piece
        piece_start = first_row + rows_done
        rows_done += _piece_rows(rows, text)
        return column_records(rows, text, piece_start, weight(rows_done), limit)

    # Unlike a loop's variable, `map` keeps no piece alive.
    return map(number, pieces)


def _piece_rows(rows: pa.RecordBatch | None, text: pa.LargeStringArray | None) -> int:
    """Return the number of rows of a piece."""
    if text is not None:
        # A piece has at least one of the two, except in a batch of which nothing is
        # wanted.
        return len(text)
    return 0 if rows is None else rows.num_rows


def column_records(
    rows: pa.RecordBatch | None,
    text: pa.LargeStringArray | None,
    first_row: int,
    bytes_read: int,
    limit: int,
) -> Parsed:
    """Return consecutive rows as records.

    A row with a string that is not UTF-8 is a bad record; one without a usable text is
    doubtful.

    Args:
        rows: Wanted columns, None if nothing but the text is wanted.
        text: Texts of the rows, None if no text is wanted.
        first_row: Row index of the first record in the file.
        bytes_read: Number of input bytes that count as read with them.
        limit: Largest size of a text in bytes; a longer one is not usable.
    """
    row_count = _piece_rows(rows, text)
    positions = np.arange(first_row, first_row + row_count, dtype=np.int64)

    # 1. Rows with strings that cannot be decoded are taken out.
    bad: list[BadLine] = []
    if rows is not None:
        column_of_row = _undecodable_rows(rows)
        for row, column_name in sorted(column_of_row.items()):
            fault = Fault("invalid_utf8", f"column {column_name!r} is not valid UTF-8")
            bad.append(BadLine(first_row + row, None, fault, b""))
        if column_of_row:
            is_good = ~np.isin(np.arange(row_count), list(column_of_row))
            positions = positions[is_good]
            rows = rows.filter(mask_of(is_good))
            if text is not None:
                text = select(text, is_good)

    # 2. Texts that cannot be used become null.
    doubtful: list[BadLine] = []
    if text is not None:
        is_usable = np.ones(len(text), np.bool_)
        for row, fault, raw in _unusable_texts(text, limit):
            doubtful.append(BadLine(int(positions[row]), None, fault, raw))
            is_usable[row] = False
        if doubtful:
            null = pa.scalar(None, pa.large_string())
            text = _COMPUTE.if_else(mask_of(is_usable), text, null)
    return Parsed(
        text=text,
        positions=positions,
        bad=tuple(bad),
        bytes_read=bytes_read,
        rows=None if rows is None else Rows(rows),
        doubtful=tuple(doubtful),
    )


def _unusable_texts(
    text: pa.LargeStringArray, limit: int
) -> Iterator[tuple[int, Fault, bytes]]:
    """Yield the index of each text that cannot be used, its fault and first bytes."""
    # Nearly always all texts are usable, which is seen at once. Otherwise suspects are
    # judged one by one.
    is_all_utf8 = all_utf8(text)
    sizes = np.diff(string_buffers(text)[0])
    if is_all_utf8 and not text.null_count and sizes.max(initial=0) <= limit:
        return
    is_null: npt.NDArray[np.bool_] = text.is_null().to_numpy(zero_copy_only=False)
    suspects = np.arange(len(text))
    if is_all_utf8:
        suspects = np.flatnonzero(is_null | (sizes > limit))
    for row in suspects.tolist():
        if is_null[row]:
            yield row, Fault("null_text", "the text is null, expected a string"), b""
        elif sizes[row] > limit:
            detail = f"the text has {sizes[row]} bytes, max_record_bytes is {limit}"
            yield row, Fault("text_too_long", detail), _first_bytes(text, row)
        elif not is_utf8(text[row : row + 1]):
            yield (
                row,
                Fault("invalid_utf8", "the text is not valid UTF-8"),
                _first_bytes(text, row),
            )


def _first_bytes(text: pa.LargeStringArray, row: int) -> bytes:
    """Return the first 64 KiB of a text."""
    offsets, all_bytes = string_buffers(text)
    return all_bytes[
        offsets[row] : min(offsets[row + 1], offsets[row] + RAW_LIMIT)
    ].tobytes()


def _undecodable_rows(rows: pa.RecordBatch) -> dict[int, str]:
    """Return the index of each row with a string that is not UTF-8, and its column."""
    column_of_row: dict[int, str] = {}
    for column_name, column in zip(rows.schema.names, rows.columns, strict=True):
        if is_utf8(column):
            continue
        # The rows of a bad column are tested one by one: bad records are rare.
        for row in range(len(column)):
            if not is_utf8(column.take(pa.array([row]))):
                column_of_row[row] = column_name
    return column_of_row


@contextmanager
def reading(file: InputFile, where: str) -> Generator[None]:
    """Turn errors that are raised inside the block into DamagedFileError.

    These are the errors of Arrow, and every ValueError.

    Args:
        file: The file that is read.
        where: Part of the file that is read, such as "its footer".
    """
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise damaged(file, f"{where} cannot be read ({error})", where=where) from error
