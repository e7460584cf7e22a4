"""Conversations and prompts to ids and masks as trainers do it: `datasets.map`, a row
or a thousand at a time.

``KIND ROWS INPUT TOKENIZER OUTPUT`` with KIND chat or prompt, and ROWS the rows of a
call. A trainer's own preparation renders and tokenizes each row by itself:
`apply_chat_template(..., return_assistant_tokens_mask=True)` for conversations; for
prompts the prompt alone and the prompt with its completion, whose additional ids are
what is learned. With many rows a call, the tokenizer gets all of them at once. Nothing
is packed: that is less work than Tokenlake does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from datasets import load_dataset
from transformers import AutoTokenizer

from benchmarks.texts import TEMPLATE

Rows = dict[str, Any]
"""Of one row, or of each column of many."""


def of_chat(tokenizer: Any) -> Callable[[Rows], Rows]:
    """The function mapped over conversations."""

    def prepare(rows: Rows) -> Rows:
        made = tokenizer.apply_chat_template(
            rows["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": made["input_ids"], "mask": made["assistant_masks"]}

    return prepare


def of_prompt(tokenizer: Any) -> Callable[[Rows], Rows]:
    """The function mapped over prompts with a completion, one at a time."""

    def prepare(row: Rows) -> Rows:
        prompt = TEMPLATE.format(
            instruction=row["instruction"], input=row["input"], output=""
        )
        first = tokenizer(prompt)["input_ids"]
        whole = tokenizer(prompt + row["output"] + tokenizer.eos_token)["input_ids"]
        return {"input_ids": whole, "mask": _mask(first, whole)}

    return prepare


def of_prompts(tokenizer: Any) -> Callable[[Rows], Rows]:
    """The function mapped over many prompts with their completions at once."""

    def prepare(rows: Rows) -> Rows:
        given = zip(rows["instruction"], rows["input"], strict=True)
        prompts = [
            TEMPLATE.format(instruction=asked, input=text, output="")
            for asked, text in given
        ]
        ends = (output + tokenizer.eos_token for output in rows["output"])
        wholes = [prompt + end for prompt, end in zip(prompts, ends, strict=True)]
        first, whole = tokenizer(prompts)["input_ids"], tokenizer(wholes)["input_ids"]
        return {"input_ids": whole, "mask": list(map(_mask, first, whole))}

    return prepare


def _mask(prompt: list[int], whole: list[int]) -> list[int]:
    return [0] * len(prompt) + [1] * (len(whole) - len(prompt))


PREPARE: Final = {
    # A template is applied to one conversation or to a list of them.
    "chat": {False: of_chat, True: of_chat},
    "prompt": {False: of_prompt, True: of_prompts},
}


def main(kind: str, rows: str, source: str, tokenizer: str, output: str) -> None:
    """Writes `train.parquet`; the Arrow cache goes below the output too, so that
    every run starts cold.
    """
    many = int(rows) > 1
    prepare = PREPARE[kind][many](AutoTokenizer.from_pretrained(tokenizer))
    files = sorted(map(str, Path(source).glob("*.jsonl")))
    dataset = load_dataset(
        "json", data_files=files, split="train", cache_dir=f"{output}/cache"
    )
    mapped = dataset.map(
        prepare, batched=many, batch_size=int(rows), remove_columns=dataset.column_names
    )
    mapped.to_parquet(f"{output}/train.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
