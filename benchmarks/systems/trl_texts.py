"""Conversations and prompts to ids and masks as trainers do it: `datasets.map`, a row at a time.

``KIND INPUT TOKENIZER OUTPUT`` with KIND chat or prompt. A trainer's own preparation renders and tokenizes each
row by itself: `apply_chat_template(..., return_assistant_tokens_mask=True)` for conversations; for prompts the prompt
alone and the prompt with its completion, whose additional ids are what is learned. Nothing is packed: that is less
work than Tokenlake does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import load_dataset
from transformers import AutoTokenizer

from benchmarks.texts import TEMPLATE

Row = dict[str, Any]


def of_chat(tokenizer: Any) -> Callable[[Row], Row]:
    """The function mapped over conversations."""

    def prepare(row: Row) -> Row:
        made = tokenizer.apply_chat_template(
            row["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": made["input_ids"], "mask": made["assistant_masks"]}

    return prepare


def of_prompt(tokenizer: Any) -> Callable[[Row], Row]:
    """The function mapped over prompts with a completion."""

    def prepare(row: Row) -> Row:
        prompt = TEMPLATE.format(instruction=row["instruction"], input=row["input"], output="")
        first = tokenizer(prompt)["input_ids"]
        whole = tokenizer(prompt + row["output"] + tokenizer.eos_token)["input_ids"]
        return {"input_ids": whole, "mask": [0] * len(first) + [1] * (len(whole) - len(first))}

    return prepare


def main(kind: str, source: str, tokenizer: str, output: str) -> None:
    """Writes `train.parquet`; the Arrow cache goes below the output too, so that every run starts cold."""
    prepare = {"chat": of_chat, "prompt": of_prompt}[kind](AutoTokenizer.from_pretrained(tokenizer))
    files = sorted(map(str, Path(source).glob("*.jsonl")))
    dataset = load_dataset("json", data_files=files, split="train", cache_dir=f"{output}/cache")
    dataset.map(prepare, remove_columns=dataset.column_names).to_parquet(f"{output}/train.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
