"""Epochs of a dataset, packed or padded by buckets: ``STORE NAME PASSES BUCKETS``.

The program prints one JSON line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenlake as tl
from benchmarks.systems.loader_sink import BATCH


def main(store: str, name: str, passes: str, buckets: str) -> None:
    """Deliver all rows with four columns, and count the ids without padding.

    Args:
        store: Folder of the datasets.
        name: Name of the dataset.
        passes: Number of epochs.
        buckets: Number of buckets of a dataset that is not packed.
    """
    dataset = tl.open(Path(store), name)
    options: dict[str, Any] = {"epochs": int(passes), "seed": 0}
    mask_name = "segment_ids"
    if dataset.kind != "packed":
        options["padding"] = tl.BatchPadding(buckets=int(buckets), multiple=8)
        mask_name = "attention_mask"
    row_count = 0
    id_count = 0
    cell_count = 0  # ids and padding
    for batch in tl.DataLoader(dataset, BATCH, **options):
        mask = batch[mask_name]
        row_count += len(mask)
        id_count += int((mask != 0).sum())
        cell_count += mask.size
    print(json.dumps({"rows": row_count, "ids": id_count, "cells": cell_count}))


if __name__ == "__main__":
    main(*sys.argv[1:])
