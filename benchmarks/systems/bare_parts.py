"""Times of a process of the bare loop: ``INPUT TOKENIZER EOS OUTPUT WORKERS ID_BYTES``.

The CPU seconds until the tokenizer is loaded, and those of the loop with the bytes that
it read, are printed as JSON.
"""

from __future__ import annotations

import json
import time

import gigatoken

from benchmarks.systems import bare_gigatoken
from benchmarks.systems.arguments import parse

if __name__ == "__main__":
    arguments = parse()
    tokenizer_json = (arguments.tokenizer / "tokenizer.json").read_bytes()
    gigatoken.Tokenizer.from_json(tokenizer_json)
    # The loop loads the tokenizer once more. That counts as part of the loop.
    start_seconds = time.process_time()
    bare_gigatoken.main(arguments)
    loop_seconds = time.process_time() - start_seconds
    size = sum(path.stat().st_size for path in arguments.files)
    print(json.dumps({"start": start_seconds, "loop": loop_seconds, "bytes": size}))
