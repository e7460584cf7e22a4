"""Quality of the shuffle of each source of a mixture, in simulated mixtures.

Only the order is computed. No row is stored or read. A source is judged by its rows in
the batches, with two figures of :mod:`benchmarks.shuffle_quality`:

- `batch_variance`: variance of the batches' means of the stored position, over that of
  a random order.
- `autocorrelation`: correlation of the stored positions of two rows, where the second
  comes one batch later. It is high if the next batch has rows from the same part of the
  storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

import numpy as np
import numpy.typing as npt

from benchmarks.goals import Goal
from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.runtime.loader.options import CACHE_BYTES
from tokenlake.runtime.mixing.lane_count import SourceSize, choose_lanes
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.mixing.order_form import (
    OrderForm,
    SourceMemory,
    default_forms,
)
from tokenlake.runtime.mixing.schedule import constant
from tokenlake.runtime.mixing.streams import MixtureStream, source_order

LENGTH: Final = 2048
"""Number of ids of a row."""

GROUP_ROWS: Final = 128
"""Number of rows of a row group."""

BATCH: Final = 256
"""Number of rows of a batch."""

BATCHES: Final = 8_000
"""Number of batches whose rows are judged."""

MOST_VARIANCE: Final = 1.2
MOST_AUTOCORRELATION: Final = 0.2

BILLION: Final = 10**9
MIXTURES: Final[dict[str, dict[str, tuple[float, float]]]] = {
    "two halves": {"web": (20 * BILLION, 0.5), "code": (20 * BILLION, 0.5)},
    "a large, a middle and a small source": {
        "web": (20 * BILLION, 0.7),
        "code": (5 * BILLION, 0.25),
        "books": (0.1 * BILLION, 0.05),
    },
    "eight sources, one of them dominant": {
        "web": (20 * BILLION, 0.65),
        **{f"language {number}": (5 * BILLION, 0.05) for number in range(7)},
    },
}
"""Description -> source -> (ids, weight). Ids have 16 bits."""


@final
@dataclass(frozen=True, slots=True)
class SourceQuality:
    """Figures of the rows of one source.

    Attributes:
        batch_variance: Figure of the module, 1 for a random order.
        autocorrelation: Figure of the module, 0 for a random order.
        batch_groups: Mean number of row groups of the source in a batch.
    """

    batch_variance: float
    autocorrelation: float
    batch_groups: float


def measure_mixture_quality() -> tuple[list[Goal], list[str]]:
    """Judge the default order of all mixtures.

    Returns:
        Goals for the worst source of each mixture, and a note on each mixture.
    """
    goals: list[Goal] = []
    notes: list[str] = []
    for description, sources in MIXTURES.items():
        # 1. Compute the default order of the mixture.
        group_rows: dict[str, Int64] = {}
        weights: dict[str, float] = {}
        for source_name, (id_count, weight) in sources.items():
            row_count = int(id_count) // LENGTH
            first_rows = np.arange(0, row_count, GROUP_ROWS)
            group_rows[source_name] = np.diff(np.append(first_rows, row_count))
            weights[source_name] = weight
        lanes = lanes_of(group_rows, weights)
        forms = forms_of(group_rows, weights, lanes=lanes)

        # 2. Judge it.
        qualities = mixture_quality(
            group_rows, weights, forms, lanes=lanes, batches=BATCHES
        ).values()
        title = f"simulated mixture, {description}: rows of the worst source"
        goals += [
            Goal(
                f"{title}, batch variance",
                max(quality.batch_variance for quality in qualities),
                "at most",
                MOST_VARIANCE,
            ),
            Goal(
                f"{title}, autocorrelation of the next batch",
                max(quality.autocorrelation for quality in qualities),
                "at most",
                MOST_AUTOCORRELATION,
            ),
        ]
        # Open row groups: the strands of a lane, or its window.
        open_groups: list[str] = []
        for source_name, form in forms.items():
            open_groups.append(f"{source_name} {form.interleave or form.window}")
        notes.append(
            f"The simulated mixture of {description} has {lanes} lanes. Open row groups of a lane: "
            f"{', '.join(open_groups)}"
        )
    return goals, notes


def lanes_of(group_rows: Mapping[str, Int64], weights: Mapping[str, float]) -> int:
    """Return the default number of lanes of a mixture of packed rows.

    Args:
        group_rows: Source -> rows of each row group, int64[G].
        weights: Source -> weight.
    """
    sizes: dict[str, SourceSize] = {}
    for source_name, rows_of_groups in group_rows.items():
        row_count = int(rows_of_groups.sum())
        sizes[source_name] = SourceSize.of(
            rows=row_count,
            groups=len(rows_of_groups),
            tokens=row_count * LENGTH,
            # A row of 2,048 ids has about three documents.
            documents=3 * row_count,
            width=LENGTH,
        )
    return choose_lanes(sizes, [weights], batch_size=BATCH, step_rows=None, rows=None)


def forms_of(
    group_rows: Mapping[str, Int64],
    weights: Mapping[str, float],
    *,
    lanes: int,
    id_bytes: int = 2,
    max_bytes: int = CACHE_BYTES,
) -> dict[str, OrderForm]:
    """Return the default forms of the sources of a mixture of packed rows.

    Args:
        group_rows: Source -> rows of each row group, int64[G].
        weights: Source -> weight.
        lanes: Number of lanes.
        id_bytes: Number of bytes of an id.
        max_bytes: Memory for decoded row groups.
    """
    memory: dict[str, SourceMemory] = {}
    for source_name, rows_of_groups in group_rows.items():
        row_count = int(rows_of_groups.sum())
        memory[source_name] = SourceMemory(
            rows=row_count,
            groups=len(rows_of_groups),
            decoded_bytes=row_count * LENGTH * id_bytes,
            share=Fraction(weights[source_name]),
        )
    return default_forms(memory, lanes=lanes, streams=1, max_bytes=max_bytes)


def mixture_quality(
    group_rows: Mapping[str, Int64],
    weights: Mapping[str, float],
    forms: Mapping[str, OrderForm],
    *,
    lanes: int,
    batches: int,
    seed: int = 0,
) -> dict[str, SourceQuality]:
    """Return the figures of each source over the first batches of a mixture.

    Args:
        group_rows: Source -> rows of each row group, int64[G].
        weights: Source -> weight.
        forms: Source -> form of its order.
        lanes: Number of lanes.
        batches: Number of batches.
        seed: Random seed of the order.
    """
    # 1. Compute the order of the mixture.
    lengths = {source_name: int(rows.sum()) for source_name, rows in group_rows.items()}
    mixture = SourceMixture(
        lengths,
        constant(weights),
        lanes=lanes,
        batch_size=BATCH,
        step_rows=BATCH,
        seed=seed,
    )
    orders = [
        source_order(
            source_name,
            group_rows[source_name],
            lanes=lanes,
            seed=seed,
            form=forms[source_name],
        )
        for source_name in mixture.names
    ]
    rows = MixtureStream(mixture, orders).rows(0, batches * BATCH)
    batch = np.arange(batches * BATCH) // BATCH

    # 2. Judge the rows of each source.
    qualities: dict[str, SourceQuality] = {}
    for number, source_name in enumerate(mixture.names):
        is_of_source = rows.source == number
        group = rows.group[is_of_source]
        row_index = offsets_of(group_rows[source_name])[group] + rows.row[is_of_source]
        # Positions from -1/2 to 1/2, whose variance is 1/12.
        position = (row_index + 0.5) / lengths[source_name] - 0.5
        qualities[source_name] = _quality(position, batch[is_of_source], group, batches)
    return qualities


def _quality(
    position: npt.NDArray[np.float64], batch: Int64, group: Int64, batches: int
) -> SourceQuality:
    """Return the figures of the rows of a source.

    Args:
        position: Stored position of each row, -1/2 to 1/2, in the order of delivery,
            float64[n].
        batch: Number of the batch of each row, int64[n].
        group: Row group of each row, int64[n].
        batches: Number of batches.
    """
    # Sum of the positions of a batch: its variance is (rows of the batch) / 12.
    rows = np.bincount(batch, minlength=batches)
    sums = np.bincount(batch, position, minlength=batches)
    has_rows = rows > 0
    variance = 12 * float(np.mean(sums[has_rows] ** 2 / rows[has_rows]))

    # Correlation of rows that are a batch apart.
    lag = max(1, round(float(rows.mean())))
    products = float(position[:-lag] @ position[lag:])
    autocorrelation = products / float(position @ position)

    # Different pairs of a batch and a row group.
    pairs = batch * (int(group.max()) + 1) + group
    batch_groups = len(np.unique(pairs)) / int(has_rows.sum())
    return SourceQuality(variance, autocorrelation, batch_groups)
