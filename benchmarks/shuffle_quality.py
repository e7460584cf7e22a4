"""Quality of a shuffle: figures of one epoch, beside those of a uniform permutation.

An order delivers stored row ``d[i]`` at place i, 0 to n - 1. Stored row s comes at
place ``p[s]``. With ``x = d - (n - 1) / 2``, the *centred* row numbers:

| figure | formula | meaning |
|---|---|---|
| `autocorrelation` at lag k | sum of ``x[i] x[i + k]`` / sum of ``x[i]^2`` | high: such rows were stored nearby |
| `rank_correlation` | correlation of ``d[i]`` and i (Spearman) | high: rows that are stored early come early |
| `displacement` | mean of ``abs(d[i] - i)`` | low: rows stay near their stored place |
| `delivered_apart`, its median | mean, median of ``abs(p[s + 1] - p[s])`` | low: stored neighbours stay close |
| `stored_apart`, its median | mean, median of ``abs(d[i + 1] - d[i])`` | low: consecutive rows were stored nearby |
| `together` | share of pairs (s, s + 1) in one batch | high: neighbours in storage meet in a batch |
| `batch_variance` | variance of the batches' means of x, over chance's | high: batches differ from one another |
| `batch_groups` | mean number of row groups in a batch | low: a batch has rows of few row groups |

`batch_variance` is the most important figure. A batch with variance V represents the
dataset as well as ``batch_size / V`` rows drawn at random. Below 1, batches are spread
over the storage more evenly than by chance.

Figures of the library's orders:

- A :class:`.UniformOrder`, which a loader uses for a dataset that fits into memory, is
  like chance in all figures.
- A :class:`.StrandOrder` of P open row groups takes the rows of a batch from as many
  row groups as chance would, and its `batch_variance` is about 1. However, neighbouring
  batches draw from the same P row groups. ``autocorrelation`` at the lag of a batch is
  below 1 / strands. The means of batches some steps apart are correlated by about
  ``batch_size / P``: 0.33 for batches of 256 and 768 open row groups.
- An :class:`.EpochOrder` with small windows is further from chance: a batch takes
  neighbouring places of each lane's window. Lags shorter than a lane's share of a batch
  show that, and lags of whole batches as long as a window lasts.

In the last two orders, all other lags, the rank correlation and the displacement must
look like chance. They depend on a choice among only G row groups, so that they may
deviate ``sqrt(n / G)`` times as far as `deviation` says. `batch_variance` depends on
the few row groups of a lane in an epoch: use its mean over several epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing.lanes import LaneLayout
from tokenlake.runtime.mixing.order_form import RowOrder
from tokenlake.runtime.mixing.random import WORD, key_of, shuffled, splitmix64

_LEAST_ROWS: Final = 4
"""Number of rows below which some figures are not defined."""

_HALF_WORD: Final = np.uint64(32)  # bits

_Floats = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """Figure of an order.

    Attributes:
        value: Value for this order.
        uniform: Mean over all permutations.
        deviation: Standard deviation over all permutations.
    """

    value: float
    uniform: float
    deviation: float

    @property
    def sigmas(self) -> float:
        """Deviations by which the value is above the mean (below: negative)."""
        if not self.deviation:
            return 0.0
        return (self.value - self.uniform) / self.deviation


@final
@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """All figures of one epoch. The docstring of the module defines them.

    Means and deviations are exact, with these exceptions:

    - `uniform` of a median is the median of the distances of all pairs.
    - The deviation of a median is about a third of the root of n, and that of
      `batch_variance` about the root of 2 / (batches - 1). Both were simulated, and are
      within 5% from 1,000 rows and 20 batches on.
    - The deviation of `batch_groups` is an upper bound.

    Attributes:
        rows: Number of rows, n.
        batch_size: Number of rows of each batch, except perhaps the last.
        autocorrelation: Lag (1, 2, 4, ... up to half the rows) -> autocorrelation.
        rank_correlation: Rank correlation, -1 to 1.
        displacement: Mean displacement, in rows.
        delivered_apart: Mean number of places between neighbours in storage.
        delivered_apart_median: Median number of these places.
        stored_apart: Mean number of rows of storage between consecutive rows.
        stored_apart_median: Median number of these rows.
        together: Share of neighbours in storage that meet in a batch, 0 to 1.
        batch_variance: Variance of the batches' means, 1 for a uniform permutation.
        batch_groups: Mean number of row groups in a batch; None if the row groups are
            unknown.
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
        """Return name -> figure, in the order of a report.

        Those of the lags have names as ``autocorrelation 1``.
        """
        figures: dict[str, Figure] = {}
        for lag, autocorrelation in self.autocorrelation.items():
            figures[f"autocorrelation {lag}"] = autocorrelation
        # Fields that have one figure, in their order.
        for attribute in self.__slots__:
            figure = getattr(self, attribute)
            if isinstance(figure, Figure):
                figures[attribute] = figure
        return figures


def shuffle_quality(order: RowOrder, batch_size: int, epoch: int = 0) -> ShuffleQuality:
    """Return the figures of one epoch of an order.

    Rows are delivered batch by batch, and in a batch lane by lane.

    Args:
        order: Order to judge.
        batch_size: Number of rows of a batch.
        epoch: Number of the epoch.

    Raises:
        ConfigError: The lanes do not divide the batch size, or the epoch is too small
            to be judged.
    """
    delivered, group_of = delivered_rows(order, batch_size, epoch)
    return quality_of(delivered, batch_size, group_of)


def delivered_rows(
    order: RowOrder, batch_size: int, epoch: int = 0
) -> tuple[Int64, Int64]:
    """Return the rows of an epoch, and the row groups of all rows.

    Args:
        order: Order of the rows.
        batch_size: Number of rows of a batch.
        epoch: Number of the epoch.

    Returns:
        Stored number of each delivered row, int64[n], and row group of each stored row,
        int64[n].
    """
    # 1. Row group and row at every place of the stream.
    layout = LaneLayout(order.lengths, order.lanes, batch_size)
    lane, place = layout.locate(np.arange(order.rows))
    group, row = order.at(np.array([epoch]), lane, place)

    # 2. Number the rows over all row groups.
    group_rows = np.bincount(group)  # every row comes once
    delivered = offsets_of(group_rows)[group] + row
    group_of = np.repeat(np.arange(len(group_rows)), group_rows)
    return delivered, group_of


def references(
    rows: int,
    batch_size: int,
    group_of: Int64 | None = None,
    *,
    buffer: int = 10_000,
    seed: int = 0,
) -> dict[str, ShuffleQuality]:
    """Return the figures of known orders: stored, shuffle buffer, and uniform.

    Args:
        rows: Number of rows.
        batch_size: Number of rows of a batch.
        group_of: Row group of each stored row, int64[rows]; None: unknown.
        buffer: Number of rows of the shuffle buffer.
        seed: Random seed of the orders.
    """
    orders = {
        "as stored": np.arange(rows),
        f"buffer of {buffer}": buffer_shuffled(rows, buffer, seed),
        "uniform": shuffled(rows, key_of(seed)),
    }
    return {
        order_name: quality_of(delivered, batch_size, group_of)
        for order_name, delivered in orders.items()
    }


def buffer_shuffled(rows: int, buffer: int, seed: int = 0) -> Int64:
    """Return the order of a shuffle buffer, int64[rows].

    Each step delivers the row of a random place in the buffer, and puts the next stored
    row there. At the end, the rest is shuffled.

    Example: 5 rows and a buffer of 2, which begins with rows 0 and 1. If the places of
    the 3 steps are 1, 1, 0, they deliver rows 1, 2, 0, and rows 4 and 3 are left.

    Args:
        rows: Number of rows.
        buffer: Number of rows of the buffer.
        seed: Random seed.
    """
    if buffer < 1:
        raise ConfigError(f"a shuffle buffer of {buffer} rows; expected 1 or more")
    buffer = min(buffer, rows)
    steps = rows - buffer

    # 1. Place of each step: the upper half of a random word, scaled to the buffer.
    counters = np.arange(steps, dtype=np.uint64) + np.uint64(key_of(seed, 1) & WORD)
    random_halves = splitmix64(counters) >> _HALF_WORD
    place = (random_halves * np.uint64(buffer) >> _HALF_WORD).astype(np.int64)

    # 2. Row of each step. Sorted by place, the previous step of the same place stands
    #    before a step. That step, number k, put row k + buffer there. The first step of
    #    a place delivers the row that was there at the beginning.
    by_place = np.argsort(place, kind="stable")
    is_first = np.diff(place[by_place], prepend=-1) != 0
    row_of_previous_step = np.roll(by_place, 1) + buffer
    delivered = np.empty(steps, np.int64)
    delivered[by_place] = np.where(is_first, place[by_place], row_of_previous_step)

    # 3. Rows that are left: the last one that was put at each place.
    left = np.arange(buffer)
    left[place] = np.arange(steps) + buffer
    return np.concatenate([delivered, left[shuffled(buffer, key_of(seed, 2))]])


def quality_of(
    delivered: Int64, batch_size: int, group_of: Int64 | None = None
) -> ShuffleQuality:
    """Return the figures of a permutation.

    Args:
        delivered: Stored number of the row at each place, int64[n]: 0 to n - 1, each
            once.
        batch_size: Number of rows of each batch; the last may have fewer.
        group_of: Row group (or shard, or file) of each stored row, int64[n]; None:
            `batch_groups` is left out.

    Raises:
        ConfigError: Rows are missing or come twice, or there are fewer than four of
            them or fewer than two batches.
    """
    # 1. Check that the rows are a permutation.
    n = len(delivered)
    if n < _LEAST_ROWS or not 0 < batch_size < n:
        raise ConfigError(
            f"{n} rows in batches of {batch_size}; expected {_LEAST_ROWS} rows or more and two batches or more"
        )
    if not np.array_equal(np.sort(delivered), np.arange(n)):
        raise ConfigError(
            f"the delivered rows are no permutation: expected 0 to {n - 1}, each once"
        )
    if group_of is not None and group_of.shape != (n,):
        raise ConfigError(
            f"row groups of {group_of.shape} rows; expected one for each of {n} rows"
        )

    # 2. Compute what several figures need: the place of each stored row, and centred
    #    row numbers.
    place = np.empty(n, np.int64)
    place[delivered] = np.arange(n)
    centred = delivered.astype(np.float64) - (n - 1) / 2

    # 3. Compute the figures.
    autocorrelation: dict[int, Figure] = {}
    lag = 1
    while lag <= n // 2:
        autocorrelation[lag] = _autocorrelation(centred, lag)
        lag *= 2
    batch_groups: Figure | None = None
    if group_of is not None:
        batch_groups = _batch_groups(group_of[delivered], batch_size)
    return ShuffleQuality(
        rows=n,
        batch_size=batch_size,
        autocorrelation=autocorrelation,
        rank_correlation=_rank_correlation(centred),
        displacement=_displacement(delivered),
        delivered_apart=_mean_distance(place),
        delivered_apart_median=_median_distance(place),
        stored_apart=_mean_distance(delivered),
        stored_apart_median=_median_distance(delivered),
        together=_together(place // batch_size, batch_size),
        batch_variance=_batch_variance(centred, batch_size),
        batch_groups=batch_groups,
    )


def _autocorrelation(centred: _Floats, lag: int) -> Figure:
    """Return the autocorrelation of centred row numbers x at a lag k.

    Let S be the sum of the n - k products ``x[i] x[i + k]``. Under a random
    permutation, its moments follow from the means of products of two, three and four
    different x. The sum of x is 0, so that these means depend only on s2 and s4, the
    sums of squares and of fourth powers:

    - E(x y) = -s2 / n_2
    - E(x^2 y^2) = (s2^2 - s4) / n_2
    - E(x^2 y z) = (2 s4 - s2^2) / n_3
    - E(x y z w) = (3 s2^2 - 6 s4) / n_4

    with n_j = n (n - 1) ... (n - j + 1). Two products of the sum are the same, are
    chained by a common x (in ``n - 2 k`` pairs), or have no x in common.

    Args:
        centred: Centred row numbers in the order of delivery, float64[n].
        lag: Distance of two rows, in places.
    """
    n = len(centred)
    squares = Fraction(n * (n * n - 1), 12)
    fourths = Fraction(n * (n * n - 1) * (3 * n * n - 7), 240)
    # Ordered pairs of products of each kind.
    equal = n - lag
    chained = 2 * max(0, n - 2 * lag)
    disjoint = equal**2 - equal - chained
    # E(S^2), and the mean and variance of S / s2.
    second_moment = (
        equal * (squares**2 - fourths) / _falling(n, 2)
        + chained * (2 * fourths - squares**2) / _falling(n, 3)
        + disjoint * (3 * squares**2 - 6 * fourths) / _falling(n, 4)
    )
    mean = Fraction(-equal, n * (n - 1))
    variance = second_moment / squares**2 - mean**2
    value = float(centred[:-lag] @ centred[lag:]) / float(squares)
    return _figure(value, mean, variance)


def _rank_correlation(centred: _Floats) -> Figure:
    """Return the correlation of centred row numbers with their places.

    Args:
        centred: Centred row numbers in the order of delivery, float64[n].
    """
    n = len(centred)
    products = float(centred @ (np.arange(n) - (n - 1) / 2))
    squares = n * (n * n - 1) / 12
    return _figure(products / squares, 0, Fraction(1, n - 1))


def _displacement(delivered: Int64) -> Figure:
    """Return the mean displacement: Spearman's footrule over n.

    Its variance is that of Diaconis and Graham 1977.

    Args:
        delivered: Stored number of the row at each place, int64[n].
    """
    n = len(delivered)
    value = np.abs(delivered - np.arange(n)).mean()
    mean = Fraction(n * n - 1, 3 * n)
    variance = Fraction((n + 1) * (2 * n * n + 7), 45 * n * n)
    return _figure(value, mean, variance)


def _mean_distance(numbers: Int64) -> Figure:
    """Return the mean distance between neighbours of a permutation, int64[n]."""
    n = len(numbers)
    variance = Fraction((n - 2) * (n + 1) * (4 * n - 7), 90 * (n - 1) ** 2)
    return _figure(np.abs(np.diff(numbers)).mean(), Fraction(n + 1, 3), variance)


def _median_distance(numbers: Int64) -> Figure:
    """Return the median distance between neighbours of a permutation, int64[n]."""
    n = len(numbers)
    # A share g (2n - g - 1) / (n (n - 1)) of all pairs is at most g apart. The median is
    # the first g with half of them.
    distance = np.arange(1, n)
    has_half = 2 * distance * (2 * n - distance - 1) >= n * (n - 1)
    median = int(distance[np.argmax(has_half)])
    value = float(np.median(np.abs(np.diff(numbers))))
    return Figure(value, float(median), n**0.5 / 3)


def _together(batch_of: Int64, batch_size: int) -> Figure:
    """Return the share of neighbours in storage that are in one batch.

    Let T be the number of pairs (s, s + 1) in one batch. Its second moment is a sum
    over two such pairs: they are the same pair, share a row, or share none.

    Args:
        batch_of: Batch of each stored row, int64[n].
        batch_size: Number of rows of a batch.
    """
    n = len(batch_of)
    batch_sizes = _batch_sizes(n, batch_size)

    def in_one_batch(rows: int) -> Fraction:
        """Return the chance that some different rows are all in one batch."""
        choices = 0
        for size in batch_sizes:
            choices += size.batches * _falling(size.rows, rows)
        return Fraction(choices) / _falling(n, rows)

    # Chance that two pairs without a common row are each in one batch: in two different
    # batches, or all four in the same.
    pair_chance = in_one_batch(2)
    squares = 0
    for size in batch_sizes:
        squares += size.batches * _falling(size.rows, 2) ** 2
    different_batches = (pair_chance * _falling(n, 2)) ** 2 - squares
    disjoint_chance = different_batches / _falling(n, 4) + in_one_batch(4)

    # The pairs (s, s + 1): n - 1 of them, n - 2 times two that share a row.
    mean = (n - 1) * pair_chance
    second_moment = (
        mean + 2 * (n - 2) * in_one_batch(3) + (n - 2) * (n - 3) * disjoint_chance
    )
    variance = second_moment - mean**2
    value = (batch_of[1:] == batch_of[:-1]).mean()
    return _figure(value, pair_chance, variance / (n - 1) ** 2)


def _batch_variance(centred: _Floats, batch_size: int) -> Figure:
    """Return the variance of the batches' means, over that of chance.

    It is the sum over batches of (sum of x)^2 / rows, over the mean of that sum under a
    random permutation: (batches - 1) (sum of x^2) / (n - 1).

    Args:
        centred: Centred row numbers x in the order of delivery, float64[n].
        batch_size: Number of rows of a batch.
    """
    n = len(centred)
    begins = np.arange(0, n, batch_size)
    batches = len(begins)
    sums = np.add.reduceat(centred, begins)
    batch_rows = np.diff(begins, append=n)
    mean = (batches - 1) * n * (n + 1) / 12
    value = float((sums**2 / batch_rows).sum()) / mean
    return Figure(value, 1.0, (2 / (batches - 1)) ** 0.5)


def _batch_groups(groups: Int64, batch_size: int) -> Figure:
    """Return the mean number of row groups in a batch.

    The events that a batch has no row of a row group are negatively dependent. The sum
    of their variances is therefore an upper bound.

    Args:
        groups: Row group of each row in the order of delivery, int64[n].
        batch_size: Number of rows of a batch.
    """
    n = len(groups)
    group_numbers, group_index = np.unique(groups, return_inverse=True)

    # 1. Count the different pairs of a batch and a row group.
    batch_of = np.arange(n) // batch_size
    batches = int(batch_of[-1]) + 1
    pairs = batch_of * len(group_numbers) + group_index
    value = len(np.unique(pairs)) / batches

    # 2. Sum up the chances of all pairs: those of batches of one size and of row groups
    #    of one size are equal.
    sizes_of_groups, counts_of_groups = np.unique(
        np.bincount(group_index), return_counts=True
    )
    mean = 0.0
    variance = 0.0
    for batch in _batch_sizes(n, batch_size):
        for group_rows, group_count in zip(
            sizes_of_groups.tolist(), counts_of_groups.tolist(), strict=True
        ):
            absence = _chance_of_absence(n, group_rows, batch.rows)
            pair_count = batch.batches * group_count
            mean += pair_count * (1 - absence)
            variance += pair_count * absence * (1 - absence)
    return Figure(value, mean / batches, variance**0.5 / batches)


def _chance_of_absence(n: int, group_rows: int, batch_rows: int) -> float:
    """Return the chance that a batch has no row of a row group.

    It is ``(n - group_rows)_b / (n)_b``, with b rows of the batch and ``(n)_b = n (n -
    1) ... (n - b + 1)``.

    Args:
        n: Number of all rows.
        group_rows: Number of rows of the row group.
        batch_rows: Number of rows of the batch.
    """
    if group_rows + batch_rows > n:
        return 0.0
    factors = np.log1p(-group_rows / (n - np.arange(batch_rows)))
    return float(np.exp(factors.sum()))


class _BatchSize(NamedTuple):
    """Size of batches.

    Attributes:
        rows: Number of rows of a batch.
        batches: Number of batches of this size.
    """

    rows: int
    batches: int


def _batch_sizes(n: int, batch_size: int) -> list[_BatchSize]:
    """Return the sizes of the batches of n rows; the last batch may be smaller."""
    full_batches, last_rows = divmod(n, batch_size)
    sizes = [_BatchSize(batch_size, full_batches)]
    if last_rows:
        sizes.append(_BatchSize(last_rows, 1))
    return sizes


def _falling(n: int, factors: int) -> int:
    """Return the falling factorial n (n - 1) ... (n - factors + 1).

    It is 0 if there are more factors than n.
    """
    return math.perm(n, factors)


def _figure(value: Any, uniform: Fraction | float, variance: Fraction) -> Figure:
    """Return a figure from a value and exact moments."""
    return Figure(float(value), float(uniform), float(variance) ** 0.5)
