"""Where a unit's preferences of one split end up: one row per judged prompt, in the columns of its trainer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.build.documents import Documents
from tokenlake.build.job import UnitJob
from tokenlake.build.parts import PartWriter
from tokenlake.config.resolved_texts import ResolvedPreference
from tokenlake.manifest import ShardEntry
from tokenlake.preferences import text_weights
from tokenlake.schema import ROW_GROUP_TOKENS, preference_schema
from tokenlake.storage import Layout, Store
from tokenlake.tokenizers import Encoded, Encoder
from tokenlake.transforms.preference import Joined, Joiner, preference_batch

_ARROW: Final[Any] = pa
Int64 = npt.NDArray[np.int64]


def open_pairs(
    job: UnitJob, store: Store, layout: Layout, split: str, encoder: Encoder
) -> PreferenceSink | None:
    """Return the sink for one split of a unit; None where its rows are no preferences."""
    settings, tokenizer = job.source.texts.preference, job.source.tokenizer
    if settings is None:
        return None
    joiner = Joiner(
        settings.method, encoder.prefix, job.eos_id, tokenizer.max_length, tokenizer.long_documents
    )
    schema = preference_schema(settings.method, settings.trainer)
    return PreferenceSink(
        settings, joiner, PartWriter(store, layout, split, job.unit, schema, job.max_shard_size)
    )


@final
@dataclass(frozen=True, slots=True)
class _Waiting:
    """Rows that wait for their row group to be full."""

    rows: pa.RecordBatch
    tokens: int


@final
class PreferenceSink:
    """Joins prompts and answers, writes parts, and counts what became of every token."""

    def __init__(self, settings: ResolvedPreference, joiner: Joiner, writer: PartWriter) -> None:
        self.counts: Counter[str] = Counter()
        self._settings, self._joiner, self._writer = settings, joiner, writer
        self._waiting: list[_Waiting] = []

    def add(self, documents: Documents, encoded: Encoded) -> Joined:
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
            self._cut(self._rows(documents, joined), joined.lengths)
        return joined

    def text_bytes(self, documents: Documents) -> int:
        """Return the UTF-8 bytes of prompts and answers, each counted once as ids are."""
        sizes = documents.text_sizes.reshape(-1, documents.parts).sum(axis=0)
        return int(sizes @ np.array(text_weights(self._settings.method)))

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        self._flush()
        return self._writer.finish()

    def discard(self) -> None:
        """Give up: remove temporary files."""
        self._writer.discard()

    def _rows(self, documents: Documents, joined: Joined) -> pa.RecordBatch:
        batch = preference_batch(self._settings, joined, documents.label, documents.text)
        place = [_ARROW.array(values[joined.origin]) for values in (documents.file, documents.position)]
        schema = preference_schema(self._settings.method, self._settings.trainer)
        return _ARROW.RecordBatch.from_arrays([*batch.columns, *place], schema=schema)

    def _cut(self, rows: pa.RecordBatch, lengths: Int64) -> None:
        """Lay rows into row groups, whose borders do not depend on how rows arrive."""
        ends = np.cumsum(lengths)
        first, before = 0, 0
        while first < len(lengths):
            room = ROW_GROUP_TOKENS - sum(each.tokens for each in self._waiting)
            last = int(np.searchsorted(ends, before + room, side="right"))
            last = max(last, first if self._waiting else first + 1)
            if last > first:
                tokens = int(ends[last - 1]) - before
                self._waiting.append(_Waiting(rows.slice(first, last - first), tokens))
                before += tokens
            if last < len(lengths):
                self._flush()
            first = last

    def _flush(self) -> None:
        if not self._waiting:
            return
        table: Any = _ARROW.Table.from_batches([each.rows for each in self._waiting])
        rows = table.combine_chunks().to_batches()[0]
        self._writer.write(rows, tokens=sum(each.tokens for each in self._waiting), documents=len(rows))
        self._waiting.clear()
