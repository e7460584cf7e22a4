"""Quality of the shuffle of loaders, of a shuffle buffer and of chance.

Every loader delivers one epoch and records the sum of each row's words. By this sum,
the row is found among the stored ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.loader_contenders import GRAIN, LITDATA, OURS, Loader
from benchmarks.loader_input import CORPUS, LoaderInput
from benchmarks.loader_rates import run_loader
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
"""Loaders whose orders are judged."""

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
"""Figure of :mod:`benchmarks.shuffle_quality` -> head of its column."""

HEAD: Final = ("order", *FIGURES.values())

MOST_SIGMAS: Final = 4.0
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
    work: Path, loaders: Sequence[Loader], loader_input: LoaderInput
) -> LoaderQuality:
    """Judge the order of one epoch of each loader, as it was delivered.

    Args:
        work: Folder for all files of the benchmark.
        loaders: Loaders that ran.
        loader_input: Rows to deliver.
    """
    store = open_store(str(loader_input.store))
    group_rows = open_rows(store, CORPUS, 1, "train").group_rows
    group_of = np.repeat(np.arange(len(group_rows)), group_rows)

    # 1. Orders of the loaders.
    qualities: dict[str, ShuffleQuality] = {}
    notes: list[str] = []
    for loader in loaders:
        if loader.name not in JUDGED:
            continue
        try:
            delivered = _delivered_rows(work, loader, loader_input)
            qualities[loader.name] = quality_of(delivered, BATCH, group_of)
        except (RuntimeError, OSError, ValueError) as error:
            note = f"The order of {loader.name} could not be judged: {error}"
            notes.append(note)
            print(note, file=sys.stderr, flush=True)
    like_chance = frozenset(
        order_name
        for order_name, quality in qualities.items()
        if is_like_chance(quality)
    )

    # 2. Orders to compare with.
    qualities |= references(loader_input.rows, BATCH, group_of)
    table_lines = [
        [order_name, *_cells(quality)] for order_name, quality in qualities.items()
    ]
    return LoaderQuality(lines=table_lines, like_chance=like_chance, notes=notes)


def is_like_chance(quality: ShuffleQuality) -> bool:
    """Return whether the figures of the table are those of a uniform permutation.

    They are if each is within four deviations of the mean. The table has eight figures.
    A uniform permutation exceeds four deviations in one of them once in 2,000 orders.
    """
    figures = quality.figures()
    judged_figures = [
        figures[figure_name] for figure_name in FIGURES if figure_name in figures
    ]
    return all(abs(figure.sigmas) <= MOST_SIGMAS for figure in judged_figures)


def _delivered_rows(work: Path, loader: Loader, loader_input: LoaderInput) -> Any:
    """Return the stored number of each row that a loader delivers, int64[n]."""
    order_path = work / "scratch" / "loader-order.npy"
    order_path.parent.mkdir(exist_ok=True)
    run_loader(work, loader, loader_input, 1, "--order", str(order_path))
    return stored_numbers(loader_input.keys(), np.load(order_path))


def stored_numbers(stored: Any, delivered: Any) -> Any:
    """Return the stored number of each delivered row, int64[n].

    Equal rows get their numbers in the order of delivery.

    Args:
        stored: Sum of the words of each stored row, uint64[n].
        delivered: Sum of the words of each delivered row, uint64[n].

    Raises:
        ValueError: A row was never stored, or rows are missing or come too often.
    """
    if not np.array_equal(np.sort(stored), np.sort(delivered)):
        raise ValueError(
            f"{len(delivered):,} rows were delivered, which are not the {len(stored):,} stored ones"
        )
    # The rows of both, sorted by their sums, are the same.
    numbers = np.empty(len(stored), np.int64)
    numbers[np.argsort(delivered, kind="stable")] = np.argsort(stored, kind="stable")
    return numbers


def _cells(quality: ShuffleQuality) -> list[str]:
    """Return each figure, and in brackets the mean of a uniform permutation."""
    figures = quality.figures()
    cells: list[str] = []
    for figure_name in FIGURES:
        figure = figures.get(figure_name)
        if figure is None:
            cells.append("")
        else:
            cells.append(f"{figure.value:.3g} ({figure.uniform:.3g})")
    return cells
