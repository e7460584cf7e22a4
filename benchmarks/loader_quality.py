"""How well the orders mix, as they were really delivered: ours and the peers', beside a
shuffle buffer and chance.

Each loader delivers one epoch and notes the sum of each row's words, by which a row is
found among the stored ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.loader_contenders import GRAIN, LITDATA, OURS, Loader
from benchmarks.loader_input import CORPUS, LoaderInput
from benchmarks.loader_rates import once
from benchmarks.shuffle_quality import ShuffleQuality, quality_of, references
from benchmarks.systems.loader_sink import BATCH
from tokenlake.runtime.reading.version import open_rows
from tokenlake.runtime.store.address import open_store

JUDGED: Final = (
    OURS,
    GRAIN,
    "Grain ArrayRecord",
    LITDATA,
    "datasets, Arrow mapped",
    "MosaicML MDS",
)
FIGURES: Final = {
    "batch_variance": "variance of batches' means",
    "together": "neighbours in one batch",
    "batch_groups": "row groups in a batch",
    "delivered_apart_median": "neighbours delivered apart (median)",
    "rank_correlation": "rank correlation",
    "autocorrelation 1": "autocorrelation, the next row",
    "autocorrelation 256": "the next batch",
    "autocorrelation 16384": "64 batches on",
}
HEAD: Final = ("order", *FIGURES.values())


_SIGMAS: Final = 4.0
"""Deviations from the mean of all permutations at which an order is still called a
global shuffle.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderQuality:
    """Judgement of the orders that loaders delivered.

    Attributes:
        lines: Lines of the table, under :data:`HEAD`.
        like_chance: Names of the loaders whose figures are those of a uniform
            permutation.
        notes: Notes on orders that could not be judged.
    """

    lines: list[list[str]]
    like_chance: frozenset[str]
    notes: list[str]


def measure_quality(
    work: Path, loaders: Sequence[Loader], given: LoaderInput
) -> LoaderQuality:
    """Judge the order of one epoch of each loader, as it was delivered."""
    sizes = open_rows(open_store(str(given.store)), CORPUS, 1, "train").group_rows
    group_of = np.repeat(np.arange(len(sizes)), sizes)
    found: dict[str, ShuffleQuality] = {}
    notes: list[str] = []
    for loader in loaders:
        if loader.name in JUDGED:
            try:
                found[loader.name] = quality_of(
                    _delivered(work, loader, given), BATCH, group_of
                )
            except (RuntimeError, OSError, ValueError) as error:
                notes.append(f"The order of {loader.name} could not be judged: {error}")
                print(notes[-1], file=sys.stderr, flush=True)
    like_chance = frozenset(
        name for name, quality in found.items() if is_like_chance(quality)
    )
    found |= references(given.rows, BATCH, group_of)
    lines = [[name, *_cells(quality)] for name, quality in found.items()]
    return LoaderQuality(lines=lines, like_chance=like_chance, notes=notes)


def is_like_chance(quality: ShuffleQuality) -> bool:
    """Return whether the figures of the table are those of a uniform permutation,
    within four deviations each.

    One order has eight of them, of which a uniform permutation exceeds four deviations
    once in 2,000 orders.
    """
    figures = quality.figures()
    judged = [figures[name] for name in FIGURES if name in figures]
    return all(abs(figure.sigmas) <= _SIGMAS for figure in judged)


def _delivered(work: Path, loader: Loader, given: LoaderInput) -> Any:
    """Return the stored number of each delivered row, int64[n]."""
    path = work / "scratch" / "loader-order.npy"
    path.parent.mkdir(exist_ok=True)
    once(work, loader, given, 1, "--order", str(path))
    return stored_numbers(given.keys(), np.load(path))


def stored_numbers(stored: Any, delivered: Any) -> Any:
    """Return where each delivered row is stored, int64[n]; equal rows are dealt out in
    the order they come.

    Raises:
        ValueError: a row was never stored, or rows are missing or come too often.
    """
    if not np.array_equal(np.sort(stored), np.sort(delivered)):
        raise ValueError(
            f"{len(delivered):,} rows were delivered, which are not the {len(stored):,} stored ones"
        )
    numbers = np.empty(len(stored), np.int64)
    numbers[np.argsort(delivered, kind="stable")] = np.argsort(stored, kind="stable")
    return numbers


def _cells(quality: ShuffleQuality) -> list[str]:
    """Each figure, and in brackets what a uniform permutation gives."""
    figures: Mapping[str, Any] = quality.figures()
    found = [figures.get(name) for name in FIGURES]
    return [
        "" if one is None else f"{one.value:.3g} ({one.uniform:.3g})" for one in found
    ]
