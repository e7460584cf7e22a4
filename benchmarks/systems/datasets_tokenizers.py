"""Hugging Face datasets with the package `tokenizers` itself, for versions that
transformers does not take.

The same steps as :mod:`benchmarks.systems.hf_datasets`, with `Tokenizer.encode_batch`
in place of a tokenizer of transformers: `load_dataset("json")`, `map(batched=True)`,
`to_parquet`.
"""

from __future__ import annotations

import functools
from typing import Any

from datasets import load_dataset
from tokenizers import Tokenizer

from benchmarks.systems.arguments import Arguments, parse


def main(job: Arguments) -> None:
    """Write `train.parquet`; the Arrow cache goes below the output too, so that
    every run starts cold.
    """
    num_proc = job.workers if job.workers > 1 else None
    files = [str(path) for path in job.files]
    cache = str(job.output / "cache")
    dataset = load_dataset(
        "json", data_files=files, split="train", num_proc=num_proc, cache_dir=cache
    )
    encoded = dataset.map(
        encode,
        batched=True,
        num_proc=num_proc,
        remove_columns=["text"],
        fn_kwargs={"path": str(job.tokenizer / "tokenizer.json")},
    )
    encoded.to_parquet(str(job.output / "train.parquet"))


def encode(examples: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the ids of a batch of texts."""
    encodings = _tokenizer(path).encode_batch(examples["text"])
    return {"input_ids": [encoding.ids for encoding in encodings]}


@functools.cache
def _tokenizer(path: str) -> Any:
    """Return the tokenizer of this process.

    Version 1.0.0rc3 hangs where a forked process loads or unpickles a tokenizer after
    its parent has loaded one. So the parent loads none unless it does all the work.
    """
    return Tokenizer.from_file(path)


if __name__ == "__main__":
    # Under its importable name, the function is pickled by reference.
    from benchmarks.systems import datasets_tokenizers

    datasets_tokenizers.main(parse())
