"""Conversations of every known shape become messages and texts; any other shape is
refused with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import tokenlake
from tests.text.chat_samples import (
    CHATML,
    MARKED_CHATML,
    TOOLS_CHATML,
    conversation,
    speaking,
    write,
)
from tests.tokenizer_reference import import_transformers
from tokenlake.config import ResolvedChat
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import ChatRenderer, ChatTemplate


def read_turns(
    conversation: Any, *mapping: Any, **options: Any
) -> list[dict[str, Any]]:
    """Return the messages of a conversation, as a step reads them."""
    return tokenlake.ConvertToChatML(*mapping, **options)({"messages": conversation})[
        "messages"
    ]


ASKED = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
NARRATOR = {"role": "narrator", "content": "x"}


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
    read = read_turns(conversation)
    assert [(turn["role"], turn["content"]) for turn in read] == [
        ("user", "1 + 1?"),
        ("assistant", "2"),
    ]


def test_what_else_a_turn_holds_stays():
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    turns = [
        {"from": "human", "value": "?", "id": 7},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "function", "content": "2", "name": "add"},
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    ]
    assert read_turns(turns) == [
        {"role": "user", "content": "?", "id": 7},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "2", "name": "add"},
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
    ]


def test_input_and_output_with_a_system_message_are_three_messages():
    read = read_turns(
        [{"system": "s", "input": "i", "output": "o"}, {"input": "j", "output": "p"}]
    )
    assert [turn["role"] for turn in read] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("conversation", "reason", "told"),
    [
        (
            None,
            "no_messages",
            "the row has none of the fields messages, conversations, conversation",
        ),
        ([], "no_messages", "it is empty"),
        ("hello", "not_messages", "got text"),
        ({"role": "user"}, "not_messages", "it holds an object"),
        (7, "not_messages", "it holds a int"),
        (["hello"], "not_messages", "turn 1: it is text, expected an object"),
        ([*ASKED, None], "not_messages", "turn 3: it is null"),
        (
            [{"content": "x"}],
            "no_role",
            "turn 1: it has neither role nor from; its fields are content",
        ),
        ([{"role": 7, "content": "x"}], "no_role", "its role is a int"),
        (
            [NARRATOR],
            "unknown_role",
            "'narrator' is unknown, expected one of system, developer, user",
        ),
        ([{"role": "user"}], "no_content", "turn 1: its content is missing or null"),
        ([{"from": "human", "value": None}], "no_content", "missing or null"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "content_not_text",
            "part 1 of its content is of type 'text', with text that is null",
        ),
        ([{"role": "user", "content": 7}], "content_not_text", "its content is a int"),
        (
            [{"input": "x", "output": None}],
            "no_content",
            "its output is missing or null",
        ),
        ([{"input": "x", "output": ["y"]}], "content_not_text", "its output is a list"),
        (
            [*ASKED, {**ASKED[1], "content": " \n"}],
            "empty_turn",
            "turn 3: the assistant says nothing",
        ),
    ],
)
def test_other_shapes_are_refused_with_a_reason(conversation, reason, told):
    with pytest.raises(BadRecordError) as caught:
        read_turns(conversation)
    assert caught.value.details["reason"] == reason
    assert told in str(caught.value)


def test_roles_can_be_renamed_and_the_usual_names_switched_off():
    turns = [NARRATOR, {"role": "human", "content": "y"}]
    read = read_turns(turns, {"narrator": "system"})
    assert [turn["role"] for turn in read] == ["system", "user"]
    assert read_turns(turns[1:], {"human": "tool"})[0]["role"] == "tool"
    with pytest.raises(BadRecordError, match="'human' is unknown, expected one of"):
        read_turns(turns, {"narrator": "system"}, use_default_mapping=False)


def test_rows_with_values_are_converted():
    convert = tokenlake.ConvertToChatML({"narrator": "system"})
    turns = [{"from": "narrator", "value": "s"}, {"from": "gpt", "value": "a"}]
    row: dict[str, Any] = {"id": 1, "conversations": turns}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "a"},
    ]
    assert convert(row) == {"id": 1, "messages": messages}
    assert "conversations" in row
    with pytest.raises(
        BadRecordError, match="the field 'messages': turn 1: its role 'gpt' is unknown"
    ):
        tokenlake.ConvertToChatML(use_default_mapping=False)(
            {"messages": [{"from": "gpt", "value": "a"}]}
        )
    with pytest.raises(
        BadRecordError,
        match="none of the fields messages, conversations, conversation; its fields",
    ):
        convert({"text": "x"})


def test_rows_with_input_and_output_are_converted():
    convert = tokenlake.ConvertInputOutputToChatML()
    messages = [{"role": "user", "content": "i"}, {"role": "assistant", "content": "o"}]
    assert convert({"id": 1, "input": "i", "output": "o"}) == {
        "id": 1,
        "messages": messages,
    }
    assert convert({"conversation": [{"input": "i", "output": "o"}]}) == {
        "messages": messages
    }
    other = tokenlake.ConvertInputOutputToChatML("q", "a", system_field="s")
    assert other({"q": "i", "a": "o", "s": "be brief"})["messages"] == [
        {"role": "system", "content": "be brief"},
        *messages,
    ]
    for row, reason in (
        ({"output": "o"}, "no_messages"),
        ({"input": "i"}, "no_content"),
    ):
        with pytest.raises(BadRecordError) as caught:
            convert(row)
        assert caught.value.details["reason"] == reason


def test_conversions_chain_and_work_on_many_rows():
    chain = tokenlake.ConvertInputOutputToChatML() >> tokenlake.ConvertToChatML()
    outcome = chain.on_rows(
        Rows(objects=[{"input": "i", "output": "o"}, {"input": 7, "output": "o"}])
    )
    assert len(outcome.rows) == 1
    assert [(index, fault.reason) for index, fault in outcome.bad] == [
        (1, "content_not_text")
    ]


def renderer(
    template: str = MARKED_CHATML, mode: str = "fail", **options: Any
) -> ChatRenderer:
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
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
                },
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"function": {"name": "g", "arguments": {"b": "x"}}}
                    ],
                },
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
        (
            {"messages": [{"role": "user", "content": "a<|im_end|>b"}, ASKED[1]]},
            "special_token_in_text",
        ),
        (
            {"messages": [ASKED[0], {**ASKED[1], "content": "<s>"}]},
            "special_token_in_text",
        ),
        (
            {"messages": [ASKED[0], {**ASKED[1], "name": "</s>"}]},
            "special_token_in_text",
        ),
        (
            {
                "messages": [
                    ASKED[0],
                    {**ASKED[1], "tool_calls": [{"f": {"<|im_start|>": 1}}]},
                ]
            },
            "special_token_in_text",
        ),
        (
            {"messages": ASKED, "tools": [{"description": "<|im_end|>"}]},
            "special_token_in_text",
        ),
        ({"messages": ASKED, "tools": "[{"}, "bad_tools"),
        ({"messages": ASKED, "tools": {"a": 1}}, "bad_tools"),
        ({"messages": ASKED, "tools": ["a"]}, "bad_tools"),
        ({"messages": [{**ASKED[0], "content": "\ud800"}, ASKED[1]]}, "invalid_utf8"),
        ({"messages": ASKED[:1]}, "nothing_to_learn"),
        (
            {"messages": [{"role": "user", "content": "x", "name": 3}]},
            "nothing_to_learn",
        ),
    ],
)
def test_rows_that_cannot_be_rendered_are_bad_and_the_others_are_not(row, reason):
    made = renderer().render(
        Rows(objects=[{"messages": ASKED}, row, {"messages": json.dumps(ASKED)}])
    )
    assert [(index, fault.reason) for index, fault in made.bad] == [(1, reason)]
    assert made.origin.tolist() == [0, 2]
    assert made.text[0] == made.text[1]


def test_special_tokens_of_rows_may_be_allowed():
    row = {"messages": [{"role": "user", "content": "a<|im_end|>b"}, ASKED[1]]}
    assert not renderer(mode="encode").render(Rows(objects=[row])).bad


def test_tokens_that_a_normalizer_would_make_special_are_found():
    """A lower-casing tokenizer whose special token is looked for behind the
    normalizer.
    """
    from tests.tokenizers.tokenizer_samples import changed

    def lower(spec: dict[str, Any]) -> None:
        spec["normalizer"] = {"type": "Lowercase"}
        for token in spec["added_tokens"]:
            token["normalized"] = token["content"] == "<|im_end|>"

    chat = ResolvedChat(template=MARKED_CHATML, messages_field="messages")
    lowering = ChatRenderer(chat, changed(speaking(MARKED_CHATML), lower), "fail")
    texts = ["fine", "x<|IM_END|>", "<|im_start|>"]
    rows = [
        {"messages": [{"role": "user", "content": text}, ASKED[1]]} for text in texts
    ]
    made = lowering.render(Rows(objects=rows))
    assert [(row, fault.reason) for row, fault in made.bad] == [
        (at, "special_token_in_text") for at in (1, 2)
    ]


def test_tokens_that_a_template_puts_together_are_found():
    """Without "<image>" between them, two harmless pieces end a turn."""
    template = CHATML.replace(
        "message.content", "message.content | replace('<image>', '')"
    )
    forged = [
        [{"role": "user", "content": text}, ASKED[1]]
        for text in ("a<|im_<image>end|>", "a<<image>|im_end|>")
    ]
    honest = [{"role": "user", "content": "see <image> and <|, <sum>, <|im_"}, ASKED[1]]
    made = renderer(template).render(
        Rows(objects=[{"messages": each} for each in (*forged, honest)])
    )
    assert [(index, fault.reason) for index, fault in made.bad] == [
        (at, "special_token_in_text") for at in (0, 1)
    ]
    assert "see  and <|, <sum>, <|im_<|im_end|>" in made.text[0].as_py()
    assert (
        not renderer(template, mode="encode")
        .render(Rows(objects=[{"messages": forged[0]}]))
        .bad
    )


# ---- rows one at a time: the texts of transformers, from a name, a path or an object
# ---------------------

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ROW = {"id": 7, "messages": conversation(1)}
TEXT = ChatTemplate(CHATML, TOKENS).render(conversation(1)).text
VALUES = [
    {"from": {"user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"]}
    for m in conversation(1)
]


class Lists(tokenlake.ShardedDataSource):
    """Rows in memory."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    @property
    def shard_names(self) -> Sequence[str]:
        return ["a"]

    def open_shard(self, shard_name: str) -> Iterator[dict[str, Any]]:
        return iter(self._rows)


def transform(
    *args: Any, template: str = CHATML, **options: Any
) -> tokenlake.ChatTemplateTransform:
    return tokenlake.ChatTemplateTransform(speaking(template), *args, **options)


def refused(changed: Any, row: dict[str, Any]) -> str:
    with pytest.raises(BadRecordError) as caught:
        changed(row)
    return f"{caught.value.details['reason']}: {caught.value}"


def test_a_row_gets_its_text_and_loses_its_messages():
    row = dict(ROW)
    assert transform()(row) == {"id": 7, "text": TEXT}
    assert row == ROW
    assert transform(output_field="prompt", drop_messages=False)(row) == {
        **ROW,
        "prompt": TEXT,
    }
    assert transform("chat")({"chat": ROW["messages"]}) == {"text": TEXT}
    assert (
        transform(add_generation_prompt=True)(row)["text"]
        == TEXT + "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("field", ["messages", "conversations", "conversation"])
def test_other_fields_and_values_are_understood(field):
    assert transform()({field: VALUES}) == {"text": TEXT}
    assert transform(output_field=field)({field: VALUES}) == {field: TEXT}
    told = refused(transform(convert_from_value_format=False), {field: VALUES})
    assert told.startswith(
        f"no_role: the field '{field}': turn 1: it has neither role nor from"
    )


def test_names_paths_files_and_objects_of_transformers_are_tokenizers(tmp_path):
    transformers = import_transformers()
    folder = write(speaking(TOOLS_CHATML), tmp_path / "tokenizer")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tools = [{"type": "function", "function": {"name": "add"}}]
    expected = theirs.apply_chat_template(conversation(1), tools=tools, tokenize=False)
    for tokenizer in (
        folder,
        str(folder),
        str(folder / "tokenizer.json"),
        theirs,
        speaking(TOOLS_CHATML),
    ):
        made = tokenlake.ChatTemplateTransform(tokenizer, tools=tools)
        assert made(ROW)["text"] == expected
        assert "'<|im_end|>'" in refused(
            made, {"messages": [{"role": "user", "content": "<|im_end|>"}]}
        )
    with pytest.raises(ConfigError, match="got a SimpleNamespace, must be a Hub id"):
        tokenlake.ChatTemplateTransform(SimpleNamespace())
    assert transform(template=MARKED_CHATML)(ROW)["text"] == TEXT


def test_a_rows_own_tools_are_rendered_unless_others_are_given():
    row = {**ROW, "tools": [{"name": "mine", "nothing": None}]}
    assert transform(template=TOOLS_CHATML)(row)["text"].startswith(
        '<|im_start|>system\nTools:\n{"name": "mine"}'
    )
    given = transform(template=TOOLS_CHATML, tools=[{"name": "given"}])(row)
    assert given["text"].startswith('<|im_start|>system\nTools:\n{"name": "given"}')
    assert given["tools"] == row["tools"]
    exact = transform(template=TOOLS_CHATML, drop_nulls=False)(row)
    assert '{"name": "mine", "nothing": null}' in exact["text"]


def test_rows_that_cannot_be_rendered_are_errors_never_other_texts():
    forged = [{"role": "user", "content": "<|im_end|>"}]
    assert refused(transform(), {"text": "x"}).startswith(
        "no_messages: the row has no conversation: none of messages"
    )
    assert refused(transform(), {**ROW, "text": "x"}).startswith(
        "field_exists: the row has a field 'text' already"
    )
    assert refused(transform(), {"messages": []}).startswith(
        "no_messages: the field 'messages': it is empty"
    )
    assert refused(transform(), {"messages": forged}).startswith(
        "special_token_in_text"
    )
    assert (
        "<|im_end|><|im_end|>"
        in transform(special_tokens_in_text="encode")({"messages": forged})["text"]
    )
    failing = tokenlake.ChatTemplateTransform(
        speaking(CHATML), template="{{ messages[0].tone }}"
    )
    assert refused(failing, ROW).startswith(
        "template_error: the chat template fails in line 1"
    )
    with pytest.raises(ConfigError, match="'literal' is not possible"):
        transform(special_tokens_in_text="literal")


def test_rows_without_a_conversation_pass_where_that_may_be():
    maybe = tokenlake.MaybeApplyChatTemplate(speaking(CHATML), output_field="said")
    assert maybe({"text": "plain"}) == {"text": "plain"}
    assert maybe({"text": "plain", "messages": None}) == {
        "text": "plain",
        "messages": None,
    }
    assert maybe(ROW) == {"id": 7, "said": TEXT}
    assert refused(maybe, {"messages": [{"role": "user"}]}).startswith("no_content")


def test_many_rows_and_chains():
    chain = tokenlake.ConvertToChatML() >> transform()
    outcome = chain.on_rows(
        Rows(objects=[{"conversations": VALUES}, {"messages": 7}, ROW])
    )
    assert [row["text"] for row in outcome.rows.objects] == [TEXT, TEXT]
    assert [(index, fault.reason) for index, fault in outcome.bad] == [
        (1, "not_messages")
    ]


def test_a_source_applies_a_template_and_names_the_row_that_fails():
    source = Lists([ROW, {"conversations": VALUES}]).apply_chat_template(
        speaking(CHATML)
    )
    assert list(source) == [{"id": 7, "text": TEXT}, {"text": TEXT}]
    assert list(source.open_shard_at_row("a", 1)) == [{"text": TEXT}]
    asked = Lists([ROW]).apply_chat_template(
        speaking(CHATML), "messages", "prompt", add_generation_prompt=True
    )
    assert list(asked) == [{"id": 7, "prompt": TEXT + "<|im_start|>assistant\n"}]
    with pytest.raises(
        BadRecordError, match="shard 'a', row 1: the row has no conversation"
    ):
        list(Lists([ROW, {"x": 1}]).apply_chat_template(speaking(CHATML)))
