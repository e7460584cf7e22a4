"""One file while it is written, in each format.

Formats of files and what can compress them.

Rows as lines of JSON.

Which Arrow types are lists, whatever their layout.

Python rows as Arrow batches of one schema, which the first rows decide.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import column_of, names_in
from tokenlake.store.local_files import HashingFile

FORMATS: Final = ("parquet", "arrow", "jsonl")

_FITTING: Final = {
    "parquet": ("none", "gzip", "lz4", "zstd"),
    "arrow": ("none", "lz4", "zstd"),
    "jsonl": ("none", "gzip", "zstd"),
}
_DEFAULT: Final = {"parquet": "zstd", "arrow": "none", "jsonl": "none"}
_ENDINGS: Final = {"gzip": ".gz", "zstd": ".zst"}
_ALL: Final = ("none", "gzip", "lz4", "zstd")
_WHY: Final = {
    ("arrow", "gzip"): "Arrow IPC knows lz4 and zstd alone",
    ("jsonl", "lz4"): "readers of JSON Lines know gzip and zstd alone",
}


@final
@dataclass(frozen=True, slots=True)
class Form:
    """How files are written: ``parquet``, ``arrow`` (IPC files) or ``jsonl``, and ``none`` or a compression.

    Raises:
        ConfigError: there is no such format or compression, or they do not go together.
    """

    format: str
    compression: str

    def __post_init__(self) -> None:
        _check("format", self.format, FORMATS)
        _check("compression", self.compression, _ALL)
        if self.compression not in _FITTING[self.format]:
            raise ConfigError(
                f"compression: {self.compression!r} with format {self.format!r}: "
                f"{_WHY[self.format, self.compression]}; use one of {', '.join(map(repr, _FITTING[self.format]))}",
                got=self.compression,
            )

    @classmethod
    def of(cls, format: str, compression: str | None) -> Form:
        """Return the form; None compresses as usual: zstd in Parquet, else nothing."""
        _check("format", format, FORMATS)
        return cls(format, _DEFAULT[format] if compression is None else compression)

    @property
    def extension(self) -> str:
        """Return ``.parquet``, ``.arrow``, ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``."""
        return f".{self.format}" + (_ENDINGS.get(self.compression, "") if self.format == "jsonl" else "")


def _check(what: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ConfigError(
            f"{what}: got {value!r}, must be one of {', '.join(map(repr, allowed))}{near}", got=repr(value)
        )


_TYPES: Final[Any] = pa.types


def is_list(kind: Any) -> bool:
    """Return whether values of this type are lists."""
    return _TYPES.is_list(kind) or _TYPES.is_large_list(kind) or _TYPES.is_fixed_size_list(kind)


_LinesARROW: Final[Any] = pa
LINES: Final = pa.schema([pa.field("line", pa.large_binary(), metadata={"tokenlake": "a line of JSON"})])
"""Schema of batches that hold finished lines, ends of line included."""

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME


def lines_of(rows: Iterable[Any], first: int = 0) -> pa.RecordBatch:
    """Return rows (dicts), the first of them number `first`, as a batch of :data:`LINES`.

    Raises:
        BadRecordError: JSON has no such value; it would read back as another one.
    """
    lines = [_line(row, first + place) for place, row in enumerate(rows)]
    return _LinesARROW.RecordBatch.from_arrays([_LinesARROW.array(lines, pa.large_binary())], schema=LINES)


def text_of(batch: pa.RecordBatch) -> bytes:
    """Return the lines of a batch, of :data:`LINES` or of columns."""
    if batch.schema.equals(LINES, check_metadata=True):
        lines: Any = batch.column(0)
        return b"".join(lines.to_pylist())
    return b"".join(_line(row, place) for place, row in enumerate(_rows(batch)))


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows; lists of integers stay arrays, so that there is no Python object for each number."""
    names: Sequence[str] = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True) if columns else ((),) * len(batch):
        yield dict(zip(names, values, strict=True))


def _values(column: Any) -> Iterable[Any]:
    kind = column.type
    integers = is_list(kind) and _LinesARROW.types.is_integer(kind.value_type)
    if integers and not column.null_count and not column.flatten().null_count:
        return (value.values.to_numpy() for value in column)
    return column.to_pylist()


def _line(row: Any, number: int) -> bytes:
    if not isinstance(row, dict):
        raise BadRecordError(f"row {number}: got {type(row).__name__}, expected a dict", row=number)
    try:
        line = orjson.dumps(row, option=_OPTIONS)
    except TypeError as error:
        raise BadRecordError(f"row {number}: JSON cannot hold it: {error}", row=number) from error
    if (
        b"null" in line and (field := _nan_in(row)) is not None
    ):  # orjson writes null for what JSON has no number for
        raise BadRecordError(
            f"row {number}, field {field!r}: NaN and infinities are no JSON", row=number, field=field
        )
    return line


def _nan_in(row: dict[str, Any]) -> str | None:
    return next((str(name) for name, value in row.items() if _has_nan(value)), None)


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    if hasattr(value, "dtype"):
        return value.dtype.kind == "f" and not bool((value - value == 0).all())
    return isinstance(value, float) and not math.isfinite(value)


_ARROW: Final[Any] = pa
_PARQUET: Final[Any] = pq
_GZIP_LEVEL: Final = 6


class RowsFile(Protocol):
    """Takes batches of one schema. Each batch is a row group, a record batch, or lines."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        ...

    def flush(self) -> None:
        """Write what a compression holds back."""
        ...

    def close(self) -> None:
        """Write what belongs at the end."""
        ...


def open_rows_file(form: Form, sink: HashingFile, schema: pa.Schema) -> RowsFile:
    """Return a writer onto `sink`, which stays open when it is closed."""
    if form.format == "parquet":
        return _ParquetFile(form, sink, schema)
    if form.format == "arrow":
        return _ArrowFile(form, sink, schema)
    return _JsonLinesFile(form, sink)


@final
class _ParquetFile:
    """Page checksums always; token ids PLAIN, because dictionaries and statistics of them cost size and time."""

    def __init__(self, form: Form, sink: HashingFile, schema: pa.Schema) -> None:
        encoded = [path for field in schema for path in leaves(field.name, field.type) if not _is_ids(field)]
        # Parquet's own lz4 is a frame that no two readers agree on; what is called lz4 here is LZ4_RAW.
        self._writer = _PARQUET.ParquetWriter(
            sink,
            schema,
            compression=form.compression,
            compression_level=3 if form.compression == "zstd" else None,
            use_dictionary=encoded or False,
            write_statistics=encoded or False,
            write_page_checksum=True,
            data_page_size=1 << 20,
            write_batch_size=1 << 16,
            version="2.6",
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch, row_group_size=max(1, len(batch)))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._writer.close()


@final
class _ArrowFile:
    """The IPC file format: any batch can be read alone, and memory-mapped where nothing is compressed."""

    def __init__(self, form: Form, sink: HashingFile, schema: pa.Schema) -> None:
        options = _ARROW.ipc.IpcWriteOptions(
            compression=None if form.compression == "none" else form.compression
        )
        self._writer = _ARROW.ipc.new_file(sink, schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._writer.close()


@final
class _JsonLinesFile:
    """An object on every line."""

    def __init__(self, form: Form, sink: HashingFile) -> None:
        self._sink = sink
        self._packed: Any = None
        if form.compression == "gzip":
            # Neither name nor clock in the header: equal rows make equal bytes.
            self._packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, sink, mtime=0)
        elif form.compression == "zstd":
            self._packed = _ARROW.CompressedOutputStream(_ARROW.PythonFile(sink, "w"), "zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        data = text_of(batch)
        (self._sink if self._packed is None else self._packed).write(data)

    def flush(self) -> None:
        if self._packed is not None:
            self._packed.flush()

    def close(self) -> None:
        if self._packed is not None:
            self._packed.close()


def leaves(path: str, kind: Any) -> list[str]:
    """Return the paths of a field's columns as Parquet names them."""
    types = _ARROW.types
    if types.is_struct(kind):
        return [leaf for child in kind for leaf in leaves(f"{path}.{child.name}", child.type)]
    if types.is_map(kind):
        key = leaves(f"{path}.key_value.key", kind.key_type)
        return key + leaves(f"{path}.key_value.value", kind.item_type)
    if is_list(kind):
        return leaves(f"{path}.list.element", kind.value_type)
    return [path]


def _is_ids(field: Any) -> bool:
    """Whether a column holds lists of int32: ids, labels, masks."""
    return is_list(field.type) and field.type.value_type == pa.int32()


def file_mode(folder: Path) -> int:
    """Return the permissions that a file of `folder` gets: the folder's own, without execution."""
    return folder.stat().st_mode & 0o666


Row = dict[str, Any]

_RowtypesARROW: Final[Any] = pa
_JSON: Final = frozenset({bool, int, float, str, list, dict, type(None)})


@final
class RowsToArrow:
    """Makes batches of rows.

    A column has the type of its values in the first batch, by the rules of :mod:`tokenlake.sources.rows`, but values of
    several kinds are an error instead of JSON text. Later values must be of that type, or become it exactly (1 and
    1.0). NumPy arrays are lists of their own kind of number, and dates, bytes and decimals what Arrow has for them.

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
            arrays = [self._first(rows, name) for name in names]
            self.schema = _RowtypesARROW.schema(
                [(name, array.type) for name, array in zip(names, arrays, strict=True)]
            )
        else:
            self._refuse_new(rows, names)
            arrays = [self._later(rows, field) for field in self.schema]
        self._rows += len(rows)
        if not arrays:  # a batch without columns has no length of its own
            return _RowtypesARROW.RecordBatch.from_struct_array(
                _RowtypesARROW.array([{}] * len(rows), pa.struct([]))
            )
        return _RowtypesARROW.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _first(self, rows: Sequence[Row], name: str) -> Any:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self._error(0, str(name), "names of fields must be text")
        values = [row.get(name) for row in rows]
        try:
            return _typed(values)
        except (pa.ArrowInvalid, TypeError, ValueError, OverflowError) as error:
            place = _culprit(values)
            raise self._error(
                place,
                name,
                f"{_shown(values[place])} cannot stand in a column with the values before it",
                error,
            ) from error

    def _later(self, rows: Sequence[Row], field: Any) -> Any:
        values = [row.get(field.name) for row in rows]
        try:
            return _cast(values, field.type)
        except (pa.ArrowInvalid, TypeError, ValueError, OverflowError) as error:
            place = next((i for i, value in enumerate(values) if not _fits(value, field.type)), 0)
            hint = (
                "; the first rows held nothing but null there, so give a schema"
                if field.type == pa.null()
                else ""
            )
            raise self._error(
                place,
                field.name,
                f"{_shown(values[place])} is no {field.type}, which the first rows decided{hint}",
                error,
            ) from error

    def _refuse_new(self, rows: Sequence[Row], names: tuple[str, ...]) -> None:
        known = set(self.schema.names if self.schema is not None else ())
        for name in names:
            if name not in known:
                place = next(index for index, row in enumerate(rows) if name in row)
                raise self._error(
                    place, name, "the first rows had no such field; give a schema, or the same fields to all"
                )

    def _error(self, place: int, name: str, detail: str, cause: Exception | None = None) -> BadRecordError:
        row = self._rows + place
        because = f" ({cause})" if cause is not None and str(cause) else ""
        return BadRecordError(
            f"row {row}{f', field {name!r}' if name else ''}: {detail}{because}",
            row=row,
            field=name,
            reason="type_mismatch",
        )


def _typed(values: Sequence[Any]) -> Any:
    """Return values as an array of their own type; anything that would have to become another value is an error."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {np.ndarray} and (array := _joined(values)) is not None:
        return array
    if not kinds <= _JSON:
        return _natural(values)
    try:
        array = column_of(values)
    except TypeError:  # something inside that JSON does not have
        return _natural(values)
    if array.type != pa.large_string() or kinds <= {str}:
        return array
    if kinds in ({list}, {dict}):  # such as lists of bytes
        return _natural(values)
    raise TypeError(f"values of {', '.join(sorted(kind.__name__ for kind in kinds))}")


def _cast(values: Sequence[Any], kind: Any) -> Any:
    """Return values as an array of the type `kind`, if they are equal then."""
    array = _joined(values)
    array = _natural(values) if array is None else array
    if array.type == kind:
        return array
    if not _becomes(array.type, kind):
        raise TypeError(f"values of {array.type}")
    array = array.cast(kind)
    if is_list(kind) and not kind.value_field.nullable and array.flatten().null_count:
        raise TypeError("null inside a list that may hold none")
    return array


def _natural(values: Sequence[Any]) -> Any:
    """Return values as Arrow sees them, with two of its liberties taken away: True is no 1.0, and bytes are no text."""
    array = _RowtypesARROW.array(values)
    if _has_leaf(
        array.type,
        lambda kind: _RowtypesARROW.types.is_floating(kind) or _RowtypesARROW.types.is_binary(kind),
    ):
        found = set[type[Any]]()
        for value in values:
            _kinds_in(value, found)
        if (bool in found and float in found) or (bytes in found and str in found):
            raise TypeError(f"values of {', '.join(sorted(kind.__name__ for kind in found))}")
    return array


def _kinds_in(value: Any, found: set[type[Any]]) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _kinds_in(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _kinds_in(item, found)
    else:
        found.add(type(value))


def _becomes(kind: Any, wanted: Any) -> bool:
    """Whether values of one type may become another's by a cast that checks every value."""
    types = _RowtypesARROW.types
    if kind == wanted or types.is_null(kind):
        return True
    if types.is_struct(kind) and types.is_struct(wanted):
        names = {child.name: child.type for child in wanted}
        return all(child.name in names and _becomes(child.type, names[child.name]) for child in kind)
    if is_list(kind) and is_list(wanted):
        return _becomes(kind.value_type, wanted.value_type)
    if types.is_dictionary(wanted):
        return _becomes(kind, wanted.value_type)
    return any(family(kind) and family(wanted) for family in _FAMILIES)


def _is_number(kind: Any) -> bool:
    return _RowtypesARROW.types.is_integer(kind) or _RowtypesARROW.types.is_floating(kind)


def _is_text(kind: Any) -> bool:
    return _RowtypesARROW.types.is_string(kind) or _RowtypesARROW.types.is_large_string(kind)


def _is_bytes(kind: Any) -> bool:
    types = _RowtypesARROW.types
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


_FAMILIES: Final[tuple[Callable[[Any], bool], ...]] = (
    _is_number,
    _is_text,
    _is_bytes,
    _RowtypesARROW.types.is_temporal,
    _RowtypesARROW.types.is_decimal,
)


def _has_leaf(kind: Any, test: Callable[[Any], bool]) -> bool:
    if is_list(kind):
        return _has_leaf(kind.value_type, test)
    if _RowtypesARROW.types.is_struct(kind):
        return any(_has_leaf(child.type, test) for child in kind)
    return test(kind)


def _joined(values: Sequence[Any]) -> Any:
    """Return arrays of one dimension and kind as one list array, None where they are anything else."""
    arrays = [value for value in values if isinstance(value, np.ndarray) and value.ndim == 1]
    if len(arrays) < len(values) or not arrays or len({array.dtype for array in arrays}) > 1:
        return None
    lengths = np.array([len(array) for array in arrays], np.int64)
    if lengths.sum() > np.iinfo(np.int32).max:
        return None
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    inner = _RowtypesARROW.array(np.concatenate(arrays))
    kind = pa.list_(pa.field("item", inner.type, nullable=False))
    return _RowtypesARROW.ListArray.from_arrays(_RowtypesARROW.array(offsets), inner, type=kind)


def _culprit(values: Sequence[Any]) -> int:
    """Return the place of the first value with which those before it make no column."""
    low, high = 0, len(values)
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            _typed(values[:middle])
            low = middle
        except (pa.ArrowInvalid, TypeError, ValueError, OverflowError):
            high = middle
    return high - 1


def _fits(value: Any, kind: Any) -> bool:
    try:
        _cast([value], kind)
    except (pa.ArrowInvalid, TypeError, ValueError, OverflowError):
        return False
    return True


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text[:60]}{'...' if len(text) > 60 else ''} ({type(value).__name__})"
