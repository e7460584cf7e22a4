"""Rows of one batch at a time, asked for by its step: a generator that datasets of Hugging Face call for each shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from tokenlake.adapters.hf.columns import HfColumns
from tokenlake.adapters.perprocess import PerProcess
from tokenlake.adapters.run import ALL, Run, Turn
from tokenlake.loader.hostbatches import HostBatch, HostBatches


@final
class HfSteps:
    """Steps -> rows; picklable. Steps asked for in order, or every n-th of them, are read ahead."""

    def __init__(self, run: Run, columns: HfColumns) -> None:
        self._run, self._columns = run, columns
        self._reader = PerProcess(_Reader)

    def __call__(self, step: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows of steps: column -> array of shape (L,)."""
        reader = self._reader.get()
        for number in step:
            batch = reader.read(self._run, number)
            columns = self._columns.of_batch(batch.columns, wide_labels=True)
            try:
                for place in range(len(batch.columns[self._run.columns[0]])):
                    yield {name: values[place] for name, values in columns.items()}
            except GeneratorExit:  # a loop was left: its threads end
                reader.close()
                raise


@final
class _Reader:
    """Goes on reading where it stands, if that is what is wanted."""

    def __init__(self) -> None:
        self._batches: HostBatches | None = None
        self._turn, self._last, self._next = ALL, -1, 0

    def read(self, run: Run, step: int) -> HostBatch:
        if self._batches is None or step != self._next:
            self._begin(run, step)
        assert self._batches is not None
        try:
            batch = next(self._batches)
        except BaseException:
            self.close()
            raise
        self._last, self._next = step, step + self._turn.of
        if (end := run.batches_in(0)) is not None and self._next >= end:
            self.close()
        return batch

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _begin(self, run: Run, step: int) -> None:
        """Read from a step on, in the strides that the last two steps tell: those of one of several workers."""
        stride = step - self._last if 0 <= self._last < step else 1
        self.close()
        self._turn = Turn(step % stride, stride)
        self._batches = run.batches(run.plan.steps.place(step), self._turn)
