"""Tokenlake as a library: ``CONFIG WORKERS``, without Prefect."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenlake.etl.runner import build_dataset

if __name__ == "__main__":
    build_dataset(json.loads(Path(sys.argv[1]).read_bytes()), workers=int(sys.argv[2]))
