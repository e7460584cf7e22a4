"""Tokenlake's cleaning of a folder of JSON Lines, near duplicates alone. Arguments:
INPUT OUTPUT WORKERS.
"""

from __future__ import annotations

import sys

from tokenlake.etl.clean.cleaning import clean_dataset


def main(source: str, output: str, workers: str) -> None:
    """Writes `list.parquet`; the signatures go to `store`."""
    config = {
        "name": "bench",
        "datasets": [{"name": "text", "data_files": f"{source}/*.jsonl"}],
        "save": {"output_dir": f"{output}/store"},
        "clean": {"output": f"{output}/list.parquet", "exact": "none"},
    }
    clean_dataset(config, workers=int(workers))


if __name__ == "__main__":
    main(*sys.argv[1:])
