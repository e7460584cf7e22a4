"""Shards of sources: properties, position of a reader, rows of several, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar, cast, final

from pydantic import BaseModel

from tokenlake.base.checks import did_you_mean
from tokenlake.base.threads import Prefetched
from tokenlake.errors import BadRecordError, ConfigError

Item = TypeVar("Item")
Model = TypeVar("Model", bound=BaseModel)

_SHOWN: Final = 12  # fields of a row that a message names


@final
class RowMeter:
    """Counter of the rows that are drawn from the sources of a stage.

    Attributes:
        rows: Number of rows drawn so far, over all passes.
        tokens: Number of ids in the field ``input_ids`` of these rows.
        seconds: Time spent on drawing them, including the stages before this one.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.tokens = 0
        self.seconds = 0.0

    def counted(
        self, rows: Iterator[tuple[int, Mapping[str, Any]]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield numbered rows unchanged, and count them."""
        while True:
            pair = self.timed(rows)
            if pair is None:
                return
            self.rows += 1
            # Rows may have other fields with this name, without a length.
            ids: Any = pair[1].get("input_ids")
            if hasattr(ids, "__len__"):
                self.tokens += len(ids)
            yield pair

    def timed(self, items: Iterator[Item]) -> Item | None:
        """Return the next item, None after the last one."""
        begin = perf_counter()
        try:
            return next(items, None)
        finally:
            self.seconds += perf_counter() - begin

    def figures(self) -> dict[str, Any]:
        """Return ``rows``, ``tokens`` and ``seconds``."""
        return dict(vars(self))


class RowPosition(NamedTuple):
    """Position of a row in an epoch, or the position right after a row.

    Attributes:
        ordinal: Number of rows of the epoch before it, in the shards that are read.
        shard: Index of its shard; 0 if a source has no shards.
        number: Number of the row in its shard.
        passed: Number of rows with the same number before it. An expanding transform
            makes several of one row.
    """

    ordinal: int = 0
    shard: int = 0
    number: int = 0
    passed: int = 0

    @property
    def behind(self) -> RowPosition:
        """Position right after this row."""
        return RowPosition(self.ordinal + 1, self.shard, self.number, self.passed + 1)


Placed = Iterator[tuple[RowPosition, dict[str, Any]]]
"""Rows, each with its position."""

Row = dict[str, Any]
Numbered = Iterator[tuple[int, Row]]
"""Rows, each with its number."""

Transform = Callable[[Row], Row | None]
"""A function of a row; None leaves the row out."""

_AHEAD: Final = 1024  # rows of a shard that a thread draws ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """Properties of a shard that are known without reading it.

    Attributes:
        name: Name in ``shard_names``.
        index: Index in ``shard_names``.
        url: Path of a local file, or URL without credentials. None for rows in memory.
        format: Format of the file, such as ``parquet`` or ``jsonl``. None for rows in
            memory.
        compression: Compression of the whole file (``gzip``, ``zstd``). None if there
            is none.
        bytes: Exact stored size. None for rows in memory.
        rows: Exact number of numbered rows, including bad and filtered ones. None if
            only a pass over the shard can count them (lines, JSON arrays, CSV, Arrow
            streams, compressed files) and none has reached its end yet.
    """

    name: str
    index: int
    url: str | None = None
    format: str | None = None
    compression: str | None = None
    bytes: int | None = None
    rows: int | None = None


def rows_from(first: int, rows: Iterator[Row], shard: str) -> Numbered:
    """Yield the rows of a shard from number `first` on, each with its number.

    Args:
        first: Number of the first row to yield.
        rows: All rows of the shard, from its beginning.
        shard: Name of the shard.

    Raises:
        ConfigError: The shard has fewer rows than `first`.
    """
    # The loop passes over the rows before the first one, and ends with the number of
    # all rows.
    row_count = 0
    for row_count, row in enumerate(rows, start=1):
        if row_count > first:
            yield row_count - 1, row
    if first > row_count:
        raise beyond(shard, first, row_count)


def rows_in_turn(
    open_at: Callable[[str, int], Iterator[Row]],
    names: Sequence[str],
    row: int,
    workers: int,
) -> Iterator[Row]:
    """Yield the rows of shards one after the other.

    Args:
        open_at: Function from the name of a shard and the number of a row to the rows
            of the shard from there on.
        names: Names of the shards, in order.
        row: Number of the first row in the first shard. Other shards are read from
            their beginning.
        workers: Number of shards that threads open ahead, each up to its first 1,024
            rows. 0 for no threads.
    """
    # Only the first shard is opened in its middle.
    starts: list[tuple[str, int]] = []
    for shard_index, shard_name in enumerate(names):
        starts.append((shard_name, 0 if shard_index else row))
    if not workers:
        yield from chain.from_iterable(
            open_at(shard_name, first_row) for shard_name, first_row in starts
        )
        return

    def open_ahead(
        start: tuple[str, int],
    ) -> tuple[list[Row], Iterator[Row] | Exception]:
        """Return the first rows of a shard, and the iterator of the next ones.

        An error that stopped it takes the place of the iterator.
        """
        rows = open_at(*start)
        first_rows: list[Row] = []
        try:
            first_rows.extend(islice(rows, _AHEAD))
        except Exception as error:
            return first_rows, error
        return first_rows, rows

    # The error of a shard is raised in its place, after the rows before it.
    with closing(
        Prefetched(iter(starts), open_ahead, workers=workers, ahead=workers)
    ) as shards:
        for first_rows, next_rows in shards:
            yield from first_rows
            if isinstance(next_rows, Exception):
                raise next_rows
            yield from next_rows


def limited(rows: Sequence[int | None], max_rows: int) -> int | None:
    """Return the number of rows that the last of some shards yields.

    All of them together yield at most `max_rows`.

    Args:
        rows: Number of rows of each shard, in order; None if it is unknown.
        max_rows: Number of rows that all shards together may yield.

    Returns:
        Number of rows; None if the number of any of these shards is unknown.
    """
    known_rows = [count for count in rows if count is not None]
    if len(known_rows) < len(rows):
        return None
    *rows_before, rows_of_last = known_rows
    return min(rows_of_last, max(0, max_rows - sum(rows_before)))


def known_length(rows: Any) -> int | None:
    """Return the number of rows if it is known without reading, else None."""
    try:
        return len(rows)
    except TypeError:
        return None


def unknown_length(source: object, reason: str) -> TypeError:
    """Return the error for a source that does not know its number of rows."""
    return TypeError(
        f"the length of this {type(source).__name__} is unknown: {reason}; count its rows"
    )


def index_of(name: str, names: Sequence[str]) -> int:
    """Return the index of a shard; ConfigError if no shard has this name."""
    if name in names:
        return names.index(name)
    shown_names = ", ".join(map(repr, names[:4]))
    if len(names) > 4:
        shown_names += ", ..."
    near = did_you_mean(name, names)
    raise ConfigError(
        f"no shard is named {name!r}{near}. There are {len(names)}: {shown_names}.",
        got=name,
    )


def beyond(name: str, row: int, rows: int) -> ConfigError:
    """Return the error for a row after the end of a shard.

    Args:
        name: Name of the shard.
        row: Number of the row.
        rows: Number of rows that the shard has.
    """
    return ConfigError(
        f"shard {name!r}: row {row} is beyond its end; it has {rows} rows, numbered from 0, and reading may begin at "
        f"any of them or at {rows}, which gives nothing",
        shard=name,
        row=row,
        rows=rows,
    )


def bad_row(shard: str, number: int, problem: str, **details: Any) -> BadRecordError:
    """Return the error for a row that cannot be used."""
    fields: dict[str, Any] = {**details, "shard": shard, "row": number}
    return BadRecordError(f"shard {shard!r}, row {number}: {problem}", **fields)


def no_row(
    shard: str, number: int, result: object, transform: str, *, drops: bool
) -> ConfigError:
    """Return the error for a transform whose result is not a row.

    Args:
        shard: Name of the shard.
        number: Number of the row in it.
        result: Result of the transform.
        transform: Name of the transform in the message.
        drops: Whether the transform may return None to leave a row out.
    """
    hint = "; `filter` leaves rows out"
    if drops:
        hint = " or None, which leaves the row out"
    return ConfigError(
        f"shard {shard!r}, row {number}: {transform} returned {type(result).__name__}, must be a dict{hint}",
        shard=shard,
        row=number,
    )


def fields_in(row: Mapping[str, Any]) -> str:
    """Return the names of a row's fields for a message."""
    return ", ".join(map(repr, list(row)[:_SHOWN])) or "no fields"


def section(kind: type[Model], settings: object, label: str = "") -> Model:
    """Return settings as a section of the configuration.

    Args:
        kind: Class of the section.
        settings: Section, or a mapping of its keys.
        label: Name of the settings in messages.

    Raises:
        ConfigError: The settings are something else, or a key or value is not allowed.
    """
    if isinstance(settings, kind):
        return settings
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"{label}: got a {type(settings).__name__}, must be a {kind.__name__} or a mapping of its keys"
        )
    try:
        return kind.model_validate(dict(cast("Mapping[str, Any]", settings)))
    except ValueError as error:  # pydantic's, with messages of this library
        # Each problem is listed with its dotted key.
        problems: list[str] = []
        for problem in cast("Any", error).errors(include_url=False):
            key = ".".join(map(str, problem["loc"]))
            if key:
                key += ": "
            problems.append(key + problem["msg"])
        if label:
            label += ": "
        raise ConfigError(label + "; ".join(problems)) from None
