"""The rows of one split of a unit of preferences: a prompt and its answers."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.base.columns import text_weights
from tokenlake.config.resolved import ResolvedPreference
from tokenlake.etl.job import UnitJob
from tokenlake.etl.text.preference_ids import Joined, Joiner, preference_batch
from tokenlake.etl.tokenizers.encoder import Encoded, Encoder
from tokenlake.etl.unit.parts import PartWriter
from tokenlake.etl.unit.rows_file import Padding, RowsFile, row_of
from tokenlake.etl.unit.sink import part_numbers
from tokenlake.etl.unit.text_documents import TextDocuments, taken
from tokenlake.etl.unit.token_files import group_tokens
from tokenlake.runtime.column_types import arrow_type
from tokenlake.runtime.schema import described, preference_schema
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import ShardEntry

_ARROW: Final[Any] = pa


@final
class PreferenceSink:
    """Joins prompts and answers to one row per judged prompt.

    It counts every token: written, or left out for a reason.

    Rows have the columns of their trainer, and are dealt to the files one by one.

    Args:
        job: Job of the unit.
        settings: Method and trainer of the preferences.
        store: Store of the version.
        layout: Keys of the version.
        split: Name of the split.
        encoder: Encoder of the texts, whose prefix rows begin with.

    Attributes:
        counts: Counts of documents, content_packed, bos, eos and eos_existing.
    """

    def __init__(
        self,
        job: UnitJob,
        settings: ResolvedPreference,
        store: Store,
        layout: Layout,
        split: str,
        encoder: Encoder,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._settings = settings
        tokenizer = job.source.tokenizer
        self._joiner = Joiner(
            settings.method,
            encoder.prefix,
            job.eos_id,
            tokenizer.max_length,
            tokenizer.long_documents,
        )
        # 1. The schema: the columns of the trainer, and the fields that are kept.
        kept_fields = [(name, arrow_type(kind)) for name, kind in job.kept]
        schema = preference_schema(settings.method, settings.trainer, kept_fields)
        self._schema = described(schema, job.tokenizer_json)
        # 2. Files. Rows are not padded. This padding of length 0 keeps a row out of a
        #    group that it does not fit into.
        padding = Padding("max_length")
        full_group = group_tokens(job.files)
        self._files: list[RowsFile] = []
        for part_number in part_numbers(job):
            writer = PartWriter(
                store,
                layout,
                split,
                job.unit,
                self._schema,
                job.max_shard_size,
                part_number,
            )
            self._files.append(
                RowsFile(writer, padding, full_group, lambda rows, _: rows)
            )
        self._dealt_rows = 0

    def add(self, documents: TextDocuments, encoded: Encoded) -> Joined:
        """Add documents whose texts were encoded; return their rows and counts."""
        joined = self._joiner.join(encoded.ids, encoded.offsets)
        self.counts.update(
            documents=len(joined.origin),
            content_packed=joined.tokens - sum(joined.dropped.values()),
            bos=joined.bos,
            eos=joined.eos,
            eos_existing=joined.eos_existing,
        )
        if len(joined.origin):
            self._deal(self._rows(documents, joined), joined.lengths)
        return joined

    def text_bytes(self, documents: TextDocuments) -> int:
        """Return the UTF-8 bytes of prompts and answers, each counted once.

        Ids are counted in the same way.
        """
        # The texts of a document are a row, in which some texts hold the prompt again.
        sizes_of_parts = documents.text_sizes.reshape(-1, documents.parts)
        bytes_of_parts = sizes_of_parts.sum(axis=0)
        return int(bytes_of_parts @ np.array(text_weights(self._settings.method)))

    def finish(self) -> list[ShardEntry]:
        """Write and publish the rest; return the parts."""
        entries: list[ShardEntry] = []
        for file in self._files:
            entries += file.finish()
        return entries

    def discard(self) -> None:
        """Give up: remove temporary files."""
        for file in self._files:
            file.discard()

    def _rows(self, documents: TextDocuments, joined: Joined) -> pa.RecordBatch:
        """Return the rows of joined documents, with provenance and kept fields."""
        batch = preference_batch(
            self._settings, joined, documents.label, documents.text
        )
        columns: dict[str, Any] = dict(
            zip(batch.schema.names, batch.columns, strict=True)
        )
        # Rows are fewer than documents, some of which were left out: `origin` says whose
        # place each row has.
        columns["file"] = _ARROW.array(documents.file[joined.origin])
        columns["position"] = _ARROW.array(documents.position[joined.origin])
        kept_fields = taken(documents.kept, joined.origin)
        if kept_fields is not None:
            columns.update(
                zip(kept_fields.schema.names, kept_fields.columns, strict=True)
            )
        return row_of(self._schema, columns, len(joined.origin))

    def _deal(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        """Deal rows to the files one by one.

        Args:
            rows: n rows.
            lengths: Ids of each, int64[n].
        """
        # Row i of all rows belongs to file i modulo their number, so that the files do
        # not depend on the batches.
        file_count = len(self._files)
        if file_count == 1:
            self._files[0].add(rows, lengths)
        else:
            for number, file in enumerate(self._files):
                first_row = (number - self._dealt_rows) % file_count
                row_indices = np.arange(first_row, len(lengths), file_count)
                file_rows = rows.take(_ARROW.array(row_indices))
                file.add(file_rows, lengths[row_indices])
        self._dealt_rows += len(lengths)
