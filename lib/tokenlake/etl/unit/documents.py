"""From an input's range to documents: read, transform, render; texts with their places, and fields kept beside them.

Plain text takes the short way, straight from the reader to the encoder. Anything else goes by rows: the steps of the
configuration change them, a renderer makes their texts, and every row that is left out or cannot be used is accounted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.arrays import Bools, Int64, string_buffers
from tokenlake.columns import JSON, ColumnType
from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.job import begin
from tokenlake.etl.unit.decoded_rows import with_text
from tokenlake.etl.unit.spelled_values import read_declared
from tokenlake.json_text import dump_json
from tokenlake.schema import arrow_type, column_type, fits, joined
from tokenlake.sources.inputs import FileRange, InputFile
from tokenlake.sources.lines import count_lines
from tokenlake.sources.opening import opened
from tokenlake.sources.records import groups_of, read_range, read_rows, read_together
from tokenlake.sources.rows import BLOCK_BYTES, RAW_LIMIT, BadRecord, Fault, RowBatch, Rows, TextBatch, refuse
from tokenlake.text.steps import open_chain, open_renderer
from tokenlake.text.transform import ChainedTransform, Renderer
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.offsets import Spans

_ARROW: Final[Any] = pa  # the stubs do not know concat_batches


@dataclass(frozen=True, slots=True)
class TextDocuments:
    """Texts and where they come from.

    Attributes:
        text: large_string[n * parts], no nulls, valid UTF-8; the texts of a document lie together.
        file, position: int64[n], the documents' identities.
        spans: of the texts: what bears loss; None for plain text.
        extra: bool[n], True for a document that is not the first of its row; None where none is.
        parts: texts of a document.
        label: bool[n], whether a document is a good answer; None where answers are not judged one by one.
        kept: n rows of fields kept beside the tokens; None where none are.
    """

    text: pa.LargeStringArray
    file: Int64
    position: Int64
    spans: Spans | None = None
    extra: Bools | None = None
    parts: int = 1
    label: Bools | None = None
    kept: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.position)

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        ends = self._ends
        return int(ends[-1] - ends[0])

    @property
    def held_bytes(self) -> int:
        """Bytes of all that is held: texts and kept fields."""
        return self.text_bytes + (0 if self.kept is None else self.kept.nbytes)

    @property
    def text_sizes(self) -> Int64:
        """int64[n * parts], UTF-8 bytes of each text."""
        return np.diff(self._ends)

    @property
    def _ends(self) -> Int64:
        """int64[n * parts + 1], where each text begins in Arrow's buffer, and where the last one ends."""
        return string_buffers(self.text)[0]

    def slice(self, first: int, last: int) -> Self:
        """TextDocuments ``first`` to ``last`` (exclusive), no text copied."""
        begin, end = first * self.parts, last * self.parts
        return type(self)(
            self.text.slice(begin, end - begin),
            self.file[first:last],
            self.position[first:last],
            None if self.spans is None else self.spans.slice(begin, end),
            None if self.extra is None else self.extra[first:last],
            self.parts,
            None if self.label is None else self.label[first:last],
            None if self.kept is None else self.kept.slice(first, last - first),
        )

    def select(self, mask: Bools) -> Self:
        """The documents where ``mask`` (bool[n]) is true."""
        inside = np.repeat(mask, self.parts)
        return type(self)(
            self.text.filter(pa.array(inside)),
            self.file[mask],
            self.position[mask],
            None if self.spans is None else self.spans.select(inside),
            None if self.extra is None else self.extra[mask],
            self.parts,
            None if self.label is None else self.label[mask],
            None if self.kept is None else self.kept.filter(pa.array(mask)),
        )

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """All documents of ``parts`` (at least one, all of one recipe) in order; a single part is not copied."""
        if len(parts) == 1:
            return parts[0]
        text: Any = pa.concat_arrays([part.text for part in parts])
        labels = [part.label for part in parts if part.label is not None]
        spans = [part.spans for part in parts if part.spans is not None]
        kept = [part.kept for part in parts if part.kept is not None]
        extra = [np.zeros(len(part), np.bool_) if part.extra is None else part.extra for part in parts]
        return cls(
            text,
            np.concatenate([part.file for part in parts]),
            np.concatenate([part.position for part in parts]),
            Spans.concat(spans) if spans else None,
            None if all(part.extra is None for part in parts) else np.concatenate(extra),
            parts[0].parts,
            np.concatenate(labels) if labels else None,
            _ARROW.concat_batches(kept) if kept else None,
        )


def taken(kept: pa.RecordBatch | None, rows: Int64) -> pa.RecordBatch | None:
    """Return the kept fields of `rows` (int64[m]), any of them several times."""
    return None if kept is None else kept.take(_ARROW.array(rows))


_DIGITS_38: Final = 10**38
_SHOWN: Final = 60  # characters of a value in a message
_NO_FIT: Final = (pa.ArrowException, ArithmeticError, TypeError, ValueError)

# Python values that Arrow takes for values of these types without altering any.
_DIRECT: Final[dict[str, type[Any]]] = {"bool": bool, "int64": int, "double": float, "large_string": str}
_NOTHING: Final[type[Any]] = type(None)


@final
class Keeper:
    """Takes the kept fields of rows, converted to the types that the plan decided on.

    Args:
        fields: (name, type) in the order of the columns.
        declared: the fields whose types the configuration declares; their text may spell numbers and truth values.

    Attributes:
        names: of the fields.
    """

    def __init__(
        self, fields: Sequence[tuple[str, ColumnType]], declared: frozenset[str] = frozenset()
    ) -> None:
        self._fields = tuple(fields)
        self._declared = declared
        self._schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in self._fields])
        self.names = tuple(name for name, _ in self._fields)

    def take(self, rows: Rows) -> tuple[pa.RecordBatch, dict[int, Fault]]:
        """Return the fields of n rows, and what is wrong in some of them; a missing field is null.

        A value that its column's type cannot hold exactly is a fault (``field_type``), and null in the columns.
        """
        faults: dict[int, Fault] = {}
        arrays: list[Any] = []
        for name, kind in self._fields:
            is_declared = name in self._declared
            array, bad = _column(rows, name, kind, is_declared=is_declared)
            arrays.append(array)
            for index, value in bad:
                faults.setdefault(index, _fault(name, kind, value, is_declared=is_declared))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), faults


def _column(
    rows: Rows, name: str, kind: ColumnType, *, is_declared: bool
) -> tuple[Any, list[tuple[int, Any]]]:
    """Return a field as a column of type `kind`, and the values, with their rows, that do not fit.

    Args:
        is_declared: whether the configuration declares the type.
    """
    if rows.has_objects:
        return _of_values([row.get(name) for row in rows.objects], kind, is_declared=is_declared)
    if name not in rows.columns.schema.names:
        return _ARROW.nulls(len(rows), arrow_type(kind)), []
    array: Any = rows.columns.column(name)
    if array.type == arrow_type(kind) and kind != JSON:
        return array, []
    found = column_type(array.type)
    if kind != JSON and joined(found, kind) == kind:
        try:
            return array.cast(arrow_type(kind)), []
        except _NO_FIT:
            pass  # some value does not fit: they are looked at one by one
    return _of_values(array.to_pylist(), kind, is_declared=is_declared)


def _of_values(
    values: list[Any], kind: ColumnType, *, is_declared: bool
) -> tuple[Any, list[tuple[int, Any]]]:
    target = arrow_type(kind)
    if kind == JSON:
        texts = [as_json(value) for value in values]
        unfit = [index for index, text in enumerate(texts) if text is None and values[index] is not None]
        return _ARROW.array(texts, target), [(index, values[index]) for index in unfit]
    if is_declared:
        values = [read_declared(value, kind) for value in values]
    direct = _DIRECT.get(kind) if isinstance(kind, str) else None
    if direct is not None and set(map(type, values)) <= {direct, _NOTHING}:
        try:
            return _ARROW.array(values, target), []
        except _NO_FIT:
            pass  # half of a surrogate pair, or an integer of more than 64 bits
    bad = [(index, value) for index, value in enumerate(values) if not fits(value, kind)]
    for index, _ in bad:
        values[index] = None
    return _ARROW.array(values, target), bad


def rows_of(table: Rows) -> Rows:
    """Return rows as they were read; JSON as objects alone, because its columns have other types in every batch."""
    return Rows(objects=table.objects) if table.has_objects else table


def as_json(value: Any) -> str | None:
    """Return a value as JSON text, None if it is too deep; what JSON does not know (a date, bytes) as its text."""
    if value is None:
        return None
    try:
        return dump_json(value, str, orjson.OPT_NON_STR_KEYS, keeps_infinity=True).decode()
    except TypeError:  # half of a surrogate pair, or many levels
        pass
    try:
        return json.dumps(value, default=str, separators=(",", ":"))
    except (RecursionError, ValueError):  # ValueError: an integer of more than 4,300 digits
        return None


def _fault(name: str, kind: ColumnType, value: Any, *, is_declared: bool) -> Fault:
    try:
        shown = repr(value)
    except RecursionError:
        shown = f"a {type(value).__name__} of very many levels"
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    wanted = kind if isinstance(kind, str) else str(arrow_type(kind))
    if is_declared:
        told = f"the kept field {name!r} holds {shown}, which its type {wanted} (field_types) cannot hold"
    else:
        told = (
            f"the kept field {name!r} holds {shown}, which its type {wanted}, that of the first records, cannot hold; "
            f"declare a type that can: field_types: {{{name}: {_wider_type(value)}}}"
        )
    return Fault("field_type", told)


def _wider_type(value: Any) -> str:
    """Return the type to propose for a field of which the first records did not say what it holds."""
    if isinstance(value, float):
        return "float64"
    if type(value) is int and abs(value) < _DIGITS_38:
        return "decimal(38, 0)"
    return JSON


def judged(
    source: ResolvedSource, batch: RowBatch, rows: Rows, faults: list[tuple[int, Fault]]
) -> tuple[BadRecord, ...]:
    """Make bad records of rows of a batch; with the policy ``fail`` the first ends the build."""
    if not faults:
        return ()
    faulty = np.zeros(len(rows), np.bool_)
    faulty[[index for index, _ in faults]] = True
    objects = rows.select(faulty).objects
    records = tuple(
        bad_record(batch.file, int(batch.positions[index]), fault, _raw(row))
        for (index, fault), row in zip(faults, objects, strict=True)
    )
    if source.on_bad_record == "fail":
        first = replace(records[0], line=_line(source, batch.file, records[0].position))
        raise refuse(first, batch.file)
    return records


def _line(source: ResolvedSource, file: InputFile, position: int) -> int | None:
    """Return the line of a record of a local file of lines; counting is for those who must name one."""
    if file.format != "jsonl" or file.compression or not file.is_local:
        return None
    with opened(file, source.storage_options) as data:
        return count_lines(data, position) + 1


def bad_record(file: InputFile, position: int, fault: Fault, raw: bytes) -> BadRecord:
    """Return a record that was read, and cannot be used."""
    return BadRecord(
        file=file.path,
        file_id=file.file_id,
        position=position,
        line=None,
        reason=fault.reason,
        detail=fault.detail,
        raw=raw[:RAW_LIMIT],
    )


def _raw(row: object) -> bytes:
    try:
        return orjson.dumps(row, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # an integer of more than 64 bits, half of a surrogate pair, or many levels
        return (as_json(row) or "").encode()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """TextDocuments made of some consecutive records, and what became of the other records.

    Attributes:
        files: which they are of.
        rows_read: records looked at.
        bad, filtered, skipped, normalized, bytes_read: as in :class:`tokenlake.sources.rows.RowBatch`.
    """

    documents: TextDocuments
    files: tuple[InputFile, ...]
    rows_read: int
    bytes_read: int
    bad: tuple[BadRecord, ...] = ()
    filtered: dict[str, int] = field(default_factory=dict[str, int])
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    normalized: dict[str, int] = field(default_factory=dict[str, int])


@final
class Recipe:
    """How a source's records become documents.

    Attributes:
        rendered: whether documents come with spans: they spell their own control tokens, and are finished one by one.
        control_tokens: whether special tokens that a text spells become control ids.
        special_tokens_in_text: what the encoder does with these.

    Raises:
        ConfigError: the settings contradict themselves, or the tokenizer lacks what they need.
    """

    def __init__(self, source: ResolvedSource, files: TokenizerFiles) -> None:
        texts, special = source.texts, source.tokenizer.special_tokens_in_text
        self._source = source
        declared = frozenset(name for name, _ in source.field_types)
        self._keeper = Keeper([(name, kind) for name, kind in source.kept if kind is not None], declared)
        self._steps: tuple[ChainedTransform, Renderer] | None = None
        self._columns: tuple[str, ...] | None = ()
        if not texts.is_plain:
            chain = open_chain(texts)
            renderer = open_renderer(texts, source.content_field, files, special)
            wanted = renderer.columns
            self._columns = chain.needs(None if wanted is None else (*wanted, *self._keeper.names))
            self._steps = chain, renderer
        self._texts_alone = self._steps is None and not self._keeper.names
        self.rendered = texts.masked or texts.preference is not None
        own = self._steps is not None and self._steps[1].control_tokens
        self.control_tokens = own or special == "encode"
        self.special_tokens_in_text = "encode" if own else special

    def read(self, part: FileRange, block_bytes: int = BLOCK_BYTES) -> Iterator[Prepared]:
        """Read a range in batches, in file order.

        Args:
            block_bytes: how much is read at a time, of a file without row groups or batches.

        Raises:
            as :func:`tokenlake.sources.records.read_range`.
        """
        if self._steps is not None:
            return self._read_rows(part, *self._steps, block_bytes)
        found = read_range(part, self._source, self._keeper.names, block_bytes=block_bytes)
        # Without a name for a batch: it may hold a text of 200 MB, which only its consumer still needs.
        return map(self._prepared_texts, found)

    def groups(self, parts: Sequence[FileRange]) -> Iterator[Sequence[FileRange]]:
        """Yield ranges in order, by themselves or in groups of small files."""
        return groups_of(parts, self._source) if self._texts_alone else ([part] for part in parts)

    def read_all(self, parts: Sequence[FileRange]) -> Iterator[Prepared]:
        """Read one of :meth:`groups` as :meth:`read` does, small files at once where nothing speaks against it."""
        found = read_together(parts, self._source) if self._texts_alone else None
        if found is None:
            for part in parts:
                yield from self.read(part)
            return
        yield Prepared(
            documents=TextDocuments(found.text, found.file, found.position),
            files=found.files,
            rows_read=len(found.position),
            bytes_read=found.bytes_read,
            normalized=found.normalized,
        )

    def _prepared_texts(self, batch: TextBatch) -> Prepared:
        file = np.full(len(batch.positions), batch.file.file_id, np.int64)
        documents = TextDocuments(batch.text, file, batch.positions)
        if not self._keeper.names:
            return _prepared(batch, documents)
        kept, faults = self._keeper.take(batch.table)
        documents = replace(documents, kept=kept)
        if faults:
            good = np.ones(len(documents), np.bool_)
            good[list(faults)] = False
            documents = documents.select(good)
        return _prepared(batch, documents, judged(self._source, batch, batch.table, sorted(faults.items())))

    def _read_rows(
        self, part: FileRange, chain: ChainedTransform, renderer: Renderer, block_bytes: int
    ) -> Iterator[Prepared]:
        """Records become rows, steps change them, and a renderer makes documents of them."""
        # Without steps a column that is missing here is one that the text needs; a step may make it.
        if_there = bool(chain.steps)
        for batch in read_rows(part, self._source, self._columns, if_there=if_there, block_bytes=block_bytes):
            begin("preparing", batch.file, batch.positions)
            yield self._prepared_rows(batch, chain, renderer)
            begin("reading", part.file)

    def _prepared_rows(self, batch: RowBatch, chain: ChainedTransform, renderer: Renderer) -> Prepared:
        # Without columns, because nothing of them is looked at, rows are as many empty ones.
        empty = not batch.table.has_objects and not batch.rows.num_columns
        rows = Rows(objects=[{} for _ in batch.positions]) if empty else batch.table
        keeps = bool(self._keeper.names)
        outcome = chain.on_rows(rows_of(rows) if keeps else rows)
        kept, unfit = self._keeper.take(outcome.rows) if keeps else (None, {})
        # JSON and CSV have no bytes.
        has_bytes = batch.file.facts.layout == "blocks"
        texts = with_text(outcome.rows, renderer.columns) if has_bytes else outcome.rows
        made = renderer.render(texts).without(unfit)
        row = outcome.origin[made.origin]
        positions = batch.positions[row]
        again = np.zeros(len(row), np.bool_)  # documents that are not their row's first
        again[1:] = np.diff(row) == 0
        documents = TextDocuments(
            made.text,
            np.full(len(positions), batch.file.file_id, np.int64),
            positions,
            spans=made.spans,
            extra=again if again.any() else None,
            parts=made.parts,
            label=made.label,
            kept=taken(kept, made.origin),
        )
        faults = _of_rows(outcome.origin, made.origin, made.bad) | dict(outcome.bad)
        bad = judged(self._source, batch, rows, sorted(faults.items()))
        filtered = dict(batch.filtered)
        for reason, count in outcome.filtered.items():
            filtered[reason] = filtered.get(reason, 0) + count
        return replace(_prepared(batch, documents, bad), filtered=filtered)


def _prepared(batch: RowBatch, documents: TextDocuments, bad: tuple[BadRecord, ...] = ()) -> Prepared:
    """Return documents with what a batch says of its records, and more bad records of it."""
    return Prepared(
        documents=documents,
        files=(batch.file,),
        rows_read=batch.rows_read,
        bytes_read=batch.bytes_read,
        bad=tuple(sorted((*batch.bad, *bad), key=lambda record: record.position)) if bad else batch.bad,
        filtered=batch.filtered,
        skipped=batch.skipped,
        normalized=batch.normalized,
    )


def _of_rows(origin: Int64, rendered: Int64, bad: tuple[tuple[int, Fault], ...]) -> dict[int, Fault]:
    """Return the faults of rows of the input: a row that made other documents beside the bad one is not bad."""
    left = set(origin[rendered].tolist()) if bad else set[int]()
    faults: dict[int, Fault] = {}
    for index, fault in bad:
        row = int(origin[index])
        if row not in left:
            faults.setdefault(row, fault)
    return faults
