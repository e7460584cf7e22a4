"""What one process of the bare loop spends: ``INPUT TOKENIZER EOS OUTPUT WORKERS``,
printed as JSON.

CPU seconds until the tokenizer is loaded, and of the loop after that with the bytes
that it read.
"""

from __future__ import annotations

import json
import time

import gigatoken

from benchmarks.systems import bare_gigatoken
from benchmarks.systems.arguments import parse

if __name__ == "__main__":
    job = parse()
    gigatoken.Tokenizer.from_json((job.tokenizer / "tokenizer.json").read_bytes())
    started = time.process_time()
    bare_gigatoken.main(job)
    # The loop loads the tokenizer again; that is counted as its start, once.
    size = sum(path.stat().st_size for path in job.files)
    print(
        json.dumps(
            {"start": started, "loop": time.process_time() - started, "bytes": size}
        )
    )
