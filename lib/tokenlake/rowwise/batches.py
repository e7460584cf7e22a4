"""Rows to batches: a dict of arrays, one for each field.

Batches of rows as global ``jax.Array``, put onto devices as the loader of packed datasets does.

Epochs of a source of rows: batches in an order that seed and epoch decide, and where one can be taken up again.

Where in a source of rows an epoch stands, as four integers, and reading on from there.

Sources in shards are opened right at a row, as well as they can: files of blocks and lines seek, a mixture lets each of
its sources seek, a packed source packs again what comes before. Any other iterable is drawn from its beginning.

Rows in another order, by a buffer from which they are drawn at random.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar, cast, final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import BadRecordError, ConfigError, MissingExtraError
from tokenlake.loader.host_batches import HostBatch
from tokenlake.loader.steps import Batch as Step
from tokenlake.loader.steps import BatchSizes
from tokenlake.mixing.random import key_of, splitmix64
from tokenlake.rowwise.source import Row, ShardedDataSource

Array = npt.NDArray[Any]
Batch = dict[str, Any]

_FILLED_WITH: Final = {
    "attention_mask": 0,
    "labels": -100,
    "segment_ids": 0,
    "position_ids": 0,
    "loss_mask": 0,
}
"""Last part of a field's name to what fills its rows up; ``input_ids`` are filled with the padding token."""


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """How rows of different lengths become one array.

    Attributes:
        pad_id: fills `input_ids`.
        side: where it goes.
    """

    pad_id: int
    side: Literal["left", "right"] = "right"


def batch_of(rows: Sequence[Row], filling: Filling | None = None) -> Batch:
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
    _check_fields(rows, names)
    batch: Batch = {}
    for name in names:
        batch[name] = _column(name, [row[name] for row in rows], filling)
        if name == "input_ids" and filling is not None and "attention_mask" not in names:
            batch["attention_mask"] = _mask([row[name] for row in rows], filling)
    return batch


def _column(name: str, values: list[Any], filling: Filling | None) -> Any:
    kind = _token_field(name)
    if kind is None:
        return _plain(values)
    rows = [_tokens(name, value, kind) for value in values]
    width = max(len(row) for row in rows)
    if any(len(row) < width for row in rows):
        return _filled(rows, width, _fill(name, kind, filling), filling)
    return np.stack(rows)


def _fill(name: str, kind: str, filling: Filling | None) -> int:
    if filling is None:
        raise ConfigError(
            f"{name!r}: the rows of a batch have different lengths; pack them, pad them "
            "(TokenizerConfig(padding=...)), or give the loader a pad_token_id, which fills them up to the longest of "
            "each batch"
        )
    return filling.pad_id if kind == "input_ids" else _FILLED_WITH[kind]


def _filled(rows: Sequence[Array], width: int, value: int, filling: Filling | None) -> Array:
    made = np.full((len(rows), width), value, rows[0].dtype)
    left = filling is not None and filling.side == "left"
    for place, row in enumerate(rows):
        made[place, width - len(row) if left else 0 : width if left else len(row)] = row
    return made


def _mask(values: list[Any], filling: Filling) -> Array:
    return _filled([np.ones(len(ids), np.int32) for ids in values], max(map(len, values)), 0, filling)


def _tokens(name: str, value: Any, kind: str) -> Array:
    """Return one row's values as an array of one dimension."""
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
    elif isinstance(value, list | tuple):
        array = np.array(value, np.bool_ if kind == "loss_mask" else np.int32)
    else:
        raise BadRecordError(f"the field {name!r} holds {type(value).__name__}, expected a list of ids")
    if array.ndim != 1:
        raise BadRecordError(
            f"the field {name!r} holds an array of shape {array.shape}, expected one dimension"
        )
    return array


def _token_field(name: str) -> str | None:
    """Return what a field holds of tokens, by the end of its name: ``chosen_input_ids`` are ids too."""
    return next(
        (kind for kind in ("input_ids", *_FILLED_WITH) if name == kind or name.endswith(f"_{kind}")), None
    )


def _plain(values: list[Any]) -> Any:
    """Return numbers, or arrays of numbers of one shape, as one array; anything else as it is."""
    if all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values):
        array = np.array(values)
        return array if array.dtype != object else values
    if all(isinstance(value, np.ndarray) for value in values) and len({value.shape for value in values}) == 1:
        return np.stack(values)
    return values


def _check_fields(rows: Sequence[Row], names: list[str]) -> None:
    expected = set(names)
    for row in rows:
        if row.keys() != expected:
            other = sorted(expected ^ row.keys())
            raise BadRecordError(
                f"rows of one batch have different fields: {', '.join(map(repr, other))} is in some of them alone; "
                "keep the same fields of all datasets (additional_fields), or drop it from all",
                reason="different_fields",
                fields=other,
            )


class RowPlace(NamedTuple):
    """A row of an epoch, or the place behind one.

    Attributes:
        ordinal: rows of the epoch before it.
        shard: place of its shard; 0 where a source has none.
        number: of the row in its shard.
        passed: rows of the same number before it: an expanding transform makes several of one.
    """

    ordinal: int
    shard: int
    number: int
    passed: int

    @property
    def behind(self) -> RowPlace:
        """Right behind this row."""
        return RowPlace(self.ordinal + 1, self.shard, self.number, self.passed + 1)


START = RowPlace(0, 0, 0, 0)


def rows_from(source: Iterable[Row], place: RowPlace) -> Iterator[tuple[RowPlace, Row]]:
    """Yield the rows of an epoch from a place on, each with its own."""
    if isinstance(source, ShardedDataSource) and _goes_by_shards(source):
        yield from _from_shards(source, place)
        return
    for ordinal, row in islice(enumerate(source), place.ordinal, None):
        yield RowPlace(ordinal, 0, 0, 0), row


def identity_of(source: Iterable[Row]) -> dict[str, Any]:
    """Return what can be told of a source without reading it, and must be the same where its places are used again."""
    if not isinstance(source, ShardedDataSource):
        return {"shards": None, "bytes": None}
    return {"shards": source.num_shards(), "bytes": sum(size for _, size, _ in source.versions)}


def _from_shards(source: ShardedDataSource, place: RowPlace) -> Iterator[tuple[RowPlace, Row]]:
    ordinal = place.ordinal
    for shard, name in list(enumerate(source.shard_names))[place.shard :]:
        first = place.number if shard == place.shard else 0
        last = passed = -1
        for number, row in source.open_shard_numbered(name, first):
            passed = passed + 1 if number == last else 0
            last = number
            if shard == place.shard and number == place.number and passed < place.passed:
                continue
            yield RowPlace(ordinal, shard, number, passed), row
            ordinal += 1


def _goes_by_shards(source: ShardedDataSource) -> bool:
    """Whether iterating over a source is going through its shards: a class of a user may do something else."""
    kind, base = type(source), ShardedDataSource
    return kind.__iter__ is base.__iter__ and kind.iter_shards is base.iter_shards


Item = TypeVar("Item")

_DRAWS: Final = 1024


def shuffled_by_buffer(items: Iterable[Item], size: int, key: int) -> Iterator[Item]:
    """Yield `items` in an order that `key` decides, holding `size` of them.

    The buffer is filled; then each new item takes the place of one drawn from it, and in the end those that are left
    are drawn. An item comes out at most `size` places early, and any number of places late.
    """
    draws = _draws(key)
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        place = next(draws) % size
        drawn, buffer[place] = buffer[place], item
        yield drawn
    while buffer:
        place = next(draws) % len(buffer)
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        yield buffer.pop()


def _draws(key: int) -> Iterator[int]:
    """Yield the numbers of the stream that `key` names: ``splitmix64(key + 0), splitmix64(key + 1) ...``."""
    counter = np.arange(_DRAWS, dtype=np.uint64) + np.uint64(key)
    while True:
        yield from splitmix64(counter).tolist()
        counter = counter + np.uint64(_DRAWS)


FORMAT: Final = 1


@final
@dataclass(frozen=True, slots=True)
class Stand:
    """How far delivery has come.

    Attributes:
        epoch: number of the epoch.
        rows: of it that were delivered.
        place: of the first row that has to be read to go on.
    """

    epoch: int
    rows: int = 0
    place: RowPlace = START


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one batch, and how far delivery has come with it."""

    rows: list[Row]
    after: Stand


@final
@dataclass(frozen=True)
class RowOrder:
    """How rows become batches.

    Attributes:
        source: of rows.
        size: rows of a batch.
        buffer: rows of the buffer that they are drawn from at random; None: they stay in order.
        drop_last: leave out a last batch of fewer.
        seed: of the shuffle.
    """

    source: Iterable[Row]
    size: int
    buffer: int | None
    drop_last: bool
    seed: int

    def chunks(self, start: Stand) -> Iterator[Chunk]:
        """Yield the batches of an epoch from a stand on."""
        found = self._ordered(start) if self.buffer is None else self._shuffled(start, self.buffer)
        delivered = start.rows
        while chunk := list(islice(found, self.size)):
            if len(chunk) < self.size and self.drop_last:
                return
            delivered += len(chunk)
            yield Chunk([row for row, _ in chunk], Stand(start.epoch, delivered, chunk[-1][1]))

    def state(self, stand: Stand) -> dict[str, Any]:
        """Return a stand as JSON, and what it belongs to."""
        return {
            "format": FORMAT,
            "epoch": stand.epoch,
            "rows": stand.rows,
            "place": list(stand.place),
            **self._identity(),
        }

    def stand(self, state: Mapping[str, Any]) -> Stand:
        """Read what :meth:`state` gave; ConfigError if it is of another order or of another source."""
        if not isinstance(state, Mapping) or state.get("format") != FORMAT or "place" not in state:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"this is no state of a loader of rows: {state!r}; expected what state_dict() returned"
            )
        problems = [
            f"{name} is {state.get(name)!r} there and {value!r} here"
            for name, value in self._identity().items()
            if state.get(name) != value
        ]
        if problems:
            raise ConfigError("the state is of another run: " + "; ".join(problems), differs=problems)
        return Stand(int(state["epoch"]), int(state["rows"]), RowPlace(*map(int, state["place"])))

    def _identity(self) -> dict[str, Any]:
        return {"seed": self.seed, "shuffle_buffer_size": self.buffer, **identity_of(self.source)}

    def _ordered(self, start: Stand) -> Iterator[tuple[Row, RowPlace]]:
        return ((row, place.behind) for place, row in rows_from(self.source, start.place))

    def _shuffled(self, start: Stand, size: int) -> Iterator[tuple[Row, RowPlace]]:
        """Rows as they are drawn, each with the place of the oldest row that then is still to come.

        Rows before `start.place` were all delivered: the buffer is filled with nothing in their stead, and makes the
        same draws.
        """
        waiting = _Waiting(rows_from(self.source, start.place), start.place)
        items: Iterator[tuple[int, Row] | None] = chain(repeat(None, start.place.ordinal), waiting)
        drawn = shuffled_by_buffer(items, size, key_of(self.seed, start.epoch))
        for count, item in enumerate(drawn):
            if item is None:
                continue
            ordinal, row = item
            waiting.remove(ordinal)
            if count >= start.rows:
                yield row, waiting.oldest


@final
class _Waiting(Iterator[tuple[int, Row]]):
    """Rows that were read, and which of them wait in the buffer."""

    def __init__(self, rows: Iterator[tuple[RowPlace, Row]], place: RowPlace) -> None:
        self._rows, self._next = rows, place
        self._places: OrderedDict[int, RowPlace] = OrderedDict()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, Row]:
        place, row = next(self._rows)
        self._places[place.ordinal], self._next = place, place.behind
        return place.ordinal, row

    def remove(self, ordinal: int) -> None:
        del self._places[ordinal]

    @property
    def oldest(self) -> RowPlace:
        return next(iter(self._places.values()), self._next)


@final
@dataclass(frozen=True, slots=True)
class Made:
    """A batch, and how far delivery has come with it."""

    columns: Batch
    after: Stand


def first_device() -> Any:
    """Return the sharding of arrays that lie on the first device of this process; MissingExtraError without jax."""
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError("batches on devices need jax: pip install 'tokenlake[jax]'") from error
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


@final
class RowPlacement:
    """Puts batches of `size` rows onto the devices of a sharding, which divides (rows, ids).

    Raises:
        MissingExtraError: jax is not installed.
    """

    def __init__(self, sharding: Any, size: int) -> None:
        from tokenlake.loader.jax import Placement

        self._kind, self._sharding, self._size = Placement, sharding, size
        self._placements: dict[int, Any] = {}
        self._of(_some_width(sharding))  # what is no sharding, or cannot cut the rows, is found now

    def ahead(self, made: Iterator[Made], prefetch: int) -> Iterator[Made]:
        """Return an iterator over the same batches on the devices; a thread puts `prefetch` of them ahead."""
        from tokenlake.loader.jax import DeviceBatches

        return cast("Iterator[Made]", DeviceBatches(cast("Any", made), cast("Any", self), prefetch=prefetch))

    def place(self, made: Made) -> Made:
        """Return a batch on the devices.

        Raises:
            ConfigError: a field is no array (rows, ids), or the sharding cannot cut it.
        """
        return Made({name: self._array(name, values) for name, values in made.columns.items()}, made.after)

    def _array(self, name: str, values: Any) -> Any:
        if not isinstance(values, np.ndarray) or values.ndim != 2:
            found = f"an array of shape {values.shape}" if isinstance(values, np.ndarray) else "no array"
            raise ConfigError(
                f"the field {name!r} is {found}; on devices batches hold arrays (rows, ids) alone. "
                "Leave it out: source.drop_fields([...])"
            )
        placement = self._of(values.shape[1])
        wanted = placement.wanted(self._size)
        step = Step(0, 0, 0, self._size, self._size)
        return placement.place(HostBatch(step, wanted, {name: values[wanted]})).columns[name]

    def _of(self, width: int) -> Any:
        if width not in self._placements:
            self._placements[width] = self._kind(self._sharding, BatchSizes.of(self._size), width)
        return self._placements[width]


def _some_width(sharding: Any) -> int:
    """A length of rows that any sharding of these devices can cut."""
    try:
        return len(sharding.device_set)
    except (AttributeError, ValueError):
        return 1
