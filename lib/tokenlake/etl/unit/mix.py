"""Building units of stored rows: the rows at some positions of a mixture, or the documents of a unit packed again.

Neighbouring positions come from all lanes of all sources, so that many row groups are open at a time. Each is decoded
when the first of its rows is needed and dropped after the last one: what is held is the windows of the lanes, however
large the parents are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import numpy as np

from tokenlake.arrays import Int64
from tokenlake.etl.job import CLOCK, NO_ENGINE, MixJob, RepackJob, open_stream, produced_by
from tokenlake.etl.unit.stored_rows import DocumentsOut, OpenedParents, SequencesOut, check_written
from tokenlake.mixing.mixture import SourceMixture
from tokenlake.mixing.random import key_of
from tokenlake.mixing.stream import MixtureStream, StreamRows
from tokenlake.reading.cache import batch_cache
from tokenlake.reading.gather import take_documents, take_packed
from tokenlake.reading.version import StoredRows
from tokenlake.schema import row_group_rows
from tokenlake.store.account import Account
from tokenlake.store.base import Store
from tokenlake.store.catalog import read_record
from tokenlake.store.entries import ShardEntry
from tokenlake.store.layout import Layout
from tokenlake.store.ledger import MIXED, UnitRecord
from tokenlake.store.manifest import Manifest

_LOOKED_AT: Final = 1 << 18  # positions worked out at a time


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


@final
class Agenda:
    """The steps of a unit.

    Holds some bytes for each row of the unit: where its rows lie is worked out once, and what is needed last can only
    be known when all of it is.

    Args:
        stream: the order.
        start, stop: positions of the unit.
        step_rows: positions of a step; the last may have fewer.
    """

    def __init__(self, stream: MixtureStream, start: int, stop: int, step_rows: int) -> None:
        size = stop - start
        self._step_rows = step_rows
        self._source = np.empty(size, np.int16)
        self._group, self._row = np.empty((2, size), np.int32)
        uses: list[_Uses] = []
        at_once = -(-_LOOKED_AT // step_rows) * step_rows
        for first in range(0, size, at_once):
            last = min(first + at_once, size)
            found = stream.rows(start + first, start + last)
            own = slice(first, last)
            self._source[own], self._group[own], self._row[own] = found.source, found.group, found.row
            lane = stream.lanes(start + first, start + last)
            step = np.arange(first, last) // step_rows
            uses.append(_Uses.of(found, lane, step))
        self._done = _ends(_Uses.joined(uses)) if uses else {}

    def __iter__(self) -> Iterator[MixStep]:
        for number, first in enumerate(range(0, len(self._source), self._step_rows)):
            own = slice(first, first + self._step_rows)
            columns = (column[own].astype(np.int64) for column in (self._source, self._group, self._row))
            yield MixStep(*columns, done=self._done.get(number, ()))


@final
@dataclass(frozen=True, slots=True)
class _Uses:
    """From which step to which a lane needs a row group in an epoch.

    A row group on the border of two lanes is needed at the beginning of one and at the end of the other, and a small
    source comes again in every epoch: each such use is one of its own, so that nothing is held between them.

    Attributes:
        source, group, epoch, lane: of each, int64[n].
        first, last: steps, int64[n].
    """

    source: Int64
    group: Int64
    epoch: Int64
    lane: Int64
    first: Int64
    last: Int64

    @classmethod
    def of(cls, rows: StreamRows, lane: Int64, step: Int64) -> _Uses:
        """Return the uses of neighbouring rows; the step of each ascends."""
        columns = (rows.source, rows.group, rows.epoch, lane, step)
        lows = [int(column.min()) for column in columns]
        sizes = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
        # Fits: so many rows have at most so many lanes, epochs and steps.
        distinct = np.unique(
            np.ravel_multi_index([c - low for c, low in zip(columns, lows, strict=True)], sizes)
        )
        found = np.unravel_index(distinct, sizes)
        source, group, epoch, lanes, steps = (index + low for index, low in zip(found, lows, strict=True))
        return cls(source, group, epoch, lanes, steps, steps)

    @classmethod
    def joined(cls, parts: list[_Uses]) -> _Uses:
        """Return all of them, those of one lane, row group and epoch as one."""
        source, group, epoch, lane, first, last = (
            np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__
        )
        order = np.lexsort((lane, epoch, group, source))
        keys = np.stack([source, group, epoch, lane])[:, order]
        begins = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
        source, group, epoch, lane = keys[:, begins]
        begin, end = np.minimum.reduceat(first[order], begins), np.maximum.reduceat(last[order], begins)
        return cls(source, group, epoch, lane, begin, end)


def _ends(uses: _Uses) -> dict[int, tuple[tuple[int, int], ...]]:
    """Return step -> the row groups to let go after it: those that neither it nor the next step is in a use of."""
    found: dict[int, list[tuple[int, int]]] = {}
    order = np.lexsort((uses.first, uses.group, uses.source))
    source, group, first, last = (
        column[order] for column in (uses.source, uses.group, uses.first, uses.last)
    )
    begins = np.flatnonzero(np.append(True, (np.diff(source) != 0) | (np.diff(group) != 0)))
    for begin, end in pairwise([*begins.tolist(), len(order)]):
        # Until which step any use so far goes on; where the next begins only later, the row group is let go.
        until = np.maximum.accumulate(last[begin:end])
        gaps = np.flatnonzero(first[begin + 1 : end] > until[:-1] + 1)
        for step in (*until[gaps].tolist(), int(until[-1])):
            found.setdefault(step, []).append((int(source[begin]), int(group[begin])))
    return {step: tuple(places) for step, places in found.items()}


Progress = Callable[[dict[str, Any]], None]

SPLIT: Final = "train"
"""A mixture is made to be trained on, whatever the splits of the parents are called."""

_STEP_TOKENS: Final = 1 << 23  # gathered at a time: 32 MiB, and as much again on the way to the file
_LEAST_ROWS: Final = 64
_MOST_ROWS: Final = 1 << 18
_UNBOUNDED: Final = 1 << 62  # the agenda says when a row group is let go


@final
class MixBuild:
    """One unit of a mixture while it is being built.

    What it holds in memory are the windows of all lanes of all sources, and some bytes for each of its own rows; it
    does not grow with the parents.
    """

    def __init__(
        self, job: MixJob, store: Store, parents_store: Store, opened: OpenedParents, progress: Progress
    ) -> None:
        self._job, self._progress = job, progress
        parents = {parent.name: parent for parent in job.parents}
        rows = {name: opened.open(parents_store, parent) for name, parent in parents.items()}
        self._stream = open_stream(job.mixture, {name: each.group_rows for name, each in rows.items()})
        self._names = self._stream.mixture.names
        self._rows = [rows[name] for name in self._names]
        self._cache = batch_cache(_UNBOUNDED)
        self._bos = job.out.prefix[0] if job.out.prefix else None
        totals = [each.manifest.splits[each.split] for each in self._rows]
        self._row_bytes = np.array([total.bytes / max(1, total.rows) for total in totals])
        if job.level == "sequences":
            self._out: SequencesOut | DocumentsOut = SequencesOut(job, store, SPLIT, self._names)
        else:
            whole = np.isin(self._names, job.out.whole)
            self._out = DocumentsOut(job, store, SPLIT, self._names, whole, _shuffle_key(job))

    def build(self) -> UnitRecord:
        """Write the parts and return the record, which the caller publishes.

        Raises:
            IntegrityError: a parent is damaged; names file and row group.
            AccountError: what was written is not what was read, which would be a bug.
        """
        return _record_of(self._job, MIXED, [self._out], self._write)

    def _write(self) -> None:
        job, told = self._job, 0
        taken = np.zeros(len(self._rows), np.int64)
        CLOCK.switch("mix")
        for step in Agenda(self._stream, job.start, job.stop, self._step_rows()):
            tokens = self._take(step)
            CLOCK.switch("mix")
            for source, group in step.done:
                self._cache.groups.invalidate((self._rows[source], group))
            taken += np.bincount(step.source, minlength=len(taken))
            more, told = int(taken @ self._row_bytes) - told, int(taken @ self._row_bytes)
            decoded = self._cache.decoded.rows
            self._progress({"bytes": more, "documents": len(step), "tokens": tokens, "decoded_rows": decoded})

    def _take(self, step: MixStep) -> int:
        """Read and write the rows of a step; return how many ids they have."""
        CLOCK.switch("load")
        place = (self._rows, step.source, step.group, step.row)
        if isinstance(self._out, SequencesOut):
            rows = take_packed(*place, cache=self._cache, bos_id=self._bos)
            CLOCK.switch("pack")
            return self._out.add(rows, step.source)
        documents = take_documents(*place, cache=self._cache, bos_id=self._bos)
        CLOCK.switch("pack")
        return self._out.add(documents, step.source)

    def _step_rows(self) -> int:
        """So many rows that a step has about its tokens; whole row groups where rows are sequences.

        A function of the job alone: where rows are documents, row groups end with steps.
        """
        if (length := self._job.out.width) and self._job.level == "sequences":
            group = row_group_rows(length)
            return max(1, _STEP_TOKENS // (group * length)) * group
        tokens, rows = _expected(self._stream.mixture, self._rows, self._job.start, self._job.stop)
        return max(_LEAST_ROWS, min(_MOST_ROWS, _STEP_TOKENS * rows // max(1, tokens)))


def _expected(mixture: SourceMixture, parents: list[StoredRows], start: int, stop: int) -> tuple[int, int]:
    """Return how many tokens rows ``start .. stop`` will have, by the means of their sources, and how many they are."""
    drawn = (mixture.drawn_before(stop) - mixture.drawn_before(start)).tolist()
    totals = [rows.manifest.splits[rows.split] for rows in parents]
    tokens = sum(
        count * total.tokens // max(1, total.rows) for count, total in zip(drawn, totals, strict=True)
    )
    return tokens, stop - start


def _shuffle_key(job: MixJob) -> int | None:
    """The key by which packed rows are shuffled; it names the unit by where it begins, as nothing else does."""
    pack = job.out.pack
    return None if pack is None or pack.shuffle_seed is None else key_of(pack.shuffle_seed, job.start)


def _record_of(
    job: MixJob | RepackJob,
    source: str,
    outs: Sequence[DocumentsOut | SequencesOut],
    write: Callable[[], None],
) -> UnitRecord:
    """Have the rows of a unit written, finish its parts and return its record."""
    try:
        write()
        parts = [entry for out in outs for entry in out.finish()]
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


_NONE: Final = 0  # bytes of decoded row groups to keep: each is read once


def repacked_shards(manifest: Manifest, split: str) -> tuple[ShardEntry, ...]:
    """Return the shards that are packed again: those of a split that is held out, or of all splits."""
    if split in manifest.held_out.values():
        return tuple(shard for shard in manifest.files if shard.split == split)
    return manifest.files


@final
class RepackBuild:
    """One unit of a parent while it is packed again, split by split, in the order in which it is stored."""

    def __init__(
        self, job: RepackJob, store: Store, parents_store: Store, opened: OpenedParents, progress: Progress
    ) -> None:
        self._job, self._progress = job, progress
        self._parents_store, self._opened = parents_store, opened
        manifest = opened.manifest(parents_store, job.parent)
        shards = repacked_shards(manifest, job.parent.split)
        self._splits = list(dict.fromkeys(shard.split for shard in shards if shard.unit == job.parent_unit))
        names, whole = (job.source,), np.array([job.parent.name in job.out.whole])
        self._outs = {
            split: DocumentsOut(job, store, split, names, whole, self._shuffle_key(split))
            for split in self._splits
        }

    def build(self) -> UnitRecord:
        """Write the parts and return the record, which the caller publishes; errors are those of a mixed unit."""
        return _record_of(self._job, self._job.source, list(self._outs.values()), self._write)

    def _write(self) -> None:
        for split, out in self._outs.items():
            self._pack(self._opened.open(self._parents_store, self._job.parent, split), out)

    def _pack(self, rows: StoredRows, out: DocumentsOut) -> None:
        bos = self._job.out.prefix[0] if self._job.out.prefix else None
        for group in self._groups(rows):
            count = int(rows.group_rows[group])
            source = np.zeros(count, np.int64)
            place = source, np.full(count, group), np.arange(count)
            CLOCK.switch("load")
            documents = take_documents([rows], *place, cache=batch_cache(_NONE), bos_id=bos)
            CLOCK.switch("pack")
            tokens = out.add(documents, source)
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
        source = sources.get(record.source, {})
        named = [name for name, _ in source.get("splits", ())]
        named += [source["eval"]["split"]] if "eval" in source else []
        number = (named if split in named else self._splits).index(split)
        return key_of(pack.shuffle_seed, *first, number, 0)
