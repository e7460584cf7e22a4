"""Batches in the loader's order, as a dataset of Grain with its own way of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import grain

from tokenlake.errors import ConfigError
from tokenlake.loader.batch import Batch
from tokenlake.loader.host_batches import ALL, HostBatches, Turn
from tokenlake.loader.run import Run

_TURN: Final = "turn"  # whose steps an iterator makes, where worker processes share them out


@final
class GrainBatches(grain.IterDataset[Batch]):
    """See :func:`tokenlake.loader.grain.grain_dataset`; picklable, nothing is open in it."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run, self._turn = run, ALL

    def __iter__(self) -> GrainIterator:
        """Return an iterator that begins at the first batch; its ``set_state`` goes on elsewhere."""
        return GrainIterator(self._run, self._turn)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep every n-th batch: what Grain asks for in a worker process of ``mp_prefetch``."""
        if sequential_slice:
            raise ConfigError(
                "sequential_slice: each worker would read a stretch of its own, and batches come in another order; "
                "leave it out, workers then take turns"
            )
        first, step = sl.start or 0, sl.step or 1
        if sl.stop is not None or first < 0 or step < 1:
            raise ConfigError(
                f"slice: got {sl}, must be every n-th batch from one on, as mp_prefetch asks for it"
            )
        self._turn = Turn(self._turn.first + first * self._turn.of, self._turn.of * step)

    def __str__(self) -> str:
        return f"GrainBatches({', '.join(dataset.name for dataset in self._run.plan.datasets.values())})"


@final
class GrainIterator(grain.DatasetIterator[Batch]):
    """The rest of a pass. Threads that read ahead end with it, by :meth:`close`, or when it is forgotten."""

    def __init__(self, run: Run, turn: Turn) -> None:
        super().__init__()
        self._run, self._turn, self._place = run, turn, run.begin(0)
        self._batches: HostBatches | None = None
        self._over = False

    def __next__(self) -> Batch:
        """Return column -> numpy array of shape (rows, L)."""
        if self._over:
            raise ValueError("this iterator is closed; make another one from its dataset")
        if self._batches is None:
            self._batches = self._run.batches(self._place, self._turn)
        try:
            batch = next(self._batches)
        except BaseException:
            self._end()
            raise
        self._place = batch.step.after
        return batch.columns

    def get_state(self) -> dict[str, Any]:
        """Return where the iterator stands: JSON, small, of one shape; as of ``DataLoader.get_state()``."""
        return {**self._run.state(self._place), _TURN: list(self._turn)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of this iterator or of a ``DataLoader`` of the same run.

        Raises:
            ConfigError: the state is of other data, of another order or of another number of workers.
        """
        turn = Turn(*state.get(_TURN, self._turn))
        if turn != self._turn:
            raise ConfigError(
                f"the state is of worker {turn.first} of {turn.of}, this is {self._turn.first} of {self._turn.of}; "
                "expected the same number of workers of mp_prefetch"
            )
        place = self._run.place(state)
        self._end()
        self._place = place

    def close(self) -> None:
        """End the threads; nothing more comes."""
        self._over = True
        self._end()
        super().close()

    def __str__(self) -> str:
        return f"GrainIterator({', '.join(dataset.name for dataset in self._run.plan.datasets.values())})"

    def _end(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None
