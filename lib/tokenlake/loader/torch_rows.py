"""Rows by number, as a map-style dataset of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import torch
from torch.utils.data import Dataset as TorchDataset

from tokenlake.errors import ConfigError
from tokenlake.loader.batch import check_columns
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.run import PerProcess, own_dataset
from tokenlake.loader.torch_tensors import check_integers, tensors_of

Row = dict[str, torch.Tensor]


@final
class TorchRows(TorchDataset[Row]):
    """See :func:`tokenlake.loader.torch.torch_rows`; picklable, and every process opens files of its own."""

    def __init__(self, data: Dataset, columns: Sequence[str] | None, integers: str) -> None:
        if not isinstance(data, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"data: got a {type(data).__name__}, must be a Dataset (tl.open); "
                "the rows of a mixture have no numbers, torch_dataset gives them in their order"
            )
        _ = data.seq_length  # raises where rows are of many lengths
        self._length, self._name = len(data), data.name
        self._columns, self._integers = check_columns(columns), check_integers(integers)
        self._opened = PerProcess(partial(own_dataset, data))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    def __getitem__(self, index: int) -> Row:
        """Return a row: column -> tensor of shape (L,); IndexError where there is none."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        """Return several rows, each row group decoded once for all of them."""
        rows = [self._checked(index) for index in indices]
        batch = self._opened.get().take(rows, self._columns)
        columns = tensors_of(batch, self._integers)
        return [{name: values[place] for name, values in columns.items()} for place in range(len(rows))]

    def _checked(self, index: Any) -> int:
        at = int(index)
        if not -self._length <= at < self._length:
            raise IndexError(f"{self._name} has {self._length} rows; there is no row {at}")
        return at % self._length
