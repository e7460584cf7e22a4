"""Datasets of PyTorch whose items are rows put through the prompt engine, when they are asked for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, final

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.result import Err
from tokenlake.text.prompt.engine import ProcessedExample, PromptEngine

Row = Mapping[str, Any]


@final
class PreprocessedDataset(Dataset[ProcessedExample]):
    """Map-style: item i is row i as ``input_ids``, ``attention_mask`` and ``labels``, int32[L] each.

    Args:
        rows: anything with a length and items, such as a list or a ``datasets.Dataset``.
        engine: makes examples of rows; with ``padding=False`` where a collate function pads.
    """

    def __init__(self, rows: Sequence[Row], engine: PromptEngine) -> None:
        self._rows, self._engine = rows, engine

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> ProcessedExample:
        """Return the example of a row; BadRecordError (with its number) where none can be made of it."""
        return _unwrapped(self._engine.process(self._rows[index]), index)


@final
class StreamingPreprocessedDataset(IterableDataset[ProcessedExample]):
    """Iterable: rows become examples one by one; worker w of process r makes every n-th, so that all have each once.

    Args:
        rows: a source, or anything that can be iterated over again and again.
        engine: as of :class:`PreprocessedDataset`.
        skip_errors: leave rows out of which no example can be made, and count them in :attr:`skipped`.
        shuffle_buffer: rows among which the next is drawn; 0: they come in their order.
        seed: of the draw, together with the epoch.
        rank, world_size: which of how many processes this is.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        engine: PromptEngine,
        *,
        skip_errors: bool = False,
        shuffle_buffer: int = 0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank: got {rank} of {world_size} processes, must be 0 to {world_size - 1}")
        self._rows, self._engine, self._skips = rows, engine, skip_errors
        self._buffer, self._seed = shuffle_buffer, seed
        self._place: Final = rank, world_size
        self.epoch = 0
        self.skipped = 0
        """Rows left out so far, of this process."""

    def set_epoch(self, epoch: int) -> None:
        """Choose another order for the next loop; in workers that live on it acts with the next start."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[ProcessedExample]:
        """Return this worker's examples."""
        worker, (rank, world) = get_worker_info(), self._place
        own, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        numbered: Iterator[tuple[int, Row]] = enumerate(self._rows)
        if self._buffer:  # all draw alike, and then take their share
            numbered = _drawn(numbered, self._buffer, random.Random(f"{self._seed}/{self.epoch}"))
        for number, row in itertools.islice(numbered, rank * workers + own, None, world * workers):
            made = self._engine.process(row)
            if isinstance(made, Err) and self._skips and isinstance(made.error, BadRecordError):
                self.skipped += 1
            else:
                yield _unwrapped(made, number)


def _drawn(rows: Iterator[Any], size: int, draw: random.Random) -> Iterator[Any]:
    """Yield the rows, each drawn from a buffer of so many."""
    buffer = list(itertools.islice(rows, size))
    for row in rows:
        at = draw.randrange(size)
        yield buffer[at]
        buffer[at] = row
    draw.shuffle(buffer)
    yield from buffer


def _unwrapped(made: Any, number: int) -> ProcessedExample:
    """Return an example, or raise why there is none, with the number of its row."""
    if made.is_ok():
        return made.unwrap()
    error: TokenlakeError = made.unwrap_err()
    told = str(error).removeprefix("row 0: ")
    raise type(error)(f"row {number}: {told}", **{**error.details, "row": number}) from error
