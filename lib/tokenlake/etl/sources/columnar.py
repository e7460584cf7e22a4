"""What Parquet and Arrow IPC share: texts and records out of columns, dictionaries unfolded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import (
    STRINGS,
    Int64s,
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
from tokenlake.runtime.column_types import is_list
from tokenlake.runtime.reading.unfolding import UNFOLDED_BYTES, Bomb

_COMPUTE: Final[Any] = pc
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns
_EXTENSION: Final = b"ARROW:extension:name"
_BYTES: Final = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})
_STEP_BYTES: Final = 16 << 20
_COUNTED_ROWS: Final = 1 << 20


def check_names(file: InputFile, names: Sequence[str], wanted: Sequence[str] = ()) -> None:
    """Raise DamagedFileError unless the columns have different names and all of `wanted` are there."""
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        told = f"it has several columns of the same name: {', '.join(twice)}"
        raise unsuitable(file, told, "write it again with different names")
    there = frozenset(names)
    if missing := [name for name in wanted if name not in there]:
        raise no_column(file, missing[0], names)


def text_path(file: InputFile, schema: pa.Schema, field: str) -> tuple[str, ...]:
    """Return where the text named `field` is: a column, or a column and fields of structs inside it.

    A name that is the whole of what is left of `field` comes first.

    Raises:
        DamagedFileError: there is no such field, or it does not hold strings.
    """
    names: list[str] = schema.names
    found = _find(list(schema), field)
    if not found:
        raise no_column(file, field, names, " (content_field)")
    kind: Any = found[-1].type
    folded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    inner: Any = kind.value_type if folded else kind
    metadata: dict[bytes, bytes] = found[-1].metadata or {}
    name = metadata.get(_EXTENSION)
    shown = f"the extension type {name.decode(errors='replace')}" if name else str(kind)
    if name or not _may_be_text(inner):
        told = f"column {field!r} holds {shown}, expected strings, or bytes that are UTF-8"
        raise unsuitable(file, told, "name a column of strings as content_field", column=field)
    return tuple(part.name for part in found)


def _may_be_text(kind: Any) -> bool:
    """Return whether values of a type are strings, or bytes that may be text: Parquet's strings without annotation."""
    types = pa.types
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return kind in STRINGS or is_binary or types.is_fixed_size_binary(kind)


def _find(fields: list[Any], path: str) -> list[Any]:
    for field in fields:
        if field.name == path:
            return [field]
    for field in fields:
        if path.startswith(f"{field.name}.") and pa.types.is_struct(field.type):
            rest = _find(
                [field.type.field(at) for at in range(field.type.num_fields)], path[len(field.name) + 1 :]
            )
            if rest:
                return [field, *rest]
    return []


def pick(batch: pa.RecordBatch, path: tuple[str, ...]) -> Any:
    """Return the column at `path`; it is null where a struct around it is."""
    column: Any = batch.column(path[0])
    return _COMPUTE.struct_field(column, list(path[1:])) if len(path) > 1 else column


def as_text(column: Any) -> pa.LargeStringArray:
    """Return strings or bytes of any kind as large_string with offset 0 over their own bytes alone; not validated."""
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.large_binary())
    text = column.cast(pa.large_string(), safe=False)
    if not len(text):
        return no_text()
    validity, places, data = text.buffers()
    offsets = np.frombuffer(places, np.int64, len(text) + 1, 8 * text.offset)
    if text.offset or offsets[0]:
        return pa.concat_arrays([text])
    if data is None or data.size != offsets[-1]:
        data = pa.py_buffer(b"") if data is None else data.slice(0, int(offsets[-1]))
        return _ARROW.LargeStringArray.from_buffers(len(text), places, data, validity)
    return text


def all_utf8(text: pa.LargeStringArray) -> bool:
    """Say whether all texts are valid UTF-8; like `is_utf8`, but twice as fast on short ones.

    They are if their bytes as a whole are and none begins in the middle of a character. The array's
    offset must be 0, and its offsets in order and within its data.
    """
    buffers: Any = text.buffers()
    if not len(text):
        return True
    offsets, data = string_buffers(text)
    if not is_utf8(text_over(offsets[[0, -1]], buffers[2])):
        return False
    starts = offsets[1:-1]
    return not (data[starts[starts < offsets[-1]]] & 0xC0 == 0x80).any()


def counted_records(first: int, count: int, weight: Callable[[int], int]) -> Iterator[Parsed]:
    """Yield so many records of which nothing is wanted; `first` and `weight` as of :func:`numbered`."""
    for start in range(0, count, _COUNTED_ROWS):
        stop = min(start + _COUNTED_ROWS, count)
        positions = np.arange(first + start, first + stop, dtype=np.int64)
        yield Parsed(text=None, positions=positions, bad=(), bytes_read=weight(stop))


def numbered(
    pieces: Iterator[tuple[pa.RecordBatch | None, pa.LargeStringArray | None]],
    first: int,
    weight: Callable[[int], int],
    limit: int,
) -> Iterator[Parsed]:
    """Return the records of pieces that follow each other, as of :func:`column_records`.

    Args:
        first: number of the first row.
        weight: rows so far -> input bytes since the piece before.
    """
    done = 0

    def records(piece: tuple[pa.RecordBatch | None, pa.LargeStringArray | None]) -> Parsed:
        nonlocal done
        start, size = done, next(len(part) for part in reversed(piece) if part is not None)
        done += size
        return column_records(*piece, first + start, weight(done), limit)

    # Unlike a loop's variable, `map` keeps none of them alive.
    return map(records, pieces)


def column_records(
    rows: pa.RecordBatch | None, text: pa.LargeStringArray | None, first: int, bytes_read: int, limit: int
) -> Parsed:
    """Return the records of a stretch whose first row has the number `first`.

    A row with a string that is not UTF-8 is no record; one without a usable text is doubtful.

    Args:
        rows: the wanted columns, None where nothing but the text is wanted.
        limit: a longer text is not usable.
    """
    count = len(text) if text is not None else 0 if rows is None else rows.num_rows
    positions = np.arange(first, first + count, dtype=np.int64)
    bad = {} if rows is None else _undecodable(rows)
    if bad:
        keep = ~np.isin(np.arange(count), list(bad))
        positions, text = positions[keep], None if text is None else select(text, keep)
        rows = None if rows is None else rows.filter(mask_of(keep))
    faults = {} if text is None else dict(_faults(text, limit))
    if text is not None and faults:
        usable = np.ones(len(text), np.bool_)
        usable[list(faults)] = False
        text = _COMPUTE.if_else(mask_of(usable), text, pa.scalar(None, pa.large_string()))
    return Parsed(
        text=text,
        positions=positions,
        bad=tuple(
            BadLine(first + row, None, Fault("invalid_utf8", f"column {name!r} is not valid UTF-8"), b"")
            for row, name in sorted(bad.items())
        ),
        bytes_read=bytes_read,
        rows=None if rows is None else Rows(rows),
        doubtful=tuple(
            BadLine(int(positions[row]), None, fault, raw) for row, (fault, raw) in faults.items()
        ),
    )


def _faults(text: pa.LargeStringArray, limit: int) -> Iterator[tuple[int, tuple[Fault, bytes]]]:
    """Yield (row, what is wrong with its text and its first bytes)."""
    whole, sizes = all_utf8(text), np.diff(string_buffers(text)[0])
    if whole and not text.null_count and sizes.max(initial=0) <= limit:
        return
    nulls: npt.NDArray[np.bool_] = text.is_null().to_numpy(zero_copy_only=False)
    doubtful = np.flatnonzero(nulls | (sizes > limit)) if whole else np.arange(len(text))
    for row in doubtful.tolist():
        if nulls[row]:
            yield row, (Fault("null_text", "the text is null, expected a string"), b"")
        elif sizes[row] > limit:
            told = f"the text has {sizes[row]} bytes, max_record_bytes is {limit}"
            yield row, (Fault("text_too_long", told), _head(text, row))
        elif not is_utf8(text[row : row + 1]):
            yield row, (Fault("invalid_utf8", "the text is not valid UTF-8"), _head(text, row))


def _head(text: pa.LargeStringArray, row: int) -> bytes:
    offsets, data = string_buffers(text)
    return data[offsets[row] : min(offsets[row + 1], offsets[row] + RAW_LIMIT)].tobytes()


def _undecodable(rows: pa.RecordBatch) -> dict[int, str]:
    """Return {row: column} of the rows that hold a string that is not UTF-8."""
    found: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not is_utf8(column):
            wrong = (row for row in range(len(column)) if not is_utf8(column.take(pa.array([row]))))
            found |= dict.fromkeys(wrong, name)
    return found


def plain_type(kind: Any) -> Any:
    """Return the type of a column as it is handed over.

    Dictionaries and runs are unfolded, extensions are their storage, and views are strings, of which rows can be taken.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    folded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return plain_type(kind.value_type) if folded else kind


def unfolded(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield `batch` in pieces of at most 16 MB, or a row, its columns of the types of `schema`.

    Raises:
        Bomb: one row alone unfolds to more than 1 GiB.
    """
    size = unfolded_bytes(batch)
    if size <= _STEP_BYTES:
        yield _cast(batch, schema)
    elif batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from unfolded(batch.slice(0, half), schema)
        yield from unfolded(batch.slice(half), schema)
    elif size > UNFOLDED_BYTES:
        raise Bomb(f"one row unfolds to {size} bytes")
    else:
        yield _cast(batch, schema)


def unfolded_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes that rows take with each value written out."""
    return sum(_unfolded_bytes(column) for column in batch.columns)


def sizes_unfolded(column: Any) -> Int64s:
    """Return the bytes of every row of a dictionary-encoded column of strings; 0 where it is null."""
    sizes = _COMPUTE.binary_length(column.dictionary).cast(pa.int64()).fill_null(0)
    return sizes.take(column.indices).fill_null(0).to_numpy(zero_copy_only=False)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    pairs = zip(map(_without_runs, batch.columns), schema.types, strict=True)
    columns = [column if column.type == kind else column.cast(kind) for column, kind in pairs]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _without_runs(column: Any) -> Any:
    """Return a column as its storage, with each value of a run."""
    if isinstance(column, pa.ExtensionArray):
        return _without_runs(column.storage)
    return _COMPUTE.run_end_decode(column) if pa.types.is_run_end_encoded(column.type) else column


def _unfolded_bytes(column: Any) -> int:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _unfolded_bytes(column.storage)
    if pa.types.is_struct(kind):
        return sum(_unfolded_bytes(column.field(at)) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        entries = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _unfolded_bytes(column.view(pa.list_(entries)))
    if is_list(kind):
        return _unfolded_bytes(column.flatten())
    if pa.types.is_run_end_encoded(kind):
        return _run_bytes(column)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return _view_bytes(column)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _list_view_bytes(column)
    if not pa.types.is_dictionary(kind):
        return column.nbytes
    if kind.value_type not in _BYTES:
        return 8 * len(column)
    return int(np.sum(sizes_unfolded(column)))


def _run_bytes(column: Any) -> int:
    """Return the bytes of a column of runs with each value written out; only their lengths are."""
    values = column.values
    if not isinstance(values, pa.ExtensionArray) and values.type not in _BYTES:
        return 8 * len(column)
    lengths = _COMPUTE.binary_length(values).cast(pa.int64()).fill_null(0)
    runs = _ARROW.RunEndEncodedArray.from_arrays(column.run_ends, lengths)
    decoded = _COMPUTE.run_end_decode(runs.slice(column.offset, len(column)))
    return 8 * len(column) + (_COMPUTE.sum(decoded).as_py() or 0)


def _view_bytes(column: Any) -> int:
    """Return the bytes of strings that may share them, each with bytes of its own.

    A view has 16 bytes, and its first four are the length.
    """
    validity, views = column.buffers()[:2]
    if views is None:
        return 0
    lengths = np.frombuffer(views, "<i4")[::4][column.offset : column.offset + len(column)]
    if validity is not None:
        lengths = lengths[column.is_valid().to_numpy(zero_copy_only=False)]
    return 8 * len(column) + int(lengths.sum(dtype=np.int64))


def _list_view_bytes(column: Any) -> int:
    """Return the bytes of lists that may share values, each with values of its own."""
    count = _COMPUTE.sum(_COMPUTE.list_value_length(column)).as_py() or 0
    values = column.values
    largest = 8
    if values.type in _BYTES:
        largest = _COMPUTE.max(_COMPUTE.binary_length(values)).as_py() or 0
    elif len(values):
        largest = values.nbytes // len(values) + 1
    return 8 * len(column) + count * largest


def check_offsets(column: Any) -> None:
    """Raise ArrowInvalid unless all offsets and indices of a column hold; UTF-8 in strings is another matter."""
    # A view of nulls inside of lists or structs has the wrong length (Arrow 26), and would look like damage.
    seen = column if _holds_nulls(column.type) else column.view(_as_bytes(column.type))
    seen.validate(full=True)


def _holds_nulls(kind: Any) -> bool:
    """Say whether a type has the type of nulls anywhere inside."""
    inside = (kind.field(at).type for at in range(kind.num_fields))
    return pa.types.is_null(kind) or any(map(_holds_nulls, inside))


def _as_bytes(kind: Any) -> Any:
    """Return the type with the layout of `kind` in which strings are mere bytes."""
    if isinstance(kind, pa.BaseExtensionType):
        return _as_bytes(kind.storage_type)
    plain = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    if kind in plain:
        return plain[kind]
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _as_bytes(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([_field_as_bytes(kind.field(at)) for at in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field_as_bytes(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field_as_bytes(kind.value_field), kind.list_size)
    return pa.list_(_field_as_bytes(kind.value_field)) if pa.types.is_list(kind) else kind


def _field_as_bytes(field: Any) -> Any:
    return field.with_type(_as_bytes(field.type))


@contextmanager
def reading(file: InputFile, where: str) -> Generator[None]:
    """Turn what Arrow raises inside, or a ValueError of ours, into DamagedFileError."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise damaged(file, f"{where} cannot be read ({error})", where=where) from error
