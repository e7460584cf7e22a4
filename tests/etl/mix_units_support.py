"""Jobs of mixtures over the small store of :mod:`tests.reading.support`, done in
this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.reading.support import table_of
from tokenlake import Catalog
from tokenlake.config import ResolvedPack
from tokenlake.etl import InProcessPool, open_stream
from tokenlake.etl.job import MixJob, ParentVersion, RowsOut
from tokenlake.runtime.mixing import MIXTURE_ORDER, MixtureStream
from tokenlake.runtime.reading import StoredRows
from tokenlake.runtime.store import (
    MixtureOrder,
    MixtureSpec,
    Store,
    StoreAddress,
    UnitRecord,
    WeightPoint,
)

Row = dict[str, Any]


def parent(
    store: Store, name: str, split: str = "train", dataset: str | None = None
) -> ParentVersion:
    """Version 1 of a dataset, as a source of its own name."""
    manifest = Catalog(store).manifest(dataset or name, 1)
    return ParentVersion(
        name=name,
        dataset=dataset or name,
        version=1,
        sha256=manifest.sha256,
        split=split,
    )


def opened(store: Store, given: ParentVersion) -> StoredRows:
    return StoredRows(
        store, Catalog(store).manifest(given.dataset, given.version), given.split
    )


def packing(length: int, **changes: Any) -> ResolvedPack:
    fields: dict[str, Any] = {
        "width": length,
        "eos_token_id": None,
        "pad_token_id": None,
        "strategy": "greedy",
        "window_tokens": 1 << 24,
        "store_segment_ids": False,
        "include_segment_ids": True,
    }
    return ResolvedPack(**{**fields, **changes})


def rows_out(store: Store, first: ParentVersion, **changes: Any) -> RowsOut:
    """What the new rows are, with the special ids of a parent's tokenizer."""
    manifest = Catalog(store).manifest(first.dataset, 1)
    facts = next(iter(manifest.tokenizer.values()))
    pack = changes.get("pack")
    fields: dict[str, Any] = {
        "pack": None,
        "width": pack.width if pack else manifest.seq_length,
        "prefix": tuple(facts["prefix"]),
        "suffix": tuple(facts["suffix"]),
        "eos_id": facts["eos_id"],
        "pad_id": facts["eos_id"] if facts["pad_id"] is None else facts["pad_id"],
        "append_eos": pack is not None
        and tuple(facts["suffix"])[-1:] != (facts["eos_id"],),
        "whole": (),
        "loss_mask": False,
        "max_shard_size": 1 << 30,
    }
    return RowsOut(**{**fields, **changes})


def mixture(
    store: Store,
    parents: list[ParentVersion],
    weights: Mapping[str, float],
    **changes: Any,
) -> MixtureSpec:
    fields: dict[str, Any] = {
        "points": (WeightPoint(0, dict(weights)),),
        "interpolation": "step",
        "lanes": 2,
        "batch_size": 8,
        "block_size": 10,
        "step_rows": 8,
        "seed": 5,
        "stop": "restart",
        "rows": 1 << 40,
        "version": MIXTURE_ORDER,
    }
    lengths = {each.name: opened(store, each).rows for each in parents}
    return MixtureSpec(lengths=lengths, order=MixtureOrder(**{**fields, **changes}))


def mix_job(
    store: Store,
    parents: list[ParentVersion],
    spec: MixtureSpec,
    start: int,
    stop: int,
    **changes: Any,
) -> MixJob:
    fields: dict[str, Any] = {
        "store": StoreAddress(store.url),
        "parents_store": StoreAddress(store.url),
        "dataset": "mixed",
        "version": 1,
        "unit": 0,
        "fingerprint": "0" * 64,
        "level": "documents",
        "parents": tuple(parents),
        "mixture": spec,
        "start": start,
        "stop": stop,
    }
    return MixJob(**{**fields, **changes})


def run(
    job: Any,
    progress: list[dict[str, Any]] | None = None,
    pool: InProcessPool | None = None,
) -> UnitRecord:
    """Do a job as a worker does."""
    pool = pool or InProcessPool()
    sealed = pool.run(job, [].append if progress is None else progress.append)
    return UnitRecord.from_bytes(sealed.encode())


def written(
    store: Store, record: UnitRecord, dataset: str = "mixed", split: str | None = None
) -> pa.Table:
    """What a record's parts hold, read without us."""
    parts = [part for part in record.parts if split in (None, part.split)]
    return pa.concat_tables(
        pq.read_table(store.local_path(f"{dataset}/v1/{part.path}")) for part in parts
    )


def stream_of(store: Store, job: MixJob) -> MixtureStream:
    return open_stream(
        job.mixture, {each.name: opened(store, each).group_rows for each in job.parents}
    )


def walked(store: Store, job: MixJob) -> list[tuple[str, Row]]:
    """(source, row as stored) at each position of a job, one by one, each from the
    definitions.
    """
    stream = stream_of(store, job)
    rows = {each.name: opened(store, each) for each in job.parents}
    tables = {
        name: [_unpadded(row) for row in table_of(store, each).to_pylist()]
        for name, each in rows.items()
    }
    orders = dict(zip(stream.mixture.names, stream.orders, strict=True))
    found: list[tuple[str, Row]] = []
    for position in range(job.start, job.stop):
        name, epoch, index, lane = stream.mixture.at(position)
        group, row = orders[name].at(epoch, lane, np.array([index]))
        found.append(
            (name, tables[name][rows[name].row_of(int(group[0])) + int(row[0])])
        )
    return found


def _unpadded(row: Row) -> Row:
    if "attention_mask" not in row:
        return row
    held = [
        token
        for token, there in zip(row["input_ids"], row["attention_mask"], strict=True)
        if there
    ]
    return {**row, "input_ids": held}
