"""Rows of a dataset by their number. Each process opens its own files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch import BatchShape
from tokenlake.runtime.loader.columns import check_columns
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.length_index import LengthIndex
from tokenlake.runtime.loader.options import WORKER_CACHE_BYTES
from tokenlake.runtime.loader.padding import BatchPadding
from tokenlake.runtime.loader.per_process import PerProcess
from tokenlake.runtime.loader.ragged_batch import RaggedAssembler, ragged_columns
from tokenlake.runtime.loader.read_ahead import DecodedGroup
from tokenlake.runtime.reading.group_cache import GroupCache

_Take = Callable[[Int64], list[dict[str, Any]]]
"""Row numbers from 0 to len - 1, int64[n] -> rows."""


@final
class SharedRows:
    """Rows of a dataset by their number.

    It can be pickled and forked: each process opens its own files.

    Args:
        data: Dataset of any kind.
        columns: Names of the columns; None: the default ones.
        instead: Name of the function that takes a mixture, for the message.

    Attributes:
        columns: Names of the columns.
        name: Name of the dataset.
        manifest: SHA-256 of its manifest.

    Raises:
        ConfigError: It is not a dataset, or does not have a column.
    """

    def __init__(
        self, data: Dataset, columns: Sequence[str] | None, instead: str
    ) -> None:
        if not isinstance(data, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"data: got a {type(data).__name__}, must be a Dataset (tl.open); "
                f"the rows of a mixture have no numbers, {instead} delivers them in their order"
            )
        if data.kind == "packed":
            self.columns = check_columns(columns)
            open_rows = _packed_rows
        else:
            self.columns = ragged_columns(data.rows, columns)
            open_rows = _ragged_rows
        self.name = data.name
        self.manifest = data.manifest.sha256
        self._length = len(data)
        self._take: PerProcess[_Take] = PerProcess(
            partial(open_rows, data, self.columns)
        )

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows, each a dict of arrays of shape (L,).

        A row group is decoded once for all of its rows. If rows have many lengths, L is
        the length of the longest run of a row, and columns with one value per row have
        shape ().

        Args:
            rows: Numbers of rows. Negative ones count from the end.

        Raises:
            IndexError: A row does not exist.
        """
        row_numbers: list[int] = []
        for row in rows:
            row_number = int(row)
            if not -self._length <= row_number < self._length:
                raise IndexError(
                    f"{self.name} has rows 0 to {self._length - 1}; there is no row {row_number}"
                )
            row_numbers.append(row_number % self._length)
        take = self._take.get()
        return take(np.array(row_numbers, np.int64))


def _packed_rows(data: Dataset, columns: Sequence[str]) -> _Take:
    """Return a function that takes rows of a packed dataset."""
    dataset = copy.copy(data)  # a copy has its own files

    def take(rows: Int64) -> list[dict[str, Any]]:
        batch = dataset.take(rows, columns)
        return [
            {column_name: column[index] for column_name, column in batch.items()}
            for index in range(len(rows))
        ]

    return take


def _ragged_rows(data: Dataset, columns: Sequence[str]) -> _Take:
    """Return a function that takes rows of many lengths.

    Each is a batch of one row, of the row's length.
    """
    stored = copy.copy(data).rows
    index = LengthIndex([stored], BatchPadding())
    assembler = RaggedAssembler(
        [stored], index, columns, padding="right", truncate=None
    )
    decode = partial(stored.decoded, loss_mask=assembler.needs_loss_mask)
    cache: GroupCache[int, DecodedGroup] = GroupCache(WORKER_CACHE_BYTES, decode)

    def take(rows: Int64) -> list[dict[str, Any]]:
        group, row_in_group = stored.group_of(rows)
        examples: list[dict[str, Any]] = []
        for number, length in enumerate(index.lengths(rows).tolist()):
            row = slice(number, number + 1)
            shape = BatchShape(1, length)
            batch = assembler.batch(
                shape, group[row], row_in_group[row], cast("Any", cache.read)
            )
            # The first axis of a batch is its rows. This batch has one.
            examples.append(
                {
                    column_name: column.reshape(column.shape[1:])
                    for column_name, column in batch.items()
                }
            )
        return examples

    return take
