"""Batches in the loader's order, as an iterable dataset of PyTorch that worker processes share out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import torch
from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info

from tokenlake.errors import ConfigError
from tokenlake.loader.host_batches import ALL, HostBatches, Turn
from tokenlake.loader.run import Run
from tokenlake.loader.steps import Place
from tokenlake.loader.torch_tensors import check_integers, tensors_of

Item = dict[str, torch.Tensor]

_TURN: Final = "turn"  # in a worker's state: whose steps it makes
_GIVEN: Final = "given"  # rows of the batch at hand that were delivered, where items are rows


@final
class TorchBatches(IterableDataset[Item]):
    """See :func:`tokenlake.loader.torch.torch_dataset`.

    Picklable; nothing is open in it, so that worker processes may be forked or spawned.
    """

    def __init__(self, run: Run, *, integers: str, rows: bool) -> None:
        super().__init__()
        self.run, self.rows, self.integers = run, rows, check_integers(integers)
        # Shared with workers that live on from one loop to the next.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._start: Place | None = None

    @property
    def epoch(self) -> int:
        """The pass that the next loop delivers."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Say which pass the next loop delivers, 0 at first; ConfigError if the one before never ends."""
        self.run.begin(epoch)
        self._epoch.fill_(epoch)

    def state_after(self, step: int) -> dict[str, Any]:
        """Return the state of the run when `step` batches were delivered, over all passes: JSON, small.

        The same as ``DataLoader.get_state()`` of the same run, with any number of workers and hosts.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"step: got {step!r}, must be a whole number from 0 on")
        return self.run.state(self.run.plan.steps.place(step))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state_after` or of a ``DataLoader``, with any number of workers.

        Loops of that state's pass (:attr:`epoch` becomes it) begin there, all others at the beginning of theirs.
        Set it before workers are started.

        Raises:
            ConfigError: the state is of other data or of another order, or is a worker's.
        """
        if _TURN in state:
            raise ConfigError(
                "this is the state of one worker; load the whole state into the StatefulDataLoader, "
                "or set one of state_after()"
            )
        self._start = self.run.place(state)
        self._epoch.fill_(self._start.passes)

    def __iter__(self) -> TorchIterator:
        """Begin the pass that was set, in a worker process its share of it."""
        worker = get_worker_info()
        start = self._start if self._start is not None and self._start.passes == self.epoch else None
        place = self.run.begin(self.epoch) if start is None else start
        turn = (
            ALL if worker is None else Turn((place.step + worker.id) % worker.num_workers, worker.num_workers)
        )
        return TorchIterator(self, place, turn)

    def __len__(self) -> int:
        """Return how many items a pass has, of all workers together; TypeError where it has no end."""
        count = self.run.rows_in(self.epoch) if self.rows else self.run.batches_in(self.epoch)
        if count is None:
            raise TypeError("a run without end has no length; give epochs, or the mixture rows")
        return count

    def __bool__(self) -> bool:
        return True


@final
class TorchIterator(Iterator[Item]):
    """The rest of a pass, of one worker; its state is what torchdata's StatefulDataLoader keeps."""

    def __init__(self, dataset: TorchBatches, place: Place, turn: Turn) -> None:
        self._dataset, self._run = dataset, dataset.run
        self._place, self._turn, self._given = place, turn, 0
        self._batches: HostBatches | None = None
        self._at_hand: tuple[Place, Item] | None = None

    def __next__(self) -> Item:
        """Return a batch, or a row."""
        if self._dataset.rows:
            return self._next_row()
        self._place, batch = self._next_batch()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return where this worker stands: JSON, small."""
        return {**self._run.state(self._place), _TURN: list(self._turn), _GIVEN: self._given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a worker of the same run stood, one of as many.

        Raises:
            ConfigError: the state is of other data, of another order or of another number of workers.
        """
        place = self._run.place(state)
        turn = Turn(*state.get(_TURN, ALL))
        if turn.of != self._turn.of:
            raise ConfigError(
                f"the state is of one of {turn.of} workers, here are {self._turn.of}; expected as many "
                "(for another number: dataset.set_state(dataset.state_after(step)))"
            )
        self.close()
        self._place, self._turn, self._given = place, turn, int(state.get(_GIVEN, 0))

    def close(self) -> None:
        """End the threads that read ahead."""
        self._at_hand = None
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _next_row(self) -> Item:
        while self._at_hand is None:
            after, batch = self._next_batch()
            if _size(batch) > self._given:
                self._at_hand = after, batch
            else:  # the last batch of a pass may have no rows of this host
                self._place, self._given = after, 0
        after, batch = self._at_hand
        row = {name: values[self._given] for name, values in batch.items()}
        self._given += 1
        if self._given == _size(batch):
            self._place, self._given, self._at_hand = after, 0, None
        return row

    def _next_batch(self) -> tuple[Place, Item]:
        """A batch, and where delivery stands behind it."""
        if self._batches is None:
            self._batches = self._run.batches(self._place, self._turn)
        try:
            batch = next(self._batches)
        except BaseException:
            self.close()
            raise
        return batch.step.after, tensors_of(batch.columns, self._dataset.integers)


def _size(batch: Item) -> int:
    return len(next(iter(batch.values())))


def host_of() -> tuple[int, int]:
    """Return (rank, number) of this process; ConfigError if it is one of several and nobody says which."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if (world := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ConfigError(
            f"this is one of {world} processes (WORLD_SIZE), and torch.distributed is not initialised: all of them "
            "would read the same rows. Initialise it first, or give host=(rank, world); host=(0, 1) where the "
            "framework divides batches by itself"
        )
    return 0, 1
