"""Batches of arrays from rows, in a reproducible order.

An epoch can be resumed after any batch.

- `Filling`, `batch_of`: padding, and the types of a batch's arrays
- `RowLoader`, `RowDelivery`: epochs of a source, prepared ahead by threads, and their
  state
- `ResumeState`: the state of a training loop that the user writes

The order of an epoch is a function of the seed and the number of the epoch. Without a
shuffle buffer, rows come in the order of the source. With a buffer of B rows, each
delivered row is drawn at random from the next B rows.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, islice, repeat
from typing import Any, Final, Literal, NamedTuple, Self, cast, final

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
"""Array of each field of a batch; a list for values that do not form an array."""

_FORMAT: Final = 1  # of states
_NO_STATE: Final = "not a state of a loader of rows"
_MAX_COUNT: Final = 1 << 50  # largest number of rows or epochs in a state
_FILLED_WITH: Final = {
    **dict.fromkeys(("attention_mask", "segment_ids", "position_ids", "loss_mask"), 0),
    "labels": -100,
}
"""Padding value by the last part of a field's name.

``input_ids`` are padded with the padding token.
"""


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """Padding of rows of different lengths to one array.

    Attributes:
        pad_id: Token that pads `input_ids`.
        side: Side of the padding.
        width: Minimum width of a batch. Shorter rows are padded to it even if the
            longest row is shorter.
        multiple: Factor of the width: the width of a batch is a multiple of it.
    """

    pad_id: int
    side: Literal["left", "right"] = "right"
    width: int = 0
    multiple: int = 1

    def width_of(self, longest: int) -> int:
        """Return the width of a batch whose longest row has `longest` values."""
        return -(-max(longest, self.width) // self.multiple) * self.multiple


def batch_of(rows: Sequence[Row], filling: Filling | None = None) -> Arrays:
    """Return n rows as a batch.

    Fields of tokens become arrays of shape (n, longest). Lists of ids, masks, labels
    and segments become int32, lists of `loss_mask` become bool, and arrays keep their
    dtype. Other numbers become arrays of shape (n,) or (n, k). All other values stay a
    list of length n.

    Args:
        rows: Rows with the same fields, at least one.
        filling: Padding of shorter rows. With it, the batch always has an
            ``attention_mask``. None if rows of different lengths are an error.

    Raises:
        ConfigError: Rows have different lengths and there is no `filling`.
        BadRecordError: Rows have different fields.
    """
    # A field that only some rows have could be neither an array nor a list.
    names = list(rows[0])
    for row in rows:
        if row.keys() != rows[0].keys():
            fields = sorted(row.keys() ^ rows[0].keys())
            raise BadRecordError(
                f"rows of one batch differ: {', '.join(map(repr, fields))} is only in some of them; keep the same "
                "fields in all datasets (additional_fields), or drop it from all",
                reason="different_fields",
                fields=fields,
            )

    # One column for each field, and a mask if rows may be padded.
    batch: Arrays = {}
    for field_name in names:
        values = [row[field_name] for row in rows]
        batch[field_name] = _column(field_name, values, filling)
        has_mask = "attention_mask" in names
        if field_name == "input_ids" and filling is not None and not has_mask:
            ones = [np.ones(len(ids), np.int32) for ids in values]
            batch["attention_mask"] = _filled(ones, 0, filling)
    return batch


def _column(name: str, values: list[Any], filling: Filling | None) -> Any:
    """Return the values of one field as an array, or as the list that they are."""
    # The end of the name decides: ``chosen_input_ids`` are ids, too.
    for name_end in ("input_ids", *_FILLED_WITH):
        if name == name_end or name.endswith(f"_{name_end}"):
            return _token_column(name, name_end, values, filling)

    # Numbers, and arrays of one shape. Integers beyond 64 bits stay a list.
    number_types = bool | int | float | np.number | np.bool_
    if all(isinstance(value, number_types) for value in values):
        array = np.array(values)
        return array if array.dtype != object else values
    if all(isinstance(value, np.ndarray) for value in values):
        shapes = {value.shape for value in values}
        if len(shapes) == 1:
            return np.stack(values)
    return values


def _token_column(
    name: str, kind: str, values: list[Any], filling: Filling | None
) -> Array:
    """Return the values of a field of tokens as one array of shape (n, width).

    Args:
        name: Name of the field.
        kind: Last part of the name, which decides the padding value and the dtype of
            lists.
        values: Lists, or arrays, which keep their dtype.
        filling: Padding of shorter rows; None if rows of different lengths are an
            error.
    """
    list_type = np.bool_ if kind == "loss_mask" else np.int32
    # Lists become arrays of the type of the field.
    rows: list[Array] = []
    for value in values:
        if isinstance(value, np.ndarray):
            array: Array = cast("Array", value)
        elif isinstance(value, list | tuple):
            array = np.asarray(cast("Any", value), list_type)
        else:
            raise _not_ids(name, value)
        if array.ndim != 1:
            raise _not_ids(name, value)
        rows.append(array)

    # Rows that already have the width of the batch need no padding.
    width = len(rows[0])
    if filling is not None:
        width = filling.width_of(width)
    if all(len(row) == width for row in rows):
        return np.stack(rows)
    if filling is None:
        raise ConfigError(
            f"{name!r}: the rows of a batch have different lengths; pack them, pad them "
            "(TokenizerConfig(padding=...)), or give the loader a pad_token_id"
        )
    padding_value = filling.pad_id
    if kind != "input_ids":
        padding_value = _FILLED_WITH[kind]
    return _filled(rows, padding_value, filling)


def _not_ids(name: str, value: object) -> BadRecordError:
    """Return the error for a value that is not a list of ids."""
    return BadRecordError(
        f"the field {name!r} holds {value!r:.80}, expected a list of ids"
    )


def _filled(rows: Sequence[Array], padding_value: int, filling: Filling) -> Array:
    """Return rows as one array, padded with a value."""
    width = filling.width_of(max(map(len, rows)))
    batch = np.full((len(rows), width), padding_value, rows[0].dtype)
    for row_index, row in enumerate(rows):
        first_place = width - len(row) if filling.side == "left" else 0
        batch[row_index, first_place : first_place + len(row)] = row
    return batch


def collate_batch(
    examples: Sequence[Row],
    pad_token_id: int | None = None,
    padding_side: Literal["left", "right"] = "right",
) -> Arrays:
    """Return rows as a batch.

    :func:`tokenlake.rowwise.batches.batch_of` describes the types.

    Args:
        examples: Rows, at least one.
        pad_token_id: Token that pads rows to the longest one. None if rows of different
            lengths are an error.
        padding_side: Side of the padding.

    Raises:
        ConfigError, BadRecordError: Rows have different lengths or fields.
    """
    if not examples:
        raise ConfigError("examples: got none, expected at least one row")
    filling: Filling | None = None
    if pad_token_id is not None:
        filling = Filling(pad_token_id, padding_side)
    return batch_of(examples, filling)


def batch_iterator(
    source: Iterable[Row], batch_size: int, drop_last: bool = True, **padding: Any
) -> Iterator[Arrays]:
    """Return the batches of rows, in order.

    Args:
        source: Rows in the order of the batches.
        batch_size: Number of rows per batch.
        drop_last: Whether a last batch of fewer rows is left out.
        padding: Arguments `pad_token_id` and `padding_side` of :func:`collate_batch`.
    """
    # Arguments are checked now, and not when the first batch is drawn.
    whole_number("batch_size", batch_size, 1)
    min_rows = batch_size if drop_last else 1

    def batches() -> Iterator[Arrays]:
        rows = iter(source)
        while True:
            batch_rows = list(islice(rows, batch_size))
            if len(batch_rows) < min_rows:
                return
            yield collate_batch(batch_rows, **padding)

    return batches()


_BEGINNING: Final = RowPosition()


@final
@dataclass(frozen=True, slots=True)
class RowProgress:
    """Progress of the delivery of batches.

    Attributes:
        epoch: Number of the epoch.
        rows: Number of rows of the epoch that were delivered.
        position: Position of the first row that has to be read to resume.
    """

    epoch: int
    rows: int = 0
    position: RowPosition = _BEGINNING


@final
class RowLoader:
    """Epochs of a source of rows, one for each iteration.

    Args:
        source: Rows of an epoch.
        load: Settings of batches: their size, the shuffle buffer, and the threads that
            prepare them.
        seed: Random seed of the shuffle.
        filling: Padding of rows of different lengths; None if they are an error.
        place_batch: Function that puts the arrays of a batch onto devices. None if they
            stay NumPy arrays.
    """

    def __init__(
        self,
        source: Iterable[Row],
        load: LoadStageConfig,
        seed: int,
        filling: Filling | None,
        place_batch: Callable[[Arrays], Arrays] | None,
    ) -> None:
        self._source = source
        self._load = load
        self._seed = seed
        self._filling = filling
        self._place_batch = place_batch
        # Progress of the latest iteration, and the beginning of the next one.
        self._now = RowProgress(0)
        self._next = self._now
        # Whether the latest iteration came to the end of its epoch.
        self.ended = False
        # Held weakly: an iteration that is forgotten ends its threads.
        self._latest: weakref.ref[RowDelivery] | None = None

    def deliver(
        self, meter: RowMeter | None = None, *, prefetch: bool | None = None
    ) -> RowDelivery:
        """Return the batches of the next epoch.

        An iteration that is under way is replaced: its next batch is a ConfigError.

        Args:
            meter: Counter of the delivered rows and tokens.
            prefetch: Whether threads prepare batches ahead. None for the configured
                value.
        """
        self._supersede("another iteration")
        start = self._next
        self._now = start
        self._next = RowProgress(start.epoch + 1)
        self.ended = False

        # Threads collate batches ahead; one more puts them onto devices, in order.
        # Without threads, both are done when a batch is drawn.
        if prefetch is None:
            prefetch = self._load.prefetch_enabled
        collated_ahead = 0
        placed_ahead = 0
        if prefetch:
            collated_ahead = self._load.prefetch_buffer_size
            placed_ahead = _ON_DEVICES
        batches: Iterator[_CollatedBatch] = Prefetched(
            self._batches(start),
            self._collate,
            workers=self._load.prefetch_workers,
            ahead=collated_ahead,
        )
        place_batch = self._place_batch
        if place_batch is not None:
            batches = Prefetched(
                batches,
                lambda batch: batch._replace(arrays=place_batch(batch.arrays)),
                workers=1,
                ahead=placed_ahead,
            )
        delivery = RowDelivery(batches, self, meter)
        self._latest = weakref.ref(delivery)
        return delivery

    def _collate(self, batch: tuple[list[Row], RowProgress]) -> _CollatedBatch:
        """Return the arrays of a batch of rows."""
        rows, progress = batch
        return _CollatedBatch(batch_of(rows, self._filling), progress, len(rows))

    @property
    def epoch(self) -> int:
        return self._now.epoch

    def close(self) -> None:
        if self._latest is None:
            return
        delivery = self._latest()
        if delivery is not None:
            delivery.close()

    def __len__(self) -> int:
        row_count = len(cast("Any", self._source))
        batch_size = self._load.batch_size
        if self._load.drop_last:
            return row_count // batch_size
        return -(-row_count // batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the delivery, as values of JSON.

        The identity of the order and the source is part of it.
        """
        return {
            "format": _FORMAT,
            "epoch": self._now.epoch,
            "rows": self._now.rows,
            "place": list(self._now.position),
            **self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where :meth:`state_dict` was called.

        Raises:
            ConfigError: The state is of another order or of another source.
        """
        is_mapping = isinstance(state, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_mapping or state.get("format") != _FORMAT or "place" not in state:
            raise ConfigError(
                f"{_NO_STATE}: {state!r:.200}; expected the result of state_dict()"
            )
        # Everything that decides the order must be the same here. 1 is not True.
        state = cast("dict[str, Any]", plain_integers(state))
        problems: list[str] = []
        for setting, value in self._identity().items():
            if setting not in state:
                continue
            stated = state[setting]
            if stated != value or type(stated) is not type(value):
                problems.append(f"{setting} is {stated!r} there and {value!r} here")
        if problems:
            raise ConfigError(
                "the state belongs to another run: " + "; ".join(problems),
                differs=problems,
            )
        # The state is checked as a whole before the iteration under way ends.
        progress = self._progress_of(state)
        self._supersede("load_state_dict()")
        self._next = self._now = progress
        self._latest = None

    def _progress_of(self, state: Mapping[str, Any]) -> RowProgress:
        """Return the progress that a state records.

        Raises:
            ConfigError: A number is missing, or numbers contradict each other.
        """
        # The keys: none is missing, and none is unknown.
        for required_key in ("epoch", "rows", *self._identity()):
            if required_key not in state:
                raise ConfigError(f"{_NO_STATE}: {required_key!r} is missing")
        state_keys = {"format", "epoch", "rows", "place", *self._identity()}
        for key in state:
            if key not in state_keys:
                raise ConfigError(
                    f"{_NO_STATE}: it has a key {key!r}, which states do not have{did_you_mean(key, state_keys)}"
                )
        epoch = whole_number(f"{_NO_STATE}: epoch", state["epoch"], 0, _MAX_COUNT)
        rows = whole_number(f"{_NO_STATE}: rows", state["rows"], 0, _MAX_COUNT)
        place = state["place"]
        has_all_numbers = isinstance(place, list | tuple)
        if has_all_numbers:
            has_all_numbers = len(cast("Sequence[Any]", place)) == len(_BEGINNING)
        if not has_all_numbers:
            raise ConfigError(
                f"{_NO_STATE}: place: got {place!r:.80}, must be {len(_BEGINNING)} whole numbers"
            )
        # The numbers must be possible in this source and order.
        numbers: list[int] = []
        for number in cast("Sequence[Any]", place):
            numbers.append(whole_number(f"{_NO_STATE}: place", number, 0, _MAX_COUNT))
        position = RowPosition(*numbers)
        # Without a shuffle buffer, the next row to read is the one behind those that
        # were delivered. In a buffer, a row that was read early may still wait.
        is_ahead = position.ordinal > rows
        is_behind = self._load.shuffle_buffer_size is None and position.ordinal < rows
        if is_ahead or is_behind:
            raise ConfigError(
                f"the state contradicts itself: {rows:,} rows of the epoch were delivered, and the next row to read "
                f"is number {position.ordinal:,}. It was changed, or combined from several; expected the result of "
                "state_dict()"
            )
        shards = state["shards"]
        if shards is not None and position.shard >= max(1, shards):
            raise ConfigError(
                f"{_NO_STATE}: place: got shard {position.shard} of {shards} shards"
            )
        return RowProgress(epoch, rows, position)

    def _supersede(self, caller: str) -> None:
        """End the iteration that is under way.

        Its next batch is then an error, and not the end of an epoch.
        """
        delivery = None if self._latest is None else self._latest()
        if delivery is not None:
            delivery.supersede(
                f"this iterator was replaced after row {self._now.rows} of epoch {self._now.epoch}: a loader has one "
                f"iterator at a time, and {caller} took its place. Continue with that one; for two streams, create "
                "two loaders"
            )

    def delivered(self, delivery: RowDelivery, after: RowProgress | None) -> None:
        """Record that an iteration delivered a batch.

        Args:
            delivery: Iteration that delivered; only the latest one counts.
            after: Progress after the batch. None if the iteration came to its end.
        """
        if self._latest is None or self._latest() is not delivery:
            return
        self.ended = after is None
        if after is None:
            self._now = self._next
        else:
            self._now = after

    def _identity(self) -> dict[str, Any]:
        """Return the settings that decide the order, and properties of the source.

        The properties are those that need no reading.
        """
        identity: dict[str, Any] = {
            "seed": self._seed,
            "shuffle_buffer_size": self._load.shuffle_buffer_size,
            "shards": None,
            "bytes": None,
        }
        if isinstance(self._source, ShardedDataSource):
            identity["shards"] = self._source.num_shards()
            identity["bytes"] = sum(size for _, size, _ in self._source.versions)
        return identity

    def _batches(self, start: RowProgress) -> Iterator[tuple[list[Row], RowProgress]]:
        """Yield the rows of each batch of an epoch, and the progress after it.

        Args:
            start: Progress before the first batch.
        """
        if self._load.shuffle_buffer_size is not None:
            rows = self._shuffled(start, self._load.shuffle_buffer_size)
        else:
            rows = (
                (row, position.behind)
                for position, row in _rows_from(self._source, start.position)
            )

        # The last batch may be smaller. The position after its last row is part of the
        # progress.
        batch_size = self._load.batch_size
        delivered = start.rows
        while batch := list(islice(rows, batch_size)):
            if len(batch) < batch_size and self._load.drop_last:
                return
            delivered += len(batch)
            _, resume_position = batch[-1]
            yield (
                [row for row, _ in batch],
                RowProgress(start.epoch, delivered, resume_position),
            )

    def _shuffled(
        self, start: RowProgress, size: int
    ) -> Iterator[tuple[Row, RowPosition]]:
        """Yield rows in the order of the shuffle buffer, each with a resume position.

        It is the position of the oldest row that was read and not yet delivered, or the
        end of the rows read.

        Args:
            start: Progress before the first row. All rows before ``start.position``
                were delivered: None takes their places in the buffer, so that the draws
                are the same as in an epoch from its beginning.
            size: Number of rows in the buffer.
        """
        # Rows in the buffer, by their ordinals.
        waiting: OrderedDict[int, RowPosition] = OrderedDict()
        read_to = start.position

        def read_rows() -> Iterator[tuple[int, Row]]:
            nonlocal read_to
            for position, row in _rows_from(self._source, start.position):
                waiting[position.ordinal] = position
                read_to = position.behind
                yield position.ordinal, row

        # None takes the place of each row that was delivered before, so that the random
        # draws are the same.
        items: Iterator[tuple[int, Row] | None] = chain(
            repeat(None, start.position.ordinal), read_rows()
        )
        for draw_count, drawn_item in enumerate(
            shuffled_by_buffer(items, size, key_of(self._seed, start.epoch))
        ):
            if drawn_item is None:
                continue
            ordinal, row = drawn_item
            del waiting[ordinal]
            if draw_count >= start.rows:
                yield row, next(iter(waiting.values()), read_to)


def _rows_from(
    source: Iterable[Row], start: RowPosition
) -> Iterator[tuple[RowPosition, Row]]:
    """Yield the rows of an epoch from a position on, each with its position.

    Sources in shards are opened there; any other iterable is drawn from its beginning.
    """
    if isinstance(source, ShardedDataSource):
        # Iterating over a source is going through its shards, unless a custom class
        # does something else.
        source_class = type(source)
        has_own_rows = source_class.__iter__ is not ShardedDataSource.__iter__
        has_own_shards = source_class.iter_shards is not ShardedDataSource.iter_shards
        if not has_own_rows and not has_own_shards:
            yield from source.positions(start)
            return
    for ordinal, row in islice(enumerate(source), start.ordinal, None):
        yield RowPosition(ordinal), row


class _CollatedBatch(NamedTuple):
    """A batch, and the progress after it.

    Attributes:
        arrays: Arrays of the batch.
        progress: Progress of the epoch after this batch.
        rows: Number of rows.
    """

    arrays: Arrays
    progress: RowProgress
    rows: int


_ON_DEVICES: Final = 2  # batches that are put onto devices ahead


@final
class RowDelivery(Iterator[Arrays]):
    """Batches of one iteration, each recorded in the loader when it is delivered."""

    def __init__(
        self,
        batches: Iterator[_CollatedBatch],
        loader: RowLoader,
        meter: RowMeter | None,
    ) -> None:
        self._batches = batches
        self._loader: RowLoader | None = loader  # None after the end, or when closed
        self._meter = meter
        self._superseded: str | None = None

    def __next__(self) -> Arrays:
        """Return the next batch.

        Raises:
            ConfigError: Another iteration of the loader took its place.
        """
        if self._superseded is not None:
            raise ConfigError(self._superseded)
        meter = self._meter
        if meter is None:
            batch = next(self._batches, None)
        else:
            batch = meter.timed(self._batches)
        # The loader learns of the end as well, which begins the next epoch.
        if self._loader is not None:
            progress: RowProgress | None = None
            if batch is not None:
                progress = batch.progress
            self._loader.delivered(self, progress)
        if batch is None:
            self._loader = None
            raise StopIteration
        if meter is not None:
            meter.rows += batch.rows
            meter.tokens += int(np.size(batch.arrays.get("input_ids", ())))
        return batch.arrays

    def close(self) -> None:
        """End the threads, and yield no more batches."""
        if isinstance(self._batches, Prefetched):
            self._batches.close()
        # Release the loader and, with it, the source.
        self._batches = iter(())
        self._loader = None

    def supersede(self, message: str) -> None:
        """End the threads.

        The next batch is a ConfigError, unless the epoch had come to its end.
        """
        if self._loader is not None:
            self._superseded = message
        self.close()


@final
@dataclass(frozen=True, slots=True)
class ResumeState:
    """State of a loop that reads a source row by row: its next row and its counts.

    The state of a :class:`tokenlake.AsyncDataLoader` records its shuffle, too.

    Attributes:
        shard_index: Index in ``shard_names`` of the shard of the next row.
        row_index: Number of the next row in its shard.
        epoch: Number of the epoch of the loop.
        step: Number of the step of the loop.
        dataset_states: Further states by name, values of JSON.
    """

    shard_index: int = 0
    row_index: int = 0
    epoch: int = 0
    step: int = 0
    dataset_states: dict[str, dict[str, Any]] = field(
        default_factory=dict[str, dict[str, Any]]
    )

    def __post_init__(self) -> None:
        for field_name in ("shard_index", "row_index", "epoch", "step"):
            object.__setattr__(
                self, field_name, whole_number(field_name, getattr(self, field_name), 0)
            )

    def rows(self, source: ShardedDataSource) -> Iterator[Row]:
        """Return the rows of a source from the next row on.

        Raises:
            ConfigError: The source has no such row.
        """
        return source.iter_shards(
            start_shard=self.shard_index, start_row=self.row_index
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the state as values of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the state that :meth:`to_dict` returned.

        Raises:
            ConfigError: The data are no such state.
        """
        if not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("ResumeState", data, "a mapping, as to_dict() returns it")
        field_names = {field.name for field in fields(cls)}
        unknown: list[str] = []
        for name in data:
            if name not in field_names:
                unknown.append(str(name))
        unknown.sort()
        if unknown:
            raise ConfigError(
                f"not a ResumeState: it has no field {', '.join(unknown)}; give the result of to_dict()"
            )
        return cls(**data)
