"""How well the rows of each source of a mixture are mixed, in simulated mixtures.

Only the order is computed: no row is stored or read. Each source is judged by the rows
that it gives to the batches, with the figures of :mod:`benchmarks.shuffle_quality`:

- `batch_variance`: variance of the batches' means of the stored place, over chance's.
- `autocorrelation`: of a row and the one that is as many rows of the source later as
  the source gives to a batch. It shows whether the next batch has rows from the same
  part of the storage.
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
GROUP_ROWS: Final = 128
BATCH: Final = 256
BATCHES: Final = 8_000
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
        batch_variance: 1 for rows that are drawn by chance.
        autocorrelation: 0 for rows that are drawn by chance.
        batch_groups: Mean number of row groups of the source in a batch.
    """

    batch_variance: float
    autocorrelation: float
    batch_groups: float


def measure_mixture_quality() -> tuple[list[Goal], list[str]]:
    """Return goals for the worst source of each mixture, and a note on each mixture."""
    goals: list[Goal] = []
    notes: list[str] = []
    for description, sources in MIXTURES.items():
        group_rows: dict[str, Int64] = {}
        weights: dict[str, float] = {}
        for name, (ids, weight) in sources.items():
            rows = int(ids) // LENGTH
            group_rows[name] = np.diff(np.append(np.arange(0, rows, GROUP_ROWS), rows))
            weights[name] = weight
        lanes = lanes_of(group_rows, weights)
        forms = forms_of(group_rows, weights, lanes=lanes)
        qualities = mixture_quality(
            group_rows, weights, forms, lanes=lanes, batches=BATCHES
        )
        variance = max(quality.batch_variance for quality in qualities.values())
        autocorrelation = max(quality.autocorrelation for quality in qualities.values())
        what = f"simulated mixture, {description}: rows of the worst source"
        goals += [
            Goal(f"{what}, batch variance", variance, "at most", MOST_VARIANCE),
            Goal(
                f"{what}, autocorrelation of the next batch",
                autocorrelation,
                "at most",
                MOST_AUTOCORRELATION,
            ),
        ]
        shown = [
            f"{name} {forms[name].interleave or forms[name].window}" for name in forms
        ]
        notes.append(
            f"The simulated mixture of {description} has {lanes} lanes, and each lane so many open row groups: "
            f"{', '.join(shown)}"
        )
    return goals, notes


def lanes_of(group_rows: Mapping[str, Int64], weights: Mapping[str, float]) -> int:
    """Return the default number of lanes of a mixture of packed rows."""
    sizes: dict[str, SourceSize] = {}
    for name, rows_of_groups in group_rows.items():
        rows = int(rows_of_groups.sum())
        sizes[name] = SourceSize.of(
            rows=rows,
            groups=len(rows_of_groups),
            tokens=rows * LENGTH,
            documents=3 * rows,
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
    """Return the default forms of the sources of a mixture of packed rows."""
    memory: dict[str, SourceMemory] = {}
    for name, rows_of_groups in group_rows.items():
        rows = int(rows_of_groups.sum())
        memory[name] = SourceMemory(
            rows,
            len(rows_of_groups),
            rows * LENGTH * id_bytes,
            Fraction(weights[name]),
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
        group_rows: Rows of each row group of a source, by its name.
        weights: Weight of each source.
        forms: Form of the order of each source.
        lanes: Number of lanes.
        batches: Number of batches to look at.
        seed: Seed of the order.
    """
    lengths = {name: int(rows.sum()) for name, rows in group_rows.items()}
    mixture = SourceMixture(
        lengths,
        constant(weights),
        lanes=lanes,
        batch_size=BATCH,
        step_rows=BATCH,
        seed=seed,
    )
    orders = [
        source_order(name, group_rows[name], lanes=lanes, seed=seed, form=forms[name])
        for name in mixture.names
    ]
    stream = MixtureStream(mixture, orders).rows(0, batches * BATCH)
    batch = np.arange(batches * BATCH) // BATCH
    qualities: dict[str, SourceQuality] = {}
    for number, name in enumerate(mixture.names):
        of_source = np.flatnonzero(stream.source == number)
        group = stream.group[of_source]
        stored = offsets_of(group_rows[name])[group] + stream.row[of_source]
        # Places from -1/2 to 1/2, whose variance is 1/12.
        place = (stored + 0.5) / lengths[name] - 0.5
        qualities[name] = _quality(place, batch[of_source], group, batches)
    return qualities


def _quality(
    place: npt.NDArray[np.float64], batch: Int64, group: Int64, batches: int
) -> SourceQuality:
    """Return the figures of the rows of a source.

    Args:
        place: Stored place of each row in the order of delivery, -1/2 to 1/2.
        batch: Number of the batch of each row.
        group: Row group of each row.
        batches: Number of batches.
    """
    rows = np.bincount(batch, minlength=batches)
    sums = np.bincount(batch, place, minlength=batches)
    has_rows = rows > 0
    variance = 12 * float(np.mean(sums[has_rows] ** 2 / rows[has_rows]))
    lag = max(1, round(float(rows.mean())))
    autocorrelation = float(place[:-lag] @ place[lag:]) / float(place @ place)
    groups = len(np.unique(batch * (int(group.max()) + 1) + group))
    return SourceQuality(variance, autocorrelation, groups / int(has_rows.sum()))
