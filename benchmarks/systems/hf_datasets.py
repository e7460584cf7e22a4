"""Hugging Face datasets, as https://huggingface.co/docs/datasets/nlp_process shows it.

`load_dataset("json")`, `map(batched=True)` with a fast tokenizer, `to_parquet`. One
worker is the documented default (no `num_proc`: the fast tokenizer uses threads); N
workers is `num_proc=N`. The text column is dropped and nothing is packed: that is less
work than Tokenlake does.
"""

from __future__ import annotations

from datasets import load_dataset
from transformers import AutoTokenizer

from benchmarks.systems.arguments import Arguments, parse


def main(job: Arguments) -> None:
    """Writes `train.parquet`; the Arrow cache goes below the output too, so that
    every run starts cold.
    """
    tokenizer = AutoTokenizer.from_pretrained(str(job.tokenizer))
    num_proc = job.workers if job.workers > 1 else None
    files = [str(path) for path in job.files]
    cache = str(job.output / "cache")
    dataset = load_dataset(
        "json", data_files=files, split="train", num_proc=num_proc, cache_dir=cache
    )
    encoded = dataset.map(
        lambda examples: tokenizer(examples["text"]),
        batched=True,
        num_proc=num_proc,
        remove_columns=["text"],
    )
    encoded.to_parquet(str(job.output / "train.parquet"))


if __name__ == "__main__":
    main(parse())
