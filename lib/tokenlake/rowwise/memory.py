"""Rows that lie in memory: lists, and objects of the `datasets` library, which this module does not import.

A map-style ``Dataset`` is an Arrow table and perhaps an index over it: any row is near. An
``IterableDataset`` is a recipe: its rows come in order, and a row is reached by passing those before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, cast, final

from tokenlake.config.values import expected, whole_number
from tokenlake.errors import ConfigError
from tokenlake.rowwise.shards import Numbered, Row, beyond
from tokenlake.rowwise.source import NumberedSource, ShardedDataSource

_FIRST: Final = 16  # rows of the first batch: a seek for one row should not convert a thousand
_MOST: Final = 1024
_BATCH_BYTES: Final = 8 << 20  # of Arrow data that become Python objects at a time


@final
class RowsShardedSource(NumberedSource):
    """A list of rows as one shard; rows come out as copies, so that nobody changes the list."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], name: str = "rows") -> None:
        """Take the rows, which are not copied; `name`: of the shard.

        Raises:
            ConfigError: they are no list, or one of them is not a mapping of field to value.
        """
        if isinstance(rows, str | bytes) or not isinstance(rows, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("rows", rows, "a list of rows")
        for number, row in enumerate(cast("Sequence[object]", rows)):
            if not isinstance(row, Mapping):
                raise expected(f"rows: row {number}", row, "a mapping of field to value")
        self._listed, self._names = rows, (name,)

    def _count(self, index: int) -> int:
        return len(self._listed)

    def _rows(self, index: int, row: int) -> Numbered:
        if row > len(self._listed):
            raise beyond(self._names[0], row, len(self._listed))
        for number in range(row, len(self._listed)):
            yield number, dict(self._listed[number])


@final
class IterableShardedSource(ShardedDataSource):
    """Any rows as one shard, which is read from its beginning."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows

    @property
    def shard_names(self) -> Sequence[str]:
        return ("rows",)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return iter(self._rows)


@final
class HFDatasetShardedSource(NumberedSource):
    """An object of the `datasets` library, its rows in the order in which it gives them itself.

    What was done to it (select, shuffle, filter, map, set_format, set_transform) shows in the rows.
    """

    def __init__(self, dataset: Any, name: str | None = None, *, num_shards: int = 1) -> None:
        """Wrap `dataset`; nothing is read or copied.

        Args:
            dataset: a ``Dataset`` or an ``IterableDataset``.
            name: what shards are called by; by default the dataset's split.
            num_shards: contiguous shards. An iterable can have at most as many as its own, and the library
                deals them out: where it was shuffled, or cut by take or skip, shards may hold other rows than
                the whole, so it stays in one unless asked.

        Raises:
            ConfigError: `dataset` is something else, or has fewer shards.
        """
        _require_dataset(dataset)
        whole_number("num_shards", num_shards, 1)
        title = name if name is not None else str(getattr(dataset, "split", None) or "dataset")
        names = (f"{title}-{index:05}-of-{num_shards:05}" for index in range(num_shards))
        self._names = (title,) if num_shards == 1 else tuple(names)
        self._dataset, self._bounds = dataset, None
        if hasattr(dataset, "__len__"):
            edges = [index * len(dataset) // num_shards for index in range(num_shards + 1)]
            self._bounds = list(pairwise(edges))
            return
        own = int(getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", 1))
        if num_shards > own:
            raise ConfigError(f"num_shards: got {num_shards}, but this IterableDataset has {own}")

    def _count(self, index: int) -> int | None:
        return None if self._bounds is None else self._bounds[index][1] - self._bounds[index][0]

    def _rows(self, index: int, row: int) -> Numbered:
        if self._bounds is None:
            return self._streamed(index, row)
        return self._between(*self._bounds[index], row, self._names[index])

    def _between(self, start: int, stop: int, row: int, name: str) -> Numbered:
        if row > stop - start:
            raise beyond(name, row, stop - start)
        places = range(start + row, stop)
        rows = (self._dataset[place] for place in places) if self._arrow is None else self._columns(places)
        for number, example in enumerate(rows, row):
            yield number, _as_row(example, name, number)

    @cached_property
    def _arrow(self) -> Any:
        """The same dataset giving Arrow tables, None where its rows are more than what the table holds."""
        form: Mapping[str, Any] = getattr(self._dataset, "format", None) or {}
        decoded = getattr(getattr(self._dataset, "features", None), "_column_requires_decoding", None) or {}
        if form.get("type") not in (None, "arrow", "python") or any(decoded.values()):
            return None
        return self._dataset.with_format("arrow", columns=form.get("columns"))

    def _columns(self, places: range) -> Iterator[Row]:
        at, step = places.start, _FIRST
        while at < places.stop:
            table = self._arrow[at : min(at + step, places.stop)]
            yield from table.to_pylist()
            at += step
            step = max(1, min(2 * step, _MOST, _BATCH_BYTES * len(table) // max(table.nbytes, 1)))

    def _streamed(self, index: int, row: int) -> Numbered:
        count = len(self._names)
        part = self._dataset if count == 1 else self._dataset.shard(num_shards=count, index=index)
        # One row more than is wanted tells the end of the shard from what is beyond it.
        passed = max(0, row - 1)
        found = enumerate(part.skip(passed) if passed else part, passed)
        if row and next(found, None) is None:
            raise beyond(self._names[index], row, sum(1 for _ in part))
        for number, example in found:
            yield number, _as_row(example, self._names[index], number)


wrap_hf_dataset = HFDatasetShardedSource


def _require_dataset(dataset: Any) -> None:
    """Raise ConfigError unless `dataset` has what a ``Dataset`` or ``IterableDataset`` has."""
    if isinstance(dataset, Mapping):
        splits = [str(key) for key in cast("Mapping[object, object]", dataset)]
        one = splits[0] if splits else "train"
        why = f"got a {type(dataset).__name__}, with a dataset per split ({', '.join(splits) or 'none'})"
        raise ConfigError(f"{why}; wrap one: wrap_hf_dataset(datasets[{one!r}])", splits=splits)
    access = "__getitem__" if hasattr(dataset, "__len__") else "skip"
    needed = ("with_format", "column_names", access, "__iter__")
    if isinstance(dataset, type) or not all(hasattr(dataset, name) for name in needed):
        raise expected("dataset", dataset, "a Dataset or an IterableDataset of the `datasets` library")


def _as_row(example: Any, name: str, number: int) -> Row:
    """Return an example as a dict; in the format ``arrow`` it is a table of one row."""
    if isinstance(example, dict):
        return cast("Row", example)
    if hasattr(example, "to_pylist"):
        return cast("list[Row]", example.to_pylist())[0]
    if isinstance(example, Mapping):
        return dict(cast("Mapping[str, Any]", example))
    got = type(example).__name__
    why = f"the dataset's format makes a {got} of a row, not a dict; use with_format(None)"
    raise ConfigError(f"shard {name!r}, row {number}: {why}", shard=name, row=number)
