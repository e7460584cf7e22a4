"""Where mixed sequences go: packed rows passed on as they are."""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.account import Account
from tokenlake.build.mixing.job import MixJob
from tokenlake.build.mixing.writing.accounts import PackedCounts, Shares
from tokenlake.build.writing.parts import PartWriter
from tokenlake.errors import ConfigError
from tokenlake.manifest import ShardEntry
from tokenlake.schema import packed_schema, row_group_rows
from tokenlake.storage import Layout, Store

Int64 = npt.NDArray[np.int64]


@final
class SequencesOut:
    """Writes rows of `packed` datasets as a job says, a row group after the other.

    Args:
        split: of the parts.
        names: of the sources that rows are counted for.
    """

    def __init__(self, job: MixJob, store: Store, split: str, names: tuple[str, ...]) -> None:
        self._out = out = job.out
        self._length = out.seq_length or 0
        self.shares = Shares(names)
        self._schema = packed_schema(self._length, loss_mask=out.loss_mask)
        layout = Layout(job.dataset, job.version)
        self._writer = PartWriter(store, layout, split, job.unit, self._schema, out.max_shard_size)
        self._rows = self._tokens = 0

    def add(self, rows: pa.RecordBatch, source: Int64) -> int:
        """Write rows, whole row groups but for the last time, of sources that `source` (int64[n]) numbers.

        Returns:
            how many ids they have, padding not counted.

        Raises:
            ConfigError: they are not what the job says.
        """
        if not rows.schema.equals(self._schema):
            raise ConfigError(f"rows with the columns {rows.schema}; expected {self._schema}, as planned")
        counts = PackedCounts.of(rows, self._out)
        self.shares.add(source, counts.tokens, counts.bos, counts.eos, np.zeros_like(counts.tokens))
        size = row_group_rows(self._length)
        for first in range(0, len(rows), size):
            own = slice(first, first + size)
            self._writer.write(
                rows.slice(first, size),
                tokens=int(counts.tokens[own].sum()),
                documents=int(counts.documents[own].sum()),
            )
        self._rows += len(rows)
        self._tokens += (tokens := int(counts.tokens.sum()))
        return tokens

    def finish(self) -> list[ShardEntry]:
        """Publish the last part; returns all parts."""
        return self._writer.finish()

    def discard(self) -> None:
        self._writer.discard()

    @property
    def rows_of_all(self) -> Account:
        """What of the account is no one source's: the rows and their padding."""
        slots = self._rows * self._length
        return Account(sequences=self._rows, slots=slots, pad=slots - self._tokens)
