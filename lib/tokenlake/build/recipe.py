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
import pyarrow as pa

from tokenlake.build.documents import Documents, taken
from tokenlake.build.judging import judged
from tokenlake.build.kept import Keeper, rows_of
from tokenlake.build.whereabouts import begin
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer
from tokenlake.faults import Fault
from tokenlake.rows import Rows
from tokenlake.sources.batch import BadRecord, Batch, RowBatch, TextBatch, TextRowBatch
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.records import read_range, read_rows, read_texts
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.base import ChainedTransform
from tokenlake.transforms.configured import open_chain
from tokenlake.transforms.renderers import open_renderer
from tokenlake.transforms.rendering import Rendered, Renderer

Int64 = npt.NDArray[np.int64]


def _none() -> dict[str, int]:
    return {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Documents made of some consecutive records, and what became of the other records.

    Attributes:
        rows_read: records looked at.
        bad, filtered, skipped, normalized, bytes_read: as in :class:`tokenlake.sources.batch.Batch`.
    """

    documents: Documents
    file: InputFile
    rows_read: int
    bytes_read: int
    bad: tuple[BadRecord, ...] = ()
    filtered: dict[str, int] = field(default_factory=_none)
    skipped: dict[str, int] = field(default_factory=_none)
    normalized: dict[str, int] = field(default_factory=_none)


class Recipe(Protocol):
    """How a source's records become documents."""

    @property
    def rendered(self) -> bool:
        """Whether documents come with spans: they spell their own control tokens, and are finished one by one."""
        ...

    @property
    def control_tokens(self) -> bool:
        """Whether special tokens that a text spells become control ids."""
        ...

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
        return KeepingRecipe(source) if source.kept else PlainRecipe(source)
    renderer = open_renderer(
        source.texts, source.content_field, files, source.tokenizer.special_tokens_in_text
    )
    return RowsRecipe(source, open_chain(source.texts), renderer)


def special_mode(settings: ResolvedTokenizer, recipe: Recipe) -> str:
    """Return what the encoder does with special tokens that a text spells."""
    return "encode" if recipe.control_tokens else settings.special_tokens_in_text


@final
class PlainRecipe:
    """A field of each record is its document."""

    def __init__(self, source: ResolvedSource) -> None:
        self._source = source

    @property
    def rendered(self) -> bool:
        return False

    @property
    def control_tokens(self) -> bool:
        return self._source.tokenizer.special_tokens_in_text == "encode"

    def read(self, part: FileRange) -> Iterator[Prepared]:
        batches = read_range(part, self._source)
        while (batch := next(batches, None)) is not None:
            box = [_plain(batch)]
            del batch  # it may hold a text of 200 MB, which only its consumer still needs
            yield box.pop()


def _plain(batch: TextBatch) -> Prepared:
    file = np.full(len(batch.positions), batch.file.file_id, np.int64)
    return _prepared(batch, Documents(batch.text, file, batch.positions))


@final
class KeepingRecipe:
    """A field of each record is its document, and other fields are kept beside it."""

    def __init__(self, source: ResolvedSource) -> None:
        self._source, self._keeper = source, open_keeper(source)

    @property
    def rendered(self) -> bool:
        return False

    @property
    def control_tokens(self) -> bool:
        return self._source.tokenizer.special_tokens_in_text == "encode"

    def read(self, part: FileRange) -> Iterator[Prepared]:
        batches = read_texts(part, self._source, self._keeper.names)
        while (batch := next(batches, None)) is not None:
            box = [self._prepare(batch)]
            del batch  # it may hold a text of 200 MB, which only its consumer still needs
            yield box.pop()

    def _prepare(self, batch: TextRowBatch) -> Prepared:
        kept, faults = self._keeper.take(batch.table)
        file = np.full(len(batch.positions), batch.file.file_id, np.int64)
        documents = Documents(batch.text, file, batch.positions, kept=kept)
        if not faults:
            return _prepared(batch, documents)
        good = np.ones(len(documents), np.bool_)
        good[list(faults)] = False
        bad = judged(self._source, batch, batch.table, sorted(faults.items()))
        return replace(
            _prepared(batch, documents.select(good)),
            bad=tuple(sorted((*batch.bad, *bad), key=lambda record: record.position)),
        )


def open_keeper(source: ResolvedSource) -> Keeper:
    """Return what takes the kept fields of a planned source."""
    return Keeper([(name, kind) for name, kind in source.kept if kind is not None])


@final
class RowsRecipe:
    """Records become rows, steps change them, and a renderer makes documents of them."""

    def __init__(self, source: ResolvedSource, chain: ChainedTransform, renderer: Renderer) -> None:
        self._source, self._chain, self._renderer = source, chain, renderer
        self._keeper = open_keeper(source)
        wanted = renderer.columns
        self._columns = chain.needs(None if wanted is None else (*wanted, *self._keeper.names))

    @property
    def rendered(self) -> bool:
        return self._source.texts.masked or self._source.texts.preference is not None

    @property
    def control_tokens(self) -> bool:
        return self._renderer.control_tokens or self._source.tokenizer.special_tokens_in_text == "encode"

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
        documents = Documents(
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
        prepared = _prepared(batch, documents)
        return replace(
            prepared,
            bad=tuple(sorted((*batch.bad, *bad), key=lambda record: record.position)),
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


def _prepared(batch: Batch, documents: Documents) -> Prepared:
    return Prepared(
        documents=documents,
        file=batch.file,
        rows_read=batch.rows_read,
        bytes_read=batch.bytes_read,
        bad=batch.bad,
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
