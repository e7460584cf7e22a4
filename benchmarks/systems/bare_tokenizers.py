"""Bare loop of the package `tokenizers`: read JSON Lines, encode, write raw ids.

It is a lower bound of the costs of a build with `tokenizers`: it does not check, pack,
compress or hash. The program runs with versions 0.2x and 1.x, and takes the cheapest
measured calls of each: batches without offsets before 1.0, and one text per call with
ids as an array since then. Special tokens in texts are plain text, as in Tokenlake.

Each worker process takes every N-th input file and writes `NAME.ids` for `NAME.jsonl`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# The package reads it when it is imported: one process per core, without threads.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from tokenizers import Encoding, Tokenizer

from benchmarks.systems.arguments import Arguments, parse
from benchmarks.systems.json_lines import read_texts

BATCH = 256
"""Number of texts that are encoded together."""

Encode = Callable[[list[str]], "list[np.ndarray[Any, Any]]"]
"""Texts -> ids of each text."""


def main(arguments: Arguments) -> None:
    """Encode every document of the input."""
    # The tokenizer is loaded once: the workers are forked from this process.
    encode = _load_encoder(arguments.tokenizer / "tokenizer.json")
    workers = arguments.workers
    shares = [arguments.files[number::workers] for number in range(workers)]
    # This process is the first worker.
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_write, args=(encode, share, arguments))
        for share in shares[1:]
    ]
    for process in processes:
        process.start()
    _write(encode, shares[0], arguments)
    for process in processes:
        process.join()
    exit_codes = [process.exitcode for process in processes]
    if any(exit_codes):
        raise SystemExit(f"a worker failed: exit codes {exit_codes}")


def _load_encoder(path: Path) -> Encode:
    """Return a function that encodes texts by the cheapest call of this version."""
    tokenizer: Any = Tokenizer.from_file(str(path))

    def encode_one_by_one(texts: list[str]) -> list[np.ndarray[Any, Any]]:
        all_ids: list[np.ndarray[Any, Any]] = []
        for text in texts:
            encoding = tokenizer.encode(
                text,
                add_special_tokens=False,
                encode_special_tokens=True,
                padding=None,
                truncation=None,
            )
            all_ids.append(encoding.ids_array)
        return all_ids

    def encode_batch(texts: list[str]) -> list[np.ndarray[Any, Any]]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    # Arrays of ids are new in version 1.0.
    is_version_1 = hasattr(Encoding, "ids_array")
    if is_version_1:
        return encode_one_by_one
    # Older versions take these options from the tokenizer.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return encode_batch


def _write(encode: Encode, files: Sequence[Path], arguments: Arguments) -> None:
    """Encode files and write their ids."""
    dtype = np.dtype(f"u{arguments.id_bytes}")
    for file in files:
        with (arguments.output / f"{file.stem}.ids").open("wb") as output_file:
            # A block of texts is encoded in small batches.
            for texts in read_texts([file]):
                for first_text in range(0, len(texts), BATCH):
                    all_ids = encode(texts.slice(first_text, BATCH).to_pylist())
                    output_file.write(np.concatenate(all_ids).astype(dtype, copy=False))


if __name__ == "__main__":
    main(parse())
