"""What every loader's batches go into: touches each token once, and knows in the end
whether all were there.

Only numpy: peers run in environments of their own. The sum is over the batch as 64-bit
words, modulo 2^64: whole rows in any order give the same, a row lost, repeated or
changed another one.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any, final

import numpy as np

BATCH, LENGTH = 256, 2048


def arguments() -> argparse.Namespace:
    """Return the command line that all systems have: DATA PASSES [--order FILE] and
    what one alone knows.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="what the conversion wrote for this system")
    parser.add_argument("passes", type=int, help="epochs, each shuffled anew")
    parser.add_argument(
        "--order",
        type=Path,
        help="write the words of each row in delivered order here (.npy)",
    )
    parser.add_argument("--variant", default="", help="of systems that have several")
    return parser.parse_args()


@final
class Sink:
    """Takes int32[n, 2048] on the host, n = 256 but for the last of an epoch."""

    def __init__(self, order: Path | None = None) -> None:
        self._order = order
        self._keys: list[Any] = []
        self._sum = self._rows = self._batches = 0
        self._began = time.process_time()

    def take(self, ids: Any) -> None:
        """Count and sum a batch; TypeError if it is none that a trainer could take
        as it is.
        """
        if (
            ids.dtype != np.int32
            or ids.shape[1:] != (LENGTH,)
            or not ids.flags.c_contiguous
        ):
            raise TypeError(
                f"a batch of {ids.dtype}{ids.shape}; expected contiguous int32[n, {LENGTH}]"
            )
        words = ids.view(np.uint64)
        if self._order is not None:
            self._keys.append(words.sum(axis=1, dtype=np.uint64))
        self._sum = (self._sum + int(np.add.reduce(words.reshape(-1)))) & (2**64 - 1)
        self._rows += len(ids)
        self._batches += 1

    def finish(self, **more: Any) -> None:
        """Print one JSON line; `more` is what else the system has to tell."""
        if self._order is not None:
            np.save(self._order, np.concatenate(self._keys))
        found = {
            "rows": self._rows,
            "batches": self._batches,
            "sum": self._sum,
            "loop_cpu": time.process_time() - self._began,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(found | more), flush=True)
