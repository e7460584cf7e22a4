"""Build of Tokenlake by the library, without Prefect: ``CONFIG WORKERS``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenlake.etl.runner import build_dataset

if __name__ == "__main__":
    config = json.loads(Path(sys.argv[1]).read_bytes())
    build_dataset(config, workers=int(sys.argv[2]))
