"""The floor with the package `tokenizers`: read JSON Lines, encode, write raw ids, in
one process per worker.

No checks, no packing, no compression, no hashes. The program runs with versions 0.2x
and 1.x. In each it takes the cheapest calls in CPU seconds of those measured: batches
without offsets before 1.0, and since then one text a call and the ids as an array.
Special tokens in a text are plain text, as in Tokenlake's builds.

Each worker takes every N-th input file and writes `NAME.ids` for `NAME.jsonl`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Read when the package is imported: one process per core, and no threads in it.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from tokenizers import Encoding, Tokenizer

from benchmarks.systems.arguments import Arguments, parse
from benchmarks.systems.json_lines import read_texts

BATCH = 256  # texts of a call, before version 1.0

Encode = Callable[[list[str]], "list[np.ndarray[Any, Any]]"]


def main(job: Arguments) -> None:
    """Encode every document of the job."""
    # Loaded once: the workers are forked from here.
    encode = _encoder(job.tokenizer / "tokenizer.json")
    shares = [job.files[number :: job.workers] for number in range(job.workers)]
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_write, args=(encode, share, job))
        for share in shares[1:]
    ]
    for worker in workers:
        worker.start()
    _write(encode, shares[0], job)
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit(
            f"a worker failed: exit codes {[worker.exitcode for worker in workers]}"
        )


def _encoder(path: Path) -> Encode:
    tokenizer: Any = Tokenizer.from_file(str(path))
    if hasattr(Encoding, "ids_array"):
        return lambda texts: [
            tokenizer.encode(
                text,
                add_special_tokens=False,
                encode_special_tokens=True,
                padding=None,
                truncation=None,
            ).ids_array
            for text in texts
        ]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return lambda texts: [
        np.array(encoding.ids, np.uint32)
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ]


def _write(encode: Encode, files: Sequence[Path], job: Arguments) -> None:
    dtype = np.dtype(f"u{job.id_bytes}")
    for file in files:
        with (job.output / f"{file.stem}.ids").open("wb") as sink:
            for texts in read_texts([file]):
                for first in range(0, len(texts), BATCH):
                    rows = encode(texts.slice(first, BATCH).to_pylist())
                    sink.write(np.concatenate(rows).astype(dtype, copy=False))


if __name__ == "__main__":
    main(parse())
