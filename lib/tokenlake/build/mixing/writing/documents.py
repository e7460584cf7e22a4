"""Where mixed or repacked documents go: packed rows, or rows of their own."""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.account import Account
from tokenlake.build.mixing.job import MixJob, RepackJob, RowsOut
from tokenlake.build.mixing.writing.accounts import Ends, Shares
from tokenlake.build.writing.dealing import group_tokens
from tokenlake.build.writing.padding import Padding
from tokenlake.build.writing.parts import PartWriter
from tokenlake.build.writing.sink import Sink, TokenDocuments
from tokenlake.build.writing.sinks import PackedSink
from tokenlake.build.writing.tokensink import TokensSink
from tokenlake.errors import IntegrityError
from tokenlake.manifest import ShardEntry
from tokenlake.packing.marks import LEARNED, learned, marked
from tokenlake.reading import Documents
from tokenlake.schema import packed_schema, tokens_schema
from tokenlake.storage import Layout, Store

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
class DocumentsOut:
    """Writes documents of `tokens` datasets as a job says, each as it is stored but for the EOS that packing adds.

    Args:
        split: of the parts.
        names: of the sources that documents are counted for.
        shuffle_key: by which packed rows are shuffled inside a window, or None.
    """

    def __init__(
        self,
        job: MixJob | RepackJob,
        store: Store,
        split: str,
        names: tuple[str, ...],
        whole: Bools,
        shuffle_key: int | None,
    ) -> None:
        self._out = out = job.out
        self._whole = whole
        self.shares = Shares(names)
        # Where every document lacks its EOS, the packer lays it down while it copies.
        self._alike = out.append_eos and not whole.any()
        schema = _schema(out)
        writer = PartWriter(
            store, Layout(job.dataset, job.version), split, job.unit, schema, out.max_shard_size
        )
        if out.pack is None:
            padding = Padding("none", 0, "right", out.pad_id)
            self._sink: Sink = TokensSink(writer, schema, (), (), padding, group_tokens(None))
        else:
            suffix = (out.eos_id,) if self._alike else ()
            self._sink = PackedSink(
                writer, schema, out.pack, prefix=(), suffix=suffix, pad_id=out.pad_id, shuffle_key=shuffle_key
            )

    def add(self, documents: Documents, source: Int64) -> int:
        """Write documents, of sources that `source` (int64[n]) numbers; return how many ids they have.

        Raises:
            IntegrityError: one has no id, which no `tokens` dataset of ours has.
        """
        if not len(source):
            return 0
        ids, offsets = documents.ids, documents.offsets
        if not np.diff(offsets).all():
            raise IntegrityError(
                f"a stored document has no ids, among those from file id {documents.file[0]} on; expected some in "
                "every row. Run `tokenlake verify --deep` on the dataset"
            )
        ends = Ends.of(ids, offsets, self._whole[source], self._out)
        existing = np.zeros_like(ends.eos) if self._out.pack is None else (~ends.lacks).astype(np.int64)
        self.shares.add(source, np.diff(offsets) + ends.lacks, ends.bos, ends.eos + ends.lacks, existing)
        if self._out.loss_mask:
            ids = marked(ids, True if documents.learned is None else documents.learned)
        if not self._alike:
            ids, offsets = self._closed(ids, offsets, ends.lacks, self._whole[source])
        self._sink.add(
            TokenDocuments(ids=ids, offsets=offsets, file=documents.file, position=documents.position)
        )
        return int(documents.offsets[-1])

    def finish(self) -> list[ShardEntry]:
        """Write what is left and publish; returns the parts."""
        return self._sink.finish()

    def discard(self) -> None:
        self._sink.discard()

    @property
    def rows_of_all(self) -> Account:
        """What of the account is no one source's: the packed rows and their padding."""
        counts = self._sink.counts
        return Account(sequences=counts["sequences"], slots=counts["slots"], pad=counts["pad"])

    def _closed(self, ids: Int32, offsets: Int64, lacks: Bools, whole: Bools) -> tuple[Int32, Int64]:
        """Put an EOS behind the documents that lack it. After a rendered one it bears loss where the last id does: who
        learns the last word of an answer must learn to stop after it."""
        if not lacks.any():
            return ids, offsets
        behind = offsets[1:][lacks]
        eos = np.full(len(behind), self._out.eos_id, np.int32)
        if self._out.loss_mask:
            eos[learned(ids[behind - 1]) | ~whole[lacks]] |= LEARNED
        more = np.concatenate([np.zeros(1, np.int64), np.cumsum(lacks)])
        return np.insert(ids, behind, eos), offsets + more


def _schema(out: RowsOut) -> pa.Schema:
    if out.pack is None:
        return tokens_schema(loss_mask=out.loss_mask)
    return packed_schema(
        out.pack.seq_length, store_segment_ids=out.pack.store_segment_ids, loss_mask=out.loss_mask
    )
