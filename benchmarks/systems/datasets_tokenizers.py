"""Hugging Face datasets with `tokenizers`, for versions that transformers rejects.

The steps are those of :mod:`benchmarks.systems.hf_datasets`: `load_dataset("json")`,
`map(batched=True)`, `to_parquet`. `Tokenizer.encode_batch` replaces the tokenizer of
transformers.
"""

from __future__ import annotations

import functools
from typing import Any

from datasets import load_dataset
from tokenizers import Tokenizer

from benchmarks.systems.arguments import Arguments, parse


def main(arguments: Arguments) -> None:
    """Write `train.parquet`.

    The Arrow cache is below the output, so that every run starts with an empty one.
    """
    # None is the default, in which nothing is forked.
    num_proc = arguments.workers if arguments.workers > 1 else None
    dataset = load_dataset(
        "json",
        data_files=[str(path) for path in arguments.files],
        split="train",
        num_proc=num_proc,
        cache_dir=str(arguments.output / "cache"),
    )
    encoded = dataset.map(
        encode,
        batched=True,
        num_proc=num_proc,
        remove_columns=["text"],
        fn_kwargs={"path": str(arguments.tokenizer / "tokenizer.json")},
    )
    encoded.to_parquet(str(arguments.output / "train.parquet"))


def encode(examples: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the ids of a batch of texts.

    Args:
        examples: Columns of the batch.
        path: Path of tokenizer.json.
    """
    encodings = _tokenizer(path).encode_batch(examples["text"])
    return {"input_ids": [encoding.ids for encoding in encodings]}


@functools.cache
def _tokenizer(path: str) -> Any:
    """Return the tokenizer of this process.

    Version 1.0.0rc3 hangs if a forked process loads or unpickles a tokenizer after its
    parent has loaded one. So the parent loads none unless it does all the work.
    """
    return Tokenizer.from_file(path)


if __name__ == "__main__":
    # The function `encode` is pickled by reference, which needs an importable module.
    from benchmarks.systems import datasets_tokenizers

    datasets_tokenizers.main(parse())
