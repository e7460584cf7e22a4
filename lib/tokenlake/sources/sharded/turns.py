"""Whose turn it is at each place of a mixture, also where nobody knows yet how many rows a source has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from tokenlake.errors import ConfigError
from tokenlake.mixing.counts import Counts
from tokenlake.mixing.mixture import Mixture
from tokenlake.mixing.schedule import WeightScheduler

Lengths = Mapping[str, int | None]
"""Name of each source to its rows, None where only reading it would tell."""

_ENDLESS: Final = 1 << 53  # rows that no source has
_STEP: Final = 1024  # places that are looked up at a time, where blocks are smaller


@final
@dataclass(frozen=True, slots=True)
class Turns:
    """The order of a mixture in one lane.

    A source of unknown length is taken for endless until it ends. The places before its end are the same either way:
    who reads it tells its length when it is known, and asks again from there on.

    Attributes:
        scheduler: the weights; its names are those of the sources.
        block_size, seed, stop: as :class:`tokenlake.mixing.mixture.Mixture` takes them.
    """

    scheduler: WeightScheduler
    block_size: int
    seed: int
    stop: str

    @property
    def limited(self) -> tuple[str, ...]:
        """The sources of which the schedule takes only so many rows, before their weights stay 0."""
        return tuple(name for name, most in self._ceilings().items() if most is not None)

    def check(self, lengths: Lengths) -> None:
        """Raise ConfigError if a source has no row to go on with, or can never be exhausted."""
        for name, most in self._ceilings().items():
            self._told(name, lengths[name], most)

    def rows(self, lengths: Lengths) -> int | None:
        """Return how many rows the mixture has; None: it has no end, or it is not known. Raises as :meth:`check`."""
        return None if self.stop == "restart" or None in lengths.values() else self._mixture(lengths).rows

    def names(self, lengths: Lengths, place: int) -> Iterator[str]:
        """Yield the name of the source at each place, from `place` on; raises as :meth:`check`."""
        mixture = self._mixture(lengths)
        names, rows = mixture.names, mixture.rows
        step = -(-_STEP // self.block_size) * self.block_size
        while rows is None or place < rows:
            stop = (place // step + 1) * step
            stop = stop if rows is None else min(stop, rows)
            for source in mixture.lane(0, place, stop).source.tolist():
                yield names[source]
            place = stop

    def drawn(self, lengths: Lengths, place: int) -> tuple[int, dict[str, int]]:
        """Return `place`, or the end if that is before it; and how many rows of each source come before that."""
        mixture = self._mixture(lengths)
        place = place if mixture.rows is None else min(place, mixture.rows)
        return place, dict(zip(mixture.names, mixture.drawn(0, place).tolist(), strict=True))

    def never_exhausted(self, name: str, most: int) -> ConfigError:
        """Return the error for a source of which the schedule takes no more than `most` rows, and which has more."""
        return ConfigError(
            f"source {name!r} can never be exhausted: the schedule takes {most} rows of it before its weight stays 0, "
            "and it has more. Give it a weight above 0 at the end of the schedule, leave it out, or use another "
            "stop_strategy",
            source=name,
        )

    def _mixture(self, lengths: Lengths) -> Mixture:
        told = {name: self._told(name, lengths[name], most) for name, most in self._ceilings().items()}
        size = self.block_size  # and of a batch: the order is shuffled inside a block
        return Mixture(told, self.scheduler, batch_size=size, block_size=size, seed=self.seed, stop=self.stop)

    def _ceilings(self) -> dict[str, int | None]:
        """Rows that the schedule takes of each source, ever; None: there is no end to them."""
        counts = Counts(self.scheduler, block_size=self.block_size)
        return {name: counts.ceiling(place) for place, name in enumerate(self.scheduler.names)}

    def _told(self, name: str, rows: int | None, most: int | None) -> int | None:
        """Return the length that the mixture is told; `most`: rows that the schedule takes of the source, ever."""
        if rows == 0 and self.stop != "all_exhausted":
            raise ConfigError(
                f"source {name!r} has no rows, so that stop_strategy={self.stop!r} has nothing to go on with; leave it "
                "out, or use stop_strategy='all_exhausted'",
                source=name,
            )
        if self.stop == "restart":
            return rows
        if self.stop == "first_exhausted" or most is None:
            return _ENDLESS if rows is None else rows
        if (rows is None and not most) or (rows is not None and rows > most):
            raise self.never_exhausted(name, most)
        return most if rows is None else rows
