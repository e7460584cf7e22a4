"""The contract of every source of rows, and the source that a function makes of another.

Rows, and functions of one row. Rows given in are never changed.

What is known of a shard without reading it.

A transform applied to the numbered rows of a shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.text.chat.renderer import ChatTemplateTransform
from tokenlake.text.fields import DropFields, RenameFields, SelectFields
from tokenlake.text.transform import ChainedTransform, ExpandTransform

Row = dict[str, Any]
Transform = Callable[[Row], Row | None]
"""A function of a row; None leaves the row out."""


def keeping(predicate: Callable[[Row], object]) -> Transform:
    """Return a transform that keeps the rows for which `predicate` is true."""
    return lambda row: row if predicate(row) else None


def renaming(mapping: Mapping[str, str]) -> Callable[[Row], Row]:
    """Return a transform that renames fields, {old: new}; two may swap names."""
    return RenameFields(mapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """One shard of a source.

    Attributes:
        name: as in ``shard_names``.
        index: its place in ``shard_names``.
        url: path of a local file, or URL without credentials; None for what lies in memory.
        format: such as ``parquet`` or ``jsonl``; None for what lies in memory.
        compression: of the file as a whole (``gzip``, ``zstd``), None for none.
        bytes: as stored, exact; None for what lies in memory.
        rows: how many rows are numbered, good or bad, kept or filtered out; exact. None where only
            reading the shard would tell (lines, JSON arrays, CSV, Arrow streams, whatever is compressed).
    """

    name: str
    index: int
    url: str | None = None
    format: str | None = None
    compression: str | None = None
    bytes: int | None = None
    rows: int | None = None


def index_of(name: str, names: Sequence[str]) -> int:
    """Return the place of a shard among all; ConfigError if there is no such shard."""
    try:
        return names.index(name)
    except ValueError:
        pass
    shown = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    raise ConfigError(
        f"no shard is named {name!r}{did_you_mean(name, names)}. There are {len(names)}: {shown or 'none'}.",
        got=name,
    )


def check_row(row: int) -> None:
    """Raise ConfigError unless `row` is a whole number from 0 on."""
    if isinstance(row, bool) or not hasattr(row, "__index__") or row < 0:
        raise ConfigError(f"row: got {row!r}, must be a whole number from 0 on", got=repr(row))


def beyond(name: str, row: int, rows: int) -> ConfigError:
    """Return the error for a row after the end of a shard."""
    return ConfigError(
        f"shard {name!r}: row {row} is beyond its end; it has {rows} rows, numbered from 0, and reading "
        f"may begin at any of them or at {rows}, which gives nothing",
        shard=name,
        row=row,
        rows=rows,
    )


TransformedNumbered = Iterator[tuple[int, Row]]
Policy = Literal["fail", "quarantine"]


@final
class Applied:
    """What a transform makes of rows. All that it makes of a row has the row's number."""

    def __init__(self, transform: Transform | ExpandTransform, *, drops: bool, on_bad_record: Policy) -> None:
        """Take the transform.

        Args:
            drops: it may leave rows out.
            on_bad_record: ``quarantine`` leaves a row out that a BadRecordError is raised for.
        """
        if not isinstance(transform, ExpandTransform) and not callable(transform):  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigError(f"transform: got {transform!r}, must be a function of a row")
        if on_bad_record not in ("fail", "quarantine"):
            raise ConfigError(f"on_bad_record: got {on_bad_record!r}, must be 'fail' or 'quarantine'")
        self._transform, self.drops, self._policy = transform, drops, on_bad_record

    @property
    def every_row(self) -> bool:
        """Whether exactly one row comes out of each."""
        return not self.drops and self._policy == "fail" and not self._expands

    @property
    def _expands(self) -> bool:
        if isinstance(self._transform, ChainedTransform):
            return any(isinstance(step, ExpandTransform) for step in self._transform.steps)
        return isinstance(self._transform, ExpandTransform)

    def rows(self, shard: str, rows: TransformedNumbered) -> TransformedNumbered:
        """Yield (number, row) for all that is made of `rows`.

        Raises:
            BadRecordError: a row cannot be used, and the policy is ``fail``.
            ConfigError: the transform made something that is no row.
        """
        for number, row in rows:
            try:
                made = self._made(row)
            except BadRecordError as error:
                if self._policy == "quarantine":
                    continue
                place = f"shard {shard!r}, row {number}"
                raise BadRecordError(f"{place}: {error}", **error.details, shard=shard, row=number) from error
            except Exception as error:
                error.add_note(f"raised by a transform of shard {shard!r}, row {number}")
                raise
            for result in made:
                if not isinstance(result, dict):
                    raise self._refused(shard, number, result)
                yield number, result

    def _made(self, row: Row) -> Sequence[Any]:
        if isinstance(self._transform, ChainedTransform | ExpandTransform):
            return self._transform.expand(row)
        result = self._transform(row)
        return () if result is None and self.drops else (result,)

    def _refused(self, shard: str, number: int, result: object) -> ConfigError:
        hint = " or None, which leaves the row out" if self.drops else "; `filter` leaves rows out"
        return ConfigError(
            f"shard {shard!r}, row {number}: a transform returned {type(result).__name__}, must be a dict{hint}",
            shard=shard,
            row=number,
        )


Numbered = Iterator[tuple[int, Row]]


class ShardedDataSource(ABC):
    """Rows (dicts) in named shards, each of which can be opened at any of its rows.

    A row's number is its place in its shard as it is stored, from 0 on. All records count, also bad ones
    that were set aside and those that a filter or `where` leaves out, so a number stays what it is whatever
    is done with the rows, and a seek reads nothing of what is before. To resume exactly, keep the number of
    the last row consumed (:meth:`open_shard_numbered` gives it) and open the shard at the next one.

    A source of your own defines `shard_names` and `open_shard`; where seeking can be better than reading
    from the start, or where rows are left out, also `open_shard_numbered` and `every_row`.
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
            SourceError: a record is bad and the policy is ``fail``, or a file cannot be used; raised
                when the iteration comes there.
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
        """Path or URL, bytes and version token of every file, as they were listed; empty where there are none."""
        return ()

    def num_shards(self) -> int:
        """Return how many shards there are."""
        return len(self.shard_names)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        """Return (row number, row) for the rows of a shard from number `row` on.

        Raises:
            ConfigError: no shard has that name, or `row` is negative; as soon as a row is asked for,
                if `row` is beyond the end (the number of rows itself is not: nothing comes).
            SourceError: as :meth:`open_shard`.
        """
        check_row(row)
        return _dropping(shard_name, self.open_shard(shard_name), row)

    def open_shard_at_row(self, shard_name: str, row: int) -> Iterator[Row]:
        """Return the rows of a shard from number `row` on; raises as :meth:`open_shard_numbered`."""
        return without_numbers(self.open_shard_numbered(shard_name, row))

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        """Return what is known of a shard without reading it; ConfigError if there is no such shard."""
        return ShardInfo(name=shard_name, index=index_of(shard_name, self.shard_names))

    def iter_shards(
        self, shard_indices: Sequence[int] | None = None, start_shard: int = 0, start_row: int = 0
    ) -> Iterator[Row]:
        """Return the rows of several shards, one after the other.

        Args:
            shard_indices: places in `shard_names`, in the order wanted; None for all.
            start_shard: place in `shard_indices` (or of all) to begin at.
            start_row: number of the row in that shard to begin at.

        Raises:
            ConfigError: there is no such shard, or `start_row` is beyond its end.
        """
        names = self.shard_names
        indices = range(len(names)) if shard_indices is None else shard_indices
        for index in indices:
            _check_place("shard_indices", index, len(names) - 1)
        _check_place("start_shard", start_shard, len(indices))
        check_row(start_row)
        return self._rows_of([names[index] for index in indices][start_shard:], start_row)

    def _rows_of(self, names: list[str], row: int) -> Iterator[Row]:
        for position, name in enumerate(names):
            yield from self.open_shard_at_row(name, 0 if position else row)

    def __iter__(self) -> Iterator[Row]:
        return self.iter_shards()

    def __len__(self) -> int:
        """Return how many rows come out, exactly; TypeError where only reading them all would tell."""
        total = 0
        for name in self.shard_names if self.every_row else ():
            rows = self.get_shard_info(name).rows
            if rows is None:
                raise _unknown_length(self, f"shard {name!r} does not say how many rows it has")
            total += rows
        if not self.every_row:
            raise _unknown_length(self, "rows may be left out (a filter, `where` or bad records)")
        return total

    def __bool__(self) -> bool:
        return True  # `if source:` must not ask for a length that may be unknown

    def map(self, fn: Callable[[Row], Row]) -> TransformedShardedSource:
        """Return a source of ``fn(row)`` for every row."""
        return TransformedShardedSource(self, fn, drops=False)

    def filter(self, fn: Callable[[Row], object]) -> TransformedShardedSource:
        """Return a source of the rows for which ``fn(row)`` is true; they keep their numbers."""
        return TransformedShardedSource(self, keeping(fn))

    def transform(self, transform: Transform | ExpandTransform) -> TransformedShardedSource:
        """Return a source of what `transform` makes of every row: another row, None, or several rows."""
        return TransformedShardedSource(self, transform)

    def rename_fields(self, mapping: Mapping[str, str]) -> TransformedShardedSource:
        """Return a source with fields renamed, {old: new}; others stay, and so does the order.

        A row without one of the old fields, or where a new name is another field's, is an error.
        """
        return TransformedShardedSource(self, RenameFields(mapping), drops=False)

    def select_fields(self, fields: Sequence[str]) -> TransformedShardedSource:
        """Return a source with these fields alone, in this order; a row that lacks one is an error."""
        return TransformedShardedSource(self, SelectFields(fields), drops=False)

    def drop_fields(self, fields: Sequence[str]) -> TransformedShardedSource:
        """Return a source without these fields; a row that lacks one is fine."""
        return TransformedShardedSource(self, DropFields(fields), drops=False)

    def apply_chat_template(
        self, tokenizer: Any, messages_field: str = "messages", output_field: str = "text", **options: Any
    ) -> TransformedShardedSource:
        """Return a source whose rows have their conversation as a text, by the tokenizer's chat template.

        Args:
            tokenizer: Hub id, path, or a tokenizer of transformers.
            options: of :class:`tokenlake.text.chat.renderer.ChatTemplateTransform`.
        """
        transform = ChatTemplateTransform(tokenizer, messages_field, output_field, **options)
        return TransformedShardedSource(self, transform, drops=False)


@final
class TransformedShardedSource(ShardedDataSource):
    """Another source's shards with every row transformed; rows keep their numbers, so seeking is the same.

    All rows that an expanding transform makes of one have its number. Who stops among them resumes at that number,
    and passes over those that it had.
    """

    def __init__(
        self,
        source: ShardedDataSource,
        transform: Transform | ExpandTransform,
        *,
        drops: bool = True,
        on_bad_record: Policy = "fail",
    ) -> None:
        """Apply `transform` to the rows of `source`.

        Args:
            transform: a function of a row, any `Transform` or a chain of them, or an `ExpandTransform`.
            drops: it may return None, which leaves the row out.
            on_bad_record: ``quarantine`` leaves out the rows that it cannot use; ``fail`` raises for the first.
        """
        self._source = source
        self._applied = Applied(transform, drops=drops, on_bad_record=on_bad_record)

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    @property
    def every_row(self) -> bool:
        return self._source.every_row and self._applied.every_row

    @property
    def endless(self) -> bool:
        return self._source.endless

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        return self._source.versions

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return without_numbers(self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        return self._applied.rows(shard_name, self._source.open_shard_numbered(shard_name, row))

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._source.get_shard_info(shard_name)


def without_numbers(rows: Numbered) -> Iterator[Row]:
    """Return the rows alone."""
    return (row for _, row in rows)


def _dropping(name: str, rows: Iterator[Row], first: int) -> Numbered:
    count = 0
    for count, row in enumerate(rows, start=1):
        if count > first:
            yield count - 1, row
    if first > count:
        raise beyond(name, first, count)


def _check_place(what: str, value: int, largest: int) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= value <= largest:
        allowed = f"must be from 0 to {largest}" if largest >= 0 else "there are no shards"
        raise ConfigError(f"{what}: got {value!r}, {allowed}", got=repr(value))


def _unknown_length(source: ShardedDataSource, why: str) -> TypeError:
    return TypeError(f"the length of this {type(source).__name__} is unknown: {why}; count its rows")
