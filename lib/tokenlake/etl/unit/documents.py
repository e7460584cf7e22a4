"""From a range of an input to documents: read, transform, render.

Plain text goes straight from the reader to the encoder. Everything else is processed by
rows: the steps of the configuration change them, a renderer makes their texts, and
every row that is left out or cannot be used is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.config.resolved import ResolvedSource, ResolvedTokens
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
from tokenlake.etl.unit.imported import empty_texts, import_ids, no_rows
from tokenlake.etl.unit.kept_fields import Keeper, rows_of
from tokenlake.etl.unit.text_documents import TextDocuments, taken


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Documents made of some consecutive records, and counts of the other records.

    Attributes:
        documents: Documents.
        files: Files that the records are of.
        rows_read: Number of records that were looked at.
        bytes_read: Bytes of input that were read for them.
        bad: Records that were set aside.
        filtered: Reason -> number of records left out on purpose.
        skipped: Reason -> number of records that were never looked at.
        normalized: Kind -> number of harmless repairs.
        dropped: Reason -> number of ids of imported records that are in no document.
    """

    documents: TextDocuments
    files: tuple[InputFile, ...]
    rows_read: int
    bytes_read: int
    bad: tuple[BadRecord, ...] = ()
    filtered: dict[str, int] = field(default_factory=dict[str, int])
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    normalized: dict[str, int] = field(default_factory=dict[str, int])
    dropped: dict[str, int] = field(default_factory=dict[str, int])


@final
class Recipe:
    """Preparation of a source's documents.

    Args:
        source: Source.
        files: Tokenizer, whose chat template and special tokens a renderer uses.

    Attributes:
        rendered: True if documents have control tokens of their own, and are finished
            one by one: they come with spans, or as ids.
        control_tokens: True if special tokens that a text spells become control ids.
        special_tokens_in_text: Treatment of these by the encoder.

    Raises:
        ConfigError: Settings contradict each other, or the tokenizer lacks something
            that they need.
    """

    def __init__(self, source: ResolvedSource, files: TokenizerFiles) -> None:
        self._source = source
        # 1. Fields that are kept beside the tokens. A field without a type has no
        #    values in any file.
        kept_fields = [(name, kind) for name, kind in source.kept if kind is not None]
        declared_names = frozenset(name for name, _ in source.field_types)
        self._keeper = Keeper(kept_fields, declared_names)
        # 2. Steps and renderer, if documents are more than plain texts.
        texts = source.texts
        special_tokens_in_text = source.tokenizer.special_tokens_in_text
        self._steps: tuple[ChainedTransform, Renderer] | None = None
        self._columns: tuple[str, ...] | None = ()
        spells_control_tokens = False
        if not texts.is_plain:
            # Steps that make new fields need others than those that the text needs.
            chain = open_chain(texts)
            renderer = open_renderer(
                texts, source.content_field, files, special_tokens_in_text
            )
            needed_columns = renderer.columns
            if needed_columns is not None:
                needed_columns = (*needed_columns, *self._keeper.names)
            self._columns = chain.needs(needed_columns)
            self._steps = (chain, renderer)
            spells_control_tokens = renderer.control_tokens
        # 3. Facts for the encoder.
        is_text = source.tokens is None
        has_plain_rows = self._steps is None and not self._keeper.names
        self._reads_texts_alone = is_text and has_plain_rows
        self.rendered = source.is_finished or texts.preference is not None
        self.control_tokens = (
            spells_control_tokens or special_tokens_in_text == "encode"
        )
        # A renderer has refused the special tokens of rows; those that are left are its
        # own.
        self.special_tokens_in_text = special_tokens_in_text
        if spells_control_tokens:
            self.special_tokens_in_text = "encode"

    def read(
        self, part: FileRange, block_bytes: int = BLOCK_BYTES
    ) -> Iterator[Prepared]:
        """Read a range in batches, in file order.

        Args:
            part: Range of a file.
            block_bytes: Bytes that are read at a time, of a file without row groups or
                batches.

        Raises:
            as :func:`tokenlake.etl.sources.records.read_range`.
        """
        if self._source.tokens is not None:
            return self._read_ids(part, self._source.tokens, block_bytes)
        if self._steps is not None:
            chain, renderer = self._steps
            return self._read_rows(part, chain, renderer, block_bytes)
        batches = read_range(
            part, self._source, self._keeper.names, block_bytes=block_bytes
        )
        # A loop would name each batch, and keep a text of 200 MB in memory that only
        # its consumer still needs.
        return map(self._prepared_texts, batches)

    def groups(self, parts: Sequence[FileRange]) -> Iterator[Sequence[FileRange]]:
        """Yield ranges in order, by themselves or in groups of small files."""
        if self._reads_texts_alone:
            return groups_of(parts, self._source)
        return ([part] for part in parts)

    def read_all(self, parts: Sequence[FileRange]) -> Iterator[Prepared]:
        """Read one of :meth:`groups` as :meth:`read` does.

        Small files are read at once if that is possible.
        """
        # A group with a bad record is read file by file, which names its place.
        together = None
        if self._reads_texts_alone:
            together = read_together(parts, self._source)
        if together is None:
            for part in parts:
                yield from self.read(part)
            return
        yield Prepared(
            documents=TextDocuments(together.text, together.file, together.position),
            files=together.files,
            rows_read=len(together.position),
            bytes_read=together.bytes_read,
            normalized=together.normalized,
        )

    def _prepared_texts(self, batch: TextBatch) -> Prepared:
        """Make documents of a batch of plain texts."""
        file_ids = np.full(len(batch.positions), batch.file.file_id, np.int64)
        documents = TextDocuments(batch.text, file_ids, batch.positions)
        if not self._keeper.names:
            return _prepared(batch, documents)
        # A text whose kept fields do not fit their types is a bad record.
        kept_fields, faults = self._keeper.take(batch.table)
        documents = replace(documents, kept=kept_fields)
        if faults:
            is_good = np.ones(len(documents), np.bool_)
            is_good[list(faults)] = False
            documents = documents.select(is_good)
        bad_records = judged(self._source, batch, batch.table, sorted(faults.items()))
        return _prepared(batch, documents, bad_records)

    def _read_ids(
        self, part: FileRange, tokens: ResolvedTokens, block_bytes: int
    ) -> Iterator[Prepared]:
        """Read a range of records of ids."""
        columns = tuple(dict.fromkeys((*tokens.columns, *self._keeper.names)))
        batches = read_rows(part, self._source, columns, block_bytes=block_bytes)
        return map(partial(self._prepared_ids, tokens=tokens), batches)

    def _prepared_ids(self, batch: RowBatch, tokens: ResolvedTokens) -> Prepared:
        """Make documents of a batch of records of ids."""
        # 1. Documents, of which a record may have several. Only the first one of a
        # record counts as its row.
        rows = batch.table
        if not len(batch.positions):
            rows = no_rows(tokens.columns)
        imported = import_ids(rows, tokens)
        origin = imported.origin
        is_extra = np.zeros(len(origin), np.bool_)
        is_extra[1:] = np.diff(origin) == 0
        # 2. Fields that are kept. A record that cannot be used for them is bad as a
        #    whole.
        kept_fields = None
        faults = dict(imported.faults)
        if self._keeper.names and len(batch.positions):
            fields_of_rows, unfit_rows = self._keeper.take(rows)
            faults |= unfit_rows
            good_rows = np.setdiff1d(np.arange(len(rows)), list(unfit_rows))
            kept_fields = taken(fields_of_rows, np.searchsorted(good_rows, origin))
        # 3. The documents of all records that can be used.
        documents = TextDocuments(
            text=empty_texts(len(origin)),
            file=np.full(len(origin), batch.file.file_id, np.int64),
            position=batch.positions[origin],
            extra=is_extra if is_extra.any() else None,
            kept=kept_fields,
            ids=imported.ids,
        )
        if faults:
            documents = documents.select(~np.isin(origin, list(faults)))
        bad_records = judged(self._source, batch, rows, sorted(faults.items()))
        prepared = _prepared(batch, documents, bad_records)
        return replace(prepared, dropped=imported.dropped)

    def _read_rows(
        self,
        part: FileRange,
        chain: ChainedTransform,
        renderer: Renderer,
        block_bytes: int,
    ) -> Iterator[Prepared]:
        """Read a range by rows, which steps change and a renderer makes documents of."""
        # Without steps, a missing column is one that the text needs; with steps, one of
        # them may add it.
        if_there = bool(chain.steps)
        for batch in read_rows(
            part,
            self._source,
            self._columns,
            if_there=if_there,
            block_bytes=block_bytes,
        ):
            begin("preparing", batch.file, batch.positions)
            yield self._prepared_rows(batch, chain, renderer)
            begin("reading", part.file)

    def _prepared_rows(
        self, batch: RowBatch, chain: ChainedTransform, renderer: Renderer
    ) -> Prepared:
        """Make documents of a batch of rows."""
        # 1. Apply the steps. A table without columns stands for as many empty rows.
        rows = batch.table
        if not rows.has_objects and not batch.rows.num_columns:
            rows = Rows(objects=[{} for _ in batch.positions])
        has_kept_fields = bool(self._keeper.names)
        outcome = chain.on_rows(rows_of(rows) if has_kept_fields else rows)
        # 2. Take the fields to keep.
        kept_fields = None
        unfit_rows: dict[int, Fault] = {}
        if has_kept_fields:
            kept_fields, unfit_rows = self._keeper.take(outcome.rows)
        # 3. Render. JSON and CSV have no bytes that could be text.
        text_rows = outcome.rows
        if batch.file.facts.layout == "blocks":
            text_rows = with_text(text_rows, renderer.columns)
        rendered = renderer.render(text_rows).without(unfit_rows)
        # 4. Documents and the rows that they come from.
        origin = outcome.origin[rendered.origin]
        is_extra = np.zeros(len(origin), np.bool_)
        is_extra[1:] = np.diff(origin) == 0
        documents = TextDocuments(
            rendered.text,
            file=np.full(len(origin), batch.file.file_id, np.int64),
            position=batch.positions[origin],
            spans=rendered.spans,
            extra=is_extra if is_extra.any() else None,
            parts=rendered.parts,
            label=rendered.label,
            kept=taken(kept_fields, rendered.origin),
        )
        # 5. Rows that are bad, or left out. A fault of a step comes before one of the
        #    renderer.
        faults = _faults_of_rows(outcome.origin, rendered.origin, rendered.bad)
        faults |= dict(outcome.bad)
        bad_records = judged(self._source, batch, rows, sorted(faults.items()))
        filtered = dict(batch.filtered)
        for reason, row_count in outcome.filtered.items():
            filtered[reason] = filtered.get(reason, 0) + row_count
        prepared = _prepared(batch, documents, bad_records)
        return replace(prepared, filtered=filtered)


def _prepared(
    batch: RowBatch, documents: TextDocuments, bad: tuple[BadRecord, ...] = ()
) -> Prepared:
    """Return documents with the counts of their batch.

    Args:
        batch: Batch of records.
        documents: Documents made of them.
        bad: Bad records of the batch, beside those that the batch knows.
    """
    # Both lists ascend, and so must the quarantine of a unit.
    all_bad = batch.bad
    if bad:
        all_bad = tuple(sorted((*batch.bad, *bad), key=lambda record: record.position))
    return Prepared(
        documents=documents,
        files=(batch.file,),
        rows_read=batch.rows_read,
        bytes_read=batch.bytes_read,
        bad=all_bad,
        filtered=batch.filtered,
        skipped=batch.skipped,
        normalized=batch.normalized,
    )


def _faults_of_rows(
    origin: Int64, rendered: Int64, bad: tuple[tuple[int, Fault], ...]
) -> dict[int, Fault]:
    """Return the faults of rows of the input, by their indices.

    A row with other documents beside the bad one is not bad.

    Args:
        origin: Row of the input that each row after the steps comes from, int64[n].
        rendered: Row after the steps that each document comes from, int64[m].
        bad: Rows after the steps that could not be rendered, and why.
    """
    faults: dict[int, Fault] = {}
    if not bad:
        return faults
    rows_with_documents = set(origin[rendered].tolist())
    for index, fault in bad:
        row = int(origin[index])
        if row not in rows_with_documents:
            faults.setdefault(row, fault)
    return faults
