"""From a range of an input to documents: read, transform, render.

Plain text goes straight from the reader to the encoder. Everything else is processed by rows: the steps of the
configuration change them, a renderer makes their texts, and every row that is left out or cannot be used is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.job import begin
from tokenlake.etl.sources.bad_records import BadRecord, Fault
from tokenlake.etl.sources.inputs import FileRange, InputFile
from tokenlake.etl.sources.parsed import BLOCK_BYTES, RowBatch, TextBatch
from tokenlake.etl.sources.records import read_range, read_rows
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.sources.small_files import groups_of, read_together
from tokenlake.etl.text.renderer import Renderer
from tokenlake.etl.text.steps import open_chain, open_renderer
from tokenlake.etl.text.transform import ChainedTransform
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.unit.bad_rows import judged
from tokenlake.etl.unit.decoded_rows import with_text
from tokenlake.etl.unit.kept_fields import Keeper, rows_of
from tokenlake.etl.unit.text_documents import TextDocuments, taken

_ARROW: Final[Any] = pa  # the stubs do not know concat_batches


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """TextDocuments made of some consecutive records, and what became of the other records.

    Attributes:
        files: which they are of.
        rows_read: records looked at.
        bad, filtered, skipped, normalized, bytes_read: as in :class:`tokenlake.etl.sources.parsed.RowBatch`.
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
            as :func:`tokenlake.etl.sources.records.read_range`.
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
