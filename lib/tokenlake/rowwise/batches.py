"""Rows to batches of arrays, in an order that seed and epoch decide and that can be resumed at any batch.

Their delivery, which threads run ahead of; and where a loop of one's own stands.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, islice, repeat
from typing import Any, Final, Literal, Self, cast, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.checks import did_you_mean, expected, plain_integers, whole_number
from tokenlake.base.threads import Prefetched
from tokenlake.config.stages import LoadStageConfig
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.rowwise.shards import Row, RowMeter, RowPosition
from tokenlake.rowwise.source import ShardedDataSource
from tokenlake.runtime.mixing.random import key_of, shuffled_by_buffer

Array = npt.NDArray[Any]
Arrays = dict[str, Any]
"""Field to an array of a batch's values, or to a list where they make no array."""

_FORMAT: Final = 1
_NO_STATE: Final = "no state of a loader of rows"
_MOST: Final = 1 << 50  # rows, or epochs, that can be counted
_FILLED_WITH: Final = {
    **dict.fromkeys(("attention_mask", "segment_ids", "position_ids", "loss_mask"), 0),
    "labels": -100,
}
"""Last part of a field's name to what fills its rows up; ``input_ids`` are filled with the padding token."""


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """How rows of different lengths become one array.

    Attributes:
        pad_id: fills `input_ids`.
        side: where it goes.
        width: rows are filled up to so many values even if the longest is shorter.
        multiple: of what the width is one.
    """

    pad_id: int
    side: Literal["left", "right"] = "right"
    width: int = 0
    multiple: int = 1

    def width_of(self, longest: int) -> int:
        """Return how wide the array is whose longest row has so many values."""
        return -(-max(longest, self.width) // self.multiple) * self.multiple


def batch_of(rows: Sequence[Row], filling: Filling | None = None) -> Arrays:
    """Return n rows as a batch.

    Fields of tokens become arrays (n, longest): ids, masks, labels and segments int32 where they were lists and of
    their own type where they were arrays, `loss_mask` bool. Rows that are shorter than the longest are filled up, and
    where a `filling` is given the batch has an ``attention_mask`` in any case. Other numbers become arrays, of shape
    (n,) or (n, k); all else stays a list of n values.

    Raises:
        ConfigError: rows have different lengths and there is no `filling`.
        BadRecordError: rows have different fields.
    """
    names = list(rows[0])
    for row in rows:
        if row.keys() != rows[0].keys():
            other = sorted(row.keys() ^ rows[0].keys())
            how = "keep the same fields of all datasets (additional_fields), or drop it from all"
            told = f"{', '.join(map(repr, other))} is only in some of them; {how}"
            raise BadRecordError(f"rows of one batch differ: {told}", reason="different_fields", fields=other)
    batch: Arrays = {}
    for name in names:
        values = [row[name] for row in rows]
        batch[name] = _column(name, values, filling)
        if name == "input_ids" and filling is not None and "attention_mask" not in names:
            ones = [np.ones(len(ids), np.int32) for ids in values]
            batch["attention_mask"] = _filled(ones, 0, filling)
    return batch


def _column(name: str, values: list[Any], filling: Filling | None) -> Any:
    # By the end of its name: ``chosen_input_ids`` are ids, too.
    kinds = (kind for kind in ("input_ids", *_FILLED_WITH) if name == kind or name.endswith(f"_{kind}"))
    if (kind := next(kinds, None)) is not None:
        return _tokens(name, kind, values, filling)
    if all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values):
        array = np.array(values)
        return array if array.dtype != object else values
    if all(isinstance(value, np.ndarray) for value in values) and len({value.shape for value in values}) == 1:
        return np.stack(values)
    return values


def _tokens(name: str, kind: str, values: list[Any], filling: Filling | None) -> Array:
    """Return the values of a field of tokens as one array; an array stays of its own type."""
    rows: list[Array] = []
    for value in values:
        own = None if isinstance(value, np.ndarray) else np.bool_ if kind == "loss_mask" else np.int32
        array = np.asarray(cast("Any", value), own) if isinstance(value, np.ndarray | list | tuple) else None
        if array is None or array.ndim != 1:
            raise BadRecordError(f"the field {name!r} holds {value!r:.80}, expected a list of ids")
        rows.append(array)
    width = len(rows[0]) if filling is None else filling.width_of(len(rows[0]))
    if all(len(row) == width for row in rows):
        return np.stack(rows)
    if filling is None:
        how = "pack them, pad them (TokenizerConfig(padding=...)), or give the loader a pad_token_id"
        raise ConfigError(f"{name!r}: the rows of a batch have different lengths; {how}")
    return _filled(rows, filling.pad_id if kind == "input_ids" else _FILLED_WITH[kind], filling)


def _filled(rows: Sequence[Array], value: int, filling: Filling) -> Array:
    width = filling.width_of(max(map(len, rows)))
    made = np.full((len(rows), width), value, rows[0].dtype)
    for place, row in enumerate(rows):
        begin = width - len(row) if filling.side == "left" else 0
        made[place, begin : begin + len(row)] = row
    return made


def collate_batch(
    examples: Sequence[Row], pad_token_id: int | None = None, padding_side: Literal["left", "right"] = "right"
) -> Arrays:
    """Return rows as a batch; see :func:`tokenlake.rowwise.batches.batch_of` for the types.

    Args:
        examples: at least one row.
        pad_token_id: rows of different lengths are filled up with it to the longest; None: they are an error.
        padding_side: where it goes.

    Raises:
        ConfigError, BadRecordError: rows have different lengths or fields.
    """
    if not examples:
        raise ConfigError("examples: got none, expected at least one row")
    return batch_of(examples, None if pad_token_id is None else Filling(pad_token_id, padding_side))


def batch_iterator(
    source: Iterable[Row], batch_size: int, drop_last: bool = True, **padding: Any
) -> Iterator[Arrays]:
    """Return the batches of rows, in order.

    Args:
        source: rows.
        batch_size: rows of a batch.
        drop_last: leave out a last batch of fewer rows.
        padding: `pad_token_id` and `padding_side` of :func:`collate_batch`.
    """
    whole_number("batch_size", batch_size, 1)

    def batches() -> Iterator[Arrays]:
        rows = iter(source)
        while len(some := list(islice(rows, batch_size))) >= (batch_size if drop_last else 1):
            yield collate_batch(some, **padding)

    return batches()


_BEGINNING: Final = RowPosition()


@final
@dataclass(frozen=True, slots=True)
class RowProgress:
    """How far delivery has come.

    Attributes:
        epoch: number of the epoch.
        rows: of it that were delivered.
        position: of the first row that has to be read to go on.
    """

    epoch: int
    rows: int = 0
    position: RowPosition = _BEGINNING


@final
class RowLoader:
    """Epochs of a source of rows, one for each iteration.

    Args:
        source: of rows.
        load: how many rows a batch has, how they are shuffled, and how batches are prepared ahead.
        seed: of the shuffle.
        filling: for rows of different lengths.
        placed: puts the arrays of a batch onto devices; None: they stay arrays of numpy.
    """

    def __init__(
        self,
        source: Iterable[Row],
        load: LoadStageConfig,
        seed: int,
        filling: Filling | None,
        placed: Callable[[Arrays], Arrays] | None,
    ) -> None:
        self._source, self._load, self._seed = source, load, seed
        self._filling, self._placed = filling, placed
        self._next = self._now = RowProgress(0)
        self.ended = False
        self._latest: weakref.ref[RowDelivery] | None = None

    def deliver(self, meter: RowMeter | None = None, *, prefetch: bool | None = None) -> RowDelivery:
        """Return the batches of the next epoch; `prefetch`: whether threads prepare them, None: as configured.

        An iteration that is under way is replaced: asked for another batch, it raises ConfigError.
        """
        self._supersede("another iteration")
        start, self.ended = self._next, False
        self._now, self._next = start, RowProgress(start.epoch + 1)
        threads = self._load.prefetch_enabled if prefetch is None else prefetch
        made: Iterator[_Made] = Prefetched(
            self._batches(start),
            lambda batch: (batch_of(batch[0], self._filling), batch[1], len(batch[0])),
            workers=self._load.prefetch_workers,
            ahead=self._load.prefetch_buffer_size if threads else 0,
        )
        if (placed := self._placed) is not None:
            ahead = _ON_DEVICES if threads else 0
            made = Prefetched(made, lambda one: (placed(one[0]), *one[1:]), workers=1, ahead=ahead)
        delivery = RowDelivery(made, self, meter)
        self._latest = weakref.ref(delivery)
        return delivery

    @property
    def epoch(self) -> int:
        return self._now.epoch

    def close(self) -> None:
        if self._latest is not None and (delivery := self._latest()) is not None:
            delivery.close()

    def __len__(self) -> int:
        rows, size = len(cast("Any", self._source)), self._load.batch_size
        return rows // size if self._load.drop_last else -(-rows // size)

    def state_dict(self) -> dict[str, Any]:
        """Return how far delivery has come, and of what, as JSON."""
        epoch, rows, place = self._now.epoch, self._now.rows, list(self._now.position)
        return {"format": _FORMAT, "epoch": epoch, "rows": rows, "place": place, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was called; ConfigError if that was of another order or of another source."""
        if not isinstance(state, Mapping) or state.get("format") != _FORMAT or "place" not in state:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{_NO_STATE}: {state!r:.200}; expected what state_dict() returned")
        state = cast("dict[str, Any]", plain_integers(state))
        problems = [
            f"{name} is {state.get(name)!r} there and {value!r} here"
            for name, value in self._identity().items()
            if name in state and (state[name] != value or type(state[name]) is not type(value))
        ]
        if problems:
            raise ConfigError("the state is of another run: " + "; ".join(problems), differs=problems)
        progress = self._progress_of(state)
        self._supersede("load_state_dict()")
        self._next = self._now = progress
        self._latest = None

    def _progress_of(self, state: Mapping[str, Any]) -> RowProgress:
        """Read how far delivery had come in a state; ConfigError where its numbers do not fit each other."""
        for name in ("epoch", "rows", *self._identity()):
            if name not in state:
                raise ConfigError(f"{_NO_STATE}: {name!r} is missing")
        known = {"format", "epoch", "rows", "place", *self._identity()}
        if unknown := [key for key in state if key not in known]:
            raise ConfigError(
                f"{_NO_STATE}: it has a key {unknown[0]!r}, which no state has{did_you_mean(unknown[0], known)}"
            )
        epoch = whole_number(f"{_NO_STATE}: epoch", state["epoch"], 0, _MOST)
        rows = whole_number(f"{_NO_STATE}: rows", state["rows"], 0, _MOST)
        place = state["place"]
        if not isinstance(place, list | tuple) or len(cast("Sequence[Any]", place)) != len(_BEGINNING):
            raise ConfigError(
                f"{_NO_STATE}: place: got {place!r:.80}, must be {len(_BEGINNING)} whole numbers"
            )
        numbers = [
            whole_number(f"{_NO_STATE}: place", number, 0, _MOST) for number in cast("Sequence[Any]", place)
        ]
        position = RowPosition(*numbers)
        # Without a shuffle buffer, the next row to read is the one behind those that were delivered. In a buffer, a
        # row that was read early may still wait.
        is_ahead = position.ordinal > rows
        is_behind = self._load.shuffle_buffer_size is None and position.ordinal < rows
        if is_ahead or is_behind:
            raise ConfigError(
                f"the state does not fit itself: {rows:,} rows of the epoch were delivered, and the next row to read "
                f"is number {position.ordinal:,}. It was changed, or put together from several; expected what "
                "state_dict() returned"
            )
        shards = state["shards"]
        if shards is not None and position.shard >= max(1, shards):
            raise ConfigError(f"{_NO_STATE}: place: got shard {position.shard} of {shards} shards")
        return RowProgress(epoch, rows, position)

    def _supersede(self, caller: str) -> None:
        """End the iteration that is under way, so that asking it for more is an error and not the end of an epoch."""
        delivery = None if self._latest is None else self._latest()
        if delivery is not None:
            delivery.supersede(
                f"this iterator was replaced behind row {self._now.rows} of epoch {self._now.epoch}: a loader has one "
                f"iterator at a time, and {caller} took its place. Go on with that one; for two streams, make two "
                "loaders"
            )

    def delivered(self, delivery: RowDelivery, after: RowProgress | None) -> None:
        """The latest iteration delivered a batch; None: it came to its end."""
        if self._latest is not None and self._latest() is delivery:
            self._now, self.ended = (self._next, True) if after is None else (after, False)

    def _identity(self) -> dict[str, Any]:
        """Return what decides the order, and what can be told of the source without reading it."""
        found: dict[str, Any] = {"seed": self._seed, "shuffle_buffer_size": self._load.shuffle_buffer_size}
        if not isinstance(self._source, ShardedDataSource):
            return {**found, "shards": None, "bytes": None}
        size = sum(size for _, size, _ in self._source.versions)
        return {**found, "shards": self._source.num_shards(), "bytes": size}

    def _batches(self, start: RowProgress) -> Iterator[tuple[list[Row], RowProgress]]:
        """Yield the rows of each batch of an epoch from `start` on, and how far delivery has come with it."""
        if self._load.shuffle_buffer_size is not None:
            found = self._shuffled(start, self._load.shuffle_buffer_size)
        else:
            found = ((row, at.behind) for at, row in _rows_from(self._source, start.position))
        delivered, size = start.rows, self._load.batch_size
        while some := list(islice(found, size)):
            if len(some) < size and self._load.drop_last:
                return
            delivered += len(some)
            yield [row for row, _ in some], RowProgress(start.epoch, delivered, some[-1][1])

    def _shuffled(self, start: RowProgress, size: int) -> Iterator[tuple[Row, RowPosition]]:
        """Rows as they are drawn, each with the position of the oldest row that then is still to come.

        Rows before `start.position` were all delivered: the buffer is filled with nothing in their stead, and makes
        the same draws.
        """
        waiting: OrderedDict[int, RowPosition] = OrderedDict()  # rows in the buffer, by ordinal
        behind = start.position

        def read() -> Iterator[tuple[int, Row]]:
            nonlocal behind
            for position, row in _rows_from(self._source, start.position):
                waiting[position.ordinal], behind = position, position.behind
                yield position.ordinal, row

        items: Iterator[tuple[int, Row] | None] = chain(repeat(None, start.position.ordinal), read())
        for count, item in enumerate(shuffled_by_buffer(items, size, key_of(self._seed, start.epoch))):
            if item is None:
                continue
            ordinal, row = item
            del waiting[ordinal]
            if count >= start.rows:
                yield row, next(iter(waiting.values()), behind)


def _rows_from(source: Iterable[Row], start: RowPosition) -> Iterator[tuple[RowPosition, Row]]:
    """Yield the rows of an epoch from a position on, each with its own.

    Sources in shards are opened there; any other iterable is drawn from its beginning.
    """
    if isinstance(source, ShardedDataSource):
        # Iterating over a source is going through its shards, unless a class of a user does something else.
        kind, base = type(source), ShardedDataSource
        if kind.__iter__ is base.__iter__ and kind.iter_shards is base.iter_shards:
            yield from source.positions(start)
            return
    for ordinal, row in islice(enumerate(source), start.ordinal, None):
        yield RowPosition(ordinal), row


_Made = tuple[Arrays, RowProgress, int]
"""A batch, how far delivery has come with it, and of how many rows it is."""
_ON_DEVICES: Final = 2  # batches that are put onto devices ahead


@final
class RowDelivery(Iterator[Arrays]):
    """Hands batches out and tells the loader."""

    def __init__(self, made: Iterator[_Made], loader: RowLoader, meter: RowMeter | None) -> None:
        self._made, self._loader, self._meter = made, cast("RowLoader | None", loader), meter
        self._superseded: str | None = None

    def __next__(self) -> Arrays:
        """Return the next batch.

        Raises:
            ConfigError: another iteration of the loader took its place.
        """
        if self._superseded is not None:
            raise ConfigError(self._superseded)
        meter = self._meter
        made = next(self._made, None) if meter is None else meter.timed(self._made)
        if self._loader is not None:
            self._loader.delivered(self, None if made is None else made[1])
        if made is None:
            self._loader = None
            raise StopIteration
        arrays, _, rows = made
        if meter is not None:
            meter.rows += rows
            meter.tokens += int(np.size(arrays.get("input_ids", ())))
        return arrays

    def close(self) -> None:
        """End the threads; nothing more comes."""
        if isinstance(self._made, Prefetched):
            self._made.close()
        self._made, self._loader = iter(()), None  # nor does the source live on

    def supersede(self, message: str) -> None:
        """End the threads; who asks for another batch gets a ConfigError, unless the epoch had come to its end."""
        if self._loader is not None:
            self._superseded = message
        self.close()


@final
@dataclass(frozen=True, slots=True)
class ResumeState:
    """The next row of a loop of your own; the state of a :class:`tokenlake.AsyncDataLoader` knows its shuffle, too.

    Attributes:
        shard_index: place of its shard in ``shard_names``.
        row_index: number of the row in it.
        epoch, step: counts of the loop.
        dataset_states: name to whatever else is to be kept, values of JSON.
    """

    shard_index: int = 0
    row_index: int = 0
    epoch: int = 0
    step: int = 0
    dataset_states: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def __post_init__(self) -> None:
        for name in ("shard_index", "row_index", "epoch", "step"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 0))

    def rows(self, source: ShardedDataSource) -> Iterator[Row]:
        """Return the rows of a source from this one on; ConfigError where it has no such row."""
        return source.iter_shards(start_shard=self.shard_index, start_row=self.row_index)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the state that :meth:`to_dict` gave; ConfigError if it is none."""
        if not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("ResumeState", data, "a mapping, as to_dict() returns it")
        unknown = sorted(map(str, cast("Any", data).keys() - {each.name for each in fields(cls)}))
        if unknown:
            raise ConfigError(
                f"not a ResumeState: it has no field {', '.join(unknown)}; give what to_dict returned"
            )
        return cls(**data)
