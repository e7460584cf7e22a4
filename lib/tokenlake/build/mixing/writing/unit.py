"""A unit of a mixture: the rows at some positions of it, taken from the parents and written in that order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.account import Account
from tokenlake.build.mixing.job import MixJob
from tokenlake.build.mixing.order import open_stream
from tokenlake.build.mixing.writing.accounts import check_written
from tokenlake.build.mixing.writing.agenda import Agenda, Step
from tokenlake.build.mixing.writing.documents import DocumentsOut
from tokenlake.build.mixing.writing.opened import OpenedParents
from tokenlake.build.mixing.writing.sequences import SequencesOut
from tokenlake.build.produced import produced_by
from tokenlake.manifest import ShardEntry, UnitRecord
from tokenlake.manifest.record import MIXED
from tokenlake.mixing import Mixture
from tokenlake.order import key_of
from tokenlake.reading import GroupCache, StoredRows, take_documents, take_packed
from tokenlake.schema import row_group_rows
from tokenlake.storage import Store

Progress = Callable[[dict[str, Any]], None]
Int64 = npt.NDArray[np.int64]

SPLIT: Final = "train"
"""A mixture is made to be trained on, whatever the splits of the parents are called."""

NO_ENGINE: Final = "none"
"""What a record says of the tokenizer engine where nothing was tokenized."""

_STEP_TOKENS: Final = 1 << 23  # gathered at a time: 32 MiB, and as much again on the way to the file
_LEAST_ROWS: Final = 64
_MOST_ROWS: Final = 1 << 18
_UNBOUNDED: Final = 1 << 62  # the agenda says when a row group is let go


@final
class MixUnit:
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
        self._cache = GroupCache(_UNBOUNDED)
        self._bos = job.out.prefix[0] if job.out.prefix else None
        self._meter = _Meter(self._rows)
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
        job = self._job
        try:
            parts = self._write()
        except BaseException:
            self._out.discard()
            raise
        shares = self._out.shares.accounts()
        account = Account.total([*shares.values(), self._out.rows_of_all])
        check_written(account, parts, job.out.seq_length, where=f"unit {job.unit}")
        return UnitRecord(
            unit=job.unit,
            fingerprint=job.fingerprint,
            source=MIXED,
            inputs=(),
            parts=tuple(parts),
            account=account,
            shares=shares,
            quarantine=None,
            engine=NO_ENGINE,
            produced_by=produced_by(),
        )

    def _write(self) -> list[ShardEntry]:
        job = self._job
        for step in Agenda(self._stream, job.start, job.stop, self._step_rows()):
            tokens = self._take(step)
            for source, group in step.done:
                self._cache.drop(self._rows[source], group)
            more = self._meter.read(step.source)
            decoded = self._cache.decoded.rows
            self._progress({"bytes": more, "documents": len(step), "tokens": tokens, "decoded_rows": decoded})
        return self._out.finish()

    def _take(self, step: Step) -> int:
        """Read and write the rows of a step; return how many ids they have."""
        place = (self._rows, step.source, step.group, step.row)
        if isinstance(self._out, SequencesOut):
            return self._out.add(take_packed(*place, cache=self._cache, bos_id=self._bos), step.source)
        return self._out.add(take_documents(*place, cache=self._cache, bos_id=self._bos), step.source)

    def _step_rows(self) -> int:
        """So many rows that a step has about its tokens; whole row groups where rows are sequences.

        A function of the job alone: where rows are documents, row groups end with steps.
        """
        if (length := self._job.out.seq_length) and self._job.level == "sequences":
            group = row_group_rows(length)
            return max(1, _STEP_TOKENS // (group * length)) * group
        tokens, rows = _expected(self._stream.mixture, self._rows, self._job.start, self._job.stop)
        return max(_LEAST_ROWS, min(_MOST_ROWS, _STEP_TOKENS * rows // max(1, tokens)))


@final
class _Meter:
    """Turns rows that were taken into bytes of the parents, as the plan counted them."""

    def __init__(self, parents: list[StoredRows]) -> None:
        totals = [rows.manifest.splits[rows.split] for rows in parents]
        self._bytes = [total.bytes for total in totals]
        self._rows = [max(1, total.rows) for total in totals]
        self._taken = np.zeros(len(parents), np.int64)
        self._told = 0

    def read(self, source: Int64) -> int:
        """Return how many bytes more rows of these sources (int64[n]) stand for."""
        self._taken += np.bincount(source, minlength=len(self._taken))
        each = zip(self._taken.tolist(), self._bytes, self._rows, strict=True)
        told, self._told = self._told, sum(taken * size // rows for taken, size, rows in each)
        return self._told - told


def _expected(mixture: Mixture, parents: list[StoredRows], start: int, stop: int) -> tuple[int, int]:
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
