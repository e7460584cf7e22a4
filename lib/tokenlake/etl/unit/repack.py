"""Building a unit of a stored dataset again: its documents, packed another way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tokenlake.etl.job import Progress, RepackJob
from tokenlake.etl.step_clock import CLOCK
from tokenlake.etl.unit.opened_parents import OpenedParents
from tokenlake.etl.unit.stored_record import write_record
from tokenlake.etl.unit.stored_rows import DocumentsOut
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.reading.documents import take_documents
from tokenlake.runtime.reading.group_cache import batch_cache
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import read_record
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest


def repacked_shards(manifest: Manifest, split: str) -> tuple[ShardEntry, ...]:
    """Return the shards that are packed again: those of a split that is held out, or
    of all splits.
    """
    if split in manifest.held_out.values():
        return tuple(shard for shard in manifest.files if shard.split == split)
    return manifest.files


def repack_unit(
    job: RepackJob,
    store: Store,
    parents_store: Store,
    opened: OpenedParents,
    progress: Progress,
) -> UnitRecord:
    """Pack one unit of a parent again, split by split, in its stored order.

    Args:
        job: Job of the unit.
        store: Store of the new version.
        parents_store: Store of the parent.
        opened: Parents that stay open between jobs.
        progress: Function that receives bytes, documents and tokens.

    Raises:
        IntegrityError: The parent is damaged; the message names file and row group.
        AccountError: The written rows are not those that were read, which is a bug.
    """
    manifest = opened.manifest(parents_store, job.parent)
    splits: list[str] = []
    for shard in repacked_shards(manifest, job.parent.split):
        if shard.unit == job.parent_unit and shard.split not in splits:
            splits.append(shard.split)
    is_rendered = np.array([job.parent.name in job.out.whole])
    outputs: dict[str, DocumentsOut] = {}
    for split in splits:
        shuffle_key = _shuffle_key(job, parents_store, manifest, splits, split)
        outputs[split] = DocumentsOut(
            job, store, split, (job.source,), is_rendered, shuffle_key
        )

    def write_rows() -> None:
        for split, output in outputs.items():
            rows = opened.open(parents_store, job.parent, split)
            for group in _row_groups(rows, job.parent_unit):
                _repack_group(job, rows, group, output, progress)

    return write_record(job, job.source, list(outputs.values()), write_rows)


def _repack_group(
    job: RepackJob,
    rows: StoredRows,
    group: int,
    output: DocumentsOut,
    progress: Progress,
) -> None:
    """Write the documents of one row group."""
    count = int(rows.group_rows[group])
    source = np.zeros(count, np.int64)
    CLOCK.begin("load")
    documents = take_documents(
        [rows],
        source,
        np.full(count, group),
        np.arange(count),
        read=batch_cache(0).read,  # each row group is read once
        bos_id=job.out.prefix[0] if job.out.prefix else None,
    )
    CLOCK.begin("pack")
    tokens = output.add(documents, source)
    CLOCK.end()
    progress({"bytes": rows.bytes_of(group), "documents": count, "tokens": tokens})


def _row_groups(rows: StoredRows, unit: int) -> Iterator[int]:
    """Yield the row groups of a unit, in their stored order."""
    first = 0
    for shard in rows.manifest.files:
        if shard.split != rows.split:
            continue
        last = first + len(shard.row_groups)
        if shard.unit == unit:
            yield from range(first, last)
        first = last


def _shuffle_key(
    job: RepackJob,
    parents_store: Store,
    manifest: Manifest,
    splits: Sequence[str],
    split: str,
) -> int | None:
    """Return the key by which packed rows are shuffled; None if they are not.

    It is the key that packing the text at once would have used: the first input of the
    unit, and the number of the split among those of the source.
    """
    pack = job.out.pack
    if pack is None or pack.shuffle_seed is None:
        return None
    layout = Layout(job.parent.dataset, job.parent.version)
    record = read_record(parents_store, layout, job.parent_unit)
    first_input = (record.unit,)
    if record.inputs:
        first_input = (record.inputs[0].file_id, record.inputs[0].start)
    source = manifest.config.get("sources", {}).get(record.source, {})
    split_names = [name for name, _ in source.get("splits", ())]
    if "eval" in source:
        split_names.append(source["eval"]["split"])
    if split not in split_names:
        split_names = list(splits)
    return key_of(pack.shuffle_seed, *first_input, split_names.index(split), 0)
