"""Where a unit's preferences of one split end up: one row per judged prompt, in the columns of its trainer."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.arrays import Int64
from tokenlake.column_types import arrow_type
from tokenlake.config.resolved import ResolvedPreference
from tokenlake.etl.job import UnitJob
from tokenlake.etl.output.parts import PartWriter
from tokenlake.etl.output.sink import group_tokens
from tokenlake.etl.output.token_rows import Padding, RowGroups
from tokenlake.etl.unit.documents import TextDocuments, taken
from tokenlake.preference_columns import text_weights
from tokenlake.schema import preference_schema
from tokenlake.store.base import Store
from tokenlake.store.entries import ShardEntry
from tokenlake.store.layout import Layout
from tokenlake.text.preference.columns import Joined, Joiner, preference_batch
from tokenlake.tokenizers.encoder import Encoded, Encoder

_ARROW: Final[Any] = pa


def open_pairs(
    job: UnitJob, settings: ResolvedPreference, store: Store, layout: Layout, split: str, encoder: Encoder
) -> PreferenceSink:
    """Return the sink of preferences for one split of a unit."""
    tokenizer = job.source.tokenizer
    joiner = Joiner(
        settings.method, encoder.prefix, job.eos_id, tokenizer.max_length, tokenizer.long_documents
    )
    kept = [(name, arrow_type(kind)) for name, kind in job.kept]
    schema = preference_schema(settings.method, settings.trainer, kept)
    numbers = [None] if job.files is None else range(job.files)
    files = [
        _RowsFile(
            PartWriter(store, layout, split, job.unit, schema, job.max_shard_size, only),
            group_tokens(job.files),
        )
        for only in numbers
    ]
    return PreferenceSink(settings, joiner, schema, files)


@final
class _RowsFile:
    """Rows on their way to one file after the other, or to the only one."""

    def __init__(self, writer: PartWriter, full: int) -> None:
        self.writer = writer
        # Rows are not padded here, but none goes into a group that it does not fit into.
        self._groups = RowGroups(Padding("max_length", 0, "right", 0), full)
        self._rows: list[pa.RecordBatch] = []
        self._tokens = 0

    def add(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        """Lay rows of so many ids into row groups, whose borders do not depend on how rows arrive."""
        first = 0
        while first < len(lengths):
            taken, full = self._groups.take(lengths[first:])
            if taken:
                self._rows.append(rows.slice(first, taken))
                self._tokens += int(lengths[first : first + taken].sum())
            if full:
                self.flush()
            first += taken

    def flush(self) -> None:
        """Write what waits as one row group."""
        self._groups.clear()
        if self._rows:
            rows = _ARROW.concat_batches(self._rows)
            self.writer.write(rows, tokens=self._tokens, documents=len(rows))
        self._rows, self._tokens = [], 0


@final
class PreferenceSink:
    """Joins prompts and answers, writes parts, and counts what became of every token.

    Args:
        files: to which rows are dealt out one by one.
    """

    def __init__(
        self, settings: ResolvedPreference, joiner: Joiner, schema: pa.Schema, files: list[_RowsFile]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._settings, self._joiner, self._schema, self._files = settings, joiner, schema, files
        self._dealt = 0

    def add(self, documents: TextDocuments, encoded: Encoded) -> Joined:
        """Add documents whose texts were encoded; returns what became of them."""
        joined = self._joiner.join(encoded.ids, encoded.offsets)
        self.counts.update(
            documents=len(joined.origin),
            content=joined.tokens - sum(joined.dropped.values()),
            bos=joined.bos,
            eos=joined.eos,
            eos_existing=joined.eos_existing,
        )
        if len(joined.origin):
            self._deal(self._rows(documents, joined), joined.lengths)
        return joined

    def text_bytes(self, documents: TextDocuments) -> int:
        """Return the UTF-8 bytes of prompts and answers, each counted once as ids are."""
        sizes = documents.text_sizes.reshape(-1, documents.parts).sum(axis=0)
        return int(sizes @ np.array(text_weights(self._settings.method)))

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        for file in self._files:
            file.flush()
        return [entry for file in self._files for entry in file.writer.finish()]

    def discard(self) -> None:
        """Give up: remove temporary files."""
        for file in self._files:
            file.writer.discard()

    def _rows(self, documents: TextDocuments, joined: Joined) -> pa.RecordBatch:
        batch = preference_batch(self._settings, joined, documents.label, documents.text)
        columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["file"] = _ARROW.array(documents.file[joined.origin])
        columns["position"] = _ARROW.array(documents.position[joined.origin])
        if (kept := taken(documents.kept, joined.origin)) is not None:
            columns |= dict(zip(kept.schema.names, kept.columns, strict=True))
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(len(joined.origin), field.type)
            for field in self._schema
        ]
        return _ARROW.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _deal(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        many = len(self._files)
        if many == 1:
            self._files[0].add(rows, lengths)
            return
        for number, file in enumerate(self._files):
            mine = np.arange((number - self._dealt) % many, len(lengths), many)
            file.add(rows.take(_ARROW.array(mine)), lengths[mine])
        self._dealt += len(lengths)
