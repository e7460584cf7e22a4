"""From an input's range to documents: read, transform, render.

Plain text takes the short way, straight from the reader to the encoder. Anything else goes by rows: the steps of the
configuration change them, a renderer makes their texts, and every row that is left out or cannot be used is accounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from tokenlake.arrays import Int64
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer
from tokenlake.etl.unit.documents import Keeper, TextDocuments, as_json, rows_of, taken
from tokenlake.etl.worker_io import begin
from tokenlake.sources.batch import RAW_LIMIT, BadRecord, ReadBatch, RowBatch, TextBatch, TextRowBatch, refuse
from tokenlake.sources.inputs import FileRange, InputFile
from tokenlake.sources.lines import count_lines
from tokenlake.sources.opening import opened
from tokenlake.sources.records import read_range, read_rows, read_texts
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.rendering import Rendered, Renderer
from tokenlake.text.steps import open_chain, open_renderer
from tokenlake.text.transform import ChainedTransform
from tokenlake.tokenizers.files import TokenizerFiles


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
        _record(batch, index, fault, row) for (index, fault), row in zip(faults, objects, strict=True)
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


def _record(batch: RowBatch, index: int, fault: Fault, row: object) -> BadRecord:
    return BadRecord(
        file=batch.file.path,
        file_id=batch.file.file_id,
        position=int(batch.positions[index]),
        line=None,
        reason=fault.reason,
        detail=fault.detail,
        raw=_raw(row)[:RAW_LIMIT],
    )


def _raw(row: object) -> bytes:
    try:
        return orjson.dumps(row, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # an integer of more than 64 bits, half of a surrogate pair, or many levels
        return (as_json(row) or "").encode()


def _none() -> dict[str, int]:
    return {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """TextDocuments made of some consecutive records, and what became of the other records.

    Attributes:
        rows_read: records looked at.
        bad, filtered, skipped, normalized, bytes_read: as in :class:`tokenlake.sources.batch.ReadBatch`.
    """

    documents: TextDocuments
    file: InputFile
    rows_read: int
    bytes_read: int
    bad: tuple[BadRecord, ...] = ()
    filtered: dict[str, int] = field(default_factory=_none)
    skipped: dict[str, int] = field(default_factory=_none)
    normalized: dict[str, int] = field(default_factory=_none)


class Recipe(Protocol):
    """How a source's records become documents.

    Attributes:
        rendered: whether documents come with spans: they spell their own control tokens, and are finished one by one.
        control_tokens: whether special tokens that a text spells become control ids.
    """

    rendered: bool
    control_tokens: bool

    def read(self, part: FileRange) -> Iterator[Prepared]:
        """Read a range in batches, in file order.

        Raises:
            as :func:`tokenlake.sources.records.read_range`.
        """
        ...


def open_recipe(source: ResolvedSource, files: TokenizerFiles) -> Recipe:
    """Return the recipe of a source.

    Raises:
        ConfigError: the settings contradict themselves, or the tokenizer lacks what they need.
    """
    if source.texts.is_plain:
        return TextRecipe(source)
    renderer = open_renderer(
        source.texts, source.content_field, files, source.tokenizer.special_tokens_in_text
    )
    return RowsRecipe(source, open_chain(source.texts), renderer)


def special_mode(settings: ResolvedTokenizer, recipe: Recipe) -> str:
    """Return what the encoder does with special tokens that a text spells."""
    return "encode" if recipe.control_tokens else settings.special_tokens_in_text


@final
class TextRecipe:
    """A field of each record is its document, and other fields may be kept beside it."""

    def __init__(self, source: ResolvedSource) -> None:
        self.rendered = False
        self.control_tokens = source.tokenizer.special_tokens_in_text == "encode"
        self._source = source
        self._keeper = open_keeper(source) if source.kept else None

    def read(self, part: FileRange) -> Iterator[Prepared]:
        keeper, source = self._keeper, self._source
        batches = read_range(part, source) if keeper is None else read_texts(part, source, keeper.names)
        while (batch := next(batches, None)) is not None:
            box = [self._prepare(batch)]
            del batch  # it may hold a text of 200 MB, which only its consumer still needs
            yield box.pop()

    def _prepare(self, batch: TextBatch | TextRowBatch) -> Prepared:
        file = np.full(len(batch.positions), batch.file.file_id, np.int64)
        documents = TextDocuments(batch.text, file, batch.positions)
        if self._keeper is None or not isinstance(batch, TextRowBatch):
            return _prepared(batch, documents)
        kept, faults = self._keeper.take(batch.table)
        documents = replace(documents, kept=kept)
        if faults:
            good = np.ones(len(documents), np.bool_)
            good[list(faults)] = False
            documents = documents.select(good)
        return _prepared(batch, documents, judged(self._source, batch, batch.table, sorted(faults.items())))


def open_keeper(source: ResolvedSource) -> Keeper:
    """Return what takes the kept fields of a planned source."""
    return Keeper([(name, kind) for name, kind in source.kept if kind is not None])


@final
class RowsRecipe:
    """Records become rows, steps change them, and a renderer makes documents of them."""

    def __init__(self, source: ResolvedSource, chain: ChainedTransform, renderer: Renderer) -> None:
        self.rendered = source.texts.masked or source.texts.preference is not None
        self.control_tokens = renderer.control_tokens or source.tokenizer.special_tokens_in_text == "encode"
        self._source, self._chain, self._renderer = source, chain, renderer
        self._keeper = open_keeper(source)
        wanted = renderer.columns
        self._columns = chain.needs(None if wanted is None else (*wanted, *self._keeper.names))

    def read(self, part: FileRange) -> Iterator[Prepared]:
        # Without steps a column that is missing here is one that the text needs; a step may make it.
        if_there = bool(self._chain.steps)
        for batch in read_rows(part, self._source, self._columns, if_there=if_there):
            begin("preparing", batch.file, batch.positions)
            yield self._prepare(batch)
            begin("reading", part.file)

    def _prepare(self, batch: RowBatch) -> Prepared:
        rows = _table(batch)
        keeps = bool(self._keeper.names)
        outcome = self._chain.on_rows(rows_of(rows) if keeps else rows)
        kept, unfit = self._keeper.take(outcome.rows) if keeps else (None, {})
        made = self._renderer.render(outcome.rows)
        if unfit:
            made = _without(made, unfit)
        row = outcome.origin[made.origin]
        positions = batch.positions[row]
        documents = TextDocuments(
            made.text,
            np.full(len(positions), batch.file.file_id, np.int64),
            positions,
            spans=made.spans,
            extra=_extra(row),
            parts=made.parts,
            label=made.label,
            kept=taken(kept, made.origin),
        )
        faults = _of_rows(outcome.origin, made.origin, made.bad) | dict(outcome.bad)
        bad = judged(self._source, batch, rows, sorted(faults.items()))
        return replace(
            _prepared(batch, documents, bad),
            filtered={
                key: batch.filtered.get(key, 0) + outcome.filtered.get(key, 0)
                for key in {**batch.filtered, **outcome.filtered}
            },
        )


def _without(made: Rendered, unfit: dict[int, Fault]) -> Rendered:
    """Take out what was made of rows that cannot be kept, and make them bad."""
    good = ~np.isin(made.origin, list(unfit))
    inside = np.repeat(good, made.parts)
    return Rendered(
        text=made.text.filter(pa.array(inside)),
        origin=made.origin[good],
        spans=None if made.spans is None else made.spans.select(inside),
        bad=tuple(sorted((unfit | dict(made.bad)).items())),
        parts=made.parts,
        label=None if made.label is None else made.label[good],
    )


def _table(batch: RowBatch) -> Rows:
    """Return a batch's rows; without columns, because nothing of them is looked at, as many empty ones."""
    empty = not batch.table.has_objects and not batch.rows.num_columns
    return Rows(objects=[{} for _ in batch.positions]) if empty else batch.table


def _prepared(batch: ReadBatch, documents: TextDocuments, bad: tuple[BadRecord, ...] = ()) -> Prepared:
    """Return documents with what a batch says of its records, and more bad records of it."""
    return Prepared(
        documents=documents,
        file=batch.file,
        rows_read=batch.rows_read,
        bytes_read=batch.bytes_read,
        bad=tuple(sorted((*batch.bad, *bad), key=lambda record: record.position)) if bad else batch.bad,
        filtered=batch.filtered,
        skipped=batch.skipped,
        normalized=batch.normalized,
    )


def _extra(row: Int64) -> npt.NDArray[np.bool_] | None:
    """Mark the documents that are not their row's first; None where every row made one."""
    again = np.zeros(len(row), np.bool_)
    again[1:] = np.diff(row) == 0
    return again if again.any() else None


def _of_rows(origin: Int64, rendered: Int64, bad: tuple[tuple[int, Fault], ...]) -> dict[int, Fault]:
    """Return the faults of rows of the input: a row that made other documents beside the bad one is not bad."""
    left = set(origin[rendered].tolist()) if bad else set[int]()
    faults: dict[int, Fault] = {}
    for index, fault in bad:
        row = int(origin[index])
        if row not in left:
            faults.setdefault(row, fault)
    return faults
