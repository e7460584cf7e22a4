"""Contract of every source of rows: named shards, each of which opens at any row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
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
    out, so a number stays the same whatever is done with the rows, and a seek reads
    none of the rows before. To resume exactly, keep the number of the last row
    consumed (:meth:`open_shard_numbered` gives it) and open the shard at the next one.

    A custom source defines `shard_names` and `open_shard`. If seeking can be better
    than reading from the start, or if rows are left out, it also defines
    `open_shard_numbered` and `every_row`.
    """

    @property
    @abstractmethod
    def shard_names(self) -> Sequence[str]:
        """Names of the shards, all different, in a fixed order."""

    @abstractmethod
    def open_shard(self, shard_name: str) -> Iterator[Row]:
        """Return the rows of a shard.

        Raises:
            ConfigError: No shard has that name.
            SourceError: A record is bad and the policy is ``fail``, or a file cannot be
                used. It is raised when the row is drawn.
        """

    @property
    def every_row(self) -> bool:
        """Whether every row is yielded, so that numbers have no gaps."""
        return True

    @property
    def endless(self) -> bool:
        """Whether rows never end."""
        return False

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        """Path or URL, bytes and version token of every file, as they were listed.

        It is empty for sources without files.
        """
        return ()

    def num_shards(self) -> int:
        """Return the number of shards."""
        return len(self.shard_names)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        """Return (row number, row) for the rows of a shard from number `row` on.

        Raises:
            ConfigError: No shard has that name, or `row` is negative. If `row` is
                beyond the end, it is raised when a row is drawn. The number of rows
                itself is allowed, and gives nothing.
            SourceError: A row cannot be used, as in :meth:`open_shard`.
        """
        whole_number("row", row, 0)
        return shards.rows_from(row, self.open_shard(shard_name), shard_name)

    def open_shard_at_row(self, shard_name: str, row: int) -> Iterator[Row]:
        """Return the rows of a shard from number `row` on.

        Errors are those of :meth:`open_shard_numbered`.
        """
        return (row for _, row in self.open_shard_numbered(shard_name, row))

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return the properties of a shard that are known without reading it.

        Raises:
            ConfigError: No shard has that name.
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
        # One worker reads in the caller's thread.
        ahead = 0
        if workers != 1:
            ahead = whole_number("workers", workers, 1)
        selected = [names[index] for index in indices][start_shard:]
        return shards.rows_in_turn(self.open_shard_at_row, selected, start_row, ahead)

    def __iter__(self) -> Iterator[Row]:
        return self.iter_shards()

    def __len__(self) -> int:
        """Return the exact number of rows.

        Raises:
            TypeError: Only reading all rows can tell.
        """
        # Numbers of rows are those of the stored shards, without gaps.
        if not self.every_row:
            raise shards.unknown_length(
                self, "rows may be left out (a filter, `where` or bad records)"
            )
        row_count = 0
        for shard_name in self.shard_names:
            rows = self.get_shard_info(shard_name).rows
            if rows is None:
                raise shards.unknown_length(
                    self, f"shard {shard_name!r} does not report its number of rows"
                )
            row_count += rows
        return row_count

    def __bool__(self) -> bool:
        return True  # `if source:` must not ask for a length that may be unknown

    def map(self, fn: Callable[[Row], Row]) -> TransformedShardedSource:
        """Return a source of ``fn(row)`` for every row."""
        return TransformedShardedSource(self, fn, drops=False)

    def filter(self, fn: Callable[[Row], object]) -> TransformedShardedSource:
        """Return a source of the rows for which ``fn(row)`` is true.

        They keep their numbers.
        """
        return TransformedShardedSource(self, lambda row: row if fn(row) else None)

    def transform(
        self, transform: Transform | ExpandTransform
    ) -> TransformedShardedSource:
        """Return a source of the results of `transform` for every row.

        A result is another row, None, or several rows.
        """
        return TransformedShardedSource(self, transform)

    def rename_fields(self, mapping: Mapping[str, str]) -> TransformedShardedSource:
        """Return a source with fields renamed, {old: new}.

        Other fields stay, and so does the order.

        A row without one of the old fields, or where a new name is another field's, is
        an error.
        """
        return TransformedShardedSource(self, RenameFields(mapping), drops=False)

    def select_fields(self, fields: Sequence[str]) -> TransformedShardedSource:
        """Return a source with these fields alone, in this order.

        A row that lacks one of them is an error.
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
        """Return a source of the same rows in a random order.

        Shards are in another order, and rows are drawn at random from a buffer.
        """
        return ShuffledShardedSource(self, seed, buffer_size)

    @property
    def column_names(self) -> list[str] | None:
        """Names of the fields of the first row; None without rows."""
        first_row = next(iter(self), None)
        if first_row is None:
            return None
        return list(first_row)

    def positions(self, start: Sequence[int] = (), share: Sequence[int] = ()) -> Placed:
        """Return (position, row) for the rows of a reader's share from a position on.

        Shards are opened right at a row, as well as they can: files of blocks and lines
        seek, a mixture lets each of its sources seek, a packed source packs the rows
        before it again.

        Args:
            start: Integers of a :class:`RowPosition`; () for the first row.
            share: Number of the reader and number of readers; () for one. If there are
                at least as many shards, reader i of n has the shards i, i + n, ...
                Otherwise every reader draws all rows and has the rows i, i + n, ... of
                them.
        """
        begin = RowPosition(*start)
        reader, readers = share or (0, 1)
        # With fewer shards than readers, rows are divided instead of shards.
        divides_rows = self.num_shards() < readers
        ordinal = begin.ordinal
        for shard_index, shard_name in list(enumerate(self.shard_names))[begin.shard :]:
            if not divides_rows and shard_index % readers != reader:
                continue
            is_first_shard = shard_index == begin.shard
            first_number = begin.number if is_first_shard else 0
            # Rows of one number are counted: an expanding transform makes several, of
            # which the first ones may have been read.
            last_number = -1
            passed = -1
            for number, row in self.open_shard_numbered(shard_name, first_number):
                passed = passed + 1 if number == last_number else 0
                last_number = number
                is_begin = is_first_shard and number == begin.number
                if is_begin and passed < begin.passed:
                    continue
                if not divides_rows or ordinal % readers == reader:
                    yield RowPosition(ordinal, shard_index, number, passed), row
                ordinal += 1

    def to_torch(self, *, host: tuple[int, int] | None = None) -> Any:
        """Return a ``torch.utils.data.IterableDataset`` of the rows.

        Each row is delivered once over all processes and workers.

        Lists and arrays of numbers are tensors (whole numbers int64), all other values
        stay as they are. Its iterators and those of
        ``torchdata.stateful_dataloader.StatefulDataLoader`` resume exactly; see
        :class:`tokenlake.runtime.loader.torch.TorchRowStream`.

        Args:
            host: (rank, number of processes); None: those of ``torch.distributed``, if
                it is initialised.

        Raises:
            MissingExtraError: PyTorch is not installed.
            ConfigError: This is one of several processes (``WORLD_SIZE``), and its rank
                is not known.
        """
        from tokenlake.runtime.loader.torch import TorchRowStream

        return TorchRowStream(self, host)

    def to_hf(self, num_shards: int | None = None) -> Any:
        """Return a ``datasets.IterableDataset`` of the rows.

        Its shards are divided by ``datasets.distributed.split_dataset_by_node``, a
        ``DataLoader`` or a ``Trainer`` among processes and workers, so that each row is
        delivered to one of them. ``state_dict`` and ``load_state_dict`` resume exactly,
        by passing over the rows of one shard.

        Args:
            num_shards: Number of shards in the sense of ``datasets``; None: that of the
                source. If there are more, each draws all rows and has every n-th of
                them.

        Raises:
            MissingExtraError: ``datasets`` is not installed.
            ConfigError: `num_shards` is not a whole number from 1 on.
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
        """Return a source whose rows have their conversation as a text.

        The text is made by the tokenizer's chat template.

        Args:
            tokenizer: Hub id, path, or a tokenizer of transformers.
            messages_field: Field of the conversation.
            output_field: Field of the text.
            options: Options of :class:`tokenlake.ChatTemplateTransform`.
        """
        transform = ChatTemplateTransform(
            tokenizer, messages_field, output_field, **options
        )
        return TransformedShardedSource(self, transform, drops=False)


class NumberedSource(ShardedDataSource):
    """Base of all sources of the library.

    A class defines where rows begin, and everything else follows from that: `_names`
    (or `shard_names`), :meth:`_rows` and, if the number of a shard's rows is known
    without reading, :meth:`_count`.

    Attributes:
        meter: Counter of the rows that are drawn; None for no counter.
    """

    meter: RowMeter | None = None
    _names: Sequence[str] = ()

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    @abstractmethod
    def _rows(self, index: int, row: int) -> Numbered:
        """Return (number, row) for the rows of a shard from number `row` on.

        The shard is the one at `index`.
        """

    def _count(self, index: int) -> int | None:
        """Return the number of rows of the shard at `index`.

        It is None if only reading the shard can tell.
        """
        return None

    @cached_property
    def _places(self) -> dict[str, int]:
        """Index of each shard, by name."""
        return {
            shard_name: shard_index
            for shard_index, shard_name in enumerate(self.shard_names)
        }

    def _index(self, name: str) -> int:
        """Return the index of a shard; ConfigError if no shard has this name."""
        shard_index = self._places.get(name)
        if shard_index is None:
            # Raises an error that names near matches.
            return shards.index_of(name, self.shard_names)
        return shard_index

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return self.open_shard_at_row(shard_name, 0)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        rows = self._rows(self._index(shard_name), whole_number("row", row, 0))
        if self.meter is None:
            return rows
        return self.meter.counted(rows)

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
    """Another source's shards with every row transformed.

    Rows keep their numbers, so that seeking is the same.

    All rows that an expanding transform makes of one row have its number. To resume
    among them, open the shard at that number and drop those that were read already.
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
            source: Source of the rows.
            transform: Function of a row, any `Transform` or a chain of them, or an
                `ExpandTransform`.
            drops: Whether it may return None, which leaves the row out.
            on_bad_record: ``quarantine`` leaves out the rows that it cannot use;
                ``fail`` raises an error for the first of them.
            what: Name of the transform in messages.
        """
        if not isinstance(transform, ExpandTransform) and not callable(transform):  # pyright: ignore[reportUnnecessaryComparison]
            raise expected("transform", transform, "a function of a row")
        require_one_of("on_bad_record", on_bad_record, ("fail", "quarantine"))
        self._source = source
        self._transform = transform
        self._drops = drops
        self._fails = on_bad_record == "fail"
        self._transform_name = what

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        return self._source.versions

    @property
    def every_row(self) -> bool:
        steps: Sequence[object] = (self._transform,)
        if isinstance(self._transform, ChainedTransform):
            steps = self._transform.steps
        expands = any(isinstance(step, ExpandTransform) for step in steps)
        keeps_rows = not self._drops and self._fails and not expands
        return self._source.every_row and keeps_rows

    def _rows(self, index: int, row: int) -> Numbered:
        """Yield the results of the transform for the rows from number `row` on.

        Each result has the number of its row.
        """
        shard = self.shard_names[index]
        transform = self._transform
        expands = isinstance(transform, ChainedTransform | ExpandTransform)
        for number, source_row in self._source.open_shard_numbered(shard, row):
            try:
                if expands:
                    results: Iterable[Any] = transform.expand(source_row)
                else:
                    results = (transform(source_row),)
            except BadRecordError as error:
                if self._fails:
                    raise shards.bad_row(
                        shard, number, str(error), **error.details
                    ) from error
                continue
            except Exception as error:
                error.add_note(
                    f"raised by {self._transform_name} of shard {shard!r}, row {number}"
                )
                raise
            # A chain leaves rows out by giving no result.
            for result in results:
                if result is None and self._drops and not expands:
                    continue
                if not isinstance(result, dict):
                    raise shards.no_row(
                        shard, number, result, self._transform_name, drops=self._drops
                    )
                yield number, result


class CountedSource(DerivedSource):
    """Part of a source that is found by counting its first rows.

    The first rows, in the order of the shards, are all of it, or are left out.

    All shards stay, perhaps without rows, and rows keep their numbers. To open a shard
    in its middle, the rows before it are counted: by metadata if there are any, else by
    reading.
    """

    def __init__(self, source: ShardedDataSource, rows: int) -> None:
        self._source = source
        self._first = rows
        # Number of the first rows that are not in the shards before each shard. It
        # grows as shards are counted.
        self._lefts = [rows]

    def _left(self, index: int) -> int:
        """Return the number of the first rows that may be in the shard at `index`."""
        while len(self._lefts) <= index:
            left = self._lefts[-1]
            if left:
                left -= self._counted(len(self._lefts) - 1, left)
            self._lefts.append(left)
        return self._lefts[index]

    def _still(self, index: int, row: int) -> int:
        """Return the most first rows that a shard may have from number `row` on."""
        left = self._left(index)
        rows_before = row
        if not self.every_row:
            rows_before = self._counted(index, left, before=row)
        return max(left - rows_before, 0)

    def _counted(self, index: int, left: int, before: int | None = None) -> int:
        """Return the number of rows of a shard, at most `left`.

        With `before`, only rows with lower numbers count.
        """
        shard_name = self.shard_names[index]
        if self.every_row and before is None:
            row_count = self._source.get_shard_info(shard_name).rows
            if row_count is not None:
                return min(row_count, left)
        if before == 0:
            return 0
        # Rows may be left out: count those that are yielded.
        row_count = 0
        for number, _ in islice(self._source.open_shard_numbered(shard_name), left):
            if before is not None and number >= before:
                break
            row_count += 1
        return row_count


@final
class LimitedShardedSource(CountedSource):
    """At most `max_rows` of the rows of a source.

    A row after the limit gives nothing.
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
        rows = [self._source.get_shard_info(name_before).rows for name_before in names]
        return replace(info, rows=shards.limited(rows, self._first))

    def _rows(self, index: int, row: int) -> Numbered:
        rows = self._source.open_shard_numbered(self.shard_names[index], row)
        yield from islice(rows, self._still(index, row))


@final
class SkippedShardedSource(CountedSource):
    """Rows of a source after its first ones.

    The first rows are passed over by their numbers if no row is left out.
    """

    def __init__(self, source: ShardedDataSource, rows: int) -> None:
        """Leave the first rows of a source out.

        Args:
            source: Source of the rows.
            rows: Number of the first rows, from 0 on.

        Raises:
            ConfigError: The number is not allowed.
        """
        super().__init__(source, whole_number("rows", rows, 0))

    @property
    def every_row(self) -> bool:
        return self._source.every_row and not self._first

    def __len__(self) -> int:
        return max(0, len(self._source) - self._first)

    def _rows(self, index: int, row: int) -> Numbered:
        shard_name = self.shard_names[index]
        # Without gaps, the first rows of the shard are those with the lowest numbers.
        if self._source.every_row:
            left = self._left(index)
            first_number = left
            if not self.endless:
                first_number = self._counted(index, left)
            row = max(row, first_number)
            return self._source.open_shard_numbered(shard_name, row)
        rows = self._source.open_shard_numbered(shard_name, row)
        return islice(rows, self._still(index, row), None)


@final
class ShuffledShardedSource(DerivedSource):
    """Shards of a source in a random order, with rows drawn at random from a buffer.

    The order is a function of the seed. The number of a row is its place in the
    shuffled shard; to open there, the rows before it are drawn again.
    """

    def __init__(
        self,
        source: ShardedDataSource,
        seed: int | None = None,
        buffer_size: int = 1000,
    ) -> None:
        """Shuffle a source.

        Args:
            source: Source of the rows.
            seed: Random seed of the order; None is 0.
            buffer_size: Number of rows that are held, from which one is drawn.

        Raises:
            ConfigError: An argument is not allowed.
        """
        self._source = source
        self._seed = whole_number("seed", seed or 0)
        self._size = whole_number("buffer_size", buffer_size, 1)

    @property
    def shard_names(self) -> Sequence[str]:
        names = tuple(self._source.shard_names)
        order = shuffled(len(names), key_of(self._seed)).tolist()
        return [names[shard_index] for shard_index in order]

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        info = self._source.get_shard_info(shard_name)
        rows: int | None = None
        if self._source.every_row:
            rows = info.rows
        return replace(info, index=self._index(shard_name), rows=rows)

    @property
    def every_row(self) -> bool:
        return True

    def _rows(self, index: int, row: int) -> Numbered:
        shard_name = self.shard_names[index]
        rows = shuffled_by_buffer(
            self._source.open_shard(shard_name), self._size, key_of(self._seed, index)
        )
        return shards.rows_from(row, rows, shard_name)
