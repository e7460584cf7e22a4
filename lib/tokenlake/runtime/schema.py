"""The Arrow schemas of a dataset's shards, how they are written, and their logical hash.

Three kinds of dataset:

``packed``
    One row per sequence of exactly ``L`` tokens. ``segment_lengths`` says how many tokens each
    document piece takes, in order; what is left of the row is padding. ``documents`` says, for the
    same pieces, where they come from: ``file`` (64-bit id of source and relative path), ``position``
    (row number, or byte offset of the line) and ``start`` (index of the piece's first token within
    the document's own tokens, its BOS included; where a long document was split, within its pieces laid end
    to end, each with its own BOS and EOS).
``tokens``
    One row per document, ragged. Where documents are padded, or it is asked for, ``attention_mask`` is 1 for an
    id of the document and 0 for padding. Fields kept of the input (`additional_fields`) are columns after all
    others, under their own names; only they may hold nulls.

``preference``
    One row per judged prompt: the columns of :mod:`tokenlake.base.columns`, then ``file, position``.

Where only a part of the tokens is to be learned, the first two have ``loss_mask``, one bit per id: whether the id
bears loss when it is predicted. Padding and BOS never do.

No token column has statistics, nor a dictionary of its values: both cost size and time on token ids. Packed rows are
written by :mod:`tokenlake.runtime.parquet.writer`, the others by Arrow. Each file says in its key-values what it is
(:func:`described`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenlake.base.arrays import STRINGS, FlatRows, Level, Values, levels_of
from tokenlake.base.columns import JSON, NULL, ColumnType, Method, Trainer, columns_for
from tokenlake.base.markup import is_encodable

FORMAT_VERSION: Final = 1

#: Tokens in a full row group: 128 sequences of 2,048, 1 MiB, one page of ids, 1 ms to read one at random.
ROW_GROUP_TOKENS: Final = 1 << 18

_PLACE: Final = {"file": pa.int64(), "position": pa.int64()}


def _fields(columns: Mapping[str, Any]) -> list[pa.Field[Any]]:
    """Return fields without nulls, of names and types."""
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


def _lists(kind: Any, length: int = -1) -> Any:
    """Return the type of lists of values that are not null, of one length where it is given."""
    return pa.list_(pa.field("item", kind, nullable=False), length)


DOCUMENT: Final = pa.struct(_fields({**_PLACE, "start": pa.int32()}))


@functools.cache
def packed_schema(width: int, *, store_segment_ids: bool = False, loss_mask: bool = False) -> pa.Schema:
    """Schema of a packed shard whose rows hold ``width`` tokens."""
    tokens = _lists(pa.int32(), width)
    columns = {
        "input_ids": tokens,
        **({"segment_ids": tokens} if store_segment_ids else {}),
        "segment_lengths": _lists(pa.int32()),
        "documents": _lists(DOCUMENT),
        **({"loss_mask": _lists(pa.bool_(), width)} if loss_mask else {}),
    }
    return pa.schema(_fields(columns))


def tokens_schema(
    *, loss_mask: bool = False, attention_mask: bool = False, kept: Sequence[tuple[str, pa.DataType]] = ()
) -> pa.Schema:
    """Schema of a tokens shard: one row per document; `kept` are the names and types of the fields kept beside it."""
    columns = {
        "input_ids": _lists(pa.int32()),
        **({"attention_mask": _lists(pa.int32())} if attention_mask else {}),
        **_PLACE,
        **({"loss_mask": _lists(pa.bool_())} if loss_mask else {}),
    }
    return pa.schema([*_fields(columns), *(pa.field(name, kind) for name, kind in kept)])


_HELD: Final[dict[str, Any]] = {
    **dict.fromkeys(("ids", "labels"), _lists(pa.int32())),
    "mask": _lists(pa.int8()),
    "label": pa.bool_(),
    "text": pa.large_string(),
}


def preference_fields(method: Method, trainer: Trainer) -> list[pa.Field[Any]]:
    """Return the columns that the trainer of a method reads."""
    return _fields({column.name: _HELD[column.holds] for column in columns_for(method, trainer)})


def preference_schema(
    method: Method, trainer: Trainer, kept: Sequence[tuple[str, pa.DataType]] = ()
) -> pa.Schema:
    """Schema of a preference shard: one row per judged prompt, where it comes from, and the fields kept beside it."""
    beside = [pa.field(name, kind) for name, kind in kept]
    return pa.schema([*preference_fields(method, trainer), *_fields(_PLACE), *beside])


def described(schema: pa.Schema, tokenizer: str | None) -> pa.Schema:
    """Return the schema of a shard that says what it is: its metadata are key-values of the Parquet file.

    Only what is the same in every version that has the shard is said: versions share files, so that neither the name
    of a dataset nor the number of a version is there.

    Args:
        tokenizer: sha256 (hex) of the ``tokenizer.json`` that made the ids; None where that is not known.
    """
    first: Any = schema.field(0)
    length = first.type.list_size if pa.types.is_fixed_size_list(first.type) else None
    kind = "preference" if first.name != "input_ids" else "tokens" if length is None else "packed"
    said = {"format_version": FORMAT_VERSION, "kind": kind, "seq_length": length, "tokenizer": tokenizer}
    return schema.with_metadata(
        {f"tokenlake.{name}": str(value) for name, value in said.items() if value is not None}
    )


def row_group_rows(width: int) -> int:
    """Rows of a full row group of sequences of ``width`` tokens (at least one)."""
    return max(1, ROW_GROUP_TOKENS // width)


def open_writer(
    sink: Any, schema: pa.Schema, compression: str = "zstd", encoded: Sequence[str] = ()
) -> pq.ParquetWriter:
    """A Parquet writer with the one set of properties every file is written with.

    Args:
        sink: a path, a Python file object or an Arrow output stream.
        schema: the file's schema.
        compression: what is called lz4 is LZ4_RAW: no two readers agree on Parquet's own lz4.
        encoded: paths of the columns that have dictionaries and statistics; all others are PLAIN.
    """
    described: Any = list(encoded) or False
    codec: Any = compression
    return pq.ParquetWriter(
        sink,
        schema,
        compression=codec,
        compression_level=3 if compression == "zstd" else None,
        use_dictionary=described,
        write_statistics=described,
        write_page_checksum=True,
        data_page_size=1 << 20,
        write_batch_size=1 << 16,
        version="2.6",
        data_page_version="1.0",
    )


class LogicalHasher:
    """Hash of a shard's content that does not depend on encoding, compression or row groups.

    Per column, xxh3 (128 bit, hex) of the little-endian values of all rows in order; a list column
    hashes its lengths (int32) and its flattened values apart and joins the two; a struct hashes each
    child; a string or binary column hashes its lengths (int64) and its bytes. A null is hashed as zero, an empty
    list or an empty string, and where there has been one the numbers (int64) of the nulls among the values of
    their level are hashed apart and follow. Equal digests mean equal rows, whatever wrote the file.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[_LevelHash]] = {}

    def update(self, rows: FlatRows | pa.RecordBatch | pa.Table) -> None:
        """Add rows, also none: then every column has a digest."""
        if isinstance(rows, FlatRows):
            for name, levels in rows.levels.items():
                self._add(name, levels)
            return
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            for chunk in chunks or [pa.array([], column.type)]:
                self._add(name, levels_of(chunk))

    def _add(self, name: str, levels: Sequence[Level]) -> None:
        parts = self._parts.setdefault(name, [_LevelHash() for _ in levels])
        for part, level in zip(parts, levels, strict=True):
            part.update(*level)

    def update_list(self, name: str, values: Values, lengths: Values | None = None) -> None:
        """Add some values of a column of lists without nulls, as :meth:`update` adds them with their rows.

        Args:
            name: of the column; all of it is added in this way.
            values: the next ones, whatever rows they are of.
            lengths: of the next rows, int32; None where rows have one length, which is not hashed.
        """
        parts = self._parts.setdefault(name, [_LevelHash(), _LevelHash()])
        if lengths is not None:
            parts[0].update(len(lengths), lengths, None)
        parts[1].update(len(values), values, None)

    def digest(self) -> dict[str, str]:
        """Column name to hex digest (32 digits per part)."""
        return {name: "".join(part.hexdigest() for part in parts) for name, parts in self._parts.items()}


@final
class _LevelHash:
    """The hashes of one level of one column."""

    def __init__(self) -> None:
        self._values: xxhash.xxh3_128 | None = None
        self._nulls: xxhash.xxh3_128 | None = None
        self._seen = 0

    def update(self, count: int, values: Values | None, nulls: Values | None) -> None:
        if values is not None:
            self._values = self._values or xxhash.xxh3_128()
            self._values.update(values.view(np.uint8).data)
        if nulls is not None:
            self._nulls = self._nulls or xxhash.xxh3_128()
            self._nulls.update((nulls + self._seen).astype("<i8").view(np.uint8).data)
        self._seen += count

    def hexdigest(self) -> str:
        return "".join(found.hexdigest() for found in (self._values, self._nulls) if found is not None)


_ARROW: Final[Any] = pa
_FLOATS: Final = ("halffloat", "float", "double")
_RANGES: Final[dict[str, tuple[int, int]]] = {
    **{f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
_LARGE_INTEGERS: Final = "decimal128(38, 0)"  # of integers beyond 64 bits
_DECIMAL: Final = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_ZONED: Final = re.compile(r"timestamp\[(ms|us|ns), tz=(.+)\]")
_COARSE: Final = {"timestamp[s]": "timestamp[ms]", "time32[s]": "time32[ms]", "date64[ms]": "date32[day]"}


# Of several Arrow types that hold the same values there is one ColumnType: strings and lists are the large ones,
# dictionaries are their values, seconds are milliseconds, because Parquet knows no seconds.


def is_list(kind: Any) -> bool:
    """Return whether values of an Arrow type are lists, whatever their layout."""
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def column_type(kind: Any) -> ColumnType:
    """Return the type of an Arrow column; what Parquet cannot hold as it is (unions, maps, extensions) is JSON text."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return column_type(kind.value_type)
    if kind in STRINGS:
        return "large_string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "large_binary"
    if is_list(kind):
        inner = column_type(kind.value_type)
        return JSON if inner == JSON else {"list": inner}
    if types.is_struct(kind):
        fields = {field.name: column_type(field.type) for field in kind}
        unfit = not fields or len(fields) < kind.num_fields or JSON in fields.values()
        return JSON if unfit else {"struct": [[name, inner] for name, inner in fields.items()]}
    return _flat_type(kind)


def _flat_type(kind: Any) -> str:
    name = str(kind)
    if name.startswith("timestamp[s, "):
        return name.replace("timestamp[s", "timestamp[ms")
    known = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    if known or pa.types.is_decimal(kind) or name in (*_RANGES, *_FLOATS, "bool", NULL):
        return _COARSE.get(name, name)
    return JSON


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type that a column of type `kind` is stored with."""
    if isinstance(kind, dict):
        if "list" in kind:
            return _ARROW.large_list(arrow_type(kind["list"]))
        return _ARROW.struct([(name, arrow_type(inner)) for name, inner in kind["struct"]])
    if kind == JSON:
        return pa.large_string()
    if (found := _DECIMAL.fullmatch(kind)) is not None:
        return getattr(_ARROW, f"decimal{found[1]}")(int(found[2]), int(found[3]))
    if (found := _ZONED.fullmatch(kind)) is not None:
        return _ARROW.timestamp(found[1], found[2])
    return _ARROW.type_for_alias(kind)


def joined(a: ColumnType, b: ColumnType) -> ColumnType:
    """Return the narrowest type that holds the values of both; JSON text where no other does."""
    if a == b or b == NULL:
        return a
    if a == NULL:
        return b
    if isinstance(a, dict) and isinstance(b, dict):
        if "list" in a and "list" in b:
            inner = joined(a["list"], b["list"])
            return JSON if inner == JSON else {"list": inner}
        if "struct" in a and "struct" in b:
            fields = dict(cast("list[tuple[str, ColumnType]]", a["struct"]))
            for name, inner in b["struct"]:
                fields[name] = joined(fields.get(name, NULL), inner)
            struct = [[name, inner] for name, inner in fields.items()]
            return JSON if JSON in fields.values() else {"struct": struct}
    elif isinstance(a, str) and isinstance(b, str):
        return _joined_numbers(a, b)
    return JSON


def _joined_numbers(a: str, b: str) -> str:
    if a in _RANGES and b in _RANGES:
        low, high = (pick(_RANGES[a][at], _RANGES[b][at]) for at, pick in ((0, min), (1, max)))
        fits = [name for name, (least, most) in _RANGES.items() if least <= low and high <= most]
        return min(fits, key=lambda name: _RANGES[name][1] - _RANGES[name][0]) if fits else _LARGE_INTEGERS
    if {a, b} <= {*_RANGES, _LARGE_INTEGERS}:
        return _LARGE_INTEGERS
    numbers = (*_RANGES, *_FLOATS)
    if a in numbers and b in numbers:
        return max(a, b, key=_FLOATS.index) if a in _FLOATS and b in _FLOATS else "double"
    return JSON


def settled(kind: ColumnType) -> ColumnType:
    """Return the type for good: where some place of it has held no value, nobody knows what may come."""
    return JSON if _is_open(kind) else kind


def _is_open(kind: ColumnType) -> bool:
    if isinstance(kind, dict):
        return (
            _is_open(kind["list"]) if "list" in kind else any(_is_open(inner) for _, inner in kind["struct"])
        )
    return kind == NULL


def may_become(kind: ColumnType, declared: ColumnType) -> bool:
    """Return whether values of one type may become those of a type that was declared; some of them may not fit.

    Numbers may become other numbers, text may spell a number or a truth value, and bytes may be text.
    """
    if declared == JSON or kind == NULL or joined(kind, declared) == declared:
        return True
    if isinstance(kind, dict) and isinstance(declared, dict):
        if "list" in kind and "list" in declared:
            return may_become(kind["list"], declared["list"])
        if "struct" in kind and "struct" in declared:
            inner: dict[str, ColumnType] = dict(declared["struct"])
            return all(name in inner and may_become(field, inner[name]) for name, field in kind["struct"])
        return False
    if isinstance(kind, str) and isinstance(declared, str):
        spells = kind == "large_string" and (_is_number(declared) or declared == "bool")
        is_text = kind == "large_binary" and declared == "large_string"
        return spells or is_text or (_is_number(kind) and _is_number(declared))
    return False


def _is_number(kind: str) -> bool:
    return kind in _RANGES or kind in _FLOATS or _DECIMAL.fullmatch(kind) is not None


def fits(value: Any, kind: ColumnType) -> bool:
    """Say whether a Python value can be held exactly; None always can."""
    if value is None or kind == JSON:
        return True
    if isinstance(kind, dict):
        if "list" in kind:
            items = cast("list[Any]", value)
            return isinstance(value, list) and all(fits(item, kind["list"]) for item in items)
        fields: dict[str, ColumnType] = dict(kind["struct"])
        return isinstance(value, dict) and all(
            name in fields and fits(inner, fields[name])
            for name, inner in cast("dict[str, Any]", value).items()
        )
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return type(value) is int and low <= value <= high
    if kind in _FLOATS:
        if type(value) is int:
            return abs(value) <= 1 << 53 and (kind == "double" or _survives(float(value), kind))
        return type(value) is float and (kind == "double" or value != value or _survives(value, kind))
    expected: dict[str, type[Any]] = {"bool": bool, "large_string": str, "large_binary": bytes}
    if kind in expected:
        return type(value) is expected[kind] and (kind != "large_string" or is_encodable(value))
    return type(value) is not bool and _survives(value, kind)


def _survives(value: Any, kind: str) -> bool:
    try:
        return _ARROW.scalar(value, arrow_type(kind)).as_py() == value
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        return False
