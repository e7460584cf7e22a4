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
    """Return the shards that are packed again.

    They are those of a split that is held out, or of all splits.
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
    # 1. The splits that the unit of the parent has, and an output for each.
    manifest = opened.manifest(parents_store, job.parent)
    splits: list[str] = []
    for shard in repacked_shards(manifest, job.parent.split):
        if shard.unit == job.parent_unit and shard.split not in splits:
            splits.append(shard.split)
    is_rendered = np.array([job.parent.name in job.out.whole])
    outputs: dict[str, DocumentsOut] = {}
    for split_name in splits:
        shuffle_key = _shuffle_key(job, parents_store, manifest, splits, split_name)
        outputs[split_name] = DocumentsOut(
            job, store, split_name, (job.source,), is_rendered, shuffle_key
        )

    # 2. Each split is read and written by itself.
    def write_rows() -> None:
        for split_name, output in outputs.items():
            rows = opened.open(parents_store, job.parent, split_name)
            for row_group in _row_groups(rows, job.parent_unit):
                _repack_group(job, rows, row_group, output, progress)

    return write_record(job, job.source, list(outputs.values()), write_rows)


def _repack_group(
    job: RepackJob,
    rows: StoredRows,
    group: int,
    output: DocumentsOut,
    progress: Progress,
) -> None:
    """Write the documents of one row group."""
    document_count = int(rows.group_rows[group])
    source = np.zeros(document_count, np.int64)
    CLOCK.begin("load")
    documents = take_documents(
        [rows],
        source,
        np.full(document_count, group),
        np.arange(document_count),
        read=batch_cache(0).read,  # each row group is read once
        bos_id=job.out.prefix[0] if job.out.prefix else None,
    )
    CLOCK.begin("pack")
    tokens = output.add(documents, source)
    CLOCK.end()
    progress(
        {
            "bytes": rows.bytes_of(group),
            "documents": document_count,
            "tokens": tokens,
        }
    )


def _row_groups(rows: StoredRows, unit: int) -> Iterator[int]:
    """Yield the row groups of a unit, in their stored order."""
    # Row groups are numbered in the order of the split's shards.
    first_group = 0
    for shard in rows.manifest.files:
        if shard.split != rows.split:
            continue
        end_group = first_group + len(shard.row_groups)
        if shard.unit == unit:
            yield from range(first_group, end_group)
        first_group = end_group


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
    # A unit without inputs, as of a mixture, is named by its number.
    first_input = (record.unit,)
    if record.inputs:
        first_input = (record.inputs[0].file_id, record.inputs[0].start)
    source = manifest.config.get("sources", {}).get(record.source, {})
    split_names = [name for name, _ in source.get("splits", ())]
    if "eval" in source:
        split_names.append(source["eval"]["split"])
    # A version whose manifest lists no splits has those of its shards.
    if split not in split_names:
        split_names = list(splits)
    return key_of(pack.shuffle_seed, *first_input, split_names.index(split), 0)
