"""Sink of the batches of every loader, which reads each token once and checks the rows.

The check is the sum of all batches as 64-bit words, modulo 2^64. Whole rows have the
same sum in any order. A row that is lost, repeated or changed changes it.

The module imports NumPy alone, because peers run in environments of their own.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any, Final, final

import numpy as np

BATCH: Final = 256
"""Number of rows of a batch."""

LENGTH: Final = 2048
"""Number of ids of a row."""


def parse_arguments() -> argparse.Namespace:
    """Return the command line that all loaders have: DATA PASSES [options]."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder of the rows in the form of this loader")
    parser.add_argument("passes", type=int, help="number of epochs, each shuffled anew")
    parser.add_argument(
        "--order",
        type=Path,
        help="file (.npy) for the sum of the words of each row, in delivered order",
    )
    parser.add_argument("--variant", default="", help="variant of the loader")
    return parser.parse_args()


@final
class Sink:
    """Consumer of batches on the host, int32[n, 2048].

    n is 256, except for the last batch of an epoch.

    Args:
        order: File for the sum of the words of each row, in delivered order; None: they
            are not recorded.
    """

    def __init__(self, order: Path | None = None) -> None:
        self._order = order
        self._keys: list[Any] = []
        self._sum = 0
        self._rows = 0
        self._batches = 0
        self._start = time.process_time()

    def take(self, ids: Any) -> None:
        """Count and sum up a batch.

        Args:
            ids: Ids of the batch, int32[n, 2048].

        Raises:
            TypeError: A trainer could not use the batch as it is.
        """
        # Other types would have to be converted, other layouts copied.
        has_type = ids.dtype == np.int32
        has_shape = ids.shape[1:] == (LENGTH,)
        if not has_type or not has_shape or not ids.flags.c_contiguous:
            raise TypeError(
                f"a batch of {ids.dtype}{ids.shape}; expected contiguous int32[n, {LENGTH}]"
            )
        # Two ids are one word. The sum reads all memory of the batch, so that files
        # that are mapped into memory are read, too.
        words = ids.view(np.uint64)
        if self._order is not None:
            self._keys.append(words.sum(axis=1, dtype=np.uint64))
        self._sum += int(np.add.reduce(words.reshape(-1)))
        self._sum &= 2**64 - 1
        self._rows += len(ids)
        self._batches += 1

    def finish(self, **added_figures: Any) -> None:
        """Print all figures as one JSON line.

        Args:
            added_figures: Further figures of the loader.
        """
        if self._order is not None:
            np.save(self._order, np.concatenate(self._keys))
        figures = {
            "rows": self._rows,
            "batches": self._batches,
            "sum": self._sum,
            "loop_cpu": time.process_time() - self._start,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(figures | added_figures), flush=True)
