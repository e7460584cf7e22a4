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
    """Joins prompts and answers to one row per judged prompt, and counts what became of every token.

    Rows have the columns of their trainer, and are dealt to the files one by one.
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
        self._settings, own = settings, job.source.tokenizer
        self._joiner = Joiner(settings.method, encoder.prefix, job.eos_id, own.max_length, own.long_documents)
        kept = [(name, arrow_type(kind)) for name, kind in job.kept]
        rows = preference_schema(settings.method, settings.trainer, kept)
        self._schema = described(rows, job.tokenizer_json)
        args = store, layout, split, job.unit, self._schema, job.max_shard_size
        # Rows are not padded here, but none goes into a group that it does not fit into.
        padding, full = Padding("max_length"), group_tokens(job.files)
        self._files = [
            RowsFile(PartWriter(*args, only), padding, full, lambda rows, _: rows)
            for only in part_numbers(job)
        ]
        self._dealt = 0

    def add(self, documents: TextDocuments, encoded: Encoded) -> Joined:
        """Add documents whose texts were encoded; returns what became of them."""
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
        """Return the UTF-8 bytes of prompts and answers, each counted once as ids are."""
        sizes = documents.text_sizes.reshape(-1, documents.parts).sum(axis=0)
        return int(sizes @ np.array(text_weights(self._settings.method)))

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        return [entry for file in self._files for entry in file.finish()]

    def discard(self) -> None:
        """Give up: remove temporary files."""
        for file in self._files:
            file.discard()

    def _rows(self, documents: TextDocuments, joined: Joined) -> pa.RecordBatch:
        batch = preference_batch(self._settings, joined, documents.label, documents.text)
        columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["file"] = _ARROW.array(documents.file[joined.origin])
        columns["position"] = _ARROW.array(documents.position[joined.origin])
        if (kept := taken(documents.kept, joined.origin)) is not None:
            columns |= dict(zip(kept.schema.names, kept.columns, strict=True))
        return row_of(self._schema, columns, len(joined.origin))

    def _deal(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        many = len(self._files)
        for number, file in enumerate(self._files):
            if many == 1:
                file.add(rows, lengths)
                continue
            mine = np.arange((number - self._dealt) % many, len(lengths), many)
            file.add(rows.take(_ARROW.array(mine)), lengths[mine])
        self._dealt += len(lengths)
