"""How well the orders mix, as they were really delivered: ours and the peers', beside a shuffle buffer and chance.

Each loader delivers one epoch and notes the sum of each row's words, by which a row is found among the stored ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
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

JUDGED: Final = (OURS, GRAIN, "Grain ArrayRecord", LITDATA, "datasets, Arrow mapped", "MosaicML MDS")
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


def measure_quality(
    work: Path, loaders: Sequence[Loader], given: LoaderInput
) -> tuple[list[list[str]], list[str]]:
    """Return the lines of the table, under :data:`HEAD`, and notes on orders that could not be judged."""
    sizes = open_rows(open_store(str(given.store)), CORPUS, 1, "train").group_rows
    group_of = np.repeat(np.arange(len(sizes)), sizes)
    found: dict[str, ShuffleQuality] = {}
    notes: list[str] = []
    for loader in loaders:
        if loader.name in JUDGED:
            try:
                found[loader.name] = quality_of(_delivered(work, loader, given), BATCH, group_of)
            except (RuntimeError, OSError, ValueError) as error:
                notes.append(f"The order of {loader.name} could not be judged: {error}")
                print(notes[-1], file=sys.stderr, flush=True)
    found |= references(given.rows, BATCH, group_of)
    return [[name, *_cells(quality)] for name, quality in found.items()], notes


def _delivered(work: Path, loader: Loader, given: LoaderInput) -> Any:
    """Return the stored number of each delivered row, int64[n]."""
    path = work / "scratch" / "loader-order.npy"
    path.parent.mkdir(exist_ok=True)
    once(work, loader, given, 1, "--order", str(path))
    return stored_numbers(given.keys(), np.load(path))


def stored_numbers(stored: Any, delivered: Any) -> Any:
    """Return where each delivered row is stored, int64[n]; equal rows are dealt out in the order they come.

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
    return ["" if one is None else f"{one.value:.3g} ({one.uniform:.3g})" for one in found]
