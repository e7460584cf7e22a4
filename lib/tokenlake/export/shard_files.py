"""Rows in files: Arrow batches of Python rows, and the files of a split while they are written.

Files are Parquet, Arrow IPC or JSON Lines, and end at a size or at given rows. Of Python rows the first ones decide the
schema, or each is a line of JSON. Values that JSON has no type for have the text forms of :mod:`tokenlake.json_text`.
"""

from __future__ import annotations

import gzip
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self, final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.checks import expected
from tokenlake.columns import JSON
from tokenlake.errors import BadRecordError, SourceError
from tokenlake.export.directory import FileFormat, FlatFile, file_mode
from tokenlake.json_text import dump_json, json_values, text_form
from tokenlake.schema import arrow_type, column_type, is_list, open_writer
from tokenlake.sources.rows import Row, column_of, names_in
from tokenlake.store.writes import HashingFile

_ARROW: Final[Any] = pa
_UNFIT: Final = (pa.ArrowInvalid, TypeError, ValueError, OverflowError)
_FAMILIES: Final = (
    ("integer", "floating"),
    ("string", "large_string"),
    ("binary", "large_binary", "fixed_size_binary"),
    ("temporal",),
    ("decimal",),
)
"""Types of which a value of one may be a value of another."""
_JSON_OPTIONS: Final = (
    orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME
)

LINES: Final = pa.schema([pa.field("line", pa.large_binary(), metadata={"tokenlake": "a line of JSON"})])
"""Schema of batches that hold finished lines, ends of line included."""


@final
class RowsToArrow:
    """Makes batches of rows.

    A column has the type of its values in the first batch, of those in :mod:`tokenlake.schema`; values of several
    kinds are an error. Later values must be of that type, or become it exactly (1 and 1.0). NumPy arrays are lists of
    their own kind of number, and dates, bytes and decimals what Arrow has for them.

    Args:
        schema: None to let the first batch decide.
    """

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self.schema = schema
        self._rows = 0

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return the next rows as a batch; a key that a row lacks is null.

        Raises:
            BadRecordError: a value does not fit, or a row has a field that the first ones did not; names row and field.
        """
        for place, row in enumerate(rows):
            if not isinstance(row, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise self._error(place, "", f"got {type(row).__name__}, expected a dict")
        names = names_in(rows)
        if self.schema is None:
            arrays = [self._column(rows, name, None) for name in names]
            fields = [(name, array.type) for name, array in zip(names, arrays, strict=True)]
            self.schema = _ARROW.schema(fields)
        else:
            if new := [name for name in names if name not in self.schema.names]:
                place = next(index for index, row in enumerate(rows) if new[0] in row)
                why = "the first rows had no such field; give a schema, or the same fields to all"
                raise self._error(place, new[0], why)
            arrays = [self._column(rows, field.name, field.type) for field in self.schema]
        self._rows += len(rows)
        if not arrays:  # a batch without columns has no length of its own
            return _ARROW.RecordBatch.from_struct_array(_ARROW.array([{}] * len(rows), pa.struct([])))
        return _ARROW.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, rows: Sequence[Row], name: str, kind: Any) -> Any:
        """Return a field as an array of the type `kind`, None for that of its values."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._error(0, str(name), "names of fields must be text")
        values = [row.get(name) for row in rows]
        try:
            return _array(values, kind)
        except _UNFIT as error:
            place = _culprit(values, kind)
            text = repr(values[place])
            why = "cannot stand in a column with the values before it"
            if kind is not None:
                hint = "; the first rows held nothing but null there, so give a schema"
                why = f"is no {kind}, which the first rows decided{hint if kind == pa.null() else ''}"
            shown = f"{text[:60]}{'...' if len(text) > 60 else ''} ({type(values[place]).__name__})"
            raise self._error(place, name, f"{shown} {why}", error) from error

    def _error(self, place: int, name: str, why: str, cause: Exception | None = None) -> BadRecordError:
        row, because = self._rows + place, f" ({cause})" if cause is not None and str(cause) else ""
        told = f"row {row}{f', field {name!r}' if name else ''}: {why}{because}"
        return BadRecordError(told, row=row, field=name, reason="type_mismatch")


def _array(values: Sequence[Any], kind: Any) -> Any:
    """Return values as an array of the type `kind`, None for their own; what would become another value is an error."""
    array = _joined(values)
    if array is None:
        array = _arrow_array(values)
        # As Arrow sees them, with two of its liberties taken away: True is no 1.0, and bytes are no text.
        suspect = any(word in str(array.type) for word in ("float", "double", "binary"))
        if suspect and (mixed := _mixed_kinds(array.type, values)):
            raise TypeError(f"values of {', '.join(sorted(each.__name__ for each in mixed))}")
        if kind is None and (own := column_type(array.type)) != JSON:
            return array.cast(arrow_type(own))
    if kind is None or array.type == kind:
        return array
    if not _becomes(array.type, kind):
        raise TypeError(f"values of {array.type}")
    array = array.cast(kind)
    if is_list(kind) and not kind.value_field.nullable and array.flatten().null_count:
        raise TypeError("null inside a list that may hold none")
    return array


def _arrow_array(values: Sequence[Any]) -> Any:
    """Return values as an array of the type that Arrow gives them; larger integers than its own are decimals."""
    try:
        return _ARROW.array(values)
    except OverflowError:
        array = column_of(values)
        if pa.types.is_large_string(array.type):  # JSON text: no type holds all of them
            raise
        return array


def _mixed_kinds(kind: Any, values: Iterable[Any]) -> set[type[Any]]:
    """Return the kinds of values at one place of a type, where Arrow would take some for others; else none."""
    there = [value for value in values if value is not None and not isinstance(value, np.ndarray)]
    if is_list(kind):
        return _mixed_kinds(kind.value_type, chain.from_iterable(there))
    if _ARROW.types.is_struct(kind):
        found = (_mixed_kinds(child.type, [value.get(child.name) for value in there]) for child in kind)
        return next(filter(None, found), set())
    kinds = set(map(type, there))
    return kinds if {bool, float} <= kinds or {bytes, str} <= kinds else set()


def _becomes(kind: Any, wanted: Any) -> bool:
    """Whether values of one type may become another's by a cast that checks every value."""
    types = _ARROW.types
    if kind == wanted or types.is_null(kind):
        return True
    if types.is_struct(kind) and types.is_struct(wanted):
        names = {child.name: child.type for child in wanted}
        return all(child.name in names and _becomes(child.type, names[child.name]) for child in kind)
    if is_list(kind) and is_list(wanted):
        return _becomes(kind.value_type, wanted.value_type)
    if types.is_dictionary(wanted):
        return _becomes(kind, wanted.value_type)
    if types.is_decimal(wanted) and types.is_integer(kind):
        return True
    return any(_is_a(kind, family) and _is_a(wanted, family) for family in _FAMILIES)


def _is_a(kind: Any, names: tuple[str, ...]) -> bool:
    return any(getattr(_ARROW.types, f"is_{name}")(kind) for name in names)


def _joined(values: Sequence[Any]) -> Any:
    """Return arrays of one dimension and kind as one list array, None where they are anything else."""
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.ndim == 1]
    if len(arrays) < len(values) or not arrays or len({array.dtype for array in arrays}) > 1:
        return None
    lengths = np.array([len(array) for array in arrays], np.int64)
    if lengths.sum() > np.iinfo(np.int32).max:
        return None
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    inner = _ARROW.array(np.concatenate(arrays))
    kind = pa.list_(pa.field("item", inner.type, nullable=False))
    return _ARROW.ListArray.from_arrays(_ARROW.array(offsets), inner, type=kind)


def _culprit(values: Sequence[Any], kind: Any) -> int:
    """Return the place of the first value that is not of a type, or (None) that fits none before it."""

    def is_unfit(place: int) -> bool:
        try:
            _array(values[: place + 1] if kind is None else [values[place]], kind)
        except _UNFIT:
            return True
        return False

    if kind is None:  # from the culprit on nothing fits
        return bisect_left(range(len(values) - 1), True, key=is_unfit)
    return next(filter(is_unfit, range(len(values))), 0)


def lines_of(rows: Iterable[Any], first: int = 0) -> pa.RecordBatch:
    """Return rows (dicts), the first of them number `first`, as a batch of :data:`LINES`.

    Raises:
        BadRecordError: JSON has no form for a value; names the row and, for NaN and infinities, the field.
    """
    lines = [_line(row, first + place) for place, row in enumerate(rows)]
    return _ARROW.RecordBatch.from_arrays([_ARROW.array(lines, pa.large_binary())], schema=LINES)


def text_of(batch: pa.RecordBatch) -> bytes:
    """Return the lines of a batch, of :data:`LINES` or of columns; NaN and infinities in columns become null."""
    if batch.schema.equals(LINES, check_metadata=True):
        lines: Any = batch.column(0)
        return b"".join(lines.to_pylist())
    columns: list[Iterable[Any]] = []
    for column in list[Any](batch.columns):
        kind = column.type
        integers = is_list(kind) and _ARROW.types.is_integer(kind.value_type)
        if integers and not column.null_count and not column.flatten().null_count:
            # They stay arrays, so that there is no Python object for each number.
            columns.append(value.values.to_numpy() for value in column)
        else:
            columns.append(json_values(column))
    rows = zip(*columns, strict=True) if columns else ((),) * len(batch)
    names: Sequence[str] = batch.schema.names
    return b"".join(dump_json(dict(zip(names, row, strict=True)), option=_JSON_OPTIONS) for row in rows)


def refuse_non_finite(rows: Iterable[Row], first: int) -> None:
    """Raise BadRecordError where a row, the first of them number `first`, holds NaN or an infinity."""
    for number, row in enumerate(rows, first):
        for name, value in row.items():
            if _has_nan(value):
                raise _non_finite(number, name)


def _non_finite(row: int, field: object) -> BadRecordError:
    told = (
        f"row {row}, field {str(field)!r}: NaN and infinities are no JSON; write None in their place, or format "
        "'parquet' or 'arrow'"
    )
    return BadRecordError(told, row=row, field=str(field))


def _line(row: Any, number: int) -> bytes:
    if not isinstance(row, dict):
        raise BadRecordError(f"row {number}: got {type(row).__name__}, expected a dict", row=number)
    try:
        line = dump_json(row, text_form, _JSON_OPTIONS)
    except TypeError as error:
        why = error.__cause__ or error
        raise BadRecordError(f"row {number}: JSON cannot hold it: {why}", row=number) from error
    # orjson writes null for what JSON has no number for.
    if b"null" in line and (odd := [name for name, value in row.items() if _has_nan(value)]):
        raise _non_finite(number, odd[0])
    return line


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    if hasattr(value, "dtype"):
        return value.dtype.kind == "f" and not bool((value - value == 0).all())
    if isinstance(value, Decimal):
        return not value.is_finite()
    return isinstance(value, float) and not math.isfinite(value)


DEFAULT_NAMING: Final = "{split}-{index:05d}-of-{count:05d}"
_COMPUTE: Final[Any] = pc
_GROUP_BYTES: Final = 4 << 20  # Arrow data of a row group, at most where one row is not larger
_GZIP_LEVEL: Final = 6


def check_naming(naming: str, splits: Sequence[str], form: FileFormat) -> None:
    """Raise ConfigError unless `naming` makes names, and no two the same."""
    names = {_shard_name(split, index, 2, form, naming) for split in splits for index in range(2)}
    good = all(name[0] not in "._" and "/" not in name and "\x00" not in name for name in names)
    if not good or len(names) < 2 * len(splits):
        raise _bad_naming(naming, f"it makes {sorted(names)}, which are no different names of data files")


def _shard_name(split: str, index: int, count: int, form: FileFormat, naming: str) -> str:
    """Return ``train-00000-of-00042.parquet``, or what `naming` makes of the split, the index and the count."""
    try:
        return naming.format(split=split, index=index, count=count) + form.extension
    except (KeyError, IndexError, ValueError) as error:
        raise _bad_naming(naming, f"{type(error).__name__}: {error}") from None


def _bad_naming(naming: str, why: str) -> Exception:
    return expected("naming", naming, f"a name like '{{split}}-{{index:05d}}-of-{{count:05d}}': {why}")


def edges_of(rows: int, shards: int) -> tuple[int, ...]:
    """Return where each of `shards` files ends: contiguous shares of `rows`, whose sizes differ by one at most."""
    return tuple((index + 1) * rows // shards for index in range(shards))


@final
class ShardFiles:
    """The files of one split while they are written. Batches must be of one schema.

    Args:
        max_bytes: a file ends at the row group after which another one, of the size of its largest, would not fit;
            None: never. Below 8 MiB row groups are an eighth of it, and what belongs at a file's end is counted.
        edges: rows at which a file ends, ascending, the last of them the number of all rows; None: nowhere.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        form: FileFormat,
        schema: pa.Schema,
        *,
        max_bytes: int | None = None,
        edges: tuple[int, ...] | None = None,
    ) -> None:
        self._folder, self._split, self._form, self._schema = folder, split, form, schema
        self._max_bytes, self._edges = max_bytes, edges
        # Files so small that usual row groups would not do.
        self._tight = max_bytes is not None and max_bytes < 2 * _GROUP_BYTES
        self._group_bytes = max(1, (max_bytes or 0) // 8) if self._tight else _GROUP_BYTES
        self._done: list[FlatFile] = []
        self._open: OpenFile | None = None
        self._edge = 0  # index of the edge that the open file ends at
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        while len(batch):
            # So many rows make a row group.
            rows = max(1, len(batch) * self._group_bytes // max(batch.nbytes, 1))
            while self._tight and rows > 1 and batch.slice(0, rows).nbytes > 2 * self._group_bytes:
                rows //= 2
            part = batch.slice(0, min(self._room(), rows))
            self._waiting.append(part)
            self._waiting_bytes += part.nbytes
            self._rows += len(part)
            if self._waiting_bytes >= self._group_bytes:
                self._flush()
            batch = batch.slice(len(part))

    def finish(self, naming: str) -> list[FlatFile]:
        """Close the last file, name all, and return what they are; at least one, be it without rows."""
        self._flush()
        if self._edges is not None and self._rows != self._edges[-1]:
            raise _miscounted(self._edges[-1], str(self._rows))
        while self._edges is not None and self._edge < len(self._edges):
            self._end()
        if self._open is not None or not self._done:
            self._end()
        for index, file in enumerate(self._done):
            name = _shard_name(self._split, index, len(self._done), self._form, naming)
            (self._folder / file.path).rename(self._folder / name)
            self._done[index] = replace(file, path=name)
        return self._done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is open after an error; the files are for the caller to remove."""
        if self._open is not None:
            self._open.__exit__()

    def _room(self) -> int:
        """Return how many rows the file may still take, having ended those that may take none."""
        if (edges := self._edges) is None:
            return 1 << 62
        while self._edge < len(edges) and edges[self._edge] <= self._rows:
            self._flush()
            self._end()
        if self._edge == len(edges):
            raise _miscounted(edges[-1], f"more than {edges[-1]}")
        return edges[self._edge] - self._rows

    def _flush(self) -> None:
        """Write what waits as one row group, and end the file if it is full."""
        if not self._waiting:
            return
        batch = self._waiting[0] if len(self._waiting) == 1 else _ARROW.concat_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        limit = self._max_bytes
        if limit is not None and self._open is not None and self._open.is_full(limit, batch):
            self._end(rolled=True)
        self._opened().write(batch)

    def _opened(self) -> OpenFile:
        if self._open is None:
            path = self._folder / f"{self._split}-{len(self._done)}"
            self._open = OpenFile(path, self._form, self._schema, tight=self._tight)
        return self._open

    def _end(self, *, rolled: bool = False) -> None:
        self._done.append(replace(self._opened().close(), split=self._split))
        self._open = None
        self._edge += not rolled


def _miscounted(expected: int, got: str) -> SourceError:
    return SourceError(
        f"the source said it has {expected} rows, but {got} came; nothing was written. Correct its length"
    )


@final
class OpenFile:
    """One file while it is written: each batch is a row group, a record batch, or lines.

    Args:
        tight: the file is to end before a size so small that its end counts.
    """

    def __init__(self, path: Path, form: FileFormat, schema: pa.Schema, *, tight: bool = False) -> None:
        self._path, self._tight, self._format = path, tight, form.format
        self._sink = HashingFile(path)
        self._write, self._flush, self._close = _WRITERS[form.format](form.compression, self._sink, schema)
        self._rows = self._largest = 0
        self._ending = 0 if form.format == "jsonl" else 1024 + 2 * schema.serialize().size

    def is_full(self, limit: int, following: pa.RecordBatch) -> bool:
        if not self._tight:
            return self._sink.bytes + self._largest > limit
        ending = self._ending + self._listed(following)
        return self._sink.bytes + ending + max(self._largest, following.nbytes) > limit

    def write(self, batch: pa.RecordBatch) -> None:
        before = self._sink.bytes
        self._write(batch)
        if self._tight:
            self._flush()
            self._ending += self._listed(batch)
        self._largest = max(self._largest, self._sink.bytes - before)
        self._rows += len(batch)

    def close(self) -> FlatFile:
        self._close()
        self._sink.close()
        self._path.chmod(file_mode(self._path.parent))
        return FlatFile(
            path=self._path.name, split="", bytes=self._sink.bytes, sha256=self._sink.sha256, rows=self._rows
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close what an error left open."""
        with suppress(Exception):  # the disk may be full; the file goes anyway
            if not self._sink.closed:
                self._close()
        self._sink.close()

    def _listed(self, batch: pa.RecordBatch) -> int:
        """Return how many bytes a row group takes at most at the file's end: places, sizes, least and largest value."""
        if self._format != "parquet":
            return 0 if self._format == "jsonl" else 64
        texts = [column for column in batch.columns if column.type in (pa.string(), pa.large_string())]
        longest = [_COMPUTE.max(_COMPUTE.binary_length(text)).as_py() or 0 for text in texts]
        places = [path for field in batch.schema for path in _leaves(field.name, field.type)]
        return 256 * len(places) + sum(2 * min(4096, size) for size in longest)


_Writer = tuple[Callable[[pa.RecordBatch], object], Callable[[], object], Callable[[], object]]
"""How to write a batch, how to write what a compression holds back, and how to write what belongs at the end."""


def _nothing() -> None:
    pass


def _parquet(compression: str, sink: HashingFile, schema: pa.Schema) -> _Writer:
    # Not of lists of int32 (ids, labels, masks), where they cost size and time.
    fields = [each for each in schema if not (is_list(each.type) and each.type.value_type == pa.int32())]
    encoded = [path for field in fields for path in _leaves(field.name, field.type)]
    writer: Any = open_writer(sink, schema, compression, encoded)
    return lambda batch: writer.write_batch(batch, row_group_size=max(1, len(batch))), _nothing, writer.close


def _arrow(compression: str, sink: HashingFile, schema: pa.Schema) -> _Writer:
    # The file format: any batch can be read alone, and memory-mapped where nothing is compressed.
    options = _ARROW.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    writer = _ARROW.ipc.new_file(sink, schema, options=options)
    return writer.write_batch, _nothing, writer.close


def _json_lines(compression: str, sink: HashingFile, schema: pa.Schema) -> _Writer:
    if compression == "none":
        return lambda batch: sink.write(text_of(batch)), _nothing, _nothing
    # Neither name nor clock in gzip's header: equal rows make equal bytes.
    packed: Any = (
        gzip.GzipFile("", "wb", _GZIP_LEVEL, sink, mtime=0)
        if compression == "gzip"
        else _ARROW.CompressedOutputStream(_ARROW.PythonFile(sink, "w"), compression)
    )
    return lambda batch: packed.write(text_of(batch)), packed.flush, packed.close


_WRITERS: Final = {"parquet": _parquet, "arrow": _arrow, "jsonl": _json_lines}


def _leaves(path: str, kind: Any) -> list[str]:
    """Return the paths of a field's columns as Parquet names them."""
    types = _ARROW.types
    if types.is_struct(kind):
        return [leaf for child in kind for leaf in _leaves(f"{path}.{child.name}", child.type)]
    if types.is_map(kind):
        key = _leaves(f"{path}.key_value.key", kind.key_type)
        return key + _leaves(f"{path}.key_value.value", kind.item_type)
    if is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    return [path]
