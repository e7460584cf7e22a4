"""Padding of batches of the loader: their length, the end that is padded or cut.

Rows of texts are padded in :mod:`tokenlake.etl.text.padding`.

::

    BatchPadding()                            to the longest row of the batch
    BatchPadding(multiple=128)                the same, rounded up
    BatchPadding(length=2048)                 every batch
    BatchPadding(buckets=(256, 512, 1024))    rows of similar length together, each batch to its bucket's length
    BatchPadding(buckets=8, multiple=64)      the eight lengths with the least padding

All batches of buckets have about the same number of ids: with ``batch_size=64`` and a
longest bucket of 1,024, batches of bucket 256 have 256 rows. Each bucket has one shape,
so that a compiler of fixed shapes compiles once for each.

**The lengths of all rows** are read at the start of a run. They determine padding and
buckets, and rows that are too long are found before the first step. They take two bytes
for each row and column if no row has more than 65,535 ids, else four: 0.2 GB for 10^8
documents, 0.8 GB for as many DPO pairs.

**Choice of bucket lengths** (:func:`least_padding`), by dynamic programming. Let ``cost(k, j)`` be the least number of
ids, padding included, of the rows up to length j in at most k buckets, of which the longest has length j::

    cost(1, j)  =  j * rows(0, j)                                      rows(i, j): rows longer than i, up to j
    cost(k, j)  =  min over i < j of  cost(k - 1, i) + j * rows(i, j)      or cost(k - 1, j), if that is no greater

With rows of 1, 1 and 4 ids, one bucket of 4 costs 12 ids. Two buckets of 1 and 4 cost
``cost(1, 1) + 4 * 1 = 6``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self, final, get_args

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.base.checks import arguments_of, bounded_number, expected, whole_number
from tokenlake.errors import ConfigError

Side = Literal["left", "right"]
_SIDES: Final = get_args(Side)

_MOST_CANDIDATES: Final = 2048
"""Lengths among which the lengths of buckets are chosen, at most."""

_LONGEST: Final = 1 << 31
"""Ids of a row, at most."""


@final
@dataclass(frozen=True, kw_only=True)
class BatchPadding:
    """Padding of batches of documents or preferences.

    It is an option of :class:`tokenlake.DataLoader`.

    Args:
        length: Length of every batch; None: that of the longest row of the batch.
        buckets: Lengths of buckets, ascending, or their number, for which the lengths
            with the least padding in an epoch are chosen. Batches of the longest bucket
            have `batch_size` rows, batches of the others have proportionally more,
            rounded down to a multiple of the loader's `lanes`.
        equal_rows: True for `batch_size` rows in batches of all buckets, for frameworks
            that take single rows and make batches of one size (``tl.hf_dataset``).
        multiple: Number that divides the lengths of batches.
        max_length: Length of the longest batch, as `length` and the last of given
            `buckets` also are; None: no limit.
        side: End of a row at which padding is added; "left" is for generation from
            prompts.
        truncate: End of a row that is cut if it is longer than a batch can be, "left"
            or "right"; None: such rows are an error. ``DataLoader.truncated`` counts
            the ids that are cut.

    Raises:
        ConfigError: An argument is not allowed, or two contradict each other.

    Example:
        >>> import tokenlake as tl
        >>> tl.BatchPadding(multiple=128).rounded(200)
        256
    """

    length: int | None = None
    buckets: int | Sequence[int] | None = None
    equal_rows: bool = False
    multiple: int = 1
    max_length: int | None = None
    side: Side = "right"
    truncate: Side | None = None

    def __post_init__(self) -> None:
        # Each argument by itself.
        bounded_number("padding.multiple", self.multiple, 1, _LONGEST)
        for option_name in ("length", "max_length"):
            option_value = getattr(self, option_name)
            if option_value is not None:
                bounded_number(f"padding.{option_name}", option_value, 1, _LONGEST)
        if not isinstance(self.side, str) or self.side not in _SIDES:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("padding.side", self.side, "left or right")
        is_side = isinstance(self.truncate, str) and self.truncate in _SIDES
        if self.truncate is not None and not is_side:
            raise expected("padding.truncate", self.truncate, "left, right or None")
        is_flag = isinstance(self.equal_rows, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_flag or (self.equal_rows and self.buckets is None):
            raise ConfigError(
                f"padding.equal_rows: got {self.equal_rows!r}, must be True or False, and needs buckets; give both"
            )
        if self.buckets is not None:
            self._check_buckets(self.buckets)
        self._check_together()

    def _check_together(self) -> None:
        """Raise ConfigError where arguments contradict each other."""
        lengths = {
            "length": self.length,
            "buckets": self.buckets,
            "max_length": self.max_length,
        }
        names = [name for name, length in lengths.items() if length is not None]
        # A number of buckets goes together with a max_length.
        is_fixed = self.length is not None or self.bounds is not None
        if len(names) > 1 and (is_fixed or names == ["length", "buckets"]):
            raise ConfigError(
                f"padding: got {' and '.join(names)}; give only one of them: each of them sets the length of batches"
            )
        for option_name in ("length", "max_length"):
            option_value = getattr(self, option_name)
            if option_value is not None and option_value % self.multiple:
                raise expected(
                    f"padding.{option_name}",
                    option_value,
                    f"a multiple of {self.multiple}",
                )
        if self.truncate is not None and self.longest is None:
            raise ConfigError(
                f"padding.truncate: got {self.truncate!r}, but batches are as long as their longest row, so nothing "
                "is cut; give max_length, length or buckets too"
            )

    @property
    def bounds(self) -> tuple[int, ...] | None:
        """Lengths of the buckets if they are given.

        None: no buckets, or only their number.
        """
        if self.buckets is None or isinstance(self.buckets, int):
            return None
        return tuple(self.buckets)

    @property
    def longest(self) -> int | None:
        """Length of the longest possible batch; None: no limit."""
        if self.bounds is not None:
            return self.bounds[-1]
        if self.length is not None:
            return self.length
        return self.max_length

    def to_json(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults, JSON-able."""
        defaults = type(self)()
        arguments = {
            name: value
            for name, value in asdict(self).items()
            if value != getattr(defaults, name)
        }
        if self.bounds is not None:
            arguments["buckets"] = list(self.bounds)
        return arguments

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a padding from a padding, or a mapping of arguments.

        Raises:
            ConfigError: It is neither.
        """
        return arguments_of(cls, "padding", value, {})

    def rounded(self, length: int) -> int:
        """Return the length of a batch whose longest row has `length` ids.

        It is at least 1.
        """
        if self.length is not None:
            return self.length
        rounded = -(-max(length, 1) // self.multiple) * self.multiple
        if self.max_length is not None:
            rounded = min(rounded, self.max_length)
        return rounded

    def chosen(self, lengths: Int64) -> tuple[int, ...]:
        """Return the lengths of the buckets, ascending.

        Args:
            lengths: Number of rows of each length, after truncation, int64[longest +
                1].
        """
        if self.bounds is not None:
            return self.bounds
        assert isinstance(self.buckets, int)
        return least_padding(lengths, self.buckets, self.multiple, self.max_length)

    def _check_buckets(self, buckets: int | Sequence[int]) -> None:
        """Raise ConfigError unless buckets are a number or ascending lengths."""
        if isinstance(buckets, int) and not isinstance(buckets, bool):
            whole_number("padding.buckets", buckets, 1)
            return
        bounds: list[int] = []
        if isinstance(buckets, Sequence) and not isinstance(buckets, str):
            bounds = list(buckets)
        for bound in bounds:
            whole_number("padding.buckets", bound, 1)
        if not bounds or sorted(set(bounds)) != bounds:
            raise ConfigError(
                f"padding.buckets: got {buckets!r}, must be lengths, ascending, as (256, 512, 1024), or their number"
            )
        if any(bound % self.multiple for bound in bounds):
            raise ConfigError(
                f"padding.buckets: got {buckets!r}, must be multiples of {self.multiple} (multiple)"
            )


def least_padding(
    rows: Int64, number: int, multiple: int, most: int | None = None
) -> tuple[int, ...]:
    """Return the lengths of buckets with the least padding, ascending.

    The steps are at the top of this module.

    Args:
        rows: Number of rows of each length, int64[longest + 1].
        number: Number of buckets, at most.
        multiple: Number that divides each length. If there are more than 2,048
            multiples of it, coarser ones are compared.
        most: Longest length allowed, at least that of the longest row; None: no limit.
    """
    # 1. Lengths to choose from, and the number of rows up to each of them, or none of
    #    them.
    step = multiple * -(-len(rows) // (multiple * _MOST_CANDIDATES))
    count = -(-max(len(rows) - 1, 1) // step)
    candidates = np.minimum(np.arange(1, count + 1) * step, most or len(rows) * step)
    rows_below = np.concatenate([[0], np.cumsum(rows)])  # rows shorter than each length
    rows_up_to = rows_below[
        np.minimum(np.concatenate([[0], candidates]) + 1, len(rows))
    ]
    rows_up_to[0] = 0

    # 2. The least cost for one bucket, two, ..., and the length that precedes the
    #    longest one; -1: no bucket is added. Padding is the cost minus the ids of the
    #    rows, which are the same for all choices.
    cost = rows_up_to[1:] * candidates
    predecessors: list[Int64] = []
    for _ in range(min(number, count) - 1):
        # Cost where candidates[j] is the longest length and candidates[i] the one
        # before it, int64[i, j].
        costs = (
            cost[:, None]
            + (rows_up_to[None, 1:] - rows_up_to[1:, None]) * candidates[None, :]
        )
        costs[np.tril_indices(count)] = np.iinfo(np.int64).max  # only i < j
        best = np.argmin(costs, axis=0)
        best_cost = costs[best, np.arange(count)]
        is_better = best_cost < cost
        predecessors.append(np.where(is_better, best, -1))
        cost = np.where(is_better, best_cost, cost)

    # 3. The lengths, from the longest backwards.
    index = count - 1
    chosen = [index]
    for predecessor in reversed(predecessors):
        if predecessor[index] >= 0:
            index = int(predecessor[index])
            chosen.append(index)
    return tuple(int(candidates[index]) for index in reversed(chosen))
