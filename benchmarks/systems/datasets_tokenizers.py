"""Hugging Face datasets with the package `tokenizers` itself, for versions that transformers does not take.

The same steps as :mod:`benchmarks.systems.hf_datasets`, with `Tokenizer.encode_batch` in place of a tokenizer of
transformers: `load_dataset("json")`, `map(batched=True)`, `to_parquet`.
"""

from __future__ import annotations

from typing import Any

from datasets import load_dataset
from tokenizers import Encoding, Tokenizer

from benchmarks.systems.arguments import Arguments, parse


def main(job: Arguments) -> None:
    """Write `train.parquet`; the Arrow cache goes below the output too, so that every run starts cold."""
    tokenizer: Any = Tokenizer.from_file(str(job.tokenizer / "tokenizer.json"))
    num_proc = job.workers if job.workers > 1 else None
    files = [str(path) for path in job.files]
    cache = str(job.output / "cache")
    dataset = load_dataset("json", data_files=files, split="train", num_proc=num_proc, cache_dir=cache)
    has_arrays = hasattr(Encoding, "ids_array")

    def encode(examples: dict[str, Any]) -> dict[str, Any]:
        encodings = tokenizer.encode_batch(examples["text"])
        return {"input_ids": [item.ids_array if has_arrays else item.ids for item in encodings]}

    encoded = dataset.map(encode, batched=True, num_proc=num_proc, remove_columns=["text"])
    encoded.to_parquet(str(job.output / "train.parquet"))


if __name__ == "__main__":
    main(parse())
