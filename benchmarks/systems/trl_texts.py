"""Conversations and prompts to ids and masks by `datasets.map`, as trainers do it.

Arguments: ``KIND ROWS INPUT TOKENIZER OUTPUT``. KIND is chat or prompt, and ROWS the
number of rows per call. Trainers render and tokenize each row separately:

- Conversations: `apply_chat_template(..., return_assistant_tokens_mask=True)`.
- Prompts: the prompt, and the prompt with its completion. The ids after those of the
  prompt count toward the loss.

With many rows per call, the tokenizer gets all of them at once. Nothing is packed,
which is less work than that of Tokenlake.
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
"""Column -> value of a row, or values of several rows."""


def prepare_chats(tokenizer: Any) -> Callable[[Rows], Rows]:
    """Return the function that is mapped over one or several conversations."""

    def prepare(rows: Rows) -> Rows:
        encoded = tokenizer.apply_chat_template(
            rows["messages"], return_dict=True, return_assistant_tokens_mask=True
        )
        return {"input_ids": encoded["input_ids"], "mask": encoded["assistant_masks"]}

    return prepare


def prepare_prompt(tokenizer: Any) -> Callable[[Rows], Rows]:
    """Return the function that is mapped over prompts with their completions."""

    def prepare(row: Rows) -> Rows:
        prompt = TEMPLATE.format(
            instruction=row["instruction"], input=row["input"], output=""
        )
        # Both are tokenized: the prompt shows where the completion begins.
        completed = prompt + row["output"] + tokenizer.eos_token
        prompt_ids = tokenizer(prompt)["input_ids"]
        ids = tokenizer(completed)["input_ids"]
        return {"input_ids": ids, "mask": _completion_mask(prompt_ids, ids)}

    return prepare


def prepare_prompts(tokenizer: Any) -> Callable[[Rows], Rows]:
    """Return the function that is mapped over many prompts at once."""

    def prepare(rows: Rows) -> Rows:
        # 1. Render all rows.
        prompts: list[str] = []
        completed: list[str] = []
        columns = zip(rows["instruction"], rows["input"], rows["output"], strict=True)
        for instruction, text, output in columns:
            prompt = TEMPLATE.format(instruction=instruction, input=text, output="")
            prompts.append(prompt)
            completed.append(prompt + output + tokenizer.eos_token)
        # 2. Tokenize them.
        all_prompt_ids = tokenizer(prompts)["input_ids"]
        all_ids = tokenizer(completed)["input_ids"]
        # 3. Mask the prompts.
        masks: list[list[int]] = []
        for prompt_ids, ids in zip(all_prompt_ids, all_ids, strict=True):
            masks.append(_completion_mask(prompt_ids, ids))
        return {"input_ids": all_ids, "mask": masks}

    return prepare


def _completion_mask(prompt_ids: list[int], ids: list[int]) -> list[int]:
    """Return 0 for each id of the prompt, and 1 for each id after it."""
    return [0] * len(prompt_ids) + [1] * (len(ids) - len(prompt_ids))


PREPARE: Final = {
    ("chat", False): prepare_chats,
    ("chat", True): prepare_chats,
    ("prompt", False): prepare_prompt,
    ("prompt", True): prepare_prompts,
}
"""(kind, whether a call has many rows) -> function that returns the mapped one."""


def main(kind: str, rows: str, source: str, tokenizer: str, output: str) -> None:
    """Write `train.parquet`.

    The Arrow cache is below the output, so that every run starts with an empty one.
    """
    # 1. The function for one or for many rows per call.
    is_batched = int(rows) > 1
    prepare = PREPARE[kind, is_batched](AutoTokenizer.from_pretrained(tokenizer))
    dataset = load_dataset(
        "json",
        data_files=sorted(map(str, Path(source).glob("*.jsonl"))),
        split="train",
        cache_dir=f"{output}/cache",
    )
    # 2. Its application to all rows.
    mapped = dataset.map(
        prepare,
        batched=is_batched,
        batch_size=int(rows),
        remove_columns=dataset.column_names,
    )
    mapped.to_parquet(f"{output}/train.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
