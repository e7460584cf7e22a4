"""Objects of the `datasets` library as rows in shards, without importing that library.

A map-style ``Dataset`` is an Arrow table and perhaps an index over it: any row is near. An
``IterableDataset`` is a recipe: its rows come in order, and a row is reached by passing those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, final

from tokenlake.config.near import did_you_mean
from tokenlake.errors import ConfigError

Row = dict[str, Any]

_FIRST: Final = 16  # rows of the first batch: a seek for one row should not convert a thousand
_MOST: Final = 1024
_BATCH_BYTES: Final = 8 << 20  # of Arrow data that become Python objects at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedShard:
    """One shard of a wrapped object.

    Attributes:
        name: as in ``shard_names``.
        index: its place in ``shard_names``.
        rows: exact, None for an iterable.
    """

    name: str
    index: int
    rows: int | None = None


def wrap_hf_dataset(dataset: Any, name: str | None = None, *, num_shards: int = 1) -> HFDatasetShardedSource:
    """Return the rows of a ``Dataset`` or ``IterableDataset``; see :class:`HFDatasetShardedSource`."""
    return HFDatasetShardedSource(dataset, name, num_shards=num_shards)


@final
class HFDatasetShardedSource:
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
        self._rows: _MapRows | _IterableRows = (
            _MapRows(dataset, _count(num_shards))
            if hasattr(dataset, "__len__")
            else _IterableRows(dataset, _count(num_shards))
        )
        title = name if name is not None else str(getattr(dataset, "split", None) or "dataset")
        self._names = tuple(
            title if num_shards == 1 else f"{title}-{index:05}-of-{num_shards:05}"
            for index in range(num_shards)
        )

    @property
    def shard_names(self) -> Sequence[str]:
        """Names of the shards, in order."""
        return self._names

    @property
    def every_row(self) -> bool:
        """Whether every row comes out: always."""
        return True

    def num_shards(self) -> int:
        """Return how many shards there are."""
        return len(self._names)

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        """Return the rows of a shard; ConfigError if there is no such shard."""
        return self.open_shard_at_row(shard_name, 0)

    def open_shard_at_row(self, shard_name: str, row: int) -> Iterator[Row]:
        """Return the rows of a shard from number `row` on.

        Raises:
            ConfigError: there is no such shard, or `row` is negative; as soon as a row is asked for, if it is
                beyond the end (the number of rows itself is not: nothing comes).
        """
        index = self._index(shard_name)
        _check_row(row)
        return self._rows.rows(index, row, shard_name)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Iterator[tuple[int, Row]]:
        """Return (row number, row) from number `row` on; raises like :meth:`open_shard_at_row`."""
        return enumerate(self.open_shard_at_row(shard_name, row), row)

    def get_shard_info(self, shard_name: str) -> WrappedShard:
        """Return what is known of a shard without reading it."""
        index = self._index(shard_name)
        return WrappedShard(name=shard_name, index=index, rows=self._rows.count(index))

    def iter_shards(
        self, shard_indices: Sequence[int] | None = None, start_shard: int = 0, start_row: int = 0
    ) -> Iterator[Row]:
        """Return the rows of several shards, one after the other, from a row of one of them on."""
        indices = range(self.num_shards()) if shard_indices is None else shard_indices
        names = [self._names[index] for index in indices]
        if not 0 <= start_shard <= len(names):
            raise ConfigError(f"start_shard: got {start_shard!r}, must be from 0 to {len(names)}")
        _check_row(start_row)
        for place, name in enumerate(names[start_shard:]):
            yield from self.open_shard_at_row(name, 0 if place else start_row)

    def __iter__(self) -> Iterator[Row]:
        return self.iter_shards()

    def __len__(self) -> int:
        counts = [self._rows.count(index) for index in range(self.num_shards())]
        if None in counts:
            raise TypeError("the length of an IterableDataset is unknown; count its rows")
        return sum(cast("list[int]", counts))

    def __bool__(self) -> bool:
        return True  # `if source:` must not ask for a length that may be unknown

    def _index(self, name: str) -> int:
        if name in self._names:
            return self._names.index(name)
        raise ConfigError(
            f"no shard is named {name!r}{did_you_mean(name, self._names)}; there are {len(self._names)}: "
            f"{', '.join(map(repr, self._names[:4]))}",
            got=name,
        )


@final
class _MapRows:
    """Rows of a ``Dataset``: slices of its Arrow table, through its indices."""

    def __init__(self, dataset: Any, shards: int) -> None:
        self._dataset, self._size, self._shards = dataset, len(dataset), shards
        self._arrow = _arrow_view(dataset)

    def count(self, index: int) -> int:
        return self._edge(index + 1) - self._edge(index)

    def rows(self, index: int, row: int, name: str) -> Iterator[Row]:
        first, stop = self._edge(index), self._edge(index + 1)
        if row > stop - first:
            raise _beyond(name, row, stop - first)
        at = first + row
        if self._arrow is None:  # its own format or transform makes the rows
            for place in range(at, stop):
                yield _as_row(self._dataset[place], name, place - first)
            return
        step = _FIRST
        while at < stop:
            table = self._arrow[at : min(at + step, stop)]
            yield from table.to_pylist()
            at += step
            fitting = _BATCH_BYTES * len(table) // max(table.nbytes, 1)
            step = max(1, min(2 * step, _MOST, fitting))

    def _edge(self, index: int) -> int:
        return index * self._size // self._shards


def _arrow_view(dataset: Any) -> Any:
    """Return the same dataset giving Arrow tables, None where its rows are more than what the table holds."""
    form: Mapping[str, Any] = getattr(dataset, "format", None) or {}
    decoded = getattr(getattr(dataset, "features", None), "_column_requires_decoding", None) or {}
    if form.get("type") not in (None, "arrow", "python") or any(decoded.values()):
        return None
    return dataset.with_format("arrow", columns=form.get("columns"))


@final
class _IterableRows:
    """Rows of an ``IterableDataset``, in order."""

    def __init__(self, dataset: Any, shards: int) -> None:
        own = int(getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", 1))
        if shards > own:
            raise ConfigError(f"num_shards: got {shards}, but this IterableDataset has {own}")
        self._parts: list[Any] = (
            [dataset]
            if shards == 1
            else [dataset.shard(num_shards=shards, index=index) for index in range(shards)]
        )

    def count(self, index: int) -> None:
        return None

    def rows(self, index: int, row: int, name: str) -> Iterator[Row]:
        # One row more than is wanted tells the end of the shard from what is beyond it.
        passed = max(0, row - 1)
        found = enumerate(self._parts[index].skip(passed) if passed else self._parts[index], passed)
        if row and next(found, None) is None:
            raise _beyond(name, row, sum(1 for _ in self._parts[index]))
        for number, example in found:
            yield _as_row(example, name, number)


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
    needed = (
        "with_format",
        "column_names",
        "__getitem__" if hasattr(dataset, "__len__") else "skip",
        "__iter__",
    )
    missing = [name for name in needed if not hasattr(dataset, name)]
    if missing or isinstance(dataset, type):
        raise ConfigError(
            f"got {dataset!r:.80} of type {type(dataset).__name__}, must be a Dataset or an IterableDataset of the "
            "`datasets` library; for rows of another kind write a ShardedDataSource"
        )


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"num_shards: got {value!r}, must be a whole number from 1 on")
    return value


def _check_row(row: object) -> None:
    if isinstance(row, bool) or not hasattr(row, "__index__") or cast("int", row) < 0:
        raise ConfigError(f"row: got {row!r}, must be a whole number from 0 on", got=repr(row))


def _beyond(name: str, row: int, rows: int) -> ConfigError:
    return ConfigError(
        f"shard {name!r}: row {row} is beyond its end; it has {rows} rows, numbered from 0, and reading may begin "
        f"at any of them or at {rows}, which gives nothing",
        shard=name,
        row=row,
        rows=rows,
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
