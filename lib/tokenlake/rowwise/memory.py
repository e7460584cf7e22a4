"""Rows that lie in memory: lists, and objects of the `datasets` library, which this module does not import.

A map-style ``Dataset`` is an Arrow table and perhaps an index over it: any row is near. An
``IterableDataset`` is a recipe: its rows come in order, and a row is reached by passing those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast, final

from tokenlake.errors import ConfigError
from tokenlake.rowwise.source import (
    Numbered,
    NumberedSource,
    Row,
    ShardedDataSource,
    ShardInfo,
    beyond,
    check_row,
    index_of,
    whole_number,
)

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
            raise ConfigError(f"rows: got a {type(rows).__name__}, must be a list of rows")
        for number, row in enumerate(cast("Sequence[object]", rows)):
            if not isinstance(row, Mapping):
                raise ConfigError(
                    f"rows: row {number} is a {type(row).__name__}, must be a mapping of field to value",
                    row=number,
                )
        self._rows, self._names = rows, (name,)

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        index_of(shard_name, self._names)
        return self._from(row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return ShardInfo(name=shard_name, index=index_of(shard_name, self._names), rows=len(self._rows))

    def _from(self, row: int) -> Numbered:
        if row > len(self._rows):
            raise beyond(self._names[0], row, len(self._rows))
        for number in range(row, len(self._rows)):
            yield number, dict(self._rows[number])


@final
class RowStream(ShardedDataSource):
    """Any rows as one shard, which is read from its beginning."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows

    @property
    def shard_names(self) -> Sequence[str]:
        return ("rows",)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return iter(self._rows)


def wrap_hf_dataset(dataset: Any, name: str | None = None, *, num_shards: int = 1) -> HFDatasetShardedSource:
    """Return the rows of a ``Dataset`` or ``IterableDataset``; see :class:`HFDatasetShardedSource`."""
    return HFDatasetShardedSource(dataset, name, num_shards=num_shards)


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
        self._edges: list[int] | None = None
        if hasattr(dataset, "__len__"):
            self._edges = [index * len(dataset) // num_shards for index in range(num_shards + 1)]
            arrow = _arrow_view(dataset)
            self._read: Callable[[int, int, str], Iterator[Row]] = (
                partial(_formatted_rows, dataset, self._edges)
                if arrow is None
                else partial(_arrow_rows, arrow, self._edges)
            )
        else:
            self._read = partial(_iterable_rows, _parts(dataset, num_shards))

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return enumerate(self._from(index_of(shard_name, self._names), row, shard_name), row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        index = index_of(shard_name, self._names)
        return ShardInfo(name=shard_name, index=index, rows=self._count(index))

    def _count(self, index: int) -> int | None:
        return None if self._edges is None else self._edges[index + 1] - self._edges[index]

    def _from(self, index: int, row: int, name: str) -> Iterator[Row]:
        rows = self._count(index)
        if rows is not None and row > rows:
            raise beyond(name, row, rows)
        yield from self._read(index, row, name)


def _arrow_view(dataset: Any) -> Any:
    """Return the same dataset giving Arrow tables, None where its rows are more than what the table holds."""
    form: Mapping[str, Any] = getattr(dataset, "format", None) or {}
    decoded = getattr(getattr(dataset, "features", None), "_column_requires_decoding", None) or {}
    if form.get("type") not in (None, "arrow", "python") or any(decoded.values()):
        return None
    return dataset.with_format("arrow", columns=form.get("columns"))


def _arrow_rows(arrow: Any, edges: list[int], index: int, row: int, _: str) -> Iterator[Row]:
    at, stop, step = edges[index] + row, edges[index + 1], _FIRST
    while at < stop:
        table = arrow[at : min(at + step, stop)]
        yield from table.to_pylist()
        at += step
        fitting = _BATCH_BYTES * len(table) // max(table.nbytes, 1)
        step = max(1, min(2 * step, _MOST, fitting))


def _formatted_rows(dataset: Any, edges: list[int], index: int, row: int, name: str) -> Iterator[Row]:
    """Yield rows that the dataset's own format or transform makes."""
    for place in range(edges[index] + row, edges[index + 1]):
        yield _as_row(dataset[place], name, place - edges[index])


def _iterable_rows(parts: list[Any], index: int, row: int, name: str) -> Iterator[Row]:
    # One row more than is wanted tells the end of the shard from what is beyond it.
    passed = max(0, row - 1)
    found = enumerate(parts[index].skip(passed) if passed else parts[index], passed)
    if row and next(found, None) is None:
        raise beyond(name, row, sum(1 for _ in parts[index]))
    for number, example in found:
        yield _as_row(example, name, number)


def _parts(dataset: Any, shards: int) -> list[Any]:
    own = int(getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", 1))
    if shards > own:
        raise ConfigError(f"num_shards: got {shards}, but this IterableDataset has {own}")
    if shards == 1:
        return [dataset]
    return [dataset.shard(num_shards=shards, index=index) for index in range(shards)]


def _require_dataset(dataset: Any) -> None:
    """Raise ConfigError unless `dataset` has what a ``Dataset`` or ``IterableDataset`` has."""
    if isinstance(dataset, Mapping):
        splits = [str(key) for key in cast("Mapping[object, object]", dataset)]
        one = splits[0] if splits else "train"
        raise ConfigError(
            f"got a {type(dataset).__name__}, which holds a dataset per split ({', '.join(splits) or 'none'}); "
            f"wrap one of them: wrap_hf_dataset(datasets[{one!r}])",
            splits=splits,
        )
    access = "__getitem__" if hasattr(dataset, "__len__") else "skip"
    needed = ("with_format", "column_names", access, "__iter__")
    if isinstance(dataset, type) or not all(hasattr(dataset, name) for name in needed):
        raise ConfigError(
            f"got {dataset!r:.80} of type {type(dataset).__name__}, must be a Dataset or an IterableDataset of the "
            "`datasets` library; for rows of another kind write a ShardedDataSource"
        )


def _as_row(example: Any, name: str, number: int) -> Row:
    """Return an example as a dict; in the format ``arrow`` it is a table of one row."""
    if isinstance(example, dict):
        return cast("Row", example)
    if hasattr(example, "to_pylist"):
        return cast("list[Row]", example.to_pylist())[0]
    if isinstance(example, Mapping):
        return dict(cast("Mapping[str, Any]", example))
    raise ConfigError(
        f"shard {name!r}, row {number}: the dataset's format makes a {type(example).__name__} of a row, not a dict; "
        "use with_format(None)",
        shard=name,
        row=number,
    )
