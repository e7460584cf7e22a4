"""How random is an order? Figures of one epoch, each beside what a uniform random
permutation gives.

An order delivers stored row ``d[i]`` at place i, 0 to n - 1; stored row s comes at
place ``p[s]``. With ``x = d - (n - 1) / 2``:

| figure | formula | what it shows |
|---|---|---|
| `autocorrelation` at lag k | sum of ``x[i] x[i + k]`` / sum of ``x[i]^2`` | high: such rows were stored nearby |
| `rank_correlation` | correlation of ``d[i]`` and i (Spearman) | high: early rows are delivered early |
| `displacement` | mean of ``abs(d[i] - i)`` | low: rows stay near where they were |
| `delivered_apart`, its median | of ``abs(p[s + 1] - p[s])`` | low: neighbours in storage come soon after another |
| `stored_apart`, its median | of ``abs(d[i + 1] - d[i])`` | low: what comes one after the other was stored so |
| `together` | share of pairs (s, s + 1) in one batch | high: neighbours in storage meet in a batch |
| `batch_variance` | variance of the batches' means of x, over chance's | high: batches differ from one another |
| `batch_groups` | mean number of row groups in a batch | low: a batch is of few row groups |

`batch_variance` is the one to look at first: V means that a batch tells as much about
the whole dataset as ``batch_size / V`` rows drawn at random. Below 1, batches are
spread more evenly over storage than chance would.

A :class:`.UniformOrder`, which a loader uses for a dataset that fits into memory, is
like chance in all figures.

A :class:`.StrandOrder` of P open row groups is not: a batch takes rows of as many row
groups as chance would, and its `batch_variance` is about 1, but neighbouring batches
draw from the same P row groups. ``autocorrelation`` at the lag of a batch is below 1 /
strands. The means of batches some steps apart are correlated by about ``batch_size /
P``: 0.33 for batches of 256 and 768 open row groups.

An :class:`.EpochOrder` with small windows is further from chance: a batch takes
neighbouring places of each lane's window. Lags shorter than a lane's share of a batch
show that, and lags of whole batches as long as a window lasts.

In both of these orders, all other lags, the rank correlation and the displacement must
look like chance, which has only the G row groups to choose among: they may stray
``sqrt(n / G)`` times as far as `deviation` says. `batch_variance` follows from the few
row groups that a lane has in an epoch: take its mean over several epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import LaneLayout
from tokenlake.runtime.mixing.order_form import RowOrder
from tokenlake.runtime.mixing.random import WORD, key_of, shuffled, splitmix64

_FEWEST: Final = 4  # rows, below which some figures are not defined
_HALF: Final = np.uint64(32)

_Floats = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of an order.

    Attributes:
        value: of this order.
        uniform: its mean over all permutations.
        deviation: its standard deviation over all permutations.
    """

    value: float
    uniform: float
    deviation: float

    @property
    def sigmas(self) -> float:
        """How many deviations the value lies above the mean of all permutations
        (below: negative).
        """
        return (self.value - self.uniform) / self.deviation if self.deviation else 0.0


@final
@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """The figures of one epoch; the module says what they are.

    Means and deviations are exact, but for these: `uniform` of a median is the median
    of the distances of all pairs; the deviation of a median is about a third of the
    root of n and that of `batch_variance` about the root of 2 / (batches - 1) (both
    simulated: within 5% from 1,000 rows and 20 batches on); that of `batch_groups` is
    an upper bound.

    Attributes:
        rows: n.
        batch_size: rows of each batch, but perhaps the last.
        autocorrelation: by lag: 1, 2, 4, ... up to half the rows.
        rank_correlation: -1 to 1.
        displacement: rows.
        delivered_apart: places between rows that are neighbours in storage, the mean.
        delivered_apart_median: the same, the median.
        stored_apart: rows of storage between rows that are delivered one after the
            other, the mean.
        stored_apart_median: the same, the median.
        together: 0 to 1.
        batch_variance: 1 for a uniform permutation.
        batch_groups: None where row groups were not given.
    """

    rows: int
    batch_size: int
    autocorrelation: Mapping[int, Figure]
    rank_correlation: Figure
    displacement: Figure
    delivered_apart: Figure
    delivered_apart_median: Figure
    stored_apart: Figure
    stored_apart_median: Figure
    together: Figure
    batch_variance: Figure
    batch_groups: Figure | None

    def figures(self) -> dict[str, Figure]:
        """Return all figures by name, those of the lags as ``autocorrelation 1``, in
        the order of a report.
        """
        found = {
            f"autocorrelation {lag}": figure
            for lag, figure in self.autocorrelation.items()
        }
        names = [
            name for name in self.__slots__ if isinstance(getattr(self, name), Figure)
        ]
        return found | {name: getattr(self, name) for name in names}


def shuffle_quality(order: RowOrder, batch_size: int, epoch: int = 0) -> ShuffleQuality:
    """Return the figures of one epoch of an order, delivered batch by batch, in a batch
    lane by lane.

    Raises:
        ConfigError: the lanes do not divide the batch size, or the epoch is too small
            to be judged.
    """
    delivered, group_of = delivered_rows(order, batch_size, epoch)
    return quality_of(delivered, batch_size, group_of)


def delivered_rows(
    order: RowOrder, batch_size: int, epoch: int = 0
) -> tuple[Int64, Int64]:
    """Return the stored number of each delivered row, and the row group of each
    stored one: int64[n] both.
    """
    layout = LaneLayout(order.lengths, order.lanes, batch_size)
    group, row = order.at(np.array([epoch]), *layout.locate(np.arange(order.rows)))
    sizes = np.bincount(group)  # every row comes once
    return offsets_of(sizes)[group] + row, np.repeat(np.arange(len(sizes)), sizes)


def references(
    rows: int,
    batch_size: int,
    group_of: Int64 | None = None,
    *,
    buffer: int = 10_000,
    seed: int = 0,
) -> dict[str, ShuffleQuality]:
    """Return the figures of orders that everyone knows: as stored, through a shuffle
    buffer, and fully shuffled.
    """
    orders = {
        "as stored": np.arange(rows),
        f"buffer of {buffer}": buffer_shuffled(rows, buffer, seed),
        "uniform": shuffled(rows, key_of(seed)),
    }
    return {
        name: quality_of(delivered, batch_size, group_of)
        for name, delivered in orders.items()
    }


def buffer_shuffled(rows: int, buffer: int, seed: int = 0) -> Int64:
    """Return the order that a shuffle buffer delivers, int64[rows].

    It holds `buffer` rows; each step delivers a random one and puts the next stored row
    in its slot; at the end the rest is shuffled.
    """
    if buffer < 1:
        raise ConfigError(f"a shuffle buffer of {buffer} rows; expected 1 or more")
    buffer = min(buffer, rows)
    steps = rows - buffer
    drawn = splitmix64(
        np.arange(steps, dtype=np.uint64) + np.uint64(key_of(seed, 1) & WORD)
    )
    slots = ((drawn >> _HALF) * np.uint64(buffer) >> _HALF).astype(np.int64)
    # A slot holds what the last step that drew it put there, and before that what it
    # held at first.
    by_slot = np.argsort(slots, kind="stable")
    first = np.diff(slots[by_slot], prepend=-1) != 0
    found = np.empty(steps, np.int64)
    found[by_slot] = np.where(first, slots[by_slot], np.roll(by_slot, 1) + buffer)
    left = np.arange(buffer)
    left[slots] = np.arange(steps) + buffer
    return np.concatenate([found, left[shuffled(buffer, key_of(seed, 2))]])


def quality_of(
    delivered: Int64, batch_size: int, group_of: Int64 | None = None
) -> ShuffleQuality:
    """Return the figures of any permutation.

    Args:
        delivered: the stored number of the row at each place, int64[n]: 0 to n - 1,
            each once.
        batch_size: rows of each batch; the last may have fewer.
        group_of: the row group (or shard, or file) of each stored row, int64[n]; None:
            `batch_groups` is left out.

    Raises:
        ConfigError: rows are missing or come twice, or there are fewer than 4 of them
            or than two batches.
    """
    n = len(delivered)
    if n < _FEWEST or not 0 < batch_size < n:
        raise ConfigError(
            f"{n} rows in batches of {batch_size}; expected {_FEWEST} rows or more and two batches or more"
        )
    if not np.array_equal(np.sort(delivered), np.arange(n)):
        raise ConfigError(
            f"the delivered rows are no permutation: expected 0 to {n - 1}, each once"
        )
    if group_of is not None and group_of.shape != (n,):
        raise ConfigError(
            f"row groups of {group_of.shape} rows; expected one for each of {n} rows"
        )
    place = np.empty(n, np.int64)
    place[delivered] = np.arange(n)
    x = delivered.astype(np.float64) - (n - 1) / 2
    lags = [1 << power for power in range((n // 2).bit_length())]
    return ShuffleQuality(
        n,
        batch_size,
        {lag: _autocorrelation(x, lag) for lag in lags},
        _rank_correlation(x),
        _displacement(delivered),
        *_apart(place),
        *_apart(delivered),
        _together(place // batch_size, batch_size),
        _batch_variance(x, batch_size),
        None if group_of is None else _batch_groups(group_of[delivered], batch_size),
    )


def _autocorrelation(x: _Floats, lag: int) -> Figure:
    """Moments: of the sum of products of two, three and four different x, whose sum
    and sum of cubes are 0.
    """
    n = len(x)
    squares = Fraction(n * (n * n - 1), 12)
    fourths = Fraction(n * (n * n - 1) * (3 * n * n - 7), 240)
    pairs, chained = n - lag, max(0, n - 2 * lag)
    second = (
        pairs * (squares**2 - fourths) / _falling(n, 2)
        + 2 * chained * (2 * fourths - squares**2) / _falling(n, 3)
        + (pairs**2 - pairs - 2 * chained)
        * (3 * squares**2 - 6 * fourths)
        / _falling(n, 4)
    )
    mean = Fraction(-pairs, n * (n - 1))
    return _figure(
        float(x[:-lag] @ x[lag:]) / float(squares), mean, second / squares**2 - mean**2
    )


def _rank_correlation(x: _Floats) -> Figure:
    n = len(x)
    products = float(x @ (np.arange(n) - (n - 1) / 2))
    return _figure(products / (n * (n * n - 1) / 12), 0, Fraction(1, n - 1))


def _displacement(delivered: Int64) -> Figure:
    """Spearman's footrule; its variance: Diaconis and Graham 1977."""
    n = len(delivered)
    value = np.abs(delivered - np.arange(n)).mean()
    return _figure(
        value,
        Fraction(n * n - 1, 3 * n),
        Fraction((n + 1) * (2 * n * n + 7), 45 * n * n),
    )


def _apart(numbers: Int64) -> tuple[Figure, Figure]:
    """The mean and the median distance between neighbours of a permutation."""
    n, distances = len(numbers), np.abs(np.diff(numbers))
    variance = Fraction((n - 2) * (n + 1) * (4 * n - 7), 90 * (n - 1) ** 2)
    mean = _figure(distances.mean(), Fraction(n + 1, 3), variance)
    # Of all pairs g (2n - g - 1) / (n (n - 1)) are at most g apart.
    apart = np.arange(1, n)
    median = int(np.argmax(2 * apart * (2 * n - apart - 1) >= n * (n - 1))) + 1
    return mean, Figure(float(np.median(distances)), float(median), n**0.5 / 3)


def _together(batch_of: Int64, batch_size: int) -> Figure:
    """The variance: of pairs (s, s + 1) and (t, t + 1) that are the same, share a
    row, share none.
    """
    n = len(batch_of)
    sizes = _batch_sizes(n, batch_size)
    two, three, four = (
        Fraction(sum(count * _falling(size, k) for size, count in sizes))
        / _falling(n, k)
        for k in (2, 3, 4)
    )
    squared = sum(count * _falling(size, 2) ** 2 for size, count in sizes)
    both = ((two * _falling(n, 2)) ** 2 - squared) / _falling(n, 4) + four
    variance = (
        (n - 1) * two
        + 2 * (n - 2) * three
        + (n - 2) * (n - 3) * both
        - ((n - 1) * two) ** 2
    )
    return _figure((batch_of[1:] == batch_of[:-1]).mean(), two, variance / (n - 1) ** 2)


def _batch_variance(x: _Floats, batch_size: int) -> Figure:
    """Sum over batches of (sum of x)^2 / rows, which has the mean (batches - 1) (sum
    of x^2) / (n - 1).
    """
    n, begins = len(x), np.arange(0, len(x), batch_size)
    sums, sizes = np.add.reduceat(x, begins), np.diff(begins, append=n)
    batches = len(begins)
    expected = (batches - 1) * n * (n + 1) / 12
    return Figure(
        float((sums**2 / sizes).sum()) / expected, 1.0, (2 / (batches - 1)) ** 0.5
    )


def _batch_groups(groups: Int64, batch_size: int) -> Figure:
    """Which groups a batch lacks is negatively dependent from group to group: the
    variance is at most the sum.
    """
    n = len(groups)
    numbers, index = np.unique(groups, return_inverse=True)
    per_group = np.bincount(index)
    batch_of = np.arange(n) // batch_size
    batches = int(batch_of[-1]) + 1
    found = len(np.unique(batch_of * len(numbers) + index)) / batches
    mean, variance = 0.0, 0.0
    for size, count in _batch_sizes(n, batch_size):
        for rows, times in zip(*np.unique(per_group, return_counts=True), strict=True):
            lacking = _lacking(n, int(rows), size)
            mean += count * int(times) * (1 - lacking)
            variance += count * int(times) * lacking * (1 - lacking)
    return Figure(found, mean / batches, variance**0.5 / batches)


def _lacking(n: int, rows: int, size: int) -> float:
    """The chance that a batch of `size` of n rows has none of a group's: (n -
    rows)_size / (n)_size.
    """
    if rows + size > n:
        return 0.0
    return float(np.exp(np.log1p(-rows / (n - np.arange(size))).sum()))


def _batch_sizes(n: int, batch_size: int) -> list[tuple[int, int]]:
    """(Rows, how many batches have so many)."""
    full, last = divmod(n, batch_size)
    return [(batch_size, full), (last, 1)] if last else [(batch_size, full)]


def _falling(n: int, k: int) -> int:
    """n (n - 1) ... (n - k + 1)."""
    product = 1
    for factor in range(n, n - k, -1):
        product *= factor
    return product


def _figure(value: Any, uniform: Fraction | float, variance: Fraction) -> Figure:
    return Figure(float(value), float(uniform), float(variance) ** 0.5)
