"""The contract of every source of rows: named shards, each of which opens at any of
its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Literal, final

from tokenlake.base.checks import expected, require_one_of, whole_number
from tokenlake.errors import BadRecordError
from tokenlake.etl.text.chat_transform import ChatTemplateTransform
from tokenlake.etl.text.fields import DropFields, RenameFields, SelectFields
from tokenlake.etl.text.transform import ChainedTransform, ExpandTransform
from tokenlake.rowwise import shards
from tokenlake.rowwise.shards import (
    Numbered,
    Placed,
    Row,
    RowMeter,
    RowPosition,
    ShardInfo,
    Transform,
)
from tokenlake.runtime.mixing.random import key_of, shuffled, shuffled_by_buffer


class ShardedDataSource(ABC):
    """Rows (dicts) in named shards, each of which can be opened at any of its rows.

    A row's number is its place in its shard as it is stored, from 0 on. All records
    count, also bad ones that were set aside and those that a filter or `where` leaves
    out, so a number stays what it is whatever is done with the rows, and a seek reads
    nothing of what is before. To resume exactly, keep the number of the last row
    consumed (:meth:`open_shard_numbered` gives it) and open the shard at the next one.

    A source of your own defines `shard_names` and `open_shard`; where seeking can be
    better than reading from the start, or where rows are left out, also
    `open_shard_numbered` and `every_row`.
    """

    @property
    @abstractmethod
    def shard_names(self) -> Sequence[str]:
        """Names of the shards, no two the same, in a fixed order."""

    @abstractmethod
    def open_shard(self, shard_name: str) -> Iterator[Row]:
        """Return the rows of a shard.

        Raises:
            ConfigError: no shard has that name.
            SourceError: a record is bad and the policy is ``fail``, or a file cannot be
                used; when it is drawn.
        """

    @property
    def every_row(self) -> bool:
        """Whether every row comes out, so that numbers have no gaps."""
        return True

    @property
    def endless(self) -> bool:
        """Whether rows never end."""
        return False

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        """Path or URL, bytes and version token of every file, as they were listed;
        empty where there are none.
        """
        return ()

    def num_shards(self) -> int:
        """Return how many shards there are."""
        return len(self.shard_names)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        """Return (row number, row) for the rows of a shard from number `row` on.

        Raises:
            ConfigError: no shard has that name, or `row` is negative; as soon as a row
                is asked for, if `row` is beyond the end (the number of rows itself is
                not: nothing comes).
            SourceError: as :meth:`open_shard`.
        """
        whole_number("row", row, 0)
        return shards.rows_from(row, self.open_shard(shard_name), shard_name)

    def open_shard_at_row(self, shard_name: str, row: int) -> Iterator[Row]:
        """Return the rows of a shard from number `row` on; raises as
        :meth:`open_shard_numbered`.
        """
        return (row for _, row in self.open_shard_numbered(shard_name, row))

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return what is known of a shard without reading it; ConfigError if there
        is no such shard.
        """
        return ShardInfo(
            name=shard_name, index=shards.index_of(shard_name, self.shard_names)
        )

    def iter_shards(
        self,
        shard_indices: Sequence[int] | None = None,
        start_shard: int = 0,
        start_row: int = 0,
        workers: int = 1,
    ) -> Iterator[Row]:
        """Return the rows of several shards, one after the other.

        Args:
            shard_indices: Indices in `shard_names`, in the order of reading. None for
                all shards.
            start_shard: Index in `shard_indices` (or of all shards) of the first shard
                to read.
            start_row: Number of the first row in that shard.
            workers: Number of shards that threads open ahead, each up to its first
                1,024 rows. 1 for no threads. The order of rows and errors is the same.

        Raises:
            ConfigError: An index is not allowed, `workers` is not allowed, or
                `start_row` is beyond the end.
        """
        names = self.shard_names
        indices = range(len(names)) if shard_indices is None else shard_indices
        for index in indices:
            whole_number("shard_indices", index, 0, len(names) - 1)
        whole_number("start_shard", start_shard, 0, len(indices))
        whole_number("start_row", start_row, 0)
        ahead = whole_number("workers", workers, 1) if workers != 1 else 0
        selected = [names[index] for index in indices][start_shard:]
        return shards.rows_in_turn(self.open_shard_at_row, selected, start_row, ahead)

    def __iter__(self) -> Iterator[Row]:
        return self.iter_shards()

    def __len__(self) -> int:
        """Return how many rows come out, exactly; TypeError where only reading them
        all would tell.
        """
        if not self.every_row:
            raise shards.unknown_length(
                self, "rows may be left out (a filter, `where` or bad records)"
            )
        total = 0
        for name in self.shard_names:
            rows = self.get_shard_info(name).rows
            if rows is None:
                raise shards.unknown_length(
                    self, f"shard {name!r} does not report its number of rows"
                )
            total += rows
        return total

    def __bool__(self) -> bool:
        return True  # `if source:` must not ask for a length that may be unknown

    def map(self, fn: Callable[[Row], Row]) -> TransformedShardedSource:
        """Return a source of ``fn(row)`` for every row."""
        return TransformedShardedSource(self, fn, drops=False)

    def filter(self, fn: Callable[[Row], object]) -> TransformedShardedSource:
        """Return a source of the rows for which ``fn(row)`` is true; they keep their
        numbers.
        """
        return TransformedShardedSource(self, lambda row: row if fn(row) else None)

    def transform(
        self, transform: Transform | ExpandTransform
    ) -> TransformedShardedSource:
        """Return a source of what `transform` makes of every row: another row, None,
        or several rows.
        """
        return TransformedShardedSource(self, transform)

    def rename_fields(self, mapping: Mapping[str, str]) -> TransformedShardedSource:
        """Return a source with fields renamed, {old: new}; others stay, and so does the
        order.

        A row without one of the old fields, or where a new name is another field's, is
        an error.
        """
        return TransformedShardedSource(self, RenameFields(mapping), drops=False)

    def select_fields(self, fields: Sequence[str]) -> TransformedShardedSource:
        """Return a source with these fields alone, in this order; a row that lacks
        one is an error.
        """
        return TransformedShardedSource(self, SelectFields(fields), drops=False)

    def drop_fields(self, fields: Sequence[str]) -> TransformedShardedSource:
        """Return a source without these fields; a row that lacks one is fine."""
        return TransformedShardedSource(self, DropFields(fields), drops=False)

    def take(self, rows: int) -> LimitedShardedSource:
        """Return a source of the first rows alone."""
        return LimitedShardedSource(self, rows)

    def skip(self, rows: int) -> SkippedShardedSource:
        """Return a source without the first rows."""
        return SkippedShardedSource(self, rows)

    def shuffle(
        self, seed: int | None = None, buffer_size: int = 1000
    ) -> ShuffledShardedSource:
        """Return a source of the same rows: shards in another order, rows drawn at
        random from a buffer.
        """
        return ShuffledShardedSource(self, seed, buffer_size)

    @property
    def column_names(self) -> list[str] | None:
        """Names of the fields of the first row; None where there is no row."""
        first = next(iter(self), None)
        return None if first is None else list(first)

    def positions(self, start: Sequence[int] = (), share: Sequence[int] = ()) -> Placed:
        """Return (position, row) for the rows of a reader's share from a position on.

        Shards are opened right at a row, as well as they can: files of blocks and lines
        seek, a mixture lets each of its sources seek, a packed source packs again what
        comes before.

        Args:
            start: the integers of a :class:`RowPosition`; () for the first row.
            share: number of the reader and how many there are; () for one. Where there
                are as many shards, reader i of n has the shards i, i + n, ...; else
                every reader draws all rows and has the rows i, i + n, ... of them.
        """
        begin, (reader, readers) = RowPosition(*start), share or (0, 1)
        strides, ordinal = self.num_shards() < readers, begin.ordinal
        for shard, name in list(enumerate(self.shard_names))[begin.shard :]:
            if not strides and shard % readers != reader:
                continue
            again = shard == begin.shard
            last = passed = -1
            for number, row in self.open_shard_numbered(
                name, begin.number if again else 0
            ):
                passed = passed + 1 if number == last else 0
                last = number
                if again and number == begin.number and passed < begin.passed:
                    continue
                if not strides or ordinal % readers == reader:
                    yield RowPosition(ordinal, shard, number, passed), row
                ordinal += 1

    def to_torch(self, *, host: tuple[int, int] | None = None) -> Any:
        """Return a ``torch.utils.data.IterableDataset`` of the rows, each once over all
        processes and workers.

        Lists and arrays of numbers are tensors (whole numbers int64), all other values
        stay as they are. Its iterators and those of
        ``torchdata.stateful_dataloader.StatefulDataLoader`` resume exactly; see
        :class:`tokenlake.runtime.loader.torch.TorchRowStream`.

        Args:
            host: (rank, number of processes); None: as ``torch.distributed`` says,
                where it is initialised.

        Raises:
            MissingExtraError: PyTorch is not installed.
            ConfigError: this is one of several processes (``WORLD_SIZE``) and nobody
                says which.
        """
        from tokenlake.runtime.loader.torch import TorchRowStream

        return TorchRowStream(self, host)

    def to_hf(self, num_shards: int | None = None) -> Any:
        """Return a ``datasets.IterableDataset`` of the rows.

        What divides its shards among processes and workers
        (``datasets.distributed.split_dataset_by_node``, a ``DataLoader``, a
        ``Trainer``) gives each row to one of them; ``state_dict`` and
        ``load_state_dict`` resume exactly, by passing over the rows of one shard.

        Args:
            num_shards: shards in the sense of ``datasets``; None: as many as the source
                has. With more, each draws all rows and has every n-th of them.

        Raises:
            MissingExtraError: ``datasets`` is not installed.
            ConfigError: `num_shards` is no whole number from 1 on.
        """
        from tokenlake.runtime.loader.hf import hf_rows

        if num_shards is None:
            num_shards = self.num_shards()
        return hf_rows(self, whole_number("num_shards", num_shards, 1))

    def apply_chat_template(
        self,
        tokenizer: Any,
        messages_field: str = "messages",
        output_field: str = "text",
        **options: Any,
    ) -> TransformedShardedSource:
        """Return a source whose rows have their conversation as a text, by the
        tokenizer's chat template.

        Args:
            tokenizer: Hub id, path, or a tokenizer of transformers.
            options: of :class:`tokenlake.ChatTemplateTransform`.
        """
        transform = ChatTemplateTransform(
            tokenizer, messages_field, output_field, **options
        )
        return TransformedShardedSource(self, transform, drops=False)


class NumberedSource(ShardedDataSource):
    """The base of all sources of the library: one defines where rows begin, and
    everything else follows of it.

    A class defines `_names` (or `shard_names`), :meth:`_rows` and, where a shard's rows
    are known without reading, :meth:`_count`.

    Attributes:
        meter: counts what is drawn; None: nobody asks.
    """

    meter: RowMeter | None = None
    _names: Sequence[str] = ()

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    @abstractmethod
    def _rows(self, index: int, row: int) -> Numbered:
        """Return (number, row) for the rows of the shard at `index` from number
        `row` on.
        """

    def _count(self, index: int) -> int | None:
        """Return how many rows the shard at `index` has, None where only reading
        would tell.
        """
        return None

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.shard_names)}

    def _index(self, name: str) -> int:
        place = self._places.get(name)
        return shards.index_of(name, self.shard_names) if place is None else place

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return self.open_shard_at_row(shard_name, 0)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        rows = self._rows(self._index(shard_name), whole_number("row", row, 0))
        return rows if self.meter is None else self.meter.counted(rows)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        index = self._index(shard_name)
        return ShardInfo(name=shard_name, index=index, rows=self._count(index))


class DerivedSource(NumberedSource):
    """A source with the shards of another one, `_source`."""

    _source: ShardedDataSource

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    @property
    def every_row(self) -> bool:
        return self._source.every_row

    @property
    def endless(self) -> bool:
        return self._source.endless

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._source.get_shard_info(shard_name)


@final
class TransformedShardedSource(DerivedSource):
    """Another source's shards with every row transformed; rows keep their numbers, so
    seeking is the same.

    All rows that an expanding transform makes of one have its number. To resume among
    them, open the shard at that number and drop those that you had.
    """

    def __init__(
        self,
        source: ShardedDataSource,
        transform: Transform | ExpandTransform,
        *,
        drops: bool = True,
        on_bad_record: Literal["fail", "quarantine"] = "fail",
        what: str = "a transform",
    ) -> None:
        """Apply `transform` to the rows of `source`.

        Args:
            transform: a function of a row, any `Transform` or a chain of them, or an
                `ExpandTransform`.
            drops: it may return None, which leaves the row out.
            on_bad_record: ``quarantine`` leaves out the rows that it cannot use;
                ``fail`` raises for the first.
            what: what messages call the transform.
        """
        if not isinstance(transform, ExpandTransform) and not callable(transform):  # pyright: ignore[reportUnnecessaryComparison]
            raise expected("transform", transform, "a function of a row")
        require_one_of("on_bad_record", on_bad_record, ("fail", "quarantine"))
        self._source, self._transform = source, transform
        self._drops, self._fails, self._what = drops, on_bad_record == "fail", what

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        return self._source.versions

    @property
    def every_row(self) -> bool:
        steps = (
            self._transform.steps
            if isinstance(self._transform, ChainedTransform)
            else (self._transform,)
        )
        expands = any(isinstance(step, ExpandTransform) for step in steps)
        return (
            self._source.every_row and not self._drops and self._fails and not expands
        )

    def _rows(self, index: int, row: int) -> Numbered:
        """Yield the results of the transform for the rows from number `row` on, each
        with the number of its row.
        """
        shard = self.shard_names[index]
        transform = self._transform
        expands = isinstance(transform, ChainedTransform | ExpandTransform)
        for number, source_row in self._source.open_shard_numbered(shard, row):
            try:
                results = (
                    transform.expand(source_row)
                    if expands
                    else (transform(source_row),)
                )
            except BadRecordError as error:
                if self._fails:
                    raise shards.bad_row(
                        shard, number, str(error), **error.details
                    ) from error
                continue
            except Exception as error:
                error.add_note(
                    f"raised by {self._what} of shard {shard!r}, row {number}"
                )
                raise
            for result in results:
                if result is None and self._drops and not expands:
                    continue
                if not isinstance(result, dict):
                    raise shards.no_row(
                        shard, number, result, self._what, drops=self._drops
                    )
                yield number, result


class CountedSource(DerivedSource):
    """A source whose first rows, in the order of its shards, are all there is of it, or
    are left out.

    All shards stay, perhaps without rows, and rows keep their numbers. To open a shard
    in the middle, the rows that come out before it are counted: by metadata where they
    tell, else by reading.
    """

    def __init__(self, source: ShardedDataSource, rows: int) -> None:
        self._source, self._first = source, rows
        # Of the first rows, those that are not in the shards before; grows with what is
        # counted.
        self._lefts = [rows]

    def _left(self, index: int) -> int:
        """Return how many of the first rows may come out of the shard at `index`."""
        while len(self._lefts) <= index:
            left = self._lefts[-1]
            self._lefts.append(
                left - (self._counted(len(self._lefts) - 1, left) if left else 0)
            )
        return self._lefts[index]

    def _still(self, index: int, row: int) -> int:
        """Return how many of the first rows come out of a shard from number `row`
        on, at most.
        """
        left = self._left(index)
        return max(
            left - (row if self.every_row else self._counted(index, left, before=row)),
            0,
        )

    def _counted(self, index: int, left: int, before: int | None = None) -> int:
        """Return how many rows come out of a shard, at most `left`; only those
        numbered below `before`.
        """
        name = self.shard_names[index]
        if self.every_row and before is None:
            row_count = self._source.get_shard_info(name).rows
            if row_count is not None:
                return min(row_count, left)
        rows = self._source.open_shard_numbered(name) if before != 0 else ()
        numbers = takewhile(
            lambda number: before is None or number < before,
            (number for number, _ in rows),
        )
        return sum(1 for _ in islice(numbers, left))


@final
class LimitedShardedSource(CountedSource):
    """At most `max_rows` of the rows that come out of a source; a row after the
    limit gives nothing.
    """

    def __init__(self, source: ShardedDataSource, max_rows: int) -> None:
        """Limit `source`; ConfigError unless `max_rows` is a whole number from 0 on."""
        super().__init__(source, whole_number("max_rows", max_rows, 0))

    @property
    def endless(self) -> bool:
        return False

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._source.get_shard_info(shard_name)
        if not self.every_row:
            return replace(info, rows=None)
        names = self.shard_names[: info.index + 1]
        rows = [self._source.get_shard_info(name).rows for name in names]
        return replace(info, rows=shards.limited(rows, self._first))

    def _rows(self, index: int, row: int) -> Numbered:
        rows = self._source.open_shard_numbered(self.shard_names[index], row)
        yield from islice(rows, self._still(index, row))


@final
class SkippedShardedSource(CountedSource):
    """The rows of a source behind its first ones, which are passed over by their
    numbers where none is left out.
    """

    def __init__(self, source: ShardedDataSource, rows: int) -> None:
        """Leave the first rows of `source` out; ConfigError unless `rows` is a whole
        number from 0 on.
        """
        super().__init__(source, whole_number("rows", rows, 0))

    @property
    def every_row(self) -> bool:
        return self._source.every_row and not self._first

    def __len__(self) -> int:
        return max(0, len(self._source) - self._first)

    def _rows(self, index: int, row: int) -> Numbered:
        name = self.shard_names[index]
        if self._source.every_row:
            left = self._left(index)
            row = max(row, left if self.endless else self._counted(index, left))
            return self._source.open_shard_numbered(name, row)
        return islice(
            self._source.open_shard_numbered(name, row), self._still(index, row), None
        )


@final
class ShuffledShardedSource(DerivedSource):
    """The shards of a source in an order that a seed decides, the rows of each drawn at
    random from a buffer.

    A row's number is its place in the shuffled shard; those before it are drawn again
    to open there.
    """

    def __init__(
        self,
        source: ShardedDataSource,
        seed: int | None = None,
        buffer_size: int = 1000,
    ) -> None:
        """Shuffle `source`; ConfigError where an argument is not what is allowed.

        Args:
            seed: of the order; None is 0.
            buffer_size: rows that are held, from which one is drawn.
        """
        self._source, self._seed = source, whole_number("seed", seed or 0)
        self._size = whole_number("buffer_size", buffer_size, 1)

    @property
    def shard_names(self) -> Sequence[str]:
        names = tuple(self._source.shard_names)
        return [
            names[place] for place in shuffled(len(names), key_of(self._seed)).tolist()
        ]

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._source.get_shard_info(shard_name)
        rows = info.rows if self._source.every_row else None
        return replace(info, index=self._index(shard_name), rows=rows)

    @property
    def every_row(self) -> bool:
        return True

    def _rows(self, index: int, row: int) -> Numbered:
        name = self.shard_names[index]
        rows = shuffled_by_buffer(
            self._source.open_shard(name), self._size, key_of(self._seed, index)
        )
        return shards.rows_from(row, rows, name)
