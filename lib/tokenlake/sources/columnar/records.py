"""Texts and records out of Arrow columns, for the formats that have them: which column, and what is wrong in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.sources.arrays import bytes_of, is_utf8, no_text, select, sizes_of, text_over
from tokenlake.sources.batch import RAW_LIMIT
from tokenlake.sources.inputs import InputFile, damaged
from tokenlake.sources.parsed import BadLine, Parsed

_COMPUTE: Final[Any] = pc
_ARROW: Final[Any] = pa  # the stubs do not know what from_buffers returns
_EXTENSION: Final = b"ARROW:extension:name"


def check_names(file: InputFile, names: Sequence[str], wanted: Sequence[str] = ()) -> None:
    """Raise DamagedFileError unless the columns have different names and all of `wanted` are there."""
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise damaged(file, f"it has several columns of the same name: {', '.join(twice)}")
    if missing := [name for name in wanted if name not in names]:
        raise damaged(
            file, f"it has no column {missing[0]!r}; its columns are {', '.join(names)}", column=missing[0]
        )


def text_path(file: InputFile, schema: pa.Schema, field: str) -> tuple[str, ...]:
    """Return where the text named `field` is: a column, or a column and fields of structs inside it.

    A name that is the whole of what is left of `field` comes first.

    Raises:
        DamagedFileError: there is no such field, or it does not hold strings.
    """
    names: list[str] = schema.names
    found = _find(list(schema), field)
    if not found:
        raise damaged(
            file,
            f"it has no column {field!r} (content_field); its columns are {', '.join(names)}",
            column=field,
        )
    kind: Any = found[-1].type
    inner: Any = kind.value_type if pa.types.is_dictionary(kind) else kind
    metadata: dict[bytes, bytes] = found[-1].metadata or {}
    name = metadata.get(_EXTENSION)
    shown = f"the extension type {name.decode(errors='replace')}" if name else str(kind)
    if name or not _is_string(inner):
        raise damaged(file, f"column {field!r} holds {shown}, expected strings", column=field)
    return tuple(part.name for part in found)


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


def _is_string(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def pick(batch: pa.RecordBatch, path: tuple[str, ...]) -> Any:
    """Return the column at `path`; it is null where a struct around it is."""
    column: Any = batch.column(path[0])
    return _COMPUTE.struct_field(column, list(path[1:])) if len(path) > 1 else column


def as_text(column: Any) -> pa.LargeStringArray:
    """Return strings of any kind as large_string with offset 0 over their own bytes alone; not validated."""
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
    offsets = np.frombuffer(buffers[1], np.int64, len(text) + 1)
    if not is_utf8(text_over(offsets[[0, -1]], buffers[2])):
        return False
    starts = offsets[1:-1]
    return not (bytes_of(text)[starts[starts < offsets[-1]]] & 0xC0 == 0x80).any()


def text_records(text: pa.LargeStringArray, first: int, bytes_read: int, max_record_bytes: int) -> Parsed:
    """Return the records of a stretch whose first row has the number `first`, of which nothing but `text` is wanted."""
    positions = np.arange(first, first + len(text), dtype=np.int64)
    bad = _faults(text, first, max_record_bytes)
    if bad:
        keep = ~np.isin(positions, [line.position for line in bad])
        text, positions = select(text, keep), positions[keep]
    return Parsed(text=text, positions=positions, bad=tuple(bad), bytes_read=bytes_read)


def row_records(
    rows: pa.RecordBatch,
    text: pa.LargeStringArray | None,
    first: int,
    bytes_read: int,
    max_record_bytes: int,
) -> Parsed:
    """Return the records of a stretch as columns; a row with a string that is not UTF-8 is no record."""
    positions = np.arange(first, first + rows.num_rows, dtype=np.int64)
    bad = [
        BadLine(first + row, None, Fault("invalid_utf8", f"column {name!r} is not valid UTF-8"), b"")
        for row, name in sorted(_undecodable(rows).items())
    ]
    if bad:
        keep = ~np.isin(positions, [line.position for line in bad])
        rows, positions = rows.filter(_mask(keep)), positions[keep]
        text = None if text is None else select(text, keep)
    doubtful: list[BadLine] = []
    if text is not None:
        found = _faults(text, 0, max_record_bytes)
        doubtful = [line._replace(position=int(positions[line.position])) for line in found]
        text = _without(text, [line.position for line in found])
    return Parsed(
        text=text,
        positions=positions,
        bad=tuple(bad),
        bytes_read=bytes_read,
        rows=Rows(rows),
        doubtful=tuple(doubtful),
    )


def _mask(keep: npt.NDArray[np.bool_]) -> Any:
    return pa.array(keep)


def _without(text: pa.LargeStringArray, rows: list[int]) -> pa.LargeStringArray:
    """Return `text` with nulls at `rows`."""
    if not rows:
        return text
    keep = np.ones(len(text), np.bool_)
    keep[rows] = False
    return _COMPUTE.if_else(_mask(keep), text, pa.scalar(None, pa.large_string()))


def _faults(text: pa.LargeStringArray, first: int, max_record_bytes: int) -> list[BadLine]:
    if not len(text):
        return []
    whole, sizes = all_utf8(text), sizes_of(text)
    if whole and not text.null_count and sizes.max(initial=0) <= max_record_bytes:
        return []
    nulls: npt.NDArray[np.bool_] = text.is_null().to_numpy(zero_copy_only=False)
    doubtful = np.flatnonzero(nulls | (sizes > max_record_bytes)) if whole else np.arange(len(text))
    return list(_each_fault(text, doubtful.tolist(), first, max_record_bytes))


def _each_fault(
    text: pa.LargeStringArray, doubtful: list[int], first: int, max_record_bytes: int
) -> Iterator[BadLine]:
    nulls = text.is_null().to_pylist()
    sizes = sizes_of(text)
    for row in doubtful:
        if nulls[row]:
            yield BadLine(first + row, None, Fault("null_text", "the text is null, expected a string"), b"")
            continue
        fault = None if is_utf8(text[row : row + 1]) else Fault("invalid_utf8", "the text is not valid UTF-8")
        if sizes[row] > max_record_bytes:
            told = f"the text has {sizes[row]} bytes, max_record_bytes is {max_record_bytes}"
            fault = Fault("text_too_long", told)
        if fault:
            yield BadLine(first + row, None, fault, _head(text, row))


def _head(text: pa.LargeStringArray, row: int) -> bytes:
    offsets = np.frombuffer(text.buffers()[1], np.int64, 2, 8 * row)  # type: ignore[arg-type]
    return bytes_of(text)[offsets[0] : min(offsets[1], offsets[0] + RAW_LIMIT)].tobytes()


def _undecodable(rows: pa.RecordBatch) -> dict[int, str]:
    """Return {row: column} of the rows that hold a string that is not UTF-8."""
    found: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _invalid(column):
            wrong = (row for row in range(len(column)) if _invalid(column.take(pa.array([row]))))
            found |= dict.fromkeys(wrong, name)
    return found


def _invalid(column: Any) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False
