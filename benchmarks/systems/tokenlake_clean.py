"""Near duplicates of a folder of JSON Lines by Tokenlake: ``INPUT OUTPUT WORKERS``."""

from __future__ import annotations

import sys

from tokenlake.etl.clean.cleaning import clean_dataset


def main(source: str, output: str, workers: str) -> None:
    """Write `list.parquet`, and the signatures below `store`."""
    # Exact duplicates are left in, so that only near duplicates are searched.
    config = {
        "name": "bench",
        "datasets": [{"name": "text", "data_files": f"{source}/*.jsonl"}],
        "save": {"output_dir": f"{output}/store"},
        "clean": {"output": f"{output}/list.parquet", "exact": "none"},
    }
    clean_dataset(config, workers=int(workers))


if __name__ == "__main__":
    main(*sys.argv[1:])
