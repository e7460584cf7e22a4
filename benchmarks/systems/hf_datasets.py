"""Hugging Face datasets, as in https://huggingface.co/docs/datasets/nlp_process.

The steps are `load_dataset("json")`, `map(batched=True)` with a fast tokenizer, and
`to_parquet`. One worker is the documented default without `num_proc`, in which the fast
tokenizer uses threads. N workers are `num_proc=N`. The text column is dropped and
nothing is packed, which is less work than that of Tokenlake.
"""

from __future__ import annotations

from datasets import load_dataset
from transformers import AutoTokenizer

from benchmarks.systems.arguments import Arguments, parse


def main(arguments: Arguments) -> None:
    """Write `train.parquet`.

    The Arrow cache is below the output, so that every run starts with an empty one.
    """
    tokenizer = AutoTokenizer.from_pretrained(str(arguments.tokenizer))
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
        lambda examples: tokenizer(examples["text"]),
        batched=True,
        num_proc=num_proc,
        remove_columns=["text"],
    )
    encoded.to_parquet(str(arguments.output / "train.parquet"))


if __name__ == "__main__":
    main(parse())
