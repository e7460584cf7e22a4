"""Building a unit of a mixture: rows at some positions, written in their order.

The rows are gathered from the parents. Held in memory are the windows of all lanes of
all sources, and some bytes for each row of the unit, however large the parents are. See
:mod:`tokenlake.etl.unit.row_steps` for the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import numpy as np

from tokenlake.etl.job import MixJob, Progress, open_stream
from tokenlake.etl.step_clock import CLOCK
from tokenlake.etl.unit.opened_parents import OpenedParents
from tokenlake.etl.unit.row_steps import MixStep, mix_steps
from tokenlake.etl.unit.stored_record import write_record
from tokenlake.etl.unit.stored_rows import DocumentsOut, SequencesOut
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.random import key_of
from tokenlake.runtime.reading.documents import take_documents
from tokenlake.runtime.reading.group_cache import batch_cache
from tokenlake.runtime.reading.packed_batches import take_packed
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.schema import row_group_rows
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.ledger import MIXED, UnitRecord

SPLIT: Final = "train"
"""Split of a mixture, which is made to be trained on, whatever the splits of the
parents are called.
"""

_STEP_TOKENS: Final = 1 << 23
"""Tokens gathered at a time: 32 MiB, and as much again on the way to the file."""

_LEAST_ROWS: Final = 64
_MOST_ROWS: Final = 1 << 18
"""Bounds of the rows of a step, if rows are documents: few long ones, many short ones."""

_UNBOUNDED: Final = 1 << 62
"""Bytes of row groups that the cache may keep: the steps say when a row group is let
go.
"""


def mix_unit(
    job: MixJob,
    store: Store,
    parents_store: Store,
    opened: OpenedParents,
    progress: Progress,
) -> UnitRecord:
    """Write the parts of one unit of a mixture and return its record.

    The caller publishes the record.

    Args:
        job: Job of the unit.
        store: Store of the mixture.
        parents_store: Store of the parents.
        opened: Parents that stay open between jobs.
        progress: Function that receives bytes, documents, tokens and decoded rows.

    Raises:
        IntegrityError: A parent is damaged; the message names file and row group.
        AccountError: The written rows are not those that were read, which is a bug.
    """
    build = _MixBuild(job, store, parents_store, opened, progress)
    return write_record(job, MIXED, [build.output], build.write)


@final
class _MixBuild:
    """A unit of a mixture while it is being built; arguments as of :func:`mix_unit`."""

    def __init__(
        self,
        job: MixJob,
        store: Store,
        parents_store: Store,
        opened: OpenedParents,
        progress: Progress,
    ) -> None:
        self._job = job
        self._progress = progress
        # 1. The parents, in the order of the mixture.
        rows_by_name: dict[str, StoredRows] = {}
        for parent in job.parents:
            rows_by_name[parent.name] = opened.open(parents_store, parent)
        group_rows = {name: rows.group_rows for name, rows in rows_by_name.items()}
        self._stream = open_stream(job.mixture, group_rows)
        names = self._stream.mixture.names
        self._rows = [rows_by_name[name] for name in names]
        self._cache = batch_cache(_UNBOUNDED)
        self._bos_id = job.out.prefix[0] if job.out.prefix else None
        # 2. The output: packed rows as they are, or documents.
        self.output: SequencesOut | DocumentsOut
        if job.level == "sequences":
            self.output = SequencesOut(job, store, SPLIT, names)
        else:
            is_rendered = np.isin(names, job.out.whole)
            self.output = DocumentsOut(
                job, store, SPLIT, names, is_rendered, _shuffle_key(job)
            )

    def write(self) -> None:
        """Write all rows of the unit, step by step."""
        # Progress is told in stored bytes: the mean bytes of a row of each source.
        row_bytes = np.empty(len(self._rows), np.float64)
        for source, rows in enumerate(self._rows):
            totals = rows.manifest.splits[rows.split]
            row_bytes[source] = totals.bytes / max(1, totals.rows)
        rows_done = np.zeros(len(self._rows), np.int64)
        bytes_done = 0
        CLOCK.begin("mix")
        step_rows = _step_rows(self._job, self._stream.mixture, self._rows)
        for step in mix_steps(self._stream, self._job.start, self._job.stop, step_rows):
            CLOCK.begin("load")
            tokens = self._write_step(step)
            CLOCK.begin("mix")
            # Row groups that no later step needs soon make room for those of the next.
            for source, row_group in step.done:
                self._cache.groups.invalidate((self._rows[source], row_group))
            rows_done += np.bincount(step.source, minlength=len(rows_done))
            bytes_before = bytes_done
            bytes_done = int(rows_done @ row_bytes)
            self._progress(
                {
                    "bytes": bytes_done - bytes_before,
                    "documents": len(step),
                    "tokens": tokens,
                    "decoded_rows": self._cache.decoded.rows,
                }
            )

    def _write_step(self, step: MixStep) -> int:
        """Gather and write the rows of a step; return their number of ids."""
        indices = (step.source, step.group, step.row)
        if isinstance(self.output, SequencesOut):
            sequences = take_packed(
                self._rows, *indices, read=self._cache.read, bos_id=self._bos_id
            )
            CLOCK.begin("pack")
            return self.output.add(sequences, step.source)
        documents = take_documents(
            self._rows, *indices, read=self._cache.read, bos_id=self._bos_id
        )
        CLOCK.begin("pack")
        return self.output.add(documents, step.source)


def _shuffle_key(job: MixJob) -> int | None:
    """Return the key by which packed rows are shuffled; None if they are not.

    It names the unit by its first position, which no other unit has.
    """
    pack = job.out.pack
    if pack is None or pack.shuffle_seed is None:
        return None
    return key_of(pack.shuffle_seed, job.start)


def _step_rows(
    job: MixJob, mixture: SourceMixture, parents: Sequence[StoredRows]
) -> int:
    """Return the rows of a step that have about ``_STEP_TOKENS`` tokens.

    Steps of packed rows are whole row groups.

    It depends on the job alone: row groups of documents end with steps.
    """
    width = job.out.width
    if width and job.level == "sequences":
        group_rows = row_group_rows(width)
        return max(1, _STEP_TOKENS // (group_rows * width)) * group_rows
    # The tokens that the unit's rows will have, by the means of their sources.
    drawn_before = mixture.drawn_before(job.start)
    drawn_rows = (mixture.drawn_before(job.stop) - drawn_before).tolist()
    unit_tokens = 0
    for row_count, rows in zip(drawn_rows, parents, strict=True):
        totals = rows.manifest.splits[rows.split]
        unit_tokens += row_count * totals.tokens // max(1, totals.rows)
    step_rows = _STEP_TOKENS * (job.stop - job.start) // max(1, unit_tokens)
    return max(_LEAST_ROWS, min(_MOST_ROWS, step_rows))
