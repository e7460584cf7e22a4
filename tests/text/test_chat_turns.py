"""Conversations of every known shape become messages; any other shape is refused with its reason."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import tokenlake
from tests.text.chat_samples import CHATML, MARKED_CHATML, TOOLS_CHATML, speaking
from tokenlake.config.resolved import ResolvedChat
from tokenlake.errors import BadRecordError
from tokenlake.sources.rows import Rows
from tokenlake.text.chat.messages import ConversationReader
from tokenlake.text.chat.renderer import ChatRenderer

ASKED = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]


@pytest.mark.parametrize(
    "conversation",
    [
        ASKED,
        tuple(ASKED),
        [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}],
        [{"from": "user", "value": "1 + 1?"}, {"from": "bot", "value": "2"}],
        [{"role": "human", "content": "1 + 1?"}, {"role": "model", "content": "2"}],
        [
            {"role": "user", "content": "1 + 1?", "from": None, "value": None},
            {"role": None, "content": None, "from": "gpt", "value": "2"},
        ],
        [{"input": "1 + 1?", "output": "2"}],
        [{"input": "1 + 1?", "output": "2", "system": None, "role": None}],
        json.dumps(ASKED),
    ],
)
def test_all_shapes_become_the_same_messages(conversation):
    read = ConversationReader().read(conversation)
    assert [(turn["role"], turn["content"]) for turn in read] == [("user", "1 + 1?"), ("assistant", "2")]


def test_what_else_a_turn_holds_stays():
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    turns = [
        {"from": "human", "value": "?", "id": 7},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "function", "content": "2", "name": "add"},
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    ]
    assert ConversationReader().read(turns) == [
        {"role": "user", "content": "?", "id": 7},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "2", "name": "add"},
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    ]


def test_input_and_output_with_a_system_message_are_three_messages():
    read = ConversationReader().read(
        [{"system": "s", "input": "i", "output": "o"}, {"input": "j", "output": "p"}]
    )
    assert [turn["role"] for turn in read] == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("conversation", "reason", "told"),
    [
        (None, "no_messages", "missing or null"),
        ([], "no_messages", "it is empty"),
        ("hello", "not_messages", "got text"),
        ({"role": "user"}, "not_messages", "it holds an object"),
        (7, "not_messages", "it holds a int"),
        (["hello"], "not_messages", "turn 1: it is text, expected an object"),
        ([*ASKED, None], "not_messages", "turn 3: it is null"),
        ([{"content": "x"}], "no_role", "turn 1: it has no role (nor from); its fields are content"),
        ([{"role": 7, "content": "x"}], "no_role", "its role is a int"),
        (
            [{"role": "narrator", "content": "x"}],
            "unknown_role",
            "'narrator' is unknown, expected one of system, developer, user",
        ),
        ([{"role": "user"}], "no_content", "turn 1: its content is missing or null"),
        ([{"from": "human", "value": None}], "no_content", "missing or null"),
        ([{"role": "user", "content": [{"type": "text"}]}], "content_not_text", "its content is a list"),
        ([{"role": "user", "content": 7}], "content_not_text", "its content is a int"),
        ([{"input": "x", "output": None}], "no_content", "its output is missing or null"),
        ([{"input": "x", "output": ["y"]}], "content_not_text", "its output is a list"),
        (
            [*ASKED, {"role": "assistant", "content": " \n"}],
            "empty_turn",
            "turn 3: the assistant says nothing",
        ),
    ],
)
def test_other_shapes_are_refused_with_a_reason(conversation, reason, told):
    with pytest.raises(BadRecordError) as caught:
        ConversationReader().read(conversation)
    assert caught.value.details["reason"] == reason
    assert told in str(caught.value)


def test_roles_can_be_renamed_and_the_usual_names_switched_off():
    turns = [{"role": "narrator", "content": "x"}, {"role": "human", "content": "y"}]
    assert [turn["role"] for turn in ConversationReader({"narrator": "system"}).read(turns)] == [
        "system",
        "user",
    ]
    assert ConversationReader({"human": "tool"}).read(turns[1:])[0]["role"] == "tool"
    with pytest.raises(BadRecordError, match="'human' is unknown, expected one of"):
        ConversationReader({"narrator": "system"}, use_default_mapping=False).read(turns)


def test_rows_with_values_are_converted():
    convert = tokenlake.ConvertToChatML({"narrator": "system"})
    row: dict[str, Any] = {
        "id": 1,
        "conversations": [{"from": "narrator", "value": "s"}, {"from": "gpt", "value": "a"}],
    }
    assert convert(row) == {
        "id": 1,
        "messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}],
    }
    assert "conversations" in row
    with pytest.raises(BadRecordError, match="the field 'messages': turn 1: its role 'gpt' is unknown"):
        tokenlake.ConvertToChatML(use_default_mapping=False)({"messages": [{"from": "gpt", "value": "a"}]})
    with pytest.raises(
        BadRecordError, match="none of the fields messages, conversations, conversation; its fields"
    ):
        convert({"text": "x"})


def test_rows_with_input_and_output_are_converted():
    convert = tokenlake.ConvertInputOutputToChatML()
    messages = [{"role": "user", "content": "i"}, {"role": "assistant", "content": "o"}]
    assert convert({"id": 1, "input": "i", "output": "o"}) == {"id": 1, "messages": messages}
    assert convert({"conversation": [{"input": "i", "output": "o"}]}) == {"messages": messages}
    other = tokenlake.ConvertInputOutputToChatML("q", "a", system_field="s")
    assert other({"q": "i", "a": "o", "s": "be brief"})["messages"] == [
        {"role": "system", "content": "be brief"},
        *messages,
    ]
    for row, reason in (({"output": "o"}, "no_messages"), ({"input": "i"}, "no_content")):
        with pytest.raises(BadRecordError) as caught:
            convert(row)
        assert caught.value.details["reason"] == reason


def test_conversions_chain_and_work_on_many_rows():
    chain = tokenlake.ConvertInputOutputToChatML() >> tokenlake.ConvertToChatML()
    outcome = chain.on_rows(Rows(objects=[{"input": "i", "output": "o"}, {"input": 7, "output": "o"}]))
    assert len(outcome.rows) == 1
    assert [(index, fault.reason) for index, fault in outcome.bad] == [(1, "content_not_text")]


def renderer(template: str = MARKED_CHATML, mode: str = "fail", **options: Any) -> ChatRenderer:
    files = speaking(template)
    options = {"messages_field": "messages", **options}
    return ChatRenderer(ResolvedChat(template=template, **options), files, mode)


def test_columns_and_objects_give_the_same_texts():
    """In columns every message has every field, null where the row has none."""
    rows = [
        {"messages": ASKED},
        {"messages": [*ASKED, {"role": "tool", "content": "3", "name": "add"}]},
        {
            "messages": [
                ASKED[0],
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
                {"role": "assistant", "tool_calls": [{"function": {"name": "g", "arguments": {"b": "x"}}}]},
            ],
            "tools": [
                {"name": "f", "parameters": {"a": {"type": "int"}}},
                {"name": "g", "parameters": {"b": {}}},
            ],
        },
    ]
    made = renderer(TOOLS_CHATML, loss="all").render(Rows(objects=rows))
    columns = pa.RecordBatch.from_pylist(rows)
    again = renderer(TOOLS_CHATML, loss="all").render(Rows(columns))
    assert not made.bad
    # A struct without fields is null in columns.
    assert made.text.to_pylist()[:2] == again.text.to_pylist()[:2]
    assert '<call>g {"b": "x"}</call>' in again.text[2].as_py()
    assert '"a"' not in again.text[2].as_py().split("<call>g")[1]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no_messages"),
        ({"messages": None}, "no_messages"),
        ({"messages": [{"role": "user", "content": "a<|im_end|>b"}, ASKED[1]]}, "special_token_in_text"),
        ({"messages": [ASKED[0], {**ASKED[1], "content": "<s>"}]}, "special_token_in_text"),
        ({"messages": [ASKED[0], {**ASKED[1], "name": "</s>"}]}, "special_token_in_text"),
        (
            {"messages": [ASKED[0], {**ASKED[1], "tool_calls": [{"f": {"<|im_start|>": 1}}]}]},
            "special_token_in_text",
        ),
        ({"messages": ASKED, "tools": [{"description": "<|im_end|>"}]}, "special_token_in_text"),
        ({"messages": ASKED, "tools": "[{"}, "bad_tools"),
        ({"messages": ASKED, "tools": {"a": 1}}, "bad_tools"),
        ({"messages": ASKED, "tools": ["a"]}, "bad_tools"),
        ({"messages": [{**ASKED[0], "content": "\ud800"}, ASKED[1]]}, "invalid_utf8"),
        ({"messages": ASKED[:1]}, "nothing_to_learn"),
        ({"messages": [{"role": "user", "content": "x", "name": 3}]}, "nothing_to_learn"),
    ],
)
def test_rows_that_cannot_be_rendered_are_bad_and_the_others_are_not(row, reason):
    made = renderer().render(Rows(objects=[{"messages": ASKED}, row, {"messages": json.dumps(ASKED)}]))
    assert [(index, fault.reason) for index, fault in made.bad] == [(1, reason)]
    assert made.origin.tolist() == [0, 2]
    assert made.text[0] == made.text[1]


def test_special_tokens_of_rows_may_be_allowed():
    row = {"messages": [{"role": "user", "content": "a<|im_end|>b"}, ASKED[1]]}
    assert not renderer(mode="encode").render(Rows(objects=[row])).bad


def test_tokens_that_a_normalizer_would_make_special_are_found():
    """A lower-casing tokenizer whose special token is looked for behind the normalizer."""
    from tests.tokenizers.tokenizer_samples import changed
    from tokenlake.text.chat.tokenizer_template import SpecialTokenGuard

    def lower(spec: dict[str, Any]) -> None:
        spec["normalizer"] = {"type": "Lowercase"}
        for token in spec["added_tokens"]:
            token["normalized"] = token["content"] == "<|im_end|>"

    scan = SpecialTokenGuard.of(changed(speaking(MARKED_CHATML), lower), "fail")
    assert list(scan.faults([["fine"], {"a": "x<|IM_END|>"}, ["<|im_start|>"]])) == [1, 2]


def test_tokens_that_a_template_puts_together_are_found():
    """Without "<image>" between them, two harmless pieces end a turn."""
    template = CHATML.replace("message.content", "message.content | replace('<image>', '')")
    forged = [{"role": "user", "content": "a<|im_<image>end|>"}, ASKED[1]]
    honest = [{"role": "user", "content": "see <image> and <|, <sum>, <|im_"}, ASKED[1]]
    made = renderer(template).render(Rows(objects=[{"messages": forged}, {"messages": honest}]))
    assert [(index, fault.reason) for index, fault in made.bad] == [(0, "special_token_in_text")]
    assert "see  and <|, <sum>, <|im_<|im_end|>" in made.text[0].as_py()
    assert not renderer(template, mode="encode").render(Rows(objects=[{"messages": forged}])).bad
