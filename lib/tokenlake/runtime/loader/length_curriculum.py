"""Length curriculum: the length of the parts of rows, as a function of the step.

The rows of a batch are cut into parts of that length. With a batch size of 4 rows of 8
stored ids, and ``lengths={0: 2, 10: 4, 20: 8}``, batches have the shapes (16, 2),
(8, 4) and (4, 8). All have the same number of ids: every row is cut into 4, 2 and 1
parts. Cutting does not move a row to another step. For any lengths, each id is
therefore delivered equally often, and a state counts the same rows.
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
    """Length of the ids that attend to each other at each step.

    Rows are cut, and batches keep their ids. A cut separates segments, as the border of
    two documents does: after it, positions begin at 0, the segment id is another one,
    and the first id does not count toward the loss, because the id before it is in
    another row.

    Args:
        points: Points (first step, ids), from step 0 on, as for ``batch_size``.
        keep_shape: True to keep the shape (rows, L) of batches, and to end segments at
            every multiple of the length. This works with attention inside segments;
            nothing is compiled again, and lengths need not divide L. If False, batches
            have L / length times as many rows of that length, which must divide L.

    Raises:
        ConfigError: An argument is not allowed.

    Example:
        >>> import tokenlake as tl
        >>> lengths = tl.LengthCurriculum.doubling(256, 2048, until=3000)
        >>> [lengths.at(step) for step in (0, 1000, 2000, 3000)]
        [256, 512, 1024, 2048]
        >>> lengths = tl.LengthCurriculum.linear(256, 2048, until=3000, multiple=128)
        >>> lengths.at(1500)
        1152
    """

    points: Points
    keep_shape: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", points_of(self.points, "lengths", "ids"))
        if not isinstance(self.keep_shape, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("lengths.keep_shape", self.keep_shape, "True or False")

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a curriculum from a curriculum, its arguments, a length or points.

        A length is written as ``512``, and points as ``{0: 256, 1000: 512}``.

        Raises:
            ConfigError: It is none of these.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or "points" not in value:
            return cls(cast("Points", value))
        arguments = cast("Mapping[str, Any]", value)
        if set(arguments) - {"points", "keep_shape"}:
            raise ConfigError(
                f"lengths: got {value!r}, must be a mapping of points and keep_shape, or of steps"
            )
        return cls(**arguments)

    @classmethod
    def doubling(
        cls, first: int, last: int, *, until: int, keep_shape: bool = False
    ) -> Self:
        """Return lengths that double in equal intervals.

        Args:
            first: Length at step 0.
            last: Length from step `until` on.
            until: Step of the last doubling.
            keep_shape: True to keep the shape of batches.

        Raises:
            ConfigError: `last` is not `first` times a power of two, or there are fewer
                steps than doublings.
        """
        _check_growth(first, last, until)
        doublings = (last // first).bit_length() - 1
        if first << doublings != last or until < doublings:
            raise ConfigError(
                f"lengths: {first} does not reach {last} by doublings in {until} steps; expected a power of two "
                "times the first, and at least a step for each doubling"
            )
        points = {
            doubling * until // max(doublings, 1): first << doubling
            for doubling in range(doublings + 1)
        }
        return cls(tuple(points.items()), keep_shape)

    @classmethod
    def linear(
        cls,
        first: int,
        last: int,
        *,
        until: int,
        multiple: int,
        keep_shape: bool = True,
    ) -> Self:
        """Return lengths that grow linearly, by a constant number of ids at a time.

        Args:
            first: Length at step 0.
            last: Length from step `until` on.
            until: Step at which the last length is reached.
            multiple: Number of ids by which a length grows.
            keep_shape: True to keep the shape of batches.

        Raises:
            ConfigError: `last - first` is not a multiple of `multiple`.
        """
        _check_growth(first, last, until)
        if (last - first) % whole_number("lengths: multiple", multiple, 1):
            raise ConfigError(
                f"lengths: {first} does not reach {last} by {multiple} ids at a time; expected a multiple "
                f"that divides {last - first}"
            )
        growth = last - first
        points: dict[int, int] = {}
        for added in range(0, growth + 1, multiple):
            # The first step at which the line reaches the length.
            step = -(-added * until // max(growth, 1))
            points[step] = first + added
        return cls(tuple(points.items()), keep_shape)

    def at(self, step: int) -> int:
        """Return the length at a step."""
        return self.points[index_at(self.points, step)][1]

    def before(self, step: int) -> Points:
        """Return the points of the steps before one."""
        return tuple(point for point in self.points if point[0] < step)

    def to_json(self) -> dict[str, Any]:
        """Return the arguments, JSON-able; :meth:`of` reads them."""
        return {
            "points": [list(point) for point in self.points],
            "keep_shape": self.keep_shape,
        }

    def check(self, length: int, name: str) -> None:
        """Raise ConfigError where the rows of a dataset cannot be cut to these lengths.

        Args:
            length: Ids of a stored row.
            name: Name of the dataset, for the message.
        """
        for step, part_length in self.points:
            if part_length > length:
                raise ConfigError(
                    f"lengths: got {part_length} from step {step} on, and rows of {name} have {length} ids; expected "
                    "at most that"
                )
            if not self.keep_shape and length % part_length:
                raise ConfigError(
                    f"lengths: got {part_length} from step {step} on, which does not divide the {length} ids of rows "
                    f"of {name}; expected a divisor, as {_nearest_divisor(length, part_length)}, or keep_shape=True"
                )


def _nearest_divisor(number: int, wanted: int) -> int:
    """Return the divisor of a number that is nearest to a wanted one.

    It is the smaller of two that are equally near.
    """
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return min(divisors, key=lambda divisor: (abs(divisor - wanted), divisor))


def _check_growth(first: int, last: int, until: int) -> None:
    """Raise ConfigError unless lengths and steps are whole and lengths grow."""
    whole_number("lengths: until", until, 1)
    whole_number("lengths: first", first, 1)
    whole_number("lengths: last", last, first)
