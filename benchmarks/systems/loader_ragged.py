"""Epochs of a stored dataset, packed or padded by buckets: ``STORE NAME PASSES
BUCKETS``, one JSON line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenlake as tl
from benchmarks.systems.loader_sink import BATCH


def main() -> None:
    """Deliver all rows with four columns, and count the ids that are no padding."""
    store, name, passes, buckets = sys.argv[1:]
    data = tl.open(Path(store), name)
    options: dict[str, Any] = {"epochs": int(passes), "seed": 0}
    mask = "segment_ids"
    if data.kind != "packed":
        options["padding"], mask = (
            tl.BatchPadding(buckets=int(buckets), multiple=8),
            "attention_mask",
        )
    rows = ids = cells = 0
    for batch in tl.DataLoader(data, BATCH, **options):
        rows += len(batch[mask])
        ids += int((batch[mask] != 0).sum())
        cells += batch[mask].size
    print(json.dumps({"rows": rows, "ids": ids, "cells": cells}))


if __name__ == "__main__":
    main()
