"""The preprocessing transforms by the names of their trainers, and the lengths of
prompts and answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake as tl
from tests.seeds import promise
from tests.text.preference_support import Reference, chatml, llama
from tests.tokenizers.tokenizer_samples import from_spec, sentencepiece
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.text import Joiner
from tokenlake.transforms import Example

Row = dict[str, Any]
PAIR: Row = {
    "prompt": "What is two and two?",
    "chosen": " Four, of course.",
    "rejected": " Five.",
}
METHODS = ("dpo", "orpo", "cpo", "kto", "bco", "grpo", "reward")


def transform(method: str) -> Any:
    name = method.capitalize() if method == "reward" else method.upper()
    return getattr(tl, f"{name}PreprocessTransform")


@promise(276)
@pytest.mark.parametrize("method", METHODS)
def test_a_transform_of_a_trainer_makes_the_rows_of_its_method(method: Any) -> None:
    made, rows = (
        transform(method)(sentencepiece()),
        tl.PreferenceRows(method, sentencepiece()),
    )
    assert made.expand(PAIR) == rows.expand(PAIR)
    source = tl.block_mixture_interleave([[PAIR]], stop="all_exhausted").drop_fields(
        ["__source__"]
    )
    assert list(tl.TransformedShardedSource(source, made)) == rows.expand(PAIR)


@promise(276)
@pytest.mark.parametrize("method", ["dpo", "orpo", "cpo", "kto", "bco"])
def test_prompts_keep_their_end_and_answers_their_beginning(method: str) -> None:
    prompt, chosen, _ = Reference(sentencepiece()).parts(*PAIR.values())
    (row, *_) = transform(method)(sentencepiece(), 5, 3).expand(PAIR)
    answer = "completion" if method in ("kto", "bco") else "chosen"
    assert row["prompt_input_ids"] == [prompt[0], *prompt[-4:]]  # BOS stays
    assert row[f"{answer}_input_ids"] == [*row["prompt_input_ids"], *chosen[:3]]
    assert row[f"{answer}_labels"][-3:] == chosen[:3]
    roomy = transform(method)(
        sentencepiece(), max_prompt_length=99, max_completion_length=99
    )
    assert roomy.expand(PAIR) == transform(method)(sentencepiece()).expand(PAIR)


@promise(276)
def test_prompts_to_be_answered_are_cut_too() -> None:
    (row,) = tl.GRPOPreprocessTransform(sentencepiece(), max_prompt_length=3).expand(
        {"prompt": PAIR["prompt"]}
    )
    ids = Reference(sentencepiece()).opened(
        Reference(sentencepiece()).ids(PAIR["prompt"])
    )
    assert row["input_ids"] == [ids[0], *ids[-2:]]


IDS = st.lists(st.integers(5, 9), min_size=1, max_size=6)


@given(
    st.lists(st.tuples(IDS, IDS), min_size=1, max_size=5),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_what_is_cut_is_counted(
    documents: list[tuple[list[int], list[int]]], prompt: int, answer: int
) -> None:
    texts = [run for one, two in documents for run in (one, one + two)]
    ids = np.array([id for run in texts for id in run], np.int32)
    offsets = np.cumsum([0, *map(len, texts)])
    joined = Joiner("kto", (1,), 2, 0, "keep", prompt, answer).join(ids, offsets)
    assert (joined.parts["prompt"].lengths <= prompt).all() and joined.parts[
        "prompt"
    ].begins_with((1,)).all()
    assert (joined.parts["completion"].lengths <= answer).all()
    written = sum(len(part.ids) for part in joined.parts.values())
    assert written == joined.tokens + joined.bos + joined.eos - joined.dropped.get(
        "truncated", 0
    )


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "reward",
            {"max_prompt_length": 5},
            "max_prompt_length: rows for reward do not have this part.*max_length",
        ),
        (
            "grpo",
            {"max_completion_length": 5},
            "max_completion_length: rows for grpo do not have this part",
        ),
        (
            "dpo",
            {"max_prompt_length": 0},
            "max_prompt_length is 0, expected a positive number",
        ),
        (
            "dpo",
            {"label_pad_token_id": 0},
            "label_pad_token_id: PreferenceRows does not have this argument; labels are -100",
        ),
        (
            "kto",
            {"prompt_name": "x"},
            "prompt_name: .*the fields are chosen_field, completion_field",
        ),
    ],
)
def test_what_a_method_cannot_do_is_told(
    method: str, options: Row, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        transform(method)(sentencepiece(), **options)


def test_tools_are_those_of_rows_that_name_none() -> None:
    config = {
        **llama().config,
        "chat_template": "{{ tools | length if tools else 'no' }} tools",
    }
    files = from_spec(llama().spec, name="tools", config=config)
    tools = [{"type": "function", "function": {"name": "add"}}]
    chat = {"prompt": [{"role": "user", "content": "hi"}]}
    given = tl.GRPOPreprocessTransform(files, tools=tools).expand(chat)
    plain = tl.GRPOPreprocessTransform(files)
    assert given == plain.expand({**chat, "tools": tools}) != plain.expand(chat)


@promise(276)
def test_plain_text_and_whatever_a_function_makes_of_a_row_are_supervised() -> None:
    ids = Reference(sentencepiece()).whole("so be it")
    made = tl.SFTPreprocessTransform(sentencepiece(), 64)({"text": "so be it"})
    assert made["input_ids"] == ids and made["labels"] == [-100, *ids[1:]]
    other = tl.SFTPreprocessTransform(
        sentencepiece(), 64, "body", formatting_func=lambda row: "so be it"
    )
    assert other({"any": 1}) == made
    open_end = tl.SFTPreprocessTransform(sentencepiece(), 64, add_eos=False)(
        {"text": "so be it"}
    )
    assert open_end["input_ids"] == ids[:-1]
    short = tl.SFTPreprocessTransform(sentencepiece(), max_length=3)(
        {"text": "so be it"}
    )
    assert len(short["input_ids"]) == 3 < len(ids)
    with pytest.raises(BadRecordError, match="max_length is 3 and truncation is off"):
        tl.SFTPreprocessTransform(sentencepiece(), max_length=3, truncation=False)(
            {"text": "so be it"}
        )


@promise(276)
def test_a_prompt_is_masked_where_that_is_asked_for() -> None:
    row = {"prompt": "Say yes:", "completion": " yes"}
    made = tl.SFTPreprocessTransform(sentencepiece(), 64)(row)
    masked = tl.SFTPreprocessTransform(sentencepiece(), 64, mask_prompt=True)(row)
    assert made["input_ids"] == masked["input_ids"]
    assert made["labels"].count(-100) < masked["labels"].count(-100)
    asked = tl.SFTPreprocessTransform(chatml(), 64, messages_field="talk")
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert asked({"talk": turns}) == tl.SFTPreprocessTransform(chatml(), 64)(
        {"messages": turns}
    )


@promise(274)
def test_a_function_of_a_row_is_a_transform() -> None:
    def loud(row: Example) -> Example:
        return {**row, "text": row["text"].upper()}

    assert (tl.MapTransform(loud) >> tl.DropFields(["id"]))({"text": "a", "id": 1}) == {
        "text": "A"
    }
    assert tl.MapTransform(lambda row: None).expand({"text": "a"}) == ()
