"""The prompt engine: labels by the places of tokens, under truncation, BOS and
padding, and errors as results.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.seeds import promise
from tests.text.chat_samples import MARKED_CHATML, speaking
from tests.tokenizer_reference import ReferenceTokenizer, needs_offsets
from tests.tokenizers.tokenizer_samples import (
    byte_level,
    changed,
    from_spec,
    sentencepiece,
    template,
)
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.tokenizers import TokenizerFiles

QA = {"template": "Q: {q}\nA: {a} .", "input_columns": ["q"], "label_column": "a"}
words = st.text(st.sampled_from("aeinrst .,\n0é日😀<>/s"), max_size=24)
labels = words.filter(bool)
# No characters of several tokens, which no cut parts.
simple = st.text(st.sampled_from("aeinrst .,\n0<>/s"), max_size=24)


def with_eos(files: TokenizerFiles) -> TokenizerFiles:
    """A tokenizer whose post-processor puts EOS after a text."""
    return changed(
        files,
        lambda spec: spec.update(post_processor=template([("<s>", 1)], [("</s>", 2)])),
    )


TOKENIZERS = {
    "bos": sentencepiece,
    "none": byte_level,
    "both": functools.cache(lambda: with_eos(sentencepiece())),
}


def engine(files: TokenizerFiles, **options: Any) -> tl.PromptEngine:
    own = {
        name: options.pop(name)
        for name in ("add_bos", "add_eos", "mask_input")
        if name in options
    }
    return tl.PromptEngine({**QA, **own}, files, **options)


@functools.cache
def backend(name: str) -> ReferenceTokenizer:
    return ReferenceTokenizer(TOKENIZERS[name]().json_bytes, literal=True)


def by_hand(
    name: str, row: dict[str, str], *, bos: bool, eos: bool
) -> tuple[list[int], list[int]]:
    """Return ids and labels of a whole row, by `tokenizers` alone."""
    files = TOKENIZERS[name]()
    before, after = f"Q: {row['q']}\nA: ", " ."
    text = before + row["a"] + after
    encoding = backend(name).encode(text, add_special_tokens=False)
    start, stop = len(before), len(before) + len(row["a"])
    holds = [
        first < stop and last > start and first < last
        for first, last in encoding.offsets
    ]
    head = [1] if bos and name != "none" else []
    tail = [files.eos_id] if eos else []
    learned = [
        token if held else -100 for token, held in zip(encoding.ids, holds, strict=True)
    ]
    return [*head, *encoding.ids, *tail], [*([-100] * len(head)), *learned, *tail]


@needs_offsets
@promise(117, 118, 293)
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    ("bos", "eos"), [(True, True), (False, True), (True, False), (False, False)]
)
@settings(max_examples=15)
@given(q=words, a=labels)
def test_labels_are_minus_100_on_just_the_tokens_that_hold_no_byte_of_the_label(
    name, bos, eos, q, a
):
    made = engine(TOKENIZERS[name](), add_bos=bos, add_eos=eos, padding=False)
    found = made.process({"q": q, "a": a}).unwrap()
    ids, expected = by_hand(name, {"q": q, "a": a}, bos=bos, eos=eos)
    assert found["input_ids"].tolist() == ids
    assert found["labels"].tolist() == expected
    assert found["attention_mask"].tolist() == [1] * len(ids)


def cut_by_hand(
    ids: list[int], labels: list[int], size: int, *, head: bool, right: bool
) -> tuple[list[int], list[int]]:
    """Cut the ids between BOS and EOS; an EOS after what was cut off on the right is
    not learned.
    """
    inside = slice(head, len(ids) - 1)
    room = max(0, size - head - 1)
    own, learned = ids[inside], labels[inside]
    own, learned = (
        (own[:room], learned[:room])
        if right
        else (own[len(own) - room :], learned[len(learned) - room :])
    )
    end = labels[-1] if not right and any(label != -100 for label in learned) else -100
    return ids[:head] + own + ids[-1:], labels[:head] + learned + [end]


@needs_offsets
@promise(120)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=15)
@given(q=simple, a=simple.filter(bool), bos=st.booleans(), size=st.integers(2, 40))
def test_truncation_takes_ids_and_labels_alike_and_never_bos(
    name, side, q, a, bos, size
):
    ids, expected = by_hand(name, {"q": q, "a": a}, bos=bos, eos=True)
    if len(ids) > size:
        ids, expected = cut_by_hand(
            ids, expected, size, head=bos and name != "none", right=side == "right"
        )
    made = engine(
        TOKENIZERS[name](),
        add_bos=bos,
        max_length=size,
        truncation_side=side,
        padding=False,
    )
    result = made.process({"q": q, "a": a})
    if set(expected) == {-100}:
        assert "no token that counts toward the loss is left" in str(
            result.unwrap_err()
        )
        return
    assert result.unwrap()["input_ids"].tolist() == ids
    assert result.unwrap()["labels"].tolist() == expected


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=15)
@given(q=words, other=words, a=labels)
def test_changing_the_prompt_never_changes_which_label_tokens_are_learned(
    name, q, other, a
):
    made = engine(TOKENIZERS[name](), padding=False)
    first, second = (
        made.process({"q": value, "a": a}).unwrap()["labels"] for value in (q, other)
    )
    assert first[first != -100].tolist() == second[second != -100].tolist()


@promise(118, 120)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_fills_up_to_max_length_unlearned_and_unseen(side: str) -> None:
    made = engine(sentencepiece(), max_length=64, padding_side=side)
    whole = (
        engine(sentencepiece(), padding=False).process({"q": "x", "a": "yes"}).unwrap()
    )
    found = made.process({"q": "x", "a": "yes"}).unwrap()
    size = len(whole["input_ids"])
    own = slice(0, size) if side == "right" else slice(64 - size, 64)
    for name, filler in (("input_ids", 2), ("attention_mask", 0), ("labels", -100)):
        assert found[name].shape == (64,)
        assert found[name].dtype == np.int32
        assert found[name][own].tolist() == whole[name].tolist()
        assert np.delete(found[name], np.arange(64)[own]).tolist() == [filler] * (
            64 - size
        )


def test_a_batch_is_its_rows() -> None:
    rows = [{"q": "x" * index, "a": "yes " * (9 - index)} for index in range(8)]
    single = [
        engine(sentencepiece(), padding=False).process(row).unwrap() for row in rows
    ]
    longest = max(len(row["input_ids"]) for row in single)
    for padding, width in (("max_length", 64), ("longest", longest), (True, longest)):
        batch = (
            engine(sentencepiece(), padding=padding, max_length=64)
            .process_batch(rows)
            .unwrap()
        )
        assert batch["input_ids"].shape == (8, width)
        for index, row in enumerate(single):
            size = len(row["input_ids"])
            assert batch["labels"][index, :size].tolist() == row["labels"].tolist()
            assert batch["attention_mask"][index].tolist() == [1] * size + [0] * (
                width - size
            )
    ragged = engine(sentencepiece(), padding="do_not_pad").process_batch(rows).unwrap()
    assert [ids.tolist() for ids in ragged["input_ids"]] == [
        row["input_ids"].tolist() for row in single
    ]
    empty = engine(sentencepiece()).process_batch([]).unwrap()
    assert empty == {"input_ids": [], "attention_mask": [], "labels": []}


@promise(293)
def test_without_a_mask_all_but_bos_and_padding_is_learned() -> None:
    found = (
        engine(sentencepiece(), mask_input=False, max_length=64)
        .process({"q": "x", "a": "yes"})
        .unwrap()
    )
    seen = found["attention_mask"] == 1
    # The blank that this tokenizer puts before a text holds no byte of it.
    assert found["labels"][seen][2:].tolist() == found["input_ids"][seen][2:].tolist()
    assert found["labels"][0] == -100
    assert set(found["labels"][~seen].tolist()) == {-100}


def test_what_the_template_spells_is_not_put_there_again() -> None:
    spelled = tl.PromptEngine(
        {"template": "<s>[Q] {q} [A] {a}</s>", "label_column": "a"},
        sentencepiece(),
        padding=False,
    )
    found = spelled.process({"q": "x", "a": "yes"}).unwrap()
    ids = found["input_ids"].tolist()
    assert (ids.count(1), ids.count(2), ids[0], ids[-1]) == (1, 1, 1, 2)
    assert found["labels"][-1] == 2
    result = spelled.process({"q": "x</s>", "a": "yes"})
    error = result.unwrap_err()
    assert (error.field_path, error.expected) == ("q", "text without special tokens")


def test_a_special_token_in_plain_text_is_text_or_what_is_asked_for() -> None:
    row = {"q": "x", "a": "a</s>b"}
    found = engine(sentencepiece(), padding=False).process(row).unwrap()
    assert found["input_ids"].tolist().count(2) == 1
    found = (
        engine(sentencepiece(), padding=False, special_tokens_in_text="encode")
        .process(row)
        .unwrap()
    )
    assert found["input_ids"].tolist().count(2) == 2
    assert engine(sentencepiece(), special_tokens_in_text="fail").process(row).is_err()


EVERY = "a value in every column of the template"


@pytest.mark.parametrize(
    ("row", "field", "expected", "got", "words"),
    [
        ({"Q": "x", "a": "y"}, "q", EVERY, "columns 'Q', 'a'", "did you mean 'Q'?"),
        ({"q": "x", "a": None}, "a", EVERY, "None", "is missing or null"),
        ({"q": [1], "a": "y"}, "q", "text, a number or a boolean", "[1]", "holds list"),
        ({"q": "x", "a": ""}, "a", "an answer that is not empty", "''", "is empty"),
        ("x", "", "a mapping of columns", "str", "the row is a str"),
    ],
)
def test_an_error_says_where_what_was_expected_and_what_was_found(
    row, field, expected, got, words
) -> None:
    error = engine(sentencepiece()).process(row).unwrap_err()
    assert isinstance(error, BadRecordError)
    assert (error.field_path, error.expected, error.got) == (field, expected, got)
    assert words in str(error)
    batch = (
        engine(sentencepiece()).process_batch([{"q": "x", "a": "y"}, row]).unwrap_err()
    )
    assert batch.details["row"] == 1


@pytest.mark.parametrize("column", ["it's", "a column 'b'", "field 'c'"])
@pytest.mark.parametrize("row", [{}, {"value": None}, {"value": [1]}])
def test_the_column_of_an_error_does_not_depend_on_how_the_message_spells_it(
    column: str, row: Any
) -> None:
    section = {
        "format_type": "completion",
        "input_columns": [column],
        "label_column": "a",
    }
    made = tl.PromptEngine(section, sentencepiece())
    values = {column: row["value"]} if row else {}
    assert made.process({**values, "a": "y"}).unwrap_err().field_path == column


def test_too_long_is_an_error_where_truncation_is_off_or_nothing_to_learn_is_left() -> (
    None
):
    row = {"q": "x y " * 30, "a": "yes"}
    error = (
        engine(sentencepiece(), max_length=16, truncation=False)
        .process(row)
        .unwrap_err()
    )
    assert (error.field_path, error.expected) == ("max_length", "at most 16 tokens")
    error = engine(sentencepiece(), max_length=16).process(row).unwrap_err()
    assert error.field_path == "a"
    assert "no token that counts toward the loss is left" in str(error)


def test_a_wrong_configuration_is_an_error_or_one_as_a_result() -> None:
    with pytest.raises(ConfigError, match="did you mean 'question'"):
        tl.PromptEngine(
            {
                "template": "{qestion} {a}",
                "input_columns": ["question"],
                "label_column": "a",
            },
            sentencepiece(),
        )
    error = tl.PromptEngine.from_config(
        {"template": "{q}", "formt_type": "custom"}, sentencepiece()
    ).unwrap_err()
    assert error.field_path == "prompt.formt_type"
    assert "did you mean 'format_type'?" in str(error)
    for options in (
        {"padding": "longst"},
        {"padding_side": "up"},
        {"truncation_side": ""},
        {"max_length": 0},
    ):
        assert (
            tl.PromptEngine.from_config(QA, sentencepiece(), **options)
            .unwrap_err()
            .field_path
            in options
        )
    nameless = from_spec(byte_level().spec)
    error = tl.PromptEngine.from_config(QA, nameless).unwrap_err()
    assert (error.field_path, error.got) == ("prompt.add_eos", None)
    assert tl.PromptEngine.from_config({**QA, "add_eos": False}, nameless).is_ok()


@promise(109)
def test_results_are_values_or_errors_and_say_which() -> None:
    good, bad = (
        tl.Ok(3),
        tl.Err(ConfigError("wrong", field_path="a.b", expected="1", got="2")),
    )
    assert (good.is_ok(), good.is_err(), bad.is_ok(), bad.is_err()) == (
        True,
        False,
        False,
        True,
    )
    assert (good.unwrap(), good.unwrap_or(4), bad.unwrap_or(4)) == (3, 3, 4)
    assert good.map(str) == tl.Ok("3")
    assert bad.map(str) is bad
    assert isinstance(good, tl.Result)
    assert isinstance(bad, tl.Result)
    error = bad.unwrap_err()
    assert (error.field_path, error.expected, error.got) == ("a.b", "1", "2")
    with pytest.raises(ConfigError, match="wrong"):
        bad.unwrap()
    with pytest.raises(tl.TokenlakeError, match=r"unwrap_err was called on Ok\(3\)"):
        good.unwrap_err()
    with pytest.raises(tl.TokenlakeError, match="plain words"):
        tl.Err("plain words").unwrap()


def test_a_budget_that_its_strategy_does_not_take_is_told_before_the_first_row() -> (
    None
):
    with pytest.raises(ConfigError, match="'equal' takes no priority"):
        engine(byte_level(), budget="equal", priority=["question"])
    with pytest.raises(ConfigError, match="priority: no column 'none'"):
        engine(byte_level(), budget="priority", priority=["none"])


@given(
    st.lists(
        st.sampled_from(["one", "two", "many words", "x", "é 你"]),
        min_size=1,
        max_size=60,
    ),
    st.lists(st.sampled_from(["a", "b", "long context"]), max_size=60),
    st.sampled_from(["equal", "proportional", "priority", "adaptive"]),
    st.integers(80, 140),
)
@example(["many words"] * 30, [], "priority", 80)
@settings(max_examples=15)
def test_with_a_budget_the_input_is_shortened_and_the_answer_stays(
    question: list[str], context: list[str], budget: Any, size: int
) -> None:
    config = {
        "template": "Context: {context}\nQ: {question}\nA: {answer}",
        "input_columns": ["context", "question"],
        "label_column": "answer",
    }
    row = {
        "context": " ".join(context),
        "question": " ".join(question),
        "answer": "the answer is four",
    }
    files = byte_level()
    options: dict[str, Any] = {
        "max_length": size,
        "padding": "do_not_pad",
        "budget": budget,
    }
    if budget == "priority":
        options["priority"] = ["question", "context"]
    made = tl.PromptEngine(config, files, **options).process(row).unwrap()
    whole = (
        tl.PromptEngine(config, files, max_length=10_000, padding="do_not_pad")
        .process(row)
        .unwrap()
    )
    assert len(made["input_ids"]) <= size
    learned = made["labels"][made["labels"] != -100]
    assert learned.tolist() == whole["labels"][whole["labels"] != -100].tolist()
    if len(whole["input_ids"]) <= size:
        assert made["input_ids"].tolist() == whole["input_ids"].tolist()


@promise(301)
def test_an_example_has_its_arrays_by_name_and_the_length_of_its_input() -> None:
    found = (
        engine(sentencepiece(), padding=False).process({"q": "x", "a": "yes"}).unwrap()
    )
    assert found.input_ids is found["input_ids"] and found.labels is found["labels"]
    assert found.attention_mask.tolist() == [1] * len(found.input_ids)
    assert 0 < found.input_length < len(found.input_ids)
    assert (found.labels[: found.input_length] == -100).all()
    assert found.labels[found.input_length] == found.input_ids[found.input_length]
    padded = (
        engine(sentencepiece(), padding_side="left", max_length=64)
        .process({"q": "x", "a": "yes"})
        .unwrap()
    )
    assert padded.input_length == found.input_length


@promise(302)
def test_a_conversation_is_no_prompt_of_columns() -> None:
    section = {"format_type": "chat", "input_columns": ["messages"]}
    for more, words in (
        ({"system_message": "x"}, "system_message: set"),
        ({"add_eos": False}, "add_eos: false"),
    ):
        error = tl.PromptEngine.from_config(
            {**section, **more}, sentencepiece()
        ).unwrap_err()
        assert words in str(error)
    error = tl.PromptEngine.from_config(
        section, speaking(MARKED_CHATML), budget="equal"
    ).unwrap_err()
    assert "budget: shortens the texts of columns" in str(error)
    made = tl.PromptEngine(section, speaking(MARKED_CHATML), max_length=64)
    error = made.process({"messages": "Hello"}).unwrap_err()
    assert (error.field_path, error.got) == ("messages", "'Hello'")
    assert made.process({"messages": [{"role": "user", "content": "Hi"}]}).is_err()
