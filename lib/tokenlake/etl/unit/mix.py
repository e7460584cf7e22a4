"""Building units of stored rows: the rows at some positions of a mixture, or the documents of a unit packed again.

Neighbouring positions come from all lanes of all sources, so that many row groups are open at a time. Each is decoded
when the first of its rows is needed and dropped after the last one: what is held is the windows of the lanes, however
large the parents are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.job import NO_ENGINE, MixJob, Progress, RepackJob, open_stream, produced_by
from tokenlake.etl.step_clock import CLOCK
from tokenlake.etl.unit.stored_rows import DocumentsOut, OpenedParents, SequencesOut, check_written
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.mixing.streams import MixtureStream
from tokenlake.runtime.reading.documents import take_documents
from tokenlake.runtime.reading.group_cache import batch_cache
from tokenlake.runtime.reading.packed_batches import take_packed
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.schema import row_group_rows
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import read_record
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import MIXED, ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest

SPLIT: Final = "train"
"""A mixture is made to be trained on, whatever the splits of the parents are called."""

_LOOKED_AT: Final = 1 << 18  # positions worked out at a time
_STEP_TOKENS: Final = 1 << 23  # gathered at a time: 32 MiB, and as much again on the way to the file
_LEAST_ROWS: Final = 64
_MOST_ROWS: Final = 1 << 18
_UNBOUNDED: Final = 1 << 62  # bytes of row groups to keep: the steps say when one is let go


@final
@dataclass(frozen=True, slots=True)
class MixStep:
    """Some neighbouring positions of a unit.

    Attributes:
        source, group, row: of each, int64[n].
        done: (source, row group) that no later step needs soon.
    """

    source: Int64
    group: Int64
    row: Int64
    done: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.source)


def mix_steps(stream: MixtureStream, start: int, stop: int, step_rows: int) -> Iterator[MixStep]:
    """Yield the steps of a unit.

    Holds some bytes for each row of the unit: where its rows lie is worked out once, and what is needed last can only
    be known when all of it is.

    Args:
        stream: the order.
        start, stop: positions of the unit.
        step_rows: positions of a step; the last may have fewer.
    """
    size = stop - start
    sources = np.empty(size, np.int16)
    groups, rows = np.empty((2, size), np.int32)
    uses: list[Int64] = []
    at_once = -(-_LOOKED_AT // step_rows) * step_rows
    for first in range(0, size, at_once):
        last = min(first + at_once, size)
        found, own = stream.rows(start + first, start + last), slice(first, last)
        sources[own], groups[own], rows[own] = found.source, found.group, found.row
        lane, step = stream.lanes(start + first, start + last), np.arange(first, last) // step_rows
        uses.append(_distinct(found.source, found.group, found.epoch, lane, step))
    done = _let_go(np.concatenate(uses, axis=1)) if uses else {}
    for number, first in enumerate(range(0, size, step_rows)):
        own = slice(first, first + step_rows)
        columns = (column[own].astype(np.int64) for column in (sources, groups, rows))
        yield MixStep(*columns, done=done.get(number, ()))


def _distinct(*columns: Int64) -> Int64:
    """Return the distinct ones of n places, each a number of every column, int64[columns, m]."""
    lows = [int(column.min()) for column in columns]
    sizes = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
    # Fits: so many rows have at most so many lanes, epochs and steps.
    places = np.ravel_multi_index([c - low for c, low in zip(columns, lows, strict=True)], sizes)
    found = np.unravel_index(np.unique(places), sizes)
    return np.stack([index + low for index, low in zip(found, lows, strict=True)])


def _let_go(uses: Int64) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return step -> the row groups to let go after it: those that neither it nor the next step is in a use of.

    A use is from the first to the last step in which a lane needs a row group in an epoch. A row group on the border of
    two lanes is needed at the beginning of one and at the end of the other, and a small source comes again in every
    epoch: each is a use of its own, so that nothing is held between them.

    Args:
        uses: source, group, epoch, lane and step of what is needed, int64[5, n].
    """
    uses = uses[:, np.lexsort(uses[3::-1])]
    begins = np.flatnonzero(np.append(True, (np.diff(uses[:4]) != 0).any(axis=0)))
    firsts, lasts = np.minimum.reduceat(uses[4], begins), np.maximum.reduceat(uses[4], begins)
    order = np.lexsort((firsts, *uses[1::-1, begins]))
    source, group = uses[:2, begins][:, order]
    first, last = firsts[order], lasts[order]
    found: dict[int, list[tuple[int, int]]] = {}
    begins = np.flatnonzero(np.append(True, (np.diff(source) != 0) | (np.diff(group) != 0)))
    for begin, end in pairwise([*begins.tolist(), len(order)]):
        # Until which step any use so far goes on; where the next begins only later, the row group is let go.
        until = np.maximum.accumulate(last[begin:end])
        gaps = np.flatnonzero(first[begin + 1 : end] > until[:-1] + 1)
        for step in (*until[gaps].tolist(), int(until[-1])):
            found.setdefault(step, []).append((int(source[begin]), int(group[begin])))
    return {step: tuple(places) for step, places in found.items()}


def mix_unit(
    job: MixJob, store: Store, parents_store: Store, opened: OpenedParents, progress: Progress
) -> UnitRecord:
    """Write the parts of one unit of a mixture and return its record, which the caller publishes.

    What it holds in memory are the windows of all lanes of all sources, and some bytes for each of its own rows; it
    does not grow with the parents.

    Raises:
        IntegrityError: a parent is damaged; names file and row group.
        AccountError: what was written is not what was read, which would be a bug.
    """
    opened_rows = {parent.name: opened.open(parents_store, parent) for parent in job.parents}
    stream = open_stream(job.mixture, {name: each.group_rows for name, each in opened_rows.items()})
    names, pack = stream.mixture.names, job.out.pack
    rows, cache = [opened_rows[name] for name in names], batch_cache(_UNBOUNDED)
    bos = job.out.prefix[0] if job.out.prefix else None
    # The key by which packed rows are shuffled names the unit by where it begins, as nothing else does.
    key = None if pack is None or pack.shuffle_seed is None else key_of(pack.shuffle_seed, job.start)
    if job.level == "sequences":
        out: SequencesOut | DocumentsOut = SequencesOut(job, store, SPLIT, names)
    else:
        out = DocumentsOut(job, store, SPLIT, names, np.isin(names, job.out.whole), key)

    def take(step: MixStep) -> int:
        """Read and write the rows of a step; return how many ids they have."""
        place = (rows, step.source, step.group, step.row)
        if isinstance(out, SequencesOut):
            found = take_packed(*place, read=cache.read, bos_id=bos)
            CLOCK.begin("pack")
            return out.add(found, step.source)
        documents = take_documents(*place, read=cache.read, bos_id=bos)
        CLOCK.begin("pack")
        return out.add(documents, step.source)

    def write() -> None:
        totals = [each.manifest.splits[each.split] for each in rows]
        row_bytes = np.array([total.bytes / max(1, total.rows) for total in totals])
        taken, told = np.zeros(len(rows), np.int64), 0
        CLOCK.begin("mix")
        for step in mix_steps(stream, job.start, job.stop, _step_rows(job, stream.mixture, rows)):
            CLOCK.begin("load")
            tokens = take(step)
            CLOCK.begin("mix")
            for source, group in step.done:
                cache.groups.invalidate((rows[source], group))
            taken += np.bincount(step.source, minlength=len(taken))
            more, told = int(taken @ row_bytes) - told, int(taken @ row_bytes)
            counts = {"documents": len(step), "tokens": tokens, "decoded_rows": cache.decoded.rows}
            progress({"bytes": more, **counts})

    return _record_of(job, MIXED, [out], write)


def _step_rows(job: MixJob, mixture: SourceMixture, parents: Sequence[StoredRows]) -> int:
    """So many rows that a step has about its tokens; whole row groups where rows are sequences.

    A function of the job alone: where rows are documents, row groups end with steps.
    """
    if (length := job.out.width) and job.level == "sequences":
        group = row_group_rows(length)
        return max(1, _STEP_TOKENS // (group * length)) * group
    # How many tokens its rows will have, by the means of their sources.
    drawn = (mixture.drawn_before(job.stop) - mixture.drawn_before(job.start)).tolist()
    totals = [rows.manifest.splits[rows.split] for rows in parents]
    tokens = sum(
        count * total.tokens // max(1, total.rows) for count, total in zip(drawn, totals, strict=True)
    )
    return max(_LEAST_ROWS, min(_MOST_ROWS, _STEP_TOKENS * (job.stop - job.start) // max(1, tokens)))


def _record_of(
    job: MixJob | RepackJob,
    source: str,
    outs: Sequence[DocumentsOut | SequencesOut],
    write: Callable[[], None],
) -> UnitRecord:
    """Have the rows of a unit written, finish its parts and return its record."""
    try:
        write()
        CLOCK.begin("pack")
        parts = [entry for out in outs for entry in out.finish()]
        CLOCK.end()
    except BaseException:
        for out in outs:
            out.discard()
        raise
    accounts = [out.shares.accounts() for out in outs]
    rest = [out.rows_of_all for out in outs]
    account = Account.total([*(each for found in accounts for each in found.values()), *rest])
    check_written(account, parts, job.out.width, where=f"unit {job.unit}")
    return UnitRecord(
        unit=job.unit,
        fingerprint=job.fingerprint,
        source=source,
        inputs=(),
        parts=tuple(parts),
        account=account,
        shares=accounts[0] if source == MIXED else {},
        quarantine=None,
        engine=NO_ENGINE,
        produced_by=produced_by(),
    )


def repacked_shards(manifest: Manifest, split: str) -> tuple[ShardEntry, ...]:
    """Return the shards that are packed again: those of a split that is held out, or of all splits."""
    if split in manifest.held_out.values():
        return tuple(shard for shard in manifest.files if shard.split == split)
    return manifest.files


def repack_unit(
    job: RepackJob, store: Store, parents_store: Store, opened: OpenedParents, progress: Progress
) -> UnitRecord:
    """Pack one unit of a parent again, split by split, in the order in which it is stored; errors as of a mixture."""
    manifest = opened.manifest(parents_store, job.parent)
    shards = [each for each in repacked_shards(manifest, job.parent.split) if each.unit == job.parent_unit]
    splits = list(dict.fromkeys(shard.split for shard in shards))
    whole = np.array([job.parent.name in job.out.whole])
    outs = {
        split: DocumentsOut(
            job,
            store,
            split,
            (job.source,),
            whole,
            _key_as_at_once(job, parents_store, manifest, splits, split),
        )
        for split in splits
    }
    bos = job.out.prefix[0] if job.out.prefix else None

    def write() -> None:
        for split, out in outs.items():
            rows = opened.open(parents_store, job.parent, split)
            for group in _groups(rows, job.parent_unit):
                count = int(rows.group_rows[group])
                source = np.zeros(count, np.int64)
                CLOCK.begin("load")
                place = source, np.full(count, group), np.arange(count)
                documents = take_documents(
                    [rows], *place, read=batch_cache(0).read, bos_id=bos
                )  # each is read once
                CLOCK.begin("pack")
                tokens = out.add(documents, source)
                CLOCK.end()
                progress({"bytes": rows.bytes_of(group), "documents": count, "tokens": tokens})

    return _record_of(job, job.source, list(outs.values()), write)


def _groups(rows: StoredRows, unit: int) -> Iterator[int]:
    """Yield the row groups of a unit, in the order in which they are stored."""
    first = 0
    for shard in rows.manifest.files:
        if shard.split == rows.split:
            last = first + len(shard.row_groups)
            yield from range(first, last) if shard.unit == unit else ()
            first = last


def _key_as_at_once(
    job: RepackJob, parents_store: Store, manifest: Manifest, splits: Sequence[str], split: str
) -> int | None:
    """The key by which packed rows are shuffled: the one that packing the text at once would have taken."""
    pack, parent = job.out.pack, job.parent
    if pack is None or pack.shuffle_seed is None:
        return None
    record = read_record(parents_store, Layout(parent.dataset, parent.version), job.parent_unit)
    first = (record.inputs[0].file_id, record.inputs[0].start) if record.inputs else (record.unit,)
    source = manifest.config.get("sources", {}).get(record.source, {})
    named = [name for name, _ in source.get("splits", ())]
    named += [source["eval"]["split"]] if "eval" in source else []
    number = (named if split in named else splits).index(split)
    return key_of(pack.shuffle_seed, *first, number, 0)
