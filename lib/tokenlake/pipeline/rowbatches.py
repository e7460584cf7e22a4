"""Epochs of a source of rows: batches in an order that seed and epoch decide, and where one can be taken up again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, Final, Self, final

from tokenlake.errors import ConfigError
from tokenlake.order.random import key_of
from tokenlake.pipeline.places import START, RowPlace, identity_of, rows_from
from tokenlake.pipeline.shuffling import shuffled_by_buffer
from tokenlake.sources.sharded.fields import Row

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
