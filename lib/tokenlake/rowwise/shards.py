"""Shards: what is known of one without reading it, where a reader of their rows stands, and what is refused."""

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
    """Counts the rows that are drawn from the sources of a stage.

    Attributes:
        rows: drawn so far, over all passes.
        tokens: ids in the field ``input_ids`` of these rows.
        seconds: spent in drawing them, the stages before this one included.
    """

    def __init__(self) -> None:
        self.rows = self.tokens = 0
        self.seconds = 0.0

    def counted(self, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Any]]:
        """Yield numbered rows as they are, and count them."""
        while True:
            pair = self.timed(rows)
            if pair is None:
                return
            self.rows += 1
            ids: Any = pair[1].get("input_ids")
            self.tokens += len(ids) if hasattr(ids, "__len__") else 0
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
    """A row of an epoch, or the position behind one.

    Attributes:
        ordinal: rows of the epoch before it, in the shards that are read.
        shard: place of its shard; 0 where a source has none.
        number: of the row in its shard.
        passed: rows of the same number before it: an expanding transform makes several of one.
    """

    ordinal: int = 0
    shard: int = 0
    number: int = 0
    passed: int = 0

    @property
    def behind(self) -> RowPosition:
        """Right behind this row."""
        return RowPosition(self.ordinal + 1, self.shard, self.number, self.passed + 1)


Placed = Iterator[tuple[RowPosition, dict[str, Any]]]
"""Rows, each with its position."""

Row = dict[str, Any]
Numbered = Iterator[tuple[int, Row]]
"""Rows, each with its number."""

Transform = Callable[[Row], Row | None]
"""A function of a row; None leaves the row out."""

_AHEAD: Final = 1024  # rows of a shard that are drawn ahead


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
            reading the shard would tell (lines, JSON arrays, CSV, Arrow streams, whatever is compressed), and nobody
            has read or indexed it to its end yet.
    """

    name: str
    index: int
    url: str | None = None
    format: str | None = None
    compression: str | None = None
    bytes: int | None = None
    rows: int | None = None


def rows_from(first: int, rows: Iterator[Row], shard: str) -> Numbered:
    """Number the rows of a shard that is read from its beginning, and drop those before number `first`."""
    count = 0
    for count, row in enumerate(rows, start=1):
        if count > first:
            yield count - 1, row
    if first > count:
        raise beyond(shard, first, count)


def rows_in_turn(
    open_at: Callable[[str, int], Iterator[Row]], names: Sequence[str], row: int, workers: int
) -> Iterator[Row]:
    """Yield the rows of shards one after the other, of the first one from number `row` on.

    Args:
        open_at: name of a shard and number of a row -> its rows from there on.
        names: of the shards.
        row: number of the first row.
        workers: shards that threads open ahead, each up to its first 1,024 rows; 0: none.
    """
    wanted = ((name, 0 if place else row) for place, name in enumerate(names))
    if not workers:
        yield from chain.from_iterable(open_at(*each) for each in wanted)
        return

    def begun(each: tuple[str, int]) -> tuple[list[Row], Iterator[Row] | Exception]:
        rows, first = open_at(*each), list[Row]()
        try:
            first.extend(islice(rows, _AHEAD))
        except Exception as error:
            return first, error
        return first, rows

    with closing(Prefetched(wanted, begun, workers=workers, ahead=workers)) as shards:
        for first, others in shards:
            yield from first
            if isinstance(others, Exception):
                raise others
            yield from others


def limited(rows: Sequence[int | None], most: int) -> int | None:
    """Return how many rows the last of some shards gives where all together give `most`; `rows`: of each."""
    *before, own = [-1 if count is None else count for count in rows]
    return None if min(own, *before, 0) < 0 else min(own, max(0, most - sum(before)))


def known_length(rows: Any) -> int | None:
    """Return how many rows there are where that is said without reading, else None."""
    try:
        return len(rows)
    except TypeError:
        return None


def unknown_length(source: object, why: str) -> TypeError:
    """Return the error for a source that does not know how many rows it has."""
    return TypeError(f"the length of this {type(source).__name__} is unknown: {why}; count its rows")


def index_of(name: str, names: Sequence[str]) -> int:
    """Return the place of a shard among all; ConfigError if there is no such shard."""
    if name in names:
        return names.index(name)
    shown = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    near = did_you_mean(name, names)
    raise ConfigError(f"no shard is named {name!r}{near}. There are {len(names)}: {shown}.", got=name)


def beyond(name: str, row: int, rows: int) -> ConfigError:
    """Return the error for a row after the end of a shard."""
    why = f"row {row} is beyond its end; it has {rows} rows, numbered from 0"
    how = f"reading may begin at any of them or at {rows}, which gives nothing"
    return ConfigError(f"shard {name!r}: {why}, and {how}", shard=name, row=row, rows=rows)


def bad_row(shard: str, number: int, why: str, **details: Any) -> BadRecordError:
    """Return the error for a row that cannot be used."""
    place = {"shard": shard, "row": number}
    return BadRecordError(f"shard {shard!r}, row {number}: {why}", **{**details, **place})


def no_row(shard: str, number: int, got: object, what: str, *, drops: bool) -> ConfigError:
    """Return the error for something else that was made of a row; `drops`: None would leave the row out."""
    hint = " or None, which leaves the row out" if drops else "; `filter` leaves rows out"
    why = f"{what} returned {type(got).__name__}, must be a dict{hint}"
    return ConfigError(f"shard {shard!r}, row {number}: {why}", shard=shard, row=number)


def fields_in(row: Mapping[str, Any]) -> str:
    """Return the names of a row's fields, as messages give them."""
    return ", ".join(map(repr, list(row)[:_SHOWN])) or "no fields"


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
