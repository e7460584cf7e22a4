"""A unit that packs the documents of a parent's unit again: another length, another strategy, the same documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import numpy as np

from tokenlake.etl.job import NO_ENGINE, RepackJob
from tokenlake.etl.produced_by import produced_by
from tokenlake.etl.unit.mix import Progress
from tokenlake.etl.unit.stored_rows import DocumentsOut, OpenedParents, check_written
from tokenlake.mixing.random import key_of
from tokenlake.reading.cache import GroupCache
from tokenlake.reading.gather import take_documents
from tokenlake.reading.version import StoredRows
from tokenlake.store.account import Account
from tokenlake.store.base import Store
from tokenlake.store.catalog import read_record
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import UnitRecord

_NONE: Final = 0  # bytes of decoded row groups to keep: each is read once


@final
class RepackBuild:
    """One unit of a parent while it is packed again, split by split, in the order in which it is stored."""

    def __init__(
        self, job: RepackJob, store: Store, parents_store: Store, opened: OpenedParents, progress: Progress
    ) -> None:
        self._job, self._progress = job, progress
        self._parents_store, self._opened = parents_store, opened
        manifest = opened.manifest(parents_store, job.parent)
        own = (file.split for file in manifest.files if file.unit == job.parent_unit)
        self._splits = list(dict.fromkeys(own))
        names, whole = (job.source,), np.array([job.parent.name in job.out.whole])
        self._outs = {
            split: DocumentsOut(job, store, split, names, whole, self._shuffle_key(split))
            for split in self._splits
        }

    def build(self) -> UnitRecord:
        """Write the parts and return the record, which the caller publishes; errors are those of a mixed unit."""
        job = self._job
        try:
            for split, out in self._outs.items():
                self._pack(self._opened.open(self._parents_store, job.parent, split), out)
            parts = [entry for out in self._outs.values() for entry in out.finish()]
        except BaseException:
            for out in self._outs.values():
                out.discard()
            raise
        shares = [out.shares.accounts()[job.source] for out in self._outs.values()]
        account = Account.total([*shares, *(out.rows_of_all for out in self._outs.values())])
        check_written(account, parts, job.out.seq_length, where=f"unit {job.unit}")
        return UnitRecord(
            unit=job.unit,
            fingerprint=job.fingerprint,
            source=job.source,
            inputs=(),
            parts=tuple(parts),
            account=account,
            quarantine=None,
            engine=NO_ENGINE,
            produced_by=produced_by(),
        )

    def _pack(self, rows: StoredRows, out: DocumentsOut) -> None:
        bos = self._job.out.prefix[0] if self._job.out.prefix else None
        for group in self._groups(rows):
            count = int(rows.group_rows[group])
            source = np.zeros(count, np.int64)
            place = source, np.full(count, group), np.arange(count)
            tokens = out.add(take_documents([rows], *place, cache=GroupCache(_NONE), bos_id=bos), source)
            self._progress({"bytes": rows.bytes_of(group), "documents": count, "tokens": tokens})

    def _groups(self, rows: StoredRows) -> Iterator[int]:
        """Yield the row groups of the unit, in the order in which they are stored."""
        first = 0
        for shard in rows.manifest.files:
            if shard.split == rows.split:
                last = first + len(shard.row_groups)
                yield from range(first, last) if shard.unit == self._job.parent_unit else ()
                first = last

    def _shuffle_key(self, split: str) -> int | None:
        """The key by which packed rows are shuffled: the one that packing the text at once would have taken."""
        pack, parent = self._job.out.pack, self._job.parent
        if pack is None or pack.shuffle_seed is None:
            return None
        record = read_record(
            self._parents_store, Layout(parent.dataset, parent.version), self._job.parent_unit
        )
        first = (record.inputs[0].file_id, record.inputs[0].start) if record.inputs else (record.unit,)
        sources = self._opened.manifest(self._parents_store, parent).config.get("sources", {})
        named = [name for name, _ in sources.get(record.source, {}).get("splits", ())]
        number = (named if split in named else self._splits).index(split)
        return key_of(pack.shuffle_seed, *first, number, 0)
