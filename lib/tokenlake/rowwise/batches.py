"""Rows to batches of arrays, in an order that seed and epoch decide and that can be resumed at any batch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, Final, Literal, cast, final

import numpy as np
import numpy.typing as npt

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.mixing.random import key_of, shuffled_by_buffer
from tokenlake.rowwise.shards import Row, RowPosition, Share, positioned
from tokenlake.rowwise.source import ShardedDataSource

Array = npt.NDArray[Any]
Arrays = dict[str, Any]
"""Field to an array of a batch's values, or to a list where they make no array."""

_FORMAT: Final = 1
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
    _check_fields(rows, names)
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
    if (kind := next(kinds, None)) is None:
        return _plain(values)
    rows = [_tokens(name, value, kind) for value in values]
    if len({len(row) for row in rows}) == 1 and (
        filling is None or filling.width_of(len(rows[0])) == len(rows[0])
    ):
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


def _tokens(name: str, value: Any, kind: str) -> Array:
    """Return one row's values as an array of one dimension."""
    own = None if isinstance(value, np.ndarray) else np.bool_ if kind == "loss_mask" else np.int32
    array = np.asarray(cast("Any", value), own) if isinstance(value, np.ndarray | list | tuple) else None
    if array is None or array.ndim != 1:
        raise BadRecordError(f"the field {name!r} holds {value!r:.80}, expected a list of ids")
    return array


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
            how = "keep the same fields of all datasets (additional_fields), or drop it from all"
            told = f"{', '.join(map(repr, other))} is only in some of them; {how}"
            raise BadRecordError(f"rows of one batch differ: {told}", reason="different_fields", fields=other)


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

    def batches(self, start: RowProgress) -> Iterator[tuple[list[Row], RowProgress]]:
        """Yield the rows of each batch of an epoch from `start` on, and how far delivery has come with it."""
        found = self._ordered(start) if self.buffer is None else self._shuffled(start, self.buffer)
        delivered = start.rows
        while some := list(islice(found, self.size)):
            if len(some) < self.size and self.drop_last:
                return
            delivered += len(some)
            yield [row for row, _ in some], RowProgress(start.epoch, delivered, some[-1][1])

    def state(self, progress: RowProgress) -> dict[str, Any]:
        """Return how far delivery has come, and of what, as JSON."""
        return {
            "format": _FORMAT,
            "epoch": progress.epoch,
            "rows": progress.rows,
            "place": list(progress.position),
            **self._identity(),
        }

    def progress(self, state: Mapping[str, Any]) -> RowProgress:
        """Read what :meth:`state` gave; ConfigError if it is of another order or of another source."""
        if not isinstance(state, Mapping) or state.get("format") != _FORMAT or "place" not in state:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"no state of a loader of rows, as state_dict() returns it: {state!r:.200}")
        problems = [
            f"{name} is {state.get(name)!r} there and {value!r} here"
            for name, value in self._identity().items()
            if state.get(name) != value
        ]
        if problems:
            raise ConfigError("the state is of another run: " + "; ".join(problems), differs=problems)
        return RowProgress(int(state["epoch"]), int(state["rows"]), RowPosition(*map(int, state["place"])))

    def _identity(self) -> dict[str, Any]:
        """Return what decides the order, and what can be told of the source without reading it."""
        found: dict[str, Any] = {"seed": self.seed, "shuffle_buffer_size": self.buffer}
        if not isinstance(self.source, ShardedDataSource):
            return {**found, "shards": None, "bytes": None}
        size = sum(size for _, size, _ in self.source.versions)
        return {**found, "shards": self.source.num_shards(), "bytes": size}

    def _ordered(self, start: RowProgress) -> Iterator[tuple[Row, RowPosition]]:
        return ((row, position.behind) for position, row in _rows_from(self.source, start.position))

    def _shuffled(self, start: RowProgress, size: int) -> Iterator[tuple[Row, RowPosition]]:
        """Rows as they are drawn, each with the position of the oldest row that then is still to come.

        Rows before `start.position` were all delivered: the buffer is filled with nothing in their stead, and makes
        the same draws.
        """
        waiting: OrderedDict[int, RowPosition] = OrderedDict()  # rows in the buffer, by ordinal
        behind = start.position

        def read() -> Iterator[tuple[int, Row]]:
            nonlocal behind
            for position, row in _rows_from(self.source, start.position):
                waiting[position.ordinal], behind = position, position.behind
                yield position.ordinal, row

        items: Iterator[tuple[int, Row] | None] = chain(repeat(None, start.position.ordinal), read())
        for count, item in enumerate(shuffled_by_buffer(items, size, key_of(self.seed, start.epoch))):
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
    if isinstance(source, ShardedDataSource) and _goes_by_shards(source):
        yield from positioned(source, start, Share())
        return
    for ordinal, row in islice(enumerate(source), start.ordinal, None):
        yield RowPosition(ordinal), row


def _goes_by_shards(source: ShardedDataSource) -> bool:
    """Whether iterating over a source is going through its shards: a class of a user may do something else."""
    kind, base = type(source), ShardedDataSource
    return kind.__iter__ is base.__iter__ and kind.iter_shards is base.iter_shards
