"""The rows of one source as a mixture draws them: epoch after epoch, from any draw on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, final

from tokenlake.errors import ConfigError, SourceError
from tokenlake.order.random import key_of, shuffled
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.sources.sharded.fields import Row

_SHARDS: Final = 0x53484152_4453  # "SHARDS": the stream of chance that shards are shuffled by


@final
class Feed:
    """Rows of a source, drawn one after the other.

    Epoch 0 reads the shards in the source's own order. Where rows are drawn `again`, an epoch follows another, and
    every later one reads the shards in an order drawn for it; inside a shard the order stays. One shard is open at
    a time, from the first row on that is drawn.
    """

    def __init__(self, name: str, source: ShardedDataSource, *, again: bool, seed: int, place: int) -> None:
        """Begin before the first row; nothing is opened yet.

        Args:
            name: of the source, for messages.
            again: begin another epoch after the last row.
            seed, place: of the mixture, and of the source in it: they decide the order of shards in later epochs.
        """
        self._name, self._source, self._again = name, source, again
        self._key = (seed, _SHARDS, place)
        self.drawn = 0
        """How many draws come before the next one, over all epochs."""
        self._begin(0)

    def take(self) -> Row | None:
        """Return the next row, None after the last one.

        Raises:
            SourceError: rows are drawn again, and there are none.
        """
        while (row := next(self._rows, None)) is None:
            name = next(self._shards, None)
            if name is not None:
                _, self._rows = self._opened(name, 0)
            elif not self._restarted():
                return None
        self._came += 1
        self.drawn += 1
        return row

    def seek(self, draws: int) -> int:
        """Go on at draw number `draws`, counted from the first epoch on; return how many draws come before it.

        Those are `draws`, or all there are, if there are fewer. Rows are passed over by their numbers; only where
        a source leaves rows out, or does not say how many there are, are they read.
        """
        if draws == self.drawn:
            return draws
        self._begin(0)
        left = draws
        while left:
            name = next(self._shards, None)
            if name is not None:
                passed, self._rows = self._opened(name, left)
                left, self._came = left - passed, self._came + passed
            elif not self._again:
                break
            else:
                self._require_rows()
                epochs, left = divmod(left, self._came)
                self._begin(self._epoch + 1 + epochs)
        self.drawn = draws - left
        return self.drawn

    def _begin(self, epoch: int) -> None:
        self._epoch, self._came = epoch, 0
        self._rows: Iterator[Row] = iter(())
        self._shards = iter(self._ordered(epoch))

    def _restarted(self) -> bool:
        if self._again:
            self._require_rows()
            self._begin(self._epoch + 1)
        return self._again

    def _require_rows(self) -> None:
        if not self._came:
            first = "" if self._epoch == 0 else f" in epoch {self._epoch}, though it had some before"
            raise SourceError(
                f"source {self._name!r} gives no rows{first}: it cannot be started again. Leave it out, let each "
                "pass over it give its rows, or use stop_strategy='all_exhausted'",
                source=self._name,
                epoch=self._epoch,
            )

    def _ordered(self, epoch: int) -> list[str]:
        names = list(self._source.shard_names)
        if epoch == 0 or len(names) < 2:
            return names
        return [names[place] for place in shuffled(len(names), key_of(*self._key, epoch)).tolist()]

    def _opened(self, shard: str, skip: int) -> tuple[int, Iterator[Row]]:
        """Return how many of the first `skip` rows of a shard there are, and the rows after them."""
        if not skip:
            return 0, self._source.open_shard(shard)
        if not self._source.every_row:  # numbers have gaps: how many rows come before one, only reading tells
            rows = self._source.open_shard(shard)
            return sum(1 for _ in islice(rows, skip)), rows
        said = self._source.get_shard_info(shard).rows
        if said is None:
            return self._tried(shard, skip)
        if skip >= said:
            return said, iter(())
        return skip, self._source.open_shard_at_row(shard, skip)

    def _tried(self, shard: str, skip: int) -> tuple[int, Iterator[Row]]:
        """Open at a row that may be beyond the end: then the error says where that is."""
        rows = self._source.open_shard_at_row(shard, skip)
        try:
            first = list(islice(rows, 1))
        except ConfigError as error:
            said = error.details.get("rows")
            if error.details.get("row") != skip or not isinstance(said, int):
                raise
            return said, iter(())
        return skip, chain(first, rows)
