"""Rows on their way from an input to text; what a reader is asked for, what it finds, and what reading yields.

A format's reader gets a :class:`Want` and returns :class:`Parsed` blocks of records and faults. With the predicate and
the bad-record policy applied these become batches: records with the place each came from, and bad records. Rows are
columns, or Python objects, each made of the other when asked for.

JSON objects become Arrow columns by rules that depend on the values alone:

| the values of a column (nulls and missing keys aside) | its type |
|---|---|
| none | null |
| booleans | bool |
| integers of 64 bits with sign | int64 |
| integers of 64 bits without sign | uint64 |
| integers of at most 38 digits | decimal128(38, 0) |
| floating-point numbers, or these and integers that are exact as a double | double |
| strings, dates among them | large_string |
| arrays or objects whose own values follow these rules | large_list, struct |
| anything else | large_string, every value as JSON text |

Anything else is: values of several kinds, integers of more digits, integers beside floating-point numbers where one of
them is no double, objects without keys or with very many different ones, and what nests more than 16 levels deep. The
JSON text has all digits of an integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any, Final, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.arrays import mask_of
from tokenlake.errors import BadRecordError
from tokenlake.json_text import dump_json
from tokenlake.sources.inputs import InputFile

Record = dict[str, Any]

MAX_CELLS: Final = 4 << 20
"""Records times columns of one batch; objects that share no keys would else make an enormous one."""

MAX_DEPTH: Final = 16
"""Of nested types."""

LARGE_INTEGERS: Final = pa.decimal128(38, 0)
"""Type of a column of integers beyond 64 bits; DuckDB, Polars and Arrow read it from Parquet as exact numbers."""

_EXACT: Final = 1 << 53  # integers up to here are exact as a double
_BITS: Final = 1 << 63
_DIGITS_38: Final = 10**38
_ARROW: Final[Any] = pa
_SCALARS: Final[dict[frozenset[type[Any]], pa.DataType]] = {
    frozenset[type[Any]](): pa.null(),
    frozenset[type[Any]]({bool}): pa.bool_(),
    frozenset[type[Any]]({int}): pa.int64(),
    frozenset[type[Any]]({float}): pa.float64(),
    frozenset[type[Any]]({int, float}): pa.float64(),
    frozenset[type[Any]]({str}): pa.large_string(),
}
_NESTED: Final = (frozenset[type[Any]]({list}), frozenset[type[Any]]({dict}))
_NULL: Final[type[Any]] = type(None)


Row = dict[str, Any]


def names_in(records: Iterable[Record]) -> tuple[str, ...]:
    """Return the keys of all records, in the order in which they first come."""
    return tuple(dict.fromkeys(chain.from_iterable(records)))


def columns_of(records: Sequence[Record], names: tuple[str, ...]) -> pa.RecordBatch:
    """Return the fields `names` of `records`; what a record lacks is null."""
    arrays = [column_of([record.get(name) for record in records]) for name in names]
    schema = _ARROW.schema([(name, array.type) for name, array in zip(names, arrays, strict=True)])
    if not arrays:  # a batch without columns has no length of its own
        return _ARROW.RecordBatch.from_struct_array(_ARROW.array([{}] * len(records), pa.struct([])))
    return _ARROW.RecordBatch.from_arrays(arrays, schema=schema)


def column_of(values: Sequence[Any]) -> Any:
    """Return JSON values as an Arrow array, by the rules of this module."""
    kinds = frozenset[type[Any]](map(type, values)) - {_NULL}
    kind = _SCALARS.get(kinds)
    if kind is None:
        kind = _nested_type(values) if kinds in _NESTED else None
    elif int in kinds:
        integers = [value for value in values if type(value) is int]
        kind = _number_type(min(integers), max(integers), has_floats=float in kinds)
    if kind is None:
        texts = [
            None if value is None else dump_json(value, keeps_infinity=True).decode() for value in values
        ]
        return _ARROW.array(texts, pa.large_string())
    return _ARROW.array(values, kind)


def _number_type(low: int, high: int, *, has_floats: bool) -> pa.DataType | None:
    """Return the type of integers from `low` to `high`, perhaps with floats beside them; None for no type."""
    if has_floats:
        return pa.float64() if low >= -_EXACT and high <= _EXACT else None
    if low >= -_BITS and high < _BITS:
        return pa.int64()
    if low >= 0 and high < 2 * _BITS:
        return pa.uint64()
    return LARGE_INTEGERS if low > -_DIGITS_38 and high < _DIGITS_38 else None


@dataclass(slots=True)
class _SeenTypes:
    """What was seen at one place of nested values."""

    kinds: set[type[Any]] = field(default_factory=set[type[Any]])
    low: int = 0  # the least integer, or 0
    high: int = 0  # the greatest integer, or 0
    items: _SeenTypes | None = None
    fields: dict[str, _SeenTypes] = field(default_factory=dict[str, "_SeenTypes"])

    def note(self, value: Any, depth: int) -> int:
        """Add a value that lies `depth` levels deep; return how many new places it has, a lot if too deep."""
        kind: type[Any] = type(value)
        if value is None:
            return 0
        self.kinds.add(kind)
        if kind is int:
            self.low = min(self.low, value)
            self.high = max(self.high, value)
        elif kind is list or kind is dict:
            return MAX_CELLS if depth == MAX_DEPTH else self._note_inside(value, depth + 1)
        return 0

    def _note_inside(self, value: list[Any] | Record, depth: int) -> int:
        if isinstance(value, list):
            self.items = items = self.items or _SeenTypes()
            return sum(items.note(item, depth) for item in value)
        new = 0
        for key, item in value.items():
            shape = self.fields.get(key)
            if shape is None:
                shape = self.fields[key] = _SeenTypes()
                new += 1
            new += shape.note(item, depth)
        return new

    def type(self) -> pa.DataType | None:
        """Return the Arrow type of what was seen, None where no type holds it all."""
        if self.kinds == {list} and self.items:
            inner = self.items.type()
            return None if inner is None else _ARROW.large_list(inner)
        if self.kinds == {dict} and self.fields:
            types = {name: shape.type() for name, shape in self.fields.items()}
            return None if None in types.values() else _ARROW.struct(list(types.items()))
        kind = _SCALARS.get(frozenset(self.kinds))
        if kind is not None and int in self.kinds:
            return _number_type(self.low, self.high, has_floats=float in self.kinds)
        return kind


def _nested_type(values: Sequence[Any]) -> pa.DataType | None:
    shape, places = _SeenTypes(), 0
    for value in values:
        places += shape.note(value, 0)
        if places * len(values) > MAX_CELLS:
            return None
    return shape.type()


def is_too_wide(records: Sequence[Record], names: tuple[str, ...] | None) -> bool:
    """Say whether one batch of these records (None: of all their fields) would be mostly nulls, and enormous."""
    width = len(names_in(records) if names is None else names)
    return len(records) * width > MAX_CELLS


@final
class Rows:
    """n rows, never changed in place.

    Columnar inputs come as columns and JSON as objects; a step takes the form it works in, and what nobody asks
    for is never made. The two forms of JSON rows differ in one thing: a missing key is missing in an object, and
    null in the columns.
    """

    def __init__(
        self,
        columns: pa.RecordBatch | None = None,
        objects: list[Row] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        """Give either form, or both of the same rows.

        Args:
            names: the fields that columns are made of where only objects are given, None for all; objects may have
                further ones.
        """
        if columns is None and objects is None:
            raise TypeError("rows need columns or objects")
        self._columns, self._objects, self._names = columns, objects, names

    def __len__(self) -> int:
        return len(self._objects) if self._objects is not None else len(self.columns)

    @property
    def columns(self) -> pa.RecordBatch:
        """The rows as columns; made of objects by the rules of this module."""
        if self._columns is None:
            assert self._objects is not None
            names = names_in(self._objects) if self._names is None else self._names
            self._columns = columns_of(self._objects, names)
        return self._columns

    @property
    def objects(self) -> list[Row]:
        """The rows as dicts (do not modify)."""
        if self._objects is None:
            assert self._columns is not None
            self._objects = self._columns.to_pylist()
        return self._objects

    @property
    def has_objects(self) -> bool:
        """Whether objects are there already."""
        return self._objects is not None

    def select(self, mask: npt.NDArray[np.bool_]) -> Self:
        """Return the rows where `mask` (bool[n]) is true."""
        if mask.all():
            return self
        columns = None if self._columns is None else self._columns.filter(mask_of(mask))
        objects = None if self._objects is None else list(compress(self._objects, mask.tolist()))
        return type(self)(columns, objects, self._names)

    def values(self, path: str) -> Sequence[Any]:
        """Return the field `path` of every row as Python values, None where it is missing.

        A field that bears the whole dotted path as its name comes first: ``a.b`` is the field "a.b", else field "b"
        of "a".
        """
        if self._objects is None and self._columns is not None:
            name = path if path in self._columns.schema.names else path.split(".", 1)[0]
            if name not in self._columns.schema.names:
                return [None] * len(self)
            values: list[Any] = self._columns.column(name).to_pylist()
            return values if name == path else [value_at(value, path[len(name) + 1 :]) for value in values]
        if "." not in path:
            return [row.get(path) for row in self.objects]
        return [value_at(row, path) for row in self.objects]


def value_at(value: Any, path: str) -> Any:
    """Return what is at a dotted path of JSON, None where nothing is; a key that is all that is left comes first."""
    while isinstance(value, dict):
        if path in value:
            return value[path]
        name, dot, path = path.partition(".")
        if not dot:
            return None
        value = value.get(name)
    return None


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record cannot be used.

    Attributes:
        reason: Stable code.
        detail: Sentence for people.
        column: Name of the column or field that the fault is about; "" where it is about no single one.
    """

    reason: str
    detail: str
    column: str = ""


def too_long(size: int, max_record_bytes: int) -> Fault:
    """Return the fault of a line that is larger than the limit."""
    return Fault("line_too_long", f"the line has {size} bytes, max_record_bytes is {max_record_bytes}")


RAW_LIMIT: Final = 64 << 10  # bytes of a bad record that are kept
BLOCK_BYTES: Final = 16 << 20
PLAIN: Final = "text"
ALL: Final = None
"""`Want.columns` for every field there is."""


def _nowhere() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One record that cannot be used, and why.

    Attributes:
        file: path of the input relative to its listing's root.
        file_id: identity of the input, see :func:`tokenlake.fingerprint.file_id`.
        position: byte offset of the line's start in the decompressed stream for JSON Lines and lines of
            text; row number in everything else; 0 for a whole text file.
        line: 1-based line number, None where there are no lines.
        reason: short stable code such as ``null_text`` or ``invalid_json``.
        detail: one sentence for people.
        raw: the first 64 KiB of the record as it stands in the input, empty where it has no bytes.
    """

    file: str
    file_id: int
    position: int
    line: int | None
    reason: str
    detail: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Some consecutive records of one file, as rows.

    Attributes:
        positions: int64, one per record, as in :class:`BadRecord`.
        table: the rows, in the form in which they were read; objects may have more than the wanted fields.
        all_fields: whether all fields were wanted.
        bad: records set aside (policy ``quarantine``), in file order.
        filtered: records left out on purpose, by reason (``where``).
        left_out: int64, their positions.
        skipped: records never looked at, by reason (``pruned``: row groups in which `where` holds nowhere).
        normalized: how often something harmless was repaired: ``bom``, ``crlf``, ``blank_line``.
        bytes_read: input bytes consumed since the batch before; sums up to the range's weight.
    """

    file: InputFile
    positions: npt.NDArray[np.int64]
    bytes_read: int
    table: Rows
    all_fields: bool = True
    bad: tuple[BadRecord, ...] = ()
    filtered: dict[str, int] = field(default_factory=dict[str, int])
    left_out: npt.NDArray[np.int64] = field(default_factory=_nowhere)
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    normalized: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def rows_read(self) -> int:
        """Records that were looked at: those here, those set aside and those left out."""
        return len(self.positions) + len(self.bad) + sum(self.filtered.values())

    @property
    def rows(self) -> pa.RecordBatch:
        """The wanted columns. JSON has no schema, so that every batch may have other types."""
        return self.table.columns

    @property
    def objects(self) -> list[dict[str, Any]] | None:
        """The records as they stand in a JSON input, where all fields are wanted; else None."""
        return self.table.objects if self.all_fields and self.table.has_objects else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch(RowBatch):
    """Records as texts, large_string, no nulls, valid UTF-8, offset 0; and as rows of what is wanted beside them."""

    text: pa.LargeStringArray


def refuse(record: BadRecord, file: InputFile) -> BadRecordError:
    """Return the error of the policy ``fail`` for `record`, which is of `file`."""
    place = f"{file.url}:{record.line}" if record.line is not None else file.url
    unit = "byte offset" if file.format in ("jsonl", "text") else "row"
    return BadRecordError(
        f"{place}: {record.reason} at {unit} {record.position}: {record.detail}. "
        "Repair the record, or set `on_bad_record: quarantine` to set such records aside and go on.",
        file=record.file,
        line=record.line,
        position=record.position,
        reason=record.reason,
        detail=record.detail,
    )


class BadLine(NamedTuple):
    """A record that cannot be used: where, why, and its first bytes.

    `line` is 0-based and counts from the beginning of the block, None where there are no lines.
    """

    position: int
    line: int | None
    fault: Fault
    raw: bytes


def _without_bytes(position: int, fault: Fault) -> BadLine:
    return BadLine(position, None, fault, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The records of one block, as asked for by a :class:`Want`.

    Attributes:
        text: large_string of the records, None where no text was wanted; null for those in `doubtful`.
        rows: the wanted columns of the same records, None where none were wanted. Those of JSON are objects, with
            all fields, until somebody asks for columns.
        positions: int64, one per record, as in :class:`BadRecord`.
        bad: what could not be read as a record, or (where no columns are wanted) has no text; in order.
        doubtful: records that were read but have no usable text, in order; only where columns are wanted,
            because a predicate may still leave them out on purpose.
        normalized: how often something harmless was repaired.
        skipped: records never looked at, by reason (``pruned``).
        bytes_read: input bytes consumed since the block before.
        lines: how many lines the block had, blank ones included.
        as_bad: makes a bad one of the record at a position, and why it is.
    """

    text: pa.LargeStringArray | None
    positions: npt.NDArray[np.int64]
    bad: tuple[BadLine, ...]
    bytes_read: int
    rows: Rows | None = None
    doubtful: tuple[BadLine, ...] = ()
    normalized: dict[str, int] = field(default_factory=dict[str, int])
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    lines: int = 0
    as_bad: Callable[[int, Fault], BadLine] = _without_bytes

    def __len__(self) -> int:
        """How many records were read, bad ones left out."""
        return len(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a reader of a format is asked for.

    Attributes:
        text: dotted path of the field that holds the text, None where only rows are wanted. A field that
            bears the whole path as its name comes first: ``a.b`` is the field "a.b", else field "b" of "a".
        columns: top-level fields wanted beside the text, None for all; () for none.
        max_record_bytes: a longer record is a bad one.
        delimiter: between the cells of CSV, None for what the extension says.
        if_there: columns that an input lacks are left out, instead of being an error.
        plain: what the one column of plain text is called.
        block_bytes: how much of a file without row groups or batches is read, and parsed, at a time.
    """

    text: str | None
    columns: tuple[str, ...] | None = ()
    max_record_bytes: int = 256 << 20
    delimiter: str | None = None
    if_there: bool = False
    plain: str = PLAIN
    block_bytes: int = BLOCK_BYTES

    def names(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read of an input that has those of `there`."""
        if self.columns is None:
            return tuple(there)
        if not self.if_there:
            return self.columns
        known = frozenset(there)
        return tuple(name for name in self.columns if name in known)
