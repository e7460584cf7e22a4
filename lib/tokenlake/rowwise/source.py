"""The contract of every source of rows: named shards, each of which opens at any of its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar, cast, final

from pydantic import BaseModel

from tokenlake.config.values import did_you_mean, expected, require_one_of, whole_number
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.text.chat.tokenizer_template import ChatTemplateTransform
from tokenlake.text.fields import DropFields, RenameFields, SelectFields
from tokenlake.text.transform import ChainedTransform, ExpandTransform

Row = dict[str, Any]
Numbered = Iterator[tuple[int, Row]]
"""Rows, each with its number."""

Transform = Callable[[Row], Row | None]
"""A function of a row; None leaves the row out."""

Model = TypeVar("Model", bound=BaseModel)
_SHOWN = 12  # fields of a row that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """What is known of a shard without reading it.

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
        whole_number("row", row, 0)
        return rows_from(row, self.open_shard(shard_name), shard_name)

    def open_shard_at_row(self, shard_name: str, row: int) -> Iterator[Row]:
        """Return the rows of a shard from number `row` on; raises as :meth:`open_shard_numbered`."""
        return (row for _, row in self.open_shard_numbered(shard_name, row))

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
            whole_number("shard_indices", index, 0, len(names) - 1)
        whole_number("start_shard", start_shard, 0, len(indices))
        whole_number("start_row", start_row, 0)
        return self._rows_of([names[index] for index in indices][start_shard:], start_row)

    def _rows_of(self, names: list[str], row: int) -> Iterator[Row]:
        for position, name in enumerate(names):
            yield from self.open_shard_at_row(name, 0 if position else row)

    def __iter__(self) -> Iterator[Row]:
        return self.iter_shards()

    def __len__(self) -> int:
        """Return how many rows come out, exactly; TypeError where only reading them all would tell."""
        if not self.every_row:
            raise _unknown_length(self, "rows may be left out (a filter, `where` or bad records)")
        total = 0
        for name in self.shard_names:
            rows = self.get_shard_info(name).rows
            if rows is None:
                raise _unknown_length(self, f"shard {name!r} does not say how many rows it has")
            total += rows
        return total

    def __bool__(self) -> bool:
        return True  # `if source:` must not ask for a length that may be unknown

    def map(self, fn: Callable[[Row], Row]) -> TransformedShardedSource:
        """Return a source of ``fn(row)`` for every row."""
        return TransformedShardedSource(self, fn, drops=False)

    def filter(self, fn: Callable[[Row], object]) -> TransformedShardedSource:
        """Return a source of the rows for which ``fn(row)`` is true; they keep their numbers."""
        return TransformedShardedSource(self, lambda row: row if fn(row) else None)

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
            options: of :class:`tokenlake.ChatTemplateTransform`.
        """
        transform = ChatTemplateTransform(tokenizer, messages_field, output_field, **options)
        return TransformedShardedSource(self, transform, drops=False)


class NumberedSource(ShardedDataSource):
    """The base of all sources of the library: one defines where rows begin, and everything else follows of it.

    A class defines `shard_names`, :meth:`_rows` and, where a shard's rows are known without reading, :meth:`_count`.
    """

    @abstractmethod
    def _rows(self, index: int, row: int) -> Numbered:
        """Return (number, row) for the rows of the shard at `index` from number `row` on."""

    def _count(self, index: int) -> int | None:
        """Return how many rows the shard at `index` has, None where only reading would tell."""
        return None

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.shard_names)}

    def _index(self, name: str) -> int:
        place = self._places.get(name)
        return index_of(name, self.shard_names) if place is None else place

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return self.open_shard_at_row(shard_name, 0)

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        return self._rows(self._index(shard_name), whole_number("row", row, 0))

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
    """Another source's shards with every row transformed; rows keep their numbers, so seeking is the same.

    All rows that an expanding transform makes of one have its number. To resume among them, open the shard at that
    number and drop those that you had.
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
            transform: a function of a row, any `Transform` or a chain of them, or an `ExpandTransform`.
            drops: it may return None, which leaves the row out.
            on_bad_record: ``quarantine`` leaves out the rows that it cannot use; ``fail`` raises for the first.
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
        steps = self._transform.steps if isinstance(self._transform, ChainedTransform) else (self._transform,)
        expands = any(isinstance(step, ExpandTransform) for step in steps)
        return self._source.every_row and not self._drops and self._fails and not expands

    def _rows(self, index: int, row: int) -> Numbered:
        """Yield (number, row) for all that the transform makes of the rows from number `row` on.

        Raises:
            BadRecordError: a row cannot be used, and the policy is ``fail``.
            ConfigError: the transform made something that is no row.
        """
        shard = self.shard_names[index]
        for number, given in self._source.open_shard_numbered(shard, row):
            try:
                made = self._made(given)
            except BadRecordError as error:
                if self._fails:
                    raise bad_row(shard, number, str(error), **error.details) from error
                continue
            except Exception as error:
                error.add_note(f"raised by {self._what} of shard {shard!r}, row {number}")
                raise
            for result in made:
                if not isinstance(result, dict):
                    raise self._refused(shard, number, result)
                yield number, result

    def _made(self, row: Row) -> Sequence[Any]:
        if isinstance(self._transform, ChainedTransform | ExpandTransform):
            return self._transform.expand(row)
        result = self._transform(row)
        return () if result is None and self._drops else (result,)

    def _refused(self, shard: str, number: int, result: object) -> ConfigError:
        hint = " or None, which leaves the row out" if self._drops else "; `filter` leaves rows out"
        why = f"{self._what} returned {type(result).__name__}, must be a dict{hint}"
        return ConfigError(f"shard {shard!r}, row {number}: {why}", shard=shard, row=number)


def rows_from(first: int, rows: Iterator[Row], shard: str) -> Numbered:
    """Number the rows of a shard that is read from its beginning, and drop those before number `first`."""
    count = 0
    for count, row in enumerate(rows, start=1):
        if count > first:
            yield count - 1, row
    if first > count:
        raise beyond(shard, first, count)


def known_length(rows: Any) -> int | None:
    """Return how many rows there are where that is said without reading, else None."""
    try:
        return len(rows)
    except TypeError:
        return None


def index_of(name: str, names: Sequence[str]) -> int:
    """Return the place of a shard among all; ConfigError if there is no such shard."""
    if name in names:
        return names.index(name)
    shown = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    near = did_you_mean(name, names)
    raise ConfigError(f"no shard is named {name!r}{near}. There are {len(names)}: {shown}.", got=name)


def beyond(name: str, row: int, rows: int) -> ConfigError:
    """Return the error for a row after the end of a shard."""
    return ConfigError(
        f"shard {name!r}: row {row} is beyond its end; it has {rows} rows, numbered from 0, and reading "
        f"may begin at any of them or at {rows}, which gives nothing",
        shard=name,
        row=row,
        rows=rows,
    )


def bad_row(shard: str, number: int, why: str, **details: Any) -> BadRecordError:
    """Return the error for a row that cannot be used."""
    place = {"shard": shard, "row": number}
    return BadRecordError(f"shard {shard!r}, row {number}: {why}", **{**details, **place})


def fields_in(row: Row) -> str:
    """Return the names of a row's fields, as messages give them."""
    return ", ".join(map(repr, list(row)[:_SHOWN])) or "no fields"


def _unknown_length(source: ShardedDataSource, why: str) -> TypeError:
    return TypeError(f"the length of this {type(source).__name__} is unknown: {why}; count its rows")


def section(kind: type[Model], given: object, what: str = "") -> Model:
    """Return `given`, which may be a mapping of its keys, as a section of the configuration.

    Raises:
        ConfigError: it is something else, or a key or value is not allowed; `what` says where.
    """
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        got = type(given).__name__
        raise ConfigError(f"{what}: got a {got}, must be a {kind.__name__} or a mapping of its keys")
    try:
        return kind.model_validate(dict(cast("Mapping[str, Any]", given)))
    except ValueError as error:  # pydantic's, whose messages are in our words
        found: list[dict[str, Any]] = cast("Any", error).errors(include_url=False)
        lines = [": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in found]
        raise ConfigError((f"{what}: " if what else "") + "; ".join(lines)) from None
