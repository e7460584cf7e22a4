"""The length curriculum: into how long pieces the rows of a batch are cut, as a function of the step.

With a batch size of 4 rows of 8 stored ids, and ``lengths={0: 2, 10: 4, 20: 8}``, batches have the shapes (16, 2),
(8, 4) and (4, 8). All have the same number of ids; every row is cut into 4, 2 and 1 parts. Cuts move no row to another
step. Each id is therefore delivered equally often, and a state counts the same rows, for any lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast, final

from tokenlake.base.checks import expected, whole_number
from tokenlake.errors import ConfigError
from tokenlake.runtime.loader.batch_sizes import Points, index_at, points_of


@final
@dataclass(frozen=True)
class LengthCurriculum:
    """How long what attends to each other is at each step: rows are cut there, and batches keep their ids.

    ::

        tl.LengthCurriculum.doubling(256, 2048, until=3000)  # {0: 256, 1000: 512, 2000: 1024, 3000: 2048}
        tl.LengthCurriculum.linear(256, 2048, until=3000, multiple=128)

    A cut is where a document ends and another begins: positions begin anew behind it, its piece has a segment id of its
    own, and its first id bears no loss, for what it would be predicted from is in another row.

    Args:
        points: as of ``batch_size``: (first step, ids), from step 0 on.
        keep_shape: batches stay (rows, L), and segments end at every multiple of the length in them, which attention
            inside segments keeps to: nothing is compiled anew, and lengths need not divide L. Off: batches have
            L / length times the rows of that length, which must divide L.
    """

    points: Points
    keep_shape: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", points_of(self.points, "lengths", "ids"))
        if not isinstance(self.keep_shape, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("lengths.keep_shape", self.keep_shape, "True or False")

    @classmethod
    def of(cls, asked: object) -> Self:
        """Read a curriculum, its arguments, ``512``, or ``{0: 256, 1000: 512}``; ConfigError where it is none."""
        if isinstance(asked, cls):
            return asked
        if not isinstance(asked, Mapping) or "points" not in asked:
            return cls(cast("Points", asked))
        given = cast("Mapping[str, Any]", asked)
        if set(given) - {"points", "keep_shape"}:
            raise ConfigError(
                f"lengths: got {asked!r}, must be a mapping of points and keep_shape, or of steps"
            )
        return cls(**given)

    @classmethod
    def doubling(cls, first: int, last: int, *, until: int, keep_shape: bool = False) -> Self:
        """Return lengths that double in equal intervals, from `first` at step 0 to `last` at step `until`.

        Raises:
            ConfigError: `last` is not `first` times a power of two, or there are fewer steps than doublings.
        """
        _check_growth(first, last, until)
        times = (last // first).bit_length() - 1
        if first << times != last or until < times:
            raise ConfigError(
                f"lengths: {first} comes to {last} by no number of doublings in {until} steps; expected a power of two "
                "times the first, and a step for each"
            )
        points = {step * until // max(times, 1): first << step for step in range(times + 1)}
        return cls(tuple(points.items()), keep_shape)

    @classmethod
    def linear(cls, first: int, last: int, *, until: int, multiple: int, keep_shape: bool = True) -> Self:
        """Return lengths that grow by `multiple` at a time along the line from `first` at step 0 to `last` at `until`.

        Raises:
            ConfigError: `last` is not `first` and a multiple of `multiple`.
        """
        _check_growth(first, last, until)
        if (last - first) % whole_number("lengths: multiple", multiple, 1):
            raise ConfigError(
                f"lengths: {first} comes to {last} by no number of {multiple} ids at a time; expected a multiple "
                f"that divides {last - first}"
            )
        grown = range(0, last - first + 1, multiple)
        points = {-(-more * until // max(last - first, 1)): first + more for more in grown}
        return cls(tuple(points.items()), keep_shape)

    def at(self, step: int) -> int:
        """Return the length at a step."""
        return self.points[index_at(self.points, step)][1]

    def before(self, step: int) -> Points:
        """Return what holds for the steps before one."""
        return tuple(point for point in self.points if point[0] < step)

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`of` reads."""
        return {"points": [list(point) for point in self.points], "keep_shape": self.keep_shape}

    def check(self, length: int, name: str) -> None:
        """Raise ConfigError where rows of `length` ids, of a dataset of this name, cannot be cut so."""
        for step, each in self.points:
            if each > length:
                raise ConfigError(
                    f"lengths: got {each} from step {step} on, and rows of {name} have {length} ids; expected "
                    "at most that"
                )
            if not self.keep_shape and length % each:
                divisors = [other for other in range(1, length + 1) if length % other == 0]
                near = min(divisors, key=lambda other: (abs(other - each), other))
                raise ConfigError(
                    f"lengths: got {each} from step {step} on, which does not divide the {length} ids of rows of "
                    f"{name}; expected a divisor, as {near}, or keep_shape=True"
                )


def _check_growth(first: int, last: int, until: int) -> None:
    whole_number("lengths: until", until, 1)
    whole_number("lengths: last", last, whole_number("lengths: first", first, 1))
