"""Rows of preferences one at a time: what they hold, what is shared, and the ids
that come of it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.seeds import promise
from tests.text import preference_support as support
from tests.text.preference_support import Reference, prompt_columns, together
from tests.tokenizers.tokenizer_samples import byte_level, sentencepiece
from tokenlake import PreferenceRows
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.tokenizers import TokenizerFiles

Row = dict[str, Any]
PAIR: Row = {
    "prompt": "What is two and two?",
    "chosen": " Four, of course.",
    "rejected": " Five.",
}
END = "<|im_end|>"
PROMPTS = PreferenceRows("grpo", byte_level(), trainer="trl")
TEXT = st.text(st.sampled_from("ab é日 \n.,12'<s>"), min_size=1, max_size=12)


def turns(*texts: str) -> list[Row]:
    return [
        {"role": ("user", "assistant")[i % 2], "content": text}
        for i, text in enumerate(texts)
    ]


# Columns


def test_a_pair_has_the_columns_that_trl_reads() -> None:
    prompt, chosen, rejected = Reference(sentencepiece()).parts(*PAIR.values())
    (row,) = PreferenceRows("dpo", sentencepiece(), trainer="trl").expand(PAIR)
    assert row == {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
    assert prompt[0] == 1 and prompt.count(1) == 1 and chosen[-1] == rejected[-1] == 2


@promise(277)
@pytest.mark.parametrize(
    ("method", "trainer"), [("dpo", "easydel"), ("orpo", "trl"), ("cpo", "easydel")]
)
def test_a_pair_with_its_prompt_has_masks_and_labels(method: Any, trainer: Any) -> None:
    prompt, chosen, rejected = Reference(sentencepiece()).parts(*PAIR.values())
    (row,) = PreferenceRows(method, sentencepiece(), trainer=trainer).expand(PAIR)
    assert row == {
        **prompt_columns(prompt),
        **together(prompt, chosen, "chosen"),
        **together(prompt, rejected, "rejected"),
    }


@pytest.mark.parametrize("label", [True, False, 1, 0])
def test_a_judged_answer_keeps_its_label(label: Any) -> None:
    prompt, answer = Reference(byte_level()).parts("Say yes.", " Yes.")
    judged = {"prompt": "Say yes.", "completion": " Yes.", "label": label}
    (row,) = PreferenceRows("kto", byte_level(), trainer="trl").expand(judged)
    assert row == {"prompt_ids": prompt, "completion_ids": answer, "label": bool(label)}
    (row,) = PreferenceRows("bco", byte_level()).expand(judged)
    assert row == {
        **prompt_columns(prompt),
        **together(prompt, answer, "completion"),
        "label": bool(label),
    }


@promise(277)
def test_a_pair_becomes_two_judged_answers_the_good_one_first() -> None:
    reference = Reference(sentencepiece())
    rows = PreferenceRows("kto", sentencepiece(), trainer="trl").expand(PAIR)
    expected = [
        reference.parts(PAIR["prompt"], PAIR[name]) for name in ("chosen", "rejected")
    ]
    assert [[row["prompt_ids"], row["completion_ids"]] for row in rows] == expected
    assert [row["label"] for row in rows] == [True, False]


def test_a_reward_model_reads_whole_texts() -> None:
    reference = Reference(sentencepiece())
    chosen, rejected = (
        reference.whole(PAIR["prompt"] + PAIR[name]) for name in ("chosen", "rejected")
    )
    (row,) = PreferenceRows("reward", sentencepiece(), trainer="trl").expand(PAIR)
    assert row == {"chosen_ids": chosen, "rejected_ids": rejected}
    alone = {name: PAIR["prompt"] + PAIR[name] for name in ("chosen", "rejected")}
    (row,) = PreferenceRows("reward", sentencepiece()).expand(alone)
    assert row == {
        "input_ids_chosen": chosen,
        "attention_mask_chosen": [1] * len(chosen),
        "input_ids_rejected": rejected,
        "attention_mask_rejected": [1] * len(rejected),
    }


@promise(277)
def test_a_prompt_alone_stays_open() -> None:
    reference = Reference(sentencepiece())
    ids = reference.opened(reference.ids("Why?"))
    (row,) = PreferenceRows("grpo", sentencepiece(), trainer="trl").expand(
        {"prompt": "Why?", "answer": "42"}
    )
    assert row == {"prompt": "Why?", "prompt_input_ids": ids}
    (row,) = PreferenceRows("grpo", sentencepiece()).expand({"prompt": "Why?"})
    assert row == {"input_ids": ids, "attention_mask": [1] * len(ids)}


def test_fields_may_have_other_names() -> None:
    rows = PreferenceRows(
        "dpo", byte_level(), prompt_field="q.text", chosen_field="a", rejected_field="b"
    )
    row = {"q": {"text": PAIR["prompt"]}, "a": PAIR["chosen"], "b": PAIR["rejected"]}
    assert rows.expand(row) == PreferenceRows("dpo", byte_level()).expand(PAIR)


# The border between prompt and answer


@pytest.mark.parametrize(
    "files", [byte_level(), sentencepiece()], ids=["byte-level", "sentencepiece"]
)
@given(prompt=TEXT, chosen=TEXT, rejected=TEXT)
@example("Answer: ", "yes", "no")
@example("ab", "a", "ba")
@settings(max_examples=15)
def test_prompt_and_answer_are_the_whole_text(
    files: TokenizerFiles, prompt: str, chosen: str, rejected: str
) -> None:
    rows = PreferenceRows("dpo", files, trainer="trl", special_tokens_in_text="encode")
    given = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    reference = Reference(files)
    expected = reference.parts(prompt, chosen, rejected)
    try:
        found = rows.expand(given)
    except BadRecordError:
        assert chosen == rejected or not (
            prompt.strip() and chosen.strip() and rejected.strip()
        )
        return
    # Left out: nothing is left of a part, or the answers are the same ids.
    if not found:
        assert [] in expected or expected[1] == expected[2]
        return
    assert list(found[0].values()) == expected
    bare = reference.ids(prompt + chosen)
    whole = found[0]["prompt_ids"] + found[0]["chosen_ids"]
    assert reference.closed(reference.opened(bare)) == whole or reference.eos in bare


def test_a_token_across_the_border_belongs_to_the_answer() -> None:
    files = byte_level()
    reference = Reference(files)
    (row,) = PreferenceRows("dpo", files, trainer="trl").expand(
        {"prompt": "def f(self, ", "chosen": "value): pass", "rejected": "x): pass"}
    )
    assert reference.ids("def f(self, ")[-1] != row["prompt_ids"][-1]
    assert reference.tokenizer.decode(row["prompt_ids"]) == "def f(self,"
    assert row["prompt_ids"] + row["chosen_ids"][:-1] == reference.ids(
        "def f(self, value): pass"
    )


# What answers share


@pytest.mark.parametrize(
    ("left", "right", "prompt"),
    [
        ("Q: a?\n\nA: yes", "Q: a?\n\nA: no", "Q: a?\n\nA:"),
        ("Q: a?\n\nA: yes", "Q: a?\n\nA: you", "Q: a?\n\nA:"),
        ("It is 12 now", "It is 13 now", "It is"),
        ("one two", "one two three", "one"),
        ("one two ", "one two", "one"),
        ("cafe\u0301 x", "cafe y", ""),
        ("\u7b54\u6848\u662f\u5bf9", "\u7b54\u6848\u662f\u9519", "\u7b54\u6848\u662f"),
        ("abc", "abd", ""),
    ],
)
def test_texts_share_whole_words(left: str, right: str, prompt: str) -> None:
    assert shared_prompt(left, right) == prompt == shared_prompt(right, left)


def shared_prompt(left: str, right: str) -> str:
    """Return the prompt that is taken from two answers without one, "" where they do
    not begin alike.
    """
    try:
        (row,) = PROMPTS.expand({"chosen": left, "rejected": right})
    except BadRecordError as error:
        assert error.details["reason"] in (
            "no_prompt",
            "empty_prompt",
            "empty_answer",
            "equal_answers",
        )
        return ""
    return row["prompt"]


@given(
    st.text("ab c.\n", max_size=20),
    st.text("ab c.\n", max_size=9),
    st.text("ab c.\n", max_size=9),
)
def test_what_texts_share_is_in_both(head: str, left: str, right: str) -> None:
    left, right = head + left, head + right
    prompt = shared_prompt(left, right)
    assert left.startswith(prompt) and right.startswith(prompt)
    assert prompt == shared_prompt(right, left)
    if left.strip() and right.strip():
        assert left[len(prompt) :].strip() and right[len(prompt) :].strip()


@promise(277)
def test_a_shared_prompt_is_as_if_it_was_given() -> None:
    rows = PreferenceRows("dpo", sentencepiece())
    shared = {name: PAIR["prompt"] + PAIR[name] for name in ("chosen", "rejected")}
    assert (
        rows.expand(shared)
        == rows.expand(PAIR)
        == rows.expand({**shared, "prompt": None})
    )


# Conversations


@pytest.mark.parametrize(
    "files", [support.chatml(), support.llama()], ids=["chatml", "llama"]
)
def test_conversations_are_rendered_by_the_template(files: TokenizerFiles) -> None:
    reference = Reference(files)
    prompt, answers = turns("hello", "hi", "how are you?"), ("very well", "badly")
    texts = [reference.chat(prompt, open_turn=True)]
    texts += [
        reference.chat([*prompt, {"role": "assistant", "content": each}])
        for each in answers
    ]
    expected = reference.parts(
        texts[0], *(text.removeprefix(texts[0]) for text in texts[1:])
    )
    said = [[{"role": "assistant", "content": each}] for each in answers]
    rows = PreferenceRows("dpo", files, trainer="trl")
    forms: list[Row] = [
        {"prompt": prompt, "chosen": said[0], "rejected": said[1]},
        {"chosen": prompt + said[0], "rejected": prompt + said[1]},
        {"prompt": prompt, "chosen": prompt + said[0], "rejected": prompt + said[1]},
        {"prompt": prompt, "chosen": answers[0], "rejected": answers[1]},
    ]
    for form in forms:
        assert [list(row.values()) for row in rows.expand(form)] == [expected]
    assert expected[1].count(reference.eos) == 1
    whole = [reference.whole(text) for text in texts[1:]]
    reward = PreferenceRows("reward", files, trainer="trl").expand(forms[1])
    assert [list(row.values()) for row in reward] == [whole]
    opened = reference.opened(reference.ids(texts[0]))
    grpo = PreferenceRows("grpo", files, trainer="trl").expand({"prompt": prompt})
    assert grpo == [{"prompt": texts[0], "prompt_input_ids": opened}]


def test_a_text_prompt_that_a_conversation_repeats_is_taken_off() -> None:
    rows = PreferenceRows("dpo", support.chatml())
    said = {
        name: turns("hello", word)
        for name, word in (("chosen", "hi"), ("rejected", "no"))
    }
    assert rows.expand({"prompt": "hello", **said}) == rows.expand(said)
    sharegpt = {
        name: [{"from": "human", "value": "hello"}, {"from": "gpt", "value": word}]
        for name, word in (("chosen", "hi"), ("rejected", "no"))
    }
    assert rows.expand(sharegpt) == rows.expand(said)


def test_a_judged_conversation_ends_with_its_answer() -> None:
    rows = PreferenceRows("kto", support.chatml())
    whole = {"completion": turns("hello", "hi"), "label": True}
    apart = {
        "prompt": turns("hello"),
        "completion": turns("hello", "hi")[1:],
        "label": True,
    }
    assert rows.expand(whole) == rows.expand(apart)


def test_a_conversation_needs_a_template_and_control_tokens() -> None:
    said = {"chosen": turns("a", "b"), "rejected": turns("a", "c")}
    with pytest.raises(ConfigError, match="has no chat template"):
        PreferenceRows("dpo", byte_level()).expand(said)
    with pytest.raises(ConfigError, match="'literal' is not possible"):
        PreferenceRows(
            "dpo", support.chatml(), special_tokens_in_text="literal"
        ).expand(said)


# What cannot be used


@pytest.mark.parametrize(
    ("method", "row", "reason"),
    [
        ("dpo", {"prompt": "a", "chosen": "b"}, "missing_field"),
        ("dpo", {"prompt": "a", "chosen": "b", "rejected": None}, "missing_field"),
        ("dpo", {**PAIR, "rejected": PAIR["chosen"]}, "equal_answers"),
        ("dpo", {**PAIR, "rejected": " \n"}, "empty_answer"),
        ("dpo", {**PAIR, "prompt": ""}, "empty_prompt"),
        ("dpo", {"chosen": "yes", "rejected": "no"}, "no_prompt"),
        ("dpo", {**PAIR, "chosen": turns("a", "b")}, "unlike_answers"),
        ("dpo", {**PAIR, "chosen": 5}, "not_text_or_messages"),
        ("dpo", {**PAIR, "chosen": [{"content": "x"}]}, "no_role"),
        ("dpo", {**PAIR, "chosen": "\ud800"}, "invalid_utf8"),
        ("dpo", {**PAIR, "prompt": "a <|im_end|> b"}, "special_token_in_text"),
        (
            "dpo",
            {**PAIR, "prompt": "a <|im_", "chosen": "end|> b"},
            "special_token_in_text",
        ),
        (
            "dpo",
            {"chosen": turns(END, "b"), "rejected": turns(END, "c")},
            "special_token_in_text",
        ),
        ("kto", {"prompt": "a", "completion": "b"}, "bad_label"),
        ("kto", {"prompt": "a", "completion": "b", "label": "yes"}, "bad_label"),
        ("kto", {"completion": "b", "label": True}, "no_prompt"),
        ("kto", {"prompt": "a"}, "missing_field"),
        ("grpo", {"answer": "a"}, "missing_field"),
        ("grpo", {"prompt": turns("a", "b")}, "prompt_is_answered"),
        ("grpo", {"prompt": [], "tools": "{"}, "bad_tools"),
        ("reward", {"chosen": "a", "rejected": "a"}, "equal_answers"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(method: Any, row: Row, reason: str) -> None:
    with pytest.raises(BadRecordError) as caught:
        PreferenceRows(method, support.chatml()).expand(row)
    assert caught.value.details["reason"] == reason


def test_special_tokens_may_be_text_or_tokens() -> None:
    files = support.chatml()
    row = {**PAIR, "prompt": "a<|im_end|>b"}
    (literal,) = PreferenceRows("dpo", files, special_tokens_in_text="literal").expand(
        row
    )
    (encoded,) = PreferenceRows("dpo", files, special_tokens_in_text="encode").expand(
        row
    )
    assert files.eos_id not in literal["prompt_input_ids"]
    assert files.eos_id in encoded["prompt_input_ids"]


# Lengths


def test_answers_are_cut_at_their_ends_and_prompts_never() -> None:
    whole = PreferenceRows("dpo", byte_level(), trainer="trl").expand(PAIR)[0]
    size = len(whole["prompt_ids"])
    assert whole["chosen_ids"][1] != whole["rejected_ids"][1]
    for room in range(2, len(whole["chosen_ids"]) + 1):
        found = PreferenceRows(
            "dpo", byte_level(), trainer="trl", max_length=size + room
        ).expand(PAIR)
        cut = {
            name: whole[name] if name == "prompt_ids" else whole[name][:room]
            for name in whole
        }
        assert found == [cut]
    assert PreferenceRows("dpo", byte_level(), max_length=size).expand(PAIR) == []


@pytest.mark.parametrize("long_documents", ["truncate", "drop"])
def test_an_answer_without_room_for_a_single_id_is_left_out(
    long_documents: Any,
) -> None:
    judged = {"prompt": "Say yes.", "completion": " Yes.", "label": True}
    (whole,) = PreferenceRows("kto", byte_level(), trainer="trl").expand(judged)
    size = len(whole["prompt_ids"])
    rows = PreferenceRows(
        "kto", byte_level(), max_length=size, long_documents=long_documents
    )
    assert rows.expand(judged) == []


def test_answers_that_only_differ_where_they_are_cut_are_left_out() -> None:
    row = {"prompt": "Count:", "chosen": " one two three", "rejected": " one two four"}
    size = len(
        PreferenceRows("dpo", byte_level(), trainer="trl").expand(row)[0]["prompt_ids"]
    )
    assert PreferenceRows("dpo", byte_level(), max_length=size + 2).expand(row) == []


def test_what_is_too_long_may_be_left_out() -> None:
    whole = PreferenceRows("dpo", byte_level(), trainer="trl").expand(PAIR)[0]
    size = len(whole["prompt_ids"]) + len(whole["chosen_ids"])
    for most, count in ((size, 1), (size - 1, 0)):
        rows = PreferenceRows(
            "dpo", byte_level(), max_length=most, long_documents="drop"
        )
        assert len(rows.expand(PAIR)) == count


def test_a_wrong_option_is_named() -> None:
    wrong: Any = "ppo"
    with pytest.raises(ConfigError, match="method is 'ppo', expected one of 'dpo'"):
        PreferenceRows(wrong, byte_level())
